"""The oracle is the training of each model alone, which tests/models/test_training.py checks."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from puma.data import Examples
from puma.errors import DataError, ModelError
from puma.models import mlp
from puma.models.batched import stackable, train_many
from puma.models.training import train
from puma.settings import TrainingSettings

SEEDS = [5, 0, 8, 5]
COUNTS = [9, 7, 12, 4]  # batches of 4: a last one of one row, a ragged, a full, a single one
SETTINGS = TrainingSettings(epochs=4, learning_rate=0.02, batch_size=4)
PLAIN = {
    "linear": lambda: nn.Linear(16, 3),
    "mlp": lambda: mlp(16, 3, (6, 5)),
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
    ),
    "frozen": lambda: nn.Sequential(nn.Linear(16, 4).requires_grad_(False), nn.Linear(4, 3)),
    "layer norm": lambda: nn.Sequential(nn.Linear(16, 4), nn.LayerNorm(4), nn.Linear(4, 3)),
}


class Drawing(nn.Linear):
    def forward(self, batch: Tensor) -> Tensor:
        return super().forward(dropout(batch, 0.5))


class Branching(nn.Linear):
    def forward(self, batch: Tensor) -> Tensor:
        return super().forward(batch if batch.sum() > 0 else -batch)


class Mixing(nn.Linear):
    def forward(self, batch: Tensor) -> Tensor:
        return super().forward(batch - batch.mean(0))


class Projecting(nn.Linear):
    def __init__(self) -> None:
        super().__init__(16, 3)
        self.direction = torch.randn(16)

    def forward(self, batch: Tensor) -> Tensor:
        return super().forward(batch * self.direction)


ALONE = {
    "batchnorm": lambda: nn.Sequential(nn.Linear(16, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
    "batchnorm without buffers": lambda: nn.Sequential(
        nn.BatchNorm1d(16, track_running_stats=False), nn.Linear(16, 3)
    ),
    "dropout": lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 3)),
    "drawing": lambda: Drawing(16, 3),
    "branching": lambda: Branching(16, 3),
    "mixing": lambda: Mixing(16, 3),
    "projecting": Projecting,
    "recurrent": lambda: Recurrent(),
}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.last = nn.GRU(4, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, batch: Tensor) -> Tensor:
        return self.last(self.cells(batch.unflatten(1, (4, 4)))[0][:, -1])


def data() -> Examples:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(20, 16, generator=generator, dtype=torch.float64)
    return Examples.of(features, torch.arange(20) % 3)


def chosen() -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randperm(20, generator=generator)[:count] for count in COUNTS]


def fresh(make) -> list[nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return [make().double() for _ in COUNTS]


def weights(model: nn.Module) -> Tensor:
    return torch.cat([each.detach().flatten() for each in model.state_dict().values()])


def assert_trained_alike(
    make, settings: TrainingSettings, atol: float, steps: int | None = None
) -> None:
    together, alone = fresh(make), fresh(make)
    options = {"steps": steps, "progress": False}
    found = train_many(together, data(), chosen(), settings, seeds=SEEDS, **options)
    for k, (rows, seed) in enumerate(zip(chosen(), SEEDS, strict=True)):
        before = weights(alone[k])
        expected = train(alone[k], data().subset(rows), settings, seed=seed, **options)
        torch.testing.assert_close(weights(together[k]), weights(alone[k]), rtol=0, atol=atol)
        assert (weights(together[k]) - before).abs().max() > 1e-2
        assert found[k].steps == expected.steps
        assert found[k].loss == pytest.approx(expected.loss, abs=1e-9)
        assert not any(module.training for module in together[k].modules())


@pytest.mark.parametrize("name", PLAIN)
def test_each_model_is_trained_as_if_alone(name: str) -> None:
    assert stackable(fresh(PLAIN[name])[0], data().features, SETTINGS)
    assert_trained_alike(PLAIN[name], SETTINGS, 1e-9)


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"weight_decay": 0.3}, None),
        ({"learning_rate_schedule": "one_cycle"}, None),
        ({"learning_rate_schedule": "one_cycle"}, 5),
        ({"batch_size": 1000}, None),
        ({"batch_size": 1}, None),
        ({}, 5),
    ],
)
def test_every_setting_means_the_same(changes: dict[str, object], steps: int | None) -> None:
    assert_trained_alike(PLAIN["mlp"], SETTINGS.model_copy(update=changes), 1e-9, steps)


@pytest.mark.parametrize("name", ALONE)
def test_what_does_not_stack_is_trained_alone(name: str) -> None:
    model = fresh(ALONE[name])[0]
    before = copy.deepcopy(model)
    state = torch.get_rng_state()
    assert not stackable(model, data().features, SETTINGS)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(weights(model), weights(before))
    assert_trained_alike(ALONE[name], SETTINGS, 0.0)


def test_a_model_does_not_depend_on_those_beside_it() -> None:
    every, one = fresh(PLAIN["mlp"]), fresh(PLAIN["mlp"])[1:2]
    train_many(every, data(), chosen(), SETTINGS, seeds=SEEDS, progress=False)
    train_many(one, data(), chosen()[1:2], SETTINGS, seeds=SEEDS[1:2], progress=False)
    torch.testing.assert_close(weights(every[1]), weights(one[0]), rtol=0, atol=1e-12)


def test_what_train_refuses_is_refused() -> None:
    def run(rows: list[Tensor], settings: TrainingSettings = SETTINGS, **options: int) -> None:
        models = fresh(PLAIN["mlp"])
        train_many(models, data(), rows, settings, seeds=SEEDS, progress=False, **options)

    with pytest.raises(DataError, match="cannot train on 0 examples"):
        run([*chosen()[:3], torch.arange(0)])
    with pytest.raises(DataError, match="at least one step, got 0"):
        run(chosen(), steps=0)
    with pytest.raises(ModelError, match=r"training diverged in epoch \d .*now 1e\+200"):
        run(chosen(), SETTINGS.model_copy(update={"learning_rate": 1e200}))
    with pytest.raises(ModelError, match=r"training diverged in epoch 1 \(loss \d"):
        run(chosen(), SETTINGS.model_copy(update={"learning_rate": 1e308}), steps=1)
    models = [nn.Linear(16, 2).double() for _ in COUNTS]
    with pytest.raises(ModelError, match="one output per class"):
        train_many(models, data(), chosen(), SETTINGS, seeds=SEEDS, progress=False)


def test_no_models_are_no_work() -> None:
    assert train_many([], data(), [], SETTINGS, seeds=[], progress=False) == []
