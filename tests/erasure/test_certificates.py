"""What was made from an erased version can still be checked, and still counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from puma.errors import RegistryError
from puma.lineage.records import ModelRecord
from puma.project.workspace import Workspace
from puma.registry import open_store
from puma.registry.certificate.verify import verify_version
from puma.registry.creation import create_version, pipeline_draft
from puma.registry.promotion import PromotionRefusedError, promote
from puma.registry.tombstones import tombstones
from tests.erasure.erased import (
    NAME,
    act,
    ids_of,
)
from tests.registry.projects import (
    DATASET,
    OTHER_DELETION,
    write_version,
)
from tests.registry.served import answer

pytestmark = pytest.mark.slow


def kept_certificate(workspace: Workspace, version: int) -> Path:
    run_id, _ = ids_of(workspace, version)
    (path,) = (workspace.root / "mlruns/puma" / run_id / "artifacts/certificates").glob("*.json")
    return path


def test_a_child_holds_after_its_parent_is_erased(servable: Workspace) -> None:
    before = verify_version(servable, DATASET, 3)
    act(servable)
    (tombstone,) = tombstones(open_store(servable), DATASET).values()
    for version in (2, 3):
        result = verify_version(servable, DATASET, version)
        assert result.conclusion == "holds"
        (chain,) = (one for one in result.findings if one.field == "parent_certificate")
        assert f"version 1 was erased on {tombstone.when}, its certificate is kept" in chain.detail
        assert [one.field for one in result.findings] == (
            [one.field for one in before.findings if version == 3 or "alias" not in one.field]
        )
        assert kept_certificate(servable, version).stem == tombstone.certificate


def forge(path: Path) -> None:
    path.write_text(path.read_text().replace('"original"', '"origina1"'))


@pytest.mark.parametrize(
    ("tamper", "fields"),
    [
        (lambda w: forge(kept_certificate(w, 3)), {"parent_certificate"}),
        (lambda w: kept_certificate(w, 3).unlink(), {"parent_certificate"}),
        (lambda w: amend_tombstone(w, fingerprint="0" * 64), {"parent_certificate"}),
        (lambda w: amend_tombstone(w, weights_digest="0" * 64), {"parent_certificate"}),
        (lambda w: amend_tombstone(w, parent_version=2), {"parent_certificate"}),
    ],
)
def test_what_was_kept_of_the_parent_is_checked(
    servable: Workspace, tamper: Callable[[Workspace], None], fields: set[str]
) -> None:
    act(servable)
    tamper(servable)
    assert set(verify_version(servable, DATASET, 3).failed) == fields


def amend_tombstone(workspace: Workspace, **values: Any) -> None:
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
    parent = ModelRecord.read(workspace.model_record(DATASET, "puma"))
    record = write_version(
        workspace, "later", weights_seed=70, parent=parent, deletion=OTHER_DELETION
    )
    record = record.model_copy(update={"n_removed": 9})
    return int(
        create_version(open_store(workspace), workspace, pipeline_draft(workspace, record)).version
    )


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
    detail = next(one.detail for one in result.findings if one.field == "parent_certificate")
    assert detail.startswith("the certificates up to version 1's; version 3 was erased on ")
    assert "; version 1 was erased on " in detail


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
    promote(servable, DATASET, 5, force="it has to have served")
    promote(servable, DATASET, 3, force="withdrawn")
    act(servable, 4)
    with pytest.raises(
        PromotionRefusedError, match=r"version 5 \(puma\), which has served, removed 9 rows"
    ):
        promote(servable, DATASET, 2)
    act(servable, 5)
    with pytest.raises(
        PromotionRefusedError, match=r"version 5 \(puma\), which has served, removed 9 rows"
    ):
        promote(servable, DATASET, 2)
