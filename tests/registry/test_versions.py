from __future__ import annotations

import json
import re
import shutil
import sqlite3
from contextlib import closing
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import mlflow
import pytest
import torch

from puma.data import Dataset, Examples
from puma.errors import RegistryError
from puma.lineage.records import read_model_records
from puma.models import load_weights
from puma.project.workspace import Workspace
from puma.registry import find_fingerprint, list_versions, load_predictor, open_store
from puma.registry.versions import get_version, set_tags
from puma.requests.deletion_set import DeletionSet
from tests.registry.projects import (
    DATA_DIGEST,
    DATASET,
    DELETION,
    FEATURES,
    PICTURES,
    VERDICTS,
    make_model,
    picture,
    run_python,
)


@pytest.fixture
def client(filled: Workspace) -> Any:
    return open_store(filled)


def test_version_is_found_by_fingerprint(client: Any, filled: Workspace) -> None:
    for number, receipt in enumerate(read_model_records(filled, DATASET), start=1):
        assert int(find_fingerprint(client, DATASET, receipt.fingerprint).version) == number
    assert find_fingerprint(client, DATASET, "0" * 64) is None
    assert find_fingerprint(client, "other", receipt.fingerprint) is None


def test_tags_tell_the_lineage(client: Any, filled: Workspace) -> None:
    _, _, removal = read_model_records(filled, DATASET)
    version = client.get_model_version("puma-toy", "3")
    tags = dict(version.tags)
    assert len(tags.pop("puma.certificate")) == 64
    assert tags == {  # what a reader of its page sees
        "puma.fingerprint": removal.fingerprint,
        "puma.method": "puma",
        "puma.parent_version": "1",
        "puma.deletion_digest": DELETION,
        "puma.n_removed": "3",
        "puma.weights_digest": removal.weights_digest,
        "puma.verdict": "over_forgotten",
    }
    of_run = client.get_run(version.run_id).data.tags
    assert len(of_run["puma.certificate_page"]) == 64
    others = {
        "puma.n_subjects": "2",
        "puma.data_digest": DATA_DIGEST,
        "puma.seed": "7",
        "puma.verdict_reason": "as expected",
        "puma.evidence": "retrain",
        "puma.unresolved": "-",
        "puma.audited_weights": removal.weights_digest,
        "puma.audited_deletion": DELETION,
    }
    assert others.items() <= of_run.items()
    assert {**tags, **others}.items() <= list_versions(client, DATASET)[2].tags.items()
    found = client.search_model_versions("name='puma-toy' and tags.`puma.parent_version` = '1'")
    assert sorted(int(item.version) for item in found) == [2, 3]
    first = dict(client.get_model_version("puma-toy", "1").tags)
    assert "puma.parent_version" not in first
    assert "puma.deletion_digest" not in first


def test_a_tag_is_changed_where_an_earlier_puma_set_it(registered: Workspace) -> None:
    client = open_store(registered)
    client.set_model_version_tag("puma-toy", "3", "puma.evidence", "retrain")
    found = client.get_model_version("puma-toy", "3")
    set_tags(client, found, {"puma.evidence": "pool", "puma.seed": "8", "puma.method": "mine"})
    tags = get_version(client, DATASET, 3).tags
    assert [tags[f"puma.{name}"] for name in ("evidence", "seed", "method")] == [
        "pool",
        "8",
        "mine",
    ]
    assert client.get_run(found.run_id).data.tags["puma.seed"] == "8"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_version_carries_its_audit_s_verdict_and_pictures(client: Any, number: int) -> None:
    version = client.get_model_version("puma-toy", str(number))
    method = version.tags["puma.method"]
    assert version.tags["puma.verdict"] == VERDICTS[method]
    assert (
        f"Audit, against retrained models: **{VERDICTS[method]}**: as expected."
        in version.description
    )
    found = client.list_artifacts(version.run_id, "audit")
    assert {artifact.path for artifact in found} == {f"audit/{name}.png" for name in PICTURES}
    for name in PICTURES:
        path = client.download_artifacts(version.run_id, f"audit/{name}.png")
        assert Path(path).read_bytes() == picture(method, name)
    search = f"name='puma-toy' and tags.`puma.verdict` = '{VERDICTS[method]}'"
    assert [int(item.version) for item in client.search_model_versions(search)] == [number]


