"""The direct path: what it registers, that it does so once, and when it refuses."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from puma.audit import judge_rows, predict, train_pool
from puma.audit.evidence import predict_without
from puma.data import Dataset
from puma.erasure.erase import erase
from puma.errors import (
    AbsentError,
    AuditError,
    DataError,
    DeletionError,
    ModelError,
    RegistryError,
    SettingsError,
)
from puma.lineage.audits import load_evidence
from puma.models import build_model, weights_digest
from puma.models.predictions import margins_of
from puma.models.training import train
from puma.project.workspace import Workspace
from puma.references import Pool
from puma.registry import list_versions, load_predictor, missing, open_store, register_all
from puma.registry.certificate.verify import verify_version
from puma.registry.loading import load_module
from puma.registry.promotion import promote
from puma.removal import Trained, build_method
from puma.requests.deletion_set import DeletionSet
from puma.requests.digest import project_key
from puma.workflows.audit import audit_version
from puma.workflows.remove import RemovalOutcome, remove_request
from puma.workflows.suspects import load_version
from tests import command
from tests.audited import DATASET, N_REMOVED, N_TRAIN, copy_of
from tests.audited_fixtures import NUMBERS, project
from tests.registry.fixtures import _default_store, template
from tests.registry.projects import run_python

__all__ = ["_default_store", "project", "template"]

# Each removal is audited and registered: seconds.
pytestmark = pytest.mark.slow

SUBJECT = "zz-train-"
FIRST, SECOND = range(20, 26), range(40, 44)
NAME = f"puma-{DATASET}"


def write_request(workspace: Workspace, rows: Any, name: str = "request") -> Path:
    path = workspace.root / f"{name}.csv"
    path.write_text("subject_id\n" + "".join(f"{SUBJECT}{row}\n" for row in rows))
    return path


def respond(workspace: Workspace, version: str | int, rows: Any, **options: Any) -> RemovalOutcome:
    return remove_request(
        workspace, DATASET, version, write_request(workspace, rows), progress=False, **options
    )


def amend_params(workspace: Workspace, text: str) -> None:
    with (workspace.root / "params.yaml").open("a") as params:
        params.write(text)


@pytest.fixture(scope="module")
def answered(project: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Version 5 made from 1 without FIRST, 6 from 5 without SECOND. Shared: read it only."""
    made = copy_of(project, tmp_path_factory.mktemp("answered") / "chain")
    first = respond(made, "champion", FIRST)
    second = respond(made, "challenger", SECOND)
    return made, first, second


@pytest.fixture
def chain(answered: Any, tmp_path: Path) -> Workspace:
    """Of this test's own, with both answers."""
    return copy_of(answered[0], tmp_path / "own")


@pytest.fixture
def own(project: Workspace, tmp_path: Path) -> Workspace:
    return copy_of(project, tmp_path / "own")


def registered_module(workspace: Workspace, version: int) -> torch.nn.Module:
    client = open_store(workspace)
    return load_module(client, client.get_model_version(NAME, str(version)), workspace)


def unchanged(workspace: Workspace, before: Any) -> bool:
    return state(workspace) == before


def state(workspace: Workspace) -> Any:
    """Everything that the registry and the private folder hold."""
    client = open_store(workspace)
    experiment = client.get_experiment_by_name("puma").experiment_id
    kept = sorted(path.name for path in workspace.root.glob(".puma/requests/**/*.csv"))
    return list_versions(client, DATASET), len(client.search_runs([experiment])), kept


# --- what is registered ---


def test_a_request_becomes_a_version_of_its_own(answered: Any) -> None:
    workspace, first, _ = answered
    assert (first.outcome, first.version.version, first.version.parent_version) == (
        "registered",
        5,
        1,
    )
    assert (first.n_rows, first.n_subjects, first.version.n_removed) == (6, 6, 6)
    assert [row.version for row in first.compared] == [1]
    assert first.version.method == "puma"
    assert first.version.verdict == audit_version(workspace, DATASET, 5)[1].verdict.name


