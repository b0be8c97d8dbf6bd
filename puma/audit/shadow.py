"""The paper's membership attack: a classifier trained on the predictions of shadow models."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, softmax

from puma.audit.metrics import rate
from puma.audit.predictions import Array, Predictions, predict
from puma.data.base import Dataset, Examples
from puma.errors import AuditError
from puma.metrics import auc
from puma.models import build_model, mlp
from puma.models.predictions import logits
from puma.models.training import train
from puma.project.files import write_bytes
from puma.settings import ModelSettings, ShadowSettings, TrainingSettings


def _softmax(outputs: Tensor, _: Tensor) -> Tensor:
    return softmax(outputs, 1)


def _softmax_label(outputs: Tensor, labels: Tensor) -> Tensor:
    return torch.cat([softmax(outputs, 1), one_hot(labels, outputs.shape[1])], 1)


def _sorted(outputs: Tensor, labels: Tensor) -> Tensor:
    probabilities = softmax(outputs, 1)
    hit = (probabilities.argmax(1) == labels).to(probabilities)
    return torch.cat([probabilities.sort(1, descending=True).values, hit[:, None]], 1)


def _error(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs[:, 0] - labels).abs()[:, None]


# From (n, classes) logits and (n,) labels. softmax is the paper's; softmax_label adds the label,
# without which overfitting cannot be seen; sorted, the probabilities in descending order and
# whether the first is the label's, treats all classes alike (Salem et al., 2019).
FEATURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "softmax": _softmax,
    "softmax_label": _softmax_label,
    "sorted": _sorted,
}


# The same names for (n, 1) predicted labels: the prediction; the label and the error beside it;
# the error alone.
REGRESSION_FEATURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "softmax": lambda outputs, _: outputs,
    "softmax_label": lambda outputs, labels: torch.cat(
        [outputs, labels[:, None], _error(outputs, labels)], 1
    ),
    "sorted": _error,
}


@dataclass(frozen=True, eq=False)
class ShadowAttack:
    """A trained membership classifier for models of ``classes`` classes.

    What the attack finds is worth no more than its quality: report both.

    Attributes:
        network: The classifier; its outputs are 0 = non-member, 1 = member.
        classes: How many classes the attacked models have; 0 for a regression.
        features: A name of :data:`FEATURES`: what the classifier sees of a prediction.
        quality: Balanced accuracy in [0, 1] on a shadow it was not trained on (0.5 = guessing).
        quality_auc: AUC of its scores there.
    """

    network: nn.Sequential
    classes: int
    features: str
    quality: float
    quality_auc: float

    def scores(self, predictions: Predictions) -> Array:
        """(n,) probabilities that the audited version was trained on each row.

        Raises:
            AuditError: The audited version has another number of classes.
        """
        seen = _attack_features(predictions, self.classes, self.features)
        return _membership(self.network, seen)

    def save(self, path: Path) -> None:
        """Write the attack, whole or not at all: tensors and numbers, never a pickled object."""
        widths = [layer.out_features for layer in self.network if isinstance(layer, nn.Linear)]
        buffer = io.BytesIO()
        torch.save(
            {
                "hidden": widths[:-1],
                "classes": self.classes,
                "features": self.features,
                "quality": self.quality,
                "quality_auc": self.quality_auc,
                "network": self.network.state_dict(),
            },
            buffer,
        )
        write_bytes(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> ShadowAttack:
        """Read what :meth:`save` wrote.

        Raises:
            AuditError: The file is absent, or PUMA did not write it.
        """
        try:
            stored = torch.load(path, weights_only=True)
            classes = stored["classes"]
            of = (torch.zeros(1, classes or 1), torch.tensor([0]))
            inputs = _features(classes)[stored["features"]](*of)
            network = mlp(inputs.shape[1], 2, tuple(stored["hidden"]))
            network.load_state_dict(stored["network"])
            numbers = (float(stored["quality"]), float(stored["quality_auc"]))
            return cls(network.eval(), classes, stored["features"], *numbers)
        except FileNotFoundError as error:
            raise AuditError(f"{path}: no such attack; run the shadow stage first") from error
        except Exception as error:  # torch raises pickle, zip and runtime errors alike here
            raise AuditError(
                f"{path}: not a shadow attack written by PUMA ({error}); "
                "delete it and run the shadow stage again"
            ) from error


def train_shadow_attack(
    dataset: Dataset,
    model_settings: ModelSettings,
    training_settings: TrainingSettings,
    shadow_settings: ShadowSettings,
    *,
    seed: int,
    progress: bool = True,
) -> ShadowAttack:
    """Train the attack of the paper (Appendix A, Membership Attack Setup; Shokri et al. 2017).

    Each of ``shadow_settings.models`` shadows has the target's architecture and is trained,
    from its own initial weights, on its own random ``fraction`` of the training rows: these
    are its members, the other rows its non-members. A classifier is then trained to distinguish
    them by ``shadow_settings.features`` of the shadow's predictions. One more shadow is trained
    only to measure ``quality``. The result depends only on ``seed``, the settings and the data.

    Raises:
        AuditError: ``fraction`` of the training rows is fewer than two.
    """
    n, classes = len(dataset.train), len(dataset.classes)
    size = int(shadow_settings.fraction * n)
    if size < 2:
        raise AuditError(
            f"shadow.fraction {shadow_settings.fraction} of {n} training rows leaves {size} "
            "member(s) for a shadow, which needs at least 2; raise shadow.fraction"
        )
    schedule = training_settings.model_copy(update={"epochs": shadow_settings.epochs})
    total = shadow_settings.models + 1
    *seeds, held_out_seed, attack_seed = _seeds(seed, total + 1)

    features: list[Tensor] = []
    for index, shadow_seed in enumerate(seeds, start=1):
        label = f"shadow {index}/{total}"
        shadow, rows = _train_shadow(
            dataset, model_settings, schedule, size, seed=shadow_seed, label=label, show=progress
        )
        # As many non-members as members: of all rows nine in ten are non-members, and a
        # classifier that always predicts "non-member" would be right that often.
        balanced = dataset.train.subset(rows[: 2 * size])
        features.append(
            _attack_features(predict(shadow, balanced), classes, shadow_settings.features)
        )
    is_member = (torch.arange(2 * size) < size).long().repeat(len(seeds))
    network = _train_classifier(
        Examples.of(torch.cat(features), is_member),
        shadow_settings.attack_hidden,
        # The attack's network is ours: a loop of the user's own, and weights of the data's classes,
        # are of the models, not of attacks.
        training_settings.model_copy(
            update={"epochs": shadow_settings.attack_epochs, "loop": None, "class_weights": None}
        ),
        seed=attack_seed,
        show=progress,
    )

    label = f"shadow {total}/{total}"
    shadow, rows = _train_shadow(
        dataset, model_settings, schedule, size, seed=held_out_seed, label=label, show=progress
    )
    found = predict(shadow, dataset.train.subset(rows))
    scores = _membership(network, _attack_features(found, classes, shadow_settings.features))
    members, nonmembers = scores[:size], scores[size:]
    # Over ALL its non-members: a sample as small as the members only adds noise to the same
    # expectation, because balanced accuracy weighs both sides equally whatever their sizes.
    quality = (rate(members) + 1 - rate(nonmembers)) / 2
    return ShadowAttack(
        network, classes, shadow_settings.features, quality, auc(members, nonmembers)
    )


def _train_shadow(
    dataset: Dataset,
    model_settings: ModelSettings,
    schedule: TrainingSettings,
    size: int,
    *,
    seed: int,
    label: str,
    show: bool,
) -> tuple[nn.Module, Tensor]:
    """A shadow, and (n,) the training rows in random order, its ``size`` members first."""
    rows_seed, model_seed, batch_seed = _seeds(seed, 3)
    generator = torch.Generator().manual_seed(rows_seed)
    rows = torch.randperm(len(dataset.train), generator=generator)
    shadow = build_model(model_settings, dataset, seed=model_seed)
    members = dataset.train.subset(rows[:size])
    train(shadow, members, schedule, seed=batch_seed, label=label, progress=show)
    return shadow, rows


def _train_classifier(
    examples: Examples,
    hidden: tuple[int, ...],
    schedule: TrainingSettings,
    *,
    seed: int,
    show: bool,
) -> nn.Sequential:
    """The attack's network: outputs 0 = non-member, 1 = member."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = mlp(examples.features.shape[1], 2, hidden)
    train(network, examples, schedule, seed=seed, label="attack", progress=show)
    return network


def _attack_features(predictions: Predictions, classes: int, kind: str) -> Tensor:
    """(n, d) float32 of what the classifier sees; see :data:`FEATURES`."""
    if predictions.after.shape[1] != (classes or 1):
        raise AuditError(
            f"the model predicts {predictions.after.shape[1]} classes, the attack was trained for "
            f"{classes}; train the shadow attack on the dataset of this model"
        )
    return _features(classes)[kind](predictions.after, predictions.labels).float()


def _features(classes: int) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    return FEATURES if classes else REGRESSION_FEATURES


def _membership(network: nn.Module, features: Tensor) -> np.ndarray:
    """(n,) float64 probability of the output "member"."""
    values: Array = softmax(logits(network, features).double(), 1)[:, 1].numpy()
    return values


def _seeds(seed: int, count: int) -> list[int]:
    """``count`` unrelated seeds from one, none of them ``seed`` that the target itself uses."""
    return [int(value) for value in np.random.SeedSequence(seed).generate_state(count)]
