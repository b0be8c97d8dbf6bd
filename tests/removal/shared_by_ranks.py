"""What one process computes alone, and several by torchrun together; they save it by rank."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from puma.data import Dataset, Examples
from puma.errors import PumaError, RankError
from puma.influence import (
    GaussNewton,
    GaussNewtonRows,
    Hessian,
    MarginGaussNewton,
    MeanLoss,
    OwnFunction,
    SoftECE,
    directional_derivatives,
    influence_scores,
    rows_shared,
    weighted_gradient,
)
from puma.influence.flat_model import FlatModel
from puma.influence.layer_gradients import NoRuleError
from puma.influence.sharding import agreed, from_first, require_same, share, unanimous
from puma.removal import PUMA, PaperPUMA, Trained
from puma.removal.puma.method import ONE_STEP
from puma.requests.deletion_set import DeletionSet
from puma.settings import PreservedCriterion, TrainingSettings
from tests.cases import PROBLEMS, problem, random_examples

N = 23  # rows, of which 2 or 3 ranks have unequal shares
EXACT = {"tolerance": 1e-12, "training": TrainingSettings(weight_decay=0.01, epochs=3)}
REMOVALS: dict[str, dict[str, object]] = {
    **{
        f"first-order {solver} {reweighting}": {
            **EXACT,
            **ONE_STEP,
            "solver": solver,
            "reweighting": reweighting,
        }
        for solver in ("cg", "dual", "dense", "woodbury")
        for reweighting in ("always", "never")
    },
    **{
        f"target margins {solver}": {
            **EXACT,
            "reference_models": 2,
            "solver": solver,
            "steps": 3,
            "budget": 0.05,
        }
        for solver in ("cg", "dual", "dense", "woodbury")
    },
    "several criteria": {
        **EXACT,
        "reference_models": 1,
        "budget": 0.05,
        "steps": 2,
        "preserve": (
            PreservedCriterion(criterion="validation_loss", budget=0.02),
            PreservedCriterion(criterion="soft_ece", budget=0.02),
            PreservedCriterion(
                criterion="tests.removal.shared_by_ranks:largest_loss", budget=0.1, name="worst"
            ),
        ),
    },
    "samples": {
        **EXACT,
        "reference_models": 1,
        "curvature_sample": 13,
        "negligible": 0.2,
        "criterion_sample": 9,
        "solver": "woodbury",
        "rows": 7,
    },
}


def largest_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none").logsumexp(0)


def passes(name: str) -> dict[str, Tensor]:
    """Every pass over the rows of one small problem."""
    model, examples = problem(name, N)
    flat = FlatModel(model)
    generator = torch.Generator().manual_seed(5)
    vector = torch.randn(flat.size, generator=generator, dtype=flat.dtype)
    weights = torch.randn(N, generator=generator, dtype=flat.dtype)
    weights[::3] = 0
    found: dict[str, Tensor] = {
        "weighted gradient": weighted_gradient(flat, examples, weights),
        "telling rows": weighted_gradient(flat, examples, weights, negligible=0.2),
        "without what is negligible": weighted_gradient(flat, examples, weights, negligible=0.3),
        "one row": weighted_gradient(flat, examples, torch.eye(N, dtype=flat.dtype)[4]),
        "slopes": directional_derivatives(flat, examples, vector),
        "scores": influence_scores(model, examples, damping=0.5),
    }
    for criterion in (
        MeanLoss(examples, batch_size=4),
        SoftECE(examples),
        OwnFunction(largest_loss, "largest", examples),
    ):
        kind = type(criterion).__name__
        found[f"{kind} value"] = torch.tensor(criterion.value(flat, flat.vector))
        found[f"{kind} gradient"] = criterion.gradient(flat)
    few = examples.subset(torch.tensor([3, 8]))
    margins = MarginGaussNewton(flat, few)
    matrices = {
        "Gauss-Newton": GaussNewton(flat, examples, batch_size=5),
        "Gauss-Newton, recomputed": GaussNewton(flat, examples, cache_bytes=0),
        "Hessian": Hessian(flat, examples),
        "margins": margins,
    }
    found |= {kind: matrix @ vector for kind, matrix in matrices.items()}
    found["pulled"] = margins.pulled(torch.tensor([2.0, -1.0]))
    try:
        found["rows"] = margins.rows().double() @ vector
        for rows in (None, 5):
            found[f"{rows} drawn rows"] = GaussNewtonRows(flat, examples, rows=rows) @ vector
    except NoRuleError:
        assert name in ("tied",)
    return found


def removals(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """The weights after each kind of removal, then the two losses and the number of steps."""
    trained, deletion_set = removal_problem(dtype)
    found = {}
    for name, settings in REMOVALS.items():
        done = PUMA(**settings).remove(trained, deletion_set, progress=False)
        weights = nn.utils.parameters_to_vector(done.predictor.parameters()).detach()
        numbers = [done.criterion_before, done.criterion_after, len(done.steps)]
        numbers += [number for each in done.preserved for number in each.metrics.values()]
        found[name] = torch.cat([weights, torch.tensor(numbers, dtype=weights.dtype)])
    return found


def removal_problem(dtype: torch.dtype = torch.float64) -> tuple[Trained, DeletionSet]:
    """Two of 47 rows are to be removed; of three ranks, one has none of them."""
    model, _ = problem("mlp")
    rows = {
        kind: random_examples(count, 3, seed=seed, dtype=dtype)
        for seed, (kind, count) in enumerate({"train": 47, "test": 20, "validation": 31}.items())
    }
    named = {
        kind: Examples.of(each.features, each.labels, [f"{kind}-{row}" for row in range(len(each))])
        for kind, each in rows.items()
    }
    data = Dataset(
        "random", named["train"], named["test"], ("a", "b", "c"), validation=named["validation"]
    )
    trained = Trained(model.to(dtype).eval(), data, model.to(dtype))
    return trained, DeletionSet.of(["train-5", "train-31"], data)


def agreements() -> dict[str, Tensor]:
    """What ranks decide together, as numbers: each gives its rank, or is the one to refuse."""
    rank = torch.distributed.get_rank()

    def refuses() -> float:
        if rank == 1:
            raise NoRuleError("mine")
        return 1.0

    return {
        "agreed": torch.tensor([agreed(float(rank)), float(agreed(torch.tensor([rank])))]),
        "from rank 0": torch.tensor(from_first(lambda: rank)),
        "refused": torch.tensor(_raises(NoRuleError, lambda: unanimous(refuses, NoRuleError))),
        "unlike": torch.tensor(_raises(RankError, lambda: require_same("numbers", str(rank)))),
        "no training": torch.tensor(_raises(PumaError, _retrain)),
        "shares": torch.tensor([share(N).start, share(N).stop]),
    }


def _retrain() -> None:
    PaperPUMA().remove(*removal_problem(), progress=False)


def _raises(kind: type[Exception], work: Callable[[], object]) -> bool:
    try:
        work()
    except kind:
        return True
    return False


def everything() -> dict[str, dict[str, Tensor]]:
    return {"removals": removals(), **{name: passes(name) for name in PROBLEMS}}


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    with rows_shared():
        results = everything() | {"agreements": agreements()}
    torch.save(results, Path(sys.argv[1]) / f"{torch.distributed.get_rank()}.pt")
    torch.distributed.destroy_process_group()
