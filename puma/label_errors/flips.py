"""Wrong labels on purpose: the truth that a ranker is measured against."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from puma.data.base import Examples
from puma.errors import DataError, SettingsError, require_seed
from puma.models.tasks import require_classes


def flip_labels(
    examples: Examples, fraction: float, *, n_classes: int, seed: int
) -> tuple[Examples, Tensor]:
    """Give some rows wrong labels, drawn with ``seed``.

    round(``fraction``·n) rows are drawn uniformly without replacement. Each gets another class
    than its own, uniformly among the ``n_classes`` − 1 others. Features, ids and order stay. The
    global random state is not used. The paper flips a tenth of the training labels (Corrupted
    Sample Discovery).

    Returns:
        The examples with wrong labels, and an (n,) bool mask of the rows that have them.

    Raises:
        SettingsError: A fraction outside [0, 1], or fewer than 2 classes.
        DataError: A label is not below ``n_classes``, or there are no classes.
    """
    require_classes(examples, "a wrong label", "change some numbers yourself")
    require_seed(seed, SettingsError)
    if not 0 <= fraction <= 1:
        raise SettingsError(f"fraction must be between 0 and 1, got {fraction}")
    if n_classes < 2:
        raise SettingsError(f"n_classes must be >= 2 for a label to be wrong, got {n_classes}")
    n, labels = len(examples), examples.labels
    if n and int(labels.max()) >= n_classes:
        raise DataError(
            f"a label is {int(labels.max())}, but n_classes is {n_classes}; count them all"
        )
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(n, generator=generator)[: round(fraction * n)]
    shift = torch.randint(1, n_classes, (len(rows),), generator=generator)
    rows, shift = rows.to(labels.device), shift.to(labels.device)
    mask = torch.zeros(n, dtype=torch.bool, device=labels.device)
    mask[rows] = True
    wrong = labels.clone()
    wrong[rows] = (labels[rows] + shift) % n_classes
    return replace(examples, labels=wrong), mask
