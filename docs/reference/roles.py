"""Docstrings name other objects by Sphinx's roles, which Markdown does not know."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Roles(griffe.Extension):
    """Takes :func:`~puma.where.parse` as `parse`."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r":(?:func|class|meth|mod|data|attr):`(~)?\.?([\w.]+)`",
                lambda found: f"`{found[2].rsplit('.', 1)[-1] if found[1] else found[2]}`",
                obj.docstring.value,
            )
