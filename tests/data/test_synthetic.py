from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.datasets import make_moons
from sklearn.model_selection import train_test_split

from puma.data import Dataset, load_dataset, radial, rectangular, spiral, two_moons
from puma.errors import DataError
from puma.models import build_model
from puma.models.training import train
from puma.settings import ModelSettings, TrainingSettings

SIZES = {
    "radial": [300, 300],
    "rectangular": [300, 250, 250],
    "two_moons": [500, 500],
    "spiral": [500, 500],
}


def numbers(data: Dataset) -> np.ndarray:
    """Which point each row is, training rows first, counted from 0."""
    ids = [*data.train.subject_ids.tolist(), *data.test.subject_ids.tolist()]
    assert all(name.startswith("point-") for name in ids)
    return np.asarray([int(name.removeprefix("point-")) - 1 for name in ids])


def points(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, 2) and labels (n,) in the order of the points' numbers."""
    order = np.argsort(numbers(data))
    features = torch.cat([data.train.features, data.test.features]).numpy()
    labels = torch.cat([data.train.labels, data.test.labels]).numpy()
    return features[order], labels[order]


@pytest.mark.parametrize("name", SIZES)
def test_counts_classes_and_split(name: str) -> None:
    data = load_dataset(name, seed=3)
    total = SIZES[name]
    assert data.name == name
    assert len(data.classes) == len(total)
    assert data.train.features.shape == (sum(total) * 3 // 4, 2)
    assert data.train.features.dtype == torch.float32
    assert sorted(numbers(data).tolist()) == list(range(sum(total)))
    for part, quarters in ((data.train, 3), (data.test, 1)):
        found = torch.bincount(part.labels).tolist()
        assert sum(found) == sum(total) * quarters // 4
        assert found == pytest.approx([size * quarters / 4 for size in total], abs=0.5)


@pytest.mark.parametrize("name", SIZES)
def test_the_split_is_scikit_learn_s(name: str) -> None:
    data = load_dataset(name, seed=5, test_fraction=0.4)
    _, labels = points(data)
    expected = train_test_split(
        np.arange(len(labels)), test_size=0.4, stratify=labels, random_state=5
    )
    assert numbers(data).tolist() == np.concatenate(expected).tolist()


@pytest.mark.parametrize("name", SIZES)
def test_the_seed_decides_points_and_split(name: str) -> None:
    first, again, other = (load_dataset(name, seed=seed) for seed in (3, 3, 4))
    assert first.digest == again.digest
    assert not np.array_equal(points(first)[0], points(other)[0])
    assert numbers(first).tolist() != numbers(other).tolist()


def test_radial_clusters_stand_sixty_degrees_apart() -> None:
    features, labels = points(radial(seed=0, test_fraction=0.25))
    clusters = features.reshape(6, 100, 2)
    centres = clusters.mean(axis=1)
    degrees = np.degrees(np.arctan2(centres[:, 1], centres[:, 0])) % 360
    off = (degrees - [0, 60, 120, 180, 240, 300] + 180) % 360 - 180
    np.testing.assert_allclose(off, 0, atol=6)  # the mean of 100 points is off by 1.4°
    np.testing.assert_allclose(np.hypot(*centres.T), 1, atol=0.1)
    assert (clusters - centres[:, None]).std() == pytest.approx(0.25, abs=0.02)
    assert labels.reshape(6, 100).tolist() == [[k % 2] * 100 for k in range(6)]


def test_rectangular_clusters_fill_a_grid() -> None:
    features, labels = points(rectangular(seed=0, test_fraction=0.25))
    clusters = features.reshape(16, 50, 2)
    centres = clusters.mean(axis=1)
    grid = [(x, y) for y in (-1.5, -0.5, 0.5, 1.5) for x in (-1.5, -0.5, 0.5, 1.5)]
    np.testing.assert_allclose(centres, grid, atol=0.25)  # 0.065 times up to 4
    assert (clusters - centres[:, None]).std() == pytest.approx(0.46, abs=0.03)
    by_cluster = labels.reshape(16, 50)
    assert (by_cluster == by_cluster[:, :1]).all()
    # No two neighbours on the grid are of one class.
    board = by_cluster[:, 0].reshape(4, 4)
    assert board.tolist() == [[0, 1, 2, 0], [1, 2, 0, 1], [2, 0, 1, 2], [0, 1, 2, 0]]


def test_two_moons_are_scikit_learn_s() -> None:
    features, labels = points(two_moons(seed=2, test_fraction=0.25, points=60, noise=0.3))
    expected = make_moons(60, shuffle=False, noise=0.3, random_state=2)
    np.testing.assert_allclose(features, expected[0], atol=1e-6)
    assert labels.tolist() == expected[1].tolist()


def test_without_noise_the_spiral_is_archimedes_s() -> None:
    features, labels = points(spiral(seed=0, test_fraction=0.25, points=400, noise=0))
    assert labels.tolist() == [0] * 200 + [1] * 200
    np.testing.assert_allclose(features[200:], -features[:200], atol=1e-6)  # half a turn
    angle = np.unwrap(np.arctan2(features[:200, 1], features[:200, 0]))
    radius = np.hypot(features[:200, 0], features[:200, 1])
    assert angle[-1] - angle[0] == pytest.approx(3 * np.pi, abs=1e-5)
    np.testing.assert_allclose(radius, 0.2 + 0.6 / np.pi * (angle - angle[0]), atol=1e-5)


@pytest.mark.parametrize("make", [radial, rectangular, spiral])
def test_noise_is_the_deviation_of_each_coordinate(make: Callable[..., Dataset]) -> None:
    exact, _ = points(make(seed=1, test_fraction=0.25, noise=0))
    for noise in (0.1, 0.7):
        noisy, _ = points(make(seed=1, test_fraction=0.25, noise=noise))
        assert (noisy - exact).std(axis=0) == pytest.approx([noise, noise], rel=0.1)


# The paper's Table 1 has 95.0-95.9 and 62.0-65.0. Judged on points of another seed, all of
# them: a test split of 150 would add two points of deviation.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("radial", 93, 97.5), ("rectangular", 59, 68), ("two_moons", 94, 99), ("spiral", 95, 100)],
)
def test_the_paper_s_network_is_about_as_accurate(name: str, low: float, high: float) -> None:
    data = load_dataset(name, seed=1)
    model = build_model(ModelSettings(), data, seed=1)
    train(model, data.train, TrainingSettings(), seed=1, progress=False)
    features, labels = points(load_dataset(name, seed=101))
    hits = model(torch.from_numpy(features)).argmax(1).numpy() == labels
    assert low < 100 * hits.mean() < high


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.2, float("nan")])
def test_an_impossible_fraction_is_refused(fraction: float) -> None:
    with pytest.raises(DataError, match=rf"must lie between 0 and 1, got {fraction}"):
        load_dataset("radial", test_fraction=fraction)


@pytest.mark.parametrize("name", ["rectangular", "german_credit"])
def test_a_fraction_that_empties_a_class_is_refused(name: str) -> None:
    with pytest.raises(
        DataError, match=rf"'{name}' has no split with data\.test_fraction 0\.001: .*; choose"
    ):
        load_dataset(name, test_fraction=0.001)