def test_run_params_and_metrics_are_those_of_the_version(client: Any, filled: Workspace) -> None:
    row = list_versions(client, DATASET)[2]
    run = client.get_run(row.run_id)
    receipt = read_model_records(filled, DATASET)[2]
    assert run.info.run_name == "puma: over forgotten (toy)"
    assert run.info.status == "FINISHED"
    assert run.info.end_time - run.info.start_time == 250  # milliseconds of its removal
    assert run.data.params == {
        "method": "puma",
        "dataset": "toy",
        "model": "mlp 8",
        "seed": "7",
        "parent_version": "1",
        "n_removed": "3",
        "n_subjects": "2",
        "deletion_digest": DELETION,
        "data_digest": DATA_DIGEST,
        "weights_digest": receipt.weights_digest,
        "damping": "0.1",
    }
    shown_first = ("accuracy", "attack_rate", "runtime_seconds")
    copies = {f"Headline/{name}": receipt.metrics[name] for name in shown_first}
    assert run.data.metrics == {**copies, **receipt.metrics, "train_loss": 0.4}
    assert sorted(run.data.metrics)[:3] == sorted(copies)  # as MLflow's page of comparison sorts
    assert row.metrics == {**receipt.metrics, "train_loss": 0.4}
    assert receipt.metrics["speedup_vs_retrain"] == 6.0
    curve = client.get_metric_history(row.run_id, "train_loss")
    assert sorted((point.step, point.value) for point in curve) == [(1, 0.7), (2, 0.5), (3, 0.4)]
    first = client.get_run(list_versions(client, DATASET)[0].run_id)
    assert first.data.params["parent_version"] == "-"
    assert first.data.params["deletion_digest"] == "-"


def test_metrics_belong_to_the_logged_model(client: Any, filled: Workspace) -> None:
    source = client.get_model_version("puma-toy", "3").source
    logged = client.get_logged_model(source.removeprefix("models:/"))
    assert {metric.key: metric.value for metric in logged.metrics} == (
        read_model_records(filled, DATASET)[2].metrics
    )
    # MLflow's page of the model lists these as datasets that it used.
    datasets = {
        metric.key: (metric.dataset_name, metric.dataset_digest) for metric in logged.metrics
    }
    assert datasets["accuracy"] == ("toy", DATA_DIGEST[:36])
    assert datasets["attack_rate"] == ("toy deletion set", DELETION[:36])


def test_the_logged_model_names_its_version(client: Any) -> None:
    for row in list_versions(client, DATASET):
        tags = client.get_logged_model(row.model_id).tags
        version = {"name": "puma-toy", "version": str(row.version)}
        assert json.loads(tags["mlflow.modelVersions"]) == [version]


def test_the_description_links_to_parent_certificate_run_and_chart(client: Any) -> None:
    row = list_versions(client, DATASET)[2]
    page = client.get_model_version("puma-toy", "3").description
    run = f"#/experiments/{client.get_run(row.run_id).info.experiment_id}/runs/{row.run_id}"
    links = dict(re.findall(r"\[(.+?)\]\((.+?)\)", page))
    assert links == {
        "version 1": "#/models/puma-toy/versions/1",
        "certificate": f"{run}/artifacts/certificate.html",
        "run": run,
        "chart": f"{run}/artifacts/versions.svg",
    }
    artifacts = {each.path for each in client.list_artifacts(row.run_id)}
    assert {"certificate.html", "versions.svg"} < artifacts


def test_the_newest_chart_has_every_version(client: Any) -> None:
    row = list_versions(client, DATASET)[2]
    chart = ElementTree.parse(client.download_artifacts(row.run_id, "versions.svg"))
    words = [each.text for each in chart.iter("{http://www.w3.org/2000/svg}text")]
    shown = ["1 original", "2 retrain", "this: puma"]
    assert [each for each in words if each in shown] == shown


