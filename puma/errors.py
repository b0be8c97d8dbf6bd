"""The named failures. Each message says what is wrong, what was found, and what to do."""

from __future__ import annotations


class PumaError(Exception):
    """Base of every error that PUMA raises on purpose."""


class SettingsError(PumaError, ValueError):
    """params.yaml, or a value given in its place, cannot be used."""


class DataError(PumaError, ValueError):
    """A dataset is missing, malformed, or does not fit the request."""


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
