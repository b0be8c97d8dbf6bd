"""Command lines: every command and option of ``puma``, from the commands as typer built them.

A new option must be told a good value and bad ones here, or this module says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import socket
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import typer
from typer.testing import CliRunner

from benchmarks.fuzz_case import REFUSED, Case, UsageError, text
from benchmarks.fuzz_requests import SPOILT_BYTES
from benchmarks.kills import prepare, request_of
from puma.cli.main import app
from puma.project.workspace import Workspace
from tests.audited import DATASET

DONE = (0, 1)  # exit codes: done, or done with another answer than the hoped-for one
SUBJECT = re.compile(r"zz-(train|test)-\d+")
LONG = "n" * 300
NAMES = (
    *("nobody", "", " ", f"{DATASET} ", f"{DATASET}\n", DATASET.upper(), f"../{DATASET}", "ｃoins"),
    *("a\0b", LONG, "'; DROP TABLE runs; --", "%s", "{0}", "*", "🙂", "-1", "\udcff"),
)
URIS = (
    *("models:/", "models:/puma-", f"models:/puma-{DATASET}", f"models:/puma-{DATASET}/"),
    *(f"models:/puma-{DATASET}@", f"models:/puma-{DATASET}/99", f"models:/puma-{DATASET}@nobody"),
    *("models:/puma-nobody/1", f"models:/{DATASET}/1", f"models:/puma-{DATASET}/1/2"),
    *(f"models:/puma-../{DATASET}/1", f"MODELS:/puma-{DATASET}/1", f"models:puma-{DATASET}/1"),
    *("runs:/abc/model", "file:///etc", "http://localhost/x", f"models:/puma-{DATASET}/1 "),
    *(f"models:/puma-{DATASET}/1@champion", f"models:/puma-{DATASET}/\0"),
)
VERSIONS = (
    *(
        "99",
        "0",
        "-1",
        "nobody",
        "",
        " ",
        "1.0",
        "01",
        "1 ",
        "²",
        "１",
        "None",
        "a'b",
        "a\0b",
        LONG,
    ),
    *("%", "champion@", "Champion", "1\n", "\udcff", "original`", "9" * 40),
)
PLACES = ("nowhere.csv", "folder", "", "a\0b", LONG, "file/x.csv", "/proc/x.csv", "/dev/full/x")
NUMBERS = ("x", "", " ", "1,5", "one", "0x", "1e", "--", "\0", "½")
# By the name of the parameter; versions of SISA's are among the bad ones for what needs a
# version of another kind.
BAD: dict[str, tuple[str, ...]] = {
    "dataset": (*NAMES, *URIS),
    "version": VERSIONS,
    "model": (*NAMES, *URIS, DATASET, "1"),
    "deletions": PLACES,
    "method": ("", "magic", "PUMA", " puma", "sisa", "amnesiac", "puma\0", LONG),
    "criterion": ("", "magic", "training", "VALIDATION_LOSS", LONG),
    "top": (*NUMBERS, "0", "-1", "1.5", "1000000", "9" * 40, "nan"),
    "csv": ("file", "folder", "a\0b", LONG, "file/x.csv", "/proc/x.csv", "/dev/full/x"),
    "budget": (*NUMBERS, "0", "-1", "nan", "inf", "-inf", "1e400"),
    "port": (*NUMBERS, "0", "-1", "65536", "1.5", "9" * 40),
    "host": ("nowhere.invalid", "a b", "a\0b", "999.1.1.1", LONG, "::1::", "http://127.0.0.1"),
    "force": ("", " "),
    "seed": (*NUMBERS, "-1", "1.5", "4294967296", "9" * 40, "nan"),
    # A new project, in a folder that may be made, and of a table that is named.
    "folder": (".", "", "file", "a\0b", LONG, "file/x", "/proc/x", "/dev/full/x"),
    "data": (*PLACES, "file"),
    **dict.fromkeys(("target", "subject", "task"), NAMES),
}
FLAGS = ("as_json", "allow_pickle", "yes", "help")
WIDTHS = ("1", "7", "20", "33", "80", "250", "0", "-5", "wide", "")
# Without a change of the project, and quick.
READING = ("versions", "compare", "registered", "verify", "suspects")
ANYWHERE = ("init",)  # needs no project around it
NO_DATABASE = "sqlite:////proc/x.db"
STORES = ("nonsense://x", "sqlite:///", NO_DATABASE, "sqlite:///garbage.db", "file")


@dataclass(frozen=True)
class _Project:
    """The project that all command lines run in."""

    workspace: Workspace

    @classmethod
    def made(cls, folder: Path) -> _Project:
        folder.mkdir(parents=True)
        with _environment({"MLFLOW_TRACKING_URI": None, "MLFLOW_REGISTRY_URI": None}):
            made = prepare(folder, None, DATASET)
        (made.root / "folder").mkdir()
        (made.root / "file").write_text("subject_id\n")
        (made.root / "garbage.db").write_bytes(b"no database" * 100)
        (made.root / "tmp").mkdir()
        for number, spoilt in enumerate(SPOILT_BYTES.values()):
            path = made.root / f"spoilt-{number}.csv"
            path.write_bytes(spoilt(request_of(made).read_bytes()))
        return cls(made)

    def run(self, arguments: list[str], environment: Mapping[str, str], *, inside: bool) -> int:
        """The exit code of a command that did what it should; what it printed is judged, too."""
        root = self.workspace.root
        with (
            _environment({"MLFLOW_TRACKING_URI": None, **environment}),
            contextlib.chdir(root if inside else "/"),
            _temporary(root / "tmp"),
        ):
            result = CliRunner().invoke(app, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        if SUBJECT.search(result.output):
            raise AssertionError(f"the output names somebody: {result.output[:500]}")
        if "Traceback (most recent call last)" in result.output:
            raise AssertionError(result.output[-1500:])
        if result.exit_code not in DONE:
            raise UsageError(result.stderr)
        if "--json" in arguments:
            json.loads(result.stdout)
        return result.exit_code


@contextlib.contextmanager
def _environment(values: Mapping[str, str | None]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def _temporary(folder: Path) -> Iterator[None]:
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


class _Commands:
    """Collects cases."""

    def __init__(self, folder: Path) -> None:
        self.project, self.folder, self.cases = _Project.made(folder), folder, list[Case]()

    def add(
        self,
        arguments: list[str],
        *,
        good: bool,
        environment: Mapping[str, str] | None = None,
        inside: bool = True,
    ) -> None:
        variables = environment or {}

        def run() -> bool:
            return self.project.run(arguments, variables, inside=inside) in DONE

        words = " ".join(text(each)[1:-1] or "''" for each in arguments)
        given = "".join(f"{name}={value!r} " for name, value in variables.items())
        place = "" if inside else " (outside a project)"
        self.cases.append(
            Case(
                f"{'good: ' if good else ''}{given}puma {words}{place}",
                run,
                True if good else REFUSED,
                folder=self.folder,
            )
        )


def command_cases(folder: Path, draw: random.Random) -> list[Case]:
    """Bad command lines in a drawn order, then good ones; those that change something are last."""
    made = _Commands(folder)
    group: Any = typer.main.get_command(app)
    for words in (["nonsense"], [""], ["VERSIONS", DATASET], ["--nonsense"], ["-x"], ["\0"]):
        made.add(words, good=False)
    for name, command in group.commands.items():
        _bad_lines(made, name, command)
    for spoilt in range(len(SPOILT_BYTES)):
        made.add([*_good_line("remove", group), "--deletions", f"spoilt-{spoilt}.csv"], good=False)
    for store in STORES:
        for name in ("versions", "registered", "verify", "promote"):
            # `registered` answers that nothing is, with exit code 1, where there is no database.
            answered = name == "registered" and store == NO_DATABASE
            variables = {"MLFLOW_TRACKING_URI": store}
            made.add(_good_line(name, group), good=answered, environment=variables)
    for name in group.commands:
        if name not in ANYWHERE:
            made.add(_good_line(name, group), good=False, inside=False)
    draw.shuffle(made.cases)
    _good_lines(made, group)
    return made.cases


def _good_value(parameter: str) -> str:
    """A value that every command with this parameter takes."""
    if parameter == "port":
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return str(probe.getsockname()[1])
    return {
        "dataset": DATASET,
        "version": "3",
        "model": f"models:/puma-{DATASET}@champion",
        "deletions": "request.csv",
        "method": "retrain",
        "criterion": "validation_loss",
        "top": "3",
        "csv": "new.csv",
        "budget": "0.5",
        "host": "127.0.0.1",
        "force": "a reason",
        "seed": "1",
        "folder": "new project",
    }[parameter]


def _required(command: click.Command) -> list[click.Parameter]:
    """What a good line has: also the version that a model's address makes optional."""
    return [each for each in command.params if each.required or _is_argument(each)]


