"""``python -m puma.cli``."""

from puma.cli import app

app()