def test_the_weights_are_those_that_the_method_makes(answered: Any) -> None:
    workspace, *_ = answered
    data = Dataset.load(workspace.data(DATASET))
    method = build_method("puma", workspace.settings)
    initial = build_model(workspace.settings.model, data, seed=0)
    people = DeletionSet.of([f"{SUBJECT}{row}" for row in FIRST], data)
    trained = Trained(registered_module(workspace, 1), data, initial)
    removal = method.remove(trained, people, progress=False)
    made = registered_module(workspace, 5)
    assert weights_digest(made) == weights_digest(removal.predictor)
    assert weights_digest(made) != weights_digest(trained.predictor)

    # The first ones, too, are taken to their level again.
    more = DeletionSet.of([f"{SUBJECT}{row}" for row in (*FIRST, *SECOND)], data)
    again = method.remove(Trained(made, data, initial), more, progress=False)
    assert weights_digest(registered_module(workspace, 6)) == weights_digest(again.predictor)


def test_without_a_level_nobody_is_removed_twice(chain: Workspace) -> None:
    params = chain.root / "params.yaml"
    params.write_text(
        params.read_text().replace("{reference_models: 1}", "{reference_models: 0, steps: 1}")
    )
    done = respond(chain, 5, SECOND)
    data = Dataset.load(chain.data(DATASET))
    first = DeletionSet.of([f"{SUBJECT}{row}" for row in FIRST], data)
    left = replace(data, train=data.train.without(first.rows))
    more = DeletionSet.of([f"{SUBJECT}{row}" for row in SECOND], left)
    method = build_method("puma", chain.settings)
    initial = build_model(chain.settings.model, data, seed=0)
    start = Trained(registered_module(chain, 5), left, initial)
    removal = method.remove(start, more, progress=False)
    made = registered_module(chain, done.version.version)
    assert weights_digest(made) == weights_digest(removal.predictor)
    assert done.version.n_removed == 10


def train_its_pool(own: Workspace) -> tuple[Dataset, Pool]:
    """Let the pool give targets and evidence; it is still to be trained."""
    params = own.root / "params.yaml"
    text = params.read_text().replace("reference_models: 1", "reference_models: pool")
    params.write_text(text.replace("evidence: retrain", "evidence: pool"))
    data = Dataset.load(own.data(DATASET))
    assert_refused(own, AuditError, r"pool\.npz: no such pool; run `dvc repro`")
    pool = train_pool(data, own.settings, progress=False)
    pool.save(own.pool(DATASET))
    pool.everybody.save(own.reference(DATASET, "original", "with"))
    return data, pool


def test_a_removal_that_trains_nothing_does_not_import_pytorch_s_compiler(own: Workspace) -> None:
    """Two seconds of imports, for each request; a third of one for its symbolic shapes."""
    _, pool = train_its_pool(own)
    assert not pool.needs_short(np.arange(20, 22))
    request = write_request(own, range(20, 22))
    code = (
        "import sys\nfrom pathlib import Path\nfrom puma.project.workspace import Workspace\n"
        "from puma.workflows.remove import remove_request\n"
        f"done = remove_request(Workspace(Path.cwd()), {DATASET!r}, 1, Path({str(request)!r}), "
        "progress=False)\nprint(done.outcome, {'torch._dynamo', 'sympy'} & {*sys.modules})"
    )
    assert run_python(code, own.root) == "registered set()\n"


def test_a_pool_serves_a_chain(own: Workspace) -> None:
    data, pool = train_its_pool(own)
    versions = [respond(own, 1, FIRST).version, respond(own, 5, SECOND).version]
    for version, rows in zip(versions, (FIRST, (*FIRST, *SECOND)), strict=True):
        people = DeletionSet.of([f"{SUBJECT}{row}" for row in rows], data)
        predict_without(pool, people, own.settings, progress=False)  # makes its short training
        expected = pool.predict(people.rows.numpy(), half="removal")
        assert version.metrics["level_error"] == pytest.approx(expected.error, abs=1e-3)
        reached = margins_of(
            registered_module(own, version.version), data.train.subset(people.rows)
        )
        distance = np.abs(expected.margins[people.rows.numpy()] - reached.numpy()).mean()
        assert version.metrics["level_distance"] == pytest.approx(distance, abs=0.01)
        assert open_store(own).get_run(version.run_id).data.tags["puma.evidence"] == "pool"
        audited = audit_version(own, DATASET, version.version)[1]
        assert (audited.evidence, audited.verdict.name) == ("pool", version.verdict)
    # A method that removes from the data without the earlier rows is audited by the pool, too.
    params = own.root / "params.yaml"
    params.write_text(
        params.read_text().replace("{reference_models: pool}", "{reference_models: 0, steps: 1}")
    )
    third = respond(own, 6, range(50, 53)).version
    assert (third.n_removed, third.tags["puma.evidence"]) == (13, "pool")


