"""Deletion request files: every way to write the same request, and every way to spoil one."""

from __future__ import annotations

import csv
import io
import random
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.fuzz_case import REFUSED, Case
from puma.data import Dataset, Examples
from puma.requests.deletion_set import DeletionSet

OTHERS = ("request_id", "requested_at", "reason")
TIMES = ("2026-01-31", "2026-01-31T12:30:00+02:00", "2026-01-31 12:30", "")
NO_TIMES = ("2026-02-30", "2026-13-01", "31.01.2026", "yesterday", "0000-01-01", "2026-01-31T25:00")
REASONS = ("consent withdrawn", "", 'said "no", twice', "moved\naway", "zurückgezogen", "=1+1")
TRAIN = (
    *(f"person-{number:03d}" for number in range(12)),
    "Zoë-Müller",
    'O\'Brien, "Pat"',
    "person with spaces",
    "=cmd-injected",
    "00017000",
    "人物-4711",
)
BOTH, TEST = "person-in-both", ("only-test-1", "only-test-2")
CLASSES = ("heads", "tails")


def tiny_dataset() -> Dataset:
    """Every person of TRAIN has two rows, the first eight of them all rows of class tails."""
    people = [*TRAIN, BOTH]
    ids = [*people, *people]
    labels = torch.tensor([int(number % len(people) < 8) for number in range(len(ids))])
    features = torch.arange(len(ids) * 2, dtype=torch.float32).reshape(-1, 2) / 10
    others = [BOTH, *TEST, "only-test-3"]
    return Dataset(
        "tiny",
        Examples.of(features, labels, ids),
        Examples.of(features[:4], torch.tensor([0, 1, 0, 1]), others),
        CLASSES,
    )


