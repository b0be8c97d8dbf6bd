"""Files params.yaml: every setting with values inside and outside its range, and odd YAML.

The values are made from the fields of puma.settings.Settings, so that a new setting is tried too.
"""

from __future__ import annotations

import math
import random
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin

import annotated_types
from dvc.utils.serialize import dumps_yaml

from benchmarks.fuzz_case import REFUSED, Case, text
from puma.removal import build_method
from puma.settings import ORIGINAL, Settings, Strict, load_settings

NOT_NUMBERS: tuple[Any, ...] = (True, False, "many", "", [], [1], {}, math.nan, math.inf, -math.inf)
NOT_TEXTS: tuple[Any, ...] = (3, 2.5, True, [], ["mlp"], {"a": 1})
BEYOND_64_BITS = 2**63
HUGE = 10**400  # no float


@dataclass(frozen=True)
class Values:
    """What a setting takes and what it does not."""

    good: tuple[Any, ...]
    bad: tuple[Any, ...]


def settings_of(group: type[Strict], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted key, type with its limits, default) of every setting below ``group``."""
    for name, field in group.model_fields.items():
        kind = field.annotation
        if _is_group(kind):
            yield from settings_of(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", Annotated[kind, *field.metadata, None], field.default


def values_of(kind: Any, limits: tuple[Any, ...] = (), default: Any = None) -> Values:
    """Values for a type annotation, on both sides of every limit that it states."""
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *metadata = get_args(kind)
        return values_of(inner, (*limits, *_plain(metadata)), default)
    if origin in (Union, types.UnionType):
        *others, last = (each for each in get_args(kind) if each is not type(None))
        good = [value for each in others for value in values_of(each, limits, default).good]
        good += [None] if type(None) in get_args(kind) else []
        found = values_of(last, limits, default)
        return Values((*good, *found.good), tuple(each for each in found.bad if each not in good))
    if origin is Literal:
        names = get_args(kind)
        return Values(names, ("nonsense", names[0].upper(), "", 3, True, None, [names[0]], {}))
    if origin is tuple and _is_group(get_args(kind)[0]):  # each has values of its own, above
        return Values(([],), ("text", 3, True, None, [3], [{}], [{"typo": 1}]))
    if origin is tuple:
        item = values_of(get_args(kind)[0])
        low = max([each.min_length for each in limits if hasattr(each, "min_length")], default=0)
        good = [[item.good[0]], [*item.good[:2]]]
        bad = [[each] for each in item.bad] + ["text", 3, True, None, {"a": 1}]
        (bad if low else good).append([])
        return Values(tuple(good), tuple(bad))
    if origin is dict:
        value = get_args(kind)[1]
        some = [1, "b", None] if Any in get_args(value) else values_of(value).good[0]
        return Values(({}, {"a": some}), ("text", 3, True, [1], {3: some}, {None: some}))
    if kind is bool:
        return Values((True, False), (2, -1, 0.5, "maybe", "", None, [], {}))
    if kind is int:
        return _integers(limits)
    if kind is float:
        return _floats(limits)
    if kind is str:
        return Values(
            (default,) if isinstance(default, str) else ("somewhere",), (*NOT_TEXTS, None)
        )
    raise TypeError(f"no values for settings of type {kind}; teach values_of to make them")


def _is_group(kind: Any) -> TypeGuard[type[Strict]]:
    return isinstance(kind, type) and issubclass(kind, Strict)


def _plain(metadata: list[Any]) -> list[Any]:
    """The limits of ``metadata``, pydantic's own FieldInfo unpacked."""
    return [limit for each in metadata for limit in getattr(each, "metadata", [each])]


