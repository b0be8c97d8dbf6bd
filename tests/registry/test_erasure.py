"""Erasing a version: nothing of it is left, all else is untouched, and what is left is named."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from puma.errors import RegistryError
from puma.models import save_weights
from puma.receipts import Receipt
from puma.registry import erasing, erasure, list_versions, open_store, register_all
from puma.registry.erasure import Erasure, erase
from puma.registry.lineage import create_version, staged
from puma.registry.promotion import PromotionRefusedError, promote
from puma.registry.store import writing
from puma.registry.tombstones import tombstones
from puma.registry.verification import verify_version
from puma.settings import ORIGINAL
from puma.workspace import Workspace
from tests.audited import copy_of
from tests.command import puma
from tests.registry.projects import (
    DATASET,
    OTHER_DELETION,
    copy_store,
    make_model,
    make_project,
    write_audit,
    write_version,
)
from tests.registry.served import answer, make_servable

NAME = f"puma-{DATASET}"
SEEDS = {1: 0, 2: 1, 3: 2}  # version -> of its weights
PLANTED = "planted-in-a-parameter"


@pytest.fixture(scope="module")
def promoted(template: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Versions 1 original, 2 retrain, 3 puma, which serves. Shared: read it only."""
    workspace = make_project(tmp_path_factory.mktemp("promoted") / "project")
    copy_store(template, workspace)
    make_servable(workspace)
    promote(workspace, DATASET, 3)
    return workspace


@pytest.fixture
def servable(promoted: Workspace, tmp_path: Path) -> Workspace:
    """Such a project of this test's own."""
    return copy_of(promoted, tmp_path / "servable")


def act(workspace: Workspace, version: int | str = 1) -> Erasure:
    return erase(workspace, DATASET, version, act=True, progress=False)


def first_layer(seed: int) -> bytes:
    """128 bytes that only the model of ``seed`` has."""
    return make_model(seed).state_dict()["0.weight"].numpy().tobytes()


def holders(root: Path, seed: int) -> list[str]:
    """The files that hold these weights, found the plain way."""
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and first_layer(seed) in path.read_bytes()
    )


