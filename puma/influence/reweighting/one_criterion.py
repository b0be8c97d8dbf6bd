"""The exact weights for one criterion: the data term has rank one, so one unknown is left."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from puma.influence.reweighting.problem import Bounds


def single_weights(scores: Tensor, target: float, l1: float, l2: float, bounds: Bounds) -> Tensor:
    """Find the minimiser for one criterion in O(n log n); ``scores`` (n,) in double precision.

    The data term has rank one. With t = |ψ|, S = |target| and cap c the bound on the side
    towards which an example helps, the optimum is |λ_j| = clip(y·t_j − r, 0, c_j) for
    r = l1/(2·l2) and the one root y of Σ_j t_j·|λ_j|(y) + l2·y = S, which is increasing and
    piecewise linear in y: find its segment among the sorted kinks, then solve there.
    """
    helps = scores * math.copysign(1.0, target)
    lower, upper = bounds
    caps = torch.where(helps > 0, scores.new_tensor(upper), scores.new_tensor(-lower))
    weights = torch.zeros_like(scores)
    movable = (helps != 0) & (caps > 0)
    t, caps, goal = helps[movable].abs(), caps[movable], abs(target)
    if goal == 0 or t.numel() == 0:
        return weights
    # In units of the largest score, squares neither overflow nor vanish.
    unit = float(t.max())
    t, goal, l1, l2 = t / unit, goal / unit, l1 / unit / unit, l2 / unit / unit
    if l1 >= 2 * goal:
        return weights
    sizes = _sizes(t, caps, goal, l1, l2)
    weights[movable] = torch.copysign(sizes, helps[movable])
    return weights


def _sizes(t: Tensor, caps: Tensor, goal: float, l1: float, l2: float) -> Tensor:
    """|λ| >= 0 minimising (t·|λ| − goal)² + l1·Σ|λ| + l2·Σ|λ|², for t, caps and goal > 0."""
    threshold = l1 / (2 * l2) if l1 > 0 and l2 > 0 else 0.0
    if l1 > 0 and (l2 == 0 or math.isinf(threshold)):
        return _greedy(t, caps, goal, l1)
    return _ridge(t, caps, goal, threshold, l2)


def _ridge(t: Tensor, caps: Tensor, goal: float, threshold: float, l2: float) -> Tensor:
    """clip(y·t − threshold, 0, caps) at the y where Σ t·(that) + l2·y = goal.

    y is written as threshold/reference + z, with ``reference`` the smallest t that moves: the
    difference y·t − threshold itself would lose all digits when l2 is tiny.
    """
    reference = _smallest_moving(t, caps, goal, threshold, l2) if threshold else float(t.min())
    moving = t >= reference
    sizes = torch.zeros_like(t)
    t, caps = t[moving], caps[moving]
    start = (t - reference).mul_(threshold).div_(reference)  # the sizes at z = 0, if no caps
    base = l2 * threshold / reference
    stops = (caps - start) / t  # the z at which each size meets its cap
    order = stops.argsort()

    def too_large(position: int) -> bool:
        z = max(0.0, float(stops[order[position]]))
        return math.isinf(z) or float(t @ (start + z * t).clamp_(max=caps)) + base + l2 * z > goal

    stopped = first(too_large, len(order))
    full, free = order[:stopped], order[stopped:]
    slope = float(t[free] @ t[free]) + l2
    rest = goal - base - float(t[full] @ caps[full]) - float(t[free] @ start[free])
    moved = caps.clone()
    if slope > 0:  # else everything is at its bound, and the goal out of reach
        moved[free] = (start[free] + rest / slope * t[free]).clamp_(min=0).clamp_(max=caps[free])
    sizes[moving] = moved
    return sizes


def _smallest_moving(t: Tensor, caps: Tensor, goal: float, threshold: float, l2: float) -> float:
    """The smallest t with y·t > threshold at the solution."""
    values = t.sort(descending=True).values

    def too_large(position: int) -> bool:
        reference = float(values[position])
        sizes = (t - reference).mul_(threshold).div_(reference).clamp_(min=0).clamp_(max=caps)
        return float(t @ sizes) + l2 * threshold / reference > goal

    # The caller knows that the largest moves, whatever round-off says just above the threshold.
    return float(values[max(1, first(too_large, len(values))) - 1])


def first(condition: Callable[[int], bool], count: int) -> int:
    """Find where ``condition``, false and then true, first holds; ``count`` if nowhere."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if condition(middle) else (middle + 1, high)
    return low


def _greedy(t: Tensor, caps: Tensor, goal: float, l1: float) -> Tensor:
    """l2 = 0: fill the largest t first, until the next unit costs more than it brings."""
    values, group = torch.unique(t, return_inverse=True)
    room = torch.zeros_like(values).index_add_(0, group, caps)
    # values ascend, so what larger groups can contribute is a cumulative sum from the end.
    all_filled = (values * room).flip(0).cumsum(0).flip(0)
    wanted = goal - l1 / (2 * values)  # the sum at which a group stops to pay
    full = all_filled <= wanted
    sizes = torch.where(full[group], caps, 0.0)
    partial = int((~full).sum()) - 1
    if partial < 0:
        return sizes
    value = float(values[partial])
    share = (2 * goal * value - l1) / (2 * value * value) - float(sizes @ t) / value
    if share <= 0:
        return sizes
    here = group == partial
    unlimited = here & torch.isinf(caps)
    if unlimited.any():
        sizes[unlimited] = share / int(unlimited.sum())
    else:
        sizes[here] = caps[here] * min(1.0, share / float(room[partial]))
    return sizes