def _range(limits: tuple[Any, ...]) -> tuple[Any, bool, Any, bool]:
    """(low, whether it is excluded, high, whether it is excluded); None where there is none."""
    low: Any = None
    high: Any = None
    low_out = high_out = False
    for each in limits:
        for limit in each if isinstance(each, annotated_types.GroupedMetadata) else (each,):
            if isinstance(limit, annotated_types.Gt):
                low, low_out = limit.gt, True
            elif isinstance(limit, annotated_types.Ge):
                low, low_out = limit.ge, False
            elif isinstance(limit, annotated_types.Lt):
                high, high_out = limit.lt, True
            elif isinstance(limit, annotated_types.Le):
                high, high_out = limit.le, False
    return low, low_out, high, high_out


def _integers(limits: tuple[Any, ...]) -> Values:
    low, low_out, high, high_out = _range(limits)
    step = next((each.multiple_of for each in limits if hasattr(each, "multiple_of")), 1)
    least = math.ceil((int(low) + low_out) / step) * step
    good = [least, least + 2 * step, float(least + 2 * step)]
    between = [least + 1] if step > 1 else []
    bad = [least - 1, *between, -(10**9), least + 0.5, None, BEYOND_64_BITS, HUGE]
    if high is not None:
        most = (int(high) - high_out) // step * step
        good.append(most)
        bad.append(most + 1)
    return Values(tuple(good), (*bad, *NOT_NUMBERS))


def _floats(limits: tuple[Any, ...]) -> Values:
    low, low_out, high, high_out = _range(limits)
    inside = (low + (2.0 if high is None else high)) / 2
    good, bad = [inside], [low - 1, -1e300, None, HUGE]
    (bad if low_out else good).append(float(low))
    good.append(math.nextafter(low, math.inf))
    if high is not None:
        bad.append(high + 1)
        (bad if high_out else good).append(float(high))
        good.append(math.nextafter(high, -math.inf))
    return Values(tuple(good), (*bad, *NOT_NUMBERS))


