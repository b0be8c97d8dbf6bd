"""What the pool predicts, on planted numbers and against models that it trained."""

import copy
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from puma.audit.evidence import predict_without, train_pool
from puma.data.base import Dataset, Examples
from puma.errors import AuditError
from puma.models import build_model
from puma.models.predictions import margins_of
from puma.models.training import train
from puma.references import LeaveOutRidge, Pool, Population
from puma.references.pool import ANCHOR, Half
from puma.references.short_training import short_margins, starts_of, train_short
from puma.requests.deletion_set import DeletionSet
from puma.settings import AuditSettings, ModelSettings, PoolSettings, Settings, TrainingSettings

N, TEST, MODELS = 48, 8, 16
SETTINGS = Settings(
    model=ModelSettings(hidden=(16,)),
    training=TrainingSettings(epochs=40, learning_rate=0.01, batch_size=16),
    pool=PoolSettings(models=16, everybody=4),
    audit=AuditSettings(jobs=1),
)


def planted(
    slope: float = 2.0, noise: float = 0.0, short_slope: float = 0.0
) -> tuple[Pool, np.ndarray]:
    """A pool whose margins are a level of each row's own plus slopes times the surrogates."""
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
    short = generator.normal(size=(MODELS + 1, N + TEST))
    margins += short_slope * short[:-1]
    whole = levels + slope * ridge.without(np.zeros(0, dtype=np.int64)) + short_slope * short[-1]
    whole = np.tile(whole, (3, 1))
    seen = np.tile(np.arange(N + TEST) < N, (3, 1))
    pool = Pool(
        Population(margins, margins > 0, member),
        Population(whole, whole > 0, seen),
        ridge,
        short,
        np.zeros((1, 1)),
        "digest",
    )
    return pool, levels