def files(workspace: Workspace) -> dict[str, bytes]:
    """All files but locks."""
    return {
        str(path.relative_to(workspace.root)): path.read_bytes()
        for path in sorted(workspace.root.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


def rows_of(workspace: Workspace, *ids: str) -> dict[str, list[Any]]:
    """What the tables say of runs and models of these ids."""
    found: dict[str, list[Any]] = {}
    tables = {
        "runs": "run_uuid",
        "params": "run_uuid",
        "metrics": "run_uuid",
        "latest_metrics": "run_uuid",
        "tags": "run_uuid",
        "logged_models": "model_id",
        "logged_model_metrics": "model_id",
        "logged_model_tags": "model_id",
    }
    with contextlib.closing(sqlite3.connect(workspace.root / "mlflow.db")) as connection:
        for table, column in tables.items():
            marks = ",".join("?" * len(ids))
            query = f"SELECT * FROM {table} WHERE {column} IN ({marks}) ORDER BY 1, 2"
            found[table] = connection.execute(query, ids).fetchall()
    return found


def ids_of(workspace: Workspace, version: int) -> tuple[str, str]:
    found = open_store(workspace).get_model_version(NAME, str(version))
    return found.run_id, found.source.removeprefix("models:/")


# --- what goes, and what stays ---


def test_a_dry_run_says_what_would_go_and_changes_nothing(servable: Workspace) -> None:
    before = files(servable)
    told = erase(servable, DATASET, 1, progress=False)
    assert files(servable) == before
    run_id, model_id = ids_of(servable, 1)
    assert not told.acted
    assert told.left == []
    assert [run_id in line for line in told.removed["registry"]] == [False, True, False]
    assert model_id in told.removed["registry"][2]
    assert told.removed["files"] == [
        "artifacts/toy/originals/original/weights.pt",
        "lineage/toy/original.audit.json",
        "lineage/toy/original.json",
        "plots/toy/original",
    ]
    assert told.removed == act(servable).removed


def test_nothing_of_the_version_is_left(servable: Workspace) -> None:
    run_id, model_id = ids_of(servable, 1)
    open_store(servable).log_param(run_id, "planted", PLANTED)
    assert len(holders(servable.root, 0)) == 2
    assert all(rows_of(servable, run_id, model_id).values())
    assert PLANTED.encode() in (servable.root / "mlflow.db").read_bytes()
    done = act(servable)
    assert (done.acted, done.left) == (True, [])
    assert holders(servable.root, 0) == []
    assert not any(rows_of(servable, run_id, model_id).values())
    assert PLANTED.encode() not in (servable.root / "mlflow.db").read_bytes()
    assert not list(servable.root.glob(f"mlruns/**/{run_id}"))
    assert not list(servable.root.glob(f"mlruns/**/{model_id}"))
    assert not servable.erasing(DATASET, 1).exists()
    assert not servable.receipt(DATASET, ORIGINAL).exists()
    assert [row.version for row in list_versions(open_store(servable), DATASET)] == [2, 3]


def test_all_other_versions_are_untouched(servable: Workspace) -> None:
    others = [*ids_of(servable, 2), *ids_of(servable, 3)]
    rows, before = rows_of(servable, *others), files(servable)
    listed = list_versions(open_store(servable), DATASET)
    erased = [*ids_of(servable, 1), "mlflow.db", *erase(servable, DATASET, 1).removed["files"]]
    act(servable)
    after = files(servable)
    stays = {path for path in before if not any(name in path for name in erased)}
    assert {path: after[path] for path in stays} == {path: before[path] for path in stays}
    assert {Path(path).parent.name for path in after.keys() - stays} == {"", "certificates"}
    assert rows_of(servable, *others) == rows
    assert list_versions(open_store(servable), DATASET) == listed[1:]


def test_a_number_is_never_given_again(servable: Workspace) -> None:
    answer(servable, OTHER_DELETION, n_removed=4, seed=50)
    act(servable, 5)  # the newest
    write_version(
        servable,
        "puma",
        weights_seed=60,
        parent=Receipt.read(servable.receipt(DATASET, ORIGINAL)),
        deletion=OTHER_DELETION,
    )
    write_audit(servable, "puma", verdict="passed")
    register_all(servable, progress=False)
    assert max(row.version for row in list_versions(open_store(servable), DATASET)) == 6


def test_a_version_that_is_no_longer_in_the_tree(servable: Workspace) -> None:
    answer(servable, OTHER_DELETION, n_removed=4, seed=50)  # the tree has versions 4 and 5 now
    tree = {path: text for path, text in files(servable).items() if not path.startswith("ml")}
    assert act(servable, 2).removed["files"] == []
    assert holders(servable.root, 1) == []
    assert {path: text for path, text in files(servable).items() if path in tree} == tree


def test_an_attempt_to_register_it_goes_too(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("puma.registry.lineage.log_certificate", fail)
        with pytest.raises(KeyboardInterrupt):
            register_all(workspace, progress=False)
    make_servable(workspace)
    promote(workspace, DATASET, 3)
    assert len(holders(workspace.root, 0)) == 3
    client = open_store(workspace)
    experiment = client.get_experiment_by_name("puma").experiment_id
    assert len(client.search_runs([experiment])) == 4
    done = act(workspace)
    assert "cut short" in done.removed["registry"][3]
    assert (done.left, holders(workspace.root, 0)) == ([], [])
    assert len(client.search_runs([experiment])) == 2


# --- what is left is named ---


def deflated(path: Path, content: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model/weights.pt", content)


STRAYS: dict[str, Callable[[Path, bytes], object]] = {
    "reports/copy of the model.bin": Path.write_bytes,
    "half": lambda path, content: path.write_bytes(content[: len(content) // 2]),
    "mlruns/puma/elsewhere": Path.write_bytes,
    ".puma/.hidden": Path.write_bytes,
    "backup.zip": deflated,
    "artifacts/toy/weights.pt.gz": lambda path, raw: path.write_bytes(gzip.compress(raw)),
}


@pytest.mark.parametrize("place", STRAYS)
def test_a_stray_copy_is_named_and_holds_up_the_end(servable: Workspace, place: str) -> None:
    stray = servable.root / place
    stray.parent.mkdir(parents=True, exist_ok=True)
    STRAYS[place](stray, servable.weights(DATASET, ORIGINAL).read_bytes())
    told = erase(servable, DATASET, 1, progress=False)
    assert [line.split(": holds the weights")[0] for line in told.left] == [str(stray)]
    answered = puma(servable.root, "erase", DATASET, "1", "--yes")
    assert (answered.exit_code, str(stray) in answered.stdout) == (1, True)
    assert "not all is erased" in answered.stdout
    assert not servable.weights(DATASET, ORIGINAL).exists()
    assert verify_version(servable, DATASET, 1).conclusion == "holds"  # whole, as it is not absent
    assert tombstones(open_store(servable), DATASET) == {}
    stray.unlink()
    assert puma(servable.root, "erase", DATASET, "1", "--yes").exit_code == 0
    assert holders(servable.root, 0) == []


def test_what_took_its_place_meanwhile_is_not_its_own(servable: Workspace) -> None:
    """It was left unfinished, and the tree has another original by now."""
    stray = servable.root / "stray"
    stray.write_bytes(first_layer(0))
    assert act(servable).left
    write_version(servable, ORIGINAL, weights_seed=80)
    write_audit(servable, ORIGINAL, pictures="of the new one")
    new = [servable.weights(DATASET, ORIGINAL), servable.receipt(DATASET, ORIGINAL)]
    before = [path.read_bytes() for path in new]
    stray.unlink()
    assert act(servable).removed["files"] == []
    assert [path.read_bytes() for path in new] == before


def test_git_and_the_environment_are_not_searched(servable: Workspace) -> None:
    for place in (".git/objects/x", ".venv/lib/x"):
        path = servable.root / place
        path.parent.mkdir(parents=True)
        path.write_bytes(first_layer(0))
    done = act(servable)
    assert done.left == []
    assert any(line.startswith("git history") for line in done.beyond)


def test_the_same_weights_in_a_kept_version_are_named(servable: Workspace) -> None:
    parent = Receipt.read(servable.receipt(DATASET, ORIGINAL))
    write_version(servable, "twin", weights_seed=0, parent=parent, deletion=OTHER_DELETION)
    receipt = Receipt.read(servable.receipt(DATASET, "twin"))
    twin = create_version(open_store(servable), servable, staged(servable, receipt))
    done = act(servable)
    assert [line[:9] for line in done.left] == [f"version {twin.version}"]
    assert not servable.weights(DATASET, ORIGINAL).exists()
    assert servable.weights(DATASET, "twin").exists()
    assert verify_version(servable, DATASET, 4).failed == ()
    assert act(servable).left == done.left  # also when version 1 is gone
    assert act(servable, 4).left == []
    assert holders(servable.root, 0) == []


def test_a_tensor_that_a_kept_version_shares_is_no_trace(servable: Workspace) -> None:
    model = make_model(0)  # the original, but for its last layer
    torch.nn.init.ones_(model[2].bias)
    torch.nn.init.normal_(model[2].weight, generator=torch.Generator().manual_seed(9))
    parent = Receipt.read(servable.receipt(DATASET, ORIGINAL))
    receipt = write_version(
        servable, "twin", weights_seed=0, parent=parent, deletion=OTHER_DELETION, model=model
    )
    create_version(open_store(servable), servable, staged(servable, receipt))
    stray = servable.root / "stray"
    stray.write_bytes(make_model(0).state_dict()["2.weight"].numpy().tobytes())
    assert [line.split(":")[0] for line in act(servable).left] == [str(stray)]
    stray.unlink()
    assert act(servable).left == []
    assert len(holders(servable.root, 0)) == 2  # the kept version's: its file and its archive


# --- cut short ---

STEPS = (
    "keep_certificates",
    "remove_files",
    "remove_unfinished",
    "search",
    "bury",
    "dispose_of_model",
    "dispose_of_run",
    "dispose_of_version",
    "compact",
)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_it_is_completed_by_repeating_it(
    servable: Workspace, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    module = erasure if hasattr(erasure, step) else erasing
    real = getattr(module, step)

    def killed(*arguments: Any, **named: Any) -> None:
        if after:
            real(*arguments, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, step, killed)
        with pytest.raises(KeyboardInterrupt):
            act(servable)
    _complete(servable)


@pytest.mark.parametrize("count", range(4))
def test_killed_between_two_files(
    servable: Workspace, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    done: list[Path] = []
    unlink = Path.unlink

    def killed(self: Path, **named: Any) -> None:
        if self.suffix in (".pt", ".json", ".png") and len(done) == count:
            raise KeyboardInterrupt
        done.append(self)
        unlink(self, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            act(servable)
    _complete(servable)


@pytest.mark.parametrize("table", ["model_version_tags", "tags"])
def test_killed_among_the_rows(
    servable: Workspace, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    from mlflow import MlflowClient

    name = {"model_version_tags": "delete_model_version_tag", "tags": "delete_run"}[table]
    real, calls = getattr(MlflowClient, name), []

    def killed(*arguments: Any) -> None:
        if len(calls) == (3 if table == "model_version_tags" else 0):
            raise KeyboardInterrupt
        calls.append(arguments)
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, name, killed)
        with pytest.raises(KeyboardInterrupt):
            act(servable)
    _complete(servable)


def _complete(servable: Workspace) -> None:
    if servable.erasing(DATASET, 1).exists():
        assert servable.erasing(DATASET, 1).stat().st_mode & 0o777 == 0o600
        assert first_layer(0).hex() not in servable.erasing(DATASET, 1).read_text()
    assert act(servable).left == []
    assert holders(servable.root, 0) == []
    assert not servable.receipt(DATASET, ORIGINAL).exists()
    assert not servable.figures(DATASET, ORIGINAL).exists()
    assert not servable.erasing(DATASET, 1).exists()
    client = open_store(servable)
    assert [row.version for row in list_versions(client, DATASET)] == [2, 3]
    assert list(tombstones(client, DATASET)) == [1]
    assert verify_version(servable, DATASET, 3).conclusion == "holds"
    with contextlib.closing(sqlite3.connect(servable.root / "mlflow.db")) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (2,)
        assert connection.execute("SELECT count(*) FROM logged_models").fetchone() == (2,)
        tags = "SELECT count(*) FROM model_version_tags WHERE version = 1"
        assert connection.execute(tags).fetchone() == (0,)
    again = act(servable)
    assert (again.left, any(again.removed.values())) == ([], False)


# --- refusals ---


def test_what_must_not_be_erased_is_refused(servable: Workspace) -> None:
    client = open_store(servable)
    before = files(servable)
    by_hand = client.create_model_version(NAME, source=str(servable.root), run_id=None)
    for wanted, words in {
        "3": "serves: it is `champion`",
        "champion": "serves: it is `champion`",
        "7": "has no version '7'; choose one of 1, 2, 3, 4, challenger, champion",
        str(by_hand.version): "was not registered by PUMA",
    }.items():
        answered = puma(servable.root, "erase", DATASET, wanted, "--yes")
        assert (answered.exit_code, words in answered.stderr) == (2, True), answered.output
    client.copy_model_version(f"models:/{NAME}/1", "production")
    with pytest.raises(RegistryError, match="version 1 of production is registered from the same"):
        act(servable)
    after = files(servable)
    assert {path for path in before if before[path] != after[path]} <= {"mlflow.db"}


def test_not_while_another_process_registers(servable: Workspace) -> None:
    with (
        writing(servable),
        pytest.raises(RegistryError, match="another process is registering or promoting"),
    ):
        act(servable)
    assert len(holders(servable.root, 0)) == 2


def test_a_model_that_cannot_be_loaded_is_refused(servable: Workspace) -> None:
    _, model_id = ids_of(servable, 1)
    shutil.rmtree(servable.root / "mlruns/puma/models" / model_id)
    with pytest.raises(RegistryError, match="cannot be loaded"):
        act(servable)
    assert servable.weights(DATASET, ORIGINAL).exists()


# --- what was made from it can still be checked ---


def kept_certificate(workspace: Workspace, version: int) -> Path:
    run_id, _ = ids_of(workspace, version)
    (path,) = (workspace.root / "mlruns/puma" / run_id / "artifacts/certificates").glob("*.json")
    return path


def test_a_child_holds_after_its_parent_is_erased(servable: Workspace) -> None:
    before = verify_version(servable, DATASET, 3)
    act(servable)
    (stone,) = tombstones(open_store(servable), DATASET).values()
    for version in (2, 3):
        result = verify_version(servable, DATASET, version)
        assert result.conclusion == "holds"
        (chain,) = (one for one in result.findings if one.field == "parent_certificate")
        assert f"version 1 was erased on {stone.when}, its certificate is kept" in chain.said
        assert [one.field for one in result.findings] == (
            [one.field for one in before.findings if version == 3 or "alias" not in one.field]
        )
        assert kept_certificate(servable, version).stem == stone.certificate


def forge(path: Path) -> None:
    path.write_text(path.read_text().replace('"original"', '"origina1"'))


@pytest.mark.parametrize(
    ("tamper", "fields"),
    [
        (lambda w: forge(kept_certificate(w, 3)), {"parent_certificate"}),
        (lambda w: kept_certificate(w, 3).unlink(), {"parent_certificate"}),
        (lambda w: amend_stone(w, fingerprint="0" * 64), {"parent_certificate"}),
        (lambda w: amend_stone(w, weights_digest="0" * 64), {"parent_certificate"}),
        (lambda w: amend_stone(w, parent_version=2), {"parent_certificate"}),
    ],
)
def test_what_was_kept_of_the_parent_is_checked(
    servable: Workspace, tamper: Callable[[Workspace], None], fields: set[str]
) -> None:
    act(servable)
    tamper(servable)
    assert set(verify_version(servable, DATASET, 3).failed) == fields


def amend_stone(workspace: Workspace, **values: Any) -> None:
    client = open_store(workspace)
    (model,) = client.search_registered_models(f"name='{NAME}'")
    text = json.dumps({**json.loads(model.tags["puma.erased.1"]), **values})
    client.set_registered_model_tag(NAME, "puma.erased.1", text)


def test_a_parent_that_is_gone_without_a_tombstone_is_unknown(servable: Workspace) -> None:
    act(servable)
    open_store(servable).delete_registered_model_tag(NAME, "puma.erased.1")
    assert verify_version(servable, DATASET, 3).conclusion == "cannot be checked: certificate"


def test_a_tombstone_that_is_no_json_is_named(servable: Workspace) -> None:
    act(servable)
    open_store(servable).set_registered_model_tag(NAME, "puma.erased.1", "{")
    with pytest.raises(RegistryError, match=r"the tag puma\.erased\.1 is not as it was written"):
        act(servable)


def grandchild(workspace: Workspace) -> int:
    """A version made from version 3."""
    parent = Receipt.read(workspace.receipt(DATASET, "puma"))
    receipt = write_version(
        workspace, "later", weights_seed=70, parent=parent, deletion=OTHER_DELETION
    )
    receipt = receipt.model_copy(update={"n_removed": 9})
    return int(create_version(open_store(workspace), workspace, staged(workspace, receipt)).version)


@pytest.mark.parametrize("order", [(1, 3), (3, 1)])
def test_a_whole_line_of_ancestors_can_be_erased(
    servable: Workspace, order: tuple[int, int]
) -> None:
    assert grandchild(servable) == 4
    promote(servable, DATASET, 2, force="for the test")
    for version in order:
        assert act(servable, version).left == []
    result = verify_version(servable, DATASET, 4)
    assert result.failed == result.unknown == ()
    said = next(one.said for one in result.findings if one.field == "parent_certificate")
    assert said.startswith("the certificates up to version 1's; version 3 was erased on ")
    assert "; version 1 was erased on " in said


def test_a_childless_version_leaves_its_certificate_with_the_one_that_serves(
    servable: Workspace,
) -> None:
    run_id, _ = ids_of(servable, 2)
    issued = (servable.root / f"mlruns/puma/{run_id}/artifacts/certificate.json").read_text()
    act(servable, 2)
    assert kept_certificate(servable, 3).read_text() == issued


def test_an_erased_removal_still_counts_at_the_gate(servable: Workspace) -> None:
    """Version 5 removed people whom version 2 knows; that it is erased changes nothing."""
    answer(servable, OTHER_DELETION, n_removed=9, seed=50)
    act(servable, 4)
    with pytest.raises(PromotionRefusedError, match=r"version 5 \(puma\) removed 9 rows"):
        promote(servable, DATASET, 2)
    act(servable, 5)
    with pytest.raises(PromotionRefusedError, match=r"version 5 \(puma\) removed 9 rows"):
        promote(servable, DATASET, 2)


# --- the same model comes back ---


def test_it_is_not_registered_again_and_can_be_erased_again(servable: Workspace) -> None:
    receipts = {
        name: path.read_bytes()
        for name in (ORIGINAL, f"{ORIGINAL}.audit")
        if (path := servable.receipt(DATASET, name)).exists()
    }
    pictures = shutil.copytree(servable.figures(DATASET, ORIGINAL), servable.root / "kept")
    act(servable)
    save_weights(make_model(0), servable.weights(DATASET, ORIGINAL))  # trained again
    for name, content in receipts.items():
        servable.receipt(DATASET, name).write_bytes(content)
    shutil.move(pictures, servable.figures(DATASET, ORIGINAL))
    with pytest.raises(RegistryError, match=r"was erased as version 1 on .* data's source"):
        register_all(servable, progress=False)
    assert [row.version for row in list_versions(open_store(servable), DATASET)] == [2, 3]
    stray = servable.root / "stray"
    stray.write_bytes(first_layer(0))
    assert [line.split(":")[0] for line in act(servable).left] == [str(stray)]
    stray.unlink()
    assert act(servable).left == []
    assert holders(servable.root, 0) == []
    assert not servable.receipt(DATASET, ORIGINAL).exists()


# --- the command ---


def test_the_command(servable: Workspace) -> None:
    told = puma(servable.root, "erase", f"models:/{NAME}/1", "--json")
    said = json.loads(told.stdout)
    assert (told.exit_code, said["acted"], said["version"]) == (0, False, 1)
    assert f"{servable.data(DATASET)} and its source still hold the rows" in said["beyond"][0]
    shown = puma(servable.root, "erase", DATASET, "1")
    assert (shown.exit_code, "--yes erases it" in shown.stdout) == (0, True)
    for line in (*said["removed"]["registry"], *said["removed"]["files"], *said["beyond"]):
        assert f"  {line}\n" in shown.stdout
    done = puma(servable.root, "erase", DATASET, "1", "--yes")
    assert (done.exit_code, "version 1 is erased" in done.stdout) == (0, True)
    for again in ((), ("--yes",)):
        answered = puma(servable.root, "erase", DATASET, "1", *again)
        assert (answered.exit_code, "nothing is left to erase" in answered.stdout) == (0, True)
    listed = puma(servable.root, "versions", DATASET)
    assert "version 1 (original) was erased on 20" in listed.stdout
    rows = json.loads(puma(servable.root, "versions", DATASET, "--json").stdout)
    assert [row["version"] for row in rows] == [2, 3]


def test_another_store_is_erased_too_and_its_limits_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/elsewhere.db")
    workspace = make_project(tmp_path / "project")
    make_servable(workspace)
    promote(workspace, DATASET, 3)
    done = act(workspace)
    assert done.left == []
    assert holders(tmp_path, 0) == []
    assert any("free pages and backups are not in reach" in line for line in done.beyond)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a tracking server with artifacts of its own, under ``tmp_path / server``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path / "server"
    folder.mkdir()
    store = f"sqlite:///{folder}/store.db"
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(port)]
    command += ["--backend-store-uri", store, "--artifacts-destination", str(folder / "artifacts")]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 120
        while not _answers(port):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=30)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_server_keeps_its_rows_and_no_weights(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    workspace = make_project(tmp_path / "project")
    make_servable(workspace)
    promote(workspace, DATASET, 3)
    run_id, _ = ids_of(workspace, 1)
    assert len(holders(tmp_path, 0)) == 2
    done = act(workspace)
    assert done.left == []
    assert holders(tmp_path, 0) == []
    assert any("stay until `mlflow gc` is run on it" in line for line in done.beyond)
    assert sum("the rest of that store is not searched" in line for line in done.beyond) == 2
    client = open_store(workspace)
    assert client.get_run(run_id).info.lifecycle_stage == "deleted"
    assert [row.version for row in list_versions(client, DATASET)] == [2, 3]
    assert verify_version(workspace, DATASET, 3).conclusion == "holds"