def test_a_chain_speaks_of_everybody_whom_it_is_without(answered: Any) -> None:
    workspace, first, second = answered
    assert (second.version.version, second.version.parent_version) == (6, 5)
    assert (second.n_rows, second.version.n_removed) == (4, 10)
    ids = sorted(f"{SUBJECT}{row}" for row in (*FIRST, *SECOND))
    parts = [part.encode() for part in (DATASET, *ids)]
    framed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    expected = hmac.new(project_key(workspace.key), framed, hashlib.sha256).hexdigest()
    assert second.version.deletion_digest == expected
    assert first.version.deletion_digest != expected


def test_a_chain_has_a_verdict_on_the_new_people_alone(answered: Any) -> None:
    workspace, first, second = answered
    assert first.request_verdict is None
    data = Dataset.load(workspace.data(DATASET))
    everybody = DeletionSet.of([f"{SUBJECT}{row}" for row in (*FIRST, *SECOND)], data)
    predictions = predict(
        registered_module(workspace, 6),
        data.train,
        data.test,
        parent=registered_module(workspace, 5),
    )
    evidence, settings = load_evidence(workspace, everybody), workspace.settings.audit
    pair = evidence.with_rows, evidence.without_rows
    expected, _ = judge_rows(predictions, np.array(SECOND), *pair, settings)
    assert second.request_verdict == f"{expected.name}: {expected.reason}"
    assert "these 4 rows" in second.request_verdict or expected.name != "indistinguishable"


def test_the_numbers_are_those_of_the_registered_model(answered: Any) -> None:
    workspace, _, second = answered
    data = Dataset.load(workspace.data(DATASET))
    removed = [*FIRST, *SECOND]
    kept = [row for row in range(N_TRAIN) if row not in removed]
    losses = {}
    for version in (1, 5, 6):
        logits = load_predictor(workspace, DATASET, version)(data.train.features)
        losses[version] = cross_entropy(logits.double(), data.train.labels, reduction="none")
    metrics = second.version.metrics
    drift = losses[6][kept].mean() - losses[5][kept].mean()
    assert metrics["criterion_drift"] == pytest.approx(drift.item(), abs=1e-6)
    assert metrics["removed_loss"] == pytest.approx(losses[6][removed].mean().item(), rel=1e-5)
    before = losses[5][removed].mean().item()
    assert metrics["removed_loss_before"] == pytest.approx(before, rel=1e-5)
    predict = load_predictor(workspace, DATASET, 6)
    hits = predict(data.test.features).argmax(1) == data.test.labels
    assert metrics["accuracy"] == pytest.approx(hits.double().mean().item())


def test_the_drift_is_summed_since_the_last_full_training(answered: Any) -> None:
    _, first, second = answered
    each = [done.version.metrics["criterion_drift"] for done in (first, second)]
    assert (first.history.count, first.history.drift) == (1, each[0])
    assert (second.history.count, second.history.drift) == (2, pytest.approx(sum(each)))
    assert second.version.metrics["cumulative_drift"] == pytest.approx(sum(each))
    assert second.version.metrics["removals_since_training"] == 2
    assert first.retrain_due is second.retrain_due is None


def test_the_version_can_be_checked_audited_and_served(chain: Workspace) -> None:
    for version in (5, 6):
        found = verify_version(chain, DATASET, version)
        assert {each.field for each in found.findings if each.state == "holds"} >= {
            *("certificate", "weights_digest", "data_digest", "deletion.digest"),
            "parent_certificate",
        }
        assert not found.failed
        assert not found.unknown
    row, report = audit_version(chain, DATASET, 6)
    logged = {name: row.metrics[name] for name in report.metrics}
    assert logged == pytest.approx(report.metrics)
    assert promote(chain, DATASET, 6, force="a test of coin flips").moved


def test_the_rows_that_are_gone_are_not_ranked(answered: Any) -> None:
    workspace, *_ = answered
    _, _, data = load_version(workspace, DATASET, 6)
    assert set(data.train.subject_ids.tolist()) == {
        f"{SUBJECT}{row}" for row in range(N_TRAIN) if row not in (*FIRST, *SECOND)
    }


def test_nobody_is_named_in_the_registry(answered: Any) -> None:
    workspace, *_ = answered
    files = [workspace.root / "mlflow.db", *(workspace.root / "mlruns").rglob("*")]
    for path in files:
        if path.is_file():
            assert SUBJECT.encode() not in path.read_bytes(), path
    for path in workspace.root.glob(".puma/requests/**/*.csv"):
        assert path.stat().st_mode & 0o777 == 0o600


