from __future__ import annotations

import os
import pickle
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from puma.data import Dataset, Examples
from puma.errors import ModelError
from puma.models import build_model, load_weights, mlp, new_model, save_weights, weights_digest
from puma.models.custom import require_exportable
from puma.settings import ModelSettings

SMALL = ModelSettings(hidden=(5, 4))


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    features = torch.randn(9, 6, generator=torch.Generator().manual_seed(0))
    rows = Examples.of(features, torch.arange(9) % 3)
    return Dataset("toy", rows, rows, tuple("abc"))


def same(left: nn.Module, right: nn.Module) -> bool:
    pairs = zip(left.state_dict().items(), right.state_dict().items(), strict=True)
    return all(a[0] == b[0] and torch.equal(a[1], b[1]) for a, b in pairs)


def test_the_paper_s_network_is_64_32_with_relu(dataset: Dataset) -> None:
    model = build_model(ModelSettings(), dataset, seed=0)
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    assert shapes == {
        "0.weight": (64, 6),
        "0.bias": (64,),
        "2.weight": (32, 64),
        "2.bias": (32,),
        "4.weight": (3, 32),
        "4.bias": (3,),
    }
    hidden = dataset.train.features
    for layer in ("0", "2"):
        weight, bias = (model.get_parameter(f"{layer}.{part}") for part in ("weight", "bias"))
        hidden = (hidden @ weight.T + bias).clamp_min(0)
    expected = hidden @ model.get_parameter("4.weight").T + model.get_parameter("4.bias")
    torch.testing.assert_close(model(dataset.train.features), expected)


def test_without_hidden_layers_the_network_is_linear() -> None:
    (layer,) = mlp(6, 3, hidden=())
    assert isinstance(layer, nn.Linear)
    assert layer.weight.shape == (3, 6)


def test_linear_is_one_layer_whatever_the_hidden_sizes_are(dataset: Dataset) -> None:
    model = build_model(ModelSettings(name="linear"), dataset, seed=0)
    shapes = [tuple(parameter.shape) for parameter in model.parameters()]
    assert shapes == [(3, 6), (3,)]
    weight, bias = model.parameters()
    features = dataset.train.features
    torch.testing.assert_close(model(features), features @ weight.T + bias)


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_pictures_are_flattened(name: str) -> None:
    settings = ModelSettings(name=name, hidden=(5,))
    images = torch.randn(4, 2, 3, 5, generator=torch.Generator().manual_seed(0))
    flat = new_model(settings, (30,), 3, seed=1)
    expected = flat(images.reshape(4, 30))
    torch.testing.assert_close(new_model(settings, (2, 3, 5), 3, seed=1)(images), expected)


def test_the_seed_decides_the_weights(dataset: Dataset) -> None:
    first, again, other = (build_model(SMALL, dataset, seed=seed) for seed in (3, 3, 4))
    assert same(first, again)
    assert not same(first, other)
    torch.manual_seed(3)
    assert same(first, mlp(6, 3, (5, 4)))


def test_the_global_random_state_is_left_alone(dataset: Dataset) -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    build_model(SMALL, dataset, seed=5)
    assert torch.equal(torch.rand(3), expected)


def test_an_unknown_model_names_its_choices(dataset: Dataset) -> None:
    with pytest.raises(
        ModelError, match="unknown model 'resnet'; choose one of densenet, linear, mlp, or name"
    ):
        build_model(ModelSettings(name="resnet"), dataset, seed=0)


def own_models(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str) -> None:
    (folder / "shop").mkdir()
    (folder / "shop" / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(folder))


