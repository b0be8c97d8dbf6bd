from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dvc.utils.serialize import dumps_yaml, loads_yaml
from pydantic import ValidationError

import puma
from puma.errors import SettingsError
from puma.settings import Settings, is_original, load_settings, original_of

REPOSITORY = Path(puma.__file__).parents[1]


def load(tmp_path: Path, content: Any) -> Settings:
    path = tmp_path / "params.yaml"
    path.write_text(content if isinstance(content, str) else dumps_yaml(content))
    return load_settings(path)


def nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def test_params_of_the_repository_are_the_defaults_of_the_code() -> None:
    stated = loads_yaml((REPOSITORY / "params.yaml").read_text())
    assert stated == Settings().model_dump(mode="json")
    assert load_settings(REPOSITORY / "params.yaml") == Settings()


def test_stated_values_are_read_and_others_keep_their_default(tmp_path: Path) -> None:
    settings = load(tmp_path, {"seed": 7, "model": {"hidden": [5]}, "puma": {"damping": 0.5}})
    assert (settings.seed, settings.model.hidden, settings.puma.damping) == (7, (5,), 0.5)
    assert settings.puma.budget == 0.01
    assert settings.training.epochs == 50


def test_numbers_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    # YAML 1.1 takes 010 for eight and 1e-3, without a dot, for a text.
    text = "seed: 010\ntraining: {learning_rate: 1e-3, epochs: '7', batch_size: 0o10}"
    settings = load(tmp_path, text)
    assert (settings.seed, settings.training.learning_rate) == (10, 0.001)
    assert (settings.training.epochs, settings.training.batch_size) == (7, 8)
    assert loads_yaml(text)["seed"] == 10  # what DVC compares
    # In YAML 1.1 these are 90, 685230.15 and true.
    for value in ("1:30", "190:20:30.15", "yes"):
        with pytest.raises(SettingsError, match=rf"seed: .* \(got '{value}'\)"):
            load(tmp_path, f"seed: {value}")


@pytest.mark.parametrize(
    ("content", "line", "key"),
    [
        ("seed: 1\nseed: 1\n", 2, "seed"),
        ("puma: {steps: 3}\nseed: 1\npuma:\n  budget: 1\n", 3, "puma"),
        ("puma:\n  steps: 3\n  budget: 1\n  'steps': 4\n", 4, "steps"),
        ("puma: &p {l1: 1}\npuma_paper: {<<: *p, l1: 2, l1: 3}\n", 2, "l1"),
        ("puma: &p {l1: 1}\nsisa: {<<: {}, <<: *p}\n", 2, "<<"),
    ],
)
def test_repeated_keys_are_refused(tmp_path: Path, content: str, line: int, key: str) -> None:
    stated = content.splitlines()[line - 1].strip()
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, content)
    assert f"params.yaml: not valid YAML: line {line}, " in str(caught.value)
    assert stated in str(caught.value)
    assert f"the key {key!r} is there twice, and only one can count" in str(caught.value)


NINES = "9" * 5000
ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("seed: 2026-13-45", "line 1, 'seed: 2026-13-45': .*month must be in"),
        ("seed: 2026-11-03", r"seed: .*\(got datetime.date\(2026, 11, 3\)\)"),
        (f"a: 1\nseed: {NINES}", "line 2, 'seed: 9+\\.\\.\\.9+': .*limit"),
        (f"seed: 0x{'f' * 5000}", "line 1, 'seed: 0xf+\\.\\.\\.f+': .*limit"),
        (
            f"training: {{epochs: {NINES[:4000]}}}",
            r"training\.epochs: .*less than .*\(got 9+\.\.\.9",
        ),
        (f"model: {{hidden: [{2**63}]}}", r"model\.hidden\.0: .*less than"),
        ("a: " + "[" * 500, "nested too deeply"),
        ("a: " + "[" * 100 + "]" * 100, r"a: Extra inputs .*\(got \[\[\[\[\.\.\."),
        (ALIASES, "a9: Extra inputs .*; and 2 more;"),
        (ALIASES + "a11: 1", "line 13, 'a11: 1': the key 'a11' is there twice"),
        ("a: &a [*a]", "a: Extra inputs"),
        ("seed: !!int x", "line 1, 'seed: !!int x': .*invalid literal"),
        ("seed: !!int ''", "line 1, .*index out of range"),
        ("seed: !!bool x", "line 1, .*'x'"),
        ("data: {folder: !!binary aGk=}", "line 1, .*could not determine a constructor"),
        ("model: {hidden: !!set {4, 5}}", "line 1, .*could not determine a constructor"),
        (
            "\n".join(f"{'k' * 300}{i}: {NINES[:900]}" for i in range(50)),
            r"\.\.\.: .*; and 40 more;",
        ),
        ("seed: !mine 3", "line 1, .*could not determine a constructor"),
        ("seed: 1\n---\nseed: 2", "line 2, '---': expected a single document"),
        ('model: {name: "\\ud800"}', "line 1, .*surrogates not allowed"),
        ('data: {folder: "a\\0b"}', "line 1, .*NUL is no character of a text"),
        ("seed: \0", "#x0000"),
        ("7: 1", r"7: Keys should be strings \(got 7\)"),
    ],
    ids=lambda value: value[:12],
)
def test_what_yaml_can_hold_and_no_setting_is_refused_in_short(
    tmp_path: Path, content: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=rf"params\.yaml: .*{message}") as caught:
        load(tmp_path, content)
    assert len(str(caught.value)) < 5000


