"""The manual: the site builds without a warning, and quotes messages that exist."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def said() -> str:
    """All string literals of the package, those of one expression joined."""
    texts = []
    for path in (ROOT / "puma").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [
                    each.value if isinstance(each, ast.Constant) else "…" for each in node.values
                ]
                texts.append("".join(map(str, parts)))
    return "\n".join(texts)


def test_troubleshooting_quotes_messages_of_the_package() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    quoted = re.findall(r"^\| `([^`]+)` \|", page, flags=re.MULTILINE)
    assert len(quoted) >= 15
    texts = said()
    assert [words for words in quoted if words not in texts] == []


@pytest.mark.parametrize(
    "task", ["own data", "own model", "one person's request", "a chain", "PostgreSQL", "a cluster"]
)
def test_the_first_page_links_to_every_task_by_its_name(task: str) -> None:
    page = (ROOT / "docs" / "index.md").read_text()
    links = re.findall(r"\[([^]]+)\]\([^)]+\)", page)
    assert any(task.lower() in link.lower() for link in links)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    commands = (tmp_path / "site" / "reference" / "commands" / "index.html").read_text()
    assert "puma promote" in commands
    assert "--force" in commands
    library = (tmp_path / "site" / "reference" / "library" / "index.html").read_text()
    assert "Largest allowed change of C, in nats." in library
    assert not re.search(r":(?:func|class|meth|mod|data|attr):", library)
