"""Progress bars: lines in a terminal, widgets in a notebook (``tqdm.auto``)."""

from __future__ import annotations

from typing import Any

from tqdm.auto import tqdm


def end_early(bar: tqdm[Any]) -> None:
    """Let what is done be all: a bar that is closed before its end looks as if it had failed."""
    bar.total = bar.n
    widgets = getattr(bar, "container", None)  # of a notebook
    if widgets is not None:
        widgets.children[-2].max = bar.n
