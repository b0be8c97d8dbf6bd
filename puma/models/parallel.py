"""The same function over many tasks, in processes of one thread each."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_all(
    function: Callable[..., T], tasks: Sequence[tuple[Any, ...]], *, jobs: int
) -> Iterator[tuple[int, T]]:
    """Call ``function(*task)`` for every task, ``jobs`` at a time.

    With one job, or one task, this happens in this process and in order. Else it happens in
    fresh processes (a forked PyTorch can hang), so that ``function`` must be importable and the
    tasks picklable. Each has one thread in either case: the result does not depend on ``jobs``,
    and models this small would wait for their threads longer than they work. The first exception
    is raised, and the tasks not yet begun are dropped.

    Yields:
        (place of the task, result), as each is done.
    """
    if min(jobs, len(tasks)) <= 1:
        for place, task in enumerate(tasks):
            yield place, _one_thread(function, task)
        return
    context = multiprocessing.get_context("spawn")
    with (
        _resource_tracker_ended(),
        ProcessPoolExecutor(
            min(jobs, len(tasks)), mp_context=context, initializer=_end_with_parent
        ) as pool,
    ):
        places = {pool.submit(_one_thread, function, task): k for k, task in enumerate(tasks)}
        try:
            for future in as_completed(places):
                yield places[future], future.result()
        finally:
            # Waits, too: a process of the pool that outlives this one keeps it from ending.
            pool.shutdown(cancel_futures=True)


@contextmanager
def _resource_tracker_ended() -> Iterator[None]:
    """End the helper process that ``multiprocessing`` starts, unless it ran before.

    It ignores SIGTERM. A Jupyter kernel that exits ends its children first, waits for this one
    until it is killed itself, and leaves its temporary folders behind.
    """
    tracker = resource_tracker._resource_tracker
    ran = tracker._fd is not None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if not ran:
            gc.collect()  # of the pool's semaphores, each of which tells the tracker
            tracker._stop()  # type: ignore[attr-defined]


def _end_with_parent() -> None:
    """End this process of a pool when its parent is killed; it would wait for tasks for ever."""

    def end() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def _one_thread(function: Callable[..., T], task: tuple[Any, ...]) -> T:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function(*task)
    finally:
        torch.set_num_threads(threads)