@pytest.mark.parametrize(
    "key",
    [
        "sead",
        *(
            f"{group}.typo"
            for group, value in Settings().model_dump().items()
            if isinstance(value, dict) and group not in ("sources", "per_dataset")
        ),
        "sources.churn.typo",
        "per_dataset.churn.typo",
    ],
)
def test_unknown_keys_are_refused_by_name(tmp_path: Path, key: str) -> None:
    with pytest.raises(SettingsError, match=rf"params\.yaml: {key}: Extra inputs .* \(got 1\)"):
        load(tmp_path, nested(key, 1))


# For every number of params.yaml, values just outside of its range. pydantic does the checking;
# which bounds we chose is what is tested.
OUTSIDE: dict[str, tuple[Any, ...]] = {
    "seed": (-1, 2**32, 0.5),
    "data.test_fraction": (0, 1),
    "data.validation_fraction": (-0.1, 1),
    "marking.clusters": (0,),
    "marking.fraction": (0, 1),
    "model.growth": (0,),
    "model.bottleneck": (0,),
    "training.epochs": (0, 1.5),
    "training.learning_rate": (0, float("inf")),
    "training.batch_size": (0,),
    "training.weight_decay": (-1e-9, float("inf")),
    "puma.damping": (0, float("nan")),
    "puma.budget": (0, -1e-9),
    "puma.max_dose": (0,),
    "puma.steps": (0,),
    "puma.reference_fraction": (0, 1.01),
    "puma.reference_epochs": (0, 1.01),
    "puma.level_aim": (0,),
    "puma.level_tolerance": (0,),
    "puma.l1": (-1e-9,),
    "puma.l2": (-1e-9,),
    "puma.max_weight": (0,),
    "puma.tolerance": (0,),
    "puma.max_iterations": (0,),
    "puma.rows": (0,),
    "puma_paper.eta": (0,),
    "puma_paper.damping": (0,),
    "puma_paper.steps": (0,),
    "puma_paper.batch_size": (0,),
    "puma_paper.tolerance": (0, 1),
    "puma_paper.up_sample": (0,),
    "puma_paper.l1": (-1e-9,),
    "puma_paper.l2": (-1e-9,),
    "puma_paper.max_weight": (0,),
    "sisa.shards": (0,),
    "sisa.slices": (0,),
    "amnesiac.repair_epochs": (-1,),
    "amnesiac.max_bytes": (0,),
    "pool.models": (-8, 12, 8),
    "pool.everybody": (2,),
    "shadow.models": (0,),
    "shadow.fraction": (0, 0.5),
    "shadow.epochs": (0,),
    "shadow.attack_epochs": (0,),
    "audit.models": (2,),
    "audit.shadow_models": (3,),
    "audit.confidence": (0, 1),
    "audit.max_influence": (0,),
    "audit.max_surer": (0, 0.51),
    "audit.max_gap": (1, float("inf")),
    "audit.max_accuracy_loss": (0, 1),
    "audit.max_balanced_accuracy_loss": (0, 1),
    "retrain_after.drift": (0,),
    "retrain_after.count": (0,),
}
OTHER_WRONG_VALUES: dict[str, tuple[Any, ...]] = {
    "datasets": (3,),
    "deletion.allow_class_removal": ("perhaps",),
    "puma.reference_models": (-1, "many", None, True, 0.5, 2**63),
    "audit.evidence": ("hearsay",),
    "model.name": (3,),
    "model.blocks": ([],),
    "model.members": (0,),
    "model.vote": ("median",),
    "marking.name": ("loudest",),
    "data.folder": ("",),
    "training": (3,),
    "training.learning_rate_schedule": ("cosine",),
    "retrain.schedule": ("equal_seconds",),
    "puma.reweighting": ("sometimes",),
    "puma.criterion_sample": (0,),
    "puma.negligible": (-0.1, 1),
    "puma_paper.curvature": ("flat",),
    "sisa.assignment": ("sorted",),
    "sisa.vote": ("median",),
    "shadow.features": ("loss",),
    "audit.jobs": (0,),
}


