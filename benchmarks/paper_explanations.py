"""Why cells of the paper's tables differ: one sentence for each kind, with its measurement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from benchmarks.agreement import LIMIT, Measured, deviations_apart
from benchmarks.label_errors_tables import read_runtime
from benchmarks.paper_cells import (
    DATASETS,
    PUMA,
    RUNTIME,
    SECONDS,
    SHORTER,
    STEPS,
    all_removals,
    compared,
    reference,
)
from benchmarks.removals import KEYS
from benchmarks.step_size import ADVISED, PRINTED, read_step_sizes
from benchmarks.tables import read

TABULAR = {"radial": "Radial", "rectangular": "Rectangular", "german_credit": "German Credit"}


@dataclass(frozen=True)
class Evidence:
    """What the verdicts and the sentences take their numbers from; ``results`` is where it lies."""

    results: Path
    cells: pd.DataFrame
    removals: pd.DataFrame
    shorter: pd.DataFrame  # removals from models that were trained for 15 epochs
    runtime: pd.DataFrame
    steps: pd.DataFrame
    stated_seconds: pd.DataFrame  # the paper's own, of Table 3

    @classmethod
    def of(cls, root: Path, results: Path) -> Evidence:
        """From the CSV files in ``results``, a folder below ``root``, and in paper/reference/.

        Raises DataError where a file is absent or has other columns.
        """
        folder = root / results
        return cls(
            results,
            compared(root, results),
            all_removals(folder).drop_duplicates(list(KEYS)),
            read(folder / SHORTER),
            read_runtime(folder / RUNTIME),
            read_step_sizes(folder / STEPS),
            reference(root, SECONDS),
        )


@dataclass(frozen=True)
class Explanation:
    """One sentence with its measurement, for the cells that ``covers`` picks."""

    covers: Callable[[Evidence, pd.Series], bool]
    sentence: Callable[[Evidence], str]


def _where(**named: object) -> Callable[[Evidence, pd.Series], bool]:
    """The cells with these values; a tuple is any of them."""
    return lambda _, cell: all(
        cell[name] in (values if isinstance(values, tuple) else (values,))
        for name, values in named.items()
    )


def _shorter_training(evidence: Evidence, cell: pd.Series) -> bool:
    """Where models that were trained for fewer epochs have the paper's accuracy."""
    if cell["table"] != 1:
        return False
    found = _shorter(evidence, cell)
    paper = Measured(float(cell["paper_mean"]), float(cell["paper_std"]))
    return found is not None and deviations_apart(found, paper) <= LIMIT


def _shorter(evidence: Evidence, cell: pd.Series) -> Measured | None:
    """Our accuracy for a cell of Table 1 after fewer epochs, per cent; None where not measured."""
    rows = evidence.shorter
    mine = (rows["dataset"] == DATASETS[cell["dataset"]]) & (rows["method"] == cell["run"])
    rows = rows[mine & (rows["scenario"] == cell["scenario"])]
    name, share = "original_accuracy", rows["fraction"].min()
    if cell["column"] != "original":
        name, share = "accuracy", int(cell["column"].removeprefix("removed")) / 100
    values = 100 * rows.loc[rows["fraction"] == share, name].dropna()
    return Measured(values.mean(), values.std()) if len(values) > 1 else None


def _shorter_said(evidence: Evidence) -> str:
    cells = evidence.cells
    far = cells[cells["deviations_apart"] > LIMIT]
    far = far[[_shorter_training(evidence, cell) for _, cell in far.iterrows()]]
    said = []
    for (scenario, run), group in far.groupby(["scenario", "run"], sort=False):
        found = [_shorter(evidence, cell) for _, cell in group.iterrows()]
        numbers = ", ".join(f"{each.mean:.1f} ± {each.std:.1f}" for each in found if each)
        said.append(f"{run}, {scenario}: {numbers} % ({', '.join(group['column'])})")
    whole = evidence.shorter.drop_duplicates(["dataset", "method", "seed"])
    single = 100 * whole.loc[whole["method"] == "retrain", "original_accuracy"]
    return (
        "The paper does not say for how many epochs it trains. With 15 in place of 50 these hold, "
        f"and a single model of all rows still has {single.mean():.1f} ± {single.std():.1f} % (15 "
        "was chosen by retraining's random cells, among 10, 15, 20, 25 and 30): "
        f"{'; '.join(said)}."
    )


def _another_original(evidence: Evidence, cell: pd.Series) -> bool:
    """SISA, where its accuracy before any removal is not the paper's already."""
    if cell["table"] != 1 or not cell["run"].startswith("sisa"):
        return False
    far = _originals(evidence)
    same = (far["scenario"] == cell["scenario"]) & (far["dataset"] == cell["dataset"])
    return bool(same.any())


