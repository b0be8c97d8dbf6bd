"""What a method recorded during training, sealed: whose records they are, and that all are there.

The files tell of training rows. They stay beside the weights, out of git and out of the registry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from puma.errors import ModelError
from puma.project.files import write_json

MANIFEST = "manifest.json"


def unseal(records: Path) -> None:
    """Say that what is in ``records`` is about to change, and must not be used until sealed."""
    (records / MANIFEST).unlink(missing_ok=True)


def seal(records: Path, description: Mapping[str, Any]) -> None:
    """Say that ``records`` is complete, and what training it belongs to."""
    write_json(records / MANIFEST, description)


def sealed(records: Path | None, description: Mapping[str, Any]) -> Path:
    """``records``, when it is complete and belongs to the training of ``description``.

    Raises ModelError, naming what differs, when it is not.
    """
    if records is None:
        raise ModelError(
            f"the model carries no records, which {description['method']} removes by; train it "
            f"with the method's own fit"
        )
    path = records / MANIFEST
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, json.JSONDecodeError) as error:
        raise ModelError(
            f"{records}: no complete records of a training ({path.name} is absent or broken); "
            "train the original again"
        ) from error
    expected = json.loads(json.dumps(description))
    if found != expected:
        names = sorted(name for name in expected if found.get(name) != expected[name])
        raise ModelError(
            f"{records}: made by a training with another {', '.join(names) or 'description'}; "
            "train the original again, or restore its settings"
        )
    return records
