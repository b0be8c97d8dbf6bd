"""A bar that had less to do than was thought is whole when it ends."""

from __future__ import annotations

import io

from tqdm.notebook import tqdm as notebook_tqdm
from tqdm.std import tqdm as terminal_tqdm

from puma.progress import end_early


def test_in_a_notebook_it_is_green_and_full():
    with notebook_tqdm(total=8, display=False) as bar:
        bar.update(3)
        end_early(bar)
    _, widget, text = bar.container.children
    assert (widget.bar_style, widget.value, widget.max) == ("success", 3, 3)
    assert "3/3" in text.value


def test_without_it_the_bar_is_red():
    with notebook_tqdm(total=8, display=False) as bar:
        bar.update(3)
    assert bar.container.children[1].bar_style == "danger"


def test_in_a_terminal_it_ends_at_all_of_what_was_done():
    stream = io.StringIO()
    with terminal_tqdm(total=8, file=stream) as bar:
        bar.update(3)
        end_early(bar)
    last = stream.getvalue().split("\r")[-1]
    assert "100%" in last
    assert "3/3" in last


def test_one_that_is_not_shown_may_be_ended_too():
    with notebook_tqdm(total=8, disable=True) as bar:
        bar.update(3)
        end_early(bar)
    assert bar.total == bar.n
