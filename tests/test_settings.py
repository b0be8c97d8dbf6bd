from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

import puma
from puma.errors import SettingsError
from puma.settings import Settings, load_settings

REPOSITORY = Path(puma.__file__).parents[1]


def load(tmp_path: Path, content: Any) -> Settings:
    path = tmp_path / "params.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return load_settings(path)


def nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def test_params_of_the_repository_are_the_defaults_of_the_code() -> None:
    stated = yaml.safe_load((REPOSITORY / "params.yaml").read_text())
    assert stated == Settings().model_dump(mode="json")
    assert load_settings(REPOSITORY / "params.yaml") == Settings()


def test_stated_values_are_read_and_others_keep_their_default(tmp_path: Path) -> None:
    settings = load(tmp_path, {"seed": 7, "model": {"hidden": [5]}, "puma": {"damping": 0.5}})
    assert (settings.seed, settings.model.hidden, settings.puma.damping) == (7, (5,), 0.5)
    assert settings.puma.budget == 0.01
    assert settings.training.epochs == 50


def test_numbers_that_yaml_reads_as_text_are_numbers(tmp_path: Path) -> None:
    # YAML 1.1 takes 1e-3, without a dot, for a string.
    settings = load(tmp_path, "training: {learning_rate: 1e-3, epochs: '7'}")
    assert (settings.training.learning_rate, settings.training.epochs) == (0.001, 7)


@pytest.mark.parametrize(
    "key",
    [
        "sead",
        *(
            f"{group}.typo"
            for group, value in Settings().model_dump().items()
            if isinstance(value, dict)
        ),
    ],
)
def test_unknown_keys_are_refused_by_name(tmp_path: Path, key: str) -> None:
    with pytest.raises(SettingsError, match=rf"params\.yaml: {key}: Extra inputs .* \(got 1\)"):
        load(tmp_path, nested(key, 1))


COUNTS = [
    "marking.clusters",
    "training.epochs",
    "training.batch_size",
    "puma.max_iterations",
    "shadow.models",
    "shadow.epochs",
    "shadow.attack_epochs",
]
POSITIVE = [
    "training.learning_rate",
    "puma.damping",
    "puma.budget",
    "puma.max_dose",
    "puma.max_weight",
    "puma.tolerance",
]
NOT_NEGATIVE = ["training.weight_decay", "puma.l1", "puma.l2"]
FRACTIONS = {"data.test_fraction": (0, 1), "shadow.fraction": (0, 0.5)}
NUMBERS = ["seed", *COUNTS, *POSITIVE, *NOT_NEGATIVE, *FRACTIONS]


def leaves(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found = {}
    for name, value in settings.items():
        inner = leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else None
        found.update(inner if inner is not None else {f"{prefix}{name}": value})
    return found


def test_the_cases_below_cover_every_number() -> None:
    defaults = leaves(Settings().model_dump())
    numbers = {key for key, value in defaults.items() if type(value) in (int, float)}
    assert numbers == set(NUMBERS)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, value) for key in NUMBERS for value in ("many", None, [1], True, float("nan"))),
        *((key, value) for key in COUNTS for value in (0, -1, 1.5)),
        *((key, value) for key in POSITIVE for value in (0, -1e-9, float("inf"))),
        *((key, value) for key in NOT_NEGATIVE for value in (-1e-9, float("inf"))),
        *((key, bound) for key, bounds in FRACTIONS.items() for bound in bounds),
        *(("seed", value) for value in (-1, 2**32, 0.5)),
        *((key, value) for key in ("datasets", "methods", "model.hidden") for value in (3, None)),
        ("deletion.allow_class_removal", "perhaps"),
        ("model.name", 3),
        ("retrain.schedule", "equal_seconds"),
        ("training", 3),
    ],
)
def test_wrong_values_are_refused_by_key_and_value(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, nested(key, value))
    assert f"params.yaml: {key}: " in str(caught.value)
    assert f"(got {value!r})" in str(caught.value)


@pytest.mark.parametrize("key", ["model.hidden", "shadow.attack_hidden"])
def test_a_wrong_layer_is_named_by_its_position(tmp_path: Path, key: str) -> None:
    with pytest.raises(SettingsError, match=rf"params\.yaml: {key}\.1: .*\(got 0\)"):
        load(tmp_path, nested(key, [64, 0]))


def test_the_edges_of_the_ranges_are_allowed(tmp_path: Path) -> None:
    for key, value in {"seed": 2**32 - 1, "puma.l1": 0, "training.epochs": 1}.items():
        assert leaves(load(tmp_path, nested(key, value)).model_dump())[key] == value


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
def test_versions_must_be_the_original_and_the_methods(
    tmp_path: Path, stated: dict[str, Any]
) -> None:
    expected = ["original", *stated.get("methods", ["retrain", "puma"])]
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, stated)
    assert f"versions must be {expected}: the original, then the methods" in str(caught.value)
    assert "got" not in str(caught.value)


def test_versions_that_follow_the_methods_are_accepted(tmp_path: Path) -> None:
    settings = load(tmp_path, {"methods": ["puma"], "versions": ["original", "puma"]})
    assert settings.versions == ("original", "puma")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- a\n- b\n", "expected a mapping of settings, got list"),
        ("", "expected a mapping of settings, got NoneType"),
        ("seed: [1", "not valid YAML"),
        ("!!python/object/apply:os.getcwd []", "not valid YAML"),
    ],
)
def test_files_of_another_shape_are_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(SettingsError, match=rf"params\.yaml: {message}"):
        load(tmp_path, content)


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_bytes(b"model: {name: caf\xe9}")
    with pytest.raises(SettingsError, match="not valid YAML"):
        load_settings(tmp_path / "params.yaml")


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"params\.yaml: cannot be read \(No such file"):
        load_settings(tmp_path / "params.yaml")


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().training.epochs = 3  # type: ignore[misc]
