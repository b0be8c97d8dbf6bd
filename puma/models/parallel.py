"""The same function over many tasks: in processes of one thread each, or by joblib on a cluster."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar, cast

import joblib
import torch
from joblib.parallel import get_active_backend

from puma.errors import ModelError, SettingsError
from puma.garbage import collect_rarely
from puma.settings import EngineSettings

T = TypeVar("T")
DEFAULT = "LokyBackend"  # joblib's, where nobody chose another one
ANSWER_WITHIN = 10  # seconds
ENDS_WITHIN = 5  # seconds, when a process is told to; then it is killed


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
    is raised and the other tasks are dropped. An exception, an interrupt, or closing this
    generator early ends the processes at once; they ignore an interrupt themselves.

    Within :func:`running_on` or ``joblib.parallel_config(backend=...)`` every task is sent there
    instead, whatever ``jobs``. Loky, joblib's default, does not serve for this machine: after an
    interrupt its threads and trackers print their own messages.

    Yields:
        (place of the task, result), as each is done.

    Raises:
        ModelError: A process has ended in the middle of a task.
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
    with _resource_tracker_ended():
        yield from _in_processes(function, tasks, min(jobs, len(tasks)))


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


def _in_processes(
    function: Callable[..., T], tasks: Sequence[tuple[Any, ...]], jobs: int
) -> Generator[tuple[int, T], None, None]:
    """Serve each process through a pipe of its own, without threads and locks.

    The pools of the standard library have both. They wait for ever after an interrupt that comes
    while this process holds one of the locks, or that ends a process while it writes a result.
    """
    waiting = enumerate(tasks)
    pool: dict[Connection, BaseProcess] = {}
    busy: dict[Connection, int] = {}
    completed = False
    try:
        with _interrupts_wait(), _interrupts_blocked():  # the processes inherit the latter
            for _ in range(jobs):
                _start(pool)
        for connection in pool:
            busy[connection] = _send(connection, function, *next(waiting))
        while busy:
            for connection in cast(list[Connection], wait(busy)):
                place = busy.pop(connection)
                result = _received(connection, pool[connection])
                if (following := next(waiting, None)) is not None:
                    busy[connection] = _send(connection, function, *following)
                yield place, result
        completed = True
    finally:
        with _interrupts_wait():
            for connection, process in pool.items():
                connection.close()  # which ends a process that has nothing to do
                if not completed:
                    process.terminate()
            for process in pool.values():
                process.join(None if completed else ENDS_WITHIN)
                process.kill()  # if it has not ended
                process.join()


def _start(pool: dict[Connection, BaseProcess]) -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    there.close()
    pool[here] = process


def _send(
    connection: Connection, function: Callable[..., T], place: int, task: tuple[Any, ...]
) -> int:
    """Give a process a task and return the task's place.

    As bytes: a tensor would be sent as an open file, by a socket whose path a long TMPDIR makes
    too long, and many of them as too many open files.
    """
    with _interrupts_wait():
        call = pickle.dumps((function, task))
    with suppress(ConnectionError):  # it has ended, which is read next
        connection.send_bytes(call)
    return place


def _received(connection: Connection, process: BaseProcess) -> Any:
    try:
        answer = connection.recv_bytes()
    except (EOFError, ConnectionError):
        process.join()
        raise ModelError(
            f"a process that trained models ended with exit code {process.exitcode} in the middle "
            "of its work (a negative code is the signal that ended it: -9 often means that the "
            "memory was full); run it again, with fewer jobs if the memory was full"
        ) from None
    with _interrupts_wait():
        done, result = pickle.loads(answer)
    if not done:
        raise result
    return result


def _serve(connection: Connection) -> None:
    """Do the tasks that come through ``connection`` until its other end is closed."""
    _belong_to_parent()
    collect_rarely()
    with suppress(EOFError, ConnectionError):
        while True:
            connection.send_bytes(_answer(connection.recv_bytes()))


def _answer(call: bytes) -> bytes:
    try:
        return pickle.dumps((True, _called(call)))
    except Exception as error:
        error.add_note(f"In a process of its own:\n{''.join(traceback.format_exception(error))}")
        return pickle.dumps((False, error))


@contextmanager
def _resource_tracker_ended() -> Iterator[None]:
    """End the helper process that ``multiprocessing`` starts, unless it ran before.

    It ignores SIGTERM. A Jupyter kernel that exits ends its children first, waits for this one
    until it is killed itself, and leaves its temporary folders behind.
    """
    tracker = resource_tracker._resource_tracker
    ran = tracker._fd is not None  # type: ignore[attr-defined]
    tracker.ensure_running()  # now, as it lets interrupts through to what is started afterwards
    try:
        yield
    finally:
        if not ran:
            tracker._stop()  # type: ignore[attr-defined]


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Let an interrupt wait for the end of what must not be left in its middle.

    Pickling is such a thing: PyTorch takes an interrupt there for an attribute that is missing.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield  # interrupts are not for Python, or not for this thread
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Keep interrupts from the processes that are started meanwhile, even while they import."""
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
    tasks for ever. A process that is told to end gives back what it holds, such as the semaphore
    of a progress bar, of which a helper process of Python would tell otherwise.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    def end() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def _placed(place: int, call: bytes) -> tuple[int, bytes]:
    return place, pickle.dumps(_called(call))


def _called(call: bytes) -> Any:
    function, task = pickle.loads(call)
    return _one_thread(function, task)


def _one_thread(function: Callable[..., T], task: tuple[Any, ...]) -> T:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function(*task)
    finally:
        torch.set_num_threads(threads)
