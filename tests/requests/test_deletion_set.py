from __future__ import annotations

import hashlib
import hmac
import multiprocessing
import os
import random
import re
import traceback
from collections import Counter
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import puma.data
from puma.data import Dataset, Examples, load_dataset
from puma.errors import DataError, DeletionError
from puma.requests.deletion_set import DeletionSet
from puma.requests.digest import project_key
from tests.test_html_table import cells

KEY = bytes(range(32))
TRAIN = ["ann", "bob", "ann", "cy", "dee", "bob", "fay"]
TEST = ["ann", "tom", "cy", "ann", "una"]


def owned(ids: list[str], labels: list[int]) -> Examples:
    return Examples.of(torch.zeros(len(ids), 1), torch.tensor(labels), ids)


@pytest.fixture
def toy() -> Dataset:
    """Ann and bob own two training rows each; dee and fay own all of class 'bad'."""
    train = owned(TRAIN, [0, 0, 0, 0, 1, 0, 1])
    return Dataset("toy", train, owned(TEST, [0, 1, 0, 1, 0]), ("good", "bad"))


@pytest.fixture(scope="module")
def breast() -> Dataset:
    return load_dataset("breast_cancer")


def read(tmp_path: Path, content: str | bytes, dataset: Dataset, **options: Any) -> DeletionSet:
    path = tmp_path / "request.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return DeletionSet.read(path, dataset, **options)


# --- what is shown ---


def test_a_notebook_shows_counts_and_nobody(toy: Dataset) -> None:
    found = DeletionSet.of(["ann", "bob", "bob", "una"], toy)
    lines = cells(found._repr_html_())
    assert lines == [
        ["people", "2"],
        ["training rows", "4 of 7"],
        ["their test rows, left as they are", "3"],
        ["lines of the request that named somebody again", "1"],
        ["people without a training row, nothing to remove", "1"],
    ]
    shown = found._repr_html_() + repr(found)
    assert not [name for name in {*TRAIN, *TEST} if re.search(rf"\b{name}\b", shown)]
    assert not re.search("[0-9a-f]{8}", shown)  # no digest without the key


# --- which rows ---


def test_validation_rows_of_the_people_leave_and_are_not_to_be_removed(
    toy: Dataset, tmp_path: Path
) -> None:
    data = replace(toy, validation=owned(["val", "una", "val", "bob"], [0, 1, 0, 0]))
    found = DeletionSet.of(["ann", "val", "una"], data)
    assert found.subject_ids == ("ann",)
    assert (found.rows.tolist(), found.test_rows.tolist()) == ([0, 2], [0, 3, 4])
    assert found.validation_rows.tolist() == [0, 1, 2]
    assert found.test_only_ids == ("una", "val")
    assert "3 validation rows of theirs, left out" in found.summary
    assert "2 ids only in the test or validation split, nothing to remove" in found.summary
    left = found.remaining
    assert left.validation is not None
    assert left.validation.subject_ids.tolist() == ["bob"]
    assert left.train.subject_ids.tolist() == ["bob", "cy", "dee", "bob", "fay"]
    assert left.test.subject_ids.tolist() == TEST
    assert DeletionSet.of(["ann", "val", "una", "bob"], data).remaining.validation is None
    found.write(tmp_path / "request.csv")
    again = DeletionSet.read(tmp_path / "request.csv", data)
    assert again.validation_rows.tolist() == [0, 1, 2]
    with pytest.raises(DeletionError, match=r"all 1 ids .* in the test or validation split"):
        DeletionSet.of(["val"], data)


def test_every_row_of_every_subject_goes(toy: Dataset) -> None:
    found = DeletionSet.of(["dee", "bob", "ann"], toy)
    assert found.subject_ids == ("ann", "bob", "dee")
    assert found.rows.tolist() == [0, 1, 2, 4, 5]
    assert found.rows.dtype == torch.int64
    assert len(found) == 5
    assert found.test_rows.tolist() == [0, 3]
    assert (found.n_duplicates, found.test_only_ids) == (0, ())


def test_ids_of_test_rows_alone_are_set_apart(toy: Dataset) -> None:
    found = DeletionSet.of(["una", "cy", "tom"], toy)
    assert found.subject_ids == ("cy",)
    assert found.rows.tolist() == [3]
    assert found.test_only_ids == ("tom", "una")
    assert found.test_rows.tolist() == [1, 2, 4]


