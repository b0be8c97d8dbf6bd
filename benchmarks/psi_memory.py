"""Peak memory of the scores ψ at n and at 4n examples, beside per-example gradients.

    OMP_NUM_THREADS=1 python -m benchmarks psi-memory

Each measurement is a process of its own. What counts is the rise of its resident memory above
where it stood when data and model were in place. ψ by one forward-mode pass must not grow with
n; per-example gradients, the textbook way, need n·p numbers.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Annotated

import torch
import typer
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from benchmarks.peer_methods import peak
from puma.data import Examples
from puma.influence import (
    ConjugateGradients,
    FlatModel,
    GaussNewton,
    MeanLoss,
    Shifted,
    directional_derivatives,
    influence_scores,
)
from puma.models import mlp

WIDTH, CLASSES = 64, 4


def problem(n: int) -> tuple[torch.nn.Module, Examples]:
    torch.manual_seed(0)
    labels = torch.randint(CLASSES, (n,))
    return mlp(WIDTH, CLASSES, (64, 32)), Examples.of(torch.randn(n, WIDTH), labels)


def keeping_nothing(model: torch.nn.Module, examples: Examples) -> Tensor:
    flat = FlatModel(model)
    curvature = Shifted(GaussNewton(flat, examples, cache_bytes=0), 0.1)
    solved = ConjugateGradients().solve(curvature, MeanLoss(examples).gradient(flat))
    return directional_derivatives(flat, examples, solved.value)


def by_default(model: torch.nn.Module, examples: Examples) -> Tensor:
    return influence_scores(model, examples, damping=0.1)


def by_gradients(model: torch.nn.Module, examples: Examples) -> Tensor:
    """The last step alone, without the solve: ∇L_i · h for a given h."""
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(values: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, values, (row[None],)), label[None])

    gradients = vmap(grad(loss), (None, 0, 0))(parameters, examples.features, examples.labels)
    flat = torch.cat([value.flatten(1) for value in gradients.values()], 1)
    return flat @ torch.ones(flat.shape[1])


WAYS: dict[str, Callable[[torch.nn.Module, Examples], Tensor]] = {
    "psi, nothing kept": keeping_nothing,
    "psi, by default": by_default,
    "per-example gradients": by_gradients,
}


def rise(way: str, n: int) -> float:
    """MB by which the resident memory of this process rose while scoring n examples."""
    model, examples = problem(n)
    small = examples.subset(torch.arange(64))
    WAYS[way](model, small)  # what PyTorch imports and allocates on first use
    before = peak()
    scores = WAYS[way](model, examples)
    assert scores.shape == (n,)
    return peak() - before


def main(
    examples: Annotated[int, typer.Option(min=1, help="n; 4n is measured too.")] = 20_000,
) -> None:
    """Measure the peak memory of the scores psi, beside per-example gradients."""
    parameters = FlatModel(problem(1)[0]).vector.numel()
    print(f"{parameters:,} parameters, {WIDTH} features; rise of the peak memory in MB")
    print(f"{'':24}{examples:>12,}{4 * examples:>12,}")
    context = multiprocessing.get_context("spawn")
    for way in WAYS:
        risen = []
        for size in (examples, 4 * examples):
            with context.Pool(1) as pool:
                risen.append(pool.apply(rise, (way, size)))
        print(f"{way:24}" + "".join(f"{value:12.1f}" for value in risen))
