from __future__ import annotations

import pytest
import torch
from torch import nn

from puma.data import Examples
from puma.errors import DataError, ModelError, SettingsError, SolverError
from puma.influence import FlatModel, GaussNewtonRows
from puma.influence.gauss_newton_rows import _draw
from puma.influence.layer_gradients import FEW_CHANNELS, LayerRows
from puma.influence.solvers.cholesky import materialise
from tests.cases import DOUBLE, PROBLEMS, convolutional, mlp, problem, random_examples
from tests.oracles import dense_gauss_newton, per_example_jacobians

EXACT = {"rtol": 1e-12, "atol": 1e-13}
VARIANTS = {
    "1 x 1": lambda c: nn.Conv2d(c, 3, 1),
    "strided 1 x 1": lambda c: nn.Conv2d(c, 3, 1, stride=2),
    "dilated": lambda c: nn.Conv2d(c, 3, (2, 3), stride=(1, 2), padding=(2, 1), dilation=2),
    "depthwise": lambda c: nn.Conv2d(c, 2 * c, 3, padding=1, groups=c),
    "grouped": lambda c: nn.Conv2d(c, 4, 3, groups=2, bias=False),
    "same": lambda c: nn.Conv2d(c, 3, 2, padding="same"),
    "valid": lambda c: nn.Conv2d(c, 3, 2, padding="valid"),
    "circular": lambda c: nn.Conv2d(c, 3, 3, padding=1, padding_mode="circular"),
    "reflect": lambda c: nn.Conv2d(c, 3, 3, padding=1, padding_mode="reflect"),
    "linear per pixel": lambda _: nn.Linear(5, 2),
    "no affine": lambda c: nn.Sequential(nn.BatchNorm2d(c, affine=False), nn.Conv2d(c, 2, 3)),
}


def layer_rows(model, examples, seeds):
    flat = FlatModel(model)
    rows = torch.zeros(len(seeds), flat.size, dtype=flat.dtype)
    LayerRows(flat).fill(rows, examples.features, seeds)
    return rows


def assert_rows_equal_jacobians(model, examples):
    classes = model.eval()(examples.features).shape[1]
    generator = torch.Generator().manual_seed(3)
    seeds = torch.randn(len(examples), classes, generator=generator, dtype=DOUBLE)
    expected = torch.einsum("nc,ncp->np", seeds, per_example_jacobians(model, examples))
    torch.testing.assert_close(layer_rows(model, examples, seeds), expected, **EXACT)


@pytest.mark.parametrize("name", PROBLEMS)
def test_rows_equal_jacobians(name):
    assert_rows_equal_jacobians(*problem(name))


@pytest.mark.parametrize("channels", [2, 2 * FEW_CHANNELS])
@pytest.mark.parametrize("name", VARIANTS)
def test_rows_of_every_kind_of_layer(name, channels):
    torch.manual_seed(0)
    layer = VARIANTS[name](channels)
    model = nn.Sequential(layer, nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(3)).double()
    examples = random_examples(4, channels, 4, 5)
    model(examples.features)
    assert_rows_equal_jacobians(model, examples)


def test_a_layer_that_is_called_twice_adds_up():
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.Tanh(), layer, nn.ReLU(inplace=True), layer).double()
    assert_rows_equal_jacobians(model, random_examples(5, 3))


@pytest.mark.parametrize("batch_size", [None, 5])
@pytest.mark.parametrize("name", PROBLEMS)
def test_all_rows_give_the_whole_matrix(name, batch_size):
    model, examples = problem(name)
    matrix = GaussNewtonRows(FlatModel(model), examples, rows=None, batch_size=batch_size)
    assert matrix.exact
    assert matrix.factor.shape == (22, matrix.size)  # 11 examples, 3 − 1 eigenvectors each
    torch.testing.assert_close(materialise(matrix), dense_gauss_newton(model, examples), **EXACT)
    torch.testing.assert_close(matrix.kernel, matrix.factor @ matrix.factor.T, **EXACT)


def test_sampled_rows_are_unbiased():
    model, examples = mlp(), random_examples(11, 3)
    flat, whole = FlatModel(model), dense_gauss_newton(model, examples)
    factors = [GaussNewtonRows(flat, examples, rows=6, seed=seed).factor for seed in range(100)]
    assert max(len(factor) for factor in factors) == 6
    draws = torch.stack([factor.T @ factor for factor in factors])
    errors = (draws.mean(0) - whole) / (draws.std(0) / 100**0.5 + 1e-12)
    assert errors.abs().max() < 4.5  # of 741 different entries, the largest of as many normals
    assert (draws[0] - whole).norm() > 0.05 * whole.norm()
    trace = draws.diagonal(dim1=1, dim2=2).sum(1).mean()
    assert trace == pytest.approx(whole.trace().item(), rel=0.02)


def test_a_row_that_is_drawn_often_is_computed_once():
    torch.manual_seed(0)
    model = nn.Linear(3, 3).double()
    features = torch.cat([1e3 * torch.randn(10, 3, dtype=DOUBLE), torch.zeros(1, 3, dtype=DOUBLE)])
    examples = Examples.of(features, torch.zeros(11, dtype=torch.long))
    flat, whole = FlatModel(model), dense_gauss_newton(model, examples)
    # All curvature is that of the last example: the others are predicted with certainty.
    factors = [GaussNewtonRows(flat, examples, rows=9, seed=seed).factor for seed in range(200)]
    assert max(map(len, factors)) <= 3 < 9
    directions = factors[0] / factors[0].norm(dim=1, keepdim=True)
    torch.testing.assert_close(
        directions @ directions.T, torch.eye(len(directions), dtype=DOUBLE), atol=1e-6, rtol=0
    )
    mean = torch.stack([factor.T @ factor for factor in factors]).mean(0)
    torch.testing.assert_close(mean, whole, rtol=0.15, atol=0.05 * whole.abs().max().item())


