from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import typer

from puma.audit import Verdict
from puma.cli import app
from puma.project.workspace import Workspace
from puma.registry import open_store, register_all
from puma.settings import VerdictName
from tests.command import puma
from tests.registry.fixtures import _default_store, filled, registered, template, workspace
from tests.registry.projects import (
    DATASET,
    DELETION,
    VERDICTS,
    start_python,
    write_audit,
)

__all__ = ["_default_store", "filled", "registered", "template", "workspace"]


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


@pytest.mark.slow
def test_fresh_process_prints_json_alone_and_loads_no_torch(filled: Workspace) -> None:
    code = (
        "import sys\nfrom puma.cli.main import app\nfrom puma.registry import all_registered\n"
        "from puma.project.workspace import Workspace\nassert all_registered(Workspace.find())\n"
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


def test_compare_as_json_is_the_current_versions_by_dataset(registered: Workspace) -> None:
    listed = json.loads(puma(registered.root, "versions", DATASET, "--json").stdout)
    for named in ((DATASET,), ()):
        result = puma(registered.root, "compare", *named, "--json")
        assert result.exit_code == 0
        assert json.loads(result.stdout) == {DATASET: listed}
    params = registered.root / "params.yaml"
    params.write_text(params.read_text().replace("retrain, ", ""))
    result = puma(registered.root, "compare", "--json")
    assert [row["version"] for row in json.loads(result.stdout)[DATASET]] == [1, 3]


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
    as_json = puma(filled.root, "registered", "--json")
    assert (as_json.exit_code, json.loads(as_json.stdout)) == (
        0,
        {"registered": True, "missing": None},
    )
    as_json = puma(workspace.root, "registered", "--json")
    assert (as_json.exit_code, json.loads(as_json.stdout)) == (
        1,
        {"registered": False, "missing": "toy original: has no version"},
    )


def test_every_command_that_answers_takes_json() -> None:
    """All but the server, and the two stages that only write files."""
    group = typer.main.get_command(app)
    without = {
        name
        for name, command in group.commands.items()
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without == {"ui", "source", "request"}


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


@pytest.mark.parametrize("command", ["registered", "versions toy", "suspects toy"])
def test_other_errors_keep_their_traceback_and_are_no_answer(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("so it is")

    monkeypatch.setattr("puma.registry.missing", broken)
    monkeypatch.setattr("puma.registry.Registry.open", broken)
    monkeypatch.setattr("puma.workflows.suspects.load_version", broken)
    result = puma(workspace.root, *command.split())
    assert result.exit_code == 2  # 1 would say that a version is not registered
    assert result.stderr.startswith("Traceback (most recent call last)")
    assert result.stderr.endswith("ZeroDivisionError: so it is\n")


def test_an_interrupt_that_is_swallowed_explains_the_error_after_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def importing(*_: object) -> None:
        with contextlib.suppress(KeyboardInterrupt):  # as PyTorch does while it imports NumPy
            os.kill(os.getpid(), signal.SIGINT)
        raise RecursionError

    monkeypatch.setattr("puma.registry.missing", importing)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = puma(workspace.root, "registered")
        assert (result.exit_code, result.stderr) == (130, "\npuma: interrupted\n")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_ignored_interrupt_stays_ignored(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def background(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("puma.registry.missing", background)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert puma(workspace.root, "registered").exit_code == 0
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_is_a_line_and_no_answer(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("puma.registry.missing", interrupted)
    monkeypatch.setattr("puma.registry.Registry.open", interrupted)
    monkeypatch.setattr("puma.registry.certificate.verify.verify_version", interrupted)
    monkeypatch.setattr("puma.registry.promotion.promote", interrupted)
    monkeypatch.setattr("puma.erasure.erase.erase", interrupted)
    monkeypatch.setattr("puma.workflows.audit.audit_version", interrupted)
    monkeypatch.setattr("puma.workflows.remove.remove_request", interrupted)
    monkeypatch.setattr("puma.workflows.suspects.load_version", interrupted)
    monkeypatch.setattr("puma.data.Dataset.load", interrupted)
    model = ("--model", f"models:/puma-{DATASET}/1")
    for command in (
        ("registered",),
        ("versions", DATASET),
        ("compare", DATASET),
        ("verify", DATASET, "1"),
        ("promote", DATASET, "1"),
        ("erase", DATASET, "1"),
        ("audit", DATASET, "1"),
        ("remove", *model, "--deletions", "x.csv"),
        ("suspects", DATASET),
        ("request", DATASET),
    ):
        result = puma(workspace.root, *command)
        assert (result.exit_code, result.stdout) == (130, ""), command
        completed = command[0] in ("promote", "erase", "remove")
        advice = "; the same command completes what was begun" if completed else ""
        assert result.stderr == f"\npuma: interrupted{advice}\n", command


def test_help_imports_neither_mlflow_nor_torch(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom puma.cli.main import app\ntry:\n    app(['--help'])\n"
        "except SystemExit:\n    pass\nprint({'mlflow', 'torch', 'rich.table'} & {*sys.modules})"
    )
    process = start_python(code, tmp_path)
    output, _ = process.communicate(timeout=60)
    assert "versions" in output
    assert "mlflow" not in output.splitlines()[-1]
    assert "torch" not in output.splitlines()[-1]


def test_help_has_the_commands_in_groups(tmp_path: Path) -> None:
    text = puma(tmp_path, "--help").stdout
    shown = re.findall(r"─ (\w[\w ]*) ─|^\W+([a-z]+)  ", text, re.MULTILINE)
    groups: dict[str, list[str]] = {}
    for group, command in shown:
        if group:
            groups[group] = []
        else:
            groups[list(groups)[-1]].append(command)
    del groups["Options"]
    assert groups == {
        "Project": ["init", "adopt", "ui"],
        "Requests": ["remove"],
        "Versions": ["compare", "versions", "promote", "erase"],
        "Evidence": ["audit", "verify"],
        "Diagnostics": ["suspects"],
        "What the pipeline calls": ["source", "request", "registered"],
    }


@pytest.mark.parametrize("command", ["remove", "erase"])
def test_help_breaks_lines_only_where_the_terminal_ends(tmp_path: Path, command: str) -> None:
    """No line of a paragraph is so short that the next word would have had room on it."""
    text = puma(tmp_path, command, "--help").stdout.split("╭")[0]
    paragraphs = [each.strip().splitlines() for each in re.split(r"\n\s*\n", text)]
    followed = [pair for lines in paragraphs for pair in itertools.pairwise(lines)]
    assert followed
    for line, after in followed:
        assert len(line.strip()) + 1 + len(after.split()[0]) > 78, line


def test_the_shell_completes_commands(tmp_path: Path) -> None:
    """As the script that `puma --install-completion bash` installs asks for them."""
    asked = {"_PUMA_COMPLETE": "complete_bash", "COMP_WORDS": "puma ver", "COMP_CWORD": "1"}
    code = f"import os\nos.environ |= {asked}\nfrom puma.cli import app\napp(prog_name='puma')"
    output, errors = start_python(code, tmp_path).communicate(timeout=60)
    assert (output.split(), errors) == (["versions", "verify"], "")


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
    shown = re.findall(r"http://\S+", result.stdout)
    experiment = open_store(filled).get_experiment_by_name("puma").experiment_id
    pages = ("models", f"experiments/{experiment}")
    of_models = "?workflowType=machine_learning"
    assert shown == [f"http://127.0.0.1:{port}/#/{page}{of_models}" for page in pages]
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
    address = "http://***@host:8000/#/models?workflowType=machine_learning"
    assert result.stdout == f"this registry has a server already: {address}\n"


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


@pytest.mark.parametrize("host", ["nowhere.invalid", "n" * 300])
def test_ui_refuses_a_host_that_is_not_there(filled: Workspace, host: str) -> None:
    result = puma(filled.root, "ui", "--host", host)
    assert result.exit_code == 2
    assert f"{host}:5000 cannot be served" in result.stderr


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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("name", get_args(VerdictName))
@pytest.mark.parametrize("accept", [None, "[passed]"])
def test_an_audit_ends_with_0_for_the_verdicts_that_may_serve(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, name: VerdictName, accept: str | None
) -> None:
    row = SimpleNamespace(version=3, method="puma")
    report = SimpleNamespace(verdict=Verdict(name, "so it is"), metrics={}, unresolved={})
    monkeypatch.setattr("puma.workflows.audit.audit_version", lambda *_, **__: (row, report))
    if accept is not None:
        with (workspace.root / "params.yaml").open("a") as params:
            params.write(f"promotion: {{accept: {accept}}}\n")
    may_serve = ("passed",) if accept else ("passed", "indistinguishable")
    result = puma(workspace.root, "audit", DATASET, "3")
    assert result.exit_code == (0 if name in may_serve else 1)
    assert f"{name}: so it is" in result.stdout
