"""Models of the user's own, by "package.module:Class"."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from torch import nn

from puma.errors import ModelError


def custom_model(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build a model with the user's own class or factory.

    THIS RUNS THE USER'S CODE: importing the module executes it. Take such a name from a
    params.yaml that you trust, as you would a program.

    Args:
        name: "package.module:Class"; it is called with (shape, classes).
        shape: Of one example, without the batch.
        classes: How many.

    Raises:
        ModelError: The module or the name in it cannot be imported or called, or the call
            returns something else than an nn.Module. What the call itself raises is passed on.
    """
    make = _imported(name)
    if not callable(make):
        raise ModelError(
            f"model {name!r} is of type {type(make).__name__}; name a class or a function that "
            "is called with (shape, classes)"
        )
    model = make(shape, classes)
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"model {name!r} returned {type(model).__name__} for shape {shape} and {classes} "
            "classes; it must return a torch.nn.Module"
        )
    return model


def _imported(name: str) -> Callable[..., Any] | Any:
    module, _, attribute = name.partition(":")
    try:
        return attrgetter(attribute)(importlib.import_module(module))
    except Exception as error:  # a module may raise anything while it is imported
        raise ModelError(
            f"model {name!r} cannot be imported ({type(error).__name__}: {error}); write "
            '"package.module:Class", and install the package or add its folder to PYTHONPATH'
        ) from error
