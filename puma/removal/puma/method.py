"""PUMA, calibrated: re-weighted influence steps, as large as the measurements allow."""

from __future__ import annotations

import json

from pydantic import model_validator
from torch import nn
from tqdm.auto import tqdm

from puma.errors import SettingsError, SolverError
from puma.html_table import counted
from puma.influence import FlatModel, require_preservable
from puma.influence.criteria.own_function import FORM
from puma.progress import end_early
from puma.project.files import sha256
from puma.project.user_code import code_digest
from puma.removal.base import RemovalMethod
from puma.removal.puma.first_order_step import FirstOrderStepper
from puma.removal.puma.promises import promises, retained_data
from puma.removal.puma.stepper import Stepper
from puma.removal.puma.target_margin_step import TargetMarginStepper
from puma.removal.results import CriterionChange, Parameter, Patch, Trained
from puma.requests.deletion_set import DeletionSet
from puma.settings import OWN_CODE, PumaSettings

BOUND_BY = "bound_by"  # among a version's parameters: which budgets kept it from going further
ONE_STEP = {"steps": 1, "reference_models": 0}


class PUMA(PumaSettings, RemovalMethod):
    """Performance Unchanged Model Augmentation (Algorithm 1) with measured step sizes.

    The criterion C is the mean loss of the retained rows; ``preserve`` lists others to be kept
    beside it, each within a budget of its own. With several, ψ has a row and λ a target for each
    (Eq. 10), a step leaves all of them unchanged to first order, and is as large as every budget
    allows as measured. The curvature H is the
    Gauss-Newton matrix of the retained rows plus ``damping`` and the training's weight decay:
    the true Hessian of a ReLU network is indefinite, and the retained rows are the objective
    that the new model should minimise. ψ and λ, at the current θ:

    1. h = H⁻¹∇C, and ψ_i = hᵀ∇L_i for every training row in one forward-mode pass (Eq. 9).
    2. λ re-weights the retained rows so that Σλψ over them offsets Σψ over the marked (Eq. 10).

    Without reference models (``PUMA(**ONE_STEP)``) the step is the paper's (Eq. 11):
    θ(τ) = θ + (τ/n)·H⁻¹(Σ_marked ∇L − Σ_retained λ∇L), with the largest dose τ up to ``max_dose``
    for which |C(θ(τ)) − C(original)| ≤ ``budget`` (Eq. 2), by line search. τ = 1 is first-order
    influence removal; the paper's η on sums is τ/n. See :mod:`.first_order_step`.

    Otherwise every marked row is taken to a target margin of its own: where models that never
    saw the marked rows put it. The pool of the original predicts that from models that were
    trained once (:mod:`puma.references.pool`); a number of reference models estimates it by
    trainings for this request (:mod:`.target_margins`). One step size for all, as in
    Eq. 11, can at best be right on average: some rows are still known afterwards and others are
    pushed past retraining, and an audit finds both. λ lets the retained rows make up for it, and
    the budget bounds what the result costs. See :mod:`.target_margin_step`. Where no step comes
    nearer to the targets from the start, a first-order step of a dose of at most 1 is taken.

    Algorithm 1's last loop runs over the marked rows while λ belongs to the up-weighted ones;
    only the latter agrees with Eq. 11 and is what is computed here.

    ``remove`` raises SolverError when a solve fails, or when no weight would change;
    DeletionError when no test row is left to compare with; SettingsError for a solver that
    cannot take rows to a target margin each, or where there is no pool to take them from.

    Its diagnostics: ``level_distance`` and ``level_distance_before`` are the mean absolute
    distances from the target margins, in logits. ``level_missed`` is 1 when the margins
    are, on average, still above their targets by more than ``level_tolerance``.
    ``level_error`` is the expected error of the targets, in logits, where the pool predicts them.
    ``level_reached`` and ``level_reference`` are AUCs of the margins reached and of the targets
    against those of unseen rows, as ``attack_auc``.

    Attributes:
        damping: Added to every eigenvalue of the curvature; larger is stabler and more local.
        budget: Largest allowed change of C, in nats.
        preserve: What else is kept; see :class:`puma.settings.PreservedCriterion`. The retained
            rows' mean loss may be listed, too, with the same budget. The parameter ``bound_by``
            then names the criteria whose budgets kept the rows from their targets.
        steps: How many at most.
        max_dose: Largest step size of a first-order step.
        repair: Before every further step, lower C back towards the original by a step on the
            retained rows alone, so that the budget allows more.
        reweighting: "always" uses λ; "never" is λ = 0.
        l1: Penalty on |λ|.
        l2: Penalty on λ².
        max_weight: Bound on every |λ|.
        reference_models: "pool", or how many models the target margins are estimated with.
        reference_fraction: Share of the retained rows that each is trained on.
        reference_epochs: Share of the training's epochs that each is trained for.
        level_aim: Where the steps end: a mean distance of margins from their targets, in logits.
        level_tolerance: A mean distance that is near enough, in logits; reference models differ
            from each other by more than 1. The steps end there where it is less than level_aim.
        solver: A short name of :data:`puma.influence.SOLVERS`; with reference models dual, cg,
            dense, or woodbury, which is then a preconditioner. Conjugate gradients solve in place
            of dual where the rows are too many (:class:`puma.influence.Dual`); the diagnostic
            ``solver_rows`` is then 0, else the number of rows in the smallest factor.
        tolerance: Relative residual up to which dual refines, and at which the conjugate
            gradients stop.
        max_iterations: Of the conjugate gradients.
        rows: Of woodbury's Gauss-Newton factor.
        curvature_sample: So many retained rows, drawn with ``seed``, stand for all in H; for
            data where a pass over all rows takes as long as the removal may.
        criterion_sample: So many stand for all in C, so many marked rows are taken to their
            targets, and so many unseen ones tell what AUC that is.
        negligible: In sums of gradients rows may be left out whose loss hardly depends on the
            outputs, as long as they hold at most this share of all rows' gradients in these
            (:func:`puma.influence.weighted_gradient`); for large networks, whose passes backwards
            over rows that they predict with certainty take most of the time. 0 leaves none out.
    """

    method = "puma"
    shares_rows = True

    @model_validator(mode="after")
    def _knows_what_to_preserve(self) -> PUMA:
        for each in self.preserve:
            require_preservable(each.criterion)
        return self

    def recorded_settings(self) -> dict[str, Parameter]:
        """Return every setting as a YAML scalar; ``preserve``, where it lists something, as JSON.

        With the digest of the code of the user's own criteria, if there are any.

        Raises:
            SettingsError: Such code is not there.
        """
        recorded = super().recorded_settings()
        recorded.pop("preserve", None)
        if self.preserve:
            entries = [each.model_dump(exclude_none=True) for each in self.preserve]
            recorded["preserve"] = json.dumps(entries)
        own = [each.criterion for each in self.preserve if OWN_CODE in each.criterion]
        if own:
            digests = [code_digest(name, "criterion", FORM, SettingsError) for name in own]
            recorded["preserve_sha256"] = sha256(*digests)
        return recorded

    @property
    def idempotent(self) -> bool:
        """True with target margins; first-order steps would push removed rows further."""
        return self.reference_models != 0

    @property
    def uses_pool(self) -> bool:
        """True where the target margins come from the pool."""
        return self.reference_models == "pool"

    def _trains_anything(self, trained: Trained, deletion_set: DeletionSet) -> bool:
        if self.uses_pool and trained.pool is not None:
            return trained.pool.needs_short(deletion_set.rows.numpy())
        return self.reference_models != 0

    def _patch(self, trained: Trained, deletion_set: DeletionSet, *, progress: bool) -> Patch:
        run = self._stepper(trained, deletion_set, progress=progress)
        steps: list[dict[str, float]] = []
        row_weights = None
        label = f"puma without {counted(len(deletion_set), 'row')}"
        with tqdm(total=self.steps, desc=label, unit="step", disable=not progress) as bar:
            while len(steps) < self.steps and not run.finished:
                step = run.step(first=not steps)
                if not steps:
                    row_weights = run.row_weights
                steps.append(step)
                bar.update()
                bar.set_postfix(dose=f"{step['dose']:.3g}", drift=f"{step['drift']:+.2g}")
                if step["dose"] == 0:
                    break
            end_early(bar)
        if run.unchanged():
            raise SolverError(
                f"the removal changes no weight: the dose {steps[0]['dose']:.1e} is lost in "
                f"round-off, or {self._in_the_way(run.bound_by)}; raise "
                f"{'a budget' if self.preserve else 'budget'} or max_dose, or lower damping"
            )
        bound = {BOUND_BY: " ".join(run.bound_by) or "nothing"} if self.preserve else {}
        return Patch(
            run.flat.module(run.flat.vector),
            outcomes={"dose": sum(step["dose"] for step in steps), **bound},
            diagnostics={
                "steps": float(len(steps)),
                "solver_iterations": sum(step["iterations"] for step in steps),
                "solver_residual": max(step["residual"] for step in steps),
                "solver_rows": min(step["rows"] for step in steps),
                **run.outcome(),
            },
            steps=tuple(steps),
            row_weights=row_weights,
        )

    def _in_the_way(self, bound_by: tuple[str, ...]) -> str:
        if not self.preserve:
            return f"none keeps the budget of {self.budget:.1e} nats"
        budgets = {each.title: each.budget for each in self.promises}
        listed = ", ".join(f"{title} ({budgets[title]:.1e})" for title in bound_by or budgets)
        return f"none keeps the budgets: {listed} {'binds' if len(bound_by) == 1 else 'bind'}"

    def _preserved(
        self, trained: Trained, deletion_set: DeletionSet, predictor: nn.Module
    ) -> tuple[CriterionChange, ...]:
        if not self.preserve:
            return ()
        before, after = FlatModel(trained.predictor), FlatModel(predictor)
        kept = promises(
            self.promises,
            retained_data(trained, deletion_set),
            before,
            weight_decay=self.training.weight_decay,
        )
        return tuple(
            CriterionChange(
                each.title, each.budget, each.before, each.criterion.value(after, after.vector)
            )
            for each in kept
        )

    def _stepper(self, trained: Trained, deletion_set: DeletionSet, *, progress: bool) -> Stepper:
        if not self.reference_models:
            return FirstOrderStepper(
                self, trained, deletion_set, training=self.training, seed=self.seed
            )
        return TargetMarginStepper(
            self, trained, deletion_set, training=self.training, seed=self.seed, progress=progress
        )
