"""Models of the user's own, by "package.module:Class"."""

from __future__ import annotations

from torch import nn

from puma.errors import ModelError
from puma.project.user_code import imported


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
    make = imported(name, "model", "package.module:Class", ModelError)
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
