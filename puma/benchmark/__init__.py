"""Every removal method on the same requests: how well it forgets, what is kept, what it costs."""

from puma.benchmark.audits import AUDITED, audit_markdown, read_audits, run_audits, verdicts
from puma.benchmark.runs import COLUMNS, RUNS, Scenario, run_benchmark, scenarios
from puma.benchmark.tables import SHORT, cluster_table, markdown, read, summarise

__all__ = [
    "AUDITED",
    "COLUMNS",
    "RUNS",
    "SHORT",
    "Scenario",
    "audit_markdown",
    "cluster_table",
    "markdown",
    "read",
    "read_audits",
    "run_audits",
    "run_benchmark",
    "scenarios",
    "summarise",
    "verdicts",
]
