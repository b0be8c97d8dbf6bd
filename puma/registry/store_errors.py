"""What can go wrong outside of PUMA while it uses the store, in words that say what to do."""

from __future__ import annotations

import errno
import re
import sqlite3
import tempfile
from collections.abc import Iterator

LONGEST = 300  # characters of what somebody else's software says
FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
# By what SQLite and PostgreSQL say, as they have no codes that reach this far.
SAID = {
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
    """An address, or a message that may hold one, as it may be shown."""
    hidden = re.sub(r"//\S*@", "//***@", text)  # the last @: a password may hold one, or a slash
    return re.sub(r"(password=)[^&\s]*", r"\1***", hidden)


def first_line(error: BaseException) -> str:
    """What an error says, short and without a password."""
    said = without_password(str(error).strip() or type(error).__name__).splitlines()[0]
    return said if len(said) <= LONGEST else f"{said[:LONGEST]}…"


def showable(error: BaseException) -> BaseException | None:
    """To be raised from: None if a traceback with it would show a password."""
    said = [str(one) for one in _causes(error)]
    return error if said == [without_password(one) for one in said] else None


def is_fault(error: BaseException) -> bool:
    """Whether the disk, the database or the server is to blame, and not the program."""
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
    """Whether the store itself does not answer, so that nothing is known of what it holds."""
    from requests import RequestException
    from sqlalchemy.exc import DBAPIError

    known = (RequestException, DBAPIError, sqlite3.OperationalError)
    return any(
        isinstance(one, known) or getattr(one, "error_code", None) in REFUSED
        for one in _causes(error)
    )


def remedy(address: str, error: BaseException) -> str | None:
    """What whoever runs the command can do about a fault of the store at ``address``, if that
    can be told."""
    kinds = [_kind(one) for one in _causes(error)]
    if FULL in kinds:
        return f"free space on its disk and on that of {tempfile.gettempdir()}"
    if FORBIDDEN in kinds:
        return "let this user write there"
    if any("database is locked" in str(one) for one in _causes(error)):
        return "another program is in the middle of writing to it: wait for it, or end it"
    if not address.startswith("sqlite:"):
        return "check the address in MLFLOW_TRACKING_URI, that it is up, and what its log says"
    return None


def _kind(error: BaseException) -> set[int] | None:
    number = getattr(error, "errno", None)
    for kind in (FULL, FORBIDDEN):
        if number in kind:
            return kind
    said = str(error).lower()
    return next((kind for words, kind in SAID.items() if words.lower() in said), None)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it was raised because of."""
    from mlflow.exceptions import MlflowException

    one: BaseException | None = error
    while one is not None:
        yield one
        # MLflow does not always say `from`. What others were busy with proves nothing.
        one = one.__cause__ or (one.__context__ if isinstance(one, MlflowException) else None)
