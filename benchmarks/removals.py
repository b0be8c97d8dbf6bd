"""Measuring: one row per dataset, scenario, method and seed, also where a method refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Generic, TypeVar

import pandas as pd
from tqdm import tqdm

from puma.audit import ShadowAttack, loss_attack, predict, rate, train_pool, train_shadow_attack
from puma.data import DATASETS, Dataset, load_dataset
from puma.errors import SettingsError
from puma.metrics import auc
from puma.models import build_model, predictions
from puma.models.parallel import run_all
from puma.removal import RemovalMethod, Trained, build_method, build_trainer
from puma.removal.puma.method import ONE_STEP
from puma.requests.deletion_set import DeletionSet
from puma.requests.demonstration import SCENARIO_FRACTIONS, mark
from puma.settings import ORIGINAL, Settings

Runs = Mapping[str, tuple[str, Mapping[str, Any]]]
# Name of a run: the method, and its settings where they are not those of params.yaml.
RUNS: Runs = {
    "puma": ("puma", {}),
    "puma_one_step": ("puma", ONE_STEP),
    "puma_paper": ("puma_paper", {}),
    "retrain": ("retrain", {"schedule": "equal_epochs"}),
    "retrain_equal_steps": ("retrain", {"schedule": "equal_steps"}),
    "sisa": ("sisa", {}),
    "amnesiac": ("amnesiac", {}),
}
# As the paper runs them: SISA with the people of an ordered request side by side in its shards,
# and Amnesiac ML as its subtraction leaves it.
AS_IN_THE_PAPER: Runs = {
    "sisa_ordered": ("sisa", {"assignment": "ordered"}),
    "amnesiac_unrepaired": ("amnesiac", {"repair_epochs": 0}),
}
ALL_RUNS = {**RUNS, **AS_IN_THE_PAPER}
BASELINE = "retrain"  # what the gaps and the ratios of seconds are taken to
KEYS = ("dataset", "scenario", "fraction", "method", "seed")
NUMBERS = (
    "original_accuracy",
    "accuracy",
    "removed_rate_before",
    "removed_rate",
    "unseen_rate",
    "loss_auc",
    "loss_auc_gap_to_retrain",
    "seconds",
    "retrain_seconds",
    "drift",
    "level_missed",
)
COLUMNS = (*KEYS, *NUMBERS, "note")
Row = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Scenario:
    """Whom to remove: a name of ``MARKINGS``, and a share where it takes one."""

    name: str
    fraction: float = math.nan


def scenarios(fractions: Sequence[float] = SCENARIO_FRACTIONS) -> list[Scenario]:
    """The paper's: one cluster per class, and ``fractions`` of the rows, ordered and random.

    Raises SettingsError for a fraction that does not lie between 0 and 1.
    """
    wrong = [value for value in fractions if not 0 < value < 1]
    if wrong:
        raise SettingsError(f"fractions must lie between 0 and 1, got {wrong}")
    shares = sorted(set(fractions))
    return [
        Scenario("cluster"),
        *(Scenario(name, share) for name, share in product(("ordered", "random"), shares)),
    ]


def run_removals(
    datasets: Sequence[str],
    *,
    settings: Settings,
    seeds: int = 5,
    cases: Sequence[Scenario] | None = None,
    runs: Sequence[str] = tuple(RUNS),
    jobs: int = 1,
    progress: bool = True,
) -> pd.DataFrame:
    """Every one of ``runs`` on every dataset, seed (0, 1, …) and case; see :data:`COLUMNS`.

    ``runs`` are names of :data:`ALL_RUNS`.

    A seed decides the split, the initial weights, the batches, the marks and the attack. The
    original is trained once per dataset and seed, and so is each one that a method makes for
    itself; ``original_accuracy`` is that of the original which the method removed from.

    accuracy: on the test split. removed_rate, unseen_rate: share of the removed and of the
    unseen rows that the shadow attack calls members; removed_rate_before: of the removed rows,
    when it attacks the original. loss_auc: the loss attack, removed against unseen rows.
    loss_auc_gap_to_retrain: its distance from that of ``retrain`` (equal epochs) on the same
    dataset, case and seed, blank where that was not run. drift: change of the retained rows'
    mean loss (nats). level_missed: 1 or 0, blank where a method does not say. fraction: blank
    for ``cluster``. In ``ordered`` the rows lie next to each other in the order of the data.

    A method that refused or failed has its row too: the error's class and message in ``note``,
    every number blank. Whatever cannot be had for one row does not stop the others.

    Each dataset and seed runs in one process with one thread, ``jobs`` of them at a time.
    ``seconds`` and ``retrain_seconds`` of a row come from the same process; neighbours slow it
    down by an unknown amount, so that their ratio within a row means something and the seconds
    of different rows are not to be compared.

    Raises SettingsError for an unknown dataset or run, none of either, or fewer than one seed
    or job.
    """
    names = check(datasets, seeds, jobs)
    runs = list(dict.fromkeys(runs))
    unknown = sorted(set(runs) - set(ALL_RUNS))
    if unknown or not runs:
        raise SettingsError(
            f"unknown methods {unknown}; name at least one of {', '.join(ALL_RUNS)}"
        )
    cases = list(scenarios() if cases is None else cases)
    pairs = list(product(names, range(seeds)))
    total = len(pairs) * len(cases) * len(runs)
    rows: list[Row] = []
    with tqdm(total=total, desc="removals", unit="run", disable=not progress) as bar:
        chosen = {name: ALL_RUNS[name] for name in runs}
        tasks = [(name, seed, settings, cases, chosen) for name, seed in pairs]
        for _, done in run_all(rows_of, tasks, jobs=jobs):
            rows += done
            bar.update(len(done))
    places = {(case.name, str(case.fraction)): place for place, case in enumerate(cases)}
    methods = list(ALL_RUNS)
    rows.sort(
        key=lambda row: (
            names.index(row["dataset"]),
            places[row["scenario"], str(row["fraction"])],
            methods.index(row["method"]),
            row["seed"],
        )
    )
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    numeric = ["fraction", *NUMBERS]
    return frame.astype(dict.fromkeys(numeric, float))


def check(datasets: Sequence[str], seeds: int, jobs: int) -> list[str]:
    """``datasets``, each once. Raises SettingsError for what no benchmark can be run with."""
    names = list(dict.fromkeys(datasets))
    unknown = sorted(set(names) - set(DATASETS))
    if unknown or not names:
        raise SettingsError(
            f"unknown datasets {unknown}; name at least one of {', '.join(sorted(DATASETS))}"
        )
    if seeds < 1 or jobs < 1:
        raise SettingsError(f"seeds and jobs must be at least 1, got {seeds} and {jobs}")
    return names


def load(name: str, settings: Settings) -> Dataset:
    """The dataset as ``settings.data`` and the seed say."""
    source = settings.data
    return load_dataset(
        name,
        seed=settings.seed,
        test_fraction=source.test_fraction,
        folder=source.folder,
        download=source.download,
    )


def rows_of(
    name: str, seed: int, settings: Settings, cases: Sequence[Scenario], runs: Runs
) -> list[Row]:
    """The rows of one dataset and seed: KEYS and NUMBERS as in :func:`run_removals`.

    Beside these ``dose``, where the method has one, and ``train_rows``.
    """
    return _Pair(name, settings.model_copy(update={"seed": seed}), runs).rows(cases)


class _Outcome(Generic[T]):
    """A value that several rows need, or why there is none; worked out once."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._value: T
        self._error: Exception | None = None
        try:
            self._value = make()
        # Broad on purpose: whatever went wrong belongs in the rows, and hours of others go on.
        except Exception as error:
            self._error = error

    def get(self) -> T:
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._value


