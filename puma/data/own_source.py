"""Datasets of the user's own."""

from __future__ import annotations

from pathlib import Path

from puma.data.base import Dataset
from puma.data.own_function import own_function
from puma.data.own_table import own_table
from puma.data.splitting import Extras
from puma.project.own_data import path_of, source_digest
from puma.settings import SourceSettings


def load_source(
    name: str,
    source: SourceSettings,
    folder: Path,
    *,
    seed: int,
    test_fraction: float,
    extras: Extras,
) -> Dataset:
    """Load the user's own dataset, split and encoded.

    Args:
        name: Of the dataset.
        source: Its settings.
        folder: From which its path is seen, and where its module is looked for first.
        seed: Of the split, where the source does not say it.
        test_fraction: Share of the people to hold out.
        extras: What is wanted beside.

    Raises:
        DataError: The source cannot be read or used.
    """
    digest = source_digest(source, folder)
    path = path_of(source, folder)
    if source.source is not None:
        return own_function(
            name,
            source.source,
            path,
            folder=folder,
            digest=digest,
            task=source.task,
            seed=seed,
            test_fraction=test_fraction,
            extras=extras,
        )
    assert path is not None  # the settings refuse a table without one
    return own_table(
        name,
        path,
        source,
        digest=digest,
        seed=seed,
        test_fraction=test_fraction,
        extras=extras,
    )
