"""The steps of an erasure, each of which can be repeated, and the note that survives a crash."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puma.erasure.dvc_cache import DvcCache, forget_stages
from puma.erasure.version_files import VersionFiles
from puma.errors import RegistryError
from puma.project.files import PRIVATE, write_text
from puma.project.workspace import Workspace
from puma.registry.certificate.build import FILE, KEPT, digest, read_artifact
from puma.registry.deletion import (
    compact,
    dispose_of_model,
    dispose_of_run,
    dispose_of_version,
    find_model,
    find_run,
    local_folder,
)
from puma.registry.store import experiment_id, is_default
from puma.registry.tombstones import Tombstone, bury
from puma.registry.versions import CHAMPION, RegisteredVersion, every_version

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel


@dataclass
class Plan:
    """What is to be erased. It is written down before anything is: paths and digests, no weights.

    ``run_id``, ``model_id``: of the registered version; empty for one that is erased already and
    whose files came back. ``unfinished``: runs and models of attempts to register it.
    ``searched``: the project was clean of its weights, so that the registry's own copy may go.
    """

    stone: Tombstone
    run_id: str = ""
    model_id: str = ""
    unfinished: list[tuple[str, str]] = field(default_factory=list)
    files: set[Path] = field(default_factory=set)
    stages: dict[Path, set[str]] = field(default_factory=dict)
    searched: bool = False

    def add(self, found: VersionFiles) -> None:
        """Also what was found anew, when it was written down before."""
        self.files |= found.files
        for lock, names in found.stages.items():
            self.stages.setdefault(lock, set()).update(names)

    def note(self, workspace: Workspace) -> Path:
        return workspace.erasing(self.stone.dataset, self.stone.version)

    def write(self, workspace: Workspace) -> None:
        said = {
            "version": self.stone.version,
            "stone": self.stone.written(),
            "run_id": self.run_id,
            "model_id": self.model_id,
            "unfinished": self.unfinished,
            "files": {str(path): _digest(path) for path in _single_files(self.files)},
            "searched": self.searched,
        }
        text = json.dumps(said, indent=2, sort_keys=True) + "\n"
        write_text(self.note(workspace), text, mode=PRIVATE)


def read_plan(path: Path, name: str) -> Plan | None:
    """What was written down of the erasure of a version of model ``name``; None for none."""
    try:
        said: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return Plan(
        stone=Tombstone(name, said["version"], **said["stone"]),
        run_id=said["run_id"],
        model_id=said["model_id"],
        unfinished=[(run_id, model_id) for run_id, model_id in said["unfinished"]],
        # Another version may have taken the place of a file meanwhile.
        files={
            Path(text)
            for text, digest in said["files"].items()
            if Path(text).is_file() and _digest(Path(text)) == digest
        },
        searched=said["searched"],
    )


def _single_files(paths: Iterable[Path]) -> set[Path]:
    """The files that ``paths`` are, or that lie in them."""
    found = {each for path in paths for each in (path, *path.rglob("*"))}
    return {path for path in found if path.is_file()}


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def remove_files(workspace: Workspace, cache: DvcCache | None, plan: Plan) -> None:
    """The stages that ``dvc.lock`` tells of, while it still leads to them; then every file."""
    for lock, names in plan.stages.items():
        forget_stages(lock, names)
    ends = {workspace.root, *([] if cache is None else [cache.folder])}
    for path in sorted(plan.files):
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            # DVC stumbles over an empty folder of its run cache.
            parent = path.parent
            while parent not in ends and parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()
                parent = parent.parent
        except OSError as error:
            raise RegistryError(
                f"{path}: cannot be deleted ({error.strerror}); make that possible, and run the "
                "command again, which goes on from here"
            ) from error


def keep_certificates(
    client: MlflowClient, plan: Plan, rows: list[RegisteredVersion], buried: dict[int, Tombstone]
) -> None:
    """Put the version's certificate, and all that were kept beside it, where they stay in reach.

    That is beside every version that was made from it; where there is none, beside the one that
    serves.
    """
    texts = {}
    names = [FILE, *(item.path for item in client.list_artifacts(plan.run_id, KEPT))]
    for name in names:
        text = read_artifact(client, plan.run_id, name)
        if text is not None and name in (FILE, f"{KEPT}/{digest(text)}.json"):
            texts[f"{KEPT}/{digest(text)}.json"] = text
    for row in _keepers(plan.stone.version, rows, buried):
        for name, text in texts.items():
            client.log_text(row.run_id, text, name)


def _keepers(
    version: int, rows: list[RegisteredVersion], buried: dict[int, Tombstone]
) -> list[RegisteredVersion]:
    def made_from(row: RegisteredVersion) -> bool:
        above = row.parent_version
        while above != version and above in buried:
            above = buried[above].parent_version
        return above == version

    others = [row for row in rows if row.method and row.version != version]
    return [row for row in others if made_from(row)] or [
        row for row in others if CHAMPION in row.aliases
    ]


def remove_registered(client: MlflowClient, workspace: Workspace, plan: Plan) -> None:
    """The tombstone; then the model, the run, and last the version itself.

    Raises RegistryError for anything that is there all the same.
    """
    stone = plan.stone
    folders = artifact_folders(client, plan)
    bury(client, stone)
    dispose_of_model(client, plan.model_id)
    dispose_of_run(client, plan.run_id)
    dispose_of_version(client, stone.name, stone.version)
    if is_default():
        compact(workspace)
    if left := [str(folder) for folder in folders if folder.exists()]:
        raise RegistryError(
            f"{', '.join(left)}: MLflow was to delete it, and it is still there; delete it by hand"
        )


def find_unfinished(
    client: MlflowClient, plan: Plan, holding: Iterable[Path]
) -> list[tuple[str, str]]:
    """The runs and models, of attempts to register the version, whose files hold its weights.

    None that a registered version of any model leads to.
    """
    taken = {plan.model_id, *(model_id for _, model_id in plan.unfinished)}
    runs = set()
    for version in every_version(client, ""):
        taken.add(version.source.removeprefix("models:/"))
        runs.add(version.run_id)
    paths = tuple(holding)
    found = []
    for model in _logged_models(client):
        folder = local_folder(model.artifact_location)
        held = folder is not None and any(path.is_relative_to(folder) for path in paths)
        if held and model.model_id not in taken:
            run_id = model.source_run_id or ""
            found.append(("" if run_id in runs else run_id, model.model_id))
    return found


def _logged_models(client: MlflowClient) -> Iterator[LoggedModel]:
    experiment, token = [experiment_id(client)], None
    while True:
        page = client.search_logged_models(experiment, page_token=token)
        yield from page
        if not (token := page.token):
            return


def remove_unfinished(client: MlflowClient, plan: Plan) -> None:
    for run_id, model_id in plan.unfinished:
        dispose_of_model(client, model_id)
        if run_id:
            dispose_of_run(client, run_id)


def locations(client: MlflowClient, plan: Plan) -> list[str]:
    """The addresses of the artifacts of the version and of the attempts to register it."""
    found = []
    for run_id, model_id in [(plan.run_id, plan.model_id), *plan.unfinished]:
        model = find_model(client, model_id) if model_id else None
        run = find_run(client, run_id) if run_id else None
        found += [] if model is None else [str(model.artifact_location)]
        found += [] if run is None else [str(run.info.artifact_uri)]
    return found


def artifact_folders(client: MlflowClient, plan: Plan) -> list[Path]:
    """Of :func:`locations`, those on this machine."""
    folders = map(local_folder, locations(client, plan))
    return [folder for folder in folders if folder is not None]