def test_inputs_name_data_parent_and_deletion_set(client: Any) -> None:
    first, _, removal = (client.get_run(row.run_id) for row in list_versions(client, DATASET))
    by_context = {item.tags[0].value: item.dataset for item in removal.inputs.dataset_inputs}
    assert by_context["training"].name == "toy"
    assert by_context["training"].digest == DATA_DIGEST[:36]
    assert by_context["deletion"].name == "toy deletion set"
    assert by_context["deletion"].digest == DELETION[:36]
    parent = client.get_model_version("puma-toy", "1").source
    assert [f"models:/{item.model_id}" for item in removal.inputs.model_inputs] == [parent]
    assert [item.tags[0].value for item in first.inputs.dataset_inputs] == ["training"]
    assert first.inputs.model_inputs == []


def test_run_names_its_notebook(client: Any) -> None:
    tags = client.get_run(list_versions(client, DATASET)[0].run_id).data.tags
    assert tags["mlflow.source.name"] == "notebooks/register.ipynb"
    assert tags["mlflow.source.type"] == "NOTEBOOK"


def test_description_says_what_the_version_is(client: Any) -> None:
    original = client.get_model_version("puma-toy", "1").description
    removal = client.get_model_version("puma-toy", "3").description
    assert "Original" in original
    assert "- accuracy: 0.75" in original
    assert ") of toy without 3 training rows of 2 people" in removal
    assert DELETION in removal
    assert "- speedup_vs_retrain: 6" in removal


def test_every_field_of_a_version_is_filled(client: Any, filled: Workspace) -> None:
    row = list_versions(client, DATASET)[2]
    as_dict = row.to_dict()
    assert json.loads(json.dumps(as_dict)) == as_dict
    assert as_dict["aliases"] == ["challenger"]
    assert (row.version, row.method, row.parent_version, row.n_removed) == (3, "puma", 1, 3)
    assert row.fingerprint == read_model_records(filled, DATASET)[2].fingerprint
    assert (row.verdict, row.data_digest) == ("over_forgotten", DATA_DIGEST)
    assert row.created.endswith("+00:00")
    assert list_versions(client, "other") == []


def test_verdicts_are_listed_version_by_version(client: Any) -> None:
    rows = list_versions(client, DATASET)
    assert {row.method: row.verdict for row in rows} == VERDICTS


@pytest.mark.parametrize(
    ("wanted", "number"),
    [(1, 1), ("1", 1), ("champion", 1), (2, 2), ("3", 3), ("challenger", 3)],
)
def test_a_version_is_found_by_number_and_by_alias(
    client: Any, wanted: str | int, number: int
) -> None:
    assert get_version(client, DATASET, wanted) == list_versions(client, DATASET)[number - 1]


@pytest.mark.parametrize("wanted", ["nobody", "4", 0, "", "01", "puma"])
def test_an_unknown_version_names_the_known_ones(client: Any, wanted: str | int) -> None:
    message = f"puma-toy has no version '{wanted}'; choose one of 1, 2, 3, challenger, champion"
    with pytest.raises(RegistryError, match=f"^{message}$"):
        get_version(client, DATASET, wanted)


def test_a_version_of_an_empty_registry_names_the_remedy(template: Workspace) -> None:
    for look in (get_version, lambda _, *named: load_predictor(template, *named)):
        with pytest.raises(RegistryError, match=r"run `dvc repro` first$"):
            look(open_store(template), DATASET, "champion")


@pytest.mark.parametrize("n", [1, 2, 250])
def test_predictor_takes_any_batch(filled: Workspace, n: int) -> None:
    model = load_weights(make_model(99), filled.weights(DATASET, "puma"))
    rows = torch.randn(n, FEATURES, generator=torch.Generator().manual_seed(n))
    logits = load_predictor(filled, DATASET, "challenger")(rows)
    assert not logits.requires_grad
    torch.testing.assert_close(logits, model(rows).detach(), rtol=0, atol=0)


def test_alias_and_number_name_the_same_version(filled: Workspace) -> None:
    rows = torch.eye(FEATURES)
    first, champion = (load_predictor(filled, DATASET, name)(rows) for name in (1, "champion"))
    assert torch.equal(first, champion)
    assert not torch.equal(first, load_predictor(filled, DATASET, "3")(rows))


def test_unknown_version_names_the_known_ones(filled: Workspace) -> None:
    with pytest.raises(RegistryError, match="choose one of 1, 2, 3, challenger, champion"):
        load_predictor(filled, DATASET, "nobody")