def test_a_model_of_the_user_s_own_is_called_with_shape_and_classes(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
        from torch import nn

        class Wide(nn.Linear):
            def __init__(self, shape, classes):
                assert type(shape) is tuple
                super().__init__(shape[0], classes, bias=False)

        def make(shape, classes):
            return nn.Sequential(Wide(shape, 7), nn.Linear(7, classes))
    """
    own_models(tmp_path, monkeypatch, "nets", textwrap.dedent(code))
    model = build_model(ModelSettings(name="shop.nets:Wide"), dataset, seed=2)
    assert type(model).__name__ == "Wide"
    assert model(dataset.train.features).shape == (9, 3)
    assert same(model, build_model(ModelSettings(name="shop.nets:Wide"), dataset, seed=2))
    assert not same(model, build_model(ModelSettings(name="shop.nets:Wide"), dataset, seed=3))
    made = build_model(ModelSettings(name="shop.nets:make"), dataset, seed=2)
    assert [tuple(p.shape) for p in made.parameters()] == [(7, 6), (3, 7), (3,)]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("shop.absent:Net", "ModuleNotFoundError: No module named 'shop.absent'"),
        ("nowhere_at_all:Net", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("shop.broken:Net", "ZeroDivisionError: division by zero"),
        ("shop.odd:Absent", "AttributeError: module 'shop.odd' has no attribute 'Absent'"),
        ("shop.odd:", "AttributeError"),
        (":Net", "ValueError: Empty module name"),
    ],
)
def test_what_cannot_be_imported_is_refused(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, problem: str
) -> None:
    own_models(tmp_path, monkeypatch, "odd", "")
    (tmp_path / "shop" / "broken.py").write_text("1 / 0")
    with pytest.raises(
        ModelError, match=rf"model '{name}' cannot be imported \({problem}"
    ) as caught:
        build_model(ModelSettings(name=name), dataset, seed=0)
    assert 'write "package.module:Class"' in str(caught.value)
    assert "PYTHONPATH" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("number", "is of type int; name a class or a function"),
        ("text", "returned str for shape \\(6,\\) and 3 classes; it must return a torch"),
        ("lazy", "returned type for shape"),
    ],
)
def test_what_makes_no_module_is_refused(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, problem: str
) -> None:
    code = """
        from torch import nn
        number = 3
        def text(shape, classes): return "a network"
        def lazy(shape, classes): return nn.Linear
    """
    own_models(tmp_path, monkeypatch, "wrong", textwrap.dedent(code))
    with pytest.raises(ModelError, match=rf"model 'shop\.wrong:{name}' {problem}"):
        build_model(ModelSettings(name=f"shop.wrong:{name}"), dataset, seed=0)


def test_kwargs_of_params_yaml_are_arguments_of_the_model(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
        from torch import nn
        def make(shape, classes, width, *, last=None, **more):
            assert last == ["a", 1.5, True] and more == {"deep": {"a": None}}
            return nn.Sequential(nn.Linear(shape[0], width), nn.Linear(width, classes))
    """
    own_models(tmp_path, monkeypatch, "nets", textwrap.dedent(code))
    kwargs = {"width": 7, "last": ["a", 1.5, True], "deep": {"a": None}}
    settings = ModelSettings(name="shop.nets:make", kwargs=kwargs)
    made = build_model(settings, dataset, seed=0)
    assert next(made.parameters()).shape == (7, 6)
    assert ModelSettings.model_validate_json(settings.model_dump_json()) == settings
    assert "kwargs" not in ModelSettings(name="shop.nets:make").model_dump()
    wrong = ModelSettings(name="shop.nets:make", kwargs={"wide": 7})
    text = (
        r"cannot be called as make\(shape, classes, wide=\.\.\.\): missing .*'width'.* model.kwargs"
    )
    with pytest.raises(ModelError, match=text):
        build_model(wrong, dataset, seed=0)
    with pytest.raises(ValueError, match=r"kwargs \(width\) are for a class of your own, and the"):
        ModelSettings(kwargs={"width": 3})
    with pytest.raises(ValueError, match="expected a finite number"):
        ModelSettings(name="shop.nets:make", kwargs={"width": [float("inf")]})


@pytest.mark.parametrize(
    ("forward", "problem"),
    [
        ("self.layer(x[:, :5])", r"raised RuntimeError for 3 rows of shape \(6,\) and .*mat1"),
        ("self.layer(x)[0]", r"returned shape \(3,\) of torch.float32 for 3 rows; a model of"),
        ("self.layer(x).T[:2].T", r"returned shape \(3, 2\) of .* \(B, 6\) to \(B, 3\) finite"),
        ("self.layer(x).argmax(1, keepdim=True).expand(-1, 3)", "returned shape .* of torch.int64"),
        ("(self.layer(x), x)", "returned tuple, no tensor; a model of your own maps a batch"),
        ("self.layer(x).squeeze()", r"returned shape \(3,\) for one row alone; .*take out squeeze"),
        ("self.layer(x).softmax(1)", "returned probabilities, which sum to 1 .*out the softmax"),
        ("self.layer(x) / 0", "returned NaN or infinite logits, untrained"),
        ("nn.functional.dropout(self.layer(x))", "returned other logits for the same rows the sec"),
        ("self.layer(x - x.mean(0))", "returned other logits for a row alone than .*statistics"),
        (
            "self.lazy(x)",
            "LazyLinear 'lazy' takes its size from the first batch, .*make it with its size",
        ),
    ],
)
def test_what_maps_no_rows_to_logits_is_refused_by_the_contract(
    dataset: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    forward: str,
    problem: str,
) -> None:
    lazy = "self.lazy = nn.LazyLinear(3)" if "lazy" in forward else "pass"
    code = f"""
        from torch import nn
        class Net(nn.Module):
            def __init__(self, shape, classes):
                super().__init__()
                self.layer = nn.Linear(6, 3)
                {lazy}
            def forward(self, x):
                return {forward}
    """
    own_models(tmp_path, monkeypatch, "nets", textwrap.dedent(code))
    with pytest.raises(ModelError, match=rf"^model 'shop\.nets:Net':? {problem}") as caught:
        build_model(ModelSettings(name="shop.nets:Net"), dataset, seed=0)
    wants = "eval mode" in str(caught.value) or "its size" in str(caught.value)
    assert wants or "docs/your-model.md" in str(caught.value)


def test_weights_of_half_precision_are_refused_by_layer(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
        from torch import nn
        def make(shape, classes):
            return nn.Sequential(nn.Linear(*shape, 4).bfloat16(), nn.Linear(4, classes))
    """
    own_models(tmp_path, monkeypatch, "halves", textwrap.dedent(code))
    with pytest.raises(
        ModelError, match=r"Linear '0' has weights or buffers of torch\.bfloat16; mak"
    ):
        build_model(ModelSettings(name="shop.halves:make"), dataset, seed=0)


class Branching(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return features if features.sum() > 0 else -features


class Sized(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return features + torch.arange(2.0)[:, None].expand(2, 6)


@pytest.mark.slow
def test_a_network_that_the_registry_cannot_hold_is_refused_by_layer() -> None:
    require_exportable("shop:Net", nn.Sequential(nn.Linear(6, 6), nn.Dropout(), nn.ReLU()), (6,))
    for layer, text in (
        (Branching(), r"cannot be exported at Branching '1' \(.*torch\.where, and operations"),
        (Sized(), r"cannot be exported.*sizes written as numbers"),
    ):
        with pytest.raises(ModelError, match=rf"^model 'shop:Net' {text}"):
            require_exportable("shop:Net", nn.Sequential(nn.Linear(6, 6), layer), (6,))


def test_modules_are_found_beside_params_yaml(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "params.yaml").write_text("seed: 0")
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "shop.py").write_text(
        "from torch import nn\ndef make(shape, classes): return nn.Linear(shape[0], classes)"
    )
    monkeypatch.chdir(tmp_path / "notebooks")
    path = list(sys.path)
    assert build_model(ModelSettings(name="shop:make"), dataset, seed=0).out_features == 3
    assert sys.path == path


def test_errors_of_the_user_s_own_code_keep_their_traceback(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_models(tmp_path, monkeypatch, "fails", "def make(shape, classes): return 1 / 0")
    with pytest.raises(ZeroDivisionError):
        build_model(ModelSettings(name="shop.fails:make"), dataset, seed=0)


@pytest.fixture(autouse=True)
def _forget_own_models() -> Iterator[None]:
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "shop"]:
        del sys.modules[name]


def with_buffers(seed: int) -> nn.Module:
    """Weights, float buffers and an integer counter that are no defaults."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model(torch.randn(8, 6))
    return model


def test_weights_and_buffers_survive_save_and_load(tmp_path: Path) -> None:
    original = with_buffers(1)
    save_weights(original, tmp_path / "new" / "model.pt")
    other = with_buffers(2)
    other(torch.randn(8, 6))
    restored = load_weights(other, tmp_path / "new" / "model.pt")
    assert restored is other
    assert same(restored, original)
    assert restored.get_buffer("1.num_batches_tracked") == 1
    assert weights_digest(restored) == weights_digest(original)


def test_the_file_s_bytes_depend_on_the_weights_alone(tmp_path: Path) -> None:
    paths = [tmp_path / "a.pt", tmp_path / "deeper" / "another-name.pt", tmp_path / "b.bin"]
    for path in paths[:2]:
        save_weights(with_buffers(1), path)
    save_weights(load_weights(with_buffers(2), paths[0]), paths[2])
    assert len({path.read_bytes() for path in paths}) == 1
    save_weights(with_buffers(2), paths[1])
    assert paths[0].read_bytes() != paths[1].read_bytes()


def test_digest_changes_with_every_single_entry() -> None:
    model = with_buffers(1)
    digests = [weights_digest(model)]
    for value in model.state_dict().values():
        flat: Tensor = value.view(-1)
        for entry in range(flat.numel()):
            before = flat[entry].clone()
            flat[entry] = torch.nextafter(before, before + 1) if before.is_floating_point() else 9
            digests.append(weights_digest(model))
            flat[entry] = before
    assert weights_digest(model) == digests[0]
    assert len(digests) == 1 + (6 * 4 + 4) + (4 * 4 + 1) + (4 * 3 + 3)
    assert len(set(digests)) == len(digests)


def test_digest_sees_names_shapes_and_types() -> None:
    def holding(name: str, value: Tensor) -> nn.Module:
        model = nn.Module()
        model.register_buffer(name, value)
        return model

    models = [
        holding("a", torch.zeros(2, 3)),
        holding("b", torch.zeros(2, 3)),
        holding("a", torch.zeros(3, 2)),
        holding("a", torch.zeros(2, 3, dtype=torch.int32)),
    ]
    assert len({weights_digest(model) for model in models}) == 4


def test_digest_ignores_memory_layout_and_gradients() -> None:
    model, other = nn.Linear(4, 3), nn.Linear(4, 3)
    other.load_state_dict(model.state_dict())
    other.weight = nn.Parameter(model.weight.detach().T.contiguous().T)
    other(torch.randn(2, 4)).sum().backward()
    assert weights_digest(other) == weights_digest(model)


def test_absent_weights_name_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.pt: no such weights; run the stage"):
        load_weights(nn.Linear(2, 2), tmp_path / "model.pt")


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (mlp(6, 3, (5,)), "Missing key|Unexpected key"),
        (mlp(6, 3, (4, 5)), "size mismatch"),
        (mlp(7, 3, (5, 4)), "size mismatch"),
        (mlp(6, 2, (5, 4)), "size mismatch"),
    ],
)
def test_weights_of_another_architecture_are_refused(
    tmp_path: Path, other: nn.Module, problem: str
) -> None:
    save_weights(other, tmp_path / "model.pt")
    with pytest.raises(ModelError, match=rf"not the weights of this model \((.|\n)*{problem}"):
        load_weights(mlp(6, 3, (5, 4)), tmp_path / "model.pt")