def leaves(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found = {}
    for name, value in settings.items():
        inner = leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else None
        found.update(inner if inner is not None else {f"{prefix}{name}": value})
    return found


def numbers() -> set[str]:
    defaults = leaves(Settings().model_dump())
    return {key for key, value in defaults.items() if type(value) in (int, float)}


def test_every_number_has_a_range() -> None:
    assert numbers() == set(OUTSIDE)


def assert_refused(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, nested(key, value))
    assert f"params.yaml: {key}: " in str(caught.value)
    assert f"(got {value!r})" in str(caught.value)


@pytest.mark.parametrize("key", [*OUTSIDE, *OTHER_WRONG_VALUES])
def test_wrong_values_are_refused_by_key_and_value(tmp_path: Path, key: str) -> None:
    for value in {**OUTSIDE, **OTHER_WRONG_VALUES}[key]:
        assert_refused(tmp_path, key, value)


@pytest.mark.parametrize("value", ["many", None, True])
def test_no_number_may_be_a_text_nothing_or_a_flag(tmp_path: Path, value: Any) -> None:
    # true would pass for 1.
    for key in numbers():
        assert_refused(tmp_path, key, value)


TABLE = {"path": "churn.csv", "target": "churned"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"path": "churn.csv"}, "a table needs path and target; other data need source"),
        ({"target": "churned"}, "a table needs path and target"),
        (
            {**TABLE, "task": "ranking"},
            "Input should be 'classification', 'binary' or 'regression'",
        ),
        ({**TABLE, "types": {"age": "number"}}, "Input should be 'numeric', 'categorical'"),
        ({**TABLE, "missing": "guess"}, "Input should be 'impute', 'refuse' or 'drop_rows'"),
        ({**TABLE, "subject": "churned"}, "'churned': a column is named once"),
        ({**TABLE, "drop": ["a", "b"], "types": {"b": "date"}}, "'b': a column is named once"),
        ({**TABLE, "drop": ["a", "a"]}, "'a': a column is named once"),
        ({"source": "m:load", "target": "y", "drop": ["a"]}, "drop, target: of a table only"),
    ],
)
def test_a_source_that_is_no_table_and_no_function_is_refused(
    tmp_path: Path, source: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=rf"params\.yaml: sources\.churn.*{message}"):
        load(tmp_path, {"sources": {"churn": source}})


def test_a_source_is_a_table_or_a_function(tmp_path: Path) -> None:
    function = {"path": "photos", "source": "shop.photos:load", "task": "classification"}
    settings = load(tmp_path, {"sources": {"churn": TABLE, "photos": function}})
    assert (settings.sources["churn"].target, settings.sources["churn"].missing) == (
        "churned",
        "impute",
    )
    assert settings.sources["photos"].source == "shop.photos:load"


@pytest.mark.parametrize("key", ["model.hidden", "model.blocks", "shadow.attack_hidden"])
def test_a_wrong_layer_is_named_by_its_position(tmp_path: Path, key: str) -> None:
    with pytest.raises(SettingsError, match=rf"params\.yaml: {key}\.1: .*\(got 0\)"):
        load(tmp_path, nested(key, [64, 0]))


def test_the_edges_of_the_ranges_are_allowed(tmp_path: Path) -> None:
    edges = {
        "seed": 2**32 - 1,
        "puma.l1": 0,
        "training.epochs": 1,
        "audit.max_surer": 0.5,
        "audit.jobs": 1,
        "audit.models": 3,
        "audit.shadow_models": 4,
        "puma.reference_models": 0,
        "amnesiac.repair_epochs": 0,
    }
    for key, value in edges.items():
        assert leaves(load(tmp_path, nested(key, value)).model_dump())[key] == value


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({}, "audit.evidence and puma.reference_models need the pool"),
        ({"puma": {"reference_models": 1}}, "audit.evidence need the pool"),
        ({"audit": {"evidence": "retrain"}}, "puma.reference_models need the pool"),
    ],
)
def test_what_uses_the_pool_needs_one(tmp_path: Path, changed: Any, named: str) -> None:
    with pytest.raises(SettingsError, match=rf"{named}, and pool\.models is 0; set pool\.models"):
        load(tmp_path, {"pool": {"models": 0}, **changed})
    without = {"puma": {"reference_models": 1}, "audit": {"evidence": "retrain"}}
    assert load(tmp_path, {"pool": {"models": 0}, **without}).pool.models == 0


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"seed: .*; training\.epochs: .*; puma\.damp: "):
        load(tmp_path, {"seed": -1, "training": {"epochs": 0}, "puma": {"damp": 1}})