def _originals(evidence: Evidence) -> pd.DataFrame:
    cells = evidence.cells
    mine = (cells["column"] == "original") & (cells["method"] == "SISA")
    far = cells[mine & (cells["deviations_apart"] > LIMIT)]
    return far[[not _shorter_training(evidence, cell) for _, cell in far.iterrows()]]


def _originals_said(evidence: Evidence) -> str:
    pairs = [
        f"{cell['our_mean']:.1f} against {cell['paper_mean']:.1f} % ({cell['dataset']}, "
        f"{cell['scenario']})"
        for _, cell in _originals(evidence).iterrows()
    ]
    return (
        f"SISA's models differ before anything is removed, {'; '.join(pairs)}: the paper does not "
        "say how many shards, slices and epochs they have."
    )


def _fewer_steps(evidence: Evidence, cell: pd.Series) -> bool:
    """Retraining, where as many steps as the original had give the paper's accuracy."""
    if cell["table"] != 1 or cell["run"] != "retrain" or cell["column"] == "original":
        return False
    mean, std = _equal_steps(evidence, cell)
    paper = Measured(float(cell["paper_mean"]), float(cell["paper_std"]))
    return deviations_apart(Measured(mean, std), paper) <= LIMIT


def _equal_steps(evidence: Evidence, cell: pd.Series) -> tuple[float, float]:
    """Accuracy of retraining with the original's number of steps, per cent."""
    rows = evidence.removals
    chosen = rows[
        (rows["dataset"] == DATASETS[cell["dataset"]])
        & (rows["scenario"] == cell["scenario"])
        & (rows["fraction"] == int(cell["column"].removeprefix("removed")) / 100)
        & (rows["method"] == "retrain_equal_steps")
    ]
    return 100 * chosen["accuracy"].mean(), 100 * chosen["accuracy"].std()


def _fewer_steps_said(evidence: Evidence) -> str:
    cells = evidence.cells
    far = cells[(cells["deviations_apart"] > LIMIT) & (cells["run"] == "retrain")]
    found = [
        "{:.1f} ± {:.1f} %".format(*_equal_steps(evidence, cell))
        for _, cell in far.iterrows()
        if _fewer_steps(evidence, cell)
    ]
    return (
        "Fewer rows in as many epochs are fewer steps: retraining with the original's number of "
        f"steps comes to {', '.join(found)}, which holds."
    )


def _drift(evidence: Evidence, run: str, dataset: str | None = None) -> pd.Series:
    """Change of the retained loss (nats) in the removals of Table 1."""
    rows = evidence.removals
    chosen = rows[(rows["method"] == run) & rows["fraction"].notna()]
    return (chosen if dataset is None else chosen[chosen["dataset"] == dataset])["drift"]


def _budget_said(evidence: Evidence) -> str:
    return (
        "`puma` measures the retained loss and keeps it: on Radial it rises by at most "
        f"{_drift(evidence, 'puma', 'radial').max():.3f} nats, so that the accuracy stays, too."
    )


def _printed_said(evidence: Evidence) -> str:
    return (
        "Algorithm 1 as printed does not measure the loss that it is to preserve: on Rectangular "
        f"it rises by {_drift(evidence, 'puma_paper', 'rectangular').mean():.1f} nats on average "
        f"(of `puma` by at most {_drift(evidence, 'puma', 'rectangular').max():.3f}); the paper "
        "gives a range for η, and neither damping nor bounds nor penalties."
    )


def _of_share(evidence: Evidence, run: str, dataset: str, share: float) -> pd.DataFrame:
    """The removals of Table 1 that take ``share`` of the rows, in both scenarios."""
    rows = evidence.removals
    mine = (rows["method"] == run) & (rows["dataset"] == dataset)
    return rows[mine & (rows["fraction"] == share)]


def _beyond_the_pool_said(evidence: Evidence) -> str:
    large = _of_share(evidence, "puma", "breast_cancer", 0.8)["level_missed"]
    small = _of_share(evidence, "puma", "breast_cancer", 0.2)["level_missed"]
    return (
        "Each model of the pool leaves out a quarter of the people: of four fifths of the rows "
        f"`puma` says itself that it missed its targets (`level_missed` {large.sum():.0f} of "
        f"{len(large)} times; of one fifth {small.sum():.0f} of {len(small)})."
    )


def _towards_retraining_said(evidence: Evidence) -> str:
    means = {
        run: 100 * _of_share(evidence, run, "rectangular", 0.8)["accuracy"].mean()
        for run in ("retrain", "puma")
    }
    before = 100 * _of_share(evidence, "puma", "rectangular", 0.8)["original_accuracy"].mean()
    return (
        "`puma` takes the removed rows to where retraining has them, and retraining without four "
        f"fifths of Rectangular falls from {before:.1f} to {means['retrain']:.1f} % itself; `puma` "
        f"is at {means['puma']:.1f} %."
    )


