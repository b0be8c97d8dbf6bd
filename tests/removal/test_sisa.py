"""A SISA removal is the same as never having trained on the rows: bit for bit, shard by shard."""

from __future__ import annotations

import copy
import gc
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from puma.data import Dataset
from puma.errors import DataError, DeletionError, ModelError
from puma.models import mlp
from puma.models.predictions import logits
from puma.models.training import train
from puma.removal import PUMA, SISA, Retrain, Trained, sisa
from puma.requests.deletion_set import DeletionSet
from puma.settings import TrainingSettings
from tests.removal.conftest import blobs, flat

TRAINING = TrainingSettings(epochs=4, batch_size=8, learning_rate=0.01)
SHARDS, SLICES = 3, 4
EPOCHS = 2  # round(2 · 4 / (4 + 1))
N = 120


@pytest.fixture
def dataset() -> Dataset:
    """Every person owns two rows that lie 60 rows apart."""
    examples = blobs(N, seed=0)
    people = np.array([f"p{row % 60}" for row in range(N)])
    return Dataset("blobs", replace(examples, subject_ids=people), blobs(20, seed=1), ("a", "b"))


def start() -> nn.Module:
    """With dropout: the stages must not depend on the global random state either."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        hidden = mlp(3, 2, (8,))
    return nn.Sequential(hidden[0], hidden[1], nn.Dropout(0.2), hidden[2]).double()


def method(**changed) -> SISA:
    settings = {"shards": SHARDS, "slices": SLICES, "training": TRAINING, "seed": 5}
    return SISA(**{**settings, **changed})


def weights(trained_or_removal) -> list[Tensor]:
    return [flat(member) for member in trained_or_removal.predictor.members]


def place_of(data: Dataset, person: str, **changed) -> tuple[int, int]:
    places = method(**changed)._places(data.train)
    (place,) = places[data.train.owned_by([person])].unique().tolist()
    return divmod(place, SLICES)


def in_slice(data: Dataset, shard: int, number: int, **changed) -> list[str]:
    """The people whose rows lie there."""
    people = sorted(set(data.train.subject_ids.tolist()))
    return [name for name in people if place_of(data, name, **changed) == (shard, number)]


def by_hand(data: Dataset, removed: set[str]) -> list[Tensor]:
    """Every shard from its first step, stage by stage, without ``removed``."""
    places = method()._places(data.train)
    keep = torch.from_numpy(~np.isin(data.train.subject_ids, sorted(removed)))
    found = []
    for shard in range(SHARDS):
        model = start()
        for stage in range(SLICES):
            lowest = shard * SLICES
            rows = (places >= lowest) & (places <= lowest + stage) & keep
            seed = int(np.random.SeedSequence((5, shard, stage)).generate_state(1)[0])
            if rows.any():
                torch.manual_seed(seed)
                settings = TRAINING.model_copy(update={"epochs": EPOCHS})
                train(model, data.train.subset(rows), settings, seed=seed, progress=False)
        found.append(flat(model))
    return found


def removed(data: Dataset, people: list[str], **changed):
    trained = method(**changed).fit(start(), data, progress=False)
    deletion = DeletionSet.of(people, data)
    return trained, method(**changed).remove(trained, deletion, progress=False)


CASES = {
    "one person": lambda data: in_slice(data, 1, 2)[:1],
    "last slices only": lambda data: in_slice(data, 0, 3)[:1] + in_slice(data, 2, 3)[1:2],
    "first slice": lambda data: in_slice(data, 2, 0)[:2],
    "a whole slice": lambda data: in_slice(data, 1, 0),
    "everywhere": lambda _: [f"p{number}" for number in range(0, 60, 3)],
}


@pytest.mark.parametrize("people", CASES.values(), ids=CASES)
def test_removal_is_training_the_shards_from_scratch_without_the_rows(dataset, people):
    chosen = people(dataset)
    state = torch.get_rng_state()
    trained, removal = removed(dataset, chosen)
    assert torch.equal(torch.get_rng_state(), state)
    for found, expected in zip(weights(trained), by_hand(dataset, set()), strict=True):
        assert torch.equal(found, expected)
    for found, expected in zip(weights(removal), by_hand(dataset, set(chosen)), strict=True):
        assert torch.equal(found, expected)


def test_shards_without_a_marked_row_keep_their_weights(dataset):
    trained, removal = removed(dataset, in_slice(dataset, 1, 2)[:1])
    same = [torch.equal(*pair) for pair in zip(weights(trained), weights(removal), strict=True)]
    assert same == [True, False, True]
    assert removal.diagnostics["shards_retrained"] == 1


def test_only_the_stages_from_the_first_marked_slice_are_done_again(dataset, monkeypatch):
    people = in_slice(dataset, 0, 2)[:1] + in_slice(dataset, 0, 3)[:1] + in_slice(dataset, 2, 3)[:1]
    trained = method().fit(start(), dataset, progress=False)
    deletion = DeletionSet.of(people, dataset)
    seen: list[tuple[int, int]] = []

    def counted(model, examples, settings, **options):
        history = train(model, examples, settings, **options)
        seen.append((len(examples), history.steps))
        return history

    monkeypatch.setattr(sisa, "train", counted)
    removal = method().remove(trained, deletion, progress=False)
    # 120 rows in 12 slices of 10; shard 0 loses 2 rows of slice 2 and 2 of slice 3.
    assert [size for size, _ in seen] == [28, 36, 38]
    assert [steps for _, steps in seen] == [EPOCHS * 4, EPOCHS * 5, EPOCHS * 5]
    assert removal.parameters["steps"] == removal.history.steps == 28
    assert removal.diagnostics["slices_retrained"] == 3
    # Two shards did the last stage: their mean curve, after the one of stage 2.
    assert len(removal.history.loss) == 2 * EPOCHS


def test_marked_rows_have_no_effect_whatsoever(dataset):
    people = [f"p{number}" for number in range(0, 60, 7)]
    rows = dataset.train.owned_by(people)
    spoiled = copy.deepcopy(dataset.train)
    spoiled.features[rows] = torch.randn(len(rows), 3, dtype=torch.float64) * 100
    spoiled.labels[rows] = 1 - spoiled.labels[rows]
    other = replace(dataset, train=spoiled)
    trained, expected = removed(dataset, people)
    trained_other, found = removed(other, people)
    assert not torch.equal(flat(trained.predictor), flat(trained_other.predictor))
    assert torch.equal(flat(found.predictor), flat(expected.predictor))


def test_a_shard_without_rows_is_left_out_of_the_vote(dataset):
    people = [name for number in range(SLICES) for name in in_slice(dataset, 1, number)]
    _, removal = removed(dataset, people)
    assert removal.predictor.voting.tolist() == [True, False, True]
    assert removal.diagnostics["shards_silenced"] == 1
    assert torch.equal(weights(removal)[1], flat(start()))  # nothing learnt, nothing kept
    members = removal.predictor.members
    features = dataset.test.features
    shares = [logits(members[number], features).softmax(1) for number in (0, 2)]
    torch.testing.assert_close(
        logits(removal.predictor, features), torch.stack(shares).mean(0).log()
    )


def test_no_rows_at_all_are_refused(dataset):
    trained = method().fit(start(), dataset, progress=False)
    everybody = DeletionSet(dataset, ("p0",), torch.arange(N), torch.zeros(0, dtype=torch.long))
    with pytest.raises(DeletionError, match="no training row is left in any of the 3 shards"):
        method().remove(trained, everybody, progress=False)


@pytest.mark.parametrize("assignment", ["random", "ordered"])
def test_people_are_dealt_out_whole_and_evenly(dataset, assignment):
    places = method(assignment=assignment)._places(dataset.train)
    assert torch.bincount(places, minlength=12).tolist() == [10] * 12
    for person in set(dataset.train.subject_ids.tolist()):
        assert len(places[dataset.train.owned_by([person])].unique()) == 1
    spoiled = replace(dataset.train, features=dataset.train.features * 3)
    assert torch.equal(method(assignment=assignment)._places(spoiled), places)


def test_ordered_follows_the_data_and_random_the_seed(dataset):
    ordered = method(assignment="ordered")._places(dataset.train)
    assert ordered[:60].tolist() == [row // 5 for row in range(60)]
    random = [method(seed=seed)._places(dataset.train) for seed in (0, 0, 1)]
    assert torch.equal(random[0], random[1])
    assert not torch.equal(random[0], random[2])


def test_ordered_people_cost_one_shard(dataset):
    people = [f"p{number}" for number in range(50, 60)]
    _, removal = removed(dataset, people, assignment="ordered")
    assert removal.diagnostics["shards_retrained"] == 1
    assert removal.diagnostics["slices_retrained"] == 2


def test_somebody_with_very_many_rows_stays_in_one_slice():
    examples = blobs(60, seed=0)
    people = np.array(["giant"] * 40 + [f"p{row}" for row in range(20)])
    places = method()._places(replace(examples, subject_ids=people))
    assert len(places[:40].unique()) == 1
    with pytest.raises(DataError, match=r"60 training rows of 1 people fill 1 of 3 shards; lower"):
        method()._places(replace(examples, subject_ids=np.array(["giant"] * 60)))


@pytest.mark.parametrize(("slices", "epochs"), [(1, 50), (3, 25), (5, 17), (9, 10), (200, 1)])
def test_stages_visit_about_as_many_examples_as_plain_training(slices, epochs):
    found = SISA(slices=slices, training=TrainingSettings(epochs=50)).epochs_per_slice
    assert found == epochs
    visits = epochs * sum(stage / slices for stage in range(1, slices + 1))
    if epochs > 1:
        assert visits == pytest.approx(50, rel=0.03)


def test_fit_leaves_the_model_alone_and_says_what_it_did(dataset):
    model = start()
    trained = method().fit(model, dataset, progress=False)
    assert torch.equal(flat(model), flat(start()))
    assert [flat(member).equal(flat(model)) for member in trained.initial.members] == [True] * 3
    assert trained.original == "sisa_original"
    assert not any(module.training for module in trained.predictor.modules())
    assert len(trained.history.loss) == EPOCHS * SLICES
    assert trained.parameters["epochs_per_slice"] == EPOCHS
    visits = [10 * (stage + 1) for stage in range(SLICES)]
    assert trained.history.steps == SHARDS * EPOCHS * sum(-(-rows // 8) for rows in visits)


@pytest.mark.slow
def test_temporary_records_live_as_long_as_the_model(dataset, tmp_path):
    trained = method().fit(start(), dataset, progress=False)
    folder = trained.records
    assert len(list(folder.glob("*.pt"))) == SHARDS * SLICES
    del trained
    gc.collect()
    assert not folder.exists()
    kept = method().fit(start(), dataset, records=tmp_path / "kept", progress=False)
    assert kept.records == tmp_path / "kept"
    del kept
    gc.collect()
    assert len(list((tmp_path / "kept").glob("*.pt"))) == SHARDS * SLICES


def test_records_hold_no_row_and_no_id(dataset, tmp_path):
    people = np.array([f"secret-{name}" for name in dataset.train.subject_ids])
    data = replace(dataset, train=replace(dataset.train, subject_ids=people))
    method().fit(start(), data, records=tmp_path, progress=False)
    for path in tmp_path.iterdir():
        assert b"secret" not in path.read_bytes()


@pytest.mark.parametrize(
    ("changed", "named"),
    [({"seed": 6}, "seed"), ({"slices": 3}, "slices"), ({"vote": "majority"}, "vote")],
)
def test_records_of_another_training_are_refused(dataset, changed, named):
    trained = method().fit(start(), dataset, progress=False)
    deletion = DeletionSet.of(["p1"], dataset)
    with pytest.raises(ModelError, match=f"another {named}; train the original again"):
        method(**changed).remove(trained, deletion, progress=False)


def test_incomplete_or_absent_records_are_refused(dataset, tmp_path):
    trained = method().fit(start(), dataset, records=tmp_path, progress=False)
    deletion = DeletionSet.of(["p1"], dataset)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(ModelError, match="no complete records of a training"):
        method().remove(trained, deletion, progress=False)
    with pytest.raises(ModelError, match="carries no records, which sisa removes by"):
        method().remove(replace(trained, records=None), deletion, progress=False)


def test_every_method_removes_from_its_own_kind_of_original(dataset):
    deletion = DeletionSet.of(["p1"], dataset)
    sharded = method().fit(start(), dataset, progress=False)
    for other in (Retrain(), PUMA()):
        with pytest.raises(ModelError, match=r"removes from 'original', .* as 'sisa_original'"):
            other.remove(sharded, deletion, progress=False)
    plain = Trained(start(), dataset, start())
    with pytest.raises(ModelError, match=r"'sisa_original', .* 'original'; pass what SISA\.fit"):
        method().remove(plain, deletion, progress=False)
