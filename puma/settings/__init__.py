"""params.yaml as frozen, validated models. Unknown keys are refused: a typo is an error."""

from __future__ import annotations

from puma.settings.base import (
    INT64,
    Count,
    DeviceName,
    Fraction,
    Name,
    NonNegative,
    Number,
    Positive,
    Seed,
    Strict,
    Text,
)
from puma.settings.data import DataSettings, DeletionSettings, MarkingSettings, SourceSettings
from puma.settings.evidence import AuditSettings, PoolSettings, ShadowSettings
from puma.settings.models import ByClass, EngineSettings, ModelSettings, TrainingSettings, YamlValue
from puma.settings.names import (
    BUILT_IN_DATASETS,
    ORIGINAL,
    OWN_CODE,
    OWN_ORIGINALS,
    RECORDING,
    RETAINED_LOSS,
    ColumnType,
    EvidenceSource,
    TaskName,
    VerdictName,
    is_original,
    original_of,
)
from puma.settings.params import DatasetSettings, Settings, load_settings
from puma.settings.problems import PROBLEMS, problems_of
from puma.settings.promotion import PromotionSettings, RetrainAfter
from puma.settings.removal import (
    AmnesiacSettings,
    PoolOrCount,
    PreservedCriterion,
    PumaPaperSettings,
    PumaSettings,
    RetrainSettings,
    SisaSettings,
)

__all__ = [
    "BUILT_IN_DATASETS",
    "INT64",
    "ORIGINAL",
    "OWN_CODE",
    "OWN_ORIGINALS",
    "PROBLEMS",
    "RECORDING",
    "RETAINED_LOSS",
    "AmnesiacSettings",
    "AuditSettings",
    "ByClass",
    "ColumnType",
    "Count",
    "DataSettings",
    "DatasetSettings",
    "DeletionSettings",
    "DeviceName",
    "EngineSettings",
    "EvidenceSource",
    "Fraction",
    "MarkingSettings",
    "ModelSettings",
    "Name",
    "NonNegative",
    "Number",
    "PoolOrCount",
    "PoolSettings",
    "Positive",
    "PreservedCriterion",
    "PromotionSettings",
    "PumaPaperSettings",
    "PumaSettings",
    "RetrainAfter",
    "RetrainSettings",
    "Seed",
    "Settings",
    "ShadowSettings",
    "SisaSettings",
    "SourceSettings",
    "Strict",
    "TaskName",
    "Text",
    "TrainingSettings",
    "VerdictName",
    "YamlValue",
    "is_original",
    "load_settings",
    "original_of",
    "problems_of",
]
