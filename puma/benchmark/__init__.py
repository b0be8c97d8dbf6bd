"""Every removal method on the same requests, every ranker on the same flipped labels, every
repair on the same models: how well each does, what is kept, what it costs."""

from puma.benchmark.audits import AUDITED, audit_markdown, read_audits, run_audits, verdicts
from puma.benchmark.calibration import (
    CALIBRATION_COLUMNS,
    RELIABILITY_COLUMNS,
    REPAIRS,
    run_calibration,
)
from puma.benchmark.calibration_models import VARIANTS, Problem
from puma.benchmark.calibration_tables import (
    calibration_markdown,
    calibration_table,
    read_calibration,
    read_reliability,
)
from puma.benchmark.debugging import CURVE_COLUMNS, DEBUGGED, DEBUGGING_COLUMNS, run_debugging
from puma.benchmark.debugging_runtime import RUNTIME_COLUMNS, Limits, run_debugging_runtime
from puma.benchmark.debugging_tables import (
    debugging_markdown,
    debugging_table,
    read_curves,
    read_debugging,
    read_runtime,
    runtime_markdown,
    runtime_table,
    runtime_targets,
)
from puma.benchmark.runs import COLUMNS, RUNS, Scenario, run_benchmark, scenarios
from puma.benchmark.tables import SHORT, cluster_table, markdown, read, summarise

__all__ = [
    "AUDITED",
    "CALIBRATION_COLUMNS",
    "COLUMNS",
    "CURVE_COLUMNS",
    "DEBUGGED",
    "DEBUGGING_COLUMNS",
    "RELIABILITY_COLUMNS",
    "REPAIRS",
    "RUNS",
    "RUNTIME_COLUMNS",
    "SHORT",
    "VARIANTS",
    "Limits",
    "Problem",
    "Scenario",
    "audit_markdown",
    "calibration_markdown",
    "calibration_table",
    "cluster_table",
    "debugging_markdown",
    "debugging_table",
    "markdown",
    "read",
    "read_audits",
    "read_calibration",
    "read_curves",
    "read_debugging",
    "read_reliability",
    "read_runtime",
    "run_audits",
    "run_benchmark",
    "run_calibration",
    "run_debugging",
    "run_debugging_runtime",
    "runtime_markdown",
    "runtime_table",
    "runtime_targets",
    "scenarios",
    "summarise",
    "verdicts",
]
