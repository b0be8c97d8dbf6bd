"""Feed good and bad inputs to everything that a user can reach: is each one told from the other?

    OMP_NUM_THREADS=1 python -m benchmarks fuzz

Four families: request files, params.yaml, command lines and library calls. Every input is made
together with what has to become of it. A good one must give the right value. A bad one must be
refused clearly: with a PumaError or with exit code 2, in a message that names nobody and is not
too long to read, without a warning of a library, and with every file as it was.
"""

from __future__ import annotations

import contextlib
import io
import logging
import random
import re
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from tqdm import tqdm

from benchmarks.fuzz_calls import call_cases
from benchmarks.fuzz_case import REFUSED, Case, UsageError
from benchmarks.fuzz_commands import command_cases
from benchmarks.fuzz_params import params_cases
from benchmarks.fuzz_requests import request_cases
from puma.cli.tables import print_table
from puma.errors import PumaError, SettingsError
from puma.project.files import write_text

OUTPUT = Path(__file__).parents[1] / "docs" / "results" / "fuzz.csv"
REQUESTS = 240
LONGEST_MESSAGE = 2000  # characters; a terminal shows 24 lines of 80
SECONDS = 20  # for one input
OUTCOMES = ("refused clearly", "accepted", "wrongly accepted", "wrongly refused", "traceback")
FAILURES = OUTCOMES[2:]

FAMILIES: dict[str, Callable[[Path, random.Random], list[Case]]] = {
    "requests": lambda folder, draw: request_cases(folder, draw, REQUESTS),
    "params": params_cases,
    "commands": command_cases,
    "calls": call_cases,
}


@dataclass(frozen=True)
class Outcome:
    """What became of an input: one of OUTCOMES, and what was seen."""

    name: str
    detail: str = ""


def make_cases(family: str, folder: Path, seed: int) -> list[Case]:
    """The inputs of a family; the same seed makes the same ones."""
    return FAMILIES[family](folder / family, random.Random(f"{seed} {family}"))


def judge(case: Case) -> Outcome:
    """Run the input and compare."""
    before = _files(case.folder)
    try:
        with _only_seconds(SECONDS), _heard() as heard:
            value = case.run()
    except _TooLongError as error:
        return Outcome("traceback", str(error))
    except (PumaError, UsageError) as error:
        return _judge_refusal(case, error, before, heard)
    except Exception as error:
        return Outcome("traceback", "".join(traceback.format_exception(error)[-2:]))
    if heard:
        return Outcome("traceback", f"warned: {heard[0]}")
    if case.expected is REFUSED:
        return Outcome("wrongly accepted", f"gave {str(value)[:200]}")
    if not _equal(value, case.expected):
        return Outcome(
            "wrongly accepted", f"gave {value!r}"[:300] + f" for {case.expected!r}"[:300]
        )
    return Outcome("accepted")


def _judge_refusal(
    case: Case, error: Exception, before: dict[str, tuple[int, int]], heard: list[str]
) -> Outcome:
    message = str(error)
    if case.expected is not REFUSED:
        return Outcome("wrongly refused", message[:600])
    if "Traceback (most recent call last)" in message:
        return Outcome("traceback", message[-1500:])
    if heard:
        return Outcome("traceback", f"warned: {heard[0]}")
    named = [each for each in case.secrets if _names(message, each)]
    if named:
        return Outcome("traceback", f"the message names somebody: {message[:600]}")
    if not message.strip() or len(message) > LONGEST_MESSAGE:
        return Outcome("traceback", f"a message of {len(message)} characters: {message[:300]}")
    after = _files(case.folder)
    if after != before:
        changed = sorted(set(before.items()) ^ set(after.items()))
        return Outcome("traceback", f"refused, but files changed: {changed[:4]}")
    return Outcome("refused clearly", message)


def _names(message: str, secret: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(secret)}(?!\w)", message) is not None


def _equal(value: Any, expected: Any) -> bool:
    if isinstance(expected, float) and isinstance(value, int | float):
        return value == expected
    return type(value) is type(expected) and bool(value == expected)


