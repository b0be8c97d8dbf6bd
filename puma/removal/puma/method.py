"""PUMA, calibrated: re-weighted influence steps, as large as the measurements allow."""

from __future__ import annotations

from tqdm import tqdm

from puma.errors import SolverError
from puma.removal.base import Patch, RemovalMethod, Trained
from puma.removal.puma.first_order_step import TextbookStepper
from puma.removal.puma.step import Stepper
from puma.removal.puma.target_margin_step import LevelStepper
from puma.requests.deletion_set import DeletionSet
from puma.settings import PumaSettings

ONE_STEP = {"steps": 1, "reference_models": 0, "reweighting": "always"}


class PUMA(PumaSettings, RemovalMethod):
    """Performance Unchanged Model Augmentation (Algorithm 1) with measured doses.

    The criterion C is the mean cross-entropy of the retained rows. The curvature H is the
    Gauss-Newton matrix of the retained rows plus ``damping`` and the training's weight decay:
    the true Hessian of a ReLU network is indefinite, and the retained rows are the objective
    that the new model should minimise. ψ and λ, at the current θ:

    1. h = H⁻¹∇C, and ψ_i = hᵀ∇L_i for every training row in one forward-mode pass (Eq. 9).
    2. λ re-weights the retained rows so that Σλψ over them offsets Σψ over the marked (Eq. 10).

    Without reference models (``PUMA(**ONE_STEP)``) the step is the paper's (Eq. 11):
    θ(τ) = θ + (τ/n)·H⁻¹(Σ_marked ∇L − Σ_retained λ∇L), with the largest dose τ up to ``max_dose``
    for which |C(θ(τ)) − C(original)| ≤ ``budget`` (Eq. 2), by line search. τ = 1 is the textbook
    first-order removal; the paper's η on sums is τ/n. See :mod:`.first_order_step`.

    With reference models every marked row has a dose of its own, which takes it to its level:
    where models that never saw the marked rows put it (:mod:`.target_margins`). One dose
    for all, as in Eq. 11, can at best be right on average: some rows then stay known and others
    are pushed past retraining, and an audit tells either. λ lets the retained rows make up for
    it, and the budget bounds what the result costs. See :mod:`.target_margin_step`. Where no step
    comes nearer from the start, one of at most the textbook's dose is taken all the same.

    Algorithm 1's last loop runs over the marked rows while λ belongs to the up-weighted ones;
    only the latter agrees with Eq. 11 and is what is computed here.

    damping: added to every eigenvalue of the curvature; larger is stabler and more local.
    budget: largest allowed change of C, in nats.
    steps: how many at most.
    max_dose: of the textbook's step alone.
    repair: before every further step, lower C back towards the original by a step on the
        retained rows alone, so that the budget allows more.
    reweighting: 'both' tries λ and λ = 0 and keeps what comes nearer to the level or, without
        one, forgets more; 'always', 'never'.
    l1, l2: penalties on λ. max_weight: bound on every |λ|.
    reference_models, reference_fraction, reference_epochs: how many models tell the level, on
        which share of the retained rows, for which share of the training's epochs.
    level_tolerance: how near to the level is near enough, as a mean distance of logit margins;
        reference models differ from each other by more than 1.
    solver: a short name of :data:`puma.influence.SOLVERS`; with a level cg, dense, or woodbury,
        which is then a preconditioner. tolerance, max_iterations: of the conjugate gradients,
        relative residual. rows: of woodbury's Gauss-Newton factor.
    curvature_sample, criterion_sample: so many retained rows, drawn with ``seed``, stand for all
        in H and in C, and so many marked rows are taken to their level; for data where a pass
        over all rows takes as long as the removal may.
    dose_precision: relative, of the textbook's step.

    Raises SolverError when a solve fails, or when no weight would change; DeletionError when
    no test row is left to compare with; SettingsError for a solver that cannot take rows to a
    level each.

    Diagnostics: ``level_distance`` and ``level_distance_before``, mean absolute distances in
    logits; ``forgetting_incomplete`` is 1 when the rows are, on average, still surer than their
    level by more than ``level_tolerance``; ``level_reached`` and ``level_reference`` are AUCs, as
    ``attack_auc``.
    """

    method = "puma"

    @property
    def idempotent(self) -> bool:
        """With a level. The textbook's step would push rows that are gone further."""
        return self.reference_models > 0

    def _patch(self, trained: Trained, deletion_set: DeletionSet, *, progress: bool) -> Patch:
        run: Stepper
        if self.reference_models:
            run = LevelStepper(self, trained, deletion_set, progress=progress)
        else:
            run = TextbookStepper(self, trained, deletion_set)
        steps: list[dict[str, float]] = []
        label = f"puma without {len(deletion_set)} rows"
        with tqdm(total=self.steps, desc=label, unit="step", disable=not progress) as bar:
            while len(steps) < self.steps and not run.finished:
                step = run.step(first=not steps)
                steps.append(step)
                bar.update()
                bar.set_postfix(dose=f"{step['dose']:.3g}", drift=f"{step['drift']:+.2g}")
                if step["dose"] == 0:
                    break
        if run.unchanged():
            raise SolverError(
                f"the removal changes no weight: the dose {steps[0]['dose']:.1e} is lost in "
                f"round-off, or none keeps the budget of {self.budget:.1e} nats; raise budget or "
                "max_dose, or lower damping"
            )
        return Patch(
            run.model,
            parameters={
                "dose": sum(step["dose"] for step in steps),
                "damping": self.damping,
                "budget": self.budget,
                "solver": self.solver,
                "reweighting": self.reweighting,
                "reference_models": self.reference_models,
            },
            diagnostics={
                "steps": float(len(steps)),
                "solver_iterations": sum(step["iterations"] for step in steps),
                "solver_residual": max(step["residual"] for step in steps),
                **run.outcome(),
            },
            steps=tuple(steps),
        )
