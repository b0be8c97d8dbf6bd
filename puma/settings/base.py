"""What every group of settings is, and the types of single values that several of them have."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


class Strict(BaseModel):
    """A settings group: immutable, strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _not_a_flag(value: Any) -> Any:
    """``true`` would pass for the number 1."""
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


def _named_plainly(name: str) -> str:
    """Files, folders and registered models are named after it."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(
            "expected a name of letters, digits, _, - and . that begins with no . or -"
        )
    return name


def _known_device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", name):
        raise ValueError("expected auto, cpu, cuda, cuda:N or mps")
    return name


Number = BeforeValidator(_not_a_flag)
INT64 = Field(lt=2**63)  # no larger number fits into a tensor
Positive = Annotated[float, Number, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Number, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Number, Field(gt=0, lt=1)]
Count = Annotated[int, Number, Field(ge=1), INT64]
Seed = Annotated[int, Number, Field(ge=0, lt=2**32)]
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, AfterValidator(_named_plainly)]
DeviceName = Annotated[str, AfterValidator(_known_device)]
