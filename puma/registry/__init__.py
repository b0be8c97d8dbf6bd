"""The model registry: every original and every removal is one version of ``puma-<dataset>``.

MLflow is imported inside the functions that need it: it takes seconds, and much of what the
command line says of a project does not need it.
"""

from __future__ import annotations

from puma.registry.loading import load_predictor
from puma.registry.registration import Registered, all_registered, missing, register_all
from puma.registry.registry import Registry
from puma.registry.store import open_store, tracking_uri
from puma.registry.versions import (
    RegisteredVersion,
    find_fingerprint,
    list_versions,
    model_name,
)

__all__ = [
    "Registered",
    "RegisteredVersion",
    "Registry",
    "all_registered",
    "find_fingerprint",
    "list_versions",
    "load_predictor",
    "missing",
    "model_name",
    "open_store",
    "register_all",
    "tracking_uri",
]
