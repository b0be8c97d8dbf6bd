"""DenseNet-BC against Huang et al. (2017), written out in plain tensor functions."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn.functional import avg_pool2d, batch_norm, conv2d, linear, relu

from puma.data import Examples
from puma.errors import ModelError
from puma.models import load_weights, new_model, save_weights
from puma.models.training import train
from puma.settings import ModelSettings, TrainingSettings

MNIST, DIGITS = (1, 28, 28), (1, 8, 8)
SMALL = ModelSettings(name="densenet", blocks=(2, 1), growth=3, bottleneck=2)


def fresh(settings: ModelSettings = SMALL, shape: tuple[int, ...] = DIGITS) -> nn.Module:
    return new_model(settings, shape, 10, seed=0)


def images(n: int, shape: tuple[int, ...] = DIGITS) -> Tensor:
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(1))


def lived_in(model: nn.Module) -> nn.Module:
    """With running statistics that are no defaults, in eval mode and double precision."""
    model.double().train()
    for _ in range(3):
        model(2 * images(6).double() - 0.5)
    return model.eval()


def count_by_hand(growth: int, blocks: tuple[int, ...], bottleneck: int, classes: int) -> int:
    width = 2 * growth
    total = 9 * width  # the stem, for one channel of ink
    for position, layers in enumerate(blocks):
        for _ in range(layers):
            inner = bottleneck * growth
            total += 2 * width + width * inner + 2 * inner + 9 * inner * growth
            width += growth
        if position < len(blocks) - 1:
            total += 2 * width + width * (width // 2)
            width //= 2
    return total + 2 * width + width * classes + classes


@pytest.mark.parametrize("shape", [MNIST, DIGITS])
def test_the_default_has_58786_parameters(shape: tuple[int, ...]) -> None:
    model = fresh(ModelSettings(name="densenet"), shape)
    assert sum(parameter.numel() for parameter in model.parameters()) == 58_786
    assert count_by_hand(12, (2, 2, 2, 2), 4, 10) == 58_786
    assert model(images(3, shape)).shape == (3, 10)


@pytest.mark.parametrize(
    ("blocks", "growth", "bottleneck"), [((2, 1), 3, 2), ((1,), 4, 4), ((3, 2, 1), 5, 1)]
)
def test_sizes_are_honoured(blocks: tuple[int, ...], growth: int, bottleneck: int) -> None:
    settings = ModelSettings(name="densenet", blocks=blocks, growth=growth, bottleneck=bottleneck)
    counted = sum(parameter.numel() for parameter in fresh(settings).parameters())
    assert counted == count_by_hand(growth, blocks, bottleneck, 10)


def by_hand(state: dict[str, Tensor], x: Tensor, blocks: tuple[int, ...]) -> Tensor:
    def normalised(x: Tensor, name: str) -> Tensor:
        mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        return relu(batch_norm(x, mean, var, state[f"{name}.weight"], state[f"{name}.bias"]))

    x = conv2d(x, state["features.conv0.weight"], padding=1)
    for block, layers in enumerate(blocks, start=1):
        for layer in range(1, layers + 1):
            name = f"features.denseblock{block}.denselayer{layer}"
            inner = conv2d(normalised(x, f"{name}.norm1"), state[f"{name}.conv1.weight"])
            inner = normalised(inner, f"{name}.norm2")
            x = torch.cat([x, conv2d(inner, state[f"{name}.conv2.weight"], padding=1)], dim=1)
        if block < len(blocks):
            name = f"features.transition{block}"
            x = avg_pool2d(conv2d(normalised(x, f"{name}.norm"), state[f"{name}.conv.weight"]), 2)
    pooled = normalised(x, "features.norm5").flatten(2).mean(dim=2)
    return linear(pooled, state["classifier.weight"], state["classifier.bias"])


def test_the_network_is_densenet_bc_written_out() -> None:
    model, x = lived_in(fresh()), images(5).double()
    torch.testing.assert_close(model(x), by_hand(model.state_dict(), x, SMALL.blocks))


def test_nothing_works_in_place() -> None:
    model = fresh()
    activations = [module for module in model.modules() if isinstance(module, nn.ReLU)]
    assert activations
    assert not any(module.inplace for module in activations)
    # What a hook has seen must be what the layer gave, after the whole pass.
    seen: list[tuple[Tensor, Tensor]] = []
    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(lambda _m, _i, out: seen.append((out, out.clone())))
    model(images(4))
    assert all(torch.equal(kept, copied) for kept, copied in seen)


def test_forward_mode_derivatives_are_finite_differences() -> None:
    model, x = lived_in(fresh()), images(4).double()
    before = copy.deepcopy(model.state_dict())
    values = {name: value.detach() for name, value in model.named_parameters()}
    generator = torch.Generator().manual_seed(2)
    direction = {
        name: torch.randn(value.shape, generator=generator, dtype=value.dtype)
        for name, value in values.items()
    }

    def logits(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(model, parameters, (x,))

    def moved(step: float) -> Tensor:
        return logits({name: values[name] + step * direction[name] for name in values})

    value, slope = jvp(logits, (values,), (direction,))
    torch.testing.assert_close(value, model(x))
    torch.testing.assert_close(slope, (moved(1e-6) - moved(-1e-6)) / 2e-6, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())


def test_in_eval_mode_a_picture_does_not_depend_on_its_neighbours() -> None:
    model, x = lived_in(fresh()), images(5).double()
    torch.testing.assert_close(torch.cat([model(x[row : row + 1]) for row in range(5)]), model(x))


def test_the_seed_decides_the_weights_and_no_other_state() -> None:
    torch.manual_seed(7)
    expected = torch.rand(2)
    torch.manual_seed(7)
    first, again, other = (new_model(SMALL, DIGITS, 10, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.rand(2), expected)
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    assert not torch.equal(*(m.get_parameter("features.conv0.weight") for m in (first, other)))


def test_weights_survive_save_and_load(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("weights") / "model.pt"
    model = lived_in(fresh())
    save_weights(model, path)
    other = load_weights(fresh().double(), path).eval()
    assert torch.equal(other(images(3).double()), model(images(3).double()))


@pytest.mark.slow
def test_the_exported_program_takes_any_batch() -> None:
    model = lived_in(fresh()).float()
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (torch.zeros(2, *DIGITS),), dynamic_shapes=({0: batch},))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    restored = torch.export.load(buffer).module()
    for n in (1, 2, 7):
        torch.testing.assert_close(restored(images(n)), model(images(n)))


def test_it_learns_even_with_a_last_batch_of_one_image() -> None:
    # Four blocks leave 1×1 of 8×8: one image alone cannot be normalised there.
    settings = ModelSettings(name="densenet", blocks=(1, 1, 1, 1), growth=4, bottleneck=1)
    labels = torch.arange(33) % 2
    x = images(33) * 0.1 + labels[:, None, None, None] * torch.eye(8)
    model = new_model(settings, DIGITS, 2, seed=0)
    history = train(
        model,
        Examples.of(x, labels),
        TrainingSettings(epochs=12, learning_rate=0.01, batch_size=8),
        seed=0,
        progress=False,
    )
    assert history.steps == 12 * 4
    assert (model(x).argmax(1) == labels).all()


@pytest.mark.parametrize("shape", [(6,), (8, 8), (1, 2, 8, 8)])
def test_rows_of_numbers_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=r"images of shape \(channels, height, width\), got \("):
        fresh(SMALL, shape)


@pytest.mark.parametrize(("shape", "most"), [((1, 8, 9), 4), ((1, 7, 28), 3), ((3, 1, 5), 1)])
def test_pictures_that_are_halved_to_nothing_are_refused(shape: tuple[int, ...], most: int) -> None:
    def of(blocks: int) -> nn.Module:
        sizes = {"blocks": (1,) * blocks, "growth": 2, "bottleneck": 1}
        return fresh(ModelSettings(name="densenet", **sizes), shape)

    assert of(most)(images(3, shape)).shape == (3, 10)
    height, width = shape[1:]
    with pytest.raises(
        ModelError,
        match=rf"{most + 1} dense blocks halve images of {height}×{width} to "
        rf"nothing; give model\.blocks at most {most} entries",
    ):
        of(most + 1)