def test_retraining_starts_from_the_first_weights(chain: Workspace) -> None:
    done = respond(chain, 5, SECOND, method="retrain")
    data = Dataset.load(chain.data(DATASET))
    kept = data.train.without(torch.tensor([*FIRST, *SECOND]))
    model = build_model(chain.settings.model, data, seed=0)
    train(model, kept, chain.settings.training, seed=0, progress=False)
    assert weights_digest(registered_module(chain, done.version.version)) == weights_digest(model)
    assert (done.history.count, done.history.drift) == (0, 0)
    assert done.version.metrics["speedup_vs_retrain"] == 1
    # What PUMA makes of the same people is compared with it, from now on.
    again = respond(chain, 5, SECOND)
    assert [row.version for row in again.compared] == [5, 7]
    later = respond(chain, 5, SECOND, budget=0.5)
    seconds = done.version.metrics["runtime_seconds"]
    assert later.version.metrics["retrain_seconds"] == seconds
    assert later.version.metrics["speedup_vs_retrain"] == pytest.approx(
        seconds / later.version.metrics["runtime_seconds"]
    )
    assert "retrain_seconds" not in again.version.metrics  # it is older


# --- once ---


def test_the_same_request_is_answered_once(chain: Workspace) -> None:
    before = state(chain)
    for version, rows, number in ((1, FIRST, 5), (5, SECOND, 6), ("1", reversed(FIRST), 5)):
        done = respond(chain, version, rows)
        assert (done.outcome, done.version.version) == ("in place", number)
    assert unchanged(chain, before)


def test_who_is_gone_already_is_not_removed_again(chain: Workspace) -> None:
    before = state(chain)
    done = respond(chain, 6, [*FIRST, SECOND[0]])
    assert (done.outcome, done.version.version, done.n_rows) == ("nothing left", 6, 0)
    assert unchanged(chain, before)


def test_only_who_is_left_is_removed(chain: Workspace) -> None:
    done = respond(chain, 5, [*FIRST, *SECOND])
    # Everybody of both, from version 5: what version 6 is already.
    assert (done.outcome, done.version.version, done.n_rows) == ("in place", 6, 4)


def test_other_settings_are_another_removal(chain: Workspace) -> None:
    done = respond(chain, 1, FIRST, budget=0.5)
    assert (done.outcome, done.version.version) == ("registered", 7)
    assert respond(chain, 1, FIRST).version.version == 5


def test_what_the_pipeline_made_is_found(own: Workspace) -> None:
    before = state(own)
    done = respond(own, 1, range(N_REMOVED), method="retrain")
    assert (done.outcome, done.version.version) == ("in place", NUMBERS["retrain"])
    assert state(own)[:2] == before[:2]


# --- beside the pipeline ---


def test_the_pipeline_leaves_a_newer_answer_the_challenger(chain: Workspace) -> None:
    register_all(chain, progress=False)
    rows = list_versions(open_store(chain), DATASET)
    assert [row.version for row in rows if "challenger" in row.aliases] == [6]
    assert [row.version for row in rows if "champion" in row.aliases] == [1]
    assert missing(chain) is None
    open_store(chain).set_registered_model_alias(NAME, "challenger", "2")
    register_all(chain, progress=False)
    rows = list_versions(open_store(chain), DATASET)
    assert [row.version for row in rows if "challenger" in row.aliases] == [6]


# --- the policy ---


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ("{count: 3, drift: 100}", "the removals are 3, of 3"),
        ("{count: 9, drift: 1.0e-9}", r"the drift is [+-].* nats, of 1e-09"),
        ("{count: 9, drift: 100}", None),
    ],
)
def test_the_policy_says_when_to_train_again(
    chain: Workspace, limits: str, reason: str | None
) -> None:
    amend_params(chain, f"retrain_after: {limits}\n")
    done = respond(chain, 6, [50, 51])
    tag = open_store(chain).get_model_version(NAME, "7").tags.get("puma.retrain_due")
    assert tag == done.retrain_due
    if reason is None:
        assert done.retrain_due is None
    else:
        assert done.retrain_due is not None
        assert re.fullmatch(reason, done.retrain_due)


# --- refusals: nothing is registered, nothing kept ---


