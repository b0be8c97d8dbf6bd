"""Killed at any point, disk full, store locked, server away: a version is whole or absent."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from sqlalchemy import event
from sqlalchemy.engine import Engine

from puma.errors import RegistryError
from puma.lineage.records import ModelRecord
from puma.models import mlp
from puma.project.workspace import Workspace
from puma.registry import creation as making
from puma.registry import (
    list_versions,
    load_predictor,
    missing,
    open_store,
    register_all,
    store,
)
from puma.registry.certificate import verify as verification
from puma.registry.certificate.verify import verify_version
from puma.registry.promotion import promote
from puma.settings import ORIGINAL
from tests.command import puma
from tests.registry.forked import finish, start
from tests.registry.killing import (
    Write,
    answer_until,
    check_answered,
    check_completed,
    check_promoted,
    check_whole,
    migrate_until,
    promote_until,
    read_writes,
    register_until,
)
from tests.registry.projects import (
    CLASSES,
    DATASET,
    DELETION,
    FEATURES,
    MODEL,
    PICTURES,
    copy_store,
    make_project,
    write_version,
)
from tests.registry.served import make_servable
from tests.registry.servers import free_port, stop, tracking_server

PASSWORD = "open-sesame"
SAME_AGAIN = "run the same command again"
AGAIN = Write("commit UPDATE runs SET", 2)
"""The end of a run, written again, which is left out where it is the very same millisecond."""


def remove_anew(workspace: Workspace, *, hidden: tuple[int, ...] = MODEL.hidden) -> None:
    """What the pipeline leaves after another removal by PUMA: one version is to be registered."""
    original = ModelRecord.read(workspace.model_record(DATASET, ORIGINAL))
    write_version(
        workspace,
        "puma",
        weights_seed=33,
        parent=original,
        deletion=DELETION,
        architecture=MODEL.model_copy(update={"hidden": hidden}),
        model=mlp(FEATURES, len(CLASSES), hidden),
    )
    for name in PICTURES[1:]:  # one will do
        (workspace.figures(DATASET, "puma") / f"{name}.png").unlink()


def kill_at_every_write(
    target: Callable[[Workspace, Write | None], None],
    check: Callable[[Workspace, int], None],
    known: int,
    source: Workspace,
    folder: Path,
    prepare: Callable[[Workspace], None] = lambda _: None,
) -> list[str]:
    """What the killed processes were about to write, one each, by one that comes to its end."""

    def run(name: str, last: Write | None) -> list[Write]:
        workspace = Workspace(shutil.copytree(source.root, folder / name).resolve())
        copy_store(source, workspace)
        prepare(workspace)
        log, checked = folder / f"{name}.log", folder / f"{name}.check.log"
        finish({start(target, workspace, last, log=log): log}, killed=last is not None)
        finish({start(check, workspace, known, log=checked): checked})
        shutil.rmtree(workspace.root)
        return read_writes(log)

    writes = run("whole", None)
    left_out = [
        write for number, write in enumerate(writes) if run(f"killed {number}", write)[-1] != write
    ]
    assert left_out in ([], [AGAIN])
    return [write.kind for write in writes]


@pytest.mark.slow
def test_killed_at_any_write_of_a_registration(registered: Workspace, tmp_path: Path) -> None:
    written = kill_at_every_write(
        register_until, check_completed, 3, registered, tmp_path, prepare=remove_anew
    )
    for each in ("model.pt2", "model_version_tags", "registered_model_aliases", "registered.json"):
        assert any(each in kind for kind in written)
    assert len(written) > 25


@pytest.mark.slow
def test_killed_at_any_write_of_an_answer(registered: Workspace, tmp_path: Path) -> None:
    """What `puma remove` does once the new model is there and audited."""
    written = kill_at_every_write(
        answer_until, check_answered, 3, registered, tmp_path, prepare=remove_anew
    )
    for each in ("model.pt2", "model_version_tags", "registered_model_aliases"):
        assert any(each in kind for kind in written)
    assert len(written) > 25


@pytest.mark.slow
def test_killed_at_any_write_of_a_promotion(workspace: Workspace, tmp_path: Path) -> None:
    make_servable(workspace)
    written = kill_at_every_write(promote_until, check_promoted, 1, workspace, tmp_path)
    assert written[-1] == "commit UPDATE registered_model_aliases SET"


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 20])
def test_killed_while_the_store_is_made(tmp_path: Path, step: int) -> None:
    workspace, log = make_project(tmp_path / "project"), tmp_path / "log"
    killed = start(migrate_until, workspace, step, log=log)
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL, log.read_text()
    assert not (workspace.root / "mlflow.db").exists()
    assert list((workspace.root / ".puma").glob("mlflow-*"))

    open_store(workspace)
    assert [path.name for path in (workspace.root / ".puma").iterdir()] == ["mlflow.lock"]


def register_within(workspace: Workspace, n_bytes: int, temporary: str) -> None:
    """Register where no file can grow beyond ``n_bytes``, as the system has it when it is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, resource.RLIM_INFINITY))
    with pytest.raises(RegistryError) as caught:
        register_all(workspace, progress=False)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    message = str(caught.value)
    assert f"free space on its disk and on that of {temporary} and {SAME_AGAIN}" in message, message
    print(message)


