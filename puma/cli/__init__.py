"""The command line ``puma``: arguments in, tables out. No other room imports it."""

from puma.cli.signals import quiet_interrupts

with quiet_interrupts():  # for the tenths of a second that this takes
    from puma.cli.main import app

__all__ = ["app"]