def _rates(evidence: Evidence, run: str, scenario: str) -> pd.Series:
    """Share of German Credit's removed rows that the attack calls members, per cent."""
    rows = evidence.removals
    mine = (rows["dataset"] == "german_credit") & (rows["method"] == run)
    chosen = rows[mine & (rows["scenario"] == scenario)]
    share = chosen["fraction"].min()  # the smallest share, or none for clusters
    return (
        100 * (chosen if math.isnan(share) else chosen[chosen["fraction"] == share])["removed_rate"]
    )


def _marks_said(evidence: Evidence) -> str:
    cells = evidence.cells
    own = cells[(cells["table"] == 2) & (cells["run"] == "retrain") & (cells["column"] == "after")]
    stated = own.set_index(["dataset", "scenario"])["paper_mean"]
    cluster, scattered = (_rates(evidence, "retrain", name) for name in ("cluster", "random"))
    return (
        "The rate depends on which rows are marked: for retrained models of German Credit it is "
        f"{cluster.mean():.1f} ± {cluster.std():.1f} % of a cluster and {scattered.mean():.1f} ± "
        f"{scattered.std():.1f} % of a random fifth here. Appendix A marks clusters, Appendix D "
        "says that the rows are random, and for retraining, which knows no order, the paper's two "
        f"scenarios have {stated['Radial', 'ordered']:.1f} and {stated['Radial', 'random']:.1f} % "
        "of Radial."
    )


def _target_said(evidence: Evidence) -> str:
    rows = evidence.removals
    rates = rows[rows["scenario"] == "cluster"].pivot_table(
        index=["dataset", "seed"], columns="method", values="removed_rate"
    )
    gap = 100 * (rates["puma"] - rates["retrain"]).groupby("dataset").mean()
    said = ", ".join(f"{gap[name]:+.1f}" for name in ("radial", "rectangular", "german_credit"))
    return (
        "`puma` takes the rows to where retraining would, not as low as it can: its rate is "
        f"retraining's {said} points on Radial, Rectangular and German Credit."
    )


def _clusters(evidence: Evidence, run: str) -> pd.DataFrame:
    """Means over seeds by dataset: the numbers of a run whose request is clusters."""
    rows = evidence.removals
    mine = rows[(rows["scenario"] == "cluster") & (rows["method"] == run)]
    return mine[mine["dataset"].isin(TABULAR)].groupby("dataset").mean(numeric_only=True)


def _spoilt_said(evidence: Evidence) -> str:
    left = 100 * _clusters(evidence, "amnesiac_unrepaired").loc[list(TABULAR)]
    return (
        f"Without repair, Amnesiac ML's subtraction leaves accuracies of "
        f"{_listed(left['accuracy'])} % on {', '.join(TABULAR.values())}, and the attack calls "
        f"{_listed(left['unseen_rate'])} % even of the unseen rows members: the rate tells of a "
        "spoilt model."
    )


def _ensemble_said(evidence: Evidence) -> str:
    cells = evidence.cells
    before = cells[(cells["table"] == 2) & (cells["column"] == "before")]
    before = before[before["scenario"] == "random"]
    sisa, single = (
        _listed(
            before.loc[(before["dataset"] == name) & (before["run"] == run), "our_mean"].mean()
            for name in ("Rectangular", "German")
        )
        for run in ("sisa", "retrain")
    )
    shown = cells[
        (cells["table"] == 1) & (cells["run"] == "sisa") & (cells["column"] == "original")
    ]
    stated = shown.set_index("dataset").loc["German"]
    return (
        "An ensemble is less sure of its training rows than the single models that the attack "
        f"learnt from: before the removal it calls {sisa} % of the clusters of Rectangular and "
        f"German Credit members of SISA's models, and {single} % of a single one's. The paper's "
        f"SISA has {stated['paper_mean']:.2f} ± {stated['paper_std']:.2f} % accuracy on German "
        "Credit, the share of the larger class, as if it said the same of everybody."
    )


def _shared_originals_said(evidence: Evidence) -> str:
    cells = evidence.cells
    mine = cells[(cells["table"] == 2) & (cells["column"] == "before")]
    mine = mine[(mine["scenario"] == "random") & (mine["dataset"] == "German")]
    stated = mine.drop_duplicates("method").set_index("method")[["paper_mean", "paper_std"]]
    ours = mine[mine["run"] == "retrain"].iloc[0]
    said = ", ".join(
        f"{mean:.2f} ± {std:.2f}"
        for mean, std in stated.loc[["Retrain Model", "Amnesiac ML", PUMA]].itertuples(index=False)
    )
    return (
        f"Before the removal retraining, Amnesiac ML and PUMA have one and the same model, of "
        f"which the paper's attack finds {said} %, so that its rows or its attack differ from "
        f"line to line; here it finds {ours['our_mean']:.2f} ± {ours['our_std']:.2f} %. Without "
        "deviations any difference is infinitely many of them."
    )


