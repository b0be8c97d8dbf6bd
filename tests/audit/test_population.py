from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import logit, softmax

from puma.audit import Population, everybody, halves, train_population, without
from puma.audit.population import LOCKSTEP, seeds_of, train_models
from puma.data.base import Dataset, Examples
from puma.errors import AuditError
from puma.models import build_model
from puma.removal import SISA, RemovalMethod, Retrain
from puma.requests.deletion_set import DeletionSet
from puma.settings import ModelSettings, TrainingSettings
from tests.audit.conftest import Planted, coin_flips

MODEL = ModelSettings(hidden=(8,))
SCHEDULE = TrainingSettings(epochs=3, learning_rate=1e-2)
TRAINER = Retrain(training=SCHEDULE)


@pytest.fixture(scope="module")
def small() -> Dataset:
    """20 training and 11 test rows; two people own three training rows each, one a test row."""
    train, test = coin_flips(20, 3, "train"), coin_flips(11, 4, "test")
    owners = train.subject_ids.copy()
    owners[:6] = ["twin", "twin", "twin", "other", "other", "other"]
    tested = test.subject_ids.copy()
    tested[4] = "twin"
    return Dataset(
        "small",
        replace(train, subject_ids=owners),
        replace(test, subject_ids=tested),
        tuple("abcd"),
    )


@pytest.fixture(scope="module")
def members(small: Dataset) -> np.ndarray:
    return halves(small, 3, seed=5)


@pytest.fixture(scope="module")
def trained(small: Dataset, members: np.ndarray) -> Population:
    return train_population(small, members, TRAINER, MODEL, seed=9, progress=False)


