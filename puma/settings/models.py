"""The model, how it is trained, and on which machines."""

from __future__ import annotations

import math
import operator
import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from puma.settings.base import Count, NonNegative, Positive, Strict
from puma.settings.names import OWN_CODE


def _yaml_value(value: Any) -> Any:
    """Text, number, truth value, null, or a list or mapping of these."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("expected a finite number")
    if isinstance(value, list | tuple):
        return [_yaml_value(each) for each in value]
    if isinstance(value, dict):
        return {_keyword(key): _yaml_value(each) for key, each in value.items()}
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError("expected texts, numbers, truth values, null, and lists or mappings of these")


def _keyword(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError("expected names as keys")
    return key


def _by_class(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Classes that are whole numbers need no quotes; and one message, as in _pool_or_count."""
    if isinstance(value, dict):
        value = {str(key) if type(key) is int else key: each for key, each in value.items()}
    try:
        return check(value)
    except ValidationError:
        raise ValueError(
            "expected balanced, or a finite weight > 0 by the name of each class, such as "
            "{yes: 5, no: 1}; names such as true and 1.5 stand in quotes"
        ) from None


def _own_name(name: str) -> str:
    if not re.fullmatch(r"[\w.]+:[\w.]+", name):
        raise ValueError('expected "package.module:function"')
    return name


YamlValue = Annotated[Any, BeforeValidator(_yaml_value)]
ByClass = Annotated[
    Literal["balanced"] | Annotated[dict[str, Positive], Field(min_length=1)],
    WrapValidator(_by_class),
]


class ModelSettings(Strict):
    """A name of :data:`puma.models.MODELS` or "package.module:Class", and the sizes.

    ``hidden`` is read by mlp; ``blocks``, ``growth`` and ``bottleneck`` by densenet; ``kwargs`` by
    a class of the user's own, see :mod:`puma.models.custom`.
    """

    name: str = "mlp"
    hidden: tuple[Count, ...] = (64, 32)
    blocks: Annotated[tuple[Count, ...], Field(min_length=1)] = (2, 2, 2, 2)
    growth: Count = 12
    bottleneck: Count = 4
    # Of an ensemble of such models, as SISA makes one; None is a single model.
    members: Count | None = None
    vote: Literal["mean", "majority"] = "mean"
    # Not written where it is empty: the identities of versions that have none stay as they are.
    kwargs: dict[str, YamlValue] = Field(default={}, exclude_if=operator.not_)

    @model_validator(mode="after")
    def _has_kwargs_of_its_own_alone(self) -> ModelSettings:
        if self.kwargs and OWN_CODE not in self.name:
            raise ValueError(
                f"kwargs ({', '.join(self.kwargs)}) are for a class of your own, and the model "
                f"{self.name!r} has its own settings; leave kwargs out, or name your own as "
                '"package.module:Class"'
            )
        return self


class TrainingSettings(Strict):
    """How models are trained: Adam, the mean loss of the dataset's task.

    ``learning_rate_schedule`` one_cycle rises from learning_rate/25 to ``learning_rate`` in the
    first 30 % of the steps, then falls to next to nothing (Smith and Topin, 2019). It suits image
    models that get only a few epochs. ``class_weights``: what a row's loss counts by the name of
    its class, or balanced, so that all classes count alike; see
    :func:`puma.models.tasks.weighted`. ``loop`` is "package.module:function", which trains in place
    of all this: see :mod:`puma.models.own_loop`.
    """

    epochs: Count = 50
    learning_rate: Positive = 1e-3
    learning_rate_schedule: Literal["constant", "one_cycle"] = "constant"
    batch_size: Count = 32
    weight_decay: NonNegative = 0.0
    class_weights: ByClass | None = Field(default=None, exclude_if=operator.not_)
    loop: Annotated[str, AfterValidator(_own_name)] | None = Field(
        default=None, exclude_if=operator.not_
    )

    def recorded(self) -> dict[str, str | int | float]:
        """The settings as YAML scalars; what is off by default is there only where it is on."""
        own: dict[str, str | int | float] = self.model_dump(exclude={"class_weights"})
        if isinstance(self.class_weights, dict):
            weights = sorted(self.class_weights.items())
            own["class_weights"] = ", ".join(f"{name}: {weight}" for name, weight in weights)
        elif self.class_weights is not None:
            own["class_weights"] = self.class_weights
        return own


class EngineSettings(Strict):
    """Where models are trained that cannot be trained in lockstep.

    local: processes of this machine. dask, ray: by joblib on a cluster, whose workers have PUMA and
    the own code. address: of its scheduler, such as
    ``tcp://10.0.0.1:8786``; for Ray, null is the cluster that this machine belongs to.
    """

    backend: Literal["local", "dask", "ray"] = "local"
    address: str | None = None

    @model_validator(mode="after")
    def _has_an_address_where_one_is_used(self) -> EngineSettings:
        if self.backend == "dask" and self.address is None:
            raise ValueError(
                "engine.address is null, and dask needs that of its scheduler, such as "
                "tcp://10.0.0.1:8786"
            )
        if self.backend == "local" and self.address is not None:
            raise ValueError(
                f"engine.address is {self.address!r}, but local is this machine; set "
                "engine.backend to dask or ray, or the address to null"
            )
        return self
