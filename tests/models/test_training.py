from __future__ import annotations

import copy
import math
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from puma.data import Examples
from puma.errors import DataError, ModelError
from puma.models import mlp
from puma.models.training import History, train
from puma.settings import TrainingSettings

N = 7
SETTINGS = TrainingSettings(epochs=3, learning_rate=0.05, batch_size=3)  # batches of 3, 3 and 1


def rows(n: int = N) -> Examples:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    return Examples.of(features, torch.randint(3, (n,), generator=generator))


def fresh() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return mlp(4, 3, (5,)).double()


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def one_cycle(top: float, step: int, steps: int) -> float:
    """Half a cosine from top/25 up to ``top`` at 30 % of the steps, then one down to top/250000."""
    peak = 0.3 * steps - 1
    if step <= peak:
        low, share = top / 25, 1 - step / peak
    else:
        low, share = top / 250_000, (step - peak) / (steps - 1 - peak)
    return low + (top - low) * (1 + math.cos(math.pi * share)) / 2


def adam_by_hand(
    settings: TrainingSettings, seed: int, steps: int
) -> tuple[list[Tensor], list[float]]:
    """The weights after every step (Kingma & Ba, 2015, Algorithm 1) and the mean epoch losses."""
    model, data = fresh(), rows()
    parameters = list(model.parameters())
    first = [torch.zeros_like(each) for each in parameters]
    second = [torch.zeros_like(each) for each in parameters]
    generator = torch.Generator().manual_seed(seed)
    trace: list[Tensor] = []
    epochs: list[float] = []
    while len(trace) < steps:
        order = torch.randperm(N, generator=generator)
        seen: list[float] = []
        for start in range(0, N, settings.batch_size):
            if len(trace) == steps:
                break
            batch = order[start : start + settings.batch_size]
            each = cross_entropy(model(data.features[batch]), data.labels[batch], reduction="none")
            seen += each.tolist()
            gradients = torch.autograd.grad(each.mean(), parameters)
            t = len(trace) + 1
            rate = settings.learning_rate
            if settings.learning_rate_schedule == "one_cycle":
                rate = one_cycle(rate, t - 1, steps)
            with torch.no_grad():
                for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
                    g = g + settings.weight_decay * p
                    m.mul_(0.9).add_(0.1 * g)
                    v.mul_(0.999).add_(0.001 * g * g)
                    unbiased = (v / (1 - 0.999**t)).sqrt() + 1e-8
                    p -= rate * (m / (1 - 0.9**t)) / unbiased
            trace.append(weights(model))
        epochs.append(sum(seen) / len(seen))
    return trace, epochs


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize("schedule", ["constant", "one_cycle"])
def test_every_step_is_adam_on_mean_cross_entropy(
    weight_decay: float, seed: int, schedule: str
) -> None:
    changes = {"weight_decay": weight_decay, "learning_rate_schedule": schedule}
    settings = SETTINGS.model_copy(update=changes)
    model, trace = fresh(), []
    history = train(
        model,
        rows(),
        settings,
        seed=seed,
        on_step=lambda model, *_: trace.append(weights(model)),
        progress=False,
    )
    expected, losses = adam_by_hand(settings, seed, steps=9)
    torch.testing.assert_close(torch.stack(trace), torch.stack(expected), rtol=0, atol=1e-10)
    assert torch.equal(weights(model), trace[-1])
    assert history.steps == 9
    assert history.loss == pytest.approx(losses, abs=1e-10)


@pytest.mark.parametrize(("steps", "epochs"), [(1, 1), (3, 1), (5, 2), (12, 4)])
@pytest.mark.parametrize("schedule", ["constant", "one_cycle"])
def test_steps_override_the_epochs_exactly(steps: int, epochs: int, schedule: str) -> None:
    model, settings = fresh(), SETTINGS.model_copy(update={"learning_rate_schedule": schedule})
    history = train(model, rows(), settings, seed=0, steps=steps, progress=False)
    expected, losses = adam_by_hand(settings, 0, steps)
    torch.testing.assert_close(weights(model), expected[-1], rtol=0, atol=1e-10)
    assert (history.steps, len(history.loss)) == (steps, epochs)
    assert history.loss == pytest.approx(losses, abs=1e-10)