class _Pair:
    """One dataset and seed: what all of its rows share."""

    def __init__(self, name: str, settings: Settings, runs: Runs) -> None:
        self.name, self.settings, self.runs = name, settings, runs
        seed = settings.seed
        self.data = _Outcome[Dataset](lambda: load(name, settings))
        self.attack = _Outcome[ShadowAttack](
            lambda: train_shadow_attack(
                self.data.get(),
                settings.model,
                settings.training,
                settings.shadow,
                seed=seed,
                progress=False,
            )
        )
        self.originals: dict[str, _Outcome[Trained]] = {}

    def rows(self, cases: Sequence[Scenario]) -> list[Row]:
        rows: list[Row] = []
        for case in cases:
            request = _Outcome(partial(self._request, case))
            measured = {}
            for run in self.runs:
                measured[run] = self._measured(run, request)
            base = measured.get(BASELINE, {})
            for run, numbers in measured.items():
                key = (self.name, case.name, case.fraction, run, self.settings.seed)
                row = {**dict(zip(KEYS, key, strict=True)), "note": "", **numbers}
                if "loss_auc" in numbers and "loss_auc" in base:
                    row["loss_auc_gap_to_retrain"] = abs(numbers["loss_auc"] - base["loss_auc"])
                    row["retrain_seconds"] = base["seconds"]
                rows.append(row)
        return rows

    def _measured(self, run: str, request: _Outcome[DeletionSet]) -> Row:
        try:
            return self._measure(run, request.get())
        except Exception as error:  # broad for the same reason
            return {"note": " ".join(f"{type(error).__name__}: {error}".split())}

    def _measure(self, run: str, request: DeletionSet) -> Row:
        trained, attack = self._original(run), self.attack.get()
        data = trained.dataset
        marked = data.train.subset(request.rows)
        removal = self._method(run).remove(trained, request, progress=False)
        removed = predict(removal.predictor, marked)
        unseen = predict(removal.predictor, data.test.without(request.test_rows))
        return {
            "original_accuracy": predictions.accuracy(trained.predictor, data.test),
            "accuracy": predictions.accuracy(removal.predictor, data.test),
            "removed_rate_before": rate(attack.scores(predict(trained.predictor, marked))),
            "removed_rate": rate(attack.scores(removed)),
            "unseen_rate": rate(attack.scores(unseen)),
            "loss_auc": auc(loss_attack(removed), loss_attack(unseen)),
            "seconds": removal.seconds,
            "drift": removal.criterion_drift,
            "level_missed": removal.diagnostics.get("level_missed"),
            "dose": removal.parameters.get("dose"),
            "train_rows": len(data.train),
        }

    def _method(self, run: str) -> RemovalMethod:
        return build_method(self.runs[run][0], self._settings(run))

    def _settings(self, run: str) -> Settings:
        name, changed = self.runs[run]
        group = getattr(self.settings, name).model_copy(update=dict(changed))
        return self.settings.model_copy(update={name: group})

    def _original(self, run: str) -> Trained:
        """The model that ``run`` removes from: a method's own depends on its settings."""
        kind = self._method(run).original
        plain = kind == ORIGINAL
        key, settings = (kind, self.settings) if plain else (run, self._settings(run))
        if key not in self.originals:
            self.originals[key] = _Outcome(partial(self._fit, kind, settings))
        return self.originals[key].get()

    def _fit(self, kind: str, settings: Settings) -> Trained:
        data = self.data.get()
        model = build_model(settings.model, data, seed=settings.seed)
        trained = build_trainer(kind, settings).fit(model, data, progress=False)
        steered = any(method == "puma" for method, _ in self.runs.values())
        if kind != ORIGINAL or not steered or settings.puma.reference_models != "pool":
            return trained
        return replace(trained, pool=train_pool(data, settings, progress=False))

    def _request(self, case: Scenario) -> DeletionSet:
        data, chosen = self.data.get(), {"name": case.name}
        if not math.isnan(case.fraction):
            chosen["fraction"] = case.fraction  # type: ignore[assignment]
        how = self.settings.marking.model_copy(update=chosen)
        rows = mark(data, how, seed=self.settings.seed)
        return DeletionSet.of(
            data.train.subject_ids[rows.numpy()].tolist(),
            data,
            allow_class_removal=self.settings.deletion.allow_class_removal,
        )