def _rate_of_eta_said(evidence: Evidence) -> str:
    rows = evidence.steps
    printed = rows[(rows["dataset"] == "german_credit") & (rows["method"] == PRINTED)]
    means = 100 * printed.groupby("eta")[["removed_rate", "accuracy"]].mean()
    retrained = rows[(rows["dataset"] == "german_credit") & (rows["method"] == "retrain")]
    said = ", ".join(
        f"η = {eta:g}: {row['removed_rate']:.1f} % at {row['accuracy']:.1f} % accuracy"
        for eta, row in means.iterrows()
        if float(str(eta)) >= ADVISED[0]
    )
    return (
        "How much Algorithm 1 forgets is up to η, of which the paper gives a range, "
        f"{ADVISED[0]:g} to {ADVISED[1]:g}: {said} (German Credit's clusters; retraining has "
        f"{100 * retrained['removed_rate'].mean():.1f} %)."
    )


def _shapley_said(evidence: Evidence) -> str:
    ours = evidence.runtime.groupby("method")["seconds"]
    stated = evidence.stated_seconds.groupby("method")["seconds_mean"]
    return (
        f"G-Shapley takes {_spread(ours.get_group('g_shapley'), digits=3)} s here and "
        f"{_spread(stated.get_group('GShapley'), digits=3)} s in the paper, PUMA's scores "
        f"{_spread(ours.get_group('psi'), 1000)} ms and {_spread(stated.get_group(PUMA))} s: the "
        "scores are the faster part here, by one solve and one forward-mode pass."
    )


def _listed(values: Iterable[float]) -> str:
    numbers = [f"{value:.0f}" for value in values]
    return f"{', '.join(numbers[:-1])} and {numbers[-1]}"


def _spread(values: Iterable[float], scale: float = 1.0, digits: int = 2) -> str:
    numbers = sorted(value * scale for value in values)
    return f"{numbers[0]:.{digits}g} to {numbers[-1]:.{digits}g}"


def _computed_said(evidence: Evidence) -> str:
    times = evidence.runtime.groupby("method")["ratio_to_psi"]
    ntk, fast_ntk, self_influence = (
        _spread(times.get_group(name)) for name in ("ntk_per_example", "ntk", "self_influence")
    )
    one_by_one = times.get_group("self_influence_per_point")
    return (
        "How a method is computed decides: NTK takes "
        f"{ntk} times PUMA's time with a backward pass a row, and {fast_ntk} times by one "
        f"forward-mode pass; self-influence {one_by_one.min():,.0f} to {one_by_one.max():,.0f} "
        f"times row by row, and {self_influence} times by one factorisation."
    )


def _refit_said(evidence: Evidence) -> str:
    times = evidence.runtime.groupby("method")["seconds"]
    parameters = evidence.runtime["parameters"]
    return (
        "RSP refits the last layer alone, and takes "
        f"{_spread(times.get_group('representer'), 1000)} ms; PUMA's scores need a solve with the "
        f"curvature of all {parameters.min():,} to {parameters.max():,} parameters, and take "
        f"{_spread(times.get_group('psi'), 1000)} ms."
    )


GERMAN = {"table": 2, "dataset": "German"}
EXPLANATIONS = (
    Explanation(_shorter_training, _shorter_said),
    Explanation(_another_original, _originals_said),
    Explanation(_fewer_steps, _fewer_steps_said),
    Explanation(_where(table=1, dataset="Radial", run="puma"), _budget_said),
    Explanation(_where(table=1, dataset="Rectangular", run="puma_paper"), _printed_said),
    Explanation(_where(table=1, dataset="Rectangular", run="puma"), _towards_retraining_said),
    Explanation(_where(table=1, dataset="Breast Cancer", run="puma"), _beyond_the_pool_said),
    Explanation(_where(table=2, column="after", run="retrain"), _marks_said),
    Explanation(_where(table=2, column="after", run="puma"), _target_said),
    Explanation(_where(**GERMAN, column="after", run="puma_paper"), _rate_of_eta_said),
    Explanation(_where(table=2, column="after", run="amnesiac_unrepaired"), _spoilt_said),
    Explanation(_where(table=2, run="sisa"), _ensemble_said),
    Explanation(_where(**GERMAN, column="before"), _shared_originals_said),
    Explanation(
        _where(table=3, run=("ntk_per_example", "self_influence_per_point")), _computed_said
    ),
    Explanation(_where(table=3, run="representer"), _refit_said),
    Explanation(_where(table=3, run="g_shapley"), _shapley_said),
)
