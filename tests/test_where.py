"""Expressions over columns, against pandas' own query."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from puma.where import LONGEST, Cells, Where, WhereError

DAYS = pd.to_datetime(
    ["2025-01-31", "2026-02-01", None, "2026-02-01", "2024-12-31", "2025-06-30"]
).to_series(index=range(6))
TABLE = pd.DataFrame(
    {
        "age": [17.0, 60.0, np.nan, 75.5, -3.0, 60.0],
        "region": ["north", "south", None, "it's", "north", "west"],
        "smoker": [True, False, True, True, False, False],
        "signed": DAYS,
        "last visit": [1, 2, 3, 4, 5, 6],
    }
)
COLUMNS = {
    "age": Cells("numbers", TABLE["age"].to_numpy()),
    "region": Cells("texts", TABLE["region"].astype(object).where(TABLE["region"].notna(), None)),
    "smoker": Cells("truth values", TABLE["smoker"].to_numpy(float)),
    "signed": Cells("dates", ((DAYS - pd.Timestamp(0)) / pd.Timedelta(days=1)).to_numpy(float)),
    "last visit": Cells("numbers", TABLE["last visit"].to_numpy(float)),
}


@pytest.mark.parametrize(
    "text",
    [
        "age >= 60",
        "60 <= age",
        "age == -3 or age > 7e1",
        "age != 60",
        "not age >= 60",
        "18 <= age < 70",
        "region == 'north'",
        'region != "north"',
        'region == "it\'s"',
        "region in ['north', 'west']",
        "region not in ('north', 'west')",
        "age in [17, 60]",
        "age not in [60]",
        "smoker == True",
        "smoker",
        "not smoker and age > 0",
        "smoker or age > 0 and not (region == 'west' or region > 'o')",
        "signed < '2026-02-01'",
        "signed <= '2026-02-01' and signed >= '2026-02-01'",
        "`last visit` > 3 and age > 0",
    ],
)
def test_the_rows_are_those_of_pandas(text: str) -> None:
    # python: pandas's own way to compare; numexpr knows no texts.
    expected = TABLE.index.isin(TABLE.query(text, engine="python").index)
    assert Where(text).rows(COLUMNS).tolist() == expected.tolist()
    assert 0 < expected.sum() < len(TABLE)  # it picks some and not all


@pytest.mark.parametrize("text", ["`a b` > 0 and _quoted_0_ > 0", "_quoted_0_ > 0 or `a b` < 0"])
def test_a_column_may_be_called_as_quoted_names_are_inside(text: str) -> None:
    table = pd.DataFrame({"a b": [1.0, 1, -1, 0], "_quoted_0_": [1.0, -1, 1, 0]})
    columns = {str(name): Cells("numbers", table[name].to_numpy()) for name in table}
    expected = table.eval(text)
    assert Where(text).columns == ("_quoted_0_", "a b")
    assert Where(text).rows(columns).tolist() == expected.tolist()


def test_a_text_keeps_what_stands_in_it() -> None:
    cells = Cells("texts", np.asarray(["it's `b` y", "other"], dtype=object))
    assert Where("a == 'it\\'s `b` y'").rows({"a": cells}).tolist() == [True, False]


def test_a_date_is_equal_to_its_text() -> None:
    equal = (TABLE["signed"] == pd.Timestamp("2026-02-01")).tolist()  # query compares with no text
    assert Where("signed == '2026-02-01'").rows(COLUMNS).tolist() == equal
    assert Where("signed != '2026-02-01'").rows(COLUMNS).tolist() == [not each for each in equal]
    assert sum(equal) == 2


def test_the_columns_are_those_that_are_named() -> None:
    assert Where("b > 1 and a in [2] or not `c d` == 'b e'").columns == ("a", "b", "c d")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "age >=",
        "age > 60; import os",
        "__import__('os').system('true')",
        "age.real > 1",
        "age[0] > 1",
        "age + 1 > 60",
        "(lambda: age)() > 1",
        "[age for age in 'ab'] == 'a'",
        "age > f'{age}'",
        "age is 3",
        "60",
        "age := 3",
        "age in region",
        "age in [region]",
        "age > -'a'",
        "age == None",
        "age == b'a'",
        "age == 1j",
        "age > --3",
        "(" * 900 + "age" + ")" * 90,
    ],
)
def test_what_is_no_condition_is_refused_before_any_row_is_looked_at(text: str) -> None:
    with pytest.raises(WhereError, match="cannot be read"):
        Where(text)


def test_long_expressions_are_refused() -> None:
    text = " or ".join(["age > 1"] * (LONGEST // 8))
    with pytest.raises(WhereError, match=f"characters, of {LONGEST} at most"):
        Where(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agee > 60", r"names 'agee', which is no column to group by; these are: 'age', 'region',"),
        ("region == north", "compares two columns or two values"),
        ("1 < 2", "compares two columns or two values"),
        (
            "age == '60'",
            "'age' holds numbers, and is compared with a value of texts; compare it wi",
        ),
        ("age == True", "'age' holds numbers, and is compared with a value of truth values"),
        ("age", "'age' holds numbers, and is compared with a value of truth values"),
        ("region > 3", "'region' holds texts, .* numbers; compare it with a text in quotes"),
        ("smoker == 1", "'smoker' holds truth values, .* numbers; write smoker, or not smoker"),
        ("signed > 3", "'signed' holds dates, .* such as '2026-01-31'"),
        ("signed > 'May'", "'May' is no date; write it as 2026-01-31"),
        ("signed > 'NaT'", "'NaT' is no date; write it as 2026-01-31"),
    ],
)
def test_what_does_not_suit_the_table_is_refused(text: str, message: str) -> None:
    with pytest.raises(WhereError, match=message):
        Where(text).rows(COLUMNS)
