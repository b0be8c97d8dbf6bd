"""The training rows of a dataset, ranked by how suspect their labels are, for a person's review."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from puma.data.base import Dataset
from puma.errors import SettingsError
from puma.label_errors import RANKERS, Loss, Ranker, resolve_ranker
from puma.models import predictions
from puma.models.predictions import require_fit
from puma.models.tasks import likelihood_of
from puma.project.files import PRIVATE, require_writable, write_text
from puma.requests.request_file import SUBJECT

DEFAULT_CRITERION = "validation_loss"


@dataclass(frozen=True, repr=False, eq=False)
class Suspects:
    """The ranked training rows of ``dataset``. All tensors are in the order of the rows.

    Attributes:
        dataset: The dataset whose training rows were ranked.
        method: The ranker's name.
        criterion: What a row may do harm to; None for a ranker that has no criterion.
        suspicion: (n,) the ranker's scores; higher is more suspect.
        loss: (n,) the task's loss in nats: the baseline that is shown beside every ranker.
        predicted: (n,) the labels that the model predicts: classes, or numbers of a regression.
    """

    dataset: Dataset
    method: str
    criterion: str | None
    suspicion: Tensor
    loss: Tensor
    predicted: Tensor

    def __repr__(self) -> str:
        return f"Suspects({self.dataset.name!r}, {self.title}, n={len(self)})"

    def __len__(self) -> int:
        return len(self.suspicion)

    @property
    def title(self) -> str:
        """The method and its criterion, in words."""
        return self.method if self.criterion is None else f"{self.method} on {self.criterion}"

    @property
    def order(self) -> Tensor:
        """(n,) row numbers, the most suspect first; ties in the order of the data."""
        return self.suspicion.argsort(descending=True, stable=True)

    @property
    def disagrees(self) -> Tensor:
        """(n,) whether the model predicts another class; a number that is a deviation off."""
        given = self.dataset.train.labels.cpu()
        if self.dataset.task.is_regression:
            return (self.predicted - given).abs() >= 1
        return self.predicted != given

    @property
    def rank_by_loss(self) -> Tensor:
        """(n,) each row's place by loss: 1 is the largest; ties in the order of the data."""
        ranks = torch.empty(len(self), dtype=torch.long)
        ranks[self.loss.argsort(descending=True, stable=True)] = torch.arange(1, len(self) + 1)
        return ranks

    def most(self, top: int) -> Tensor:
        """The ``top`` most suspect row numbers, the most suspect first.

        Raises:
            SettingsError: ``top`` is not between 1 and n.
        """
        require_top(top, len(self))
        return self.order[:top]

    def shared_with_loss(self, top: int) -> int:
        """Count the ``top`` most suspect rows that are also among the ``top`` of largest loss."""
        return int((self.rank_by_loss[self.most(top)] <= top).sum())

    def write(self, path: Path, top: int) -> None:
        """Write the owners of the ``top`` most suspect rows as a deletion request, for review.

        The file is a CSV that :meth:`DeletionSet.read` reads: one line per subject, the most
        suspect first. The column ``reason`` says what speaks against each of the subject's rows.
        Only the file's owner may read it (mode 0600). The reviewer strikes out who is to stay,
        then moves the file to deletions/. A removal takes EVERY row of a subject, not only the
        suspect ones.

        Writing the same text again is no error.

        Raises:
            SettingsError: ``top`` is not between 1 and n, the folder is missing, or ``path``
                holds something else, which may have been reviewed.
        """
        text = self._as_request(self.most(top))
        if not _holds(path, text):
            require_new(path)
        write_text(path, text, mode=PRIVATE)

    def coarse(self, label: Tensor) -> str:
        """A label as it may be shown anywhere: its class, or how far it is from the mean label.

        A number of its own might say whose row it is; so it is in deviations, to one decimal.
        """
        task = self.dataset.task
        return f"{label.item():+.1f} sd" if task.is_regression else task.classes[int(label)]

    def _named(self, label: Tensor) -> str:
        """A label in words: its class, or the number in the target's own unit."""
        task = self.dataset.task
        if task.is_regression:
            return f"{task.centre + task.scale * label.item():.4g}"
        return task.classes[int(label)]

    def _as_request(self, rows: Tensor) -> str:
        train, ranks = self.dataset.train, self.rank_by_loss
        reasons: dict[str, list[str]] = {}
        for place, row in enumerate(rows.tolist(), start=1):
            given, predicted = (self._named(each[row]) for each in (train.labels, self.predicted))
            reasons.setdefault(str(train.subject_ids[row]), []).append(
                f"suspect {place} by {self.title} ({self.suspicion[row]:.4g}); "
                f"{ranks[row]} by loss; labelled {given}; the model says {predicted}"
            )
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow((SUBJECT, "reason"))
        writer.writerows((name, " / ".join(each)) for name, each in reasons.items())
        return buffer.getvalue()


