"""What the pool predicts, on planted numbers and against models that it trained."""

from pathlib import Path

import numpy as np
import pytest
import torch

from puma.audit.evidence import predict_without, train_pool
from puma.data.base import Dataset, Examples
from puma.errors import AuditError
from puma.models import build_model
from puma.references import LeaveOutRidge, Pool, Population
from puma.references.pool import ANCHOR
from puma.references.short_training import train_short
from puma.requests.deletion_set import DeletionSet
from puma.settings import AuditSettings, ModelSettings, PoolSettings, Settings, TrainingSettings

N, TEST, MODELS = 48, 8, 16
SETTINGS = Settings(
    model=ModelSettings(hidden=(16,)),
    training=TrainingSettings(epochs=40, learning_rate=0.01, batch_size=16),
    pool=PoolSettings(models=16, everybody=4),
    audit=AuditSettings(jobs=1),
)


def planted(slope: float = 2.0, noise: float = 0.0) -> tuple[Pool, np.ndarray]:
    """A pool whose margins are a level of each row's own plus ``slope`` times the surrogate."""
    generator = np.random.default_rng(3)
    factors = generator.normal(size=(N + TEST, 5))
    ridge = LeaveOutRidge.fit(factors @ factors.T, N)
    member = np.ones((MODELS, N + TEST), dtype=bool)
    member[:, N:] = False
    for model in range(MODELS):
        member[model, model % 4 : N : 4] = False
    member[4:8, :N] = np.roll(member[4:8, :N], 1, axis=1)
    levels = generator.normal(size=N + TEST)
    margins = np.stack(
        [levels + slope * ridge.without(np.flatnonzero(~line[:N])) for line in member]
    )
    margins += noise * generator.normal(size=margins.shape)
    whole = levels + slope * ridge.without(np.zeros(0, dtype=np.int64))
    whole = np.tile(whole, (3, 1))
    seen = np.tile(np.arange(N + TEST) < N, (3, 1))
    pool = Pool(
        Population(margins, margins > 0, member),
        Population(whole, whole > 0, seen),
        ridge,
        np.zeros((MODELS + 1, N + TEST)),
        np.zeros((1, 1)),
        "digest",
    )
    return pool, levels


def test_planted_levels_and_slope_are_found_for_any_request():
    pool, levels = planted()
    rows = np.array([7], dtype=np.int64)
    expected = levels + 2.0 * pool.ridge.without(rows)
    for half in (None, "removal", "audit"):
        pool.short_margins[rows.tobytes()] = np.zeros(N + TEST)
        found = pool.predict(rows, half=half)
        asked = [7, *range(N, N + TEST)]
        np.testing.assert_allclose(found.margins[asked], expected[asked], atol=0.02)
        assert found.error < 0.02
        assert len(found.draws) == (MODELS if half is None else MODELS // 2)
        np.testing.assert_array_equal(found.correct, found.draws > 0)


def test_deviations_are_as_wide_as_the_models_differ():
    pool, _ = planted(noise=1.0)
    rows = np.arange(0, N, 2)
    pool.short_margins[rows.tobytes()] = np.zeros(N + TEST)
    found = pool.predict(rows)
    spread = (found.draws - found.margins)[:, rows].std()
    # Each row's level is an average, which the left-out model does not share.
    assert 0.9 < spread < 1.3 * np.sqrt(1 + 1 / (3 + ANCHOR))


def test_a_large_request_without_its_short_training_is_refused():
    pool, _ = planted()
    with pytest.raises(AuditError, match="takes short trainings"):
        pool.predict(np.arange(20))


def test_halves_share_no_partition_and_have_them_all():
    pool, _ = planted()
    removal, audit = pool._models("removal"), pool._models("audit")
    assert not set(removal // 4) & set(audit // 4)
    assert sorted([*removal, *audit]) == list(range(MODELS))


@pytest.fixture(scope="module")
def data() -> Dataset:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(110, 6, generator=generator)
    labels = (features[:, 0] + 0.8 * torch.randn(110, generator=generator) > 0).long()
    train = Examples.of(features[:80], labels[:80], [f"train{row}" for row in range(80)])
    test = Examples.of(features[80:], labels[80:], [f"test{row}" for row in range(30)])
    return Dataset("noisy", train, test, ("no", "yes"))


@pytest.fixture(scope="module")
def pool(data: Dataset) -> Pool:
    return train_pool(data, SETTINGS, progress=False)


def test_a_request_that_is_one_part_is_near_the_model_that_left_it_out(data: Dataset, pool: Pool):
    initial = build_model(SETTINGS.model, data, seed=0)
    nearer = []
    for model, rows in enumerate(pool.groups):
        train_short(pool, data, initial, rows, SETTINGS.training, progress=False)
        truth = pool.left_out.margins[model][rows]
        predicted = pool.predict(rows).margins[rows]
        untouched = pool.everybody.margins.mean(0)[rows]
        nearer.append(np.abs(predicted - truth).mean() / np.abs(untouched - truth).mean())
    assert np.mean(nearer) < 0.6


def test_the_references_of_a_request_are_predicted_for_its_rows(data: Dataset, pool: Pool):
    request = DeletionSet.of(["train3", "train5"], data)
    without = predict_without(pool, request, SETTINGS, progress=False)
    assert without.margins.shape == (8, 110)
    assert not without.member[:, [3, 5, *range(80, 110)]].any()
    assert without.member.sum() == 8 * 78


def test_it_is_read_as_it_was_written(data: Dataset, pool: Pool, tmp_path: Path):
    pool.save(tmp_path / "pool.npz")
    again = Pool.load(tmp_path / "pool.npz")
    rows = np.array([4], dtype=np.int64)
    np.testing.assert_allclose(again.predict(rows).margins, pool.predict(rows).margins, atol=1e-3)
    assert (tmp_path / "pool.npz").stat().st_mode & 0o077 == 0
    again.require(data)
    with pytest.raises(AuditError, match="other data"):
        again.require(Dataset("other", data.test, data.train, data.classes))


def test_what_is_no_pool_is_refused(tmp_path: Path):
    with pytest.raises(AuditError, match="no such pool"):
        Pool.load(tmp_path / "pool.npz")
    (tmp_path / "pool.npz").write_bytes(b"nothing")
    with pytest.raises(AuditError, match="not a pool written by PUMA"):
        Pool.load(tmp_path / "pool.npz")
