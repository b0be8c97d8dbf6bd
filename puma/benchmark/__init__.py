"""Every removal method on the same requests: how well it forgets, what is kept, what it costs."""

from puma.benchmark.runs import COLUMNS, RUNS, Scenario, run_benchmark, scenarios
from puma.benchmark.tables import SHORT, cluster_table, markdown, read, summarise

__all__ = [
    "COLUMNS",
    "RUNS",
    "SHORT",
    "Scenario",
    "cluster_table",
    "markdown",
    "read",
    "run_benchmark",
    "scenarios",
    "summarise",
]
