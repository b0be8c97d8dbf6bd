"""``python -m puma``, as ``torchrun -m puma`` starts it."""

from puma.cli import app

app()
