"""The manual's examples: command lines that their parsers take, settings, and Python that runs.

A block that cannot be run or read stands below a comment, ``<!-- not run: why -->``.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import typer
from dvc.cli import parse_args
from dvc.utils.serialize import loads_yaml
from torch.distributed.run import get_args_parser

from benchmarks.__main__ import app as benchmarks_app
from puma.cli import app as puma_app
from puma.project.creation import project_files
from puma.settings import Settings

ROOT = Path(__file__).parents[1]
PATHS = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "deletions/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
)
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PATHS}
PAGES["README.md of a new project"] = project_files("churn")["README.md"]
BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?\n)(?P=indent)```$", re.MULTILINE | re.DOTALL
)
LANGUAGES = {"bash", "console", "csv", "python", "sh", "yaml"}
NOT_RUN = re.compile(r"<!-- not run: .+ -->")
STAGES = loads_yaml((ROOT / "dvc.yaml").read_text())["stages"]
TARGETS = {*re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)}
GROUPS = {
    "puma": typer.main.get_command(puma_app),
    "python -m benchmarks": typer.main.get_command(benchmarks_app),
}
HELP = {"--help", "--install-completion"}  # which act as soon as they are read
# Of the system and of other projects: what they take is not looked at.
OTHERS = {
    *("cd", "export", "grep", "head", "mkdir", "nano", "printf", "sed", "source", "sudo"),
    *("dask", "mlflow", "pip", "scontrol"),
}


def blocks(page: str, *languages: str) -> Iterator[str]:
    """The page's blocks of these languages, but those that a comment takes out."""
    text = PAGES[page]
    for found in BLOCK.finditer(text):
        assert found["language"] in LANGUAGES, f"{page}: a block of {found['language']!r}"
        above = text[: found.start()].rstrip().rpartition("\n")[2].strip()
        if found["language"] in languages and NOT_RUN.fullmatch(above) is None:
            yield textwrap.dedent(found["text"])


def lines(page: str) -> Iterator[str]:
    """What a reader types: after ``$`` in console blocks, and every line of a script."""
    for text in blocks(page, "console"):
        for line in text.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                yield line[2:]
    for text in blocks(page, "sh", "bash"):
        yield from text.replace("\\\n", " ").splitlines()


def commands(line: str) -> Iterator[list[str]]:
    """The words of each command of a shell's line, without what is set before it."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    words: list[str] = []
    for word in (*reader, ";"):
        if not {*word} <= {*"();<>|&"}:
            words.append(word)
            continue
        while words and re.match(r"\w+=", words[0]):
            del words[0]
        if words:
            yield words
        words = ["cd"] if word in (">", ">>") else []  # the file's name is no command


def take_puma(words: Sequence[str], group: str = "puma") -> None:
    """Raise what the command line itself would raise."""
    known = GROUPS[group]
    if words[0] in HELP:
        assert len(words) == 1
        return
    assert words[0] in known.commands, f"{group} {words[0]}: no such command"
    command = known.commands[words[0]]
    if not HELP & {*words}:
        command.make_context(words[0], list(words[1:]))


def take_dvc(words: Sequence[str]) -> None:
    parsed = parse_args(list(words))
    if words[0] == "repro":
        assert {target.partition("@")[0] for target in parsed.targets} <= {*STAGES}
    for change in getattr(parsed, "set_param", None) or ():
        Settings.model_validate(_nested(*change.split("=")))


def _nested(name: str, value: str) -> dict[str, object]:
    """``a.b`` and ``1`` as ``{"a": {"b": 1}}``."""
    first, _, rest = name.partition(".")
    return {first: _nested(rest, value) if rest else loads_yaml(value)}


def take_make(words: Sequence[str]) -> None:
    assert {word for word in words if "=" not in word} <= TARGETS


def take_python(words: Sequence[str]) -> None:
    if words[:2] == ["-m", "benchmarks"]:
        take_puma(words[2:], "python -m benchmarks")
    else:  # a script that the page has, or the standard library
        assert words[0] in ("-c", "-m") or words[0].endswith(".py")


def take_pytest(words: Sequence[str]) -> None:
    assert all((ROOT / word).exists() for word in words if "/" in word)


def take_torchrun(words: Sequence[str]) -> None:
    parsed = get_args_parser().parse_args(list(words))
    assert (parsed.module, parsed.training_script) == (True, "puma")
    take_puma(parsed.training_script_args)


TAKE: dict[str, Callable[[Sequence[str]], None]] = {
    "puma": take_puma,
    "dvc": take_dvc,
    "make": take_make,
    "python": take_python,
    "python3": take_python,
    "pytest": take_pytest,
    "torchrun": take_torchrun,
    "srun": lambda words: take(list(words)),
}


def take(words: list[str]) -> None:
    program, *rest = words
    if program not in OTHERS:
        assert program in TAKE, f"{program} is neither looked at nor one of the OTHERS"
        TAKE[program](rest)


@pytest.mark.parametrize("page", PAGES)
def test_command_lines_are_taken_by_their_parsers(page: str) -> None:
    for line in lines(page):
        for words in commands(line):
            take(words)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("cd churn && puma compare churn --jason", "No such option: --jason"),
        ("OMP_NUM_THREADS=1 python -m benchmarks kills --kill 100", "No such option: --kill"),
        ("puma verify a b | puma versoins a", "puma versoins: no such command"),
        ("puma remove --model models:/puma-churn@champion  # without a request", "deletions"),
        ("dvc repro shadows@two_moons", "shadows"),
        ("dvc exp run -S puma.bugdet=0.02", "bugdet"),
        ("make demos", "demos"),
        ("torchrun --nproc-per-node 2 -m puma remove --models a", "No such option: --models"),
        ("unheard of", "unheard is neither"),
    ],
)
def test_a_wrong_line_is_found(line: str, error: str) -> None:
    with pytest.raises(Exception, match=error):  # of several libraries
        [take(words) for words in commands(line)]


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_text_exist_with_their_options(page: str) -> None:
    """Such as `puma remove --method retrain`: shortened, so that only the names are looked at."""
    text = BLOCK.sub("", PAGES[page])
    for group, typed in re.findall(rf"`({'|'.join(GROUPS)}) ([^`|]+)", text):
        name, *words = typed.split()
        if name in HELP or not re.fullmatch(r"[a-z-]+", name):  # COMMAND, …
            continue
        assert name in GROUPS[group].commands, f"{group} {typed}"
        known = {option for each in GROUPS[group].commands[name].params for option in each.opts}
        assert {word for word in words if word.startswith("--")} <= {*known, *HELP}, typed
    for typed in re.findall(r"`make ([^`]+)`", text):
        take_make(typed.split())


@pytest.mark.parametrize("page", PAGES)
def test_settings_are_valid(page: str) -> None:
    for text in blocks(page, "yaml"):
        Settings.model_validate(loads_yaml(text))


# What the first Python block of a page finds.
GIVEN = {
    "README.md": (
        "from pathlib import Path\n"
        "Path('deletions').mkdir()\n"
        "Path('deletions/german_credit.csv').write_text({csv!r})\n"
    ),
    "docs/your-model.md": "import torch\nnet, rows = torch.nn.Linear(2, 2), torch.zeros(5, 2)\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if any(blocks(page, "python"))])
def test_python_runs(page: str, tmp_path: Path) -> None:
    """The blocks of a page, one after the other, in one namespace and an empty folder."""
    csv = next(blocks(page, "csv"), "")
    script = "\n\n".join([GIVEN.get(page, "").format(csv=csv), *blocks(page, "python")])
    (tmp_path / "page.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env=os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
