"""Kill removals of the direct path at random times: is a version ever half there?

    OMP_NUM_THREADS=1 python -m benchmarks kills --kills 100

Each kill is a SIGKILL to a process that removes people, at a time that is uniform
over what a removal takes when it is left alone; a process that was quicker is no kill, and shows
how long they take now. Afterwards every new version must hold against
its certificate and load; every `--rerun-every`-th time the request is made once more, which has
to leave exactly one new version, with `challenger` on it. The project is the tests' small one,
or a copy of the one at `--project`, whose pipeline has run. So this module imports from tests/:
the small project, and the forks that are ready in milliseconds.
Writes docs/results/kills.csv.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from tqdm import tqdm

from puma.data import Dataset
from puma.project.files import require_writable, write_text
from puma.project.workspace import Workspace
from puma.registry import RegisteredVersion, Registry, register_all
from puma.registry.certificate.verify import verify_version
from puma.registry.store import experiment_id
from puma.workflows.remove import remove_request
from tests.audited import DATASET, make_audited
from tests.registry.forked import finish, start

OUTPUT = Path(__file__).parents[1] / "docs" / "results" / "kills.csv"
KEPT = ("artifacts", "lineage", "metrics", "plots", "params.yaml", ".puma/deletion.key")
PEOPLE = 6
TIMED = 3


@dataclass(frozen=True)
class Found:
    """What a kill left. ``reached``: how far it had come, by what is in the registry.

    ``left_behind``: files in the folder for temporary ones.
    """

    reached: str
    versions_before: int
    versions_after: int
    half_versions: int
    left_behind: int
    rerun: str


def prepare(folder: Path, project: Path | None, dataset: str) -> Workspace:
    """A project of this benchmark's own, with its versions registered and a request to make."""
    root = folder / "project"
    if project is None:
        template = Workspace(folder / "template")
        template.root.mkdir()
        Registry.open(template, create=True)
        workspace = make_audited(root, template)
    else:
        for name in KEPT:
            source, target = project / name, root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copy(source, target)
        workspace = Workspace(root.resolve())
        register_all(workspace, progress=False)
    ids = sorted(set(Dataset.load(workspace.data(dataset)).train.subject_ids.tolist()))
    people = random.Random(0).sample(ids, PEOPLE)
    request_of(workspace).write_text("\n".join(["subject_id", *map(str, people)]) + "\n")
    return workspace


def request_of(workspace: Workspace) -> Path:
    return workspace.root / "request.csv"


def remove(workspace: Workspace, dataset: str) -> None:
    remove_request(workspace, dataset, "champion", request_of(workspace), progress=False)


def look(
    workspace: Workspace, dataset: str, before: int, runs: int, *, rerun: bool, output: Path
) -> None:
    """Write down what is there, as :class:`Found`. Raises AssertionError for a failed rerun."""
    registry = Registry.open(workspace)
    new = registry.versions(dataset)[before:]
    half = [row.version for row in new if not _is_whole(registry, row)]
    reached = "computing" if _n_runs(registry) == runs else "logging"
    if new:
        reached = "done" if "challenger" in new[-1].aliases else "registered"
    temporary = Path(tempfile.gettempdir())
    left_behind = sum(path.is_file() for path in temporary.rglob("*"))
    if rerun:
        done = remove_request(workspace, dataset, "champion", request_of(workspace), progress=False)
        rows = registry.versions(dataset)
        assert len(rows) == before + 1
        assert done.version.version == rows[-1].version
        assert "challenger" in done.version.aliases
        assert _is_whole(registry, done.version)
    found = Found(
        reached, before, before + len(new), len(half), left_behind, "completed" if rerun else ""
    )
    output.write_text(json.dumps(asdict(found)))


def _n_runs(registry: Registry) -> int:
    """MLflow's runs, those included that no version has been made of yet."""
    return len(registry.client.search_runs([experiment_id(registry.client)]))


