"""Erasing a version: nothing of it is left, all else is untouched, and what is left is named."""

from __future__ import annotations

import gzip
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from puma.erasure.erase import erase
from puma.errors import RegistryError
from puma.lineage.records import ModelRecord
from puma.models import save_weights
from puma.project.workspace import Workspace
from puma.registry import list_versions, open_store, register_all
from puma.registry.certificate.verify import verify_version
from puma.registry.creation import create_version, pipeline_draft
from puma.registry.promotion import promote
from puma.registry.store import writing
from puma.registry.tombstones import tombstones
from puma.settings import ORIGINAL
from tests.command import puma
from tests.erasure.erased import (
    NAME,
    PLANTED,
    act,
    files,
    first_layer,
    holders,
    ids_of,
    rows_of,
)
from tests.registry.projects import (
    DATASET,
    OTHER_DELETION,
    exported_model,
    make_model,
    write_audit,
    write_version,
)
from tests.registry.served import answer, make_servable

pytestmark = pytest.mark.slow

# --- what goes, and what stays ---


def test_a_dry_run_says_what_would_go_and_changes_nothing(servable: Workspace) -> None:
    before = files(servable)
    shown = erase(servable, DATASET, 1, progress=False)
    assert files(servable) == before
    run_id, model_id = ids_of(servable, 1)
    assert not shown.acted
    assert shown.left == []
    assert [run_id in line for line in shown.removed["registry"]] == [False, True, False]
    assert model_id in shown.removed["registry"][2]
    assert shown.removed["files"] == [
        "artifacts/toy/originals/original/weights.pt",
        "lineage/toy/original.audit.json",
        "lineage/toy/original.json",
        "plots/toy/original",
    ]
    assert shown.removed == act(servable).removed


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
    assert not servable.model_record(DATASET, ORIGINAL).exists()
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
        parent=ModelRecord.read(servable.model_record(DATASET, ORIGINAL)),
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
        patch.setattr("puma.registry.creation.log_certificate", fail)
        with pytest.raises(KeyboardInterrupt):
            register_all(workspace, progress=False)
    make_servable(workspace)
    promote(workspace, DATASET, 3)
    assert len(holders(workspace.root, 0)) == 3
    client = open_store(workspace)
    experiment = client.get_experiment_by_name("puma").experiment_id
    assert len(client.search_runs([experiment])) == 4
    done = act(workspace)
    assert "interrupted attempt" in done.removed["registry"][3]
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
    shown = erase(servable, DATASET, 1, progress=False)
    assert [line.split(": holds the weights")[0] for line in shown.left] == [str(stray)]
    result = puma(servable.root, "erase", DATASET, "1", "--yes")
    assert (result.exit_code, str(stray) in result.stdout) == (1, True)
    assert "not all is erased" in result.stdout
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
    new = [servable.weights(DATASET, ORIGINAL), servable.model_record(DATASET, ORIGINAL)]
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
    assert any(line.startswith("git history") for line in done.out_of_reach)


def test_the_same_weights_in_a_kept_version_are_named(servable: Workspace) -> None:
    parent = ModelRecord.read(servable.model_record(DATASET, ORIGINAL))
    write_version(servable, "twin", weights_seed=0, parent=parent, deletion=OTHER_DELETION)
    record = ModelRecord.read(servable.model_record(DATASET, "twin"))
    twin = create_version(open_store(servable), servable, pipeline_draft(servable, record))
    done = act(servable)
    assert [line[:9] for line in done.left] == [f"version {twin.version}"]
    assert not servable.weights(DATASET, ORIGINAL).exists()
    assert servable.weights(DATASET, "twin").exists()
    assert verify_version(servable, DATASET, 4).failed == ()
    assert act(servable).left == done.left  # also when version 1 is gone
    assert act(servable, 4).left == []
    assert holders(servable.root, 0) == []