def assert_refused(
    workspace: Workspace, error: type[Exception], message: str, **asked: Any
) -> None:
    before = state(workspace)
    version = asked.pop("version", 1)
    rows = asked.pop("rows", FIRST)
    with pytest.raises(error, match=message) as found:
        respond(workspace, version, rows, **asked)
    assert SUBJECT not in str(found.value)
    assert unchanged(workspace, before)


def test_changed_data_are_refused(own: Workspace) -> None:
    data = Dataset.load(own.data(DATASET))
    flipped = replace(data.train, labels=1 - data.train.labels)
    replace(data, train=flipped).save(own.data(DATASET))
    assert_refused(own, DataError, r"dataset\.npz holds other data than this version was made from")
    own.data(DATASET).unlink()
    assert_refused(own, AbsentError, r"dataset\.npz is not here")


def test_other_training_settings_are_refused(own: Workspace) -> None:
    path = own.root / "params.yaml"
    text = path.read_text()
    path.write_text(text.replace("epochs: 40,", "epochs: 41,"))
    assert_refused(
        own, SettingsError, r"training\.epochs is 41 in params\.yaml, and version 1 .* 40"
    )
    path.write_text(text.replace("hidden: [32]", "hidden: [16]"))
    assert_refused(own, SettingsError, "version 1 is not the model that params.yaml describes")


def test_requests_that_cannot_be_honoured_are_refused(own: Workspace) -> None:
    assert_refused(own, DeletionError, "1 of 3 subject ids are not in dataset", rows=[20, 21, 999])
    assert_refused(own, DeletionError, "is empty", rows=[])
    assert_refused(own, DeletionError, r"covers all \d+ training rows", rows=range(N_TRAIN))


def test_what_the_earlier_request_was_has_to_be_known(chain: Workspace) -> None:
    row = list_versions(open_store(chain), DATASET)[4]
    kept = chain.archived_request(DATASET, str(row.deletion_digest))
    moved = chain.root / "elsewhere.csv"
    shutil.move(kept, moved)
    assert_refused(
        chain, DataError, rf"another request.*put that.*{kept.name}", version=5, rows=[50]
    )
    shutil.move(moved, kept)
    assert respond(chain, 5, [50]).outcome == "registered"


def test_a_parent_whose_record_does_not_hold_is_refused(chain: Workspace) -> None:
    """Without the tag, version 5 would be taken for one that removed nobody."""
    client = open_store(chain)
    digest = client.get_model_version(NAME, "5").tags["puma.deletion_digest"]
    client.delete_model_version_tag(NAME, "5", "puma.deletion_digest")
    assert_refused(
        chain, RegistryError, "version 5.*deletion.digest.*puma verify", version=5, rows=[50]
    )
    client.set_model_version_tag(NAME, "5", "puma.deletion_digest", digest)
    client.log_metric(client.get_model_version(NAME, "5").run_id, "cumulative_drift", 0)
    assert_refused(chain, RegistryError, "audit.metrics.cumulative_drift", version=5, rows=[50])


def test_a_parent_without_a_certificate_or_above_it_a_gap_is_refused(chain: Workspace) -> None:
    client = open_store(chain)
    client.delete_model_version(NAME, "5")
    assert_refused(
        chain, RegistryError, "version 6 has lost its parent, version 5", version=6, rows=[50]
    )
    client.delete_model_version_tag(NAME, "1", "puma.certificate")
    assert_refused(chain, RegistryError, "version 1, as .* has no certificate", rows=[50])


def test_an_erased_version_does_not_come_back(chain: Workspace) -> None:
    assert not erase(chain, DATASET, 5, act=True, progress=False).left
    assert_refused(
        chain,
        RegistryError,
        "was erased as version 5 on .* add --seed 1 --method retrain, ",
        rows=FIRST,
    )
    with pytest.raises(RegistryError, match="was erased as version 5"):
        respond(chain, 1, FIRST)
    # What was made from it goes on, and is still held to the training of the original above.
    text = (chain.root / "params.yaml").read_text()
    (chain.root / "params.yaml").write_text(text.replace("epochs: 40,", "epochs: 41,"))
    message = r"training\.epochs is 41 in params\.yaml, and version 1 was"
    assert_refused(chain, SettingsError, message, version=6, rows=[50])
    (chain.root / "params.yaml").write_text(text)
    done = respond(chain, 6, [50])
    assert (done.outcome, done.version.n_removed, done.history.count) == ("registered", 11, 3)
    assert verify_version(chain, DATASET, done.version.version).conclusion == "holds"


