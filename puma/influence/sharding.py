"""Passes over rows that several processes share: each takes a part of the rows, sums are of all.

Within :func:`rows_shared`, under ``torch.distributed``, every process ("rank") runs the same code
on the same data. A pass takes the rank's :func:`share` of the rows, and what it finds is
:func:`summed` over the ranks or :func:`gathered` from them. Everything else is computed on each.
Where its last bit could decide how the code goes on, all take rank 0's (:func:`agreed`).

Anywhere else these functions return what they are given, and import nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from puma.data.base import Examples
from puma.errors import PumaError, RankError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")
Agreed = TypeVar("Agreed", float, Tensor)

PASS = timedelta(minutes=30)  # longest difference between two ranks' shares of one pass
WAIT = timedelta(days=1)  # longest time that the others wait while rank 0 trains


@dataclass(frozen=True)
class _Ranks:
    rank: int
    count: int
    passes: ProcessGroup
    waits: ProcessGroup


_SHARED_BY: ContextVar[_Ranks | None] = ContextVar("_SHARED_BY", default=None)


@contextmanager
def rows_shared() -> Iterator[None]:
    """Share the rows of every pass with the other ranks of ``torch.distributed``.

    All of them enter, do the same with the same arguments, and leave. With one process, or where
    ``torch.distributed`` is not initialised, nothing is shared. CPU tensors travel by gloo, CUDA
    tensors by NCCL. Where a rank leaves with an exception, the others get a RankError instead of
    waiting for it.
    """
    distributed = torch.distributed
    if (
        _SHARED_BY.get() is not None
        or not distributed.is_available()
        or not distributed.is_initialized()
        or distributed.get_world_size() == 1
    ):
        yield
        return
    passes, waits = (
        cast("ProcessGroup", distributed.new_group(backend=kind, timeout=timeout))
        for kind, timeout in ((backend(), PASS), ("gloo", WAIT))
    )
    token = _SHARED_BY.set(
        _Ranks(distributed.get_rank(), distributed.get_world_size(), passes, waits)
    )
    try:
        yield
    finally:
        _SHARED_BY.reset(token)
        for group in (passes, waits):
            distributed.destroy_process_group(group)


def backend() -> str:
    """What carries tensors from rank to rank here."""
    cuda = torch.cuda.is_available() and torch.distributed.is_nccl_available()
    return "cpu:gloo,cuda:nccl" if cuda else "gloo"


def is_shared() -> bool:
    """Whether several ranks share the rows here."""
    return _SHARED_BY.get() is not None


def share(count: int) -> slice:
    """Which of ``count`` rows are this rank's: neighbours, and none where there are too few."""
    ranks = _SHARED_BY.get()
    return slice(0, count) if ranks is None else _share(count, ranks.rank, ranks.count)


def _share(count: int, rank: int, ranks: int) -> slice:
    return slice(count * rank // ranks, count * (rank + 1) // ranks)


def own_rows(examples: Examples) -> Examples:
    """This rank's :func:`share` of the ``examples``."""
    part = share(len(examples))
    if part == slice(0, len(examples)):
        return examples
    return examples.subset(torch.arange(part.start, part.stop))


def summed(part: Tensor) -> Tensor:
    """The sum of all ranks' tensors, the same on each; may overwrite ``part``.

    Raises:
        RankError: Another rank has failed, or takes no part.
    """
    ranks = _SHARED_BY.get()
    if ranks is not None:
        part = part.contiguous()
        carried_out(torch.distributed.all_reduce, part, group=ranks.passes)
    return part


def gathered(part: Tensor, count: int) -> Tensor:
    """(count, ...) what all ranks found of their :func:`share` of ``count`` rows, in order.

    Raises:
        RankError: Another rank has failed, or takes no part.
    """
    ranks = _SHARED_BY.get()
    if ranks is None:
        return part
    parts = [_share(count, rank, ranks.count) for rank in range(ranks.count)]
    sizes = [each.stop - each.start for each in parts]
    padded = part.new_zeros(max(sizes), *part.shape[1:])
    padded[: len(part)] = part
    found = [torch.empty_like(padded) for _ in sizes]
    carried_out(torch.distributed.all_gather, found, padded, group=ranks.passes)
    return torch.cat([each[:size] for each, size in zip(found, sizes, strict=True)])


def agreed(value: Agreed) -> Agreed:
    """Rank 0's ``value``, a number or a tensor of the same shape on every rank.

    What each computes of the same sums may differ in the last bit, between unlike processors.

    Raises:
        RankError: Another rank has failed, or takes no part.
    """
    ranks = _SHARED_BY.get()
    if ranks is None:
        return value
    sent = (
        value.contiguous()
        if isinstance(value, Tensor)
        else torch.tensor([value], dtype=torch.float64)
    )
    carried_out(torch.distributed.broadcast, sent, src=0, group=ranks.passes)
    return sent if isinstance(value, Tensor) else float(sent)


def from_first(make: Callable[[], T]) -> T:
    """Rank 0's ``make()``, which the others wait for, a day at most.

    Raises:
        RankError: Rank 0 has failed, on the others.
    """
    ranks = _SHARED_BY.get()
    if ranks is None:
        return make()
    made: list[Any] = []
    try:
        if ranks.rank == 0:
            made = [make()]
    finally:
        sent = [made]
        carried_out(torch.distributed.broadcast_object_list, sent, src=0, group=ranks.waits)
    if not sent[0]:
        raise RankError("rank 0 has failed: its own message says why")
    found: T = sent[0][0]
    return found


def unanimous(work: Callable[[], T], refusal: type[PumaError]) -> T:
    """``work()``, or its ``refusal`` on all ranks where one of them refuses."""
    if not is_shared():
        return work()
    refused: PumaError | None = None
    try:
        found = work()
    except refusal as error:
        refused = error
    if float(summed(torch.tensor(float(refused is not None)))) > 0:
        raise refused or refusal("another rank refuses its share of the rows")
    return found


def require_same(what: str, *digests: str) -> None:
    """Raise RankError unless these are the same on all ranks."""
    ranks = _SHARED_BY.get()
    if ranks is None:
        return
    found: list[Any] = [None] * ranks.count
    carried_out(torch.distributed.all_gather_object, found, digests, group=ranks.waits)
    others = [rank for rank, each in enumerate(found) if each != found[0]]
    if others:
        raise RankError(
            f"rank {', '.join(map(str, others))} of {ranks.count} has other {what} than rank 0; "
            "give every rank the same"
        )


def carried_out(collective: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Call a function of ``torch.distributed`` that needs all ranks.

    Raises:
        RankError: Another rank has failed, or takes no part.
    """
    try:
        collective(*arguments, **named)
    except RuntimeError as error:
        reason = str(error).partition("] ")[2] or str(error)  # without a place in PyTorch's source
        raise RankError(
            "another rank has failed, or does not answer "
            f"({reason.partition('. ')[0].splitlines()[0][:200]}); nothing was made; see what that "
            "rank says, and start all of them again"
        ) from error