def test_repeated_ids_are_merged_and_counted(toy: Dataset, tmp_path: Path) -> None:
    content = "subject_id\nbob\ncy\n bob \nbob\ntom\ntom\n"
    for found in (
        DeletionSet.of(["bob", "cy", "bob", "bob", "tom", "tom"], toy),
        read(tmp_path, content, toy),
    ):
        assert found.subject_ids == ("bob", "cy")
        assert found.rows.tolist() == [1, 3, 5]
        assert found.n_duplicates == 3


def test_real_patients_with_several_samples_lose_all_of_them(breast: Dataset) -> None:
    files = Path(puma.data.__file__).parent / "files"
    table = pd.read_csv(files / "breast_cancer_wisconsin_original.csv", dtype=str)
    samples = Counter(table["sample_code_number"])
    repeated = sorted(name for name, count in samples.items() if count > 1)
    assert len(repeated) == 46
    in_train = [name for name in repeated if name in breast.train.subject_ids]
    found = DeletionSet.of(repeated, breast)
    # Wherever the split put them, training and test rows together are all that the CSV holds.
    assert len(found.rows) + len(found.test_rows) == sum(samples[name] for name in repeated)
    assert list(found.subject_ids) == in_train
    assert set(breast.train.subject_ids[found.rows]) == set(in_train)
    rest = breast.train.without(found.rows)
    assert not set(rest.subject_ids) & set(repeated)
    assert len(rest) == 524 - len(found.rows)


# --- reading a request ---


@pytest.mark.parametrize(
    "content",
    [
        "subject_id\nann\ncy\n",
        "subject_id\nann\ncy",
        "\ufeffsubject_id\r\nann\r\ncy\r\n",
        "\n\n  subject_id  \n\n  ann\t\n\n cy \n\n\n",
        'subject_id\n"ann"\n"cy"\n',
        "reason,subject_id,requested_at\n,ann,2026-01-31\nleft,cy,2026-01-31T09:30:00Z\n",
        'subject_id,request_id,requested_at,reason\nann,7,,"a, b"\ncy,8, 2026-01-31 ,é\n',
        'subject_id,reason\nann,"two\nlines, and\r\nmore"\ncy,page\x0cfeed \u2028 and line\n',
    ],
    ids=["plain", "no last newline", "Excel", "blanks", "quoted", "columns", "all", "odd breaks"],
)
def test_a_request_may_be_written_in_many_ways(tmp_path: Path, content: str, toy: Dataset) -> None:
    found = read(tmp_path, content, toy)
    assert found.subject_ids == ("ann", "cy")
    assert found.rows.tolist() == [0, 2, 3]
    assert found.n_duplicates == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty; its first line names the columns"),
        ("\n\n", "the file is empty"),
        (b"subject_id\nan\xefn\n", "not UTF-8 text; save the request as UTF-8"),
        ('subject_id\n"ann\n', r"not a CSV file \(unexpected end of data\)"),
        ('subject_id\n"ann"x\n', r"not a CSV file \(',' expected after '\"'\)"),
        ("ann\ncy\n", "no subject_id column; the first line must name the columns, of subject_id,"),
        ("ann,ann\n", "no subject_id column"),
        ("Subject_ID\nann\n", "no subject_id column"),
        ("subject_id;reason\nann;left\n", "no subject_id column"),
        ("subject_id,reason, subject_id\nann,,ann\n", "columns subject_id appear twice; keep one"),
        ("subject_id,reason,reason\nann,,\n", "columns reason appear twice"),
        (
            "subject_id,email,phone\nann,a@b,1\n",
            "2 unknown columns; a request may hold only "
            "subject_id, request_id, requested_at, reason",
        ),
        (
            "subject_id,reason\nann,left\ncy,no, really\n",
            "line 3: 3 values for 2 columns; quote values that hold commas",
        ),
        ("subject_id,reason\n\nann\n", "line 3: 1 values for 2 columns"),
        ("subject_id,reason\nann,left\n\n  ,left\n", "line 4: subject_id is blank"),
        ('subject_id,reason\nann,"two\nlines"\n,\n', "line 4: subject_id is blank"),
        (
            "subject_id,requested_at\nann,2026-01-31\ncy,31.1.2026\n",
            "line 3: requested_at is not an ISO 8601 time such as 2026-01-31",
        ),
    ],
)
def test_malformed_requests_are_refused(
    tmp_path: Path, content: str | bytes, message: str, toy: Dataset
) -> None:
    with pytest.raises(DeletionError, match=rf"request\.csv(: |, ){message}") as caught:
        read(tmp_path, content, toy)
    for cell in ("ann", "left", "email", "a@b", "31.1"):
        assert cell not in str(caught.value)


