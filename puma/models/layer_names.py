"""The name of the layer in which a model fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def entered_layers(model: nn.Module) -> Iterator[list[str]]:
    """Note, in the yielded list, the layers that were entered and not left, outermost first.

    After an exception in a forward pass the last one is where it was raised. Each is in words, such
    as "LSTM 'encoder.rnn'".
    """
    entered: list[str] = []
    hooks = []

    def enter(name: str) -> Any:
        return lambda module, _: entered.append(in_words(name, module))

    def leave(*_: Any) -> None:
        entered.pop()

    try:
        for name, module in model.named_modules():
            hooks.append(module.register_forward_pre_hook(enter(name)))
            hooks.append(module.register_forward_hook(leave))
        yield entered
    finally:
        for hook in hooks:
            hook.remove()


def in_words(name: str, layer: nn.Module) -> str:
    """A layer by its type and its name in the model."""
    return f"{type(layer).__name__} {name!r}" if name else f"forward of {type(layer).__name__}"