# Text of a whole file -> what it says, as (key, value) of a setting that shows it. YAML 1.2, which
# DVC reads.
GOOD_YAML: dict[str, tuple[str, Any]] = {
    "{}": ("seed", 0),
    "seed: 3": ("seed", 3),
    "\ufeffseed: 3": ("seed", 3),
    "--- \nseed: 3\n...\n": ("seed", 3),
    "%YAML 1.1\n---\nseed: 3": ("seed", 3),
    "# comment\r\nseed: 3 # more\r\n": ("seed", 3),
    '{"seed": 3}': ("seed", 3),
    "'seed': 3": ("seed", 3),
    "? seed\n: 3": ("seed", 3),
    "training: {learning_rate: 1e-3}": ("training.learning_rate", 1e-3),
    "training: {learning_rate: 1.0e-3}": ("training.learning_rate", 1e-3),
    "training: {learning_rate: '0.5'}": ("training.learning_rate", 0.5),
    "training: {learning_rate: .5}": ("training.learning_rate", 0.5),
    "training: {epochs: 1_000}": ("training.epochs", 1000),
    "training: {epochs: +7}": ("training.epochs", 7),
    "training: {epochs: 010}": ("training.epochs", 10),
    "training: {epochs: 0o10}": ("training.epochs", 8),
    "training: {epochs: 0x10}": ("training.epochs", 16),
    "datasets: [no]": ("datasets", ("no",)),
    "puma: {preserve: []}": ("puma.preserve", ()),
    "puma: {repair: off}": ("puma.repair", False),
    "puma: {repair: No}": ("puma.repair", False),
    "puma: {repair: TRUE}": ("puma.repair", True),
    "data: {folder: '2026-01-31'}": ("data.folder", "2026-01-31"),
    "data: {folder: ~}": ("data.folder", None),
    "data: {folder: NULL}": ("data.folder", None),
    "data: {folder: 'ü/人物'}": ("data.folder", "ü/人物"),
    "sources: {}": ("sources", {}),
    "per_dataset: {}": ("per_dataset", {}),
    "per_dataset: {german_credit: {}}\ntraining: {epochs: 3}": ("training.epochs", 3),
    "model: {hidden: !!seq [4, 5]}": ("model.hidden", (4, 5)),
    "model: {hidden: []}": ("model.hidden", ()),
    "training: &t {epochs: 4}\npuma: {steps: 2}": ("training.epochs", 4),
    "seed: &s 5\ntraining: {epochs: *s}": ("training.epochs", 5),
    "puma: &p {l1: 0.5, l2: 0.25}\npuma_paper:\n  <<: *p\n  l2: 0.75": ("puma_paper.l2", 0.75),
    "puma: &p {l1: 0.5, l2: 0.25}\npuma_paper:\n  <<: *p": ("puma_paper.l1", 0.5),
}
BAD_YAML: dict[str, str | bytes] = {
    "empty": b"",
    "a comment alone": "# seed: 3\n",
    "null": "null",
    "a list": "- seed\n- 3\n",
    "a number": "3",
    "a text": "seed",
    "two documents": "seed: 3\n---\nseed: 4\n",
    "a repeated key": "seed: 3\nseed: 4\n",
    "a repeated group": "training: {epochs: 3}\ntraining: {batch_size: 4}\n",
    "a repeated key in a group": "training:\n  epochs: 3\n  epochs: 4\n",
    "a repeated key of two spellings": "seed: 3\n'seed': 4\n",
    "a repeated key below a merge": "puma: &p {l1: 0.5}\npuma_paper: {<<: *p, l1: 0.1, l1: 0.2}\n",
    "an unknown key": "sede: 3",
    "an unknown group": "trainig: {epochs: 3}",
    "an unknown key of a group": "training: {epoch: 3}",
    "a key in capitals": "SEED: 3",
    "a key with a space": "'seed ': 3",
    "a key of another alphabet": "ѕeed: 3",
    "a number as a key": "1: 2",
    "true as a key": "on: 2",
    "null as a key": "~: 2",
    "a list as a key": "[seed]: 3",
    "a mapping as a key": "{seed: 3}: 3",
    "a date as a key": "2026-01-31: 3",
    "NaN as a key": ".nan: 3",
    "a group as a list": "training: [epochs, 3]",
    "a group as null": "training:",
    "a group as a text": "training: epochs",
    "a group in itself": "training: {training: {epochs: 3}}",
    "a tab": "training:\n\tepochs: 3",
    "bad indentation": "training:\n  epochs: 3\n batch_size: 4",
    "an open bracket": "model: {hidden: [4, 5",
    "an open quote": "data: {folder: 'x",
    "two colons": "seed: 3: 4",
    "a lone colon": ":",
    "a lone anchor": "seed: *nothing",
    "an alias to itself": "model: {hidden: &a [*a]}",
    "a mapping in itself": "training: &a {epochs: *a}",
    "a merge of a number": "training: {<<: 3}",
    "a Python object": "seed: !!python/object/apply:os.getpid []",
    "a Python name": "seed: !!python/name:os.getpid",
    "an unknown tag": "seed: !mine 3",
    "a number that is a text": "seed: !!int three",
    "a tagged float": "seed: !!float x",
    "binary": "data: {folder: !!binary aGVsbG8=}",
    "bad binary": "data: {folder: !!binary '*'}",
    "a set": "model: {hidden: !!set {4, 5}}",
    "pairs": "model: {hidden: !!pairs [a: 4]}",
    "a date for a text": "data: {folder: 2026-01-31}",
    "a date for a number": "seed: 2026-01-31",
    "no such date": "data: {folder: 2026-02-30}",
    "no such month": "seed: 2026-13-01",
    "no such time": "seed: 2026-01-31 25:61:00",
    "year 0": "seed: 0000-01-01",
    "sixties": "training: {epochs: 1:30}",
    "sixties with a point": "training: {learning_rate: 1:30.5}",
    "off for a choice": "puma: {reweighting: off}",
    "yes for a number": "training: {epochs: yes}",
    "a digit of another alphabet": "training: {epochs: '٣'}",
    "a number with a unit": "training: {epochs: 3s}",
    "a number with a comma": "training: {learning_rate: '0,5'}",
    "a number with a space": "training: {epochs: 1 000}",
    "5000 digits": "seed: " + "9" * 5000,
    "an exponent beyond floats": "training: {learning_rate: 1.0e+400}",
    "NUL": b"seed: 3\x00",
    "Latin-1": "data: {folder: 'ü'}".encode("latin-1"),
    "a lone surrogate": b"data: {folder: '\xed\xa0\x80'}",
    "an escaped surrogate": 'data: {folder: "\\ud800"}',
    "an escaped NUL": 'data: {folder: "\\0"}',
    "a ZIP file": b"PK\x03\x04" + bytes(range(256)),
    "a control character": "data: {folder: 'a\x07b'}",
    "1000 brackets": "model: {hidden: " + "[" * 1000 + "]" * 1000 + "}",
    "5000 groups": "training: " + "{a: " * 5000 + "3" + "}" * 5000,
    "a laugh": "x: &a [1,1,1,1,1,1,1,1,1,1]\n"
    + "".join(f"{b}: &{b} [{', '.join(['*' + a] * 10)}]\n" for a, b in ("ab", "bc", "cd", "de")),
    "a method twice": "methods: [retrain, retrain]\nversions: [original, retrain, retrain]",
    "a dataset twice": "datasets: [german_credit, german_credit]",
    "no methods' versions": "methods: [retrain]",
    "an original as a method": "methods: [original]\nversions: [original, original]",
    "the originals in another order": "originals: [sisa_original, original]\nmethods: [sisa]\n"
    "versions: [sisa_original, original, sisa]",
    "no originals": "originals: []\nversions: [retrain, puma]",
    "an original that no method needs": "originals: [original, sisa_original]\n"
    "versions: [original, sisa_original, retrain, puma]",
    "no datasets": "datasets: []",
    "a source that is nothing": "sources: {churn: {}}",
    "a source without a target": "sources: {churn: {path: churn.csv}}",
    "a source with a slash": "sources: {../churn: {path: churn.csv, target: churned}}",
    "a source as a text": "sources: {churn: churn.csv}",
    "sources as a list": "sources: [churn]",
    "a source with an unknown key": "sources: {a: {path: a.csv, target: y, subjects: b}}",
    "a source with a column twice": "sources: {a: {path: a.csv, target: y, subject: y}}",
    "a source with a type that is none": "sources: {a: {path: a.csv, target: y, types: {b: int}}}",
    "a task that is none": "sources: {a: {path: a.csv, target: y, task: ranking}}",
    "settings of no dataset": "per_dataset: {nobody: {training: {epochs: 1}}}",
    "settings of a dataset as a text": "per_dataset: {german_credit: mlp}",
    "settings of a dataset with an unknown group": "per_dataset: {german_credit: {audit: {}}}",
    "settings of a dataset with an unknown key": "per_dataset: {german_credit: {puma: {a: 1}}}",
    "settings of a dataset out of range": "per_dataset: {german_credit: {training: {epochs: 0}}}",
    "per_dataset as a list": "per_dataset: [german_credit]",
    "a dataset with a slash": "datasets: [../german_credit]",
    "an empty name of a dataset": "datasets: ['']",
    "a model's number of members": "model: {members: 3}",
    "a criterion as a text": "puma: {preserve: [soft_ece]}",
    "criteria as a mapping": "puma: {preserve: {criterion: soft_ece, budget: 0.1}}",
    "a criterion without a budget": "puma: {preserve: [{criterion: soft_ece}]}",
    "a criterion with a budget of 0": "puma: {preserve: [{criterion: soft_ece, budget: 0}]}",
    "a criterion twice": "puma: {preserve: [{criterion: soft_ece, budget: 1}, "
    "{criterion: soft_ece, budget: 2}]}",
    "a group without a condition": "puma: {preserve: [{criterion: group_loss, budget: 1}]}",
    "a condition that calls": "puma: {preserve: [{criterion: soft_ece, budget: 1, where: exit()}]}",
    "a condition as a number": "puma: {preserve: [{criterion: soft_ece, budget: 1, where: 3}]}",
    "two budgets of the retained loss": "puma: {preserve: [{criterion: retained_loss, budget: 3}]}",
}
# What the table of methods has to refuse: puma.settings, a room below, does not know it.
UNKNOWN_METHODS = ("magic", "PUMA", "", "../puma")
PLACES = ("absent", "a folder", "a link to nowhere")


