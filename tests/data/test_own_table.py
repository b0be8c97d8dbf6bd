"""Tables of one's own: every reading, every feature by hand, every refusal without a cell."""

from __future__ import annotations

import datetime
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from puma.data import Dataset, load_dataset
from puma.errors import ColumnError, DataError
from puma.settings import SourceSettings

N = 60
OWNERS = [f"{row % 25:04d}" for row in range(N)]  # persons of two and three rows


def rows() -> pd.DataFrame:
    draw = np.random.default_rng(5)
    start = datetime.date(2024, 2, 27)
    return pd.DataFrame(
        {
            "owner": OWNERS,
            "age": draw.integers(18, 90, N),
            "city": draw.choice(["Köln", "Bonn, Rhein", 'the "other"\nside'], N),
            "since": [(start + datetime.timedelta(days=7 * row)).isoformat() for row in range(N)],
            "active": draw.choice(["true", "false"], N),
            "income": draw.normal(size=N).round(3),
            "left": draw.choice(["yes", "no"], N),
        }
    )


def source(**changed: Any) -> SourceSettings:
    return SourceSettings(**{"path": "table.csv", "target": "left", "subject": "owner", **changed})


def load(tmp_path: Path, table: pd.DataFrame | str | bytes, **changed: Any) -> Dataset:
    settings = source(**changed)
    content = table.to_csv(index=False) if isinstance(table, pd.DataFrame) else table
    data = content if isinstance(content, bytes) else content.encode()
    assert settings.path is not None
    (tmp_path / settings.path).write_bytes(data)
    return load_dataset("own", source=settings, root=tmp_path)


def both(data: Dataset) -> pd.DataFrame:
    """All rows by owner and income, which together name a row."""
    return pd.DataFrame(
        np.concatenate([data.train.features.numpy(), data.test.features.numpy()]),
        index=[*data.train.subject_ids.tolist(), *data.test.subject_ids.tolist()],
    )


def test_every_feature_is_that_of_the_table_by_hand(tmp_path: Path) -> None:
    table = rows()
    table.loc[[3, 10, 44], "income"] = np.nan
    table.loc[[7, 20], "city"] = ""
    data = load(tmp_path, table)
    held = table["owner"].isin(data.test.subject_ids.tolist()).to_numpy()
    assert data.train.subject_ids.tolist() == table["owner"][~held].tolist()
    assert data.test.subject_ids.tolist() == table["owner"][held].tolist()
    days = pd.to_datetime(table["since"]).map(lambda day: day.toordinal())
    median = table["income"][~held].median()
    columns = [
        table["age"],
        days,
        table["active"] == "true",
        table["income"].fillna(median),
        table["income"].isna(),
    ]
    numbers = np.stack([column.to_numpy(dtype=float) for column in columns], axis=1)
    scaled = (numbers - numbers[~held].mean(0)) / numbers[~held].std(0)
    names = ["Bonn, Rhein", "Köln", 'the "other"\nside', ""]
    cities = np.stack([(table["city"] == name).to_numpy(dtype=float) for name in names], axis=1)
    expected = np.hstack([scaled, cities])
    np.testing.assert_allclose(data.train.features.numpy(), expected[~held], atol=1e-5)
    np.testing.assert_allclose(data.test.features.numpy(), expected[held], atol=1e-5)
    assert data.classes == ("no", "yes")
    for part, rows_of in ((data.train, ~held), (data.test, held)):
        given = [data.classes[label] for label in part.labels]
        assert given == table["left"][rows_of].tolist()


def test_the_columns_are_described(tmp_path: Path) -> None:
    table = rows()
    table.loc[[3, 10, 44], "income"] = np.nan
    columns = {each.column: each for each in load(tmp_path, table, drop=["age"]).columns}
    assert "age" not in columns
    assert (columns["owner"].type, columns["owner"].distinct) == ("subject", 25)
    assert (columns["left"].type, columns["left"].distinct) == ("target", 2)
    found = {name: (each.type, each.missing, each.distinct) for name, each in columns.items()}
    assert found["income"] == ("numeric", 3, table["income"].nunique())
    assert found["city"] == ("categorical", 0, 3)
    assert found["since"] == ("date", 0, N)
    assert found["active"] == ("boolean", 0, 2)
    assert "training median" in columns["income"].policy
    assert "missing" not in columns["city"].policy


def written(table: pd.DataFrame, **options: Any) -> str:
    return table.to_csv(index=False, **options)