def test_a_lost_key_is_not_replaced(chain: Workspace) -> None:
    chain.key.unlink()
    assert_refused(chain, AbsentError, "same people would be others; restore it", rows=FIRST)
    assert not chain.key.exists()


def test_evidence_of_other_sizes_is_refused(own: Workspace) -> None:
    path = own.root / "params.yaml"
    path.write_text(path.read_text().replace("models: 5", "models: 6"))
    assert_refused(own, AuditError, "5 models of everybody and 4 shadow .* wants 6 and 4; run `dvc")


def test_a_kept_request_that_is_broken_is_named(chain: Workspace) -> None:
    row = list_versions(open_store(chain), DATASET)[4]
    kept = chain.archived_request(DATASET, str(row.deletion_digest))
    kept.write_text("subject_id\nstranger\n")
    assert_refused(chain, DataError, rf"{kept.name}: no request of this data", version=5, rows=[50])


def test_versions_of_other_kinds_are_refused(own: Workspace) -> None:
    assert_refused(own, ModelError, "made by sisa, whose removals need", version=NUMBERS["sisa"])
    assert_refused(own, ModelError, "made by sisa_original", version=NUMBERS["sisa_original"])
    assert_refused(own, RegistryError, "has no version '9'", version=9)
    client = open_store(own)
    made = client.create_model_version(NAME, source=client.get_model_version(NAME, "1").source)
    assert_refused(own, RegistryError, "was not registered by PUMA", version=int(made.version))


def test_methods_and_budgets_that_do_not_fit_are_refused(own: Workspace) -> None:
    assert_refused(
        own, SettingsError, "sisa needs what it recorded.*puma, puma_paper, r", method="sisa"
    )
    assert_refused(own, SettingsError, "unknown removal method 'magic'", method="magic")
    assert_refused(own, SettingsError, "retrain is given no budget", method="retrain", budget=0.1)
    for budget in (-1.0, 0.0, float("nan"), float("inf")):
        assert_refused(own, SettingsError, "budget must be a positive number", budget=budget)


def test_without_the_attack_of_the_pipeline_nothing_is_registered(own: Workspace) -> None:
    own.attack(DATASET).unlink()
    assert_refused(own, AuditError, r"attack\.pt: no such attack")


# --- the command ---


def puma(workspace: Workspace, *arguments: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        return command.puma(workspace.root, *arguments)


def test_the_command_registers_and_prints_the_comparison(own: Workspace) -> None:
    path = write_request(own, FIRST)
    asked = ("remove", "--model", f"models:/{NAME}@champion", "--deletions", str(path))
    result = puma(own, *asked)
    row = list_versions(open_store(own), DATASET)[-1]
    assert result.exit_code == (0 if row.verdict == "passed" else 1)
    assert "1 original" in result.stdout
    assert "5 puma" in result.stdout
    assert f"{NAME} version 5 registered: 6 rows of 6 people removed, in " in result.stdout
    again = puma(own, *asked, "--json")
    outcome = json.loads(again.stdout)
    assert (outcome["outcome"], outcome["version"]["version"]) == ("in place", 5)
    assert outcome["cumulative_drift"] == row.metrics["criterion_drift"]
    assert outcome["request_verdict"] is None
    assert SUBJECT not in result.output + again.output
    path = write_request(own, SECOND)
    asked = ("remove", "--model", f"models:/{NAME}/5", "--deletions", str(path))
    result = puma(own, *asked)
    verdict = json.loads(puma(own, *asked, "--json").stdout)["request_verdict"].split(":")[0]
    words = "of everybody removed so far; of those of its own request alone: "
    assert words + verdict.replace("_", " ") in result.stdout


@pytest.mark.parametrize("model", [NAME, f"models:/{NAME}", "models:/other@champion", DATASET])
def test_half_a_model_is_refused(own: Workspace, model: str) -> None:
    path = write_request(own, FIRST)
    result = puma(own, "remove", "--model", model, "--deletions", str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "name a version: " in result.stderr


def test_unknown_people_are_refused_by_the_command(own: Workspace) -> None:
    path = write_request(own, [20, 999])
    result = puma(own, "remove", "--model", f"models:/{NAME}@champion", "--deletions", str(path))
    assert result.exit_code == 2
    assert "1 of 2 subject ids are not in dataset" in result.stderr
    assert "zz-train-999" not in result.stderr  # no terminal