def params_cases(folder: Path, draw: random.Random) -> list[Case]:
    """Every odd file, then every value of every setting, in a drawn order."""
    folder.mkdir(parents=True, exist_ok=True)
    made = _Files(folder)
    cases = [made.place(place) for place in PLACES]
    for content, (key, value) in GOOD_YAML.items():
        cases.append(made.case(f"good: {text(content)}", content, key, value))
    for name, spoilt in BAD_YAML.items():
        cases.append(made.case(name, spoilt, None, REFUSED))
    cases += [made.unknown_method(name) for name in UNKNOWN_METHODS]
    of_settings = list(_setting_cases(made))
    draw.shuffle(of_settings)
    return [*cases, *of_settings]


def _setting_cases(made: _Files) -> Iterator[Case]:
    for key, kind, default in settings_of(Settings):
        if key in ("datasets", "originals", "methods", "versions", "sources", "per_dataset"):
            continue  # they depend on each other, or have no default: above
        if key == "puma.preserve":
            continue  # entries of several settings: above
        values = values_of(kind, default=default)
        for value in values.good:
            name = f"{key}: {text(value)}"
            wanted = REFUSED if _forbidden(key, value) else value
            yield made.case(f"good: {name}", _file(key, value), key, wanted)
        for value in values.bad:
            if key == "training.class_weights" and isinstance(value, dict) and 3 in value:
                continue  # a class may be named by a number
            yield made.case(f"bad: {key}: {text(value)}", _file(key, value), None, REFUSED)


