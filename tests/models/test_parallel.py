from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from puma.errors import ModelError, SettingsError
from puma.models.parallel import cores, run_all, running_on
from puma.settings import EngineSettings
from tests.command import pool_of


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


# What other processes run must be importable.
def described(base: int, power: int) -> tuple[float, int, int]:
    """A number that threads could round differently, and where and how it was computed."""
    numbers = torch.randn(100_000, generator=torch.Generator().manual_seed(base))
    return numbers.pow(power).sum().item(), torch.get_num_threads(), os.getpid()


def marked(folder: Path, number: int) -> None:
    if number == 0:
        raise ValueError("task 0 fails")
    time.sleep(0.3)
    (folder / str(number)).touch()


def failing(number: int) -> int:
    if number == 2:
        raise ValueError("task 2 fails")
    return number


def all_ended() -> bool:
    """Whether no process is left, or will be once it is done with what it had begun."""
    until = time.monotonic() + 20
    while multiprocessing.active_children() and time.monotonic() < until:
        time.sleep(0.02)
    return not multiprocessing.active_children()


TASKS = [(seed, power) for seed in range(3) for power in (1, 2)]


@pytest.mark.slow
@pytest.mark.usefixtures("three_threads")
def test_results_do_not_depend_on_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # what a fresh process would start with
    alone = list(run_all(described, TASKS, jobs=1))
    assert [place for place, _ in alone] == list(range(6))  # in order
    assert {(threads, process) for _, (_, threads, process) in alone} == {(1, os.getpid())}

    shared = dict(run_all(described, TASKS, jobs=2))
    assert {place: each[0] for place, each in shared.items()} == {
        place: each[0] for place, each in alone
    }
    assert {threads for _, threads, _ in shared.values()} == {1}
    assert os.getpid() not in {process for _, _, process in shared.values()}
    assert torch.get_num_threads() == 3
    assert all_ended()

    torch.set_num_threads(1)
    assert [each[0] for _, each in alone] == [described(*task)[0] for task in TASKS]


@pytest.mark.slow
def test_an_exception_of_another_process_is_raised_and_the_rest_is_dropped(tmp_path: Path) -> None:
    tasks = [(tmp_path, number) for number in range(12)]
    with pytest.raises(ValueError, match="task 0 fails") as error:
        list(run_all(marked, tasks, jobs=2))
    assert "in marked\n" in error.value.__notes__[0]  # where it was raised, in that process
    assert len(list(tmp_path.iterdir())) < 8
    assert all_ended()


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_process_that_is_killed_is_an_error() -> None:
    with pytest.raises(ModelError, match=r"ended with exit code -9 .* fewer jobs"):
        list(run_all(killed, [(), ()], jobs=2))
    assert all_ended()


def large(number: int) -> bytes:
    return bytes(20_000_000 + number)  # more than a pipe holds


@pytest.mark.slow
def test_processes_end_even_where_a_result_is_half_read() -> None:
    done = run_all(large, [(number,) for number in range(9)], jobs=2)
    place, result = next(done)
    assert len(result) == 20_000_000 + place
    time.sleep(1)  # the other process is writing its result
    done.close()
    assert all_ended()


class Interrupting:
    """Is interrupted while it is pickled, and loses that, as PyTorch does once in a hundred."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        return Interrupting, ()


@pytest.mark.slow
def test_an_interrupt_while_a_task_is_pickled_is_not_lost() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(run_all(id, [(Interrupting(),), (Interrupting(),)], jobs=2))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert all_ended()


HELPERS = """
import psutil
from puma.models.parallel import run_all
from tests.models.test_parallel import TASKS, described

if __name__ == "__main__":
    assert len(list(run_all(described, TASKS[:2], jobs=2))) == 2
    print(psutil.Process().children(recursive=True))
"""


def total(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.sum()


TENSORS = """
import torch
from puma.models.parallel import run_all
from tests.models.test_parallel import total

if __name__ == "__main__":
    tasks = [(torch.arange(number + 1),) for number in range(8)]
    print(sorted((place, result.item()) for place, result in run_all(total, tasks, jobs=2)))