def test_planted_levels_and_slope_are_found_for_any_request():
    pool, levels = planted()
    rows = np.array([7], dtype=np.int64)
    expected = levels + 2.0 * pool.ridge.without(rows)
    for half in (None, "removal", "audit"):
        found = pool.predict(rows, half=half)
        asked = [7, *range(N, N + TEST)]
        np.testing.assert_allclose(found.margins[asked], expected[asked], atol=0.02)
        assert found.error < 0.02
        assert len(found.draws) == (MODELS if half is None else MODELS // 2)
        np.testing.assert_array_equal(found.correct, found.draws > 0)


def test_deviations_are_as_wide_as_the_models_differ():
    pool, _ = planted(noise=1.0)
    rows = np.arange(0, N, 2)
    found = pool.predict(rows)
    spread = (found.draws - found.margins)[:, rows].std()
    # Each row's level is an average, which the left-out model does not share.
    assert 0.9 < spread < 1.3 * np.sqrt(1 + 1 / (3 + ANCHOR))


def test_a_large_request_without_its_short_training_is_refused():
    pool, _ = planted(short_slope=1.0)
    with pytest.raises(AuditError, match="takes short trainings"):
        pool.predict(np.arange(20))


@pytest.mark.parametrize(
    ("short_slope", "helps", "helps_at_all"),
    [(0.0, False, False), (0.2, False, True), (1.0, True, True)],
)
def test_short_trainings_are_used_where_they_predict_better(
    short_slope: float, helps: bool, helps_at_all: bool
):
    """With noise of one logit, a fifth of one explains 2 % of the error, and one explains half."""
    pool, _ = planted(noise=1.0, short_slope=short_slope)
    assert pool.short_helps is helps
    assert pool.needs_short(np.arange(2)) is helps  # 4 % of the rows
    assert not pool.needs_short(np.arange(0))
    assert pool.needs_short(np.arange(20)) is helps_at_all


def test_both_surrogates_are_found():
    pool, levels = planted(short_slope=3.0)
    rows = np.arange(0, N, 3)
    short = np.random.default_rng(4).normal(size=N + TEST)
    pool.short_margins[rows.tobytes()] = short
    expected = levels + 2.0 * pool.ridge.without(rows) + 3.0 * short
    np.testing.assert_allclose(pool.predict(rows).margins[rows], expected[rows], atol=0.1)


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
        train_short(pool, data, lambda: initial, rows, SETTINGS.training, progress=False)
        truth = pool.left_out.margins[model][rows]
        predicted = pool.predict(rows).margins[rows]
        untouched = pool.everybody.margins.mean(0)[rows]
        nearer.append(np.abs(predicted - truth).mean() / np.abs(untouched - truth).mean())
    assert np.mean(nearer) < 0.6


@pytest.mark.parametrize("half", ["removal", "audit", None])
def test_a_pool_says_the_same_whatever_it_was_asked_before(pool: Pool, half: Half | None):
    asked, fresh = replace(pool), replace(pool)
    for rows in (np.arange(30, 31), np.arange(1)):
        found = asked.predict(rows, half=half)
    alone = fresh.predict(rows, half=half)
    assert found.error == alone.error
    for part in ("margins", "draws", "correct"):
        np.testing.assert_array_equal(getattr(found, part), getattr(alone, part))


@pytest.fixture(scope="module")
def kernelless(data: Dataset) -> Pool:
    """As of data with too many rows for a kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("puma.audit.evidence.MOST_ROWS", len(data.train) - 1)
        return train_pool(data, SETTINGS, progress=False)


def test_without_a_kernel_short_trainings_alone_predict(
    data: Dataset, kernelless: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Every model is near, and no row has a slope of its own: the plain regression.
    monkeypatch.setattr("puma.references.regression.NEAR", math.inf)
    monkeypatch.setattr("puma.references.regression.OWN_SLOPE", 1e12)
    assert kernelless.ridge is None
    rows = np.array([4, 9], dtype=np.int64)
    with pytest.raises(AuditError, match="takes short trainings"):
        kernelless.predict(rows)
    kernelless.save(tmp_path / "pool.npz")
    stored = Pool.load(tmp_path / "pool.npz")
    initial = build_model(SETTINGS.model, data, seed=0)
    train_short(stored, data, lambda: initial, rows, SETTINGS.training, progress=False)

    # One regression line over (model, row), with an intercept for every row.
    short = stored.short_margins[rows.tobytes()]
    assert np.isnan(short[: len(data.train)]).sum() == len(data.train) - 2
    out = np.vstack([~stored.left_out.member[:, :80], np.ones((1, 80), dtype=bool)])
    line, row = np.nonzero(out)
    weight = np.sqrt(np.where(line == 16, ANCHOR, 1.0))
    whole = stored.everybody.margins.mean(0)
    margins = np.vstack([stored.left_out.margins, whole])[line, row]
    design = np.column_stack([stored.short[line, row], np.eye(80)[row]]) * weight[:, None]
    slope, *levels = np.linalg.lstsq(design, margins * weight, rcond=None)[0]
    expected = np.array(levels)[rows] + slope * short[rows]
    np.testing.assert_allclose(stored.predict(rows).margins[rows], expected, rtol=5e-3, atol=5e-3)
    assert np.isfinite(stored.predict(rows, half="audit").draws).all()
    predicted, truth = stored.held_out()
    assert np.corrcoef(predicted, truth)[0, 1] > 0.8


@pytest.mark.parametrize(("epochs", "steps"), [(40, 4 * 3), (6, 2)])
def test_a_short_training_is_a_twentieth_of_the_steps(data: Dataset, epochs: int, steps: int):
    """Of 80 rows in batches of 32, or of a part of an epoch where a tenth is less than one."""
    training = TrainingSettings(epochs=epochs, batch_size=16, learning_rate=0.01)
    initial = build_model(SETTINGS.model, data, seed=7)
    starts = starts_of([initial])
    found = short_margins(
        data, initial, starts, [np.arange(5), np.arange(40)], training, progress=False
    )
    assert np.array_equal(starts, starts_of([initial]))
    assert np.abs(found[0] - found[1]).mean() > 0.01  # each is of its own rows
    alone = copy.deepcopy(initial)
    short = TrainingSettings(epochs=1, batch_size=32, learning_rate=0.04)
    train(alone, data.train.subset(torch.arange(5, 80)), short, seed=0, steps=steps, progress=False)
    np.testing.assert_allclose(found[0], margins_of(alone, data.rows), atol=1e-4)
    chosen = np.array([2, 81])
    part = short_margins(
        data,
        initial,
        starts_of([initial]),
        [np.arange(5)],
        training,
        wanted=chosen,
        progress=False,
    )
    np.testing.assert_allclose(part[0], found[0][chosen], atol=1e-6)


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
