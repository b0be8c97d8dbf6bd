"""One measurement of ψ by PUMA or by another library, in a process of its own.

    python benchmarks/peer_methods.py METHOD problem.pt result.pt

Imports nothing of PUMA but for PUMA's own method, so that the others run in an environment that
has them and not PUMA. Every method gets the same trained network, the same training rows, and the
mean loss of the same validation rows as the criterion; each by its own fastest public way that
the documentation names, in batches of 1,000. The result has the scores, the seconds (wall and CPU,
of one thread, without imports), by how many MB the resident memory rose, and, of those that solve,
H⁻¹∇C.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

BATCH = 1000
NYSTROM_RANK = 100
TOLERANCE = 1e-4  # on the relative residual, where a solver takes one
MORE_THAN_ENOUGH = 1000  # iterations
DATTRI_ITERATIONS = 10  # its default; it takes no tolerance, and always makes all of them
Found = tuple[Tensor, Tensor | None]  # scores (n,), and H⁻¹∇C (p,)


@dataclass(frozen=True)
class Problem:
    """A trained MLP and its data: features (n, d) and (m, d), labels (n,) and (m,)."""

    widths: tuple[int, ...]
    weights: dict[str, Tensor]
    features: Tensor
    labels: Tensor
    unseen: Tensor
    unseen_labels: Tensor
    damping: float

    @property
    def model(self) -> nn.Sequential:
        """The trained network."""
        model = network(self.widths)
        model.load_state_dict(self.weights)
        return model.eval()

    @property
    def rows(self) -> TensorDataset:
        """The training rows."""
        return TensorDataset(self.features, self.labels)

    def loader(self) -> DataLoader[Any]:
        """The training rows, in order."""
        return DataLoader(self.rows, batch_size=BATCH)

    def criterion_gradient(self, model: nn.Module) -> Tensor:
        """(p,) ∇C by one backward pass."""
        loss = cross_entropy(model(self.unseen), self.unseen_labels)
        return torch.cat(
            [each.flatten() for each in torch.autograd.grad(loss, [*model.parameters()])]
        )


def network(widths: tuple[int, ...]) -> nn.Sequential:
    """Linear layers with ReLU between them, with random weights."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def puma(problem: Problem, solver: str) -> Found:
    """``influence_scores``."""
    from puma.data import Examples
    from puma.influence import MeanLoss, influence_scores

    train = Examples.of(problem.features, problem.labels)
    unseen = Examples.of(problem.unseen, problem.unseen_labels)
    criterion = MeanLoss(unseen)
    return influence_scores(
        problem.model, train, criterion=criterion, damping=problem.damping, solver=solver
    ), None


def puma_inverse(problem: Problem) -> Found:
    """H⁻¹∇C alone, by conjugate gradients."""
    from puma.data import Examples
    from puma.influence import ConjugateGradients, FlatModel, GaussNewton, Shifted

    model = problem.model
    flat = FlatModel(model)
    train = Examples.of(problem.features, problem.labels)
    operator = Shifted(GaussNewton(flat, train), problem.damping)
    solver = ConjugateGradients(tolerance=TOLERANCE)
    return problem.features.new_zeros(0), solver.solve(
        operator, problem.criterion_gradient(model)
    ).value


def pydvl(problem: Problem, kind: str) -> Found:
    """Conjugate gradients on the Hessian, or the Nyström sketch, of a mean gradient."""
    from pydvl.influence.torch import CgInfluence, NystroemSketchInfluence

    model = problem.model
    if kind == "cg":
        influence = CgInfluence(
            model, cross_entropy, problem.damping, rtol=TOLERANCE, maxiter=MORE_THAN_ENOUGH
        )
    else:
        influence = NystroemSketchInfluence(model, cross_entropy, problem.damping, NYSTROM_RANK)
    influence = influence.fit(problem.loader())
    # The factors are linear in the gradients, and those of a batch come row by row: the operator
    # takes the mean of them as one vector.
    (block,) = influence.block_mapper.composable_block_dict.values()
    inverse = block.op.apply(problem.criterion_gradient(model)[None])
    parts = [
        influence.influences_from_factors(inverse, features, labels)
        for features, labels in problem.loader()
    ]
    return torch.cat(parts, 1)[0].detach(), inverse[0].detach()


def captum_tracin(problem: Problem) -> Found:
    """TracIn of the last layer at the final weights: no curvature."""
    from captum.influence import TracInCPFast

    model = problem.model
    tracin = TracInCPFast(
        model,
        model[-1],
        problem.rows,
        checkpoints=[problem.weights],
        checkpoints_load_func=lambda network, weights: network.load_state_dict(weights) and 1.0,
        loss_fn=nn.CrossEntropyLoss(reduction="sum"),
        batch_size=BATCH,
    )
    scores: Tensor = tracin.influence((problem.unseen, problem.unseen_labels))
    return scores.mean(0).detach(), None