@pytest.mark.parametrize(("n", "steps"), [(1, 3), (3, 3), (4, 6), (7, 9)])
def test_an_epoch_sees_every_row_once(n: int, steps: int) -> None:
    seen: list[Tensor] = []

    class Watching(nn.Linear):
        def forward(self, batch: Tensor) -> Tensor:
            seen.append(batch)
            return super().forward(batch)

    data = rows(n)
    model = Watching(4, 3).double()
    assert train(model, data, SETTINGS, seed=0, progress=False).steps == steps == len(seen)
    per_epoch = steps // 3
    for epoch in range(3):
        found = torch.cat(seen[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert sorted(found.tolist()) == sorted(data.features.tolist())


def normalised() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()


@pytest.mark.parametrize(
    ("n", "sizes"), [(7, [3, 4]), (4, [4]), (10, [3, 3, 4]), (6, [3, 3]), (8, [3, 3, 2])]
)
def test_with_batchnorm_a_lone_last_row_joins_the_batch_before(n: int, sizes: list[int]) -> None:
    batches: list[Tensor] = []
    history = train(
        normalised(),
        rows(n),
        SETTINGS,
        seed=4,
        on_step=lambda _, __, batch: batches.append(batch),
        progress=False,
    )
    assert [len(batch) for batch in batches] == 3 * sizes
    assert history.steps == 3 * len(sizes)
    # Only the border moved: the rows come in the order that any other model gets them in.
    generator = torch.Generator().manual_seed(4)
    orders = [torch.randperm(n, generator=generator) for _ in range(3)]
    assert torch.equal(torch.cat(batches), torch.cat(orders))


def test_with_batchnorm_steps_are_still_exact() -> None:
    runs = []
    for _ in range(2):
        model = normalised()
        assert train(model, rows(), SETTINGS, seed=0, steps=5, progress=False).steps == 5
        runs.append(weights(model))
    assert torch.equal(*runs)


@pytest.mark.parametrize(("n", "batch_size"), [(1, 3), (4, 1), (1, 1)])
def test_with_batchnorm_rows_one_by_one_are_refused(n: int, batch_size: int) -> None:
    settings = SETTINGS.model_copy(update={"batch_size": batch_size})
    with pytest.raises(
        DataError,
        match=rf"BatchNorm cannot learn from one row at a time \(n = {n}, "
        rf"training\.batch_size {batch_size}\); give it more rows and larger batches",
    ):
        train(normalised(), rows(n), settings, seed=0, progress=False)
    train(fresh(), rows(n), settings, seed=0, steps=1, progress=False)  # without it, they are not


def test_on_step_runs_once_after_each_step_in_training_mode() -> None:
    model, calls = fresh(), []
    batches: list[Tensor] = []
    model.eval()

    def record(given: nn.Module, step: int, batch: Tensor) -> None:
        calls.append((given is model, given.training, step))
        batches.append(batch)

    train(model, rows(), SETTINGS, seed=0, on_step=record, progress=False)
    assert calls == [(True, True, step) for step in range(1, 10)]
    assert [sorted(torch.cat(batches[e : e + 3]).tolist()) for e in (0, 3, 6)] == [[*range(N)]] * 3
    assert not any(module.training for module in model.modules())


def test_the_seed_decides_the_result() -> None:
    runs = []
    for seed in (3, 3, 4):
        model = fresh()
        history = train(model, rows(), SETTINGS, seed=seed, progress=False)
        runs.append((weights(model), history))
    assert torch.equal(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]
    assert not torch.allclose(runs[0][0], runs[2][0])


def test_global_random_states_are_neither_read_nor_moved() -> None:
    results = []
    for state in (1, 2):
        torch.manual_seed(state)
        np.random.seed(state)
        random.seed(state)
        before = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
        model = fresh()
        train(model, rows(), SETTINGS, seed=0, progress=False)
        results.append(weights(model))
        assert torch.equal(torch.get_rng_state(), before[0])
        np.testing.assert_array_equal(np.random.get_state()[1], before[1])
        assert random.getstate() == before[2]
    assert torch.equal(*results)


def test_examples_are_not_changed() -> None:
    data = rows()
    before = copy.deepcopy(data)
    train(fresh(), data, SETTINGS, seed=0, progress=False)
    assert torch.equal(data.features, before.features)
    assert torch.equal(data.labels, before.labels)


def test_separable_rows_are_learnt() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 3
    features = 5 * torch.eye(3)[labels] + 0.1 * torch.randn(90, 3, generator=generator)
    model = mlp(3, 3, (8,))
    settings = TrainingSettings(epochs=30, learning_rate=0.02)
    history = train(model, Examples.of(features, labels), settings, seed=0, progress=False)
    assert (model(features).argmax(1) == labels).all()
    assert len(history.loss) == 30
    assert history.loss[-1] < 0.1 < 0.8 < history.loss[0]


def test_divergence_is_refused_with_the_epoch_and_the_remedy() -> None:
    settings = TrainingSettings(epochs=4, learning_rate=1e200, batch_size=7)
    calls: list[int] = []
    with pytest.raises(
        ModelError,
        match=r"in epoch 2 \(loss (nan|inf)\); lower training\.learning_rate \(now 1e\+200\)",
    ):
        train(
            fresh(),
            rows(),
            settings,
            seed=0,
            on_step=lambda _, step, __: calls.append(step),
            progress=False,
        )
    assert calls == [1, 2]


def test_weights_that_the_last_step_ruined_are_refused() -> None:
    settings = TrainingSettings(learning_rate=1e308)  # overflows in the one step there is
    with pytest.raises(ModelError, match=r"in epoch 1 \(loss \d"):
        train(fresh(), rows(), settings, seed=0, steps=1, progress=False)


def test_nothing_to_learn_from_is_refused() -> None:
    with pytest.raises(DataError, match="cannot train on 0 examples"):
        train(fresh(), rows().without(torch.arange(N)), SETTINGS, seed=0)


@pytest.mark.parametrize("steps", [0, -3])
def test_no_steps_are_refused(steps: int) -> None:
    model = fresh()
    with pytest.raises(DataError, match=f"at least one step, got {steps}"):
        train(model, rows(), SETTINGS, seed=0, steps=steps)
    assert torch.equal(weights(model), weights(fresh()))


@pytest.mark.parametrize("progress", [True, False])
def test_progress_is_shown_when_asked(progress: bool, capsys: pytest.CaptureFixture[str]) -> None:
    history = train(fresh(), rows(), SETTINGS, seed=0, label="my label", progress=progress)
    shown = capsys.readouterr().err
    assert ("my label" in shown) is progress
    assert ("9/9" in shown) is progress
    assert isinstance(history, History)
    assert math.isfinite(history.loss[-1])


def with_dropout() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double()


def test_what_dropout_draws_comes_from_the_seed_alone() -> None:
    runs = []
    for state, seed in ((1, 0), (2, 0), (2, 1)):
        torch.manual_seed(state)
        before = torch.get_rng_state()
        model = with_dropout()
        # One batch of all rows: its order is all that the seed decides but dropout.
        settings = TrainingSettings(epochs=3, learning_rate=0.05, batch_size=N)
        train(model, rows(), settings, seed=seed, progress=False)
        runs.append(weights(model))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(runs[0], runs[1])
    assert not torch.allclose(runs[0], runs[2])


def test_a_caller_without_gradients_trains_all_the_same() -> None:
    expected, model = fresh(), fresh()
    train(expected, rows(), SETTINGS, seed=0, progress=False)
    with torch.no_grad():
        train(model, rows(), SETTINGS, seed=0, progress=False)
        assert not torch.is_grad_enabled()
    assert torch.equal(weights(model), weights(expected))


def test_inference_mode_is_refused() -> None:
    model = fresh()
    with torch.inference_mode():
        with pytest.raises(ModelError, match=r"inference_mode\(\).*make and train it outside"):
            train(model, rows(), SETTINGS, seed=0, progress=False)
        made_there = fresh()
    with pytest.raises(ModelError, match="nor one that was made there"):
        train(made_there, rows(), SETTINGS, seed=0, progress=False)


def test_features_of_another_dtype_are_refused() -> None:
    with pytest.raises(
        DataError, match=r"features are torch\.float64 but the model is torch\.float32; convert"
    ):
        train(fresh().float(), rows(), SETTINGS, seed=0, progress=False)


def test_a_model_with_nothing_to_train_is_refused() -> None:
    for model in (fresh().requires_grad_(False), nn.Flatten()):
        with pytest.raises(ModelError, match=r"no parameter with requires_grad=True; unfreeze"):
            train(model, rows(), SETTINGS, seed=0, progress=False)


@pytest.mark.parametrize(
    ("last", "got"),
    [
        (nn.Linear(4, 2), r"\(3, 2\)"),
        (nn.Sequential(nn.Linear(4, 3), nn.Unflatten(1, (3, 1))), r"\(3, 3, 1\)"),
        (nn.LSTM(4, 3), "tuple"),
    ],
    ids=["too few", "shape", "tuple"],
)
def test_answers_that_are_no_logits_of_every_class_are_refused(last: nn.Module, got: str) -> None:
    with pytest.raises(
        ModelError, match=rf"returned {got} for labels up to 2, and must return logits"
    ):
        train(last.double(), rows(), SETTINGS, seed=0, progress=False)