@pytest.mark.slow
def test_fresh_process_needs_no_pickle_and_no_configuration(filled: Workspace) -> None:
    code = (
        "import json, mlflow, mlflow.pytorch, torch\n"
        "print(mlflow.get_tracking_uri())\n"
        "model = mlflow.pytorch.load_model('models:/puma-toy@challenger')\n"
        f"rows = [torch.linspace(-1, 1, n * {FEATURES}).reshape(n, -1) for n in (1, 2, 7)]\n"
        "print(json.dumps([model(batch).tolist() for batch in rows]))"
    )
    output = run_python(code, filled.root, MLFLOW_ALLOW_PICKLE_DESERIALIZATION="false")
    uri, answer = output.splitlines()
    assert uri == f"sqlite:///{filled.root}/mlflow.db"
    model = load_weights(make_model(99), filled.weights(DATASET, "puma"))
    for n, logits in zip((1, 2, 7), json.loads(answer), strict=True):
        rows = torch.linspace(-1, 1, n * FEATURES).reshape(n, -1)
        torch.testing.assert_close(torch.tensor(logits), model(rows).detach(), rtol=0, atol=1e-7)


def test_requirements_are_pinned_and_the_example_is_no_record(filled: Workspace) -> None:
    folders = sorted((filled.root / "mlruns" / "puma" / "models").glob("*/artifacts"))
    assert len(folders) == 3
    for folder in folders:
        needs = (folder / "requirements.txt").read_text().split()
        assert f"torch=={installed_version('torch')}" in needs
        example = json.loads((folder / "input_example.json").read_text())
        assert torch.tensor(example).tolist() == [[0.0] * FEATURES] * 2


@pytest.mark.slow
def test_store_holds_no_id(workspace: Workspace) -> None:
    from puma.registry import register_all

    ids = [f"person-{number:03d}" for number in range(8)]
    examples = Examples.of(torch.randn(8, FEATURES), torch.arange(8) % 2, ids)
    data = Dataset(DATASET, examples, examples, ("bad", "good"))
    data.save(workspace.data(DATASET))
    DeletionSet.of(ids[:2], data).write(workspace.deletion_set(DATASET))
    workspace.request(DATASET).parent.mkdir()
    DeletionSet.of(ids[:2], data).write(workspace.request(DATASET))
    for name in ("rows.csv", ".roc.png.1f2e", "old/roc.png"):  # beside the pictures, by mistake
        stray = workspace.figures(DATASET, "puma") / name
        stray.parent.mkdir(exist_ok=True)
        stray.write_text("\n".join(ids))

    register_all(workspace, progress=False)

    mlruns = [path for path in (workspace.root / "mlruns").rglob("*") if path.is_file()]
    files = [workspace.root / "mlflow.db", workspace.registered, *mlruns]
    assert len(files) > 10
    assert DELETION.encode() in files[0].read_bytes()  # the search would find what is there
    assert [path for path in files if holds(path, b"person-0", b"subject_id")] == []


def holds(path: Path, *needles: bytes) -> bool:
    content = path.read_bytes()
    return any(needle in content for needle in needles)


def test_a_version_made_by_hand_is_listed_with_blanks(filled: Workspace, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    shutil.copytree(filled.root, root)
    uri = f"sqlite:///{root}/mlflow.db"
    client = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
    for tag, value in {"n_removed": "many", "parent_version": "none", "method": "[/x]"}.items():
        client.set_model_version_tag("puma-toy", "3", f"puma.{tag}", value)
    with closing(sqlite3.connect(root / "mlflow.db")) as store, store:
        store.execute("UPDATE model_versions SET run_id = 'gone' WHERE version = 3")

    odd = list_versions(client, DATASET)[-1]

    assert (odd.version, odd.method, odd.parent_version, odd.n_removed) == (3, "[/x]", None, 0)
    assert odd.metrics == {}
    made = client.create_model_version("puma-toy", source=f"file://{root}/nowhere")
    bare = get_version(client, DATASET, made.version)
    assert (bare.method, bare.verdict, bare.data_digest, bare.fingerprint) == ("", None, "", "")