def require_top(top: int, n: int) -> None:
    """Raise SettingsError unless ``top`` is between 1 and ``n`` rows."""
    if not 1 <= top <= n:
        raise SettingsError(f"top must be between 1 and the {n} training rows, got {top}")


def require_new(path: Path) -> None:
    """Raise SettingsError unless a file can be written to ``path`` without replacing another."""
    if not path.parent.is_dir():
        raise SettingsError(f"{path.parent}: no such folder; make it, or name another path")
    if os.path.lexists(path):
        raise SettingsError(
            f"{path} is there already, and may have been reviewed; move it away, or name another "
            "path"
        )
    require_writable(path)


def rank(
    model: nn.Module,
    dataset: Dataset,
    *,
    method: str = "psi",
    criterion: str | None = None,
    weight_decay: float = 0.0,
    progress: bool = False,
) -> Suspects:
    """Rank the training rows of ``dataset``, on which ``model`` was trained.

    Args:
        model: It is left as it was.
        dataset: Its validation rows, or else its test rows, judge the training rows where the
            criterion is "validation_loss".
        method: A name in :data:`puma.label_errors.RANKERS`.
        criterion: A name in :data:`puma.influence.CRITERIA`, for the methods that have a
            criterion. None takes "validation_loss".
        weight_decay: What the model was trained with.
        progress: Show a bar where the work takes long.

    Raises:
        SettingsError: An unknown name, or a criterion for a method that has none.
        PumaError: What the ranker raises.
    """
    ranker, criterion = _ranker(method, criterion, weight_decay)
    require_fit(model, dataset.train)
    loss = Loss().suspicion(model, dataset)
    suspicion = ranker.suspicion(model, dataset, progress=progress)
    predicted = predictions.predicted(model, dataset.train).cpu()
    predicted = likelihood_of(dataset.task).labels(predicted)
    return Suspects(dataset, method, criterion, suspicion, loss, predicted)


def rank_all(
    model: nn.Module,
    dataset: Dataset,
    methods: Sequence[str],
    *,
    criterion: str = DEFAULT_CRITERION,
    weight_decay: float = 0.0,
    progress: bool = False,
) -> dict[str, Suspects]:
    """:func:`rank` by plain loss first, then by each of ``methods``.

    ``criterion`` is for the methods that have one. Raises what :func:`rank` raises.
    """
    return {
        name: rank(
            model,
            dataset,
            method=name,
            criterion=criterion if hasattr(RANKERS.get(name), "criterion") else None,
            weight_decay=weight_decay,
            progress=progress,
        )
        for name in dict.fromkeys((Loss.name, *methods))
    }


def _ranker(method: str, criterion: str | None, weight_decay: float) -> tuple[Ranker, str | None]:
    """The ranker, and the criterion that it has."""
    resolve_ranker(method)  # refuses an unknown name
    kind = RANKERS[method]
    if not hasattr(kind, "criterion"):
        if criterion is not None:
            able = " or ".join(name for name, each in RANKERS.items() if hasattr(each, "criterion"))
            raise SettingsError(
                f"method {method!r} has no criterion, got {criterion!r}; leave it out, or choose "
                f"{able}"
            )
        return kind(), None
    chosen = DEFAULT_CRITERION if criterion is None else criterion
    return kind(criterion=chosen, weight_decay=weight_decay), chosen  # type: ignore[call-arg]


def _holds(path: Path, text: str) -> bool:
    try:
        return path.is_file() and path.read_bytes() == text.encode()
    except OSError:  # one that only its owner may read
        return False
