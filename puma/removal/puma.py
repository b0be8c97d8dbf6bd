"""PUMA, calibrated: re-weighted influence steps, each as large as the measurements allow."""

from __future__ import annotations

from tqdm import tqdm

from puma.deletion import DeletionSet
from puma.errors import SolverError
from puma.removal.base import Patch, RemovalMethod, Trained
from puma.removal.stepping import Stepper
from puma.settings import PumaSettings

ONE_STEP = {"steps": 1, "reference_models": 0, "reweighting": "always"}


class PUMA(PumaSettings, RemovalMethod):
    """Performance Unchanged Model Augmentation (Algorithm 1) with measured doses.

    The criterion C is the mean cross-entropy of the retained rows. The curvature H is the
    Gauss-Newton matrix of the retained rows plus ``damping`` and the training's weight decay:
    the true Hessian of a ReLU network is indefinite, and the retained rows are the objective
    that the new model should minimise. One step, at the current θ:

    1. h = H⁻¹∇C, and ψ_i = hᵀ∇L_i for every training row in one forward-mode pass (Eq. 9).
    2. λ re-weights the retained rows so that Σλψ over them offsets Σψ over the marked (Eq. 10).
    3. θ(τ) = θ + (τ/n)·H⁻¹(Σ_marked ∇L − Σ_retained λ∇L) (Eq. 11). τ = 1 is the textbook
       first-order removal; the paper's η on sums is τ/n.
    4. τ: the largest dose up to ``max_dose`` with |C(θ(τ)) − C(original)| ≤ ``budget`` (Eq. 2)
       and with the marked rows not beyond the reference level, by line search on both.

    The reference level is where a model that never saw the marked rows would put them among
    unseen ones (:mod:`puma.removal.reference`); rows that stand there already are pushed no
    further. Every step but the last covers at most half of what is missing, so that the next
    can look again. Where they stand at the level from the start, one step of at most the
    textbook dose is taken all the same. Without reference models the budget alone stops it.

    Algorithm 1's last loop runs over the marked rows while λ belongs to the up-weighted ones;
    only the latter agrees with Eq. 11 and is what is computed here.

    damping: added to every eigenvalue of the curvature; larger is stabler and more local.
    budget: largest allowed change of C, in nats.
    steps: how many at most. One step without reference: ``PUMA(**ONE_STEP)``.
    repair: before every further step, lower C back towards the original by a step on the
        retained rows alone, so that the budget allows more.
    reweighting: 'both' tries λ and λ = 0 and keeps what forgets more; 'always', 'never'.
    l1, l2: penalties on λ. max_weight: bound on every |λ|.
    reference_models, reference_fraction, reference_epochs: how many models tell the level, on
        which share of the retained rows, for which share of the training's epochs.
    level_tolerance: how near to the level, as a mean rank, is near enough.
    solver: a short name of :data:`puma.influence.SOLVERS`. tolerance, max_iterations: of the
        conjugate gradients, relative residual. rows: of woodbury's Gauss-Newton factor.
    curvature_sample, criterion_sample: so many retained rows, drawn with ``seed``, stand for all
        in H and in C; for data where a pass over all rows takes as long as the removal may.
    dose_precision: relative.

    Raises SolverError when a solve fails, or when no weight would change; DeletionError when
    no test row is left to compare with.

    Diagnostics: ``forgetting_incomplete`` is 1 when the budget or the steps ended before the
    level was reached; ``level_reached`` and ``level_reference`` are AUCs, as ``attack_auc``.
    """

    method = "puma"
    small = {"level_tolerance": 1.0}  # noqa: RUF012

    def _patch(self, trained: Trained, deletion_set: DeletionSet, *, progress: bool) -> Patch:
        run = Stepper(self, trained, deletion_set, progress=progress)
        steps: list[dict[str, float]] = []
        label = f"puma without {len(deletion_set)} rows"
        with tqdm(total=self.steps, desc=label, unit="step", disable=not progress) as bar:
            while len(steps) < self.steps and (not steps or run.missing() > self.level_tolerance):
                step = run.step(first=not steps, last=len(steps) + 1 == self.steps)
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
        diagnostics = {
            "steps": float(len(steps)),
            "solver_iterations": sum(step["iterations"] for step in steps),
            "solver_residual": max(step["residual"] for step in steps),
        }
        if run.goal is not None:
            diagnostics |= {
                "level_reached": 1 - float(run.ranks().mean()),
                "level_reference": 1 - float(run.goal.mean()),
                "forgetting_incomplete": float(run.missing() > self.level_tolerance),
            }
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
            diagnostics=diagnostics,
            steps=tuple(steps),
        )