class Attack:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("writer", ["pickle", "torch", "nested"])
def test_a_file_that_would_run_code_is_refused(tmp_path: Path, writer: str) -> None:
    path, target = tmp_path / "model.pt", tmp_path / "pwned"
    if writer == "pickle":
        path.write_bytes(pickle.dumps(Attack(target), protocol=2))
    else:
        hidden = {**nn.Linear(2, 2).state_dict(), "extra": Attack(target)}
        torch.save(Attack(target) if writer == "torch" else hidden, path)
    with pytest.raises(ModelError, match=r"model\.pt: not the weights of this model"):
        load_weights(nn.Linear(2, 2), path)
    assert not target.exists()
    # The attack was a real one: a reader that trusts the file runs it.
    if writer == "pickle":
        pickle.loads(path.read_bytes())
    else:
        torch.load(path, weights_only=False)
    assert target.exists()


@pytest.mark.parametrize("content", [b"", b"weights", b"PK\x03\x04broken"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.pt").write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.pt: not the weights of this model"):
        load_weights(nn.Linear(2, 2), tmp_path / "model.pt")


def test_a_saved_module_or_tensor_is_no_state_dict(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    for content in (nn.Linear(2, 2), torch.zeros(3), [1]):
        torch.save(content, path)
        with pytest.raises(ModelError, match=r"model\.pt: not the weights of this model"):
            load_weights(nn.Linear(2, 2), path)