def pooled(dataset: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    parts = (dataset.train, dataset.test)
    return torch.cat([each.features for each in parts]), torch.cat([each.labels for each in parts])


@pytest.mark.parametrize(
    "trainer", [TRAINER, SISA(training=SCHEDULE, shards=2, slices=1)], ids=["plain", "sisa"]
)
def test_every_model_is_one_trained_by_hand_on_its_rows_alone(
    small: Dataset, members: np.ndarray, trainer: RemovalMethod
) -> None:
    found = train_population(small, members, trainer, MODEL, seed=9, progress=False)
    features, labels = pooled(small)
    rows = np.arange(31)
    for line, seed in enumerate(np.random.SeedSequence(9).generate_state(3).tolist()):
        chosen = [row for row in rows if members[line, row]]
        owners = np.concatenate([small.train.subject_ids, small.test.subject_ids])[chosen]
        seen = Examples(features[chosen], labels[chosen], owners)
        own = trainer.model_copy(update={"seed": seed})
        data = Dataset("seen", seen, seen, small.classes)
        model = own.fit(build_model(MODEL, small, seed=seed), data, progress=False).predictor
        with torch.no_grad():
            outputs = model(features).double().numpy()
        expected = logit(softmax(outputs, 1)[rows, labels.numpy()])
        np.testing.assert_allclose(found.margins[line], expected, atol=1e-5)
        np.testing.assert_array_equal(found.correct[line], outputs.argmax(1) == labels.numpy())
    np.testing.assert_array_equal(found.member, members)


def test_the_seed_decides_and_every_model_has_its_own(
    small: Dataset, members: np.ndarray, trained: Population
) -> None:
    again = train_population(small, members, TRAINER, MODEL, seed=9, progress=False)
    np.testing.assert_array_equal(again.margins, trained.margins)
    other = train_population(small, members, TRAINER, MODEL, seed=10, progress=False)
    assert (other.margins != trained.margins).any(1).all()
    same = train_population(small, everybody(small, 3), TRAINER, MODEL, seed=9, progress=False)
    assert len(np.unique(same.margins, axis=0)) == 3


@pytest.mark.slow
def test_the_result_does_not_depend_on_the_number_of_processes(
    small: Dataset,
) -> None:
    members = halves(small, LOCKSTEP + 2, seed=5)
    one, two = (
        train_population(small, members, TRAINER, MODEL, seed=9, jobs=jobs, progress=False)
        for jobs in (1, 2)
    )
    np.testing.assert_array_equal(one.margins, two.margins)
    np.testing.assert_array_equal(one.correct, two.correct)
    np.testing.assert_array_equal(two.member, members)


def test_an_interrupted_population_is_the_same_when_it_is_resumed(
    small: Dataset, members: np.ndarray, tmp_path: Path
) -> None:
    one_by_one = SISA(training=SCHEDULE, shards=2, slices=1)

    def train(resume: Path | None, seed: int = 9) -> np.ndarray:
        population, _ = train_models(
            small,
            members,
            one_by_one,
            MODEL,
            seed=seed,
            jobs=1,
            label="models",
            progress=False,
            resume=resume,
        )
        return population.margins

    whole = train(None)
    np.testing.assert_array_equal(train(tmp_path), whole)
    first, *others = sorted(tmp_path.iterdir())
    assert len(others) == len(members) - 1
    assert {path.stat().st_mode & 0o777 for path in others} == {0o600}
    first.unlink()  # the model that the interrupted run had not finished
    trained_before = {path: path.stat().st_mtime_ns for path in others}
    np.testing.assert_array_equal(train(tmp_path), whole)
    assert {path: path.stat().st_mtime_ns for path in others} == trained_before
    assert (train(tmp_path, seed=10) != whole).any()


def test_a_model_knows_nothing_of_rows_outside_its_mask(
    small: Dataset, trained: Population
) -> None:
    line = 1
    hidden = torch.from_numpy(~trained.member[line])
    features, labels = pooled(small)
    features = torch.where(hidden[:, None], -5 * features + 1, features)
    labels = torch.where(hidden, (labels + 1) % 4, labels)
    changed = Dataset(
        "changed",
        Examples(features[:20], labels[:20], small.train.subject_ids),
        Examples(features[20:], labels[20:], small.test.subject_ids),
        small.classes,
    )
    found = train_population(changed, trained.member, TRAINER, MODEL, seed=9, progress=False)
    seen = trained.member[line]
    np.testing.assert_allclose(found.margins[line, seen], trained.margins[line, seen], atol=1e-6)
    assert (np.abs(found.margins[line, ~seen] - trained.margins[line, ~seen]) > 1e-3).all()
    assert not np.allclose(found.margins[0, seen], trained.margins[0, seen], atol=1e-3)


def test_a_row_that_was_learnt_by_heart_betrays_its_mask(planted: Planted) -> None:
    shadows = planted.evidence.lira.shadows
    assert shadows.correct[shadows.member].mean() > 0.99
    assert shadows.correct[~shadows.member].mean() < 0.7
    assert shadows.margins[shadows.member].mean() > shadows.margins[~shadows.member].mean() + 5


@pytest.mark.parametrize("shape", [(31,), (2, 30), (2, 20)])
def test_masks_of_other_rows_are_refused(small: Dataset, shape: tuple[int, ...]) -> None:
    with pytest.raises(AuditError, match=r"each of the 31 rows .* got shape"):
        train_population(small, np.ones(shape, bool), TRAINER, MODEL, seed=0)


@pytest.mark.parametrize("count", [0, 1])
def test_a_model_of_fewer_than_two_rows_is_refused(small: Dataset, count: int) -> None:
    members = np.ones((2, 31), bool)
    members[1, count:] = False
    with pytest.raises(AuditError, match="at least two rows a model"):
        train_population(small, members, TRAINER, MODEL, seed=0)


def test_everybody_and_without_are_the_rows_of_an_original_and_of_retraining(
    small: Dataset,
) -> None:
    assert everybody(small, 4).tolist() == [[True] * 20 + [False] * 11] * 4
    request = DeletionSet.of(["twin", "train9"], small)
    expected = [row < 20 and row not in (0, 1, 2, 9) for row in range(31)]
    assert without(small, request, 3).tolist() == [expected] * 3


@pytest.mark.parametrize("models", [1, 4, 7])
def test_every_row_is_in_exactly_half_of_the_models(small: Dataset, models: int) -> None:
    found = halves(small, models, seed=0)
    assert found.shape == (models, 31)
    assert set(found.sum(1).tolist()) <= {15, 16}
    pairs = found[: models // 2 * 2]
    assert (pairs.sum(0) == models // 2).all()
    assert len(np.unique(found, axis=0)) == models
    np.testing.assert_array_equal(halves(small, models, seed=0), found)
    assert not np.array_equal(halves(small, models, seed=1), found)


def test_halves_draw_training_and_test_rows_alike(small: Dataset) -> None:
    found = halves(small, 400, seed=0)[::2]
    together = np.corrcoef(found.T)[np.triu_indices(31, 1)]
    assert found[:, :20].mean() == pytest.approx(found[:, 20:].mean(), abs=0.02)
    assert np.abs(found.mean(0) - 15 / 31).max() < 0.15  # four standard deviations
    assert np.abs(together - -1 / 30).max() < 0.3


def test_saved_models_are_the_same_and_the_owners_alone(
    tmp_path: Path, trained: Population
) -> None:
    path = tmp_path / "deep" / "models.npz"
    trained.save(path)
    loaded = Population.load(path)
    for name in ("margins", "correct", "member"):
        before, after = getattr(trained, name), getattr(loaded, name)
        assert before.dtype == after.dtype
        np.testing.assert_array_equal(before, after)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_what_is_no_population_is_refused(tmp_path: Path, trained: Population) -> None:
    with pytest.raises(AuditError, match=r"absent.npz: no such models; run `dvc repro`"):
        Population.load(tmp_path / "absent.npz")
    trained.save(tmp_path / "whole.npz")
    content = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(content[: len(content) // 2])
    middle = len(content) // 2
    damaged = content[:middle] + bytes(255 - byte for byte in content[middle : middle + 8])
    (tmp_path / "damaged.npz").write_bytes(damaged + content[middle + 8 :])
    (tmp_path / "noise.npz").write_bytes(b"noise")
    np.savez(tmp_path / "other.npz", margins=np.zeros((2, 3)))
    np.savez(
        tmp_path / "objects.npz", margins=np.array([[None]]), correct=[[True]], member=[[True]]
    )
    for name in ("cut", "damaged", "noise", "other", "objects"):
        with pytest.raises(AuditError, match=rf"{name}.npz: not a population written by PUMA"):
            Population.load(tmp_path / f"{name}.npz")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_margins_that_are_not_finite_or_of_another_shape_are_refused(value: float) -> None:
    mask = np.ones((2, 3), bool)
    with pytest.raises(AuditError, match="needs finite margins and two masks of one shape"):
        Population(np.array([[0.0, value, 0], [0, 0, 0]]), mask, mask)
    with pytest.raises(AuditError, match=r"got \[\(2, 3\), \(2, 4\)\]"):
        Population(np.zeros((2, 4)), mask, mask)
    with pytest.raises(AuditError, match=r"shape \(models, rows\)"):
        Population(np.zeros(3), mask[0], mask[0])


def test_repr_and_length_tell_sizes_alone(trained: Population) -> None:
    assert len(trained) == 3
    assert repr(trained) == "Population(models=3, rows=31)"


def test_seeds_are_unrelated_and_none_is_the_models_own() -> None:
    names = ("a", "b", "c")
    drawn = [value for seed in range(200) for value in seeds_of(seed, names).values()]
    assert len(set(drawn)) == 600
    assert not set(drawn) & set(range(200))
    assert seeds_of(7, names) == seeds_of(7, names)
    assert list(seeds_of(7, names)) == ["a", "b", "c"]
