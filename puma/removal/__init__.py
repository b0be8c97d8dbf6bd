"""Removal methods by name, to fit an original and to remove rows from it.

The rooms above import from here: audit, lineage, registry, workflows.

A new method is one file here and one row of :data:`METHODS`. If it has settings in params.yaml,
it inherits them from a class in puma/settings/removal.py, which is the type of a field of the
method's name in :class:`puma.settings.Settings`. If it acts during training, ``RECORDING`` in
puma/settings/names.py names it too, and the stages train and reference of dvc.yaml name its
settings among their params.
"""

from __future__ import annotations

from puma.errors import SettingsError
from puma.removal.amnesiac import Amnesiac
from puma.removal.base import RemovalMethod
from puma.removal.puma.algorithm1 import PaperPUMA
from puma.removal.puma.method import PUMA
from puma.removal.results import Removal, Trained
from puma.removal.retrain import Retrain
from puma.removal.sisa import SISA
from puma.settings import ORIGINAL, Settings, Strict

METHODS: dict[str, type[RemovalMethod]] = {
    "amnesiac": Amnesiac,
    "puma": PUMA,
    "puma_paper": PaperPUMA,
    "retrain": Retrain,
    "sisa": SISA,
}
# What trains each kind of original. The plain one is the same by every method that removes
# from it.
ORIGINALS: dict[str, str] = {
    ORIGINAL: "retrain",
    **{kind.original: name for name, kind in METHODS.items() if kind.original != ORIGINAL},
}


def build_method(name: str, settings: Settings) -> RemovalMethod:
    """Build the named method with its settings from params.yaml.

    Raises:
        SettingsError: There is no such method.
    """
    try:
        method = METHODS[name]
    except KeyError:
        raise SettingsError(
            f"unknown removal method {name!r}; choose one of {', '.join(sorted(METHODS))}"
        ) from None
    own = getattr(settings, name, Strict()).model_dump()
    return method(**own, training=settings.training, seed=settings.seed, device=settings.device)


def build_trainer(original: str, settings: Settings) -> RemovalMethod:
    """Build the method whose ``fit`` makes ``original``.

    Raises:
        SettingsError: There is none.
    """
    if original not in ORIGINALS:
        raise SettingsError(
            f"unknown original {original!r}; choose one of {', '.join(sorted(ORIGINALS))}"
        )
    return build_method(ORIGINALS[original], settings)


__all__ = [
    "METHODS",
    "ORIGINALS",
    "PUMA",
    "SISA",
    "Amnesiac",
    "PaperPUMA",
    "Removal",
    "RemovalMethod",
    "Retrain",
    "Trained",
    "build_method",
    "build_trainer",
]
