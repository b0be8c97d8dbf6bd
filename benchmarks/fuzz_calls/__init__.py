"""Library calls: what a notebook may pass to the public names, right and wrong."""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.fuzz_calls.calls import Calls
from benchmarks.fuzz_calls.data import add_datasets, add_examples
from benchmarks.fuzz_calls.influence import add_influence
from benchmarks.fuzz_calls.label_errors import add_label_errors
from benchmarks.fuzz_calls.measures import add_measures
from benchmarks.fuzz_calls.models import add_models
from benchmarks.fuzz_calls.removal import add_methods
from benchmarks.fuzz_calls.requests import add_deletion_sets
from benchmarks.fuzz_calls.reweighting import add_reweighting
from benchmarks.fuzz_case import Case


def call_cases(folder: Path, draw: random.Random) -> list[Case]:
    """Every call; ``draw`` draws nothing but their order."""
    folder.mkdir(parents=True, exist_ok=True)
    calls = Calls(folder)
    add_examples(calls)
    add_datasets(calls)
    add_deletion_sets(calls)
    add_influence(calls)
    add_reweighting(calls)
    add_methods(calls)
    add_models(calls)
    add_measures(calls)
    add_label_errors(calls)
    draw.shuffle(calls.cases)
    return calls.cases
