"""The ids of the rows' owners: one spelling for the data and for deletion requests.

An id is a text, compared character by character. Files (tables, requests) are read with
:func:`read_id`: the space around an id goes, everything else stays, leading zeros and the Unicode
form included. Two ids that only look the same are two ids; :func:`appearance` finds them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np

from puma.errors import DataError

LONGEST_ID = 1000  # characters; csv reads no field of more than 131072
_CONTROL = r"\x00-\x1f\x7f-\x9f\ud800-\udfff"
_USABLE_ID = re.compile(rf"(?!\s)[^{_CONTROL}]{{1,{LONGEST_ID}}}(?<!\s)")
# What a CSV of ids would not hold, or not give back as it was.
_UNUSABLE_IDS = {
    "empty or missing": re.compile(r"\s*"),
    "with space around it": re.compile(r"\s.*|.*\s", re.DOTALL),
    "with a control character or half of a surrogate pair": re.compile(
        rf".*[{_CONTROL}].*", re.DOTALL
    ),
    f"of more than {LONGEST_ID} characters": re.compile(r".*", re.DOTALL),
}


def subject_array(subject_ids: Sequence[str] | np.ndarray) -> np.ndarray:
    """(n,) ids as strings that a deletion request can name.

    Raises:
        DataError: An id is empty or missing, has space around it or a control character, or is
            too long. The message gives counts and a position, never an id.
    """
    array = np.asarray(subject_ids, dtype=np.str_)
    if array.ndim != 1:
        raise DataError(
            f"the subject ids must be one string per row, got an array of shape {array.shape}; "
            "pass a list of strings"
        )
    texts = array.tolist()
    if array is not subject_ids:
        # NumPy drops NULs at the end, and writes None and NaN out.
        texts = [
            "" if each is None or each != each else each if isinstance(each, str) else text
            for each, text in zip(subject_ids, texts, strict=True)
        ]
    if all(map(_USABLE_ID.fullmatch, texts)):
        return array
    kinds = [_unusable(text) for text in texts]
    counts = [f"{kinds.count(kind)} {kind}" for kind in _UNUSABLE_IDS if kind in kinds]
    first = next(number for number, kind in enumerate(kinds, start=1) if kind is not None)
    raise DataError(
        f"no deletion request could name some of the {len(texts)} subject ids: "
        f"{', '.join(counts)}; the first is that of row {first}. Give every row its owner's id "
        "as one line of plain text"
    )


def _unusable(text: str) -> str | None:
    """What is wrong with an id; None for a usable one."""
    if _USABLE_ID.fullmatch(text):
        return None
    return next(kind for kind, found in _UNUSABLE_IDS.items() if found.fullmatch(text))


def read_id(cell: str) -> str:
    """The id that is written in ``cell``, without the space around it."""
    return cell.strip()


def appearance(subject_id: str) -> str:
    """The same text for ids that a reader would take for the same."""
    if subject_id.isascii():
        return subject_id
    return "".join(
        each
        for each in unicodedata.normalize("NFKC", subject_id)
        if unicodedata.category(each) != "Cf"
    )


def refuse_lookalikes(subject_ids: Iterable[str]) -> None:
    """Raise DataError if two different ids look the same: they may well be one person's.

    A request for one of them would leave the other's rows. The message has counts alone.
    """
    ids = {*subject_ids}
    if all(map(str.isascii, ids)):
        return
    alike = len(ids) - len({appearance(each) for each in ids})
    if alike:
        raise DataError(
            f"{alike} of the {len(ids)} subject ids look like another one, but are written with "
            "other Unicode characters (such as é as one character or as two); write each "
            "person's id in one way"
        )
