from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from puma.audit import ATTACKS, Population, evidence
from puma.audit.evidence import train_references, train_shadows
from puma.data.base import Dataset
from puma.models.parallel import cores
from puma.removal import SISA, RemovalMethod, Retrain
from puma.requests.deletion_set import DeletionSet
from puma.settings import AuditSettings, ModelSettings, Settings, SisaSettings, TrainingSettings
from tests.audit.conftest import Planted, random_predictions

SETTINGS = Settings(
    seed=3,
    model=ModelSettings(hidden=(8,)),
    training=TrainingSettings(epochs=2, batch_size=100),
    sisa=SisaSettings(shards=2, slices=1),
    audit=AuditSettings(models=3, shadow_models=4, jobs=1),
)


@pytest.fixture
def request_of_ten(memory: Dataset) -> DeletionSet:
    return DeletionSet.of([f"train{row}" for row in range(10)], memory)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What every population would have been trained with, in place of the training."""
    recorded: list[dict[str, Any]] = []

    def record(
        _: Dataset, members: np.ndarray, trainer: RemovalMethod, model: ModelSettings, **rest: Any
    ) -> tuple[Population, None]:
        recorded.append({"members": members, "trainer": trainer, "model": model, **rest})
        return Population(np.zeros(members.shape), members, members), None

    monkeypatch.setattr(evidence, "train_models", record)
    return recorded


def test_shadows_are_trained_on_halves_of_all_rows(memory: Dataset) -> None:
    found = train_shadows(memory, SETTINGS, progress=False)
    assert found.margins.shape == (4, 400)
    assert (found.member.sum(0) == 2).all()
    assert (found.member.sum(1) == 200).all()
    assert len(np.unique(found.margins, axis=0)) == 4
    again = train_shadows(memory, SETTINGS, progress=False)
    np.testing.assert_array_equal(again.margins, found.margins)


def test_references_saw_everybody_or_everybody_but_the_removed(
    memory: Dataset, request_of_ten: DeletionSet
) -> None:
    found = train_references(memory, request_of_ten, "original", SETTINGS, progress=False)
    for models, first in zip(found, (0, 10), strict=True):
        expected = [first <= row < 200 for row in range(400)]
        assert models.member.tolist() == [expected] * 3
        assert len(np.unique(models.margins, axis=0)) == 3
    assert not np.intersect1d(found[0].margins[:, 0], found[1].margins[:, 0]).size


def test_seeds_differ_from_each_other_and_from_the_originals(
    memory: Dataset, request_of_ten: DeletionSet, calls: list[dict[str, Any]]
) -> None:
    train_shadows(memory, SETTINGS)
    train_references(memory, request_of_ten, "original", SETTINGS)
    seeds = [call["seed"] for call in calls]
    assert len({*seeds, SETTINGS.seed}) == 4
    train_shadows(memory, SETTINGS.model_copy(update={"seed": 4}))
    assert calls[-1]["seed"] not in seeds
    assert not np.array_equal(calls[-1]["members"], calls[0]["members"])


@pytest.mark.parametrize(("original", "kind"), [("original", Retrain), ("sisa_original", SISA)])
def test_references_are_trained_as_their_original_was(
    memory: Dataset,
    request_of_ten: DeletionSet,
    calls: list[dict[str, Any]],
    original: str,
    kind: type[RemovalMethod],
) -> None:
    train_references(memory, request_of_ten, original, SETTINGS)
    assert len(calls) == 2
    for call in calls:
        assert type(call["trainer"]) is kind
        assert call["trainer"].training == SETTINGS.training
        assert call["model"] == SETTINGS.model
    assert kind is Retrain or calls[0]["trainer"].shards == 2
    assert len({call["label"] for call in calls}) == 2
    train_shadows(memory, SETTINGS)  # which are plain models, whatever the original
    assert type(calls[-1]["trainer"]) is Retrain


@pytest.mark.parametrize(("jobs", "expected"), [(1, 1), (5, 5), (None, cores())])
def test_the_settings_say_in_how_many_processes(
    memory: Dataset,
    request_of_ten: DeletionSet,
    calls: list[dict[str, Any]],
    jobs: int | None,
    expected: int,
) -> None:
    audit = SETTINGS.audit.model_copy(update={"jobs": jobs})
    settings = SETTINGS.model_copy(update={"audit": audit})
    train_shadows(memory, settings)
    train_references(memory, request_of_ten, "original", settings)
    assert [call["jobs"] for call in calls] == [expected] * 3


def test_evidence_brings_all_attacks(planted: Planted) -> None:
    found, predictions = planted.evidence, random_predictions(50, 0)
    assert set(found.attacks) == {*ATTACKS, "shadow", "lira"}
    for name, run in found.attacks.items():
        own = {"shadow": found.shadow.scores, "lira": found.lira.scores}
        np.testing.assert_array_equal(run(predictions), {**ATTACKS, **own}[name](predictions))
