"""One spelling of ids, in the data and in requests."""

from __future__ import annotations

import unicodedata

import pytest

from puma.data.subject_ids import appearance, read_id, refuse_lookalikes
from puma.errors import DataError


def test_an_id_keeps_all_but_the_space_around_it() -> None:
    for kept in ("007", "a  b", "Jose\u0301", "José", "٣"):
        assert read_id(f"\u00a0 {kept}\t\n") == kept


def test_ids_that_look_the_same_are_found() -> None:
    composed, decomposed = "José", unicodedata.normalize("NFD", "José")
    assert composed != decomposed
    assert appearance(composed) == appearance(decomposed) == appearance("Jo\u200bsé")
    with pytest.raises(DataError, match="2 of the 5 subject ids look like another one") as caught:
        refuse_lookalikes([composed, decomposed, "ﬁ", "fi", "x", "x"])
    assert "Jos" not in str(caught.value)
    refuse_lookalikes([composed, composed, "007", "07"])