@pytest.mark.parametrize(
    "stated",
    [
        {"versions": ["retrain", "puma"]},
        {"versions": ["original", "puma", "retrain"]},
        {"versions": ["original", "retrain", "puma", "puma"]},
        {"methods": ["puma"]},
    ],
)
def test_versions_must_be_the_originals_and_the_methods(
    tmp_path: Path, stated: dict[str, Any]
) -> None:
    methods = stated.get("methods", ["retrain", "puma"])
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, {"originals": ["original"], "methods": methods, **stated})
    expected = ["original", *methods]
    assert f"versions must be {expected}: the originals, then the methods" in str(caught.value)
    assert "got" not in str(caught.value)


@pytest.mark.parametrize(
    ("methods", "originals"),
    [
        (["puma"], ["original"]),
        (["sisa", "puma"], ["original", "sisa_original"]),
        (["amnesiac"], ["original", "amnesiac_original"]),
        (["amnesiac", "sisa"], ["original", "sisa_original", "amnesiac_original"]),
    ],
)
def test_versions_that_follow_the_methods_are_accepted(
    tmp_path: Path, methods: list[str], originals: list[str]
) -> None:
    lists = {"originals": originals, "methods": methods, "versions": [*originals, *methods]}
    settings = load(tmp_path, lists)
    assert settings.versions == (*originals, *methods)
    assert all(is_original(name) for name in originals)
    assert not any(is_original(name) for name in methods)
    assert {original_of(name) for name in methods} <= set(originals)


@pytest.mark.parametrize(
    "originals",
    [
        ["original"],
        ["sisa_original", "original"],
        ["original", "sisa_original", "sisa_original"],
        ["original", "sisa_original", "amnesiac_original"],
        ["sisa_original"],
        [],
    ],
)
def test_originals_must_be_what_the_methods_remove_from(
    tmp_path: Path, originals: list[str]
) -> None:
    lists = {"originals": originals, "methods": ["sisa"], "versions": [*originals, "sisa"]}
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, lists)
    message = str(caught.value)
    assert "originals must be 'original' first" in message
    assert f"['original', 'sisa_original'] (got {originals})" in message


@pytest.mark.parametrize("key", ["datasets", "methods"])
def test_lists_name_each_once(tmp_path: Path, key: str) -> None:
    content = {"originals": ["original"], "methods": ["puma"], "versions": ["original", "puma"]}
    content[key] = ["puma", "retrain", "puma"]
    content["versions"] = ["original", *content["methods"]]
    with pytest.raises(SettingsError, match=f"{key} names puma twice; keep one of each"):
        load(tmp_path, content)


@pytest.mark.parametrize("name", ["", ".", "..", ".x", "-x", "../x", "x/y", "a b", "x\n", "a:b"])
def test_datasets_are_named_so_that_files_can_be(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match=r"datasets\.1: .*letters, digits") as caught:
        load(tmp_path, {"datasets": ["german_credit", name]})
    assert f"(got {name!r})" in str(caught.value)


def test_there_is_a_dataset(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"datasets: .*at least 1 item.* \(got \[\]\)"):
        load(tmp_path, {"datasets": []})


@pytest.mark.parametrize("name", ["original", "sisa_original"])
def test_an_original_is_no_method(tmp_path: Path, name: str) -> None:
    content = {
        "originals": ["original"],
        "methods": ["puma", name],
        "versions": ["original", "puma", name],
    }
    with pytest.raises(SettingsError, match=f"methods names {name}, which removes nobody; list"):
        load(tmp_path, content)


def test_the_pipeline_s_model_is_a_single_one(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"model\.members is 3, .*; leave it null and set sisa"):
        load(tmp_path, {"model": {"members": 3}})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- a\n- b\n", "expected a mapping of settings, .* got list"),
        ("", "expected a mapping of settings, .* got NoneType"),
        ("seed: [1", "not valid YAML"),
        ("!!python/object/apply:os.getcwd []", "not valid YAML"),
    ],
)
def test_files_of_another_shape_are_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(SettingsError, match=rf"params\.yaml: {message}"):
        load(tmp_path, content)


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_bytes(b"model: {name: caf\xe9}")
    with pytest.raises(SettingsError, match="not valid YAML: byte 17 is no UTF-8; save"):
        load_settings(tmp_path / "params.yaml")


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"params\.yaml: cannot be read \(No such file"):
        load_settings(tmp_path / "params.yaml")


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().training.epochs = 3  # type: ignore[misc]


