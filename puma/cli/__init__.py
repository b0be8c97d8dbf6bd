"""The command line ``puma``: arguments in, tables out. No other room imports it."""

from puma.cli.main import app

__all__ = ["app"]