def _files(folder: Path | None) -> dict[str, tuple[int, int]]:
    """Every file below ``folder`` with its size and time."""
    found = {}
    for path in folder.rglob("*") if folder else ():
        with contextlib.suppress(FileNotFoundError):
            state = path.lstat()
            if not path.is_dir():
                found[str(path)] = (state.st_size, state.st_mtime_ns)
    return found


class _TooLongError(BaseException):
    """No Exception: those are caught in many places, and made another."""


@contextlib.contextmanager
def _only_seconds(seconds: int) -> Iterator[None]:
    """Interrupt what takes longer."""

    def stop(*_: object) -> None:
        raise _TooLongError(f"took more than {seconds} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


class _Listener(logging.Handler):
    def __init__(self, heard: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(f"{record.name}: {record.getMessage()}")


@contextlib.contextmanager
def _heard() -> Iterator[list[str]]:
    """What libraries warn of meanwhile; PUMA's own warnings are meant."""
    heard: list[str] = []
    listener = _Listener(heard)
    loggers = [logging.getLogger(name) for name in (None, "mlflow", "alembic")]
    for logger in loggers:
        logger.addHandler(listener)
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            yield heard
        finally:
            for logger in loggers:
                logger.removeHandler(listener)
            heard += [
                f"{each.category.__name__}: {each.message}"
                for each in caught
                if not each.category.__module__.startswith("puma.")
            ]


def run_families(
    families: list[str], folder: Path, seed: int, *, progress: bool = True
) -> pd.DataFrame:
    """One row per input: its family, index, name, outcome and detail."""
    rows = []
    for family in families:
        cases = make_cases(family, folder, seed)
        for index, case in enumerate(tqdm(cases, desc=family, disable=not progress)):
            clock = time.perf_counter()
            found = judge(case)
            seconds = time.perf_counter() - clock
            rows.append((family, index, case.name, found.name, found.detail, seconds))
    columns = ["family", "index", "name", "outcome", "detail", "seconds"]
    return pd.DataFrame(rows, columns=columns)


def main(
    seed: int = 0,
    only: Annotated[
        str | None, typer.Option(metavar="FAMILY[:INDEX]", help="One family, or one of its inputs.")
    ] = None,
    output: Path = OUTPUT,
) -> None:
    """Feed good and bad inputs to requests, params.yaml, commands and calls, and judge each.

    Exit code: 0 every input got what it had to, 1 one did not.
    """
    family, _, index = (only or "").partition(":")
    if family and (family not in FAMILIES or (index and not index.isdecimal())):
        raise SettingsError(f"--only takes one of {', '.join(FAMILIES)}, and :INDEX")
    with tempfile.TemporaryDirectory(prefix="puma-fuzz-") as name:
        folder = Path(name)
        if index:
            case = make_cases(family, folder, seed)[int(index)]
            found = judge(case)
            print(f"{only}: {case.name}\n{found.name}\n{found.detail}")
            raise typer.Exit(found.name in FAILURES)
        frame = run_families([family] if family else [*FAMILIES], folder, seed)
    heading, lines = outcome_table(frame)
    print_table("Inputs", heading, lines, wrapped=heading)
    failures = frame[frame["outcome"].isin(FAILURES)]
    for row in failures.itertuples():
        print(f"seed {seed}, {row.family}:{row.index}, {row.outcome}: {row.name}\n    {row.detail}")
    print(f"{len(frame)} inputs, {len(failures)} failures, {frame['seconds'].sum():.0f} s")
    if not family:
        write_text(output, pd.DataFrame(lines, columns=heading).to_csv(index=False))
    raise typer.Exit(bool(len(failures)))


def outcome_table(frame: pd.DataFrame) -> tuple[tuple[str, ...], list[list[str]]]:
    """Heading and lines: how many inputs of each family had which outcome."""
    lines = []
    for family in [*dict.fromkeys(frame["family"]), "all"]:
        found = (
            frame["outcome"] if family == "all" else frame.loc[frame["family"] == family, "outcome"]
        )
        counts = [int((found == outcome).sum()) for outcome in OUTCOMES]
        lines.append([family, str(len(found)), *map(str, counts)])
    return ("family", "tried", *OUTCOMES[:-1], "tracebacks"), lines
