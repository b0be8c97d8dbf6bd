"""Every removal method on the same requests, every ranker on the same flipped labels, every
repair on the same models: how well each does, what is kept, what it costs."""

from benchmarks.audits import AUDITED, audit_markdown, read_audits, run_audits, verdicts
from benchmarks.calibration import (
    CALIBRATION_COLUMNS,
    RELIABILITY_COLUMNS,
    REPAIRS,
    run_calibration,
)
from benchmarks.calibration_models import VARIANTS, Problem
from benchmarks.calibration_tables import (
    calibration_markdown,
    calibration_table,
    read_calibration,
    read_reliability,
)
from benchmarks.label_errors import CURVE_COLUMNS, DEBUGGED, DEBUGGING_COLUMNS, run_debugging
from benchmarks.label_errors_runtime import RUNTIME_COLUMNS, Limits, run_debugging_runtime
from benchmarks.label_errors_tables import (
    debugging_markdown,
    debugging_table,
    read_curves,
    read_debugging,
    read_runtime,
    runtime_markdown,
    runtime_table,
    runtime_targets,
)
from benchmarks.removals import COLUMNS, RUNS, Scenario, run_benchmark, scenarios
from benchmarks.tables import SHORT, cluster_table, markdown, read, summarise

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
