"""params.yaml as frozen, validated models. Unknown keys are refused: a typo is an error."""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from puma.errors import SettingsError
from puma.where import Where, WhereError
from puma.yaml_file import cut, parse_yaml, read_text, shown


def _not_a_flag(value: Any) -> Any:
    """``true`` would pass for the number 1."""
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


def _pool_or_count(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """One message where each side of the union would give its own."""
    try:
        return check(value)
    except ValidationError:
        raise ValueError("expected pool, or a number of models from 0 on") from None


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


def _two_partitions_a_half(models: int) -> int:
    """Each half of a pool, of four models a partition, needs two partitions to compare."""
    if models == 8:
        raise ValueError("a pool has at least 16 models, or 0 for no pool")
    return models


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


def _own_name(name: str) -> str:
    if not re.fullmatch(r"[\w.]+:[\w.]+", name):
        raise ValueError('expected "package.module:function"')
    return name


Number = BeforeValidator(_not_a_flag)
Positive = Annotated[float, Number, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Number, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Number, Field(gt=0, lt=1)]
PROBLEMS = 10  # of params.yaml in one message
INT64 = Field(lt=2**63)  # no larger number fits into a tensor
Count = Annotated[int, Number, Field(ge=1), INT64]
Seed = Annotated[int, Number, Field(ge=0, lt=2**32)]
DeviceName = Annotated[str, AfterValidator(_known_device)]
ByClass = Annotated[
    Literal["balanced"] | Annotated[dict[str, Positive], Field(min_length=1)],
    WrapValidator(_by_class),
]
PoolOrCount = Annotated[
    Literal["pool"] | Annotated[int, Number, Field(ge=0), INT64], WrapValidator(_pool_or_count)
]

ORIGINAL = "original"  # trained plainly; what most methods remove from, and what serves
# Those of puma.data.DATASETS, for what should not wait until PyTorch is imported.
BUILT_IN_DATASETS = (
    "breast_cancer",
    "diabetes",
    "digits",
    "german_credit",
    "mnist",
    "radial",
    "rectangular",
    "spiral",
    "two_moons",
)
VerdictName = Literal[
    "passed",
    "indistinguishable",
    "forgetting_incomplete",
    "over_forgotten",
    "utility_lost",
    "inconclusive",
]
EvidenceSource = Literal["pool", "retrain"]
RECORDING = ("amnesiac", "sisa")  # these act during training: each needs a model of its own
OWN_ORIGINALS = {method: f"{method}_original" for method in RECORDING}


def is_original(version: str) -> bool:
    """Whether ``version`` names a model that has seen everybody, not a removal."""
    return version in {ORIGINAL, *OWN_ORIGINALS.values()}


def original_of(version: str) -> str:
    """The name of the version that the method ``version`` removes from; an original's own name."""
    return version if is_original(version) else OWN_ORIGINALS.get(version, ORIGINAL)


class Strict(BaseModel):
    """A settings group: immutable, strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DataSettings(Strict):
    """The splits, and where MNIST is.

    ``validation_fraction`` of the people who are not for testing are held out for the criteria
    of ``puma.preserve``; 0 is none. ``folder`` and ``download``: see :func:`puma.data.mnist`; no
    other source reads them.
    """

    test_fraction: Fraction = 0.25
    validation_fraction: Annotated[float, Number, Field(ge=0, lt=1)] = 0.0
    folder: Annotated[str, Field(min_length=1)] | None = None
    download: bool = False


Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, AfterValidator(_named_plainly)]
ColumnType = Literal["numeric", "categorical", "boolean", "date"]
TaskName = Literal["classification", "binary", "regression"]


class SourceSettings(Strict):
    """Data of the user's own: a table in a file, or what a function returns.

    See docs/your-data.md. A path is seen from the folder of params.yaml.

    Attributes:
        path: Of the CSV or Parquet file; or the file or folder that ``source`` is called with.
        source: "package.module:function"; see :mod:`puma.data.own_function`.
        target: The column with the class; of a regression, with the number.
        subject: The column with the id of the row's owner; None: every row is its own.
        split: The column that says train or test; None: a seeded split by person.
        task: What is learnt: classes, one output each; binary, two classes by one logit; or
            regression, a number. See docs/your-data.md.
        drop: Columns that are not read.
        types: Of columns, where what is inferred is wrong.
        missing: impute fills numbers with the training median, with a feature that says where,
            and makes missing categories a category; refuse refuses them; drop_rows leaves out
            their rows.
        missing_values: Texts that stand for a missing value, beside the empty one.
        decimal: The sign between the digits of a CSV file's numbers.
    """

    path: Text | None = None
    source: Text | None = None
    target: Text | None = None
    subject: Text | None = None
    split: Text | None = None
    task: TaskName = "classification"
    drop: tuple[Text, ...] = ()
    types: dict[Text, ColumnType] = {}
    missing: Literal["impute", "refuse", "drop_rows"] = "impute"
    missing_values: tuple[Text, ...] = ()
    decimal: Literal[".", ","] = "."

    @model_validator(mode="after")
    def _is_a_table_or_a_function(self) -> SourceSettings:
        if self.source is None:
            if self.path is None or self.target is None:
                raise ValueError(
                    "a table needs path and target; other data need source, a "
                    '"package.module:function"'
                )
            return self
        others = self.model_fields_set - {"path", "source", "task"}
        of_tables = sorted(name for name in others if getattr(self, name))
        if of_tables:
            raise ValueError(
                f"{', '.join(of_tables)}: of a table only; the function {self.source!r} returns "
                "rows that need none of it, so leave them out"
            )
        return self

    @model_validator(mode="after")
    def _columns_have_one_use(self) -> SourceSettings:
        uses = [self.target, self.subject, self.split, *self.drop, *self.types]
        named = [name for name in uses if name is not None]
        repeated = sorted({name for name in named if named.count(name) > 1})
        if repeated:
            raise ValueError(
                f"{', '.join(map(repr, repeated))}: a column is named once, as target, subject or "
                "split, or in drop or types"
            )
        return self


class MarkingSettings(Strict):
    """The demonstration's deletion request: see :data:`puma.requests.demonstration.MARKINGS`."""

    name: Literal["cluster", "random", "ordered"] = "cluster"
    clusters: Count = 8
    fraction: Fraction = 0.2


class DeletionSettings(Strict):
    """``allow_class_removal``: whether a request may take every training row of a class."""

    allow_class_removal: bool = False


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


YamlValue = Annotated[Any, BeforeValidator(_yaml_value)]
OWN_CODE = ":"  # "package.module:name" has it, and no name of ours


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


RETAINED_LOSS = "retained_loss"


def _condition(text: str) -> str:
    try:
        Where(text)
    except WhereError as error:
        raise ValueError(str(error)) from error
    return text


class PreservedCriterion(Strict):
    """A criterion that a removal keeps, and how far it may move.

    Attributes:
        criterion: retained_loss, validation_loss, soft_ece, group_loss, or
            "package.module:function", a differentiable function of (n, outputs) logits and (n,)
            labels. See :data:`puma.influence.CRITERIA`.
        budget: Largest allowed change, of either sign; in the criterion's unit, a loss in nats.
        where: A condition on the columns of the source table, which picks the rows of a group.
        over: Measured on the retained training rows, or on the validation rows; None: as the
            criterion is by itself.
        name: What metrics and messages call it; None: as the criterion, a function without its
            module.
    """

    criterion: Text
    budget: Positive
    where: Annotated[Text, AfterValidator(_condition)] | None = None
    over: Literal["retained", "validation"] | None = None
    name: Annotated[str, Field(pattern=r"^[a-z]\w*$", max_length=40)] | None = None

    @model_validator(mode="after")
    def _is_of_rows_that_suit_it(self) -> PreservedCriterion:
        if self.criterion == "group_loss" and self.where is None:
            raise ValueError('group_loss needs where, such as "age >= 60"')
        if self.criterion == RETAINED_LOSS and (self.where, self.over) != (None, None):
            raise ValueError(
                "retained_loss is of all retained rows: for a group write group_loss, for "
                "validation rows validation_loss"
            )
        if self.criterion == "validation_loss" and self.over == "retained":
            raise ValueError("validation_loss is over validation rows; leave `over` out")
        return self

    @property
    def title(self) -> str:
        """Its name, also where none is stated."""
        return self.name or re.split(r"[:.]", self.criterion)[-1].lower()

    @property
    def of_validation(self) -> bool:
        """Whether it is measured on the validation rows."""
        return self.over == "validation" or self.criterion == "validation_loss"


class PumaSettings(Strict):
    """PUMA's knobs; see :class:`puma.PUMA` for what each one does."""

    damping: Positive = 0.1
    budget: Positive = 0.01
    # Not written where it is empty: the identities of versions that have none stay as they are.
    preserve: tuple[PreservedCriterion, ...] = Field(default=(), exclude_if=operator.not_)
    max_dose: Positive = 1000.0
    steps: Count = 8
    repair: bool = True
    reweighting: Literal["always", "never"] = "always"
    reference_models: PoolOrCount = "pool"
    reference_fraction: Annotated[float, Number, Field(gt=0, le=1)] = 1.0
    reference_epochs: Annotated[float, Number, Field(gt=0, le=1)] = 0.5
    level_aim: Positive = 0.2
    level_tolerance: Positive = 0.5
    l1: NonNegative = 0.0
    l2: NonNegative = 1e-6
    max_weight: Positive = 1.0
    solver: str = "dual"
    tolerance: Positive = 0.003
    max_iterations: Count = 1000
    rows: Count = 1024
    curvature_sample: Count | None = None
    criterion_sample: Count | None = None
    # Not written where it is 0, for the same reason.
    negligible: Annotated[float, Number, Field(ge=0, lt=1)] = Field(
        default=0.0, exclude_if=operator.not_
    )

    @model_validator(mode="after")
    def _preserves_each_once(self) -> PumaSettings:
        titles = [each.title for each in self.promises]
        repeated = sorted({title for title in titles if titles.count(title) > 1})
        if repeated:
            raise ValueError(
                f"preserve has several entries called {', '.join(repeated)}; give each a `name` of "
                "its own"
            )
        stated = self.promises[0].budget
        if stated != self.budget:
            raise ValueError(
                f"budget is {self.budget:g}, and preserve gives retained_loss {stated:g}: both say "
                "how far the retained rows' mean loss may move; state one number, in both or in "
                "budget alone"
            )
        return self

    @property
    def promises(self) -> tuple[PreservedCriterion, ...]:
        """What a removal keeps: the retained rows' mean loss, and the others of ``preserve``."""
        first = [each for each in self.preserve if each.criterion == RETAINED_LOSS]
        others = [each for each in self.preserve if each.criterion != RETAINED_LOSS]
        plain = PreservedCriterion(criterion=RETAINED_LOSS, budget=self.budget)
        return (*(first or [plain]), *others)

    @property
    def groups(self) -> tuple[str, ...]:
        """The conditions that pick the groups of ``preserve``, each once."""
        return tuple(dict.fromkeys(each.where for each in self.preserve if each.where is not None))


class PumaPaperSettings(Strict):
    """The knobs of Algorithm 1 as printed; see :class:`puma.removal.PaperPUMA`."""

    eta: Positive = 0.05  # the paper recommends 0.01 to 0.1
    damping: Positive = 0.1
    curvature: Literal["hessian", "gauss_newton"] = "hessian"
    steps: Count = 200
    batch_size: Count = 32
    tolerance: Annotated[float, Number, Field(gt=0, lt=1)] = 0.5
    up_sample: Count = 200
    reweighter: str = "slsqp"
    l1: NonNegative = 0.0
    l2: NonNegative = 1e-6
    max_weight: Positive = 1.0


class RetrainSettings(Strict):
    """``schedule``: see :class:`puma.Retrain`."""

    schedule: Literal["equal_epochs", "equal_steps"] = "equal_epochs"


class SisaSettings(Strict):
    """SISA's knobs; see :class:`puma.SISA` for what each one does."""

    shards: Count = 5
    slices: Count = 5
    assignment: Literal["random", "ordered"] = "random"
    vote: Literal["mean", "majority"] = "mean"


class AmnesiacSettings(Strict):
    """Amnesiac ML's knobs; see :class:`puma.Amnesiac` for what each one does."""

    repair_epochs: Annotated[int, Number, Field(ge=0), INT64] = 5
    max_bytes: Count = 10**9


class ShadowSettings(Strict):
    """The paper's attack (Appendix A, Membership Attack Setup)."""

    models: Count = 5
    fraction: Annotated[float, Number, Field(gt=0, lt=0.5)] = 0.09
    epochs: Count = 50
    features: Literal["softmax", "softmax_label", "sorted"] = "softmax_label"
    attack_hidden: tuple[Count, ...] = (128, 64)
    attack_epochs: Count = 50


class PoolSettings(Strict):
    """What is trained once and serves every request; see :class:`puma.references.Pool`.

    models: each without a quarter of the people; 0 = there is no pool. everybody: so many with
    them all.
    """

    models: Annotated[
        int, Number, Field(ge=0, multiple_of=8), INT64, AfterValidator(_two_partitions_a_half)
    ] = 32
    everybody: Annotated[int, Number, Field(ge=3), INT64] = 16


class AuditSettings(Strict):
    """What an audit is made with, and where its verdict draws the lines.

    evidence: "pool" predicts the models without the removed rows from the pool; "retrain" trains
    them for every request. models: so many are trained with the removed rows, and so many
    without. shadow_models:
    LiRA's, on random halves of all rows. confidence: of every interval.
    max_influence: largest :class:`puma.audit.RemainingInfluence` that passes, on either side of
    0. max_surer: the same for the distance of ``surer_than_retrained`` from one half.
    max_gap: largest :class:`puma.audit.GapToRetraining` ratio.
    max_accuracy_loss, max_balanced_accuracy_loss: largest falls of the test accuracies below the
    lower of the parent's and the retrained models'.
    Every limit gives way to what retrained models show of each other by chance, if that is more.
    jobs: processes that train models; null = one for each core.
    """

    evidence: EvidenceSource = "pool"
    models: Annotated[int, Number, Field(ge=3), INT64] = 8
    shadow_models: Annotated[int, Number, Field(ge=4), INT64] = 32
    confidence: Fraction = 0.95
    max_influence: Positive = 0.25
    max_surer: Annotated[float, Number, Field(gt=0, le=0.5)] = 0.3
    max_gap: Annotated[float, Number, Field(gt=1, allow_inf_nan=False)] = 2.0
    max_accuracy_loss: Fraction = 0.03
    max_balanced_accuracy_loss: Fraction = 0.05
    jobs: Count | None = None


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


class PromotionSettings(Strict):
    """``accept``: the verdicts with which ``puma promote`` lets a version serve.

    A verdict other than ``passed`` does not show that the rows are forgotten: with
    ``indistinguishable`` the version has to show it in another way, see
    :func:`puma.registry.promotion_rules.check_conditions`.
    """

    accept: tuple[VerdictName, ...] = ("passed", "indistinguishable")

    @model_validator(mode="after")
    def _accepts_what_passed(self) -> PromotionSettings:
        if "passed" not in self.accept:
            raise ValueError("promotion.accept must name passed: nothing is shown better")
        return self


class RetrainAfter(Strict):
    """When removals made from removals have gone far enough since the last full training.

    drift: nats, the sum of their criterion drifts, of either sign. count: how many.
    """

    drift: Positive = 0.02
    count: Count = 10


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


def problems_of(error: ValidationError) -> str:
    """The wrong keys, at most ten, what is wrong with each, and the value found."""
    problems = [
        f"{cut('.'.join(map(str, item['loc'])))}: {_said(item)} (got {shown(item['input'])})"
        if item["loc"]
        else _said(item)  # of the whole file, which need not be repeated
        for item in error.errors()
    ]
    more = [f"and {len(problems) - PROBLEMS} more"] if len(problems) > PROBLEMS else []
    return "; ".join(problems[:PROBLEMS] + more)


def _said(item: Any) -> str:
    """What is wrong, without the framework's word for an error of ours."""
    return str(item["msg"]).removeprefix("Value error, ")
