"""The page of commands, from what the command line says of itself."""

from __future__ import annotations

import html
import subprocess
import sys
from typing import Any


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Put the commands' own help in place of the page's marker."""
    if page.file.src_path != "reference/commands.md":
        return markdown
    command = [sys.executable, "-m", "typer", "puma.cli.main", "utils", "docs", "--name", "puma"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return markdown.replace("<!-- commands -->", html.unescape(done.stdout).split("\n## ", 1)[1])