WRITTEN: dict[str, tuple[str, Callable[[pd.DataFrame], bytes]]] = {
    "semicolons": ("table.csv", lambda table: written(table, sep=";").encode()),
    "tabs": ("table.tsv", lambda table: written(table, sep="\t").encode()),
    "bars": ("table.txt", lambda table: written(table, sep="|").encode()),
    "BOM": ("table.csv", lambda table: written(table).encode("utf-8-sig")),
    "CRLF": ("table.csv", lambda table: written(table, lineterminator="\r\n").encode()),
    "all quoted": ("table.csv", lambda table: written(table, quoting=2).encode()),
    "gzip": ("table.csv.gz", lambda table: gzip.compress(written(table).encode())),
    "blank lines": ("table.csv", lambda table: written(table).encode() + b"\n\n"),
}


@pytest.mark.parametrize("form", WRITTEN)
def test_one_table_in_every_form_is_one_dataset(tmp_path: Path, form: str) -> None:
    name, write = WRITTEN[form]
    plain = load(tmp_path, rows())
    other = load(tmp_path, write(rows()), path=name)
    torch.testing.assert_close(other.train.features, plain.train.features, rtol=0, atol=0)
    assert other.test.subject_ids.tolist() == plain.test.subject_ids.tolist()
    assert other.classes == plain.classes
    assert [each.type for each in other.columns] == [each.type for each in plain.columns]
    assert other.source != plain.source
    assert other.digest != plain.digest


def test_decimal_commas(tmp_path: Path) -> None:
    plain = load(tmp_path, rows())
    other = load(tmp_path, written(rows(), sep=";", decimal=","), decimal=",")
    torch.testing.assert_close(other.train.features, plain.train.features)


@pytest.mark.parametrize("types", ["plain", "dictionaries", "decimals and times"])
def test_parquet_is_read_by_its_own_types(tmp_path: Path, types: str) -> None:
    table = rows()
    plain = load(tmp_path, table)
    table["since"] = pd.to_datetime(table["since"])
    table["active"] = table["active"] == "true"
    arrow = pa.Table.from_pandas(table[table["age"] > 0])
    if types == "dictionaries":
        for name in ("owner", "city", "left"):
            place = arrow.column_names.index(name)
            arrow = arrow.set_column(place, name, arrow[name].dictionary_encode())
    elif types == "decimals and times":
        place = arrow.column_names.index("income")
        arrow = arrow.set_column(place, "income", arrow["income"].cast(pa.decimal128(20, 4)))
        place = arrow.column_names.index("since")
        zoned = arrow["since"].cast(pa.timestamp("ns")).cast(pa.timestamp("us", tz="UTC"))
        arrow = arrow.set_column(place, "since", zoned)
    parquet.write_table(arrow, tmp_path / "table.parquet", row_group_size=17)
    data = load_dataset("own", source=source(path="table.parquet"), root=tmp_path)
    torch.testing.assert_close(data.train.features, plain.train.features, rtol=1e-5, atol=1e-5)
    assert data.train.subject_ids.tolist() == plain.train.subject_ids.tolist()
    assert data.classes == plain.classes


def test_ids_are_texts_without_the_space_around_them(tmp_path: Path) -> None:
    table = rows()
    table["owner"] = [f"  {owner} " if row % 2 else owner for row, owner in enumerate(OWNERS)]
    data = load(tmp_path, table)
    assert {*data.rows.subject_ids.tolist()} == {*OWNERS}  # leading zeros are kept
    assert not {*data.train.subject_ids.tolist()} & {*data.test.subject_ids.tolist()}


def test_whole_numbers_of_parquet_are_ids(tmp_path: Path) -> None:
    table = rows().drop(columns="since").assign(owner=[int(owner) for owner in OWNERS])
    table.to_parquet(tmp_path / "table.parquet")
    data = load_dataset("own", source=source(path="table.parquet"), root=tmp_path)
    assert {*data.rows.subject_ids.tolist()} == {str(int(owner)) for owner in OWNERS}


def test_without_a_subject_every_row_is_its_own(tmp_path: Path) -> None:
    data = load(tmp_path, rows().drop(columns="owner"), subject=None)
    assert {*data.rows.subject_ids.tolist()} == {f"row-{number}" for number in range(1, N + 1)}
    assert len(data.test) == N // 4


