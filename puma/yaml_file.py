"""YAML 1.2 files: every fault is a SettingsError that names the line."""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import ScalarNode

from puma.errors import SettingsError

LONGEST = 110  # characters of a value in a message


class _Constructor(SafeConstructor):
    """ruamel.yaml's, whose every error is a YAMLError that knows its line."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            found = super().construct_object(node, deep)
            if isinstance(found, int):
                str(found)  # Python does not print thousands of digits
            if isinstance(found, str) and b"\0" in found.encode():
                raise ValueError("NUL is no character of a text")
        except (YAMLError, RecursionError):
            raise
        except Exception as error:  # of int(), date(), encode(): whatever the text is not fit for
            problem = f"it cannot be read ({str(error).partition(';')[0]})"
            raise ConstructorError(problem=problem, problem_mark=node.start_mark) from error
        return found

    def flatten_mapping(self, node: Any) -> Any:
        """Refuse a repeated key before merges are put in: beside one, the last would count."""
        seen = set()
        # A node that another one merges comes twice, the second time with its own merges put in.
        for key_node, _ in node.value if getattr(node, "merge", None) is None else ():
            if not isinstance(key_node, ScalarNode):
                continue
            merges = key_node.tag == "tag:yaml.org,2002:merge"
            key = key_node.value if merges else self.construct_object(key_node)
            if key in seen:
                problem = f"the key {key!r} is there twice, and only one can count"
                raise ConstructorError(problem=problem, problem_mark=key_node.start_mark)
            seen.add(key)
        return super().flatten_mapping(node)


# A set has no order and bytes are no text; pydantic would take them for what they are not.
for _tag in ("binary", "omap", "pairs", "set"):
    _Constructor.add_constructor(f"tag:yaml.org,2002:{_tag}", _Constructor.construct_undefined)


def read_text(path: Path) -> str:
    """Read the text of a YAML file.

    Raises:
        SettingsError: It cannot be read, or is no UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be read ({error.strerror}); run inside a PUMA project"
        ) from error
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{path}: not valid YAML: byte {error.start} is no UTF-8; save the file as UTF-8"
        ) from error
    except ValueError as error:  # of a path that no file can have
        raise SettingsError(f"{str(path)!r}: cannot be read ({error}); correct the path") from error


def parse_yaml(text: str, path: Path) -> object:
    """Parse YAML as DVC does: another reader's 010 or `yes` is another value.

    Args:
        text: The content.
        path: The file that it is of, for messages.

    Raises:
        SettingsError: It is no proper YAML; the message names the line.
    """
    reader = YAML(typ="safe", pure=True)
    reader.Constructor = _Constructor
    try:
        return reader.load(text)
    except RecursionError as error:
        raise SettingsError(
            f"{path}: not valid YAML: nested too deeply; settings are one level deep"
        ) from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "".join(text.split("\n")[mark.line : mark.line + 1]).strip()
        problem = ", ".join(filter(None, (error.context, error.problem)))
        raise SettingsError(
            f"{path}: not valid YAML: line {mark.line + 1}, {shown(line)}: {problem}; "
            "correct this line"
        ) from error
    except YAMLError as error:
        raise SettingsError(f"{path}: not valid YAML: {error}; correct the file") from error


def shown(value: object) -> str:
    """Shorten ``value`` for a message: aliases make a small file a huge value."""
    shorten = reprlib.Repr()
    shorten.maxlevel = 3
    shorten.maxlist = shorten.maxtuple = shorten.maxdict = shorten.maxset = 20
    shorten.maxstring = shorten.maxother = shorten.maxlong = 100
    return cut(shorten.repr(value))


def cut(text: str) -> str:
    """Shorten ``text`` for a message."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