def _forbidden(key: str, value: Any) -> bool:
    """Whether a rule forbids what the type allows."""
    if key == "model.members":
        return value is not None  # the pipeline trains single models
    if key == "pool.models":
        return value in (0, 8)  # the defaults use a pool, and 8 models cannot be divided in halves
    if key in ("training.loop", "model.kwargs", "engine.address"):
        return bool(value)  # needs code of one's own, or an engine that is elsewhere
    if key == "training.class_weights":
        return bool(value == {})
    if key == "engine.backend":
        return bool(value == "dask")  # needs an address
    return key == "promotion.accept" and "passed" not in value


def _file(key: str, value: Any) -> str:
    content = value
    for name in reversed(key.split(".")):
        content = {name: content}
    return str(dumps_yaml(content))


class _Files:
    """Writes each file into a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, 0

    def _next(self) -> Path:
        self.number += 1
        place = self.folder / f"project-{self.number}"
        place.mkdir()
        return place / "params.yaml"

    def case(self, name: str, content: str | bytes, key: str | None, expected: Any) -> Case:
        path = self._next()
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        wanted = tuple(expected) if isinstance(expected, list) else expected
        return Case(name, _reading(path, key), wanted, folder=path.parent)

    def unknown_method(self, name: str) -> Case:
        path = self._next()
        path.write_text(dumps_yaml({"methods": [name], "versions": [ORIGINAL, name]}))

        def build() -> None:
            settings = load_settings(path)
            for method in settings.methods:
                build_method(method, settings)

        return Case(f"an unknown method: {text(name)}", build, REFUSED, folder=path.parent)

    def place(self, place: str) -> Case:
        path = self._next()
        if place == "a folder":
            path.mkdir()
        elif place == "a link to nowhere":
            path.symlink_to(path.with_name("nowhere"))
        return Case(place, _reading(path, None), REFUSED, folder=path.parent)


def _reading(path: Path, key: str | None) -> Callable[[], Any]:
    def read() -> Any:
        found: Any = load_settings(path)
        for name in key.split(".") if key else ():
            found = getattr(found, name)
        return found

    return read
