"""The wording of what is wrong with settings."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from puma.yaml_file import cut, shown

PROBLEMS = 10  # of params.yaml in one message


def problems_of(error: ValidationError) -> str:
    """The wrong keys, at most ten, what is wrong with each, and the value found."""
    problems = [
        f"{cut('.'.join(map(str, item['loc'])))}: {_said(item)} (got {shown(item['input'])})"
        if item["loc"]
        else _said(item)  # of the whole file, which need not be repeated
        for item in error.errors()
    ]
    more = [f"and {len(problems) - PROBLEMS} more"] if len(problems) > PROBLEMS else []
    return "; ".join(problems[:PROBLEMS] + more)


def _said(item: Any) -> str:
    """What is wrong, without the framework's word for an error of ours."""
    return str(item["msg"]).removeprefix("Value error, ")
