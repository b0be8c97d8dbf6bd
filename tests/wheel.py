"""The built wheel in an environment of its own, which does not see this repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

from tests.command import completed

ROOT = Path(__file__).parents[1]
# What the wheel is made from: git's files, without building in the working tree.
SOURCES = (
    *("pyproject.toml", "README.md", "LICENSE", "params.yaml", "dvc.yaml", ".gitignore"),
    *(".dvcignore", ".dvc", "puma", "notebooks", "docs", "deletions/README.md"),
    *("deletions/.gitignore", "mlruns/.gitignore"),
)


@dataclass(frozen=True)
class Installation:
    """A virtual environment with the wheel; the other packages are the running environment's."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """As after activation, and without this repository or another registry."""
        dropped = ("PYTHONPATH", "PYTHONHOME", "MLFLOW_TRACKING_URI", "PUMA_DATA_DIR")
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        return kept | {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "VIRTUAL_ENV": str(self.folder),
            "DVC_NO_ANALYTICS": "1",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "COLUMNS": "100",
        }

    def run(
        self, command: str, folder: Path, *, codes: tuple[int, ...] = (0,)
    ) -> subprocess.CompletedProcess[str]:
        """Run a line of a shell in ``folder``."""
        done = completed(["bash", "-c", command], folder, self.environment)
        assert done.returncode in codes, f"{command}\n{done.stdout}{done.stderr}"
        return done


def build_wheel(folder: Path) -> Path:
    """The wheel of this repository, made offline in ``folder``."""
    sources = folder / "sources"
    for name in SOURCES:
        path, target = ROOT / name, sources / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "cache", "tmp", "config.local")
            shutil.copytree(path, target, symlinks=True, ignore=ignored)
        else:
            shutil.copy(path, target)
    (sources / "deletions" / "people.csv").write_text("subject_id\n4711\n")  # not to be packed
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "-q", "-w", str(folder), str(sources)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Installation:
    """Install ``wheel`` in a new environment at ``folder``.

    Its other packages are those of the running one, seen through a .pth file, in which no .pth
    file of theirs counts: so the repository, installed there for development, is not seen.
    """
    venv.create(folder, symlinks=True)
    made = Installation(folder)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    options = ["-q", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, *options], check=True, env=made.environment)
    packages = Path(sysconfig.get_path("purelib"))
    own = folder / "lib" / packages.parent.name / "site-packages"
    (own / "others.pth").write_text(f"{packages}\n")
    # The commands of the other packages have to run in this environment, too.
    for name in ("dvc", "jupyter", "jupyter-lab", "mlflow", "papermill"):
        script = (Path(sys.executable).parent / name).read_text().split("\n", 1)[1]
        (folder / "bin" / name).write_text(f"#!{python}\n{script}")
        (folder / "bin" / name).chmod(0o755)
    return made