@pytest.mark.parametrize("content", ["subject_id\n", "subject_id,reason\n\n"])
def test_a_request_for_nobody_is_refused(tmp_path: Path, content: str, toy: Dataset) -> None:
    message = "the deletion set for 'toy' is empty; name at least one subject_id"
    with pytest.raises(DeletionError, match=message):
        read(tmp_path, content, toy)
    with pytest.raises(DeletionError, match=message):
        DeletionSet.of([], toy)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path, toy: Dataset) -> None:
    with pytest.raises(DeletionError, match=r"none\.csv: no such deletion request"):
        DeletionSet.read(tmp_path / "none.csv", toy)
    with pytest.raises(DeletionError, match=r"cannot be read \(Is a directory\)"):
        DeletionSet.read(str(tmp_path), toy)


# --- ids that cannot be honoured ---


def test_unknown_ids_are_counted_and_never_in_the_message(tmp_path: Path, toy: Dataset) -> None:
    content = "subject_id\nzoe\nann\nxeno\nzoe\n"
    with pytest.raises(DeletionError) as caught:
        read(tmp_path, content, toy)
    assert str(caught.value) == (
        "2 of 3 subject ids are not in dataset 'toy'; correct or drop them"
    )
    report = "".join(traceback.format_exception(caught.value))  # what a log keeps
    assert report.endswith("This error's unknown_ids has them.\n")
    assert not any(
        name in text for name in ("xeno", "zoe") for text in (report, repr(caught.value))
    )
    assert caught.value.unknown_ids == ("xeno", "zoe")


@pytest.mark.parametrize("ids", ["cy", "17", b"cy", 17, None])
def test_one_bare_id_is_refused(ids: Any, toy: Dataset) -> None:
    with pytest.raises(
        DeletionError, match=rf"got one {type(ids).__name__}; pass a list"
    ) as caught:
        DeletionSet.of(ids, toy)
    assert "cy" not in str(caught.value)


def test_a_bare_string_is_not_taken_letter_by_letter() -> None:
    letters = Dataset("toy", owned(["1", "7", "17"], [0, 0, 0]), owned(["1"], [0]), ("good",))
    with pytest.raises(DeletionError, match="got one str"):
        DeletionSet.of("17", letters)


def test_ids_that_are_no_strings_are_refused(toy: Dataset) -> None:
    with pytest.raises(
        DeletionError, match=r"every subject_id .* must be a string, got float, int; convert"
    ) as caught:
        DeletionSet.of(["ann", 4711, 1.5], toy)  # type: ignore[list-item]
    assert "4711" not in str(caught.value)


@pytest.mark.parametrize("name", ["Ann", "ann\x00", "an", "ann,bob"])
def test_ids_match_exactly(name: str, toy: Dataset) -> None:
    with pytest.raises(DeletionError, match="1 of 1 subject ids are not in dataset"):
        DeletionSet.of([name], toy)


def test_a_request_for_test_rows_alone_is_refused(toy: Dataset) -> None:
    with pytest.raises(
        DeletionError, match="all 2 ids of the deletion set lie only in the test split of 'toy'"
    ) as caught:
        DeletionSet.of(["tom", "una"], toy)
    assert "tom" not in str(caught.value)


@pytest.mark.parametrize("allow", [False, True])
def test_the_whole_training_set_is_refused(toy: Dataset, allow: bool) -> None:
    with pytest.raises(
        DeletionError, match=r"covers all 7 training rows of 'toy'.*retire the model"
    ):
        DeletionSet.of(set(TRAIN), toy, allow_class_removal=allow)


def test_a_whole_class_goes_only_when_allowed(tmp_path: Path, toy: Dataset) -> None:
    with pytest.raises(
        DeletionError,
        match=r"every training row of class bad of 'toy'; set allow_class_removal if",
    ):
        DeletionSet.of(["dee", "fay", "cy"], toy)
    with pytest.raises(DeletionError, match="allow_class_removal"):
        read(tmp_path, "subject_id\ndee\nfay\n", toy)
    allowed = read(tmp_path, "subject_id\ndee\nfay\n", toy, allow_class_removal=True)
    assert allowed.rows.tolist() == [4, 6]


def test_a_class_that_training_never_held_is_not_missed() -> None:
    train = owned(["ann", "bob"], [0, 0])
    data = Dataset("toy", train, owned(["cy"], [1]), ("good", "bad"))
    assert DeletionSet.of(["ann"], data).rows.tolist() == [0]


