"""The named failures. Each message says what is wrong, what was found, and what to do."""

from __future__ import annotations

import os
from numbers import Integral


class PumaError(Exception):
    """Base of every error that PUMA raises on purpose."""


class SettingsError(PumaError, ValueError):
    """params.yaml, or a value given in its place, cannot be used."""


class DataError(PumaError, ValueError):
    """A dataset is missing, malformed, or does not fit the request."""


class ColumnError(DataError):
    """A column of a table cannot be used as it is; its settings may say more about it."""


class AbsentError(DataError):
    """What is needed is not here, which need not be anybody's mistake."""


class DeletionError(PumaError, ValueError):
    """A deletion set cannot be honoured as written; nothing was changed.

    ``unknown_ids`` names the subjects that the dataset does not hold, for a caller
    that can show them to the person who wrote the request. The message names nobody:
    messages end in logs, tracebacks and notebooks.
    """

    def __init__(self, message: str, *, unknown_ids: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.unknown_ids = unknown_ids


class ModelError(PumaError, ValueError):
    """A model cannot be built, saved, loaded, or handled by a method."""


class SolverError(PumaError, ArithmeticError):
    """A linear solve failed: it did not converge, or the operator is not positive definite."""


class AuditError(PumaError, ValueError):
    """The evidence cannot be computed from what was given."""


class RegistryError(PumaError, RuntimeError):
    """The model registry cannot be opened, read, or written."""


class RankError(PumaError, RuntimeError):
    """Another process of a removal that several share has failed, or does not answer."""


def require_path(path: object, error: type[PumaError]) -> None:
    """Raise ``error`` unless ``path`` names a path."""
    require_type(path, (str, os.PathLike), "the path", error, "pass a pathlib.Path")


def require_seed(seed: object, error: type[PumaError]) -> None:
    """Raise ``error`` unless ``seed`` is an integer that every random generator takes."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= int(seed) < 2**32:
        raise error(f"a seed must be a whole number from 0 to 2**32 - 1, got {seed!r}")


def require_memory(needed: int, max_bytes: int, what: str, remedy: str) -> None:
    """Raise SolverError when ``what``, a plural, takes more than ``max_bytes``; call it before."""
    if needed > max_bytes:
        raise SolverError(
            f"{what} take {needed / 1e6:.4g} MB, max_bytes allows {max_bytes / 1e6:.4g} MB; "
            f"{remedy}"
        )


def require_max_bytes(max_bytes: int) -> None:
    """Raise SettingsError unless ``max_bytes`` allows something."""
    if max_bytes < 1:
        raise SettingsError(f"max_bytes must be >= 1, got {max_bytes}")


def require_type(
    value: object, kind: type | tuple[type, ...], what: str, error: type[PumaError], remedy: str
) -> None:
    """Raise ``error`` unless ``value`` is of ``kind``; the message names types, never a value."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(each.__name__ for each in kinds)
        got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise error(f"{what} must be a {wanted}, got {got}; {remedy}")