def test_the_weights_of_preferred_examples_undo_the_preference():
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=DOUBLE)
    preference = torch.tensor([8.0, 4.0, 2.0, 1.0, 0.5], dtype=DOUBLE)
    means, counts = [], torch.zeros(5, dtype=DOUBLE)
    for seed in range(2_000):
        chosen, weights = _draw(preference, 3, torch.Generator().manual_seed(seed))
        means.append(weights @ values[chosen])
        counts += torch.bincount(chosen, minlength=5)
    torch.testing.assert_close(
        counts / counts.sum(), preference / preference.sum(), atol=0.02, rtol=0
    )
    means = torch.stack(means)
    assert abs(means.mean() - values.mean()) < 3 * means.std() / 2_000**0.5


def test_a_seed_decides_and_the_global_state_is_left_alone():
    flat, examples, before = FlatModel(mlp()), random_examples(11, 3), torch.get_rng_state()
    first, again, other = (
        GaussNewtonRows(flat, examples, rows=6, seed=seed).factor for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_certain_predictions_have_no_curvature():
    model = nn.Linear(3, 3).double()
    nn.init.zeros_(model.weight)
    model.bias.data = torch.tensor([0.0, 1e4, 0.0], dtype=DOUBLE)
    matrix = GaussNewtonRows(FlatModel(model), random_examples(11, 3), rows=4)
    assert torch.equal(matrix.factor, torch.zeros(4, 12, dtype=DOUBLE))


def test_two_classes_need_one_row_each():
    torch.manual_seed(0)
    model, examples = nn.Linear(3, 2).double(), random_examples(11, 3, classes=2)
    matrix = GaussNewtonRows(FlatModel(model), examples, rows=11)
    assert matrix.exact
    torch.testing.assert_close(materialise(matrix), dense_gauss_newton(model, examples), **EXACT)


def test_single_precision():
    model, examples = convolutional(), random_examples(9, 1, 4, 4)
    single = Examples.of(examples.features.float(), examples.labels)
    matrix = GaussNewtonRows(FlatModel(convolutional().float()), single)
    assert (matrix.factor.dtype, matrix.kernel.dtype) == (torch.float32, torch.float64)
    expected = dense_gauss_newton(model, examples)
    torch.testing.assert_close(materialise(matrix).double(), expected, rtol=1e-4, atol=1e-6)


def test_memory_is_bounded_before_anything_is_computed():
    flat, examples = FlatModel(mlp()), random_examples(100, 3)
    message = r"200 rows of 38 parameters take 0\.7008 MB, max_bytes allows 0\.1 MB; lower rows to"
    with pytest.raises(SolverError, match=message) as caught:
        GaussNewtonRows(flat, examples, rows=None, max_bytes=100_000)
    rows = int(str(caught.value).split("lower rows to ")[1].split(" or")[0])
    GaussNewtonRows(flat, examples, rows=rows, max_bytes=100_000)
    with pytest.raises(SolverError, match="lower rows"):
        GaussNewtonRows(flat, examples, rows=rows + 1, max_bytes=100_000)


class WithUnused(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.unused = nn.Linear(3, 3)

    def forward(self, features):
        return self.first(features)


class UsedElsewhere(WithUnused):
    def forward(self, features):
        return self.first(features) @ self.first.weight


class TimeFirst(nn.Module):
    """Two halves of the features, side by side in the wrong order."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, features):
        return self.layer(features.unflatten(1, (2, 2)).transpose(0, 1)).sum(0)


class Rebatched(TimeFirst):
    def forward(self, features):
        return self.layer(features.view(-1, 2)).view(len(features), 2, 3).sum(1)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), r"LayerNorm '1' belong.*'cg'"),
        (lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 3)), "ParametrizationList"),
        (TimeFirst, r"per-example gradients of 'layer\.\w+' are not"),
        (Rebatched, "layer 'layer' got 4 entries for a batch of 2 examples"),
    ],
)
def test_layers_without_a_rule_are_refused_by_name(build, message):
    torch.manual_seed(0)
    matrix = GaussNewtonRows(FlatModel(build().double()), random_examples(1, 4))
    with pytest.raises(ModelError, match=message):
        _ = matrix.factor


def test_parameters_used_outside_of_their_layer_are_refused_by_name():
    torch.manual_seed(0)
    matrix = GaussNewtonRows(FlatModel(UsedElsewhere().double()), random_examples(5, 3))
    with pytest.raises(ModelError, match=r"per-example gradients of 'first\.weight' are not"):
        _ = matrix.factor


def test_a_frozen_layer_needs_no_rule_and_an_unused_one_gets_zeros():
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(3).requires_grad_(False), nn.Linear(3, 3)).double()
    assert_rows_equal_jacobians(model, random_examples(5, 3))
    assert_rows_equal_jacobians(WithUnused().double(), random_examples(5, 3))


def test_bad_settings_are_refused():
    flat, examples = FlatModel(mlp()), random_examples(5, 3)
    with pytest.raises(SettingsError, match="rows must be >= 1, or None for all, got 0"):
        GaussNewtonRows(flat, examples, rows=0)
    with pytest.raises(SettingsError, match="max_bytes must be >= 1"):
        GaussNewtonRows(flat, examples, max_bytes=0)
    with pytest.raises(SettingsError, match=r"seed must be a whole number.*got -1"):
        GaussNewtonRows(flat, examples, seed=-1)
    with pytest.raises(DataError, match="needs at least one example, got 0"):
        GaussNewtonRows(flat, examples.subset(torch.tensor([], dtype=torch.long)))
