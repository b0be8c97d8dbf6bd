"""A training loop of the user's own: called as said, tried for repeatability, refused by name."""

from __future__ import annotations

import random
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import puma
from puma.data import Dataset
from puma.errors import ModelError, SettingsError
from puma.models import build_model, weights_digest
from puma.models.batched import train_many
from puma.models.own_loop import loop_digest
from puma.models.training import History, train
from puma.references.short_training import short_margins, starts_of
from puma.settings import ModelSettings, TrainingSettings
from tests.cases import random_examples

# Full-batch gradient descent: what it gives is computed by hand below.
DESCENT = """
    import random
    import numpy as np
    import torch
    from torch.nn.functional import cross_entropy

    def loop(model, features, labels, settings, seed):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        losses = []
        for _ in range(settings.epochs):
            optimizer.zero_grad()
            loss = cross_entropy(model(features), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        features.zero_()
        return losses
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Writes a module that has the code, and gives the name of the loop in it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    written: list[str] = []

    def write(code: str, function: str = "loop") -> str:
        name = f"loops_of_{tmp_path.name}_{len(written)}"
        (tmp_path / f"{name}.py").write_text(f"# {name}\n{textwrap.dedent(code)}")
        written.append(name)
        return f"{name}:{function}"

    yield write
    for name in written:
        sys.modules.pop(name, None)


def linear() -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(3, 3).double()


def fit(loop: str, *, n: int = 20, seed: int = 3, **changes: object) -> tuple[nn.Module, History]:
    model = linear()
    settings = TrainingSettings.model_validate({"epochs": 4, "loop": loop, **changes})
    return model, train(model, random_examples(n, 3), settings, seed=seed, progress=False)


def test_the_loop_trains_in_place_of_ours(own: Callable[..., str]) -> None:
    model, history = fit(own(DESCENT))
    expected, examples, losses = linear(), random_examples(20, 3), []
    for _ in range(4):
        expected.zero_grad()
        loss = nn.functional.cross_entropy(expected(examples.features), examples.labels)
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for each in expected.parameters():
                each -= 0.5 * each.grad
    torch.testing.assert_close(model.weight, expected.weight)
    assert history.loss == pytest.approx(losses)
    assert history.steps == 4
    assert not model.training
    assert all(each.grad is None for each in model.parameters())


def test_the_global_random_states_are_seeded_and_put_back(own: Callable[..., str]) -> None:
    code = """
        import random, numpy as np, torch

        def loop(model, features, labels, settings, seed):
            for each in model.parameters():
                each.data += torch.rand(1).double() + np.random.rand() + random.random() + seed
    """
    name = own(code)
    for draw in (random.random, np.random.rand, torch.rand):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        expected = float(draw(1)) if draw is torch.rand else draw()
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        first, history = fit(name)
        assert (float(draw(1)) if draw is torch.rand else draw()) == expected
    assert history == History((), 0)
    assert weights_digest(first) == weights_digest(fit(name)[0])
    assert weights_digest(first) != weights_digest(fit(name, seed=4)[0])


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("pass", "left the weights as they were, tried on 20 rows for one epoch; train the given"),
        (
            "model.weight.data += float(torch.rand((), generator=g))",
            "gave other weights the second time, .*draw only from the global generators",
        ),
        (
            "model.weight.requires_grad_(False); model.bias.data += 1",
            "left another network: weight changed in shape, dtype, device or requires_grad",
        ),
        ("model.extra = torch.nn.Linear(2, 2)", "left another network: extra.bias, extra.weight"),
        ("model.float()", "left another network: bias, weight changed"),
        ("model.weight.data[0, 0] = float('nan')", r"left weights that are NaN .* in weight: .*"),
        ("model.weight.data += 1; return 0.3", "returned float; return the mean loss of each"),
        ("model.weight.data += 1; return ['a']", "returned list; return the mean loss of each"),
        (
            "model.weight.data += 1; model.register_forward_hook(lambda m, rows, found: found + 1)",
            "left another network: it gives other outputs than the given one with the same weight",
        ),
        (
            "model.weight.data += 1; model.forward = lambda rows: rows * 2",
            "left another network: it gives other outputs than the given one with the same weight",
        ),
        (
            "model.weight.data += 1; return [0.3] * 7",
            r"returned 7 losses for \d epochs; honour settings.epochs, since some models are",
        ),
        (
            "model.weight.data += 1; return [1.0, float('inf')]",
            "returned a loss that is NaN or infinite: the training diverged",
        ),
    ],
)
def test_what_breaks_the_contract_is_refused_by_name(
    own: Callable[..., str], body: str, problem: str
) -> None:
    head = "import torch\ng = torch.Generator()\n"
    name = own(f"{head}def loop(model, features, labels, settings, seed):\n    {body}\n")
    with pytest.raises(ModelError, match=rf"^training\.loop '{name}' {problem}"):
        fit(name)


def test_each_loop_of_a_module_is_tried(own: Callable[..., str]) -> None:
    loop = own(
        """
        def loop(model, features, labels, settings, seed):
            model.weight.data += 1

        def idle(model, features, labels, settings, seed):
            pass
        """
    )
    fit(loop)
    idle = loop.replace(":loop", ":idle")
    with pytest.raises(ModelError, match=f"'{idle}' left the weights as they were"):
        fit(idle)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("loop = 3", "is of type int; name a function that is called with \\(model, features, la"),
        ("def loop(model, data): pass", r"takes \(model, data\), and it is called with \(model, "),
        ("1 / 0", r"cannot be imported \(ZeroDivisionError"),
        ("", r"cannot be imported \(AttributeError"),
    ],
)
def test_what_cannot_be_called_so_is_refused(
    own: Callable[..., str], code: str, problem: str
) -> None:
    name = own(code)
    with pytest.raises(ModelError, match=rf"^training\.loop '{name}' {problem}"):
        fit(name)


def test_errors_of_the_loop_itself_are_passed_on(own: Callable[..., str]) -> None:
    name = own("def loop(model, features, labels, settings, seed): 1 / 0")
    with pytest.raises(ZeroDivisionError) as caught:
        fit(name)
    assert "was tried on 20 rows for one epoch" in caught.value.__notes__[0]


def test_only_package_module_function_is_a_name() -> None:
    with pytest.raises(ValueError, match=r'expected "package\.module:function"'):
        TrainingSettings(loop="loops")
    assert TrainingSettings(loop="a.b:c").model_dump()["loop"] == "a.b:c"
    assert "loop" not in TrainingSettings().model_dump()


def test_what_has_to_count_steps_is_refused(own: Callable[..., str]) -> None:
    settings = TrainingSettings(loop=own(DESCENT))
    with pytest.raises(SettingsError, match=r"Amnesiac: .*it records the rows of every step, and"):
        puma.Amnesiac(training=settings)
    with pytest.raises(SettingsError, match=r"set retrain.schedule to equal_epochs"):
        puma.Retrain(training=settings, schedule="equal_steps")
    with pytest.raises(SettingsError, match="trains for epochs, not for 5 steps"):
        train(linear(), random_examples(9, 3), settings, seed=0, steps=5)
    with pytest.raises(SettingsError, match="does not say which rows each of its steps"):
        train(linear(), random_examples(9, 3), settings, seed=0, on_step=lambda *_: None)


def test_many_models_are_trained_one_by_one_as_each_alone(own: Callable[..., str]) -> None:
    settings = TrainingSettings(loop=own(DESCENT), epochs=3)
    examples, models = random_examples(20, 3), [linear() for _ in range(2)]
    rows = [torch.arange(12), torch.arange(5, 20)]
    histories = train_many(models, examples, rows, settings, seeds=[0, 1], progress=False)
    for model, own_rows, history in zip(models, rows, histories, strict=True):
        alone = linear()
        found = train(alone, examples.subset(own_rows), settings, seed=0, progress=False)
        assert weights_digest(model) == weights_digest(alone)
        assert history == found


@pytest.fixture
def dataset() -> Dataset:
    return Dataset("toy", random_examples(24, 3), random_examples(6, 3, seed=1), ("a", "b", "c"))


NOTES = """
    seen = []
    def loop(model, features, labels, settings, seed):
        seen.append((len(features), settings.epochs, settings.batch_size, settings.learning_rate))
        for each in model.parameters():
            each.data += features.mean() + labels.double().mean()
