"""Weights of exported graphs, read and replaced as ``torch.export`` itself has them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._export.serde.schema import ScalarType

from puma.models import new_model
from puma.registry.archive import DTYPES, GraphArchive
from puma.settings import ModelSettings


class Tied(nn.Module):
    """Two names of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, features: Tensor) -> Tensor:
        return self.second(self.first(features).tanh())


def small_densenet() -> nn.Module:
    settings = ModelSettings(name="densenet", growth=2, blocks=(1, 1))
    return new_model(settings, (1, 8, 8), 3, seed=0).eval()  # buffers, and one of integers


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: new_model(ModelSettings(hidden=(5,)), (4,), 3, seed=0).eval(), (4,)),
    "densenet": (small_densenet, (1, 8, 8)),
    "tied": (lambda: Tied().eval(), (4,)),
    "double": (lambda: nn.Linear(4, 2).double().eval(), (4,)),
}


def exported(model: nn.Module, shape: tuple[int, ...], path: Path) -> Path:
    dtype = next(model.parameters()).dtype
    program = torch.export.export(model, (torch.zeros(2, *shape, dtype=dtype),))
    torch.export.save(program, path)
    return path


def read(path: Path) -> GraphArchive:
    archive = GraphArchive.read(path)
    assert archive is not None
    return archive


def test_types_are_called_what_pytorch_calls_them() -> None:
    names = {"int64": "LONG", "float32": "FLOAT", "float64": "DOUBLE"}
    assert {ScalarType[names[dtype.name]]: dtype for dtype in DTYPES.values()} == DTYPES


@pytest.mark.parametrize("network", NETWORKS)
def test_weights_are_read_and_replaced_as_pytorch_has_them(network: str, tmp_path: Path) -> None:
    make, shape = NETWORKS[network]
    path = exported(make(), shape, tmp_path / "model.pt2")
    archive = read(path)
    expected = torch.export.load(path).module().state_dict()
    assert archive.state.keys() == expected.keys()
    assert all(torch.equal(archive.state[name], each) for name, each in expected.items())

    other = make()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    content = archive.with_state(other.state_dict())
    assert content is not None
    changed = torch.export.load(io.BytesIO(content)).module()
    rows = torch.randn(2, *shape, dtype=next(other.parameters()).dtype)
    assert torch.equal(changed(rows), other(rows))
    (tmp_path / "other.pt2").write_bytes(content)
    assert read(tmp_path / "other.pt2").graph_digest == archive.graph_digest


def test_another_graph_has_another_digest(tmp_path: Path) -> None:
    layers = {"relu": nn.ReLU(), "tanh": nn.Tanh()}
    digests = [
        read(exported(nn.Sequential(nn.Linear(4, 2), layer), (4,), tmp_path / name)).graph_digest
        for name, layer in layers.items()
    ]
    assert digests[0] != digests[1]


def test_weights_that_do_not_fit_are_not_put_in(tmp_path: Path) -> None:
    archive = read(exported(Tied().eval(), (4,), tmp_path / "model.pt2"))
    state = Tied().state_dict()
    assert archive.with_state({name: state[name] for name in ("first.weight",)}) is None
    assert archive.with_state({name: each.double() for name, each in state.items()}) is None
    assert archive.with_state(state | {"first.bias": torch.zeros(5)}) is None
    assert archive.with_state(state | {"second.weight": torch.ones(4, 4)}) is None  # not tied


def test_what_is_laid_out_otherwise_is_left_to_pytorch(tmp_path: Path) -> None:
    whole = exported(NETWORKS["mlp"][0](), (4,), tmp_path / "model.pt2").read_bytes()
    transposed = nn.Linear(4, 2)
    transposed.weight = nn.Parameter(torch.randn(4, 2).T)
    left = {
        "half": exported(nn.Linear(4, 2).bfloat16(), (4,), tmp_path / "half").read_bytes(),
        "transposed": exported(transposed, (4,), tmp_path / "transposed").read_bytes(),
        "cut": whole[: len(whole) // 2],
        "text": b"no zip",
        "flipped": whole.replace(whole[200:210], bytes(byte ^ 1 for byte in whole[200:210]), 1),
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/models/model.json", "{}")
    left["without weights"] = buffer.getvalue()
    for name, content in left.items():
        path = tmp_path / "left.pt2"
        path.write_bytes(content)
        assert GraphArchive.read(path) is None, name
