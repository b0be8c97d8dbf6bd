"""Groups of rows by the columns of a table, against pandas."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from puma.data import Dataset, Examples, load_dataset
from puma.data.groups import group, save_groups, with_groups
from puma.errors import DataError
from puma.settings import SourceSettings

OLD = "age_in_years >= 60"
WOMEN = "personal_status_and_sex == 'female : divorced/separated/married'"


def german() -> pd.DataFrame:
    path = files("puma.data").joinpath("files", "german_credit.csv")
    table = pd.read_csv(path)  # type: ignore[arg-type]
    table.index = [f"applicant-{row:04d}" for row in range(1, len(table) + 1)]
    return table


@pytest.mark.parametrize("where", [OLD, WOMEN, f"{WOMEN} and creditability == 'bad'"])
def test_the_rows_of_every_split_are_those_of_pandas(where: str) -> None:
    data = load_dataset("german_credit", seed=3, validation_fraction=0.2, groups=[where])
    picked = {*german().query(where).index}
    assert data.validation is not None
    for part in (data.train, data.test, data.validation):
        expected = [each in picked for each in part.subject_ids.tolist()]
        assert part.groups[where].tolist() == expected
        assert any(expected)


def test_a_regression_and_points_have_groups_too() -> None:
    data = load_dataset("diabetes", groups=["bmi > 26", "target >= 200"])
    target = data.task.centre + data.task.scale * data.train.labels.double()
    assert data.train.groups["target >= 200"].tolist() == (target > 199.5).tolist()
    moons = load_dataset("two_moons", groups=["x >= 0.5 and y < 0"])
    x, y = moons.test.features.T
    assert torch.equal(moons.test.groups["x >= 0.5 and y < 0"], (x >= 0.5) & (y < 0))


def test_groups_make_no_other_data() -> None:
    plain, grouped = load_dataset("german_credit"), load_dataset("german_credit", groups=[OLD])
    assert plain.digest == grouped.digest
    assert torch.equal(plain.train.features, grouped.train.features)


def test_groups_move_with_their_rows() -> None:
    train = load_dataset("german_credit", groups=[OLD]).train
    picked = {*german().query(OLD).index}
    for rows in (torch.tensor([5, 3, -1]), torch.arange(len(train)) % 3 == 0):
        part = train.subset(rows)
        assert part.groups[OLD].tolist() == [each in picked for each in part.subject_ids.tolist()]
    assert {*group(train, OLD).subject_ids.tolist()} == picked & {*train.subject_ids.tolist()}


def own(tmp_path: Path, where: str, **settings: object) -> Dataset:
    draw = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "who": [f"p{row // 2:03d}" for row in range(400)],
            "age": draw.integers(18, 90, 400),
            "sex": draw.choice(["f", "m"], 400),
            "member": draw.choice(["true", "false"], 400),
            "since": pd.Timestamp("2025-01-01") + pd.to_timedelta(draw.integers(0, 300, 400), "D"),
            "churned": draw.choice(["yes", "no"], 400),
        }
    )
    table["age"] = table["age"].mask(draw.random(400) < 0.1)
    table.to_csv(tmp_path / "table.csv", index=False)
    source = SourceSettings.model_validate(
        {"path": "table.csv", "target": "churned", "subject": "who", **settings}
    )
    return load_dataset("own", source=source, root=tmp_path, groups=[where])


@pytest.mark.parametrize("drop", [[], ["sex"], ["age", "since", "member"]])
@pytest.mark.parametrize("missing", ["impute", "drop_rows"])
def test_an_own_table_is_grouped_by_what_the_model_does_not_see(tmp_path, drop, missing) -> None:
    where = "sex == 'f' and (age >= 60 or since < '2025-03-01') and not member or churned == 'x'"
    data = own(tmp_path, where, drop=drop, missing=missing)
    table = pd.read_csv(tmp_path / "table.csv", parse_dates=["since"])
    if missing == "drop_rows" and "age" not in drop:
        table = table.dropna()
    grouped = table.query(where).groupby("who").size()
    found = pd.Series(data.train.subject_ids[data.train.groups[where].numpy()]).value_counts()
    test = pd.Series(data.test.subject_ids[data.test.groups[where].numpy()]).value_counts()
    assert pd.concat([found, test]).sort_index().to_dict() == grouped.to_dict()
    assert set(drop).isdisjoint(column.column for column in data.columns)


def test_a_column_of_ids_picks_no_group(tmp_path) -> None:
    with pytest.raises(DataError, match="picked by 'who', the ids of people; pick it by what"):
        own(tmp_path, "who == 'p001'")


def test_unknown_columns_are_named_with_those_that_are_there(tmp_path) -> None:
    message = (
        r"dataset 'own': .* names 'agee', which is no column to group by; these are: 'churned', "
        "'age', 'sex', 'member', 'since'"
    )
    with pytest.raises(DataError, match=message):
        own(tmp_path, "agee > 3")


def test_rows_that_come_from_no_table_have_no_groups() -> None:
    with pytest.raises(DataError, match=r"'digits' comes from no table, so that 'x > 1' picks no"):
        load_dataset("digits", groups=["x > 1"])


def test_groups_are_stored_beside_the_data(tmp_path) -> None:
    data = load_dataset("german_credit", validation_fraction=0.2, groups=[OLD, WOMEN])
    path, groups = tmp_path / "dataset.npz", tmp_path / "groups.npz"
    data.save(path)
    save_groups(data, groups)
    found = with_groups(Dataset.load(path), groups)
    assert found.digest == data.digest
    for part in ("train", "test", "validation"):
        kept, expected = getattr(found, part).groups, getattr(data, part).groups
        assert kept.keys() == expected.keys() == {OLD, WOMEN}
        assert all(torch.equal(kept[name], expected[name]) for name in expected)
    written = groups.read_bytes()
    save_groups(data, groups)
    assert groups.read_bytes() == written  # DVC sees no change
    assert groups.stat().st_mode & 0o077 == 0


def test_stored_groups_of_other_data_are_refused(tmp_path) -> None:
    path = tmp_path / "groups.npz"
    data = load_dataset("german_credit", groups=[OLD])
    assert with_groups(data, path) is data
    save_groups(data, path)
    with pytest.raises(DataError, match="holds the groups of other data; run `dvc repro`"):
        with_groups(load_dataset("german_credit", seed=1), path)
    path.write_text("no archive")
    with pytest.raises(DataError, match="no groups written by PUMA"):
        with_groups(data, path)


def some(people: int, inside: int) -> Examples:
    ids = [f"p{row % people}" for row in range(2 * people)]
    picked = torch.arange(2 * people) % people < inside
    return Examples.of(
        torch.zeros(2 * people, 1), torch.zeros(2 * people, dtype=torch.int64), ids
    ).with_groups({"old": picked})


@pytest.mark.parametrize(("inside", "side"), [(9, "in"), (16, "outside of"), (0, "in")])
def test_a_group_of_a_few_people_is_refused(inside: int, side: str) -> None:
    assert len(group(some(25, 10), "old")) == 20
    few = min(inside, 25 - inside)
    with pytest.raises(DataError, match=f"only {few} people are {side} the group 'old'"):
        group(some(25, inside), "old")


def test_a_group_that_was_not_prepared_is_refused() -> None:
    with pytest.raises(DataError, match="prepared without the group 'young'; name it in"):
        group(some(25, 10), "young")


def test_a_group_has_one_truth_value_for_each_row() -> None:
    with pytest.raises(DataError, match=r"the group 'old' must be one truth value for each of the"):
        some(25, 10).with_groups({"old": torch.ones(3, dtype=torch.bool)})
