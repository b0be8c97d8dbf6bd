"""What a removal method takes and returns: the trained model, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from puma.data.base import Dataset
from puma.html_table import html_table, rows_of_people, short_number
from puma.models.training import History
from puma.references import Pool
from puma.requests.deletion_set import DeletionSet
from puma.settings import ORIGINAL

Parameter = str | int | float


@dataclass(frozen=True, repr=False)
class Trained:
    """A model, the data it learnt from, and the weights it started with.

    Attributes:
        predictor: The trained model, in eval mode; maps (B, ...) features to the task's outputs,
            such as (B, classes) logits.
        dataset: Its training and test rows.
        initial: The same architecture before its first step, where retraining starts again.
        history: The loss curve, or None for a model that was trained elsewhere.
        seconds: Wall time of the training, the recording included.
        original: Which kind of original this is; a method removes from its own kind alone.
        pool: What serves every request to this kind of original, or None; PUMA takes its target
            margins from it.
        records: The folder of what the method recorded while it trained, or None. It was made
            from the training rows: keep it as private as the data.
        parameters: What identifies the training, the optimiser's settings aside.
    """

    predictor: nn.Module
    dataset: Dataset
    initial: nn.Module
    history: History | None = None
    seconds: float = 0.0
    original: str = ORIGINAL
    pool: Pool | None = None
    records: Path | None = None
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


@dataclass(frozen=True)
class CriterionChange:
    """A criterion that a removal promised to keep, as measured of the result.

    Attributes:
        title: Its name.
        budget: Largest allowed change, of either sign.
        before: Of the original.
        after: Of the new model.
    """

    title: str
    budget: float
    before: float
    after: float

    @property
    def drift(self) -> float:
        """By how much it changed."""
        return self.after - self.before

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics that a version carries."""
        values = {"before": self.before, "after": self.after, "drift": self.drift}
        return {f"preserved_{self.title}_{what}": value for what, value in values.items()}


@dataclass(frozen=True, repr=False, eq=False)
class RowWeights:
    """What a step by influence found out about every training row, in the rows' order.

    It is as private as the rows: only counts of it may be shown, and nothing of it is recorded.

    Attributes:
        scores: (n,) ψ of the criterion C (Eq. 9): leaving the row out changes C by ψ/n, to first
            order.
        weights: (n,) λ of Eq. 11, for the whole step: above 0 for a retained row that counts more
            than before, 0 for every marked row.
    """

    scores: Tensor
    weights: Tensor


@dataclass(frozen=True, repr=False)
class Removal:
    """A model from which the rows of ``deletion_set`` were removed, and what it took.

    Attributes:
        method: The name of the method.
        predictor: The new model; the original is untouched.
        deletion_set: Whose rows were removed.
        parent_weights: Digest of the original's weights, which identifies what this came from.
        seconds: Wall time from the trained model and the rows to the new weights.
        criterion_before: Mean loss (nats) of the RETAINED rows under the original, by the task
            and its class weights.
        criterion_after: The same under the new model.
        parameters: How it was made: every setting of the method, as YAML scalars, and the
            deterministic outcomes such as ``dose``. With the seed and the training settings of
            the original they are enough to build the method again. ``steps`` is PUMA's setting
            (at most so many steps); of retraining and SISA, which have no such setting, it is
            the number of optimiser steps taken.
        diagnostics: Further numbers about the run, such as solver iterations.
        history: The loss curve of what was trained, or None.
        steps: Such numbers for each step of a method that takes several.
        row_weights: Of the first step of a method that computes ψ and λ, or None.
        preserved: The criteria that ``puma.preserve`` lists, and the retained rows' mean loss;
            none where it lists none.
    """

    method: str
    predictor: nn.Module
    deletion_set: DeletionSet
    parent_weights: str
    seconds: float
    criterion_before: float
    criterion_after: float
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    history: History | None = None
    steps: tuple[Mapping[str, float], ...] = ()
    row_weights: RowWeights | None = None
    preserved: tuple[CriterionChange, ...] = ()

    @property
    def n_removed(self) -> int:
        """Number of training rows that were removed."""
        return len(self.deletion_set)

    @property
    def criterion_drift(self) -> float:
        """Change of the retained rows' mean loss (nats); PUMA bounds its size (Eq. 2)."""
        return self.criterion_after - self.criterion_before

    def __repr__(self) -> str:
        drift = f"drift {self.criterion_drift:+.2g} nats"
        return f"Removal({self.method}: {self._what}, {self.seconds:.2f} seconds, {drift})"

    @property
    def _what(self) -> str:
        name = self.deletion_set.dataset.name
        people = len(self.deletion_set.subject_ids)
        return f"{rows_of_people(self.n_removed, people)} removed from {name!r}"

    def _repr_html_(self) -> str:
        lines: dict[str, object] = {
            "seconds": short_number(self.seconds),
            "retained loss before (nats)": short_number(self.criterion_before),
            "retained loss after (nats)": short_number(self.criterion_after),
            "drift (nats)": short_number(self.criterion_drift),
        }
        if "budget" in self.parameters:
            lines["budget (nats)"] = self.parameters["budget"]
        lines |= {
            f"drift of {each.title} (budget {each.budget:g})": short_number(each.drift)
            for each in self.preserved
        }
        if "dose" in self.parameters:
            lines["dose"] = short_number(float(self.parameters["dose"]))
        lines |= {
            name: f"{value:.0f}" if float(value).is_integer() else short_number(value)
            for name, value in self.diagnostics.items()
        }
        return html_table(f"{self.method}: {self._what}", lines.items())


@dataclass(frozen=True)
class Patch:
    """What a method's own part returns; the rest of :class:`Removal` is common to all.

    Attributes:
        predictor: The new model.
        outcomes: Deterministic results that identify it, under other names than the settings.
        diagnostics: See :class:`Removal`.
        history: See :class:`Removal`.
        steps: See :class:`Removal`.
        row_weights: See :class:`Removal`.
    """

    predictor: nn.Module
    outcomes: Mapping[str, Parameter] = field(default_factory=dict)
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    history: History | None = None
    steps: tuple[Mapping[str, float], ...] = ()
    row_weights: RowWeights | None = None