def test_a_tensor_that_a_kept_version_shares_is_not_searched_for(servable: Workspace) -> None:
    model = make_model(0)  # the original, but for its last layer
    torch.nn.init.ones_(model[2].bias)
    torch.nn.init.normal_(model[2].weight, generator=torch.Generator().manual_seed(9))
    parent = ModelRecord.read(servable.model_record(DATASET, ORIGINAL))
    record = write_version(
        servable, "twin", weights_seed=0, parent=parent, deletion=OTHER_DELETION, model=model
    )
    create_version(open_store(servable), servable, pipeline_draft(servable, record))
    stray = servable.root / "stray"
    stray.write_bytes(make_model(0).state_dict()["2.weight"].numpy().tobytes())
    assert [line.split(":")[0] for line in act(servable).left] == [str(stray)]
    stray.unlink()
    assert act(servable).left == []
    assert len(holders(servable.root, 0)) == 2  # the kept version's: its file and its archive


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
        result = puma(servable.root, "erase", DATASET, wanted, "--yes")
        assert (result.exit_code, words in result.stderr) == (2, True), result.output
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


def test_a_kept_model_that_cannot_be_loaded_is_to_be_erased_first(servable: Workspace) -> None:
    _, model_id = ids_of(servable, 2)
    shutil.rmtree(servable.root / "mlruns/puma/models" / model_id)
    with pytest.raises(RegistryError, match=r"cannot be loaded.*`puma erase toy 2`"):
        act(servable)
    assert servable.weights(DATASET, ORIGINAL).exists()
    assert act(servable, 2).left == []
    assert act(servable).left == []
    assert holders(servable.root, 0) == []


# --- the registry has other weights, or none ---


@pytest.mark.parametrize("lost", [False, True], ids=["changed", "lost"])
def test_the_weights_that_were_registered_are_searched_for(servable: Workspace, lost: bool) -> None:
    client = open_store(servable)
    archive, other = (exported_model(client, NAME, number) for number in ("1", "2"))
    archive.write_bytes(other.read_bytes())
    if lost:
        _, model_id = ids_of(servable, 1)
        shutil.rmtree(servable.root / "mlruns/puma/models" / model_id)
    stray = servable.root / "stray"
    stray.write_bytes(first_layer(0))
    assert puma(servable.root, "erase", DATASET, "1").exit_code == 1
    stray.unlink()
    done = act(servable)
    assert done.left == []
    assert not any(line.startswith("files were not searched") for line in done.out_of_reach)
    assert holders(servable.root, 0) == []
    assert len(holders(servable.root, 1)) == 2
    assert [row.version for row in list_versions(client, DATASET)] == [2, 3]


def test_weights_that_are_nowhere_are_not_searched_for_and_it_says_so(servable: Workspace) -> None:
    client = open_store(servable)
    archive, other = (exported_model(client, NAME, number) for number in ("1", "2"))
    archive.write_bytes(other.read_bytes())
    servable.weights(DATASET, ORIGINAL).unlink()
    done = act(servable)
    assert done.left == []
    assert any(line.startswith("files were not searched") for line in done.out_of_reach)
    assert [row.version for row in list_versions(client, DATASET)] == [2, 3]


# --- the same model comes back ---


def test_it_is_not_registered_again_and_can_be_erased_again(servable: Workspace) -> None:
    records = {
        name: path.read_bytes()
        for name in (ORIGINAL, f"{ORIGINAL}.audit")
        if (path := servable.model_record(DATASET, name)).exists()
    }
    figures = shutil.copytree(servable.figures(DATASET, ORIGINAL), servable.root / "kept")
    act(servable)
    save_weights(make_model(0), servable.weights(DATASET, ORIGINAL))  # trained again
    for name, content in records.items():
        servable.model_record(DATASET, name).write_bytes(content)
    shutil.move(figures, servable.figures(DATASET, ORIGINAL))
    with pytest.raises(RegistryError, match=r"was erased as version 1 on .* data's source"):
        register_all(servable, progress=False)
    assert [row.version for row in list_versions(open_store(servable), DATASET)] == [2, 3]
    stray = servable.root / "stray"
    stray.write_bytes(first_layer(0))
    assert [line.split(":")[0] for line in act(servable).left] == [str(stray)]
    stray.unlink()
    assert act(servable).left == []
    assert holders(servable.root, 0) == []
    assert not servable.model_record(DATASET, ORIGINAL).exists()
