"""params.yaml as frozen, validated models. Unknown keys are refused: a typo is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from puma.errors import SettingsError


def _not_a_flag(value: Any) -> Any:
    """YAML reads `on` and `yes` as true, and true would pass for the number 1."""
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


Number = BeforeValidator(_not_a_flag)
Positive = Annotated[float, Number, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Number, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Number, Field(gt=0, lt=1)]
Count = Annotated[int, Number, Field(ge=1)]
Seed = Annotated[int, Number, Field(ge=0, lt=2**32)]


class Strict(BaseModel):
    """A settings group: immutable, strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DataSettings(Strict):
    test_fraction: Fraction = 0.25


class MarkingSettings(Strict):
    """The demonstration's deletion request (paper, Appendix A, Data Marking)."""

    clusters: Count = 8


class DeletionSettings(Strict):
    allow_class_removal: bool = False


class ModelSettings(Strict):
    name: str = "mlp"
    hidden: tuple[Count, ...] = (64, 32)


class TrainingSettings(Strict):
    epochs: Count = 50
    learning_rate: Positive = 1e-3
    batch_size: Count = 32
    weight_decay: NonNegative = 0.0


class PumaSettings(Strict):
    """PUMA's knobs; see :class:`puma.PUMA` for what each one does."""

    damping: Positive = 0.1
    budget: Positive = 0.01
    max_dose: Positive = 1000.0
    l1: NonNegative = 0.0
    l2: NonNegative = 1e-6
    max_weight: Positive = 1.0
    tolerance: Positive = 1e-4
    max_iterations: Count = 1000


class RetrainSettings(Strict):
    schedule: Literal["equal_epochs", "equal_steps"] = "equal_epochs"


class ShadowSettings(Strict):
    """The paper's attack (Appendix A, Membership Attack Setup)."""

    models: Count = 5
    fraction: Annotated[float, Number, Field(gt=0, lt=0.5)] = 0.09
    epochs: Count = 50
    attack_hidden: tuple[Count, ...] = (128, 64)
    attack_epochs: Count = 50


class Settings(Strict):
    """Everything that params.yaml may say."""

    seed: Seed = 0
    datasets: tuple[str, ...] = ("german_credit", "breast_cancer")
    methods: tuple[str, ...] = ("retrain", "puma")
    versions: tuple[str, ...] = ("original", "retrain", "puma")
    data: DataSettings = DataSettings()
    marking: MarkingSettings = MarkingSettings()
    deletion: DeletionSettings = DeletionSettings()
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    puma: PumaSettings = PumaSettings()
    retrain: RetrainSettings = RetrainSettings()
    shadow: ShadowSettings = ShadowSettings()

    @model_validator(mode="after")
    def _versions_follow_methods(self) -> Settings:
        expected = ("original", *self.methods)  # DVC's templates cannot join two lists
        if self.versions != expected:
            raise ValueError(f"versions must be {list(expected)}: the original, then the methods")
        return self


def load_settings(path: Path) -> Settings:
    """Read and validate ``params.yaml``.

    Raises SettingsError naming the file, every offending key and the value found.
    """
    try:
        raw = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be read ({error.strerror}); run inside a PUMA project"
        ) from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(raw, dict):
        raise SettingsError(f"{path}: expected a mapping of settings, got {type(raw).__name__}")
    try:
        return Settings.model_validate(raw)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc']))}: {item['msg']} (got {item['input']!r})"
            if item["loc"]
            else item["msg"]  # of the whole file, which need not be repeated
            for item in error.errors()
        )
        raise SettingsError(f"{path}: {problems}; correct these keys") from error
