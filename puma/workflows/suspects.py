"""Ranking a registered version's training rows by how suspect their labels are, for review."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from puma.data import Dataset
from puma.errors import RegistryError, SettingsError
from puma.label_errors import RANKERS, Loss, Ranker, resolve_ranker
from puma.lineage.records import ModelRecord
from puma.models import predictions
from puma.project.files import PRIVATE, write_text
from puma.project.workspace import Workspace
from puma.registry import RegisteredVersion, list_versions, model_name, open_store
from puma.registry.loading import load_module
from puma.registry.store import reaches_store
from puma.registry.versions import get_version
from puma.requests.archive import find_data, find_request
from puma.requests.deletion_set import SUBJECT

DEFAULT_CRITERION = "validation_loss"


@dataclass(frozen=True, repr=False, eq=False)
class Suspects:
    """The training rows of ``dataset``, ranked; all tensors in the order of the rows.

    method: the ranker's name. criterion: what a row may do harm to; None for a ranker that has
    none. suspicion: (n,) the ranker's, higher is more suspect. loss: (n,) nats, the baseline that
    stands beside every ranker. predicted: (n,) the model's own labels.
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
        """The method, and what it measures harm to."""
        return self.method if self.criterion is None else f"{self.method} on {self.criterion}"

    @property
    def order(self) -> Tensor:
        """(n,) long rows, the most suspect first; equal ones in the order of the data."""
        return self.suspicion.argsort(descending=True, stable=True)

    @property
    def rank_by_loss(self) -> Tensor:
        """(n,) long: 1 for the row of the largest loss; equal ones in the order of the data."""
        ranks = torch.empty(len(self), dtype=torch.long)
        ranks[self.loss.argsort(descending=True, stable=True)] = torch.arange(1, len(self) + 1)
        return ranks

    def most(self, top: int) -> Tensor:
        """(top,) long rows, the most suspect first. Raises SettingsError unless 1 <= top <= n."""
        require_top(top, len(self))
        return self.order[:top]

    def shared_with_loss(self, top: int) -> int:
        """How many of the ``top`` are also among the ``top`` by plain loss."""
        return int((self.rank_by_loss[self.most(top)] <= top).sum())

    def write(self, path: Path, top: int) -> None:
        """Write the owners of the ``top`` most suspect rows as a deletion request, for review.

        What :meth:`DeletionSet.read` reads: one line a subject, most suspect first,
        with what speaks against each of its rows in ``reason``. For the owner's eyes alone (0600):
        strike out who is not to go, then move it to deletions/. A removal takes EVERY row of a
        subject, not just the suspect ones.

        Raises SettingsError where :meth:`most` and :func:`require_new` do; a file that holds this
        very text already is no error.
        """
        text = self._request(self.most(top))
        if not _holds(path, text):
            require_new(path)
        write_text(path, text, mode=PRIVATE)

    def _request(self, rows: Tensor) -> str:
        train, classes, ranks = self.dataset.train, self.dataset.classes, self.rank_by_loss
        reasons: dict[str, list[str]] = {}
        for place, row in enumerate(rows.tolist(), start=1):
            given, predicted = (classes[int(each[row])] for each in (train.labels, self.predicted))
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
    """Raise SettingsError unless there are ``top`` rows among ``n``, and at least one."""
    if not 1 <= top <= n:
        raise SettingsError(f"top must be between 1 and the {n} training rows, got {top}")


def require_new(path: Path) -> None:
    """Raise SettingsError unless a file can be put at ``path`` without replacing another."""
    if not path.parent.is_dir():
        raise SettingsError(f"{path.parent}: no such folder; make it, or name another path")
    if os.path.lexists(path):
        raise SettingsError(
            f"{path} is there already, and may have been reviewed; move it away, or name another "
            "path"
        )


def rank(
    model: nn.Module,
    dataset: Dataset,
    *,
    method: str = "psi",
    criterion: str | None = None,
    weight_decay: float = 0.0,
    progress: bool = False,
) -> Suspects:
    """Rank the training rows of ``dataset``, which ``model`` was trained on.

    method: a name of :data:`puma.label_errors.RANKERS`. criterion: a name of
    :data:`puma.label_errors.CRITERIA` for the methods that have one, by default the loss on
    ``dataset.test``. weight_decay: what the model was trained with.

    Raises SettingsError for an unknown name and for a criterion of a method that has none; and
    what the ranker does.
    """
    ranker, criterion = _ranker(method, criterion, weight_decay)
    loss = Loss().suspicion(model, dataset)
    suspicion = ranker.suspicion(model, dataset, progress=progress)
    predicted = predictions.logits(model, dataset.train.features).argmax(1).cpu()
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
    """:func:`rank` by plain loss first, and then by each of ``methods``.

    ``criterion`` is that of the methods which have one. Raises what :func:`rank` does.
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


@reaches_store
def load_version(
    workspace: Workspace, dataset: str, version: str | int = "champion"
) -> tuple[RegisteredVersion, nn.Module, Dataset]:
    """A registered version with trainable layers, and the dataset with the rows it learnt from.

    ``version``: a number, an alias, or the name of a version of params.yaml, such as "original".
    A removal has not learnt from the rows that it took out, so that these are left out.

    Raises RegistryError when there is no such version, or PUMA did not register it; DataError
    when the project does not hold its data or its request.
    """
    row = _find(workspace, dataset, version)
    client = open_store(workspace)
    found = client.get_model_version(model_name(dataset), str(row.version))
    model = load_module(client, found, workspace)
    data = find_data(workspace, dataset, row.data_digest)
    if row.deletion_digest is not None:
        removed = find_request(workspace, data, row.deletion_digest)
        data = replace(data, train=data.train.without(removed.rows))
    return row, model, data


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


@reaches_store
def _find(workspace: Workspace, dataset: str, version: str | int) -> RegisteredVersion:
    """By the name of a version that the pipeline made last; else by number or alias."""
    client = open_store(workspace)
    if str(version) not in workspace.settings.versions:
        return get_version(client, dataset, version)
    fingerprint = ModelRecord.read(workspace.model_record(dataset, str(version))).fingerprint
    for row in list_versions(client, dataset):
        if row.fingerprint == fingerprint:
            return row
    raise RegistryError(f"{version!r} of {dataset!r} is not registered yet; run `dvc repro`")


def _holds(path: Path, text: str) -> bool:
    try:
        return path.is_file() and path.read_bytes() == text.encode()
    except OSError:  # one that only its owner may read
        return False