def test_a_path_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"cannot be read .*null.*; correct the path"):
        load_settings(Path("a\0b"))


@pytest.mark.parametrize(
    ("accept", "message"),
    [
        (["indistinguishable"], "promotion.accept must name passed"),
        ([], "promotion.accept must name passed"),
        (["passed", "fine"], "promotion.accept.1: Input should be 'passed', 'indistinguishable'"),
    ],
)
def test_promotion_accepts_verdicts_and_what_passed_above_all(
    tmp_path: Path, accept: list[str], message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, {"promotion": {"accept": accept}})
    assert message in str(caught.value)
    kept = load(tmp_path, {"promotion": {"accept": ["utility_lost", "passed"]}})
    assert kept.promotion.accept == ("utility_lost", "passed")


def test_a_dataset_has_its_own_settings_where_it_states_them(tmp_path: Path) -> None:
    net = {"name": "shop:Net", "kwargs": {"width": 8}}
    own = {"model": net, "training": {"epochs": 3}, "puma": {"budget": 0.5}}
    settings = load(
        tmp_path,
        {
            "seed": 4,
            "training": {"epochs": 9, "batch_size": 16},
            "puma": {"damping": 0.7},
            "per_dataset": {"german_credit": own},
        },
    )
    found, other = (settings.for_dataset(name) for name in ("german_credit", "breast_cancer"))
    assert (found.model.name, found.model.kwargs, found.model.hidden) == (*net.values(), (64, 32))
    assert (found.training.epochs, found.training.batch_size) == (3, 16)
    assert (found.puma.budget, found.puma.damping, found.seed) == (0.5, 0.7, 4)
    assert (other.model, other.training.epochs, other.puma.budget) == (settings.model, 9, 0.01)
    assert found.for_dataset("german_credit") == found


def test_kwargs_belong_to_the_network_that_is_named_with_them(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        {
            "datasets": ["a", "b", "c"],
            "model": {"name": "shop:Net", "kwargs": {"width": 8}},
            "per_dataset": {"a": {"model": {"name": "mlp"}}, "b": {"model": {"kwargs": {"w": 1}}}},
        },
    )
    found = [settings.for_dataset(name).model for name in "abc"]
    assert [each.kwargs for each in found] == [{}, {"w": 1}, {"width": 8}]
    assert [each.name for each in found] == ["mlp", "shop:Net", "shop:Net"]


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"chrun": {}}, r".*per_dataset names 'chrun', which is none of the datasets \(german_cre"),
        ({"german_credit": {"audit": {}}}, r"per_dataset\.german_credit\.audit: Extra inputs"),
        (
            {"german_credit": {"training": {"epochs": 0}}},
            r".*per_dataset\.german_credit: training\.epochs: .*\(got 0\)",
        ),
        (
            {"german_credit": {"puma": {"typo": 1}}},
            r".*per_dataset\.german_credit: puma\.typo: Extra inputs",
        ),
        (
            {"german_credit": {"model": {"kwargs": {"w": 1}}}},
            r".*per_dataset\.german_credit: model: .*kwargs \(w\) are for a class of your own",
        ),
    ],
)
def test_settings_of_a_dataset_that_cannot_be_used_are_refused(
    tmp_path: Path, own: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=rf"params\.yaml: {message}"):
        load(tmp_path, {"per_dataset": own})


@pytest.mark.parametrize("classes", [{0: 1, 1: 5.5}, {"0": 1, "1": 5.5}])
def test_weights_of_classes_that_are_numbers_need_no_quotes(
    tmp_path: Path, classes: dict[Any, Any]
) -> None:
    found = load(tmp_path, {"training": {"class_weights": classes}}).training.class_weights
    assert found == {"0": 1.0, "1": 5.5}


@pytest.mark.parametrize(
    "value",
    ["Balanced", True, 3, [1, 2], {}, {"a": 0}, {"a": -1}, {"a": True}, {True: 1}, {0.5: 1}],
)
def test_what_weighs_no_classes_is_refused_in_one_sentence(tmp_path: Path, value: Any) -> None:
    message = r"params\.yaml: training\.class_weights: expected balanced, or a finite weight > 0 by"
    with pytest.raises(SettingsError, match=message) as caught:
        load(tmp_path, {"training": {"class_weights": value}})
    assert "; training" not in str(caught.value)


def test_messages_of_ours_come_without_the_framework_s_words(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"params\.yaml: per_dataset names 'no', which is none"):
        load(tmp_path, {"per_dataset": {"no": {}}})
