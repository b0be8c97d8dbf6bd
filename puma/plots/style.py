"""What the figures share: their colours, and how they are written."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from puma.project.files import write_bytes

# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS = {"removed": "#D55E00", "unseen": "#0072B2", "retained": "#999999"}
NEUTRAL = "#56B4E9"
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def save(figures: Mapping[str, Figure], folder: Path) -> None:
    """Write each as ``folder``/name.png, whole or not at all, and delete other figures there."""
    for stale in folder.glob("*.png"):
        if stale.stem not in figures:
            stale.unlink()
    for name, figure in figures.items():
        buffer = io.BytesIO()
        # Without a date or a version, the same figure is the same file.
        figure.savefig(buffer, format="png", dpi=120, metadata={"Software": None})
        write_bytes(folder / f"{name}.png", buffer.getvalue())