def _is_argument(parameter: click.Parameter) -> bool:
    return parameter.param_type_name == "argument"  # typer's classes are not click's


def _words(parameter: click.Parameter, value: str) -> list[str]:
    return [value] if _is_argument(parameter) else [parameter.opts[0], value]


def _good_line(name: str, group: Any) -> list[str]:
    given = [_words(each, _good_value(str(each.name))) for each in _required(group.commands[name])]
    return [name, *(word for words in given for word in words)]


def _bad_lines(made: _Commands, name: str, command: click.Command) -> None:
    needed = _required(command)
    line = {str(each.name): _words(each, _good_value(str(each.name))) for each in needed}

    def with_(parameter: click.Parameter, words: list[str]) -> list[str]:
        changed = {**line, str(parameter.name): words}
        return [name, *(word for words in changed.values() for word in words)]

    for parameter in command.params:
        if parameter.name in FLAGS:
            made.add([*with_(parameter, []), f"{parameter.opts[0]}=1"], good=False)
            continue
        optional = name == "compare" and parameter.name == "dataset"
        if parameter in needed and not optional:
            made.add(with_(parameter, []), good=False)
        if not _is_argument(parameter):
            made.add([*with_(parameter, []), parameter.opts[0]], good=False)
        for value in BAD[str(parameter.name)]:
            if name == "suspects" and parameter.name == "method" and value in ("sisa", "amnesiac"):
                value = f"{value} "
            if not (name == "ui" and parameter.name == "host" and value == ""):
                made.add(with_(parameter, _words(parameter, value)), good=False)
    everything = with_(needed[0], line[str(needed[0].name)]) if needed else [name]
    made.add([*everything, "more"] if name != "compare" else [name, DATASET, "more"], good=False)
    made.add([*everything, "--nonsense"], good=False)
    made.add([*everything, "--json", "--json=0", "-q"], good=False)


