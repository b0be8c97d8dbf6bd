"""The same function over many tasks: in processes of one thread each, or by joblib on a cluster."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import Any, TypeVar

import joblib
import torch
from joblib.parallel import get_active_backend

from puma.errors import SettingsError
from puma.settings import EngineSettings

T = TypeVar("T")
DEFAULT = "LokyBackend"  # joblib's, where nobody chose another one
ANSWER_WITHIN = 10  # seconds


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

    Within :func:`running_on` or ``joblib.parallel_config(backend=...)`` every task is sent there
    instead, whatever ``jobs``. Loky, joblib's default, does not serve for this machine: after an
    interrupt its threads and trackers print their own messages.

    Yields:
        (place of the task, result), as each is done.
    """
    backend, _ = get_active_backend()
    if type(backend).__name__ != DEFAULT:
        # Ray's gives no results before the last one is there.
        how = "generator_unordered" if backend.supports_return_generator else "list"
        yield from _sent(joblib.Parallel(n_jobs=-1, return_as=how), function, tasks)
        return
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
def running_on(engine: EngineSettings) -> Iterator[None]:
    """Send what :func:`run_all` is asked for to ``engine``; "local" leaves it where it was sent.

    Raises:
        SettingsError: The engine is not installed, or does not answer at the address.
    """
    if engine.backend == "local":
        yield
        return
    with ExitStack() as opened:
        try:
            options = _OPEN[engine.backend](engine.address, opened)
        except ImportError as error:
            raise SettingsError(
                f"engine.backend is {engine.backend}, which is not installed here ({error}); "
                f"pip install 'puma-unlearning[{engine.backend}]', or set it to local"
            ) from error
        except (OSError, ConnectionError, TimeoutError) as error:
            raise SettingsError(
                f"engine.address: no {engine.backend} answers at {engine.address!r} "
                f"({type(error).__name__}); start one there, or set engine.backend to local"
            ) from error
        with joblib.parallel_config(engine.backend, **options):
            yield


def _open_dask(address: str | None, opened: ExitStack) -> dict[str, Any]:
    distributed = importlib.import_module("distributed")
    return {
        "client": opened.enter_context(
            distributed.Client(address, timeout=ANSWER_WITHIN, set_as_default=False)
        )
    }


def _open_ray(address: str | None, opened: ExitStack) -> dict[str, Any]:
    ray, for_joblib = importlib.import_module("ray"), importlib.import_module("ray.util.joblib")
    for_joblib.register_ray()
    if not ray.is_initialized():
        ray.init(address=address)
        opened.callback(ray.shutdown)
    return {}


_OPEN = {"dask": _open_dask, "ray": _open_ray}


def _sent(
    parallel: joblib.Parallel, function: Callable[..., T], tasks: Sequence[tuple[Any, ...]]
) -> Generator[tuple[int, T], None, None]:
    results = parallel(
        joblib.delayed(_placed)(place, pickle.dumps((function, task)))
        for place, task in enumerate(tasks)
    )
    try:
        for place, result in results:
            yield place, pickle.loads(result)
    finally:
        if isinstance(results, Generator):
            with warnings.catch_warnings(
                action="ignore"
            ):  # of tasks that were dropped: so they are
                results.close()


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


def _placed(place: int, call: bytes) -> tuple[int, bytes]:
    return place, _unpickled(call)


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