def test_a_column_may_say_the_split(tmp_path: Path) -> None:
    table = rows().assign(part=["train", "Test ", "train"] * (N // 3))
    data = load(tmp_path, table, split="part")
    assert data.train.subject_ids.tolist() == table["owner"][table["part"] == "train"].tolist()
    assert data.train.features.shape[1] == load(tmp_path, rows()).train.features.shape[1]


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ({"age": "categorical"}, "categorical"),
        ({"active": "categorical"}, "categorical"),
        ({"since": "categorical"}, "categorical"),
        ({"flag": "boolean"}, "boolean"),
        ({"word": "boolean"}, "boolean"),
        ({"code": "numeric"}, "numeric"),
        ({"moment": "date"}, "date"),
    ],
)
def test_types_can_be_stated(tmp_path: Path, types: dict[str, Any], expected: str) -> None:
    table = rows().assign(
        flag=[row % 2 for row in range(N)],
        word=["Yes", "no", ""] * (N // 3),
        code=["?", *(str(row) for row in range(N - 1))],
        moment=["2024-01-31T12:00:00", "2024-02-01 00:00:00+00:00", ""] * (N // 3),
    )
    data = load(tmp_path, table, types={**types}, drop=[
        name for name in ("flag", "word", "code", "moment") if name not in types
    ], missing_values=["?"])  # fmt: skip
    (column,) = (each for each in data.columns if each.column in types)
    assert column.type == expected
    if expected == "date":
        # Half a day lies between the two moments; a third of the cells are missing.
        assert (column.missing, column.distinct) == (N // 3, 2)


def test_codes_that_are_stated_to_be_categories_keep_their_zeros(tmp_path: Path) -> None:
    table = rows().assign(zip=["01067", "1067", "50667"] * (N // 3))
    stated = load(tmp_path, table, types={"zip": "categorical"})
    inferred = load(tmp_path, table)
    of_zip = {
        data: next(c for c in data.columns if c.column == "zip") for data in (stated, inferred)
    }
    assert (of_zip[stated].type, of_zip[stated].distinct) == ("categorical", 3)
    assert (of_zip[inferred].type, of_zip[inferred].distinct) == ("numeric", 2)


def test_texts_that_spell_a_missing_value_are_texts_unless_stated(tmp_path: Path) -> None:
    table = rows().assign(country=["NA", "DE", "null"] * (N // 3))
    counts = {}
    for spelt in ([], ["null"]):
        data = load(tmp_path, table, missing_values=spelt)
        (column,) = (each for each in data.columns if each.column == "country")
        counts[len(spelt)] = (column.missing, column.distinct)
    assert counts == {0: (0, 3), 1: (N // 3, 2)}


def test_times_of_day_are_numbers_in_seconds(tmp_path: Path) -> None:
    plain = load(tmp_path, rows().assign(at=[3600 * (row % 24) for row in range(N)]))
    times = rows().assign(at=[f"{row % 24:02d}:00:00" for row in range(N)])
    for table in (times, times.assign(at=times["at"].str[:5])):
        data = load(tmp_path, table)
        assert data.columns[-1].type == "numeric"
        torch.testing.assert_close(data.train.features, plain.train.features)
    times["at"] = pd.to_timedelta(times["at"])
    times["since"] = pd.to_datetime(times["since"])
    times["active"] = times["active"] == "true"
    times.to_parquet(tmp_path / "table.parquet")
    data = load_dataset("own", source=source(path="table.parquet"), root=tmp_path)
    torch.testing.assert_close(data.train.features, plain.train.features)


def test_rare_categories_share_a_feature(tmp_path: Path) -> None:
    many = [f"c{row % 70:02d}" for row in range(4 * N)]
    table = pd.concat([rows()] * 4, ignore_index=True).assign(many=many)
    plain = load(tmp_path, table.drop(columns="many")).train.features.shape[1]
    data = load(tmp_path, table)
    assert data.train.features.shape[1] == plain + 50
    # One feature of a column is on in every row, and the rarest share the last.
    on = data.rows.features[:, -50:]
    assert on.sum(1).unique().tolist() == [1]
    assert int(on[:, -1].sum()) > int(on[:, :-1].sum(0).max())


def test_missing_cells_can_be_refused_or_their_rows_left_out(tmp_path: Path) -> None:
    table = rows()
    table.loc[[3, 10, 44], "income"] = np.nan
    with pytest.raises(DataError, match="column 'income' is missing in 3 of 60 rows, and missing"):
        load(tmp_path, table, missing="refuse")
    data = load(tmp_path, table, missing="drop_rows")
    assert len(data.rows) == N - 3
    (column,) = (each for each in data.columns if each.column == "income")
    assert column.policy.endswith("missing: the row is left out")
    assert load(tmp_path, rows(), missing="refuse").train.features.shape[1] == 7


def test_columns_that_are_empty_in_the_training_rows_are_zeros(tmp_path: Path) -> None:
    table = rows().assign(part=["train", "test"] * (N // 2))
    table.loc[table["part"] == "train", "income"] = np.nan
    data = load(tmp_path, table, split="part")
    assert torch.isfinite(data.test.features).all()


def test_content_that_is_not_learnt_from_is_in_the_digest(tmp_path: Path) -> None:
    table = rows().assign(note=[f"note {row}" for row in range(N)])
    first = load(tmp_path, table, drop=["note"])
    again = load(tmp_path, table, drop=["note"])
    table.loc[0, "note"] = "another"
    other = load(tmp_path, table, drop=["note"])
    torch.testing.assert_close(other.train.features, first.train.features, rtol=0, atol=0)
    assert first.digest == again.digest != other.digest
    first.save(tmp_path / "own.npz")
    stored = Dataset.load(tmp_path / "own.npz")
    assert (stored.source, stored.digest) == (first.source, first.digest)


# --- what is refused ---


def spoilt(column: str, cell: Any, row: int = 5) -> pd.DataFrame:
    table = rows().astype(object)
    table.loc[row, column] = cell
    return table


LATIN = written(rows()).encode("latin-1", "replace").replace(b"K?ln", b"K\xf6ln")
SECRET = "SECRET-0815"
REFUSED: dict[str, tuple[pd.DataFrame | str | bytes, dict[str, Any], str]] = {
    "a missing column": (
        rows(), {"target": "lefd"},
        r"table\.csv: no column 'lefd' \(nearest: 'left'\); the table has 7: 'owner', 'age', ",
    ),
    "a missing subject": (rows(), {"subject": "who"}, r"no column 'who'; the table has 7"),
    "a missing dropped column": (rows(), {"drop": ["note"]}, r"no column 'note'"),
    "a missing typed column": (rows(), {"types": {"note": "date"}}, r"no column 'note'"),
    "one class": (
        rows().assign(left=SECRET), {}, r"the target has one value in all 60 rows; a classifier",
    ),
    "a class of one person": (
        spoilt("left", SECRET), {}, r"1 of 3 classes have rows of one person alone",
    ),
    "an infinite value": (
        spoilt("income", "inf"), {}, r"column 'income' holds 1 infinite values; correct them",
    ),
    "minus infinity": (spoilt("income", "-Infinity"), {}, r"'income' holds 1 infinite values"),
    "a column twice": (
        written(rows()).replace("income", "age", 1), {},
        r"the columns 'age' are there more than once; rename or delete",
    ),
    "no header": (
        f"{SECRET},7,7,yes\n" * 9, {},
        r"none of the columns 'left', 'owner' is in the first line, which has 4 cells, 2 of",
    ),
    "no header, and a cell that is a column's name": (
        f"{SECRET},7,7,left\n" * 9, {},
        r"no column 'owner' is in the first line, which has 4 cells, 2 of them numbers; it must",
    ),
    "an empty file": ("", {}, r"table\.csv: the file is empty; its first line names the columns"),
    "blank lines alone": ("\n\n", {}, r"the file is empty"),
    "a header without a line end": ("owner,age,left", {}, r"the table has no rows below its hea"),
    "a header alone": ("owner,age,left\n", {}, r"the table has no rows below its header"),
    "as many classes as rows": (
        rows().assign(left=[f"{SECRET}{row}" for row in range(N)]), {},
        r"the target has 60 values in 60 rows, too many for classes",
    ),
    "a target with fractions": (
        rows().assign(left=[row / 7 for row in range(N)]), {},
        r"the target looks continuous: 60 different numbers in 60 rows, 5\d of them with",
    ),
    "a target of many numbers": (
        pd.concat([rows()] * 2).assign(left=[row % 60 for row in range(2 * N)]), {},
        r"the target looks continuous: 60 different numbers in 120 rows, 0 of them",
    ),
    "Latin-1": (LATIN, {}, r"table\.csv: not UTF-8 text; save the table as CSV in UTF-8"),
    "UTF-16": (written(rows()).encode("utf-16"), {}, r"not UTF-8 text"),
    "Latin-1 beyond the header": (
        b"owner,left,x\n" + b"a,yes,1\nb,no,2\n" * 60_000 + b"c,yes,\xf6\n", {}, r"not UTF-8 text",
    ),
    "a short row": (
        written(rows()) + f"{SECRET},3\n", {},
        r"row 6\d has 2 cells, but the header \(row 1\) names 7 columns; correct the row",
    ),
    "a long row": (written(rows()) + f"{SECRET},1,2,3,4,5,6,7\n", {}, r"row 6\d has 8 cells"),
    "a target without a value": (
        spoilt("left", ""), {}, r"the target 'left' is missing in 1 of 60 rows; fill it in",
    ),
    "a target as missing as stated": (
        spoilt("left", "unknown"), {"missing_values": ["unknown"]}, r"'left' is missing in 1 of",
    ),
    "an id without a value": (spoilt("owner", "  "), {}, r"the subject 'owner' is missing in 1 of"),
    "ids that look alike": (
        rows().assign(owner=["Jos\u00e9", "Jose\u0301", "x"] * (N // 3)), {},
        r"1 of the 3 subject ids look like another one",
    ),
    "an id of two lines": (spoilt("owner", f"{SECRET}\nb"), {}, r"1 with a control character"),
    "an empty column": (rows().assign(age=""), {}, r"column 'age' has no value at all; put it"),
    "an empty column of texts": (
        rows().assign(age=""), {"types": {"age": "categorical"}}, r"'age' has no value at all",
    ),
    "free text": (
        rows().assign(city=[f"{SECRET} {row}" for row in range(N)]), {},
        r"column 'city' has 60 different texts in 60 rows, as names, ids and free text",
    ),
    "texts as numbers": (
        spoilt("age", SECRET), {"types": {"age": "numeric"}},
        r"column 'age' is to be numeric, but 1 of 60 cells are not finite numbers",
    ),
    "texts as dates": (
        spoilt("since", "31.12.2024"), {"types": {"since": "date"}},
        r"'since' is to be date, but 1 of 60 cells are not ISO 8601 dates",
    ),
    "numbers as dates": (rows(), {"types": {"age": "date"}}, r"'age' is to be date, but holds int"),
    "numbers as truth": (
        rows(), {"types": {"age": "boolean"}}, r"'age' is to be boolean, but \d+ of 60 cells are",
    ),
    "dates as numbers": (rows(), {"types": {"since": "numeric"}}, r"to be numeric, but holds date"),
    "a third split": (
        spoilt("city", SECRET).assign(part=["train", "test", SECRET] * (N // 3)), {"split": "part"},
        r"the split says something else than train or test in 20 of 60 rows",
    ),
    "one split": (rows().assign(part="train"), {"split": "part"}, r"says train in all 60 rows"),
    "a class without training": (
        rows().assign(part=["test" if left == "yes" else "train" for left in rows()["left"]]),
        {"split": "part"}, r"1 of 2 classes have no row in the train split; correct the split",
    ),
    "no feature": (rows()[["owner", "left"]], {}, r"there is no column to learn from"),
    "no whole row": (
        rows().assign(age=["1", ""] * (N // 2), income=["", "1"] * (N // 2)),
        {"missing": "drop_rows"}, r"drop_rows leaves no row, for each has a missing cell",
    ),
    "another kind of file": (rows(), {"path": "table.xlsx"}, r"the name must end in one of \.csv"),
    "no gzip": (rows(), {"path": "table.csv.gz"}, r"not a whole gzip file; write it again"),
    "half a gzip": (
        gzip.compress(written(rows()).encode())[:-30], {"path": "table.csv.gz"},
        r"not a whole gzip file|cannot be read",
    ),
    "no Parquet": (rows(), {"path": "table.parquet"}, r"not a Parquet file; write it again"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_refused_without_a_cell(tmp_path: Path, case: str) -> None:
    table, changed, message = REFUSED[case]
    with pytest.raises(DataError, match=message) as caught:
        load(tmp_path, table, **changed)
    shown: BaseException | None = caught.value
    while shown is not None:  # what a traceback prints
        assert SECRET not in str(shown)
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)


def test_all_columns_that_cannot_be_used_are_named_at_once(tmp_path: Path) -> None:
    texts = [f"{SECRET} {row}" for row in range(N)]
    days = [f"{1 + row % 28}.{1 + row // 28}.2024" for row in range(N)]
    table = rows().assign(note=texts, city=days, age="")
    with pytest.raises(ColumnError) as caught:
        load(tmp_path, table)
    lines = str(caught.value).splitlines()
    assert sorted(line.split("column ")[1].split("'")[1] for line in lines) == [
        "age",
        "city",
        "note",
    ]
    assert sum("dates that are not written as 2026-01-31" in line for line in lines) == 2
    load(tmp_path, table, drop=["note", "city", "age"])


def test_absent_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"table\.csv: no such file; correct the path in params"):
        load_dataset("own", source=source(), root=tmp_path)
    (tmp_path / "table.csv").mkdir()
    with pytest.raises(DataError, match=r"table\.csv: is a folder; name the table's file"):
        load_dataset("own", source=source(), root=tmp_path)


def test_a_name_that_comes_with_puma_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="sources names 'digits', which is a dataset that comes"):
        load_dataset("digits", source=source(), root=tmp_path)


def test_lists_in_parquet_are_refused(tmp_path: Path) -> None:
    table = rows().drop(columns="since")
    arrow = pa.Table.from_pandas(table).append_column("points", pa.array([[1, 2]] * N))
    parquet.write_table(arrow, tmp_path / "table.parquet")
    with pytest.raises(DataError, match=r"column 'points' is of type list<.*put it into drop"):
        load_dataset("own", source=source(path="table.parquet"), root=tmp_path)
    floats = table.assign(owner=[float(owner) for owner in OWNERS])
    floats.to_parquet(tmp_path / "table.parquet")
    with pytest.raises(DataError, match=r"ids in 'owner' are numbers with fractions \(double\)"):
        load_dataset("own", source=source(path="table.parquet"), root=tmp_path)
    for binary in ([b"\xff"] * N, [[1]] * N):
        place = arrow.column_names.index("left")
        other = arrow.set_column(place, "left", pa.array(binary))
        parquet.write_table(other, tmp_path / "table.parquet")
        with pytest.raises(DataError, match=r"column 'left' is of type .*, which is no text"):
            load_dataset("own", source=source(path="table.parquet"), root=tmp_path)


# --- tasks ---


def test_a_regression_learns_the_number_in_deviations_of_the_training_rows(tmp_path: Path) -> None:
    table = rows()
    table["price"] = 1000 + 50 * np.random.default_rng(1).normal(size=N)
    data = load(tmp_path, table.drop(columns="left"), target="price", task="regression")
    held = table["owner"].isin(data.test.subject_ids.tolist()).to_numpy()
    known = table["price"][~held]
    assert (data.task.name, data.classes) == ("regression", ())
    assert (data.task.centre, data.task.scale) == pytest.approx((known.mean(), known.std(ddof=0)))
    for part, mask in ((data.train, ~held), (data.test, held)):
        found = data.task.centre + data.task.scale * part.labels.double().numpy()
        np.testing.assert_allclose(found, table["price"][mask], rtol=1e-5)
    (target,) = (column for column in data.columns if column.type == "target")
    assert (target.column, target.policy) == ("price", "the number, standardised")


def test_two_classes_by_one_logit(tmp_path: Path) -> None:
    data = load(tmp_path, rows(), task="binary")
    assert (data.classes, data.task.name, data.task.outputs) == (("no", "yes"), "binary", 1)


@pytest.mark.parametrize(
    ("task", "target", "message"),
    [
        ("regression", "city", "column 'city' is to be numeric, but 60 of 60 cells are not finite"),
        ("regression", "flat", "the target has one value in all 4. training rows; a regression"),
        ("regression", "gaps", "the target 'gaps' is missing in 1 of 60 rows; fill it in, or"),
        (
            "regression",
            "endless",
            "column 'endless' is to be numeric, but 1 of 60 cells are not finite",
        ),
        ("binary", "city", "task: binary needs a target of two values, and this one has 3"),
    ],
)
def test_a_target_that_does_not_suit_the_task_is_refused(
    tmp_path: Path, task: str, target: str, message: str
) -> None:
    table = rows().assign(flat=1.5, gaps=np.arange(N) / 7, endless=np.arange(N) / 7)
    table.loc[5, "gaps"], table.loc[5, "endless"] = np.nan, np.inf
    others = [column for column in ("flat", "gaps", "endless") if column != target]
    with pytest.raises(DataError, match=message):
        load(tmp_path, table.drop(columns=others), target=target, task=task)
