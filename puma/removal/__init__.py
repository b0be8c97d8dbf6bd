"""Removal methods by name. A new method is one file and one row of this table."""

from __future__ import annotations

from puma.errors import SettingsError
from puma.removal.base import Removal, RemovalMethod, Trained
from puma.removal.puma import PUMA
from puma.removal.retrain import Retrain
from puma.settings import Settings

METHODS: dict[str, type[RemovalMethod]] = {"puma": PUMA, "retrain": Retrain}


def build_method(name: str, settings: Settings) -> RemovalMethod:
    """The named method with its settings from params.yaml. Raises SettingsError if unknown."""
    try:
        method = METHODS[name]
    except KeyError:
        raise SettingsError(
            f"unknown removal method {name!r}; choose one of {', '.join(sorted(METHODS))}"
        ) from None
    own = getattr(settings, name).model_dump()
    return method(**own, training=settings.training, seed=settings.seed)


__all__ = ["METHODS", "PUMA", "Removal", "RemovalMethod", "Retrain", "Trained", "build_method"]
