"""Models of the user's own, by "package.module:Class".

The class, or a function, is called as ``Class(shape, classes, **kwargs)``: ``shape`` is of one
example, ``classes`` says how many outputs (1 where the task is binary or regression), and
``kwargs`` are ``model.kwargs`` of params.yaml. It returns a ``torch.nn.Module`` that maps
(B, *shape) rows to (B, classes) logits, or numbers of a regression, each row by itself and, in
eval mode, the same each time. docs/your-model.md says what else is wanted.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from puma.errors import ModelError
from puma.models.layer_names import entered_layers, in_words
from puma.models.predictions import evaluating
from puma.project.user_code import importable_from, imported

FORM = "package.module:Class"
ROWS = 3  # that are tried: fewer cannot show whether rows change each other's outputs
UNUSABLE = ("torch.bfloat16", "torch.float16", "torch.complex64", "torch.complex128")
CLOSE = 1e-3  # a batch of another size may round differently


def custom_model(
    name: str, shape: tuple[int, ...], classes: int, kwargs: Mapping[str, Any] | None = None
) -> nn.Module:
    """Build a model with the user's own class or factory.

    THIS RUNS THE USER'S CODE: importing the module executes it. Take such a name from a
    params.yaml that you trust, as you would a program.

    Args:
        name: "package.module:Class"; it is called with (shape, classes, **kwargs).
        shape: Of one example, without the batch.
        classes: How many.
        kwargs: ``model.kwargs``.

    Raises:
        ModelError: The module or the name in it cannot be imported or called so, or the call
            returns something else than an nn.Module whose weights have their shapes. What the call
            itself raises is passed on.
    """
    make = imported(name, "model", FORM, ModelError)
    given = dict(kwargs or {})
    if not callable(make):
        raise ModelError(
            f"model {name!r} is of type {type(make).__name__}; name a class or a function that "
            "is called with (shape, classes)"
        )
    _refuse_other_arguments(name, make, shape, classes, given)
    with importable_from():
        model = make(shape, classes, **given)
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"model {name!r} returned {type(model).__name__} for shape {shape} and {classes} "
            "classes; it must return a torch.nn.Module"
        )
    for layer, module in model.named_modules():
        own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if any(is_lazy(each) for each in own):
            raise ModelError(
                f"model {name!r}: {in_words(layer, module)} takes its size from the first "
                "batch, and a seed could not fix its weights; make it with its size, which follows "
                "from the shape that the class is called with"
            )
        odd = sorted({str(each.dtype) for each in own} & set(UNUSABLE))
        if odd:
            raise ModelError(
                f"model {name!r}: {in_words(layer, module)} has weights or buffers of "
                f"{', '.join(odd)}; make them torch.float32, as the rows are: models are stored, "
                "compared and differentiated in it"
            )
    return model


def _refuse_other_arguments(
    name: str, make: Any, shape: tuple[int, ...], classes: int, kwargs: dict[str, Any]
) -> None:
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):  # of a class that is written in C
        return
    try:
        signature.bind(shape, classes, **kwargs)
    except TypeError as error:
        call = ", ".join(("shape", "classes", *(f"{key}=..." for key in kwargs)))
        raise ModelError(
            f"model {name!r} cannot be called as {name.rpartition(':')[2]}({call}): {error}, it "
            f"takes {signature}; the arguments after shape and classes are those of model.kwargs"
        ) from error


@torch.no_grad()
def require_contract(name: str, model: nn.Module, features: Tensor, classes: int) -> None:
    """Raise ModelError unless ``model`` maps rows to logits as a model of the user's own must.

    It is called in eval mode, on three rows, on the same again, and on one of them. The model and
    the global random state are left as they were.

    Args:
        name: Of the model, for the message.
        model: As :func:`custom_model` built it.
        features: (n, ...) rows of the data.
        classes: How many.
    """
    rows = features[:ROWS]
    wanted = (
        f"a model of your own maps a batch of shape {('B', *rows.shape[1:])} to {('B', classes)} "
        "finite logits, each row by itself (docs/your-model.md)"
    ).replace("'", "")
    with evaluating(model), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            found = model(rows)
            again, alone = model(rows), model(rows[:1])
        except Exception as error:  # a module may raise anything
            raise ModelError(
                f"model {name!r} raised {type(error).__name__} for {len(rows)} rows of shape "
                f"{tuple(rows.shape[1:])} and {rows.dtype}{_in_words(model, rows)}; {wanted}"
            ) from error
    if not isinstance(found, Tensor):
        raise ModelError(f"model {name!r} returned {type(found).__name__}, no tensor; {wanted}")
    if found.shape != (len(rows), classes) or not found.is_floating_point():
        raise ModelError(
            f"model {name!r} returned shape {tuple(found.shape)} of {found.dtype} for {len(rows)} "
            f"rows; {wanted}"
        )
    if not found.isfinite().all():
        raise ModelError(f"model {name!r} returned NaN or infinite logits, untrained; {wanted}")
    if alone.shape != (1, classes):
        raise ModelError(
            f"model {name!r} returned shape {tuple(alone.shape)} for one row alone; {wanted}: take "
            "out squeeze() without a dimension"
        )
    if classes > 1 and bool((found >= 0).all()) and torch.allclose(found.sum(1), found.new_ones(1)):
        raise ModelError(
            f"model {name!r} returned probabilities, which sum to 1 for each row; {wanted}: take "
            "out the softmax, which the loss applies"
        )
    if not torch.equal(found, again):
        raise ModelError(
            f"model {name!r} returned other logits for the same rows the second time: it draws in "
            "eval mode, too; draw only while self.training is true, as nn.Dropout does, and "
            "nn.functional.dropout with training=self.training"
        )
    if not torch.allclose(found[:1], alone, rtol=CLOSE, atol=CLOSE / 10):
        raise ModelError(
            f"model {name!r} returned other logits for a row alone than for the same row in a "
            f"batch; in eval mode, {wanted}: normalise by running statistics, not by the batch"
        )


def require_exportable(name: str, model: nn.Module, shape: tuple[int, ...]) -> None:
    """Raise ModelError unless ``model`` can be registered: as one graph for any number of rows.

    Args:
        name: Of the model, for the message.
        model: A model that keeps the contract; it is left as it was.
        shape: Of one example.
    """
    wanted = (
        "the registry holds models as graphs (torch.export): take branches and loops that depend "
        "on values, .item(), float(tensor), numpy and sizes written as numbers out of forward; "
        "torch.where, and operations on whole tensors, do the same"
    )
    model = copy.deepcopy(model).eval()  # recurrent layers keep what is assigned to them meanwhile
    with entered_layers(model) as entered:
        try:
            some = torch.zeros(2, *shape)
            # As MLflow does: two rows, since one would become a constant.
            batch = {0: torch.export.Dim.AUTO}
            program = torch.export.export(model, (some,), dynamic_shapes=(batch,))
            program.module()(torch.zeros(ROWS, *shape))
        except Exception as error:  # the exporter raises errors of all kinds
            where = f" at {entered[-1]}" if entered else ""
            first = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            raise ModelError(
                f"model {name!r} cannot be exported{where} ({type(error).__name__}: {first}); "
                f"{wanted}"
            ) from error


def _in_words(model: nn.Module, rows: Tensor) -> str:
    """What the framework says of rows of zeros: of the data's own it might print some."""
    try:
        model(torch.zeros_like(rows))
    except Exception as error:
        return f" ({str(error).partition(chr(10))[0][:200]})"
    return ""
