from __future__ import annotations

import csv
import json
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from puma import cli
from puma.console import print_table
from puma.data import Dataset, Examples
from puma.errors import DeletionError, PumaError
from puma.registry import register_all
from puma.workspace import Workspace
from tests.registry.fixtures import _default_store, filled, registered, template, workspace
from tests.registry.projects import (
    DATASET,
    DELETION,
    FEATURES,
    VERDICTS,
    start_python,
    write_audit,
)

__all__ = ["_default_store", "filled", "registered", "template", "workspace"]


def puma(folder: Path, *arguments: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return CliRunner().invoke(cli.app, list(arguments))


def test_versions_as_json_is_all_that_is_printed(filled: Workspace) -> None:
    result = puma(filled.root, "versions", DATASET, "--json")
    rows = json.loads(result.stdout)
    assert result.exit_code == 0
    assert [(row["version"], row["method"], row["parent_version"]) for row in rows] == [
        (1, "original", None),
        (2, "retrain", 1),
        (3, "puma", 1),
    ]
    assert rows[2]["deletion_digest"] == DELETION
    assert rows[2]["aliases"] == ["challenger"]
    assert rows[2]["metrics"]["attack_rate"] == 0.625
    assert {row["method"]: row["verdict"] for row in rows} == VERDICTS


def test_fresh_process_prints_json_alone_and_loads_no_torch(filled: Workspace) -> None:
    code = (
        "import sys\nfrom puma.cli import app\nfrom puma.registry import all_registered\n"
        "from puma.workspace import Workspace\nassert all_registered(Workspace.find())\n"
        f"app(['versions', '{DATASET}', '--json'], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules"
    )
    process = start_python(code, filled.root)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert len(json.loads(output)) == 3


def test_nothing_registered_is_an_empty_list(template: Workspace) -> None:
    result = puma(template.root, "versions", DATASET, "--json")
    assert (result.exit_code, result.stdout) == (0, "[]\n")
    result = puma(template.root, "versions", DATASET)
    assert "no version of puma-toy yet; run `dvc repro`" in result.stderr


def test_versions_table_fits_a_terminal(filled: Workspace) -> None:
    result = puma(filled.root, "versions", DATASET)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    lines = [line for line in result.stdout.splitlines() if line.strip()]
    assert lines[-1].split() == [
        *("3", "puma", "challenger", "1", "3", DELETION[:8], "0.700", "over", "forgotten", "0.250")
    ]
    heading = next(line for line in lines if "verdict" in line)
    place = slice(heading.index("verdict"), heading.index("secs"))
    told = " ".join(line[place].strip() for line in lines[lines.index(heading) + 2 :])
    assert told.split() == ["forgetting", "incomplete", "passed", "over", "forgotten"]


def test_compare_shows_the_current_versions_side_by_side(filled: Workspace) -> None:
    result = puma(filled.root, "compare", DATASET)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    lines = [re.split(r"  +", line.strip()) for line in result.stdout.splitlines()]
    table = {name: values for name, *values in lines}
    assert ["1 original", "2 retrain", "3 puma"] in lines
    assert table["accuracy"] == ["0.750", "0.500", "0.700"]
    assert table["speedup_vs_retrain"] == ["-", "1.000", "6.000"]
    assert table["removed rows"] == ["0", "3", "3"]
    assert table["made from"] == ["-", "1", "1"]
    assert table["verdict"] == ["forgetting incomplete", "passed", "over forgotten"]
    assert "attack_auc" not in table  # nobody has it


def test_compare_before_registration_says_what_to_do(workspace: Workspace) -> None:
    result = puma(workspace.root, "compare", DATASET)
    assert result.exit_code == 2
    assert "3 of the 3 versions of 'toy' are not registered yet; run `dvc repro`" in result.stderr
    assert result.stdout == ""


def test_registered_answers_by_its_exit_code(filled: Workspace, workspace: Workspace) -> None:
    done = puma(filled.root / "lineage", "registered")
    assert (done.exit_code, done.stdout) == (0, "every version is registered\n")
    open_ = puma(workspace.root, "registered")
    assert (open_.exit_code, open_.stdout) == (1, "not registered: toy original: has no version\n")


def test_a_changed_audit_is_unregistered_until_it_is_registered(registered: Workspace) -> None:
    assert puma(registered.root, "registered").exit_code == 0
    write_audit(registered, "retrain", verdict="inconclusive", reason="too few rows")
    changed = puma(registered.root, "registered")
    assert changed.exit_code == 1
    assert changed.stdout == "not registered: toy retrain: was measured again\n"
    register_all(registered, progress=False)
    assert puma(registered.root, "registered").exit_code == 0
    rows = json.loads(puma(registered.root, "versions", DATASET, "--json").stdout)
    assert [row["verdict"] for row in rows] == [
        "forgetting_incomplete",
        "inconclusive",
        "over_forgotten",
    ]


@pytest.mark.parametrize("command", ["versions", "compare", "request", "audit"])
def test_unknown_dataset_names_the_known_ones(workspace: Workspace, command: str) -> None:
    more = ["champion"] if command == "audit" else []
    result = puma(workspace.root, command, "nobody", *more)
    assert result.exit_code == 2
    assert "unknown dataset 'nobody'" in result.stderr
    assert result.stderr.endswith("names toy\n")


def test_outside_a_project_there_is_one_readable_line(tmp_path: Path) -> None:
    result = puma(tmp_path, "registered")
    assert result.exit_code == 2
    assert result.stderr == (
        f"puma: no params.yaml in {tmp_path} or above it; run inside a PUMA project\n"
    )


def test_other_errors_keep_their_traceback(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("puma.registry.missing", broken)
    result = puma(workspace.root, "registered")
    assert isinstance(result.exception, ZeroDivisionError)
    assert not isinstance(result.exception, PumaError)


def test_help_imports_neither_mlflow_nor_torch(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom puma.cli import app\ntry:\n    app(['--help'])\n"
        "except SystemExit:\n    pass\nprint({'mlflow', 'torch', 'rich.table'} & {*sys.modules})"
    )
    process = start_python(code, tmp_path)
    output, _ = process.communicate(timeout=60)
    assert "versions" in output
    assert "mlflow" not in output.splitlines()[-1]
    assert "torch" not in output.splitlines()[-1]


def test_the_module_runs_as_a_command(template: Workspace) -> None:
    code = "import runpy, sys\nsys.argv = ['puma', 'versions', 'nobody']\n"
    code += "runpy.run_module('puma.cli', run_name='__main__')"
    process = start_python(code, template.root)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "unknown dataset 'nobody'" in errors


def test_ui_serves_the_store_of_the_project(
    filled: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *arguments: started.append(arguments))
    port = free_port()
    result = puma(filled.root / "lineage", "ui", "--port", str(port))
    assert result.exit_code == 0
    assert f"http://127.0.0.1:{port}/#/models" in result.stdout
    ((program, arguments, environment),) = started
    assert program == sys.executable
    assert arguments[1:4] == ["-m", "mlflow", "ui"]
    assert arguments[arguments.index("--port") + 1] == str(port)
    assert environment["MLFLOW_BACKEND_STORE_URI"] == f"sqlite:///{filled.root}/mlflow.db"


def test_ui_of_a_server_shows_no_password(
    template: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@host:8000/")
    result = puma(template.root, "ui")
    assert result.stdout == "this registry has a server already: http://***@host:8000/#/models\n"


def test_ui_takes_ipv6(filled: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *arguments: started.append(arguments))
    with socket.socket(socket.AF_INET6) as taken:
        try:
            taken.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        taken.listen()
        port = taken.getsockname()[1]
        busy = puma(filled.root, "ui", "--host", "::1", "--port", str(port))
    assert f"[::1]:{port} cannot be served" in busy.stderr
    result = puma(filled.root, "ui", "--host", "::1", "--port", str(port))
    assert result.exit_code == 0
    assert f"http://[::1]:{port}/#/models" in result.stdout
    assert len(started) == 1


def test_ui_refuses_a_host_that_is_not_there(filled: Workspace) -> None:
    result = puma(filled.root, "ui", "--host", "nowhere.invalid")
    assert result.exit_code == 2
    assert "nowhere.invalid:5000 cannot be served" in result.stderr


def test_ui_refuses_a_port_in_use(filled: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("started"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = puma(filled.root, "ui", "--port", str(port))
    assert result.exit_code == 2
    assert f"127.0.0.1:{port} cannot be served" in result.stderr
    assert "choose another --port" in result.stderr


def test_request_of_the_user_is_checked_and_written(prepared: Workspace) -> None:
    prepared.request(DATASET).parent.mkdir()
    prepared.request(DATASET).write_text("subject_id\nperson-1\nperson-3\nperson-1\n")
    result = puma(prepared.root, "request", DATASET)
    assert result.exit_code == 0
    assert result.stdout == (
        "toy: request in deletions/toy.csv: 2 subjects, 2 training rows; "
        "1 duplicated lines merged\nwritten to artifacts/toy/deletion_set.csv\n"
    )
    assert written_ids(prepared) == ["person-1", "person-3"]


def test_request_is_a_demonstration_without_a_file(prepared: Workspace) -> None:
    result = puma(prepared.root, "request", DATASET)
    assert result.exit_code == 0
    assert "toy: demonstration (smallest cluster of every class): 3 subjects" in result.stdout
    # Per class, clusters of 4, 4 and 1, and of 4, 3 and 2 rows: see `prepared`.
    assert written_ids(prepared) == ["person-16", "person-17", "person-8"]
    assert "person" not in result.stdout


def test_the_demonstration_follows_the_marking(prepared: Workspace) -> None:
    params = prepared.root / "params.yaml"
    kept = [line for line in params.read_text().splitlines() if not line.startswith("marking")]
    kept.append("marking: {name: ordered, fraction: 0.25}")
    params.write_text("\n".join(kept))
    result = puma(prepared.root, "request", DATASET)
    assert result.exit_code == 0
    assert "toy: demonstration (the first 0.25 of the rows): " in result.stdout


def test_refused_request_writes_nothing(prepared: Workspace) -> None:
    prepared.request(DATASET).parent.mkdir()
    prepared.request(DATASET).write_text("subject_id\nperson-1\nstranger\n")
    result = puma(prepared.root, "request", DATASET)
    assert result.exit_code == 2
    assert "1 of 2 subject ids are not in dataset 'toy'; correct or drop them" in result.stderr
    assert result.stderr.endswith(
        "puma: to see which ids, run `puma request <dataset>` in a terminal\n"
    )
    assert "stranger" not in result.stderr
    assert result.stdout == ""
    assert not prepared.deletion_set(DATASET).exists()


@pytest.mark.parametrize(("n", "more"), [(1, ""), (10, ""), (11, " and 1 more")])
def test_unknown_ids_are_shown_in_a_terminal(
    n: int, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"x{number:02d}" for number in range(n)]
    result = refused(ids, monkeypatch)
    shown = ", ".join(f"'{name}'" for name in ids[:10])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"puma: some are unknown\npuma: unknown: {shown}{more}\n"


def test_unknown_ids_are_not_shown_in_a_notebook_s_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    result = refused(["x1"], monkeypatch)
    assert "run `puma request <dataset>` in a terminal" in result.stderr
    assert "x1" not in result.stderr


@pytest.mark.parametrize("name", ["x\x1b[2J", "x\ny"])
def test_unknown_ids_cannot_steer_the_terminal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert name not in refused([name], monkeypatch).stderr


@pytest.mark.parametrize(
    "name", ["to-y.csv", "toy.csv.dvc", "Toy.csv", "toy", "toy.csv ", "to\udcffy.csv"]
)
def test_a_request_that_nothing_reads_is_refused(prepared: Workspace, name: str) -> None:
    folder = prepared.request(DATASET).parent
    folder.mkdir()
    (folder / name).write_text("subject_id\nperson-1\n")
    for _ in range(2):  # with a request of this dataset's own, too
        result = puma(prepared.root, "request", DATASET)
        assert result.exit_code == 2
        assert f"{name!r} would go unread" in result.stderr
        assert "rename it, or move it away" in result.stderr
        assert "person" not in result.stderr
        assert not prepared.deletion_set(DATASET).exists()
        prepared.request(DATASET).write_text("subject_id\nperson-3\n")


def test_a_request_that_links_to_nowhere_is_refused(prepared: Workspace) -> None:
    path = prepared.request(DATASET)
    path.parent.mkdir()
    path.symlink_to("moved.csv")
    result = puma(prepared.root, "request", DATASET)
    assert result.exit_code == 2
    assert "toy.csv: no such deletion request" in result.stderr
    assert not prepared.deletion_set(DATASET).exists()


@pytest.mark.parametrize("link", [True, False])
def test_a_folder_of_requests_that_cannot_be_read_is_refused(
    prepared: Workspace, link: bool
) -> None:
    folder = prepared.request(DATASET).parent
    if link:
        folder.symlink_to("nowhere")
    else:
        folder.write_text("")
    result = puma(prepared.root, "request", DATASET)
    assert result.exit_code == 2
    assert "deletions: cannot be read" in result.stderr


def test_what_belongs_among_the_requests_is_no_stray(prepared: Workspace) -> None:
    folder = prepared.request(DATASET).parent
    folder.mkdir()
    for name in ("README.md", ".gitignore", ".toy.csv.swp", "german_credit.csv", "digits.csv"):
        (folder / name).write_text("")
    assert puma(prepared.root, "request", DATASET).exit_code == 0


def test_class_removal_needs_the_setting(prepared: Workspace) -> None:
    prepared.request(DATASET).parent.mkdir()
    everybody = "\n".join(f"person-{number}" for number in range(9))
    prepared.request(DATASET).write_text(f"subject_id\n{everybody}\n")
    assert puma(prepared.root, "request", DATASET).exit_code == 2
    params = prepared.root / "params.yaml"
    params.write_text(f"{params.read_text()}deletion: {{allow_class_removal: true}}\n")
    assert puma(prepared.root, "request", DATASET).exit_code == 0
    assert len(written_ids(prepared)) == 9


@pytest.fixture
def prepared(workspace: Workspace) -> Workspace:
    """A project whose dataset has far-apart clusters of known sizes in each class."""
    sizes = {0: (4, 4, 1), 1: (4, 3, 2)}
    features, labels = [], []
    for label, counts in sizes.items():
        for place, count in enumerate(counts):
            noise = torch.randn(
                count, FEATURES, generator=torch.Generator().manual_seed(10 * label + place)
            )
            features.append(100.0 * torch.eye(FEATURES)[place] + 0.01 * noise)
            labels += [label] * count
    train = Examples.of(
        torch.cat(features), torch.tensor(labels), [f"person-{number}" for number in range(18)]
    )
    test = Examples.of(torch.zeros(2, FEATURES), torch.tensor([0, 1]), ["tester-0", "tester-1"])
    Dataset(DATASET, train, test, ("bad", "good")).save(workspace.data(DATASET))
    return workspace


def refused(ids: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a command says of these unknown ids, on a terminal."""

    def refuse(_: object) -> None:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        raise DeletionError("some are unknown", unknown_ids=tuple(ids))

    monkeypatch.setattr(cli, "_workspace", refuse)
    return CliRunner().invoke(cli.app, ["request", DATASET])


def written_ids(workspace: Workspace) -> list[str]:
    with workspace.deletion_set(DATASET).open(newline="") as stream:
        return [line["subject_id"] for line in csv.DictReader(stream)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_table_shows_what_looks_like_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("versions", ("method",), [["[/x]"]])
    assert "[/x]" in capsys.readouterr().out


@pytest.mark.parametrize("width", [60, 40, 30])
def test_a_table_that_is_too_wide_breaks_the_columns_that_may_be_broken(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    cells = ["exactly as it is", "some words that can go on", "0.123"]
    print_table("numbers", ("name", "words", "value"), [cells], wrapped=("words",))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    row = [line.split("  ") for line in lines[3:] if line.strip()]
    assert row[0][0] == cells[0]
    assert row[0][-1].strip() == cells[2]
    heading = lines[1]
    place = slice(heading.index("words"), heading.index("value"))
    assert " ".join("".join(line[place]).strip() for line in lines[3:]).split() == (
        cells[1].split()
    )