def _good_lines(made: _Commands, group: Any) -> None:
    for name in group.commands:
        for width in WIDTHS[:3]:
            made.add([name, "--help"], good=True, environment={"COLUMNS": width})
    for name in READING:
        for width in WIDTHS:
            made.add(_good_line(name, group), good=True, environment={"COLUMNS": width})
    for name in ("verify", "erase"):
        made.add([name, f"models:/puma-{DATASET}/3"], good=True)
        made.add([name, DATASET, "3", "--json"], good=True)
    made.add(["verify", f"models:/puma-{DATASET}@champion", "--json"], good=True)
    made.add(["erase", f"models:/puma-{DATASET}@champion", "--yes"], good=False)
    made.add(["versions", DATASET, "--json"], good=True)
    made.add(["compare"], good=True)
    for method in ("loss", "psi", "self_influence", "ntk", "representer"):
        made.add(["suspects", DATASET, "--method", method, "--top", "2", "--json"], good=True)
    made.add(["audit", DATASET, "4", "--json"], good=True)
    made.add(["audit", DATASET, "1"], good=True, environment={"COLUMNS": "25"})
    # From here on, these change the project.
    made.add(["suspects", DATASET, "--csv", "new.csv", "--method", "loss"], good=True)
    made.add(_good_line("remove", group), good=True)
    made.add([*_good_line("remove", group), "--method", "retrain", "--json"], good=True)
    made.add([*_good_line("remove", group), "--method", "retrain"], good=True)
    made.add(["promote", DATASET, "1"], good=True)
    made.add(["promote", DATASET, "4", "--force", "a reason"], good=True)
    made.add(["erase", DATASET, "3", "--yes", "--json"], good=True)
    made.add(_good_line("init", group), good=True)
    made.add(_good_line("init", group), good=False)  # it is not empty any more
    made.add(["registered"], good=True)
    made.add(["request", DATASET], good=True)
