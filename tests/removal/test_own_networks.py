"""Networks of all kinds of layers: trained, removed from, and exported as a graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from puma.data import Dataset, load_dataset
from puma.models import weights_digest
from puma.models.custom import require_contract, require_exportable
from puma.removal import PUMA
from puma.requests.deletion_set import DeletionSet
from puma.settings import TrainingSettings

# Each is trained and exported: seconds.
pytestmark = pytest.mark.slow


class Network(nn.Module):
    """Two numbers a row, as a sequence of two, through a body to two logits."""

    def __init__(self, body: nn.Module, width: int, call: Callable[[nn.Module, Tensor], Tensor]):
        super().__init__()
        self.body, self.head, self.call = body, nn.Linear(width, 2), call

    def forward(self, features: Tensor) -> Tensor:
        return self.head(self.call(self.body, features))


def lstm() -> nn.Module:
    body = nn.LSTM(1, 4, batch_first=True, bidirectional=True)
    return Network(body, 8, lambda layer, x: layer(x[..., None])[0][:, -1])


def attention() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
    body = nn.ModuleList([nn.Linear(1, 4), nn.TransformerEncoder(layer, 1)])
    return Network(body, 4, lambda parts, x: parts[1](parts[0](x[..., None])).mean(1))


def normalised() -> nn.Module:
    body = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.2))
    return Network(body, 8, lambda layer, x: layer(x))


def embedded() -> nn.Module:
    body = nn.Embedding(9, 3)
    return Network(
        body, 6, lambda layer, x: layer((2 * x).round().long().clamp(-4, 4) + 4).flatten(1)
    )


def tied() -> nn.Module:
    body = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2), nn.Tanh())
    body[2].weight = body[0].weight
    return Network(body, 2, lambda layer, x: layer(x))


def frozen() -> nn.Module:
    body = nn.Sequential(nn.Linear(2, 8).requires_grad_(False), nn.ReLU())
    return Network(body, 8, lambda layer, x: layer(x))


@pytest.fixture(scope="module")
def moons() -> Dataset:
    return load_dataset("two_moons", seed=0)


@pytest.mark.parametrize("build", [lstm, attention, normalised, embedded, tied, frozen])
def test_a_network_is_removed_from_and_exported(
    build: Callable[[], nn.Module], moons: Dataset
) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build()
    require_contract(build.__name__, model, moons.train.features, 2)
    method = PUMA(reference_models=1, training=TrainingSettings(epochs=4, learning_rate=0.01))
    trained = method.fit(model, moons, progress=False)
    people = DeletionSet.of(np.unique(moons.train.subject_ids)[:5].tolist(), moons)
    removal = method.remove(trained, people, progress=False)
    assert abs(removal.criterion_drift) <= method.budget + 1e-6
    before, after = trained.predictor, removal.predictor
    assert weights_digest(before) != weights_digest(after)
    for (name, old), (_, new) in zip(
        before.named_parameters(), after.named_parameters(), strict=True
    ):
        assert old.requires_grad == new.requires_grad, name
        assert old.requires_grad or torch.equal(old, new), name
    if build is tied:
        assert after.body[2].weight is after.body[0].weight
    require_exportable(build.__name__, after, (2,))
    batch = ({0: torch.export.Dim.AUTO},)
    graph = torch.export.export(after, (torch.zeros(2, 2),), dynamic_shapes=batch).module()
    with torch.no_grad():
        torch.testing.assert_close(graph(moons.test.features), after(moons.test.features))
    model.load_state_dict(graph.state_dict())
    assert weights_digest(model) == weights_digest(after)
