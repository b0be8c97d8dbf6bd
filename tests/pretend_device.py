"""A second device that is only pretended: what lies there is computed here, and kept apart.

Its tensors hold one on the CPU, and every operation is done with that. As on a GPU, an operation
on tensors of two devices is an error, unless it copies, or one is a number or an index; and NumPy
cannot read them. As on MPS, float64 may be forbidden.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

KIND = "pretend"
_setup_privateuseone_for_python_backend(KIND)
# What takes tensors of both devices: copies, and indices on the CPU.
ACROSS = {"_to_copy", "copy_", "index", "index_put", "index_put_", "_index_put_impl_"}


class _There(Tensor):
    """A tensor on the pretended device, which ``held`` has the numbers of."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> _There:
        return Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(KIND, 0),
        )

    def __init__(self, held: Tensor) -> None:
        self.held = held

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation: Any, *_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{operation} outside of PretendedDevice()")


class PretendedDevice(TorchDispatchMode):
    """Within it, ``torch.device("pretend")`` is there.

    Args:
        double: Whether it has float64.
    """

    def __init__(self, *, double: bool) -> None:
        super().__init__()
        self.double = double

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = operation.overloadpacket.__name__
        inputs = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, Tensor)]
        there = any(isinstance(each, _There) for each in inputs)
        if there and name not in ACROSS:
            self._refuse_both(operation, inputs)
        if kwargs.get("device") is not None:
            there = torch.device(kwargs["device"]).type == KIND
            kwargs = {**kwargs, "device": torch.device("cpu")}
        held_args, held_kwargs = tree_map(_held, (args, kwargs))
        if not there:
            return operation(*held_args, **held_kwargs)
        if name == "_efficientzerotensor":  # a tensor without numbers
            found = torch.zeros(held_args[0], dtype=held_kwargs.get("dtype"))
        else:
            found = operation(*held_args, **held_kwargs)
        if name.endswith("_") and not name.startswith("__"):  # in place
            return args[0] if operation._schema.returns else None
        return tree_map(lambda each: self._placed(each, operation), found)

    def _refuse_both(self, operation: Any, inputs: list[Tensor]) -> None:
        if any(not isinstance(each, _There) and each.ndim > 0 for each in inputs):
            raise RuntimeError(f"{operation}: tensors on {KIND} and on cpu")

    def _placed(self, found: Any, operation: Any) -> Any:
        if not isinstance(found, Tensor):
            return found
        if found.dtype == torch.float64 and not self.double:
            raise TypeError(f"{operation}: {KIND} has no float64")
        return _There(found)


def _held(value: Any) -> Any:
    return value.held if isinstance(value, _There) else value