"""


@pytest.mark.slow
def test_tensors_are_sent_where_the_temporary_folder_has_a_long_path(tmp_path: Path) -> None:
    """A socket's path may have 107 characters, and PyTorch sends a tensor through one."""
    (long := tmp_path / ("long" * 30)).mkdir()
    (tmp_path / "script.py").write_text(TENSORS)
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"],
        env=os.environ | {"TMPDIR": str(long), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{[(place, place * (place + 1) // 2) for place in range(8)]}\n"


@pytest.mark.slow
def test_no_helper_process_outlives_the_pool(tmp_path: Path) -> None:
    """A Jupyter kernel that has a child which ignores SIGTERM is killed, and cleans up nothing."""
    (tmp_path / "script.py").write_text(HELPERS)
    (tmp_path / "temporary").mkdir()
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"],
        env=os.environ
        | {"TMPDIR": str(tmp_path / "temporary"), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["[]"]
    assert done.stderr == ""
    assert list((tmp_path / "temporary").iterdir()) == []


def asleep(folder: Path, number: int) -> None:
    (folder / str(number)).write_text(str(os.getpid()))
    with multiprocessing.get_context("spawn").RLock():  # as a progress bar has one
        time.sleep(120)


def working(folder: Path) -> None:
    list(run_all(asleep, [(folder, number) for number in range(2)], jobs=2))


def is_running(process: int) -> bool:
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="asks Linux which processes there are")
def test_processes_do_not_outlive_one_that_is_killed(tmp_path: Path) -> None:
    parent = multiprocessing.get_context("spawn").Process(target=working, args=(tmp_path,))
    parent.start()
    latest = time.monotonic() + 60
    while len(written := list(filter(None, map(Path.read_text, tmp_path.iterdir())))) < 2:
        assert time.monotonic() < latest, written
        time.sleep(0.05)
    children = list(map(int, written))
    assert all(map(is_running, children))
    parent.kill()
    parent.join()
    latest = time.monotonic() + 20
    while any(map(is_running, children)) and time.monotonic() < latest:
        time.sleep(0.05)
    assert not any(map(is_running, children))


INTERRUPTED = """
import sys
from contextlib import closing
from pathlib import Path
from puma.models.parallel import run_all
from tests.models.test_parallel import asleep

if __name__ == "__main__":
    tasks = [(Path(sys.argv[1]), number) for number in range(4)]
    try:
        with closing(run_all(asleep, tasks, jobs=2)) as done:
            list(done)
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["starting", "working"])
def test_an_interrupt_ends_the_processes_at_once_and_in_silence(tmp_path: Path, when: str) -> None:
    (tmp_path / "script.py").write_text(INTERRUPTED)
    (begun := tmp_path / "begun").mkdir()
    process = subprocess.Popen(
        [sys.executable, tmp_path / "script.py", begun],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    parent = psutil.Process(process.pid)
    latest = time.monotonic() + 60

    def ready() -> bool:
        if when == "working":
            return len(list(begun.iterdir())) == 2
        return len(pool_of(process)) == 2

    while not ready():
        assert time.monotonic() < latest, process.poll()
        time.sleep(0.02)
    children = parent.children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # to all of them, as a terminal does
    assert process.communicate(timeout=30) == ("interrupted\n", "")
    assert process.returncode == 0
    assert not any(each.is_running() for each in children)
    assert len(list(begun.iterdir())) <= 2  # the other tasks were dropped


@pytest.mark.usefixtures("three_threads")
def test_an_exception_of_this_process_stops_the_tasks_after_it() -> None:
    results = run_all(failing, [(number,) for number in range(5)], jobs=1)
    assert [next(results), next(results)] == [(0, 0), (1, 1)]
    with pytest.raises(ValueError, match="task 2 fails"):
        next(results)
    assert list(results) == []
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_the_caller_keeps_its_threads_between_two_tasks() -> None:
    for _, (_, threads, _) in run_all(described, TASKS[:2], jobs=1):
        assert threads == 1
        assert torch.get_num_threads() == 3


def test_tasks_are_done_as_they_are_asked_for() -> None:
    calls: list[int] = []
    results = run_all(calls.append, [(0,), (1,)], jobs=1)
    assert calls == []
    assert next(results) == (0, None)
    assert calls == [0]


@pytest.mark.parametrize("jobs", [1, 4])
def test_a_single_task_or_none_needs_no_other_process(jobs: int) -> None:
    # A function that could not be sent to one.
    assert list(run_all(lambda number: number + 1, [(1,)], jobs=jobs)) == [(0, 2)]
    assert list(run_all(lambda number: number + 1, [], jobs=jobs)) == []


def test_cores_are_those_that_this_process_may_use() -> None:
    assert cores() >= 1
    if hasattr(os, "sched_getaffinity"):
        assert cores() == len(os.sched_getaffinity(0))


@pytest.mark.slow
def test_a_cluster_of_dask_gives_what_this_machine_gives() -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        engine = EngineSettings(backend="dask", address=cluster.scheduler_address)
        with running_on(engine):
            there = dict(run_all(described, TASKS, jobs=1))
    here = dict(run_all(described, TASKS, jobs=1))
    assert {place: each[0] for place, each in there.items()} == {
        place: each[0] for place, each in here.items()
    }
    assert len({process for _, _, process in there.values()} - {os.getpid()}) == 2


@pytest.mark.slow
def test_an_engine_that_does_not_answer_is_an_error() -> None:
    pytest.importorskip("distributed")
    engine = EngineSettings(backend="dask", address="tcp://127.0.0.1:9")
    with pytest.raises(SettingsError, match=r"no dask answers at 'tcp://127\.0\.0\.1:9'"):
        running_on(engine).__enter__()


@pytest.mark.parametrize(
    ("engine", "package"),
    [
        (EngineSettings(backend="dask", address="tcp://127.0.0.1:9"), "distributed"),
        (EngineSettings(backend="ray"), "ray"),
    ],
)
def test_an_engine_that_is_not_installed_names_its_package(
    engine: EngineSettings, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SettingsError, match=rf"pip install 'puma-unlearning\[{engine.backend}\]'"):
        running_on(engine).__enter__()
