"""The same function over many tasks, in processes of one thread each."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
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
) -> Generator[tuple[int, T], None, None]:
    """Call ``function(*task)`` for every task, ``jobs`` at a time.

    With one job, or one task, this happens in this process and in order. Else it happens in
    fresh processes (a forked PyTorch can hang), so that ``function`` must be importable and the
    tasks picklable. Each has one thread in either case: the result does not depend on ``jobs``,
    and models this small would wait for their threads longer than they work. The first exception
    is raised, and the tasks not yet begun are dropped. An interrupt, or closing this generator
    early, ends the processes at once; they ignore an interrupt themselves.

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
            min(jobs, len(tasks)), mp_context=context, initializer=_belong_to_parent
        ) as pool,
    ):
        others = set(multiprocessing.active_children())
        try:
            with _interrupts_blocked():  # the processes are started here, and inherit it
                # As bytes: a tensor would be sent as an open file, by a socket whose path a long
                # TMPDIR makes too long, and many of them as too many open files.
                places = {
                    pool.submit(_unpickled, pickle.dumps((function, task))): place
                    for place, task in enumerate(tasks)
                }
            for future in as_completed(places):
                yield places[future], pickle.loads(future.result())
        except (KeyboardInterrupt, GeneratorExit):
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise
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


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Let an interrupt wait; a process that is started meanwhile gets none, not even in imports."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _belong_to_parent() -> None:
    """Leave interrupts to the parent of this process of a pool, and end when that is killed.

    Else an interrupt prints a traceback for each process, and one without a parent would wait for
    tasks for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def _unpickled(call: bytes) -> bytes:
    function, task = pickle.loads(call)
    return pickle.dumps(_one_thread(function, task))


def _one_thread(function: Callable[..., T], task: tuple[Any, ...]) -> T:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function(*task)
    finally:
        torch.set_num_threads(threads)
