"""The pool: models that each leave out other people, and what they tell of any request.

docs/method.md has the derivation and what was measured.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from puma.data.base import Dataset
from puma.errors import AuditError
from puma.project.files import PRIVATE, write_bytes
from puma.references.kernel_ridge import LeaveOutRidge
from puma.references.partitions import PARTS
from puma.references.population import Array, Mask, Population, stored_arrays
from puma.references.regression import Regression, weighted_mean

ANCHOR = 8.0  # the models of everybody count as so many of those that leave a row out
SMALL_SHARE = 0.02  # of the training rows: for fewer the kernel alone is as good or better
LARGE_SHARE = 0.1  # of the training rows: for more, short trainings are worth any gain
SHORT_GAIN = 0.1  # of the held-out error: by less they are not worth their price for fewer rows
PARTS_STORED = ("margins", "correct", "member")  # of a population

Half = Literal["removal", "audit"]
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """What models retrained without a request are expected to predict.

    Attributes:
        margins: (N,) expected margins of every row, in logits.
        draws: (k, N) margins of k such models: the expected ones, and deviations that models of
            the pool showed from what the others of it predicted for them.
        correct: (k, N) whether these predict the labels.
        error: Root mean square error of ``margins``, in logits, beyond chance: estimated by
            leaving partitions out.
    """

    margins: Array
    draws: Array
    correct: Mask
    error: float


@dataclass(frozen=True, eq=False, repr=False)
class _Fit:
    """What the k' models of a half of the pool, or of all of it, say of every request alike.

    Attributes:
        regression: Of the margins, over these models.
        out: (k', N) which rows each of them has not seen.
        mean: (N,) margins of those that have seen a row, on average.
        held_out: (k', N) what each is above what the other partitions predict for it.
        from_mean: (k', N) what each is above ``mean``.
        error: That of a :class:`Prediction`.
    """

    regression: Regression
    out: Mask
    mean: Array
    held_out: Array
    from_mean: Array
    error: float

    def deviations(self, rows: Rows) -> Array:
        """(k', N) deviations of these models, were they trained without the training ``rows``.

        A row that a model saw has no such deviation. Its own from the models that saw it stands
        for it, as wide as the others' are on the request's rows: the rows of one model move
        together, and this keeps them together.
        """
        deviations = np.where(self.out, self.held_out, self.from_mean)
        out, others = self.out[:, rows], self.from_mean[:, rows]
        found = deviations[:, rows]
        wide = np.sqrt(np.square(found[out]).mean()) if len(rows) else 0.0
        narrow = np.sqrt(np.square(others[~out]).mean()) if len(rows) else 1.0
        scale = wide / narrow if narrow > 0 else 1.0
        deviations[:, rows] = np.where(out, found, others * scale)
        return deviations


@dataclass(frozen=True, eq=False, repr=False)
class Pool:
    """Models trained once, with the original, that serve every request.

    A margin of a row that a model has not seen depends on which other rows it has not seen,
    either. Surrogates say how: ridge regression with the kernel of the margins, refitted without
    these rows; and for more than :data:`SMALL_SHARE` of the rows a short training without them,
    where this predicts the pool's own models better. Data with too many rows for the kernel have
    the short training alone. The margin is regressed on them
    (:class:`puma.references.regression.Regression`), over the models that left the row out, and,
    :data:`ANCHOR` times, the mean of the models of everybody.

    One half of the partitions steers removals, and the other is for audits, so that no verdict
    rests on the numbers that steered.

    Attributes:
        left_out: (k, N) models that each leave out a part of the people, four of every partition.
        everybody: (w, N) models of everybody.
        ridge: Kernel ridge regression of the margins; None where the kernel would be too large.
        short: (k + 1, N) mean margins of short trainings without the same rows, and of
            everybody; see :mod:`puma.references.short_training`.
        starts: (copies, p) initial weights of the short trainings.
        data_digest: Of the dataset.
        short_margins: Margins after short trainings without a request, by its rows: filled by
            who trains them, so that a removal and its audit share them.

    Raises:
        AuditError: Shapes disagree.
    """

    left_out: Population
    everybody: Population
    ridge: LeaveOutRidge | None
    short: Array
    starts: Array
    data_digest: str
    short_margins: dict[bytes, Array] = field(default_factory=dict, init=False)
    _fits: dict[tuple[Half | None, bool], _Fit] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        models, rows = self.left_out.margins.shape
        partitions = models // PARTS
        if models % PARTS or partitions < 4 or partitions % 2 or self.short.shape[0] != models + 1:
            raise AuditError(
                f"a pool has {PARTS} models for each of an even number of partitions, at least 4, "
                f"got {models} models and {self.short.shape[0]} short trainings; train it again"
            )
        others = [self.everybody.margins.shape[1], self.short.shape[1]]
        if self.ridge is not None:
            others.append(len(self.ridge.kernel))
        if any(other != rows for other in others):
            raise AuditError("the parts of the pool are of different rows; train it again")

    def __repr__(self) -> str:
        return f"Pool(models={len(self.left_out)}, everybody={len(self.everybody)})"

    @property
    def n_train(self) -> int:
        """How many of the rows are for training; they come first."""
        return int(self.everybody.member[0].sum())

    def require(self, dataset: Dataset) -> None:
        """Raise AuditError unless the pool was trained on ``dataset``."""
        if self.data_digest != dataset.digest:
            raise AuditError(
                f"the pool was trained on other data than this {dataset.name!r}; run `dvc repro` "
                "to train it on these"
            )

    def needs_short(self, rows: Rows) -> bool:
        """Whether a request of these training rows takes short trainings."""
        if self.ridge is None:
            return True
        share = len(rows) / self.n_train
        if share > LARGE_SHARE:
            return self.short_gain > 0
        return share > SMALL_SHARE and self.short_helps

    def predict(self, rows: Rows, *, half: Half | None = None) -> Prediction:
        """Predict the margins of models retrained without the (m,) training ``rows``.

        Args:
            rows: Ascending places of the request's training rows.
            half: Which partitions to use; None takes all.

        Raises:
            AuditError: The request takes short trainings, and ``short_margins`` has none.
        """
        needs_short = self.needs_short(rows)
        at = [] if self.ridge is None else [self.ridge.without(rows)]
        if needs_short:
            if rows.tobytes() not in self.short_margins:
                raise AuditError(
                    f"a request of {len(rows)} rows takes short trainings; call "
                    "puma.references.train_short first"
                )
            at.append(self.short_margins[rows.tobytes()])
        fit = self._fit(half, short=needs_short)
        margins = fit.regression.predict(at)
        seen = np.zeros(margins.shape, dtype=bool)
        seen[: self.n_train] = True
        seen[rows] = False
        margins = np.where(seen, fit.mean, margins)
        draws = margins + fit.deviations(rows)
        return Prediction(margins, draws, draws > self._threshold, fit.error)

    def held_out(self) -> tuple[Array, Array]:
        """What the other partitions predict for the rows that each model left out, and the truth.

        Returns:
            Two (pairs,) arrays of margins, in logits: predicted, and of the models themselves.
        """
        out, surrogates = self._trained_out, self._surrogates(short=self.short_helps)
        return self._held_out(self._models(None), surrogates)[out], self.left_out.margins[out]

    def save(self, path: Path) -> None:
        """Write it, whole or not at all, for the owner alone: it holds predictions of rows."""
        buffer = io.BytesIO()
        matrices: dict[str, Any] = {}
        if self.ridge is not None:
            matrices = {
                "kernel": self.ridge.kernel.astype(np.float32),
                "inverse": self.ridge.inverse.astype(np.float32),
            }
            if self.ridge.labels is not None:
                matrices["labels"] = self.ridge.labels
        np.savez_compressed(
            buffer,
            **matrices,
            short=self.short,
            starts=self.starts,
            data_digest=self.data_digest,
            **{
                f"{name}_{part}": getattr(population, part)
                for name, population in (("out", self.left_out), ("all", self.everybody))
                for part in PARTS_STORED
            },
        )
        write_bytes(path, buffer.getvalue(), mode=PRIVATE)

    @classmethod
    def load(cls, path: Path) -> Pool:
        """Read what :meth:`save` wrote.

        Raises:
            AuditError: The file is absent, or PUMA did not write it.
        """
        with stored_arrays(path, "pool", "pool") as stored:
            out, everybody = (
                Population(*(stored[f"{name}_{part}"] for part in PARTS_STORED))
                for name in ("out", "all")
            )
            ridge = None
            if "kernel" in stored:
                ridge = LeaveOutRidge(
                    stored["kernel"].astype(np.float64),
                    stored["inverse"].astype(np.float64),
                    stored.get("labels"),
                )
            return cls(
                out,
                everybody,
                ridge,
                stored["short"],
                stored["starts"],
                str(stored["data_digest"]),
            )

    @property
    def short_helps(self) -> bool:
        """Whether short trainings are worth their price, but for the largest requests."""
        return self.ridge is None or self.short_gain > SHORT_GAIN

    @cached_property
    def short_gain(self) -> float:
        """Which share of the held-out error short trainings beside the kernel take away.

        Of the root mean square over all partitions; negative where they do harm.
        """
        every, out = self._models(None), self._trained_out
        without, with_short = (
            np.square((self._held_out(every, surrogates) - self.left_out.margins)[out]).mean()
            for surrogates in (self._surrogates(short=False), self._surrogates(short=True))
        )
        return 1 - float(np.sqrt(with_short / without)) if without > 0 else 0.0

    def _surrogates(self, *, short: bool) -> list[Array]:
        """(k + 1, N) each: of the kernel, where there is one, and of the short trainings."""
        return [
            *([] if self.ridge is None else [self._ridge_features]),
            *([self.short] if short else []),
        ]

    @cached_property
    def groups(self) -> list[Rows]:
        """The ascending training rows that each model leaves out."""
        return [np.flatnonzero(~line[: self.n_train]) for line in self.left_out.member]

    @cached_property
    def _trained_out(self) -> Mask:
        """(k, N) which training rows each model leaves out."""
        out = ~self.left_out.member
        out[:, self.n_train :] = False
        return out

    @cached_property
    def _ridge_features(self) -> Array:
        """(k + 1, N) predictions of the kernel ridge regression for the same models."""
        assert self.ridge is not None
        none = np.zeros(0, dtype=np.int64)
        return np.stack([self.ridge.without(rows) for rows in (*self.groups, none)])

    @cached_property
    def _threshold(self) -> float:
        """The margin that best divides right from wrong predictions: 0 for two classes."""
        margins = np.concatenate([self.left_out.margins, self.everybody.margins])
        correct = np.concatenate([self.left_out.correct, self.everybody.correct])
        order = np.argsort(margins, axis=None)
        values, right = margins.ravel()[order], correct.ravel()[order]
        # Errors of the rule "right above value i": rights up to it, and wrongs above it.
        errors = np.cumsum(right) + (~right).sum() - np.cumsum(~right)
        if errors.min() >= (~right).sum():
            return float(values[0]) - 1.0
        best = int(errors.argmin())
        if values[best] < 0 < values[min(best + 1, len(values) - 1)]:
            return 0.0
        return float(values[best])

    def _models(self, half: Half | None) -> Rows:
        """The models of the partitions of a half; each half has all scales."""
        partition = np.arange(len(self.left_out)) // PARTS
        if half is None:
            return np.arange(len(partition))
        return np.flatnonzero((partition + partition // 4) % 2 == (half == "audit"))

    def _regression(self, models: Rows, surrogates: list[Array]) -> Regression:
        """Fit it over ``models``, and everybody's mean, with (k + 1, N) of each surrogate."""
        everybody = self.everybody.margins.mean(0)
        lines = np.append(models, len(self.left_out))
        weight = np.vstack([~self.left_out.member[models], np.full(len(everybody), ANCHOR)])
        return Regression(
            np.vstack([self.left_out.margins[models], everybody]),
            weight.astype(float),
            [each[lines] for each in surrogates],
            trained=self.n_train,
        )

    def _held_out(self, models: Rows, surrogates: list[Array]) -> Array:
        """(k', N) what the models of the other partitions predict for each of the models."""
        found = np.empty((len(models), self.left_out.margins.shape[1]))
        partitions = models // PARTS
        for partition in np.unique(partitions):
            held = partitions == partition
            regression = self._regression(models[~held], surrogates)
            found[held] = [
                regression.predict([each[model] for each in surrogates]) for model in models[held]
            ]
        return found

    def _fit(self, half: Half | None, *, short: bool) -> _Fit:
        """The one of a half, with short trainings or without, which serves every request."""
        known = self._fits.get((half, short))
        if known is None:
            known = self._fitted(self._models(half), self._surrogates(short=short))
            self._fits[half, short] = known
        return known

    def _fitted(self, models: Rows, surrogates: list[Array]) -> _Fit:
        regression = self._regression(models, surrogates)
        out = ~self.left_out.member[models]
        own = self.left_out.margins[models]
        mean = weighted_mean(own, (~out).astype(float))
        held_out = own - self._held_out(models, surrogates)
        trained = slice(0, self.n_train)
        total = np.square(held_out[:, trained])[out[:, trained]].mean()
        residuals, shown = (each[:-1, trained][out[:, trained]] for each in regression.residuals())
        chance = np.square(residuals).sum() / shown.sum()
        error = float(np.sqrt(max(0.0, total - chance)))
        return _Fit(regression, out, mean, held_out, own - mean, error)
