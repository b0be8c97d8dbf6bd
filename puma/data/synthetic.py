"""Points in the plane: the paper's two synthetic sets, and two for debugging and calibration.

The paper gives counts and a figure, no code and no noise (Appendix A, Synthetic Data). The
noise of radial and rectangular is set so that the paper's network (64-32, Adam 1e-3, batches of
32, 50 epochs, a quarter held out) is about as accurate as in its Table 1. Coordinates are
centred and of order 1, so that nothing is scaled; ``seed`` draws the points and their split.
Points are numbered cluster by cluster, or along each arm: point-0001 is the first. Groups are
picked by the columns x and y.
"""

from __future__ import annotations

import numpy as np

from puma.data.base import Dataset
from puma.data.splitting import NOTHING, Extras, split_examples
from puma.errors import DataError, require_seed
from puma.where import Cells


def radial(
    *, seed: int, test_fraction: float, noise: float = 0.25, extras: Extras = NOTHING
) -> Dataset:
    """Draw 600 points in 6 clusters on the unit circle, 60° apart, of 2 classes in turn.

    ``noise`` is the deviation of each coordinate (units of the radius). Test accuracy of the
    paper's network is 95.2 ± 1.3 % (5 seeds); the paper has 95.0 and 95.9.
    """
    cluster = np.arange(600) // 100
    angle = cluster * np.pi / 3
    centres = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return _split(
        "radial", _blurred(centres, noise, seed), cluster % 2, seed, test_fraction, extras
    )


def rectangular(
    *, seed: int, test_fraction: float, noise: float = 0.46, extras: Extras = NOTHING
) -> Dataset:
    """Draw 800 points in 16 clusters on a 4×4 grid, of 3 classes along its diagonals.

    ``noise`` is the deviation of each coordinate (units of the grid). The classes hold 300,
    250 and 250 points. Test accuracy of the paper's network is 63.7 ± 4.1 % (5 seeds); the paper
    has 62.0 and 65.0.
    """
    row, column = np.divmod(np.arange(800) // 50, 4)
    centres = np.stack([column, row], axis=1) - 1.5
    labels = (row + column) % 3
    return _split(
        "rectangular", _blurred(centres, noise, seed), labels, seed, test_fraction, extras
    )


def two_moons(
    *,
    seed: int,
    test_fraction: float,
    points: int = 1000,
    noise: float = 0.2,
    extras: Extras = NOTHING,
) -> Dataset:
    """Draw scikit-learn's two interleaving half circles, ``points`` in all.

    Test accuracy of the paper's network is 96.2 ± 1.5 % (5 seeds). The paper debugs 5000 points
    with more noise (Appendix E): pass ``points`` and ``noise``.
    """
    from sklearn.datasets import make_moons

    require_seed(seed, DataError)
    features, labels = make_moons(points, shuffle=False, noise=noise, random_state=seed)
    return _split("two_moons", features, labels, seed, test_fraction, extras)


def spiral(
    *,
    seed: int,
    test_fraction: float,
    points: int = 1000,
    noise: float = 0.1,
    extras: Extras = NOTHING,
) -> Dataset:
    """Draw two arms of Archimedes' spiral, half a turn apart: radius 0.2 to 2 over 1.5 turns.

    ``points`` (an even number) lie evenly along the arms' angle; ``noise`` is the deviation of
    each coordinate. Test accuracy of the paper's network is 97.8 ± 1.1 % (5 seeds).
    """
    labels, along = np.divmod(np.arange(points), points // 2)
    share = along / (points // 2 - 1)
    angle = 3 * np.pi * share + np.pi * labels
    radius = 0.2 + 1.8 * share
    arms = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return _split("spiral", _blurred(arms, noise, seed), labels, seed, test_fraction, extras)


def _blurred(points: np.ndarray, noise: float, seed: int) -> np.ndarray:
    require_seed(seed, DataError)
    return points + noise * np.random.default_rng(seed).normal(size=points.shape)


def _split(
    name: str,
    features: np.ndarray,
    labels: np.ndarray,
    seed: int,
    test_fraction: float,
    extras: Extras,
) -> Dataset:
    classes = ("a", "b", "c")[: labels.max() + 1]
    return split_examples(
        name,
        features,
        labels,
        classes,
        owner="point",
        seed=seed,
        test_fraction=test_fraction,
        extras=extras,
        columns={
            column: Cells("numbers", values)
            for column, values in zip(("x", "y"), features.T, strict=True)
        },
    )
