"""Faults of the store's disk, database or server: recognised, and put in words."""

from __future__ import annotations

import errno
import re
import sqlite3
import tempfile
from collections.abc import Iterator

LONGEST = 300  # characters of another program's message
FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
# By their messages: the error codes of SQLite and PostgreSQL do not reach this far.
MESSAGES = {
    "database or disk is full": FULL,
    "disk I/O error": FULL,
    "No space left": FULL,
    "File too large": FULL,
    "readonly database": FORBIDDEN,
    "unable to open database file": FORBIDDEN,
    "permission denied": FORBIDDEN,
}
REFUSED = {"UNAUTHENTICATED", "PERMISSION_DENIED", "TEMPORARILY_UNAVAILABLE"}


def without_password(text: str) -> str:
    """``text``, an address or a message with one, with the password hidden."""
    hidden = re.sub(r"//\S*@", "//***@", text)  # the last @: a password may have one
    return re.sub(r"(password=)[^&\s]*", r"\1***", hidden)


def first_line(error: BaseException) -> str:
    """The first line of the message of ``error``, short and without a password."""
    text = without_password(str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def showable(error: BaseException) -> BaseException | None:
    """``error``, to raise from; None if its traceback would show a password."""
    texts = [str(one) for one in _causes(error)]
    return error if texts == [without_password(one) for one in texts] else None


def is_fault(error: BaseException) -> bool:
    """Whether the disk, the database or the server caused ``error``, not a mistake in PUMA."""
    from sqlalchemy.exc import DBAPIError, ProgrammingError

    for one in _causes(error):
        if isinstance(one, ProgrammingError):
            return False
        if isinstance(
            one, (OSError, DBAPIError, sqlite3.OperationalError)
        ):  # an OSError: all of `requests`, too
            return True
        if getattr(one, "error_code", None) in REFUSED:
            return True
    return False


def is_away(error: BaseException) -> bool:
    """Whether the store does not respond: then nothing is known about its contents."""
    from requests import RequestException
    from sqlalchemy.exc import DBAPIError

    known = (RequestException, DBAPIError, sqlite3.OperationalError)
    return any(
        isinstance(one, known) or getattr(one, "error_code", None) in REFUSED
        for one in _causes(error)
    )


def remedy(address: str, error: BaseException) -> str | None:
    """What the user can do about a fault of the store at ``address``, or None if unknown."""
    if (known := disk_remedy(error)) is not None:
        return known
    if any("database is locked" in str(one) for one in _causes(error)):
        return "another program is in the middle of writing to it: wait for it, or end it"
    if not address.startswith("sqlite:"):
        return "check the address in MLFLOW_TRACKING_URI, that it is up, and what its log says"
    return None


def disk_remedy(error: BaseException) -> str | None:
    """What the user can do about a full disk or a forbidden file, or None if it is neither."""
    kinds = [_kind(one) for one in _causes(error)]
    if FULL in kinds:
        return f"free space on its disk and on that of {tempfile.gettempdir()}"
    if FORBIDDEN in kinds:
        return "let this user write there"
    return None


def _kind(error: BaseException) -> set[int] | None:
    number = getattr(error, "errno", None)
    for kind in (FULL, FORBIDDEN):
        if number in kind:
            return kind
    text = str(error).lower()
    return next((kind for words, kind in MESSAGES.items() if words.lower() in text), None)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, its cause, the cause of that, and so on."""
    from mlflow.exceptions import MlflowException

    one: BaseException | None = error
    while one is not None:
        yield one
        # MLflow does not always raise `from`; of other errors the context may be unrelated.
        one = one.__cause__ or (one.__context__ if isinstance(one, MlflowException) else None)
