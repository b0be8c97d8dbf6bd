"""The command line ``puma``: arguments in, tables out. No other room imports it."""

import gc

from puma.cli.signals import quiet_interrupts

# What is imported stays. To look through all of it again and again costs a second per command;
# what comes and goes is still found by the younger generations.
gc.set_threshold(*gc.get_threshold()[:2], 100)

with quiet_interrupts():  # for the tenths of a second that this takes
    from puma.cli.main import app

__all__ = ["app"]