def dattri_cg(problem: Problem) -> Found:
    """Conjugate gradients on the Hessian; the validation rows are one test point."""
    from dattri.algorithm.influence_function import IFAttributorCG
    from dattri.task import AttributionTask

    model = problem.model

    def loss(parameters: Any, data: Any) -> Tensor:
        features, labels = data
        outputs = torch.func.functional_call(model, parameters, (features,))
        return cross_entropy(outputs, labels)

    def of_all_unseen(parameters: Any, data: Any) -> Tensor:
        return loss(parameters, tuple(each[0] for each in data))

    task = AttributionTask(loss, model, problem.weights, target_func=of_all_unseen)
    attributor = IFAttributorCG(task, max_iter=DATTRI_ITERATIONS, regularization=problem.damping)
    # The Hessian is that of all rows in one batch, as the documentation says.
    attributor.cache(DataLoader(problem.rows, batch_size=len(problem.rows)))
    point = (problem.unseen[None, None], problem.unseen_labels[None, None])
    inverse = attributor.transform_test_rep(0, attributor.generate_test_rep(0, point))
    parts = [
        attributor.generate_train_rep(0, tuple(each[None] for each in batch)) @ inverse[0]
        for batch in problem.loader()
    ]
    return torch.cat(parts).detach(), inverse[0].detach()


def kronfluence_ekfac(problem: Problem) -> Found:
    """EK-FAC, the library's default, with the query gradients aggregated."""
    import tempfile

    from kronfluence.analyzer import Analyzer, prepare_model
    from kronfluence.arguments import FactorArguments, ScoreArguments
    from kronfluence.task import Task

    class Classification(Task):  # type: ignore[misc]
        def compute_train_loss(self, batch: Any, model: nn.Module, sample: bool = False) -> Tensor:
            logits, labels = model(batch[0]), batch[1]
            if sample:
                labels = torch.distributions.Categorical(logits=logits.detach()).sample()
            return cross_entropy(logits, labels, reduction="sum")

        def compute_measurement(self, batch: Any, model: nn.Module) -> Tensor:
            return cross_entropy(model(batch[0]), batch[1], reduction="sum")

    unseen = TensorDataset(problem.unseen, problem.unseen_labels)
    with tempfile.TemporaryDirectory() as folder:
        task = Classification()
        model = prepare_model(problem.model, task)
        analyzer = Analyzer(
            "puma", model, task, cpu=True, disable_model_save=True, disable_tqdm=True,
            output_dir=folder,
        )  # fmt: skip
        analyzer.fit_all_factors(
            "ekfac", problem.rows, per_device_batch_size=BATCH,
            factor_args=FactorArguments(strategy="ekfac"),
        )  # fmt: skip
        analyzer.compute_pairwise_scores(
            "scores", "ekfac", unseen, problem.rows,
            per_device_query_batch_size=BATCH, per_device_train_batch_size=BATCH,
            score_args=ScoreArguments(
                damping_factor=problem.damping, aggregate_query_gradients=True
            ),
        )  # fmt: skip
        scores = analyzer.load_pairwise_scores("scores")["all_modules"][0]
    return scores / len(unseen), None


def curvlinops_inverse(problem: Problem) -> Found:
    """H⁻¹∇C alone: conjugate gradients on the generalised Gauss-Newton matrix."""
    from curvlinops import CGInverseLinearOperator, GGNLinearOperator
    from curvlinops.examples import IdentityLinearOperator

    model = problem.model
    parameters = [each for each in model.parameters() if each.requires_grad]
    matrix = GGNLinearOperator(
        model, nn.CrossEntropyLoss(), parameters, [*problem.loader()], check_deterministic=False
    )
    shapes = [each.shape for each in parameters]
    identity = IdentityLinearOperator(shapes, torch.device("cpu"), torch.float32)
    inverse = CGInverseLinearOperator(
        matrix + problem.damping * identity,
        eps=0, tolerance=TOLERANCE, max_iter=MORE_THAN_ENOUGH, max_tridiag_iter=0,
    )  # fmt: skip
    return problem.features.new_zeros(0), inverse @ problem.criterion_gradient(model)


METHODS: dict[str, Callable[[Problem], Found]] = {
    "puma": partial(puma, solver="cg"),
    "puma_woodbury": partial(puma, solver="woodbury"),
    "pydvl_cg": partial(pydvl, kind="cg"),
    "pydvl_nystroem": partial(pydvl, kind="nystroem"),
    "captum_tracin": captum_tracin,
    "dattri_cg": dattri_cg,
    "kronfluence_ekfac": kronfluence_ekfac,
    "puma_inverse": puma_inverse,
    "curvlinops_inverse": curvlinops_inverse,
}
OWN = ("puma", "puma_woodbury", "puma_inverse")
SOLVES_ALONE = ("puma_inverse", "curvlinops_inverse")


def peak() -> float:
    """MB that this process ever held. getrusage would tell of the process that started it, too."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main(method: str, source: str, target: str) -> None:
    """Measure ``method`` on the problem in the file ``source``."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    problem = Problem(**torch.load(source))
    few = slice(0, 2 * BATCH)  # what a library imports and compiles on first use is no part of it
    warm = {name: value[few] for name, value in vars(problem).items() if isinstance(value, Tensor)}
    METHODS[method](Problem(**{**vars(problem), **warm}))
    memory = peak()
    wall, cpu = time.perf_counter(), time.process_time()
    scores, inverse = METHODS[method](problem)
    result = {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "megabytes": peak() - memory,
        "scores": scores,
        "inverse": inverse,
    }
    torch.save(result, target)


if __name__ == "__main__":
    main(*sys.argv[1:])
