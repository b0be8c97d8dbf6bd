"""The code that each stage of the pipeline runs, by which DVC sees that it changed.

A stage depends on the modules that its notebook imports, and what these import in turn. Comments,
docstrings and layout do not count: they change no result, so that they rerun nothing.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from puma.errors import SettingsError
from puma.project.files import write_json
from puma.project.workspace import Workspace

PACKAGE = Path(__file__).parents[1]
NOTEBOOK_STAGES = (
    "prepare", "train", "shadow", "pool", "reference", "remove", "audit", "compare",
)  # fmt: skip
COMMAND_STAGES = {"request": "import puma.data, puma.requests.demonstration"}
# What modules read beside Python, by the package that does.
_FILES = {"puma.data": "data/files/*.csv"}


def stage_code(workspace: Workspace, package: Path = PACKAGE) -> dict[str, dict[str, str]]:
    """SHA-256 of every module that a stage imports, directly or through others, by stage.

    Modules are those of PUMA, and the project's own that a notebook imports. A module's packages
    belong to it. What only a type checker imports does not count, and ``puma/__init__.py``, which
    only forwards, does not either.

    Args:
        workspace: The project.
        package: The folder of PUMA's code.

    Raises:
        SettingsError: A notebook is absent or broken, or a module is no Python.
    """
    modules = _Modules(package, workspace)
    found = {stage: modules.imported_by(code) for stage, code in COMMAND_STAGES.items()}
    for stage in NOTEBOOK_STAGES:
        path = workspace.root / "notebooks" / f"{stage}.ipynb"
        found[stage] = modules.imported_by(_code_of(path), str(path))
    modules.remember()
    return found


class _Modules:
    """The modules of PUMA and of the project, each read once; what was read before is known.

    The cache is by the SHA-256 of a file's bytes, of this module and of Python's version, so that
    it cannot be out of date.
    """

    def __init__(self, package: Path, workspace: Workspace) -> None:
        self.package, self.root = package, workspace.root
        self.cache = workspace.root / ".puma" / "modules.json"
        self.reader = hashlib.sha256(Path(__file__).read_bytes() + sys.version.encode())
        self.known, self.used = _read(self.cache), dict[str, dict[str, Any]]()
        self.seen: dict[Path, tuple[str, dict[str, Path]]] = {}

    def imported_by(self, code: str, name: str = "<command>") -> dict[str, str]:
        waiting, found = self._files(_imports(_parsed(code, name))), dict[str, str]()
        while waiting:
            module, path = waiting.popitem()
            found[module], imported = self._module(path)
            waiting |= {other: file for other, file in imported.items() if other not in found}
        for package, pattern in _FILES.items():
            if package in found:
                for path in self.package.glob(pattern):
                    found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found

    def remember(self) -> None:
        if self.used != self.known:
            self.cache.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_json(self.cache, self.used)

    def _module(self, path: Path) -> tuple[str, dict[str, Path]]:
        """The digest of a module, and the modules that it imports."""
        if path not in self.seen:
            content = path.read_bytes()
            key = self.reader.copy()
            key.update(content)
            note = self.known.get(key.hexdigest()) or _noted(content, str(path))
            self.used[key.hexdigest()] = note
            self.seen[path] = note["sha256"], self._files(note["imports"])
        return self.seen[path]

    def _files(self, names: Iterable[str]) -> dict[str, Path]:
        """The file of each module that is PUMA's or the project's, packages included."""
        found = {}
        for name in names:
            parts = name.split(".")
            of_puma = parts[0] == "puma"
            folder = self.package.parent if of_puma else self.root
            for length in range(2 if of_puma else 1, len(parts) + 1):
                path = folder.joinpath(*parts[:length])
                for file in (path.with_suffix(".py"), path / "__init__.py"):
                    if file.is_file():
                        found[".".join(parts[:length])] = file
        return found


def _noted(content: bytes, name: str) -> dict[str, Any]:
    tree = _parsed(content, name)
    imports = sorted(_imports(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body[0] = ast.Pass()  # the docstring
    return {"sha256": hashlib.sha256(ast.unparse(tree).encode()).hexdigest(), "imports": imports}


def _imports(tree: ast.Module) -> set[str]:
    """The absolute names that are imported; of ``from a import b`` both ``a`` and ``a.b``."""
    names: set[str] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        waiting += ast.iter_child_nodes(node)
    return names


def _parsed(code: bytes | str, name: str) -> ast.Module:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError) as error:
        raise SettingsError(f"{name}: is no Python ({error}); correct it") from error


def _code_of(path: Path) -> str:
    """The code cells of a notebook as Python."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        sources = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be read ({error.strerror}); a stage of dvc.yaml runs it: put it back"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"{path}: is no notebook ({error!r}); put it back") from error
    code = "\n".join(each if isinstance(each, str) else "".join(each) for each in sources)
    try:
        ast.parse(code)
    except SyntaxError:  # Jupyter's own commands, such as %matplotlib inline
        from IPython.core.inputtransformer2 import TransformerManager

        code = TransformerManager().transform_cell(code)
    return code


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """What was known; nothing where the file is absent or was damaged."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
