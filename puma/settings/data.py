"""The rows: how they are split, where the user's own come from, and which are to be deleted."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from puma.settings.base import Count, Fraction, Number, Strict, Text
from puma.settings.names import ColumnType, TaskName


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
