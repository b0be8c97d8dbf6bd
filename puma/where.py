"""Expressions that pick rows of a table, such as "age >= 60 and region in ['north', 'east']".

They are read, never run: the names in them are columns, and there is nothing else to call.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Kind = Literal["numbers", "texts", "truth values", "dates"]
LONGEST = 1000  # characters; the parser recurses
# A text, or a column whose name is no Python name.
_QUOTED = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|`([^`]+)`")
NOT_A_TIME = -(2**63)  # what numpy makes of no time
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.Eq,
    ast.NotEq: ast.NotEq,
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
}
_FORM = (
    "compare columns with numbers or texts by ==, !=, <, <=, >, >=, in and not in, and join such "
    "comparisons by and, or, not and brackets; a column whose name has spaces stands in `backticks`"
)


class WhereError(ValueError):
    """An expression that cannot be read, or does not suit the table."""


@dataclass(frozen=True, eq=False)
class Cells:
    """A column, as expressions see it.

    Attributes:
        kind: What its cells are.
        values: (n,) float64 with NaN where a cell is missing: numbers, 1 and 0, or days since
            1970. Of texts, objects: str, and None where a cell is missing.
    """

    kind: Kind
    values: np.ndarray


@dataclass(frozen=True)
class Where:
    """A condition on the rows of a table.

    A missing cell equals nothing and is in no order, as in ``pandas.DataFrame.query``: its row is
    picked by !=, not in and not alone.

    Attributes:
        text: The expression.

    Raises:
        WhereError: It cannot be read.
    """

    text: str
    _tree: ast.expr = field(init=False, repr=False, compare=False)
    _quoted: Mapping[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.text) > LONGEST:
            raise WhereError(
                f"the expression has {len(self.text)} characters, of {LONGEST} at most"
            )
        names: dict[str, str] = {}
        prefix = "_quoted_"
        while prefix in self.text:  # a column may be called so
            prefix += "_"

        def placed(found: re.Match[str]) -> str:
            column = found[1]
            if column is None:
                return found[0]
            names[f"{prefix}{len(names)}_"] = column
            return list(names)[-1]

        try:
            tree = ast.parse(_QUOTED.sub(placed, self.text).strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise WhereError(f"{self.text!r} cannot be read; {_FORM}") from None
        object.__setattr__(self, "_tree", tree)
        object.__setattr__(self, "_quoted", names)
        self._check(tree)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it names, each once, sorted."""
        named = (each.id for each in ast.walk(self._tree) if isinstance(each, ast.Name))
        return tuple(sorted({self._quoted.get(name, name) for name in named}))

    def rows(self, columns: Mapping[str, Cells]) -> np.ndarray:
        """(n,) which rows of a table with these ``columns`` it picks.

        Raises:
            WhereError: There is no such column, or it is compared with what its cells are not.
                The message lists the columns.
        """
        for name in self.columns:
            if name not in columns:
                listed = ", ".join(map(repr, columns)) if columns else "none"
                raise WhereError(
                    f"{self.text!r} names {name!r}, which is no column to group by; these are: "
                    f"{listed}. A text stands in quotes"
                )
        picked: np.ndarray = self._condition(self._tree, columns)
        return picked

    def _check(self, tree: ast.expr) -> None:
        """Raise WhereError unless ``tree`` is a condition of the known form."""
        if isinstance(tree, ast.BoolOp):
            for part in tree.values:
                self._check(part)
        elif isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
            self._check(tree.operand)
        elif isinstance(tree, ast.Compare):
            sides = [tree.left, *tree.comparators]
            for left, comparison, right in zip(sides, tree.ops, sides[1:], strict=False):
                self._check_comparison(left, comparison, right)
        elif not isinstance(tree, ast.Name):
            raise self._unreadable(tree)

    def _check_comparison(self, left: ast.expr, comparison: ast.cmpop, right: ast.expr) -> None:
        if isinstance(comparison, ast.In | ast.NotIn):
            if not (
                isinstance(left, ast.Name) and isinstance(right, ast.List | ast.Tuple | ast.Set)
            ):
                raise self._unreadable(left)
            for each in right.elts:
                self._constant(each)
            return
        if type(comparison) not in _COMPARISONS:
            raise self._unreadable(left)
        sides = [each for each in (left, right) if not isinstance(each, ast.Name)]
        for each in sides:
            self._constant(each)
        if len(sides) != 1:
            raise WhereError(
                f"{self.text!r} compares two columns or two values with each other; compare a "
                "column with a value"
            )

    def _constant(self, tree: ast.expr) -> float | str | bool:
        negative = isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub)
        inner = tree.operand if isinstance(tree, ast.UnaryOp) else tree
        value = inner.value if isinstance(inner, ast.Constant) else None
        if isinstance(value, bool | str) and inner is tree:
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            if negative:
                return -value
            if inner is tree:
                return value
        raise self._unreadable(tree)

    def _unreadable(self, tree: ast.expr) -> WhereError:
        place = f"character {tree.col_offset + 1}" if not self._quoted else "one of its parts"
        return WhereError(f"{self.text!r} cannot be read at {place}; {_FORM}")

    def _condition(self, tree: ast.expr, columns: Mapping[str, Cells]) -> np.ndarray:
        if isinstance(tree, ast.BoolOp):
            join = np.logical_and if isinstance(tree.op, ast.And) else np.logical_or
            found: np.ndarray = join.reduce(
                [self._condition(part, columns) for part in tree.values]
            )
            return found
        if isinstance(tree, ast.UnaryOp):
            return ~self._condition(tree.operand, columns)
        if isinstance(tree, ast.Name):
            return self._compared(tree, ast.Eq, True, columns)
        assert isinstance(tree, ast.Compare)
        sides = [tree.left, *tree.comparators]
        parts = []
        for left, comparison, right in zip(sides, tree.ops, sides[1:], strict=False):
            if isinstance(comparison, ast.In | ast.NotIn):
                assert isinstance(right, ast.List | ast.Tuple | ast.Set)
                values = [self._constant(each) for each in right.elts]
                each = [self._compared(left, ast.Eq, value, columns) for value in values]
                none = np.zeros(len(self._cells(left, columns).values), dtype=bool)
                found = np.logical_or.reduce([none, *each])
                parts.append(found if isinstance(comparison, ast.In) else ~found)
            elif isinstance(left, ast.Name):
                parts.append(self._compared(left, type(comparison), self._constant(right), columns))
            else:
                mirrored = _MIRRORED[type(comparison)]
                parts.append(self._compared(right, mirrored, self._constant(left), columns))
        joined: np.ndarray = np.logical_and.reduce(parts)
        return joined

    def _cells(self, tree: ast.expr, columns: Mapping[str, Cells]) -> Cells:
        assert isinstance(tree, ast.Name)
        return columns[self._quoted.get(tree.id, tree.id)]

    def _compared(
        self,
        tree: ast.expr,
        comparison: type[ast.cmpop],
        value: float | str | bool,
        columns: Mapping[str, Cells],
    ) -> np.ndarray:
        """(n,) the column compared with ``value``, which must be what its cells are."""
        assert isinstance(tree, ast.Name)
        cells = self._cells(tree, columns)
        given: Kind = "numbers"
        if isinstance(value, bool):
            given = "truth values"
        elif isinstance(value, str):
            given = "texts"
        compare = _COMPARISONS[comparison]
        if cells.kind == "dates" and given == "texts":
            with np.errstate(invalid="ignore"):
                return np.asarray(compare(cells.values, self._days(str(value))), dtype=bool)
        if cells.kind != given:
            name = self._quoted.get(tree.id, tree.id)
            remedy = {
                "numbers": "compare it with a number",
                "texts": "compare it with a text in quotes",
                "truth values": f"write {name}, or not {name}",
                "dates": "compare it with a date in quotes, such as '2026-01-31'",
            }[cells.kind]
            raise WhereError(
                f"{self.text!r}: the column {name!r} holds {cells.kind}, and is compared with a "
                f"value of {given}; {remedy}"
            )
        if given != "texts":
            with np.errstate(invalid="ignore"):
                return np.asarray(compare(cells.values, float(value)), dtype=bool)
        missing = np.asarray([each is None for each in cells.values], dtype=bool)
        texts = np.asarray(["" if each is None else each for each in cells.values], dtype=object)
        found = np.asarray(compare(texts, value), dtype=bool)
        picked: np.ndarray = found | missing if comparison is ast.NotEq else found & ~missing
        return picked

    def _days(self, text: str) -> float:
        try:
            since = int(np.datetime64(text.removesuffix("Z"), "ms").astype(np.int64))
        except ValueError:
            since = NOT_A_TIME
        if since == NOT_A_TIME:
            raise WhereError(
                f"{self.text!r}: {text!r} is no date; write it as 2026-01-31"
            ) from None
        return float(since) / 86_400_000
