"""Where everything lies: the project root and every path below it, in one place."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from puma.errors import SettingsError
from puma.settings import Settings, is_original, load_settings
from puma.yaml_file import parse_yaml, shown

ROOT_MARK = "params.yaml"
STAGE_FOLDERS = ("artifacts", "lineage", "metrics", "plots")  # what stages write, for each other


@dataclass(frozen=True)
class Workspace:
    """A project folder. All paths are absolute, whatever the working directory is.

    Attributes:
        root: The folder that holds params.yaml.
        stages: The folder that the stages' outputs lie in; None is the root.
        overrides: Group of params.yaml -> what a notebook's reader set in it.
    """

    root: Path
    stages: Path | None = None
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)

    @classmethod
    def find(cls, start: Path | None = None) -> Workspace:
        """The nearest folder at or above ``start`` (default: here) that holds params.yaml.

        Notebooks run from notebooks/ in JupyterLab and from the root under papermill; both
        find the same project.

        Raises:
            SettingsError: There is none.
        """
        here = (start or Path.cwd()).resolve()
        for folder in (here, *here.parents):
            if (folder / ROOT_MARK).is_file():
                return cls(folder)
        raise SettingsError(f"no {ROOT_MARK} in {here} or above it; run inside a PUMA project")

    @classmethod
    def of(cls, dataset: str) -> Workspace:
        """The project around this folder, once it is known to have ``dataset``.

        Raises:
            SettingsError: There is no project, or it has no such dataset.
        """
        found = cls.find()
        known = found.settings.datasets
        if dataset not in known:
            raise SettingsError(
                f"unknown dataset {dataset!r}; {found.root / ROOT_MARK} names {', '.join(known)}"
            )
        return found

    @classmethod
    def for_notebook(
        cls,
        group: str,
        overrides: Mapping[str, Any] | str,
        *,
        record: bool,
        dataset: str | None = None,
    ) -> Workspace:
        """The project as a stage's notebook works on it: to record, or to look and to try.

        Args:
            group: The group of params.yaml that ``overrides`` are of.
            overrides: Other values in it, by key; a text, as ``papermill -p`` gives it, is YAML.
            record: Whether to replace what the pipeline made. If not, see :meth:`scratch`.
            dataset: What the notebook is about, if it is one dataset.

        Raises:
            SettingsError: The project has no such dataset. An override is unknown or cannot be
                used, or is to be recorded: what the pipeline makes, it makes by params.yaml.
        """
        if isinstance(overrides, str):
            given = parse_yaml(overrides, Path("overrides"))
        else:
            given = overrides
        if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
            raise SettingsError(
                'overrides must be settings by name, such as {"budget": 0.02}, got '
                f"{shown(given)}; correct them in the parameters"
            )
        overrides = given
        found = cls.find() if dataset is None else cls.of(dataset)
        if not overrides:
            return found if record else found.scratch()
        if record:
            raise SettingsError(
                f"overrides has {', '.join(overrides)}, and record is True: the pipeline records "
                f"what it made by params.yaml. Change {group} there and run `dvc repro`, or set "
                "record = False to try"
            )
        found.settings.overridden(group, overrides)  # refused before anything is copied
        return replace(found.scratch(), overrides={group: dict(overrides)})

    def scratch(self) -> Workspace:
        """The same project with a copy of the stages' outputs, which is written instead of them.

        For notebooks that a person runs to look: the pipeline's outputs stay as they are. The copy
        is deleted when the process ends. Prints one line that says so.
        """
        private = self.root / ".puma" / "interactive"
        private.mkdir(parents=True, exist_ok=True, mode=0o700)
        copy = Path(tempfile.mkdtemp(dir=private))
        atexit.register(shutil.rmtree, copy, ignore_errors=True)
        for name in STAGE_FOLDERS:
            if (self._stages / name).is_dir():
                shutil.copytree(self._stages / name, copy / name)
        print(
            "Nothing is recorded: what this run writes is deleted when its kernel ends. To record "
            "it, set record = True in the parameters, or run `dvc repro`."
        )
        return replace(self, stages=copy)

    @property
    def _stages(self) -> Path:
        return self.stages or self.root

    @property
    def settings(self) -> Settings:
        """params.yaml, read anew and validated, and what overrides it."""
        found = load_settings(self.root / ROOT_MARK)
        for group, changes in self.overrides.items():
            found = found.overridden(group, changes)
        return found

    @property
    def source_folder(self) -> Path | None:
        """``data.folder`` as seen from the root; None where params.yaml does not name one."""
        folder = self.settings.data.folder
        return None if folder is None else self.root / Path(folder).expanduser()

    def source_record(self, dataset: str) -> Path:
        """What ``dataset`` is made from, by which DVC sees a change of the user's own data."""
        return self.artifacts(dataset) / "source.json"

    def code_record(self, dataset: str, stage: str) -> Path:
        """The digests of the code that ``stage`` runs, by which DVC sees that it changed."""
        return self.artifacts(dataset) / "code" / f"{stage}.json"

    def request_record(self, dataset: str) -> Path:
        """A keyed digest of the request's file, by which DVC sees that it changed."""
        return self.artifacts(dataset) / "request.json"

    def resolved(self, dataset: str, group: str) -> Path:
        """Settings of ``dataset`` that DVC sees: model, training, groups, or those of a method."""
        return self.artifacts(dataset) / "settings" / f"{group}.json"

    @property
    def key(self) -> Path:
        """The secret that keys deletion digests; never in git."""
        return self.root / ".puma" / "deletion.key"

    def request(self, dataset: str) -> Path:
        """The user's own deletion request."""
        return self.root / "deletions" / f"{dataset}.csv"

    def archived_request(self, dataset: str, digest: str) -> Path:
        """The people of a request that was served; later removals build on it. Private."""
        return self.root / ".puma" / "requests" / dataset / f"{digest}.csv"

    def artifacts(self, dataset: str) -> Path:
        """The folder of what the pipeline's stages hand to each other."""
        return self._stages / "artifacts" / dataset

    def data(self, dataset: str) -> Path:
        """The prepared dataset: rows, labels and owners. Private."""
        return self.artifacts(dataset) / "dataset.npz"

    def groups(self, dataset: str) -> Path:
        """Which rows of the prepared dataset belong to the groups of puma.preserve. Private."""
        return self.artifacts(dataset) / "groups.npz"

    def deletion_set(self, dataset: str) -> Path:
        """The validated request that the pipeline acts on."""
        return self.artifacts(dataset) / "deletion_set.csv"

    def weights(self, dataset: str, version: str) -> Path:
        """The weights of ``version``: an original, or what a method made of one."""
        if is_original(version):
            return self.artifacts(dataset) / "originals" / version / "weights.pt"
        return self.artifacts(dataset) / f"{version}.pt"

    def identity(self, dataset: str, original: str) -> Path:
        """The fingerprint of ``original``, beside its weights: what DVC sees of its record."""
        return self.weights(dataset, original).parent / "fingerprint"

    def records(self, dataset: str, original: str) -> Path:
        """The folder of what was recorded while ``original`` was trained, if anything was."""
        return self.weights(dataset, original).parent / "records"

    def pool(self, dataset: str) -> Path:
        """The models that serve every request to the plain original."""
        return self.artifacts(dataset) / "pool" / "pool.npz"

    def attack(self, dataset: str) -> Path:
        """The paper's membership attack, trained."""
        return self.artifacts(dataset) / "attack.pt"

    def shadows(self, dataset: str) -> Path:
        """LiRA's shadow models of ``dataset``."""
        return self.artifacts(dataset) / "shadows.npz"

    def reference(self, dataset: str, original: str, kind: str) -> Path:
        """Models trained as ``original`` is, "with" the rows of the request or "without" them."""
        return self.artifacts(dataset) / "references" / original / f"{kind}.npz"

    @property
    def lineage(self) -> Path:
        """The folder of all model records and audits."""
        return self._stages / "lineage"

    def model_record(self, dataset: str, version: str) -> Path:
        """What ``version`` is and where it came from."""
        return self.lineage / dataset / f"{version}.json"

    def audit(self, dataset: str, version: str) -> Path:
        """Which model and which request the metrics of ``version`` were measured on."""
        return self.lineage / dataset / f"{version}.audit.json"

    def metrics(self, dataset: str, name: str) -> Path:
        """The numbers that ``dvc metrics show`` reads."""
        return self._stages / "metrics" / dataset / f"{name}.json"

    def figures(self, dataset: str, version: str) -> Path:
        """The folder of the pictures that the registry shows of ``version``."""
        return self._stages / "plots" / dataset / version

    def plots(self, dataset: str, name: str) -> Path:
        """A table that ``dvc plots show`` draws."""
        return self._stages / "plots" / dataset / f"{name}.csv"

    def erasing(self, dataset: str, version: int) -> Path:
        """The note of an unfinished erasure, from which the same command goes on."""
        return self.root / ".puma" / "erasing" / f"{dataset}-{version}.json"

    @property
    def registered(self) -> Path:
        """What the register stage found or created, version by version."""
        return self._stages / "artifacts" / "registered.json"

    @property
    def complete(self) -> Path:
        """A digest of the registry's state in which nothing was missing, to look no closer."""
        return self.root / ".puma" / "registered"