@pytest.mark.slow
@pytest.mark.parametrize(("hidden", "room"), [((8,), 0.5), ((600, 600), 1.1)])
def test_disk_full(
    registered: Workspace, tmp_path: Path, hidden: tuple[int, ...], room: float
) -> None:
    """Of the database's disk, and where the model, which is larger, is exported to."""
    remove_anew(registered, hidden=hidden)
    log, temporary = tmp_path / "log", tmp_path / "temporary"
    temporary.mkdir()
    # Of half its size the database cannot write the later pages; a tenth more is room for it.
    size = round(room * (registered.root / "mlflow.db").stat().st_size)
    process = start(
        register_within, registered, size, str(temporary), log=log, TMPDIR=str(temporary)
    )
    finish({process: log})
    assert ("sqlite3.OperationalError" if room < 1 else "File too large") in log.read_text()
    check_whole(registered, 3)
    assert len(list_versions(open_store(registered), DATASET)) == 3
    check_completed(registered, 3)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """SQLite's wait for a lock is cut from 20 seconds to a tenth of one."""

    def shorten(_c: object, _cursor: object, statement: str, parameters: object, *_: object):
        return statement.replace("busy_timeout = 20000", "busy_timeout = 100"), parameters

    monkeypatch.setattr(store, "BUSY", 0.1)
    event.listen(Engine, "before_cursor_execute", shorten, retval=True)
    yield
    event.remove(Engine, "before_cursor_execute", shorten)


@pytest.mark.usefixtures("impatient")
def test_locked_from_the_start(registered: Workspace) -> None:
    with closing(sqlite3.connect(registered.root / "mlflow.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        for act in (
            lambda: register_all(registered, progress=False),
            lambda: promote(registered, DATASET, 3),
            lambda: verify_version(registered, DATASET, 3),
            lambda: load_predictor(registered, DATASET, 3),
            lambda: missing(registered),
        ):
            with pytest.raises(RegistryError, match=f"locked.*another program.*{SAME_AGAIN}"):
                act()
    assert missing(registered) is None


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_locked_in_the_middle(registered: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_anew(registered)
    with closing(sqlite3.connect(registered.root / "mlflow.db")) as other:
        log_inputs = making._log_inputs

        def lock(*arguments: object) -> None:
            other.execute("BEGIN EXCLUSIVE")
            log_inputs(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(making, "_log_inputs", lock)
            with pytest.raises(RegistryError, match=f"locked.*another program.*{SAME_AGAIN}"):
                register_all(registered, progress=False)
    check_completed(registered, 3)


@pytest.mark.slow
def test_server_that_goes_away_and_comes_back(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # each costs seconds
    database = f"sqlite:///{tmp_path}/server.db"
    with tracking_server(database, tmp_path / "server") as (url, server):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        register_all(workspace, progress=False)
        remove_anew(workspace)
        log_inputs = making._log_inputs

        def die(*arguments: object) -> None:
            stop(server)
            log_inputs(*arguments)

        started = time.monotonic()
        with monkeypatch.context() as patch:
            patch.setattr(making, "_log_inputs", die)
            with pytest.raises(RegistryError, match=f"^{url}: .*check the address.*{SAME_AGAIN}"):
                register_all(workspace, progress=False)
        for act in (
            lambda: promote(workspace, DATASET, 3),
            lambda: verify_version(workspace, DATASET, 3),
        ):
            with pytest.raises(RegistryError, match="check the address in MLFLOW_TRACKING_URI"):
                act()
        assert time.monotonic() - started < 30
    port = int(url.rpartition(":")[2])
    with tracking_server(database, tmp_path / "server", port=port):
        check_completed(workspace, 3)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_locked_while_a_version_is_checked(
    registered: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be reached is not reported as lost."""
    choose = verification.choose_version
    with closing(sqlite3.connect(registered.root / "mlflow.db")) as other:

        def lock(*arguments: object) -> object:
            other.execute("BEGIN EXCLUSIVE")
            return choose(*arguments)

        found = open_store(registered).get_model_version(f"puma-{DATASET}", "3")
        monkeypatch.setattr(verification, "choose_version", lock)
        monkeypatch.setattr(MlflowClient, "get_model_version", lambda *_: found)
        with pytest.raises(RegistryError, match=f"locked.*another program.*{SAME_AGAIN}"):
            verify_version(registered, DATASET, 3)


@pytest.mark.slow
def test_nobody_listens(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"http://puma:{PASSWORD}@127.0.0.1:{free_port()}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    started = time.monotonic()
    result = puma(workspace.root, "versions", DATASET)
    assert time.monotonic() - started < 10
    assert result.exit_code == 2
    assert re.match(r"puma: http://\*\*\*@127.* check the address in MLFLOW_TRAC", result.stderr)
    assert PASSWORD not in result.stderr
    with pytest.raises(RegistryError) as caught:
        open_store(workspace)
    seen: BaseException | None = caught.value
    while seen is not None:  # as far as a traceback shows it
        assert PASSWORD not in str(seen)
        seen = None if seen.__suppress_context__ and not seen.__cause__ else seen.__cause__


@pytest.mark.slow
def test_the_user_s_own_patience_counts(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "7")
    open_store(workspace)
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "7"


@pytest.mark.parametrize(
    "error", [TypeError("of the program"), MlflowException("unknown filter", error_code=3)]
)
def test_what_the_program_did_wrong_is_raised_as_it_is(
    registered: Workspace, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    remove_anew(registered)
    monkeypatch.setattr(making, "_log_curve", fail)
    with pytest.raises(type(error)) as caught:
        register_all(registered, progress=False)
    assert caught.value is error


def test_a_store_that_is_gone_does_not_hide_the_first_error(
    registered: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run cannot be marked as failed, either: that is a note on the error."""

    def fail(*_: object) -> None:
        (registered.root / "mlflow.db").rename(registered.root / "gone.db")
        (registered.root / "mlflow.db").mkdir()
        raise TypeError("the first")

    remove_anew(registered)
    monkeypatch.setattr(making, "_register", fail)
    with pytest.raises(TypeError, match="the first") as caught:
        register_all(registered, progress=False)
    (note,) = caught.value.__notes__
    assert "could not be marked as failed, either: " in note
    assert "unable to open database file" in note
