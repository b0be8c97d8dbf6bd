"""What a method recorded during training, sealed by a description of the training.

The files were made from training rows. They stay beside the weights, out of git and out of the
registry.
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
    """Mark ``records`` as about to change: they must not be used until sealed again."""
    (records / MANIFEST).unlink(missing_ok=True)


def seal(records: Path, description: Mapping[str, Any]) -> None:
    """Mark ``records`` as complete and as made by the training of ``description``."""
    write_json(records / MANIFEST, description)


def sealed(records: Path | None, description: Mapping[str, Any]) -> Path:
    """Return ``records`` if they are complete and made by the training of ``description``.

    Raises:
        ModelError: They are not; it names what differs.
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
