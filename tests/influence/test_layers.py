"""Every layer of torch.nn that has derivatives gives the dense oracle's ψ and curvature.

The others are refused by name.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from puma.data import Examples
from puma.errors import DataError, ModelError
from puma.influence import ConjugateGradients, FlatModel, GaussNewton, influence_scores
from puma.influence.derivatives import weighted_gradient
from tests.oracles import dense_gauss_newton, per_example_gradients

# What a row of 12 numbers is made into for a layer.
ROW = lambda x: x  # noqa: E731
SEQUENCE = lambda x: x.view(-1, 3, 4)  # noqa: E731
IMAGE = lambda x: x.repeat(1, 9).view(-1, 3, 6, 6)  # noqa: E731
VOLUME = lambda x: x.repeat(1, 18).view(-1, 1, 6, 6, 6)  # noqa: E731
IDS = lambda x: (x * 3).round().long() % 7  # noqa: E731
SHAPES = {
    1: (SEQUENCE, lambda: nn.Conv1d(3, 2, 1)),
    2: (IMAGE, lambda: nn.Conv2d(3, 2, 1)),
    3: (VOLUME, lambda: nn.Conv3d(1, 2, 1)),
}


class Network(nn.Module):
    def __init__(self, shape, body):
        super().__init__()
        self.shape, self.body, self.head = shape, body, nn.LazyLinear(3)

    def forward(self, features):
        hidden = self.body(self.shape(features))
        return self.head((hidden[0] if isinstance(hidden, tuple) else hidden).flatten(1))


class Calls(nn.Module):
    """A layer, called in its own way."""

    def __init__(self, layer, call):
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, features):
        return self.call(self.layer, features)


class Unpool(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.pool = getattr(nn, f"MaxPool{d}d")(2, return_indices=True)
        self.unpool = getattr(nn, f"MaxUnpool{d}d")(2)

    def forward(self, features):
        return self.unpool(*self.pool(features))


def plain(layer):
    return ROW, lambda: nn.Sequential(nn.Linear(12, 6), layer())


def after_convolution(d, layer):
    shape, convolution = SHAPES[d]
    return shape, lambda: nn.Sequential(convolution(), layer())


def attention(**settings):
    return lambda: Calls(
        nn.MultiheadAttention(4, 2, batch_first=True, **settings),
        lambda layer, x: layer(x, x, x, need_weights=False),
    )


def causal_attention(layer, features):
    q, k, v = layer(features)[:, None].chunk(3, -1)
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def transformer_layer(**settings):
    return nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, **settings)


ATTENTION = {
    "MultiheadAttention": (SEQUENCE, attention()),
    "weights": (
        SEQUENCE,
        lambda: Calls(
            nn.MultiheadAttention(4, 2, batch_first=True), lambda layer, x: layer(x, x, x)
        ),
    ),
    "bias_kv": (SEQUENCE, attention(add_bias_kv=True)),
    "dropout": (SEQUENCE, attention(dropout=0.2)),
    "functional": (SEQUENCE, lambda: Calls(nn.Linear(4, 12), causal_attention)),
    "TransformerEncoderLayer": (SEQUENCE, transformer_layer),
    "norm_first": (SEQUENCE, lambda: transformer_layer(norm_first=True)),
    "TransformerEncoder": (SEQUENCE, lambda: nn.TransformerEncoder(transformer_layer(), 2)),
    "TransformerDecoderLayer": (
        SEQUENCE,
        lambda: Calls(
            nn.TransformerDecoderLayer(4, 2, 8, batch_first=True), lambda layer, x: layer(x, x)
        ),
    ),
    "Transformer": (
        SEQUENCE,
        lambda: Calls(
            nn.Transformer(4, 2, 1, 1, 8, batch_first=True), lambda layer, x: layer(x, x)
        ),
    ),
}
RECURRENT = {
    **{
        name: (SEQUENCE, lambda name=name: getattr(nn, name)(4, 3, batch_first=True))
        for name in ("RNN", "LSTM", "GRU")
    },
    **{
        f"{name}-deep": (
            SEQUENCE,
            lambda name=name: getattr(nn, name)(
                4, 2, num_layers=2, bidirectional=True, batch_first=True
            ),
        )
        for name in ("RNN", "LSTM", "GRU")
    },
    "RNN-relu": (SEQUENCE, lambda: nn.RNN(4, 3, nonlinearity="relu", batch_first=True)),
    "LSTM-projection": (SEQUENCE, lambda: nn.LSTM(4, 3, proj_size=2, batch_first=True)),
    **{
        name: (ROW, lambda name=name: getattr(nn, name)(12, 4))
        for name in ("RNNCell", "LSTMCell", "GRUCell")
    },
}
ACTIVATIONS = [
    "AlphaDropout",
    "CELU",
    "Dropout",
    "ELU",
    "FeatureAlphaDropout",
    "GELU",
    "Hardshrink",
    "Hardswish",
    "Hardtanh",
    "Identity",
    "LeakyReLU",
    "LogSigmoid",
    "Mish",
    "PReLU",
    "RReLU",
    "ReLU",
    "ReLU6",
    "SELU",
    "SiLU",
    "Sigmoid",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
]
OTHERS = {
    **{name: plain(getattr(nn, name)) for name in ACTIVATIONS},
    **{
        name: plain(lambda name=name: getattr(nn, name)(dim=1))
        for name in ("GLU", "LogSoftmax", "Softmax", "Softmin")
    },
    "Threshold": plain(lambda: nn.Threshold(0.1, 0.0)),
    "LayerNorm": plain(lambda: nn.LayerNorm(6)),
    "RMSNorm": plain(lambda: nn.RMSNorm(6)),
    "spectral_norm": (ROW, lambda: parametrizations.spectral_norm(nn.Linear(12, 6))),
    "orthogonal": (ROW, lambda: parametrizations.orthogonal(nn.Linear(12, 6))),
    "Bilinear": (ROW, lambda: Calls(nn.Bilinear(6, 6, 4), lambda f, x: f(x[:, :6], x[:, 6:]))),
    "Embedding": (IDS, lambda: nn.Embedding(7, 2)),
    "Softmax2d": after_convolution(2, nn.Softmax2d),
    "GroupNorm": after_convolution(2, lambda: nn.GroupNorm(2, 2)),
    "LocalResponseNorm": after_convolution(2, lambda: nn.LocalResponseNorm(2)),
    "SyncBatchNorm": after_convolution(2, lambda: nn.SyncBatchNorm(2)),
    "PixelUnshuffle": after_convolution(2, lambda: nn.PixelUnshuffle(2)),
    "ChannelShuffle": after_convolution(2, lambda: nn.ChannelShuffle(2)),
    "PixelShuffle": (
        IMAGE,
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.PixelShuffle(2)),
    ),
    "Unfold": after_convolution(2, lambda: nn.Unfold(3)),
    "Fold": after_convolution(2, lambda: nn.Sequential(nn.Unfold(3), nn.Fold(6, 3))),
    **{
        f"Upsample-{mode}": after_convolution(d, lambda mode=mode: nn.Upsample(9, mode=mode))
        for mode, d in {
            "nearest": 2,
            "bilinear": 2,
            "bicubic": 2,
            "linear": 1,
            "trilinear": 3,
        }.items()
    },
    **{
        f"ConvTranspose{d}d": (
            SHAPES[d][0],
            lambda d=d: getattr(nn, f"ConvTranspose{d}d")(1 if d == 3 else 3, 2, 2),
        )
        for d in SHAPES
    },
    **{f"Dropout{d}d": after_convolution(d, getattr(nn, f"Dropout{d}d")) for d in SHAPES},
    **{
        f"{name}{d}d": after_convolution(d, lambda name=name, d=d: getattr(nn, f"{name}{d}d")(2))
        for name in ("MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool", "BatchNorm")
        for d in SHAPES
    },
    **{
        f"LPPool{d}d": after_convolution(d, lambda d=d: getattr(nn, f"LPPool{d}d")(2.0, 2))
        for d in SHAPES
    },
    **{
        f"InstanceNorm{d}d": after_convolution(
            d, lambda d=d: getattr(nn, f"InstanceNorm{d}d")(2, affine=True)
        )
        for d in SHAPES
    },
    **{f"MaxUnpool{d}d": after_convolution(d, lambda d=d: Unpool(d)) for d in SHAPES},
    **{
        f"{name}Pad{d}d": after_convolution(
            d, lambda name=name, d=d: getattr(nn, f"{name}Pad{d}d")(1)
        )
        for name in ("Reflection", "Replication", "Zero", "Circular")
        for d in SHAPES
    },
}
LAYERS = ATTENTION | RECURRENT | OTHERS
QUICK = {"MultiheadAttention", "TransformerEncoderLayer", "functional", "LSTM", "GRU", "RNN"}
QUICK |= {"GELU", "Embedding", "LayerNorm", "BatchNorm2d", "MaxPool1d", "spectral_norm"}


def network(layer):
    shape, body = layer
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, features = Network(shape, body()), torch.randn(9, 12)
        labels = torch.randint(3, (9,))
        model(features)  # gives the lazy layer its size, and the norms their statistics
    return model.double().eval(), Examples.of(features.double(), labels)


def marked(names):
    return [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in names]


def solved(model, examples):
    solver = ConjugateGradients(tolerance=1e-12 if examples.features.dtype.itemsize == 8 else 1e-6)
    return influence_scores(model, examples, solver=solver, damping=0.1)


@pytest.mark.parametrize("name", marked(LAYERS))
def test_scores_and_curvature_equal_the_dense_oracle(name):
    model, examples = network(LAYERS[name])
    # The oracle differentiates backwards once, which all of PyTorch's kernels can.
    gradients, matrix = per_example_gradients(model, examples), dense_gauss_newton(model, examples)
    damped = matrix + 0.1 * torch.eye(len(matrix), dtype=torch.float64)
    expected = gradients @ torch.linalg.solve(damped, gradients.mean(0))
    torch.testing.assert_close(solved(model, examples), expected, rtol=1e-7, atol=1e-9)
    vector = torch.linspace(-1, 1, len(matrix), dtype=torch.float64)
    for cache_bytes in (0, 2**28):
        product = GaussNewton(FlatModel(model), examples, cache_bytes=cache_bytes) @ vector
        torch.testing.assert_close(product, matrix @ vector, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", marked(RECURRENT | ATTENTION))
def test_single_precision_is_close_to_double(name):
    model, examples = network((RECURRENT | ATTENTION)[name])
    expected = solved(model, examples)
    single = Examples.of(examples.features.float(), examples.labels)
    found = solved(model.float(), single).double()
    assert found.isfinite().all()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def image_norm():
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.CrossMapLRN2d(2))


@pytest.mark.filterwarnings("ignore")  # the deprecated ways to normalise and to script
@pytest.mark.parametrize(
    ("build", "text"),
    [
        (nn.Hardsigmoid, r"Hardsigmoid 'body'.*relu6\(x \+ 3\) / 6"),
        (image_norm, r"CrossMapLRN2d 'body.1'.*use nn\.LocalResponseNorm"),
        (lambda: nn.EmbeddingBag(7, 4), r"EmbeddingBag 'body'.*use nn\.Embedding and"),
        (
            lambda: nn.Embedding(7, 2, padding_idx=0, max_norm=1.0),
            "Embedding 'body'.*it has padding_idx, max_norm: make it without, or freeze",
        ),
        (lambda: nn.Embedding(7, 2, sparse=True), "it has sparse:"),
        (lambda: nn.Embedding(7, 2, scale_grad_by_freq=True), "it has scale_grad_by_freq:"),
        (lambda: parametrizations.weight_norm(nn.Linear(12, 6)), "remove_parametrizations"),
        (lambda: nn.utils.weight_norm(nn.Linear(12, 6)), "Linear 'body'.*remove_weight_norm"),
        (
            lambda: nn.utils.spectral_norm(nn.Linear(12, 6)),
            r"Linear 'body'.*use torch\.nn\.utils\.parametrizations\.spectral_norm",
        ),
        (lambda: torch.jit.script(nn.Linear(12, 6)), "'body'.*that it was scripted or traced"),
    ],
)
def test_layers_without_the_derivatives_are_refused_by_name(build, text):
    with pytest.raises(ModelError, match=text):
        FlatModel(Network(ROW, build()))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda f, x: torch.cdist(f(x)[:, None], x[:, None, :6]),
            r"PyTorch cannot differentiate Calls 'body' forwards.*_cdist_forward",
        ),
        (
            lambda f, x: checkpoint(lambda y: f(y).tanh(), x, use_reentrant=False),
            "take out gradient checkpointing; or remove by another method, such as retrain",
        ),
        (lambda f, x: f(x) - f(x).mean(0), "depend on the other examples of its batch"),
        (lambda f, x: f(x) / (x[:, :1] * 0), "logits of 8 of 8 examples are NaN or infinite"),
    ],
)
def test_models_without_reliable_derivatives_are_refused(call, text):
    model, examples = network((ROW, lambda: Calls(nn.Linear(12, 6), call)))
    with pytest.raises(ModelError, match=text):
        GaussNewton(FlatModel(model), examples)


def test_weights_that_are_not_finite_are_named():
    model = nn.Linear(3, 3)
    with torch.no_grad():
        model.weight[0, :2] = torch.tensor([torch.nan, torch.inf])
    with pytest.raises(ModelError, match=r"^2 weights of .* NaN or infinite: weight \(2\);"):
        FlatModel(model)


def test_one_output_and_labels_without_one_are_refused():
    features, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 1])
    with pytest.raises(DataError, match="has 1 output per example, and these labels, up to 0"):
        GaussNewton(FlatModel(nn.Linear(3, 1)), Examples.of(features, labels * 0))
    flat = FlatModel(nn.Linear(3, 2))
    with pytest.raises(DataError, match="has 2 outputs per example, and these labels, up to 2"):
        weighted_gradient(flat, Examples.of(features, labels), torch.ones(4))