# --- digest, repr, file ---


def test_digest_is_the_keyed_hash_of_the_sorted_ids(toy: Dataset) -> None:
    parts = [bytes(7) + b"\x03" + part for part in (b"toy", b"ann", b"dee")]
    expected = hmac.new(KEY, b"".join(parts), hashlib.sha256).hexdigest()
    assert DeletionSet.of(["dee", "ann"], toy).digest(KEY) == expected
    assert DeletionSet.of(["ann", "dee", "ann"], toy).digest(KEY) == expected
    others = [
        DeletionSet.of(["ann", "dee"], toy).digest(bytes(32)),
        DeletionSet.of(["ann"], toy).digest(KEY),
        DeletionSet.of(["ann", "dee"], Dataset("t", toy.train, toy.test, toy.classes)).digest(KEY),
    ]
    assert len({expected, *others}) == 4


def test_digest_tells_two_people_from_one_whose_id_looks_like_both() -> None:
    looks = ["ab", "a,b", "a b"]
    train = owned(["a", "b", "c", *looks], [0] * 6)
    data = Dataset("toy", train, owned(["c"], [0]), ("good",))
    both = DeletionSet.of(["a", "b"], data).digest(KEY)
    assert all(both != DeletionSet.of([one], data).digest(KEY) for one in looks)


def test_repr_counts_and_names_nobody(toy: Dataset) -> None:
    assert repr(DeletionSet.of(["ann", "bob", "bob", "tom"], toy)) == (
        "DeletionSet('toy', 2 subjects, 4 training rows; 1 duplicated line merged; "
        "3 test rows of theirs, left as they are; 1 id only in the test split, nothing to remove)"
    )
    assert repr(DeletionSet.of(["dee"], toy)) == "DeletionSet('toy', 1 subject, 1 training row)"


def test_a_written_request_reads_back_the_same(toy: Dataset, tmp_path: Path) -> None:
    original = DeletionSet.of(["tom", "cy", "ann", "cy"], toy)
    path = tmp_path / "new" / "set.csv"
    original.write(path, reason='moved "away", for good')
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == (
        'subject_id,reason\nann,"moved ""away"", for good"\n'
        'cy,"moved ""away"", for good"\ntom,"moved ""away"", for good"\n'
    )
    restored = DeletionSet.read(path, toy)
    assert restored.subject_ids == original.subject_ids
    assert restored.test_only_ids == original.test_only_ids
    assert torch.equal(restored.rows, original.rows)
    assert torch.equal(restored.test_rows, original.test_rows)
    assert restored.digest(KEY) == original.digest(KEY)


def test_a_keyed_request_has_a_salt_that_the_published_digest_does_not_tell(
    toy: Dataset, tmp_path: Path
) -> None:
    request = DeletionSet.of(["ann", "cy"], toy)
    for name, key in (("a", KEY), ("again", KEY), ("other", bytes(32))):
        request.write(tmp_path / name, key=key)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "again").read_bytes()
    assert (tmp_path / "a").read_bytes() != (tmp_path / "other").read_bytes()
    header, first, second = (line.split(",") for line in (tmp_path / "a").read_text().split())
    assert header == ["subject_id", "reason", "salt"]
    assert first == ["ann", "", second[2]]
    assert len(bytes.fromhex(second[2])) == 32
    assert second[2] != request.digest(KEY)
    assert DeletionSet.read(tmp_path / "a", toy).digest(KEY) == request.digest(KEY)


# --- the project's key ---


def test_key_is_made_once_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "deletion.key"
    key = project_key(path)
    assert len(key) == 32
    assert len(set(key)) > 8
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert project_key(path) == key == bytes.fromhex(path.read_text())
    assert list(path.parent.iterdir()) == [path]
    assert project_key(tmp_path / "other.key") != key


def _report_key(path: Path, barrier: Barrier, results: Any) -> None:
    barrier.wait()
    results.put(project_key(path))


