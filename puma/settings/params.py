"""The whole of params.yaml: the rules between its groups, each dataset's own, and reading it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from puma.errors import SettingsError
from puma.settings.base import DeviceName, Name, Seed, Strict
from puma.settings.data import DataSettings, DeletionSettings, MarkingSettings, SourceSettings
from puma.settings.evidence import AuditSettings, PoolSettings, ShadowSettings
from puma.settings.models import EngineSettings, ModelSettings, TrainingSettings
from puma.settings.names import ORIGINAL, is_original, original_of
from puma.settings.problems import problems_of
from puma.settings.promotion import PromotionSettings, RetrainAfter
from puma.settings.removal import (
    AmnesiacSettings,
    PumaPaperSettings,
    PumaSettings,
    RetrainSettings,
    SisaSettings,
)
from puma.yaml_file import parse_yaml, read_text


class DatasetSettings(Strict):
    """What one dataset has other than all: keys of ``model``, ``training`` and ``puma``.

    A key that is not named is as for all datasets. But ``model.kwargs`` belong to ``model.name``:
    another network gets none of them.
    """

    model: dict[str, Any] = {}
    training: dict[str, Any] = {}
    puma: dict[str, Any] = {}


class Settings(Strict):
    """Everything that params.yaml may say.

    ``device`` is where originals are trained and removals computed: cpu, cuda, cuda:N, mps, or
    auto; see :func:`puma.models.device.chosen_device`.
    ``sources`` are datasets of the user's own; those that ``datasets`` names are used.
    ``per_dataset`` says what is other for one of them: see :meth:`for_dataset`.
    ``methods`` are rows of :data:`puma.removal.METHODS`; ``build_method`` there refuses others.
    """

    seed: Seed = 0
    device: DeviceName = "cpu"
    datasets: Annotated[tuple[Name, ...], Field(min_length=1)] = ("german_credit", "breast_cancer")
    originals: tuple[str, ...] = ("original",)
    methods: tuple[str, ...] = ("retrain", "puma")
    versions: tuple[str, ...] = ("original", "retrain", "puma")
    data: DataSettings = DataSettings()
    sources: dict[Name, SourceSettings] = {}
    per_dataset: dict[Name, DatasetSettings] = {}
    marking: MarkingSettings = MarkingSettings()
    deletion: DeletionSettings = DeletionSettings()
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    puma: PumaSettings = PumaSettings()
    puma_paper: PumaPaperSettings = PumaPaperSettings()
    retrain: RetrainSettings = RetrainSettings()
    sisa: SisaSettings = SisaSettings()
    amnesiac: AmnesiacSettings = AmnesiacSettings()
    pool: PoolSettings = PoolSettings()
    shadow: ShadowSettings = ShadowSettings()
    audit: AuditSettings = AuditSettings()
    engine: EngineSettings = EngineSettings()
    promotion: PromotionSettings = PromotionSettings()
    retrain_after: RetrainAfter = RetrainAfter()

    @model_validator(mode="after")
    def _lists_name_each_once(self) -> Settings:
        for key in ("datasets", "methods"):
            names = getattr(self, key)
            repeated = sorted({name for name in names if names.count(name) > 1})
            if repeated:
                raise ValueError(f"{key} names {', '.join(repeated)} twice; keep one of each")
        originals = [name for name in self.methods if is_original(name)]
        if originals:
            raise ValueError(
                f"methods names {', '.join(originals)}, which removes nobody; list it among the "
                "originals alone"
            )
        return self

    @model_validator(mode="after")
    def _lists_agree(self) -> Settings:
        # DVC's templates can neither derive a list nor join two: params.yaml states all three.
        needed = {ORIGINAL, *map(original_of, self.methods)}
        if sorted(self.originals) != sorted(needed) or self.originals[0] != ORIGINAL:
            raise ValueError(
                f"originals must be {ORIGINAL!r} first and then, in any order, what the methods "
                f"remove from: {sorted(needed)} (got {list(self.originals)})"
            )
        expected = (*self.originals, *self.methods)
        if self.versions != expected:
            raise ValueError(f"versions must be {list(expected)}: the originals, then the methods")
        return self

    @model_validator(mode="after")
    def _has_the_pool_that_it_uses(self) -> Settings:
        users: dict[str, str] = {"audit.evidence": self.audit.evidence}
        if "puma" in self.methods:
            users["puma.reference_models"] = str(self.puma.reference_models)
        using = [key for key, value in users.items() if value == "pool"]
        if using and self.pool.models == 0:
            raise ValueError(
                f"{' and '.join(using)} need the pool, and pool.models is 0; set pool.models to "
                "32, or puma.reference_models to a number and audit.evidence to retrain"
            )
        return self

    def for_dataset(self, name: str) -> Settings:
        """Return the settings of one dataset: where it has none of its own, these.

        Raises:
            SettingsError: They cannot be used together. Settings that were validated can.
        """
        own = self.per_dataset.get(name)
        if own is None:
            return self
        values = {field: getattr(self, field) for field in type(self).model_fields}
        values["per_dataset"] = {}
        for group, changes in own.model_dump().items():
            merged = {**getattr(self, group).model_dump(), **changes}
            if group == "model" and changes.get("name", self.model.name) != self.model.name:
                merged["kwargs"] = changes.get("kwargs", {})
            values[group] = merged
        try:
            return Settings.model_validate(values)
        except ValidationError as error:
            raise SettingsError(f"per_dataset.{name}: {problems_of(error)}") from error

    def overridden(self, group: str, changes: Mapping[str, Any]) -> Settings:
        """Return these settings with other values in one group, those of every dataset included.

        Args:
            group: A key of params.yaml that has keys of its own, such as ``puma``.
            changes: The new values, by key.

        Raises:
            SettingsError: There is no such group or key, or a value cannot be used.
        """
        own = getattr(self, group, None)
        if not isinstance(own, Strict):
            raise SettingsError(f"{group!r} is no group of settings that overrides could change")
        values = {field: getattr(self, field) for field in type(self).model_fields}
        values[group] = {**own.model_dump(), **changes}
        values["per_dataset"] = {
            name: {
                each: {
                    key: found for key, found in keys.items() if each != group or key not in changes
                }
                for each, keys in settings.model_dump().items()
            }
            for name, settings in self.per_dataset.items()
        }
        try:
            return Settings.model_validate(values)
        except ValidationError as error:
            known = ", ".join(type(own).model_fields)
            raise SettingsError(
                f"overrides: {problems_of(error)}; the settings of {group} are {known}"
            ) from error

    @model_validator(mode="after")
    def _every_dataset_has_its_settings(self) -> Settings:
        unknown = sorted({*self.per_dataset} - {*self.datasets, *self.sources})
        if unknown:
            raise ValueError(
                f"per_dataset names {', '.join(map(repr, unknown))}, which is none of the datasets "
                f"({', '.join(self.datasets)}); name it as `datasets` does, or take it out"
            )
        for name in self.per_dataset:
            self.for_dataset(name)  # its error is a ValueError, too
        return self

    @model_validator(mode="after")
    def _one_model(self) -> Settings:
        if self.model.members is not None:
            raise ValueError(
                f"model.members is {self.model.members}, but the pipeline trains single models; "
                "leave it null and set sisa.shards"
            )
        return self


def load_settings(path: Path) -> Settings:
    """Read and validate ``params.yaml``.

    Raises:
        SettingsError: It cannot be read or used. The message names the file, at most ten wrong keys
            and the values found; where it is no proper YAML, the line.
    """
    return _settings_in(read_text(path), path)


@functools.lru_cache(maxsize=8)  # a command asks for them many times, and YAML is slow to parse
def _settings_in(text: str, path: Path) -> Settings:
    raw = parse_yaml(text, path)
    if not isinstance(raw, dict):
        raise SettingsError(
            f"{path}: expected a mapping of settings, such as `seed: 0`, got {type(raw).__name__}"
        )
    try:
        return Settings.model_validate(raw)
    except ValidationError as error:
        raise SettingsError(f"{path}: {problems_of(error)}; correct these keys") from error
