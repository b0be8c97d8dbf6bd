"""What `puma init` writes, against the repository's own files."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from puma.errors import SettingsError
from puma.project.creation import (
    TEMPLATE,
    OwnTable,
    create_project,
    place_in,
    project_files,
    require_room,
)
from puma.settings import load_settings

ROOT = Path(__file__).parents[2]
CHURN = OwnTable(Path("/tables/churn.csv"), {"target": "churned", "subject": "who"}, None)


def test_a_project_is_the_repository_but_for_what_is_stated() -> None:
    files = project_files("churn", CHURN)
    changed = {path for path, content in files.items() if content != (ROOT / path).read_text()}
    assert changed == {"README.md", "params.yaml"}
    for pattern in ("notebooks/*.ipynb", "docs/*.md"):
        assert {str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)} <= {*files}
    assert {".gitignore", ".dvcignore", "deletions/.gitignore", ".dvc/config"} <= {*files}


def test_settings_are_the_repository_s_but_for_the_dataset() -> None:
    found = project_files("churn", CHURN)["params.yaml"]
    expected = (ROOT / "params.yaml").read_text()
    expected = re.sub(r"(?m)^datasets: .*", "datasets: [churn]", expected)
    line = "sources:\n  churn: {path: data/churn.csv, target: churned, subject: who}"
    assert found == expected.replace("sources: {}", line)


def test_the_template_is_no_second_copy() -> None:
    copies = {
        str(path.relative_to(TEMPLATE))
        for path in TEMPLATE.rglob("*")
        if path.is_file() and path.resolve().is_relative_to(TEMPLATE)
    }
    assert copies == {"README.md"}


def test_what_messages_and_settings_refer_to_is_in_a_project() -> None:
    files = project_files("churn")
    texts = [path.read_text() for path in (ROOT / "puma").rglob("*.py")]
    texts += [content for path, content in files.items() if not path.startswith("docs/")]
    named = {name for text in texts for name in re.findall(r"docs/[\w/-]+\.\w+", text)}
    assert len(named) >= 4
    assert named <= {*files}


def test_the_readme_has_ten_lines_and_names_the_dataset() -> None:
    readme = project_files("churn")["README.md"]
    assert len(readme.splitlines()) == 10
    assert readme.startswith("# churn\n")
    assert "DATASET" not in readme


@pytest.mark.parametrize("exists", [False, True])
def test_a_project_without_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    folder, table = tmp_path / "a" / "project", tmp_path / "churn.csv"
    table.write_bytes(b"who,churned\r\n1,yes\r\n")
    if exists:  # a shell may stand in it
        (folder / ".venv").mkdir(parents=True)
    inode = folder.stat().st_ino if exists else None
    create_project(folder, "churn", OwnTable(table, {"target": "churned"}, place_in(folder, table)))
    copy = folder / "data" / "churn.csv"
    assert copy.read_bytes() == table.read_bytes()
    assert copy.stat().st_mode & 0o777 == 0o600
    assert load_settings(folder / "params.yaml").sources["churn"].path == "data/churn.csv"
    assert "no_scm = true" in (folder / ".dvc" / "config.local").read_text()
    assert [path.name for path in folder.parent.iterdir()] == ["project"]
    assert not list(folder.rglob(".puma-init-*"))
    assert inode in (None, folder.stat().st_ino)
    assert folder.stat().st_mode & 0o777 == (tmp_path / "a").stat().st_mode & 0o777


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("churn.csv", "/churn.csv"),
        ("my tables/a[1].csv", r"/my\ tables/a\[1].csv"),
        ("data/c.csv", None),
    ],
)
def test_a_table_in_the_folder_stays_there_and_out_of_git(
    tmp_path: Path, path: str, line: str | None
) -> None:
    table = tmp_path / path
    table.parent.mkdir(exist_ok=True)
    table.write_text("who,churned\n1,yes\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    create_project(
        tmp_path, "churn", OwnTable(table, {"target": "churned"}, place_in(tmp_path, table))
    )
    assert load_settings(tmp_path / "params.yaml").sources["churn"].path == path
    ignored = (tmp_path / ".gitignore").read_text().splitlines()
    if line is not None:
        assert line == ignored[-1]
    for private in (
        path,
        "deletions/churn.csv",
        "requests/2.csv",
        ".puma/deletion.key",
        "mlflow.db",
    ):
        command = ["git", "check-ignore", "--quiet", private]
        assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0, private
    for public in ("params.yaml", "deletions/README.md", "notebooks/train.ipynb", "README.md"):
        command = ["git", "check-ignore", "--quiet", public]
        assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 1, public
    assert not (tmp_path / ".dvc" / "config.local").exists()


def test_what_is_in_the_way_is_named_and_stays(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("mine")
    (tmp_path / ".gitignore").write_text("mine")
    (tmp_path / ".venv").mkdir()
    with pytest.raises(SettingsError, match=r"is not empty: '\.gitignore', 'main\.py' are in the"):
        create_project(tmp_path, "german_credit")
    assert {path.name for path in tmp_path.iterdir()} == {"main.py", ".gitignore", ".venv"}
    (tmp_path / ".gitignore").unlink()
    with pytest.raises(SettingsError, match=r"is not empty: 'main\.py' is in the way"):
        require_room(tmp_path)
    with pytest.raises(SettingsError, match="Not a directory"):
        require_room(tmp_path / "main.py")


@pytest.mark.parametrize("exists", [False, True])
def test_nothing_is_left_of_a_project_that_could_not_be_written(
    tmp_path: Path, exists: bool
) -> None:
    folder = tmp_path / "a" / "project"
    if exists:
        folder.mkdir(parents=True)
    table = OwnTable(tmp_path / "gone.csv", {"target": "churned"}, None)
    with pytest.raises(SettingsError, match=r"cannot be written \(No such file"):
        create_project(folder, "churn", table)
    assert sorted(tmp_path.rglob("*")) == ([tmp_path / "a", folder] if exists else [])
