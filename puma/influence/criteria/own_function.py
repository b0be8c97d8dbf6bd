"""A criterion of the user's own: any differentiable function of logits and labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from puma.data.base import Examples
from puma.errors import SettingsError
from puma.influence.flat_model import FlatModel, batches, pulled_back, require_examples
from puma.influence.sharding import gathered, share, summed
from puma.models.device import exact
from puma.project.user_code import imported

FORM = "package.module:function"


@dataclass(frozen=True)
class OwnFunction:
    """C = f(logits, labels) for the logits of all ``examples`` at once, in double precision.

    f need not be a mean over rows: it may be the difference of two groups' rates, or a loss of the
    worst tenth. Its gradient with respect to the logits is taken first, then pulled back to the
    parameters batch by batch.

    Attributes:
        function: f, of (n, outputs) logits and (n,) labels; it returns a scalar tensor.
        name: What messages call it.
        examples: What C is measured on.
        batch_size: Of the passes; None takes the model's own.

    Raises:
        DataError: There are no examples.
    """

    function: Callable[[Tensor, Tensor], Tensor]
    name: str
    examples: Examples
    batch_size: int | None = None

    def __post_init__(self) -> None:
        require_examples(self.examples, f"the criterion {self.name!r}")

    @classmethod
    def named(cls, name: str, examples: Examples) -> OwnFunction:
        """Import the function ``name``, "package.module:function". THIS RUNS THE USER'S CODE.

        Raises:
            SettingsError: It cannot be imported, or is no function.
        """
        function = imported(name, "criterion", FORM, SettingsError)
        if not callable(function):
            raise SettingsError(
                f"criterion {name!r} is of type {type(function).__name__}; name a function of "
                "logits and labels"
            )
        return cls(function, name, examples)

    @torch.no_grad()
    def value(self, flat: FlatModel, vector: Tensor) -> float:
        """C at ``vector`` (p,), which need not be finite.

        Raises:
            SettingsError: The function raises, or returns no number.
        """
        return float(self._called(self._logits(flat, vector)))

    def gradient(self, flat: FlatModel) -> Tensor:
        """(p,) ∇C at ``flat.vector``.

        Raises:
            SettingsError: As :meth:`value`, or C is not finite or cannot be differentiated.
        """
        with torch.enable_grad():
            logits = self._logits(flat, flat.vector).requires_grad_()
            value = self._called(logits)
            if not value.isfinite():
                raise SettingsError(
                    f"criterion {self.name!r} is {value.item()} on the {len(self.examples)} rows; "
                    "return a finite number"
                )
            pulled = None
            if value.requires_grad:
                (pulled,) = torch.autograd.grad(value, logits, allow_unused=True)
        if pulled is None:
            raise SettingsError(
                f"criterion {self.name!r} is not differentiable: its value does not come from the "
                "logits by operations that PyTorch differentiates; take out argmax, comparisons, "
                ".item(), .detach() and NumPy, or put soft forms in their place"
            )
        if not pulled.isfinite().all():
            raise SettingsError(
                f"criterion {self.name!r} has a gradient with "
                f"{int((~pulled.isfinite()).sum())} of {pulled.numel()} entries that are NaN or "
                "infinite; take out square roots, logarithms and quotients of 0"
            )
        part = share(len(self.examples))
        vector, done = flat.vector.requires_grad_(), part.start
        total = torch.zeros_like(flat.vector)
        for features, labels in batches(flat, self.examples, self.batch_size, part=part):
            back = pulled[done : done + len(labels)].to(vector)
            done += len(labels)
            with torch.enable_grad():
                output = flat.logits(vector, features)
            total += pulled_back(output, vector, back)[0]
        return summed(total)

    @torch.no_grad()
    def _logits(self, flat: FlatModel, vector: Tensor) -> Tensor:
        """(n, outputs) float64, cut off from the parameters."""
        n = len(self.examples)
        parts = batches(flat, self.examples, self.batch_size, part=share(n))
        found = [exact(vector.new_empty(0, flat.classes(self.examples.features)))]
        found += [exact(flat.logits(vector, features)) for features, _ in parts]
        return gathered(torch.cat(found), n)

    def _called(self, logits: Tensor) -> Tensor:
        try:
            # Copies: what it does to its arguments must not change the data.
            labels = self.examples.labels.to(logits.device, copy=True)
            found = self.function(logits.clone(), labels)
        except Exception as error:  # of the user's code
            raise SettingsError(
                f"criterion {self.name!r} raised {type(error).__name__}; it is called with logits "
                f"of shape {tuple(logits.shape)} and labels of shape "
                f"{tuple(self.examples.labels.shape)}, and returns one number as a tensor"
            ) from error
        if not isinstance(found, Tensor) or found.ndim != 0 or not found.is_floating_point():
            kind = type(found).__name__
            if isinstance(found, Tensor):
                kind = f"a tensor of shape {tuple(found.shape)} of {found.dtype}"
            raise SettingsError(
                f"criterion {self.name!r} returned {kind}; return one number as a tensor of "
                "floating point, such as a mean"
            )
        return found