def _is_whole(registry: Registry, version: RegisteredVersion) -> bool:
    registry.load_predictor(version)
    found = verify_version(registry.workspace, version.dataset, version.version)
    return found.conclusion == "holds"


@dataclass(frozen=True)
class Range:
    """A project that is put back as it was before each shot at it."""

    folder: Path
    workspace: Workspace
    dataset: str
    before: int
    runs: int

    @classmethod
    def of(cls, folder: Path, workspace: Workspace, dataset: str) -> Range:
        registry = Registry.open(workspace)
        before, runs = len(registry.versions(dataset)), _n_runs(registry)
        shutil.copytree(workspace.root, folder / "saved")
        return cls(folder, workspace, dataset, before, runs)

    @property
    def temporary(self) -> Path:
        return self.folder / "temporary"

    def restore(self) -> None:
        for path in (self.workspace.root, self.temporary):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.folder / "saved", self.workspace.root)
        self.temporary.mkdir()

    def run(self, seconds: float | None = None) -> float | None:
        """Start a removal and kill it after ``seconds``; how long it took if it was quicker."""
        self.restore()
        log, begun = self.folder / "log", time.perf_counter()
        process = start(remove, *self._target, log=log, TMPDIR=str(self.temporary))
        process.join(seconds)
        process.kill()
        finish({process: log}, killed=True)
        return None if process.exitcode else time.perf_counter() - begun

    def see(self, *, rerun: bool) -> Found:
        """What the last kill left."""
        log, output = self.folder / "log", self.folder / "found.json"
        checked = start(
            look,
            *(*self._target, self.before, self.runs),
            log=log,
            named={"rerun": rerun, "output": output},
            TMPDIR=str(self.temporary),
        )
        finish({checked: log}, 3600)
        return Found(**json.loads(output.read_text()))

    @property
    def _target(self) -> tuple[Workspace, str]:
        return self.workspace, self.dataset


def main(
    kills: Annotated[int, typer.Option(min=1)] = 100,
    seed: int = 0,
    rerun_every: Annotated[int, typer.Option(min=1)] = 5,
    project: Annotated[Path | None, typer.Option(help="A project whose pipeline has run.")] = None,
    dataset: Annotated[str, typer.Option(help="Of --project.")] = DATASET,
    output: Path = OUTPUT,
) -> None:
    """Kill removals at random times and look for half versions."""
    require_writable(output)
    random_times = random.Random(seed)
    rows = []
    with tempfile.TemporaryDirectory(prefix="puma-kills-") as name:
        folder = Path(name)
        workspace = prepare(folder, project, dataset)
        range_ = Range.of(folder, workspace, dataset)
        # The first one makes the forks ready.
        lasted = [range_.run() or 0.0 for _ in range(1 + TIMED)]
        print(f"a removal takes {statistics.median(lasted[-TIMED:]):.2f} s")
        for number in tqdm(range(1, kills + 1), desc="kills"):
            clock = time.perf_counter()
            at = random_times.uniform(0, statistics.median(lasted[-TIMED:]))
            while (quicker := range_.run(at)) is not None:
                lasted.append(quicker)
                at = random_times.uniform(0, statistics.median(lasted[-TIMED:]))
            found = range_.see(rerun=number % rerun_every == 0)
            seconds = time.perf_counter() - clock
            rows.append({"kill": number, "killed_at": at, **asdict(found), "seconds": seconds})
    table = pd.DataFrame(rows)
    write_text(output, table.to_csv(index=False, float_format="%.4g"))
    print(table.reached.value_counts())
    print(
        f"{len(table)} kills, the last after {table.killed_at.max():.2f} s: "
        f"{table.half_versions.sum()} half versions, "
        f"{(table.rerun != '').sum()} of {kills // rerun_every} reruns completed, "
        f"{table.seconds.sum():.0f} s in all"
    )