@dataclass
class Request:
    """A request file in the making. ``ids``: of its lines, in order."""

    ids: list[str]
    columns: list[str]
    draw: random.Random
    newline: str = "\n"
    encoding: str = "utf-8"
    quoting: Any = csv.QUOTE_MINIMAL
    padding: str = ""
    ending: bool = True
    blank_lines: bool = False
    cells: list[list[str]] = field(default_factory=list)

    def fill(self) -> None:
        """The cells of every line, the header first."""
        values: dict[str, Callable[[], str]] = {
            "request_id": lambda: f"R-{self.draw.randrange(1000)}",
            "requested_at": lambda: self.draw.choice(TIMES),
            "reason": lambda: self.draw.choice(REASONS),
            "salt": lambda: "5a17",
        }
        self.cells = [[f"{self.padding}{name}" for name in self.columns]]
        self.cells += [
            [
                f"{self.padding}{name}{self.padding}"
                if column == "subject_id"
                else values[column]()
                for column in self.columns
            ]
            for name in self.ids
        ]

    def content(self) -> bytes:
        """The file."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator=self.newline, quoting=self.quoting)
        for line in self.cells:
            writer.writerow(line)
            if self.blank_lines:
                buffer.write(self.newline)
        written = buffer.getvalue()
        return (written if self.ending else written.rstrip("\r\n")).encode(self.encoding)

    def set(self, column: str, value: str) -> None:
        """Put ``value`` into a drawn line, in a column that is made if it is not there."""
        if column not in self.columns:
            self.columns.append(column)
            self.cells[0].append(column)
            for line in self.cells[1:]:
                line.append("")
        self.draw.choice(self.cells[1:])[self.columns.index(column)] = value


def _ids(*names: str) -> Callable[[Request], None]:
    def change(request: Request) -> None:
        request.ids = list(names)
        request.fill()

    return change


def _id(value: str) -> Callable[[Request], None]:
    return lambda request: request.set("subject_id", value)


def _time(value: str) -> Callable[[Request], None]:
    return lambda request: request.set("requested_at", value)


def _header(change: Callable[[str], str]) -> Callable[[Request], None]:
    def rename(request: Request) -> None:
        request.cells[0] = [change(name) for name in request.cells[0]]

    return rename


def _column(name: str, value: str) -> Callable[[Request], None]:
    def add(request: Request) -> None:
        for line in request.cells:
            line.append(value)
        request.cells[0][-1] = name

    return add


def _one_value_less(request: Request) -> None:
    request.set("reason", "left")
    request.cells[-1].pop()


def _blank_id(request: Request) -> None:
    request.set("reason", "left")
    request.set("subject_id", "")


# Changes of the cells that make a request unusable.
SPOILT_CELLS: dict[str, Callable[[Request], None]] = {
    "no lines after the header": lambda request: request.cells.__delitem__(slice(1, None)),
    "no header": lambda request: request.cells.__delitem__(0),
    "header again in the middle": lambda request: request.cells.append([*request.cells[0]]),
    "no subject_id column": _header(lambda name: name.replace("subject_id", "id")),
    "header in capitals": _header(str.upper),
    "unknown column": _column("mail", "someone@example.org"),
    "nameless column": _column("", ""),
    "subject_id twice": _column("subject_id", "person-003"),
    "a value too many": lambda request: request.cells[-1].append("more"),
    "a value too few": _one_value_less,
    "blank id": _blank_id,
    "id of spaces": _id("   "),
    "id of no-break spaces": _id("\u00a0\u00a0"),
    "NUL in an id": _id("person\x00-001"),
    "NUL after an id": _id("person-001\x00"),
    "line break in an id": _id("person-\n001"),
    "unknown id": _id("nobody-at-all"),
    "huge id": _id("x" * 5000),
    "field beyond csv's limit": lambda request: request.set("reason", "y" * 140_000),
    "id in capitals": _id("PERSON-001"),
    "id of full-width digits": _id("person-００1"),
    "id with a zero-width space": _id("person\u200b-001"),
    "id with a soft hyphen": _id("per\u00adson-001"),
    "id in decomposed form": _id(unicodedata.normalize("NFD", "Zoë-Müller")),
    "id in compatibility form": _id("ｐerson-001"),
    "two ids in a cell": _id("person-001;person-002"),
    "number instead of the id": _id("17000"),
    "ids of the test split alone": _ids(*TEST),
    "one id of the test split": _ids(TEST[0]),
    "everybody": _ids(*TRAIN, BOTH),
    "every row of a class": _ids(*TRAIN[:8]),
    **{f"time {value!r}": _time(value) for value in NO_TIMES},
}
# Changes of the bytes that make a request unusable.
SPOILT_BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty file": lambda _: b"",
    "line breaks alone": lambda _: b"\n\n\r\n",
    "a byte order mark alone": lambda _: b"\xef\xbb\xbf",
    "UTF-16": lambda content: content.decode().encode("utf-16"),
    "UTF-16 without a mark": lambda content: content.decode().encode("utf-16-le"),
    "UTF-32": lambda content: content.decode().encode("utf-32"),
    "Latin-1": lambda content: content + "Zoë-Müller\n".encode("latin-1"),
    "a lone continuation byte": lambda content: content + b"\x80\n",
    "a surrogate": lambda content: content + b"\xed\xa0\x80\n",
    "a ZIP file": lambda _: b"PK\x03\x04" + bytes(range(256)) * 8,
    "a gzip file": lambda _: b"\x1f\x8b\x08\x00" + bytes(range(256)) * 8,
    "two byte order marks": lambda content: b"\xef\xbb\xbf\xef\xbb\xbf" + content,
    "an open quote": lambda content: content + b'"person-001\n',
    "text after a quote": lambda content: content + b'"person-001"x\n',
    "semicolons": lambda _: b"subject_id;reason\nperson-001;left\n",
    "tabs": lambda _: b"subject_id\treason\nperson-001\tleft\n",
    "JSON": lambda _: b'{"subject_id": ["person-001"]}\n',
    "YAML": lambda _: b"subject_id:\n- person-001\n",
    "ids alone": lambda _: b"person-001\nperson-002\n",
    "NULs alone": lambda _: bytes(2000),
    "a control character": lambda content: content + b"person-\x07001\n",
}
PLACES = ("absent", "a folder", "a link to nowhere", "a file in a file", "a name too long")


def request_cases(folder: Path, draw: random.Random, count: int) -> list[Case]:
    """``count`` requests: each spoilt one and place once, then drawn ones, half of them good."""
    data = tiny_dataset()
    folder.mkdir(parents=True, exist_ok=True)
    spoilt = [*SPOILT_CELLS, *SPOILT_BYTES]
    cases = [_place(folder, place, data) for place in PLACES]
    for number in range(count - len(cases)):
        if number < len(spoilt):
            flaw: str | None = spoilt[number]
        else:
            flaw = draw.choice(spoilt) if draw.random() < 0.4 else None
        cases.append(_case(folder / f"request-{number}.csv", draw, flaw, data))
    return cases


def _case(path: Path, draw: random.Random, flaw: str | None, data: Dataset) -> Case:
    ids = draw.sample((*TRAIN[3:], BOTH), draw.randint(1, 6))
    test_only = draw.sample(TEST, draw.choice((0, 0, 1, 2)))
    again = [draw.choice(ids) for _ in range(draw.choice((0, 0, 1, 3)))]
    lines = [*ids, *test_only, *again]
    draw.shuffle(lines)
    columns = ["subject_id", *draw.sample(OTHERS, draw.randint(0, 3))]
    if draw.random() < 0.2:
        columns.append("salt")
    draw.shuffle(columns)
    request = Request(
        lines,
        columns,
        draw,
        newline=draw.choice(("\n", "\r\n", "\r")),
        encoding=draw.choice(("utf-8", "utf-8-sig")),
        quoting=draw.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL)),
        padding=draw.choice(("", "", " ", "\u00a0")),
        ending=draw.random() < 0.8,
        blank_lines=draw.random() < 0.2,
    )
    request.fill()
    if request.newline == "\r":
        request.quoting = csv.QUOTE_ALL  # csv.writer leaves "\n" bare between other line ends
    if flaw in SPOILT_BYTES:
        request.encoding, request.newline, request.ending = "utf-8", "\n", True
    if flaw in SPOILT_CELLS:
        SPOILT_CELLS[flaw](request)
    content = request.content()
    if flaw in SPOILT_BYTES:
        content = SPOILT_BYTES[flaw](content)
    path.write_bytes(content)
    good = (tuple(sorted(ids)), len(again), tuple(sorted(test_only)), 2 * len(ids))
    style = f"{len(lines)} lines, {request.encoding}, {request.newline!r}"
    return Case(
        flaw or f"good: {style}",
        lambda: _read(path, data),
        good if flaw is None else REFUSED,
        secrets=tuple({*lines, *_people(request)}),
        folder=path.parent,
    )


def _people(request: Request) -> list[str]:
    """What stands in the column of the ids, where a message would show somebody."""
    at = request.columns.index("subject_id")
    cells = [line[at].strip() for line in request.cells[1:] if len(line) > at]
    return [cell for cell in cells if len(cell) > 3]


def _place(folder: Path, place: str, data: Dataset) -> Case:
    path = folder / f"place {place}"
    if place == "a folder":
        path.mkdir()
    elif place == "a link to nowhere":
        path.symlink_to(folder / "nowhere")
    elif place == "a file in a file":
        path.write_text("subject_id\nperson-001\n")
        path = path / "request.csv"
    elif place == "a name too long":
        path = folder / ("n" * 300)
    return Case(place, lambda: _read(path, data), REFUSED, folder=folder)


def _read(path: Path, data: Dataset) -> tuple[object, ...]:
    found = DeletionSet.read(path, data)
    return (found.subject_ids, found.n_duplicates, found.test_only_ids, len(found))