"""


def test_short_trainings_give_the_loop_fewer_epochs_and_nothing_else(
    own: Callable[..., str], dataset: Dataset
) -> None:
    name = own(NOTES)
    settings = TrainingSettings(loop=name, epochs=30)
    requests = [np.arange(4), np.arange(0)]
    short_margins(dataset, linear(), starts_of([linear()]), requests, settings, progress=False)
    seen = sys.modules[name.partition(":")[0]].seen
    assert seen[-2:] == [(20, 3, 32, 1e-3), (24, 3, 32, 1e-3)]


@pytest.mark.parametrize("method", [puma.Retrain, puma.SISA])
def test_originals_and_retraining_are_trained_by_the_loop(
    own: Callable[..., str], dataset: Dataset, method: type[puma.Retrain] | type[puma.SISA]
) -> None:
    name = own(NOTES)
    settings = TrainingSettings(loop=name, epochs=6)
    options = {} if method is puma.Retrain else {"shards": 2, "slices": 2}
    trainer = method(training=settings, **options)
    model = build_model(ModelSettings(hidden=(4,)), dataset, seed=0).double()
    trained = trainer.fit(model, dataset, progress=False)
    seen = sys.modules[name.partition(":")[0]].seen
    fitted = seen[2:]  # two tries
    rows = [24] if method is puma.Retrain else [6, 12, 6, 12]
    epochs = 6 if method is puma.Retrain else trainer.epochs_per_slice
    assert fitted == [(n, epochs, 32, 1e-3) for n in rows]
    assert trained.parameters["loop_sha256"] == loop_digest(settings)
    ids = dataset.train.subject_ids[:1].tolist()
    removal = trainer.remove(trained, puma.DeletionSet.of(ids, dataset), progress=False)
    assert len(seen) > 2 + len(fitted)
    assert removal.parameters["steps"] == 0  # it has no optimiser of PyTorch
    assert seen[-1][0] in (23, 11)
