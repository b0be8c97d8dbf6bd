"""Calls of puma.influence.reweight: weights for scores of every size."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.fuzz_calls.calls import Calls
from puma.errors import SolverError
from puma.influence import REWEIGHTERS, reweight


def add_reweighting(calls: Calls) -> None:
    draw = torch.Generator().manual_seed(0)
    one = torch.randn(7, generator=draw, dtype=torch.float64)
    two = torch.randn(2, 7, generator=draw, dtype=torch.float64)
    sums = torch.tensor([0.3, -0.2], dtype=torch.float64)
    problems: dict[str, tuple[Tensor, float | Tensor]] = {"1": (one, 0.4), "2": (two, sums)}
    for (count, (scores, target)), solver in itertools.product(problems.items(), REWEIGHTERS):
        name = f"reweight({count} criteria, {solver}"

        def right(
            scores: Tensor,
            target: float | Tensor,
            plain: Tensor | None = None,
            *,
            solver: str = solver,
            **settings: Any,
        ) -> bool:
            return _is_right(scores, target, solver, plain, **settings)

        plain = reweight(scores, target, l1=0.0, l2=0.0, solver=solver)
        for scale in (1.0, 1e-12, 1e-80, 1e-158, 1e-300, 1e12, 1e80, 1e150, 1e300):
            calls.good(
                f"{name}, scores times {scale:g})",
                partial(right, scores * scale, target * scale, plain),
                True,
            )
        calls.good(
            f"{name}, one score of 1e300)",
            partial(
                right, torch.cat([scores, torch.full_like(scores[..., :1], 1e300)], -1), target
            ),
            True,
        )
        for shape, value in {"no": scores[..., :0], "zero": torch.zeros_like(scores)}.items():
            zero = torch.zeros(value.shape[-1], dtype=torch.float64)
            calls.good(f"{name}, {shape} scores)", partial(right, value, target, zero), True)
        for l1, l2 in ((1e300, 0.0), (0.0, 1e300), (1e-300, 1e-300), (0.1, 0.1)):
            zero_or_any = torch.zeros(7, dtype=torch.float64) if max(l1, l2) > 1 else None
            calls.good(
                f"{name}, l1={l1:g}, l2={l2:g})",
                partial(right, scores, target, zero_or_any, l1=l1, l2=l2),
                True,
            )
        for bounds in ((0.0, 0.0), (-1e-300, 1e-300), (-1e300, 1e300), (0.0, 1.0), (-1.0, 0.0)):
            calls.good(
                f"{name}, bounds={bounds})",
                partial(right, scores, target, l2=1e-6, bounds=bounds),
                True,
            )
    bad = one.clone()
    bad[0] = math.nan
    wrong: dict[str, tuple[Any, ...]] = {
        "scores": (None, one.numpy(), one.long(), one.tolist(), bad, bad.nan_to_num(math.inf) / 0),
        "target": (None, "1", math.nan, math.inf, torch.ones(2), two, [1.0, 2.0], 1j),
        "l1": (-1.0, math.nan, math.inf, "0", None),
        "l2": (-1.0, math.nan, math.inf, "0", None),
        "bounds": (
            (0.5, 1.0),
            (-1.0, -0.5),
            (1.0, -1.0),
            (math.nan, 1.0),
            (0.0,),
            None,
            3,
            ("a", "b"),
        ),
        "solver": ("", "magic", 3, None),
    }
    for name, values in wrong.items():
        calls.bad_each(
            f"reweight({name}",
            values,
            lambda value, name=name: reweight(
                **{"scores": one, "target": 0.4, "l1": 0.0, "l2": 0.0, name: value}
            ),
        )
    calls.bad(
        "reweight(scores of 3 dimensions)", lambda: reweight(one[None, None], 0.4, l1=0.0, l2=0.0)
    )
    calls.bad("reweight(0 criteria)", lambda: reweight(two[:0], sums[:0], l1=0.0, l2=0.0))


def _is_right(
    scores: Tensor,
    target: float | Tensor,
    solver: str,
    plain: Tensor | None,
    *,
    l1: float = 0.0,
    l2: float = 0.0,
    bounds: tuple[float, float] = (-1.0, 1.0),
) -> bool:
    """Whether λ is that of ``plain``, or at least finite and within bounds.

    Without penalties no common scale changes λ. An iteration may say that it does not converge.
    """
    try:
        found = reweight(scores, target, l1=l1, l2=l2, bounds=bounds, solver=solver)
    except SolverError:
        return solver in ("slsqp", "lbfgsb")
    within = bool((found.isfinite() & (found >= bounds[0]) & (found <= bounds[1])).all())
    return within and (plain is None or torch.allclose(found, plain, atol=1e-4))