def test_processes_that_start_at_once_share_one_key(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for attempt in range(5):
        path = tmp_path / f"{attempt}.key"
        barrier, results = context.Barrier(4), context.SimpleQueue()
        workers = [
            context.Process(target=_report_key, args=(path, barrier, results)) for _ in range(4)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(30)
        assert [worker.exitcode for worker in workers] == [0] * 4
        assert {results.get() for _ in workers} == {project_key(path)}
    assert len(list(tmp_path.iterdir())) == 5


def test_the_key_that_was_there_first_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "deletion.key", os.link

    def lose_the_race(source: str, target: Path) -> None:
        target.write_text("ab" * 32)
        link(source, target)

    monkeypatch.setattr(os, "link", lose_the_race)
    assert project_key(path) == b"\xab" * 32
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / f".deletion.key.{os.getpid()}").write_text("half")
    assert len(project_key(tmp_path / "deletion.key")) == 32


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "0 bytes instead of 32"),
        (b"ab" * 31, "31 bytes instead of 32"),
        (b"ab" * 33, "33 bytes instead of 32"),
        (b"zz" * 32, "non-hexadecimal number"),
        (b"\xff" * 32, "'utf-8' codec can't decode"),
    ],
    ids=["empty", "short", "long", "not hex", "binary"],
)
def test_other_content_is_no_key(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "deletion.key"
    path.write_bytes(content)
    with pytest.raises(
        DeletionError, match=rf"deletion\.key: not a usable key \({re.escape(problem)}.*backup"
    ):
        project_key(path)
    assert path.read_bytes() == content


def test_a_key_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DeletionError, match=r"deletion\.key: not a usable key"):
        project_key(tmp_path / "file" / "deletion.key")


# --- ids that a file can hold ---

NASTY = (
    *(" ", "\t", "\n", "\r", "\r\n", "\0", "\x1a", "\x1b[2J", "\x7f", "\x85", "\xa0", "\u2028"),
    *("\ufeff", "\u200f", "\u202e", "\u200b", "\ud800", "\udfff", "\U0001f600", "é", "e\u0301"),
    *('"', '""', "'", ",", ";", "\\", "=1+1", "+", "-", "@", "#", "%", "None", "nan", "0", "007"),
    *("subject_id", "salt", "", "x" * 999, "z"),
)


def test_a_set_that_can_be_made_is_read_back_as_it_was(tmp_path: Path) -> None:
    draw = random.Random(0)
    named = [*NASTY, *("".join(draw.choices(NASTY, k=draw.randint(1, 4))) for _ in range(400))]
    refused = 0
    for name in named:
        ids = [name, "other", "kept"]
        try:
            data = Dataset("toy", owned(ids, [0, 0, 0]), owned(["kept"], [0]), ("only",))
        except DataError as error:
            refused += 1
            assert name != name.strip() or not name.isprintable() or len(name) > 1000 or not name
            report = "".join(traceback.format_exception(error))
            assert len(name) < 3 or name.isspace() or name not in report
            continue
        chosen = DeletionSet.of([name, "other"], data)
        chosen.write(tmp_path / "set.csv", reason='a "reason", too', key=KEY)
        found = DeletionSet.read(tmp_path / "set.csv", data)
        assert found.subject_ids == chosen.subject_ids
        assert found.digest(KEY) == chosen.digest(KEY)
    assert len(named) / 4 < refused < 3 * len(named) / 4


@pytest.mark.parametrize(
    ("ids", "what"),
    [
        (["a", " b", "c ", ""], "1 empty or missing, 2 with space around it; the first .* row 2"),
        (["a", "b\0"], "1 with a control character"),  # NumPy would make it "b"
        (["a", "b\nc"], "1 with a control character"),
        (["a", "b\ud800"], "1 with a control character or half of a surrogate pair"),
        (["a", None], "1 empty or missing"),
        (["a", float("nan")], "1 empty or missing"),
        (["a", "b" * 1001], "1 of more than 1000 characters"),
    ],
)
def test_data_whose_ids_no_request_could_name_is_refused(ids: list[Any], what: str) -> None:
    with pytest.raises(DataError, match=f"of the {len(ids)} subject ids: {what}"):
        owned(ids, [0] * len(ids))


@pytest.mark.parametrize(
    ("held", "asked", "alike"),
    [
        ("Ren\u00e9", "Rene\u0301", 1),
        ("Rene\u0301", "Ren\u00e9", 1),
        ("ann", "\ufeffann", 1),
        ("ann", "Bob", 0),
    ],
)
def test_unknown_ids_that_look_like_known_ones_get_a_hint(
    held: str, asked: str, alike: int, tmp_path: Path
) -> None:
    data = Dataset("toy", owned([held, "x", "x"], [0, 0, 0]), owned(["x"], [0]), ("only",))
    with pytest.raises(DeletionError) as caught:
        read(tmp_path, f"subject_id\nx\n{asked}\n", data)
    assert ("other Unicode characters" in str(caught.value)) == bool(alike)
    assert held not in str(caught.value)
    assert asked not in str(caught.value)
