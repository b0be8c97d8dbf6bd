"""Where everything lies: the project root and every path below it, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from puma.errors import SettingsError
from puma.settings import Settings, load_settings

ROOT_MARK = "params.yaml"


@dataclass(frozen=True)
class Workspace:
    """A project folder. All paths are absolute, whatever the working directory is."""

    root: Path

    @classmethod
    def find(cls, start: Path | None = None) -> Workspace:
        """The nearest folder at or above ``start`` (default: here) that holds params.yaml.

        Notebooks run from notebooks/ in JupyterLab and from the root under papermill; both
        find the same project. Raises SettingsError when there is none.
        """
        here = (start or Path.cwd()).resolve()
        for folder in (here, *here.parents):
            if (folder / ROOT_MARK).is_file():
                return cls(folder)
        raise SettingsError(f"no {ROOT_MARK} in {here} or above it; run inside a PUMA project")

    @property
    def settings(self) -> Settings:
        return load_settings(self.root / ROOT_MARK)

    @property
    def key(self) -> Path:
        """The secret that keys deletion digests; never in git."""
        return self.root / ".puma" / "deletion.key"

    def request(self, dataset: str) -> Path:
        """The user's own deletion request."""
        return self.root / "deletions" / f"{dataset}.csv"

    def artifacts(self, dataset: str) -> Path:
        return self.root / "artifacts" / dataset

    def data(self, dataset: str) -> Path:
        return self.artifacts(dataset) / "dataset.npz"

    def deletion_set(self, dataset: str) -> Path:
        """The validated request that the pipeline acts on."""
        return self.artifacts(dataset) / "deletion_set.csv"

    def weights(self, dataset: str, method: str) -> Path:
        """The weights that ``method`` ('original' before any removal) produced."""
        return self.artifacts(dataset) / f"{method}.pt"

    def attack(self, dataset: str) -> Path:
        return self.artifacts(dataset) / "attack.pt"

    def receipt(self, dataset: str, method: str) -> Path:
        return self.root / "lineage" / dataset / f"{method}.json"

    def metrics(self, dataset: str, name: str) -> Path:
        return self.root / "metrics" / dataset / f"{name}.json"

    def plots(self, dataset: str, name: str) -> Path:
        return self.root / "plots" / dataset / f"{name}.csv"

    @property
    def registered(self) -> Path:
        """What the register stage found or created, version by version."""
        return self.root / "artifacts" / "registered.json"
