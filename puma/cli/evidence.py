"""``puma audit`` and ``puma verify``: the evidence about a version.

What takes seconds to import is imported when a command runs; see puma.cli.main.
"""

from __future__ import annotations

import typer

from puma.cli.common import (
    FAILED,
    REFUSED,
    AsJson,
    DatasetName,
    DatasetOrModel,
    OptionalVersion,
    VersionName,
    version_named,
)
from puma.cli.tables import number, print_json, print_table
from puma.project.workspace import Workspace

STATES = {
    "holds": "holds     ",
    "fails": "FAILS     ",
    "unknown": "unknown   ",
    "skipped": "not here  ",
}


def audit(
    dataset: DatasetName,
    version: VersionName,
    as_json: AsJson = False,
) -> None:
    """Attack a registered version, and say whether its removal holds.

    Exit code: 0 a verdict that `promotion.accept` names (passed, indistinguishable), 1 another
    one, 2 it could not be audited.
    """
    workspace = Workspace.of(dataset)
    from puma.workflows.audit import audit_version

    row, report = audit_version(workspace, dataset, version, progress=True)
    verdict = report.verdict
    if as_json:
        found = {
            "dataset": dataset,
            "version": row.version,
            "method": row.method,
            "verdict": verdict.name,
            "reason": verdict.reason,
            "metrics": report.metrics,
            "unresolved": report.unresolved,
        }
        print_json(found)
    else:
        lines = [[name, number(value)] for name, value in report.metrics.items()]
        title = f"Audit of puma-{dataset} version {row.version} ({row.method})"
        print_table(title, ("", "value"), lines)
        for name, reason in report.unresolved.items():
            print(f"{name} cannot be told: {reason}")
        print(f"{verdict.name}: {verdict.reason}")
    if verdict.name not in workspace.settings.promotion.accept:
        raise typer.Exit(FAILED)


def verify(
    dataset: DatasetOrModel,
    version: OptionalVersion = None,
    as_json: AsJson = False,
) -> None:
    """Check a version against its certificate, and both against what can be computed again.

    Exit code: 0 it holds, 1 it does not (the fields are named), 2 it cannot be checked.
    """
    dataset, version = version_named(dataset, version)
    workspace = Workspace.of(dataset)
    from puma.registry.certificate.verify import verify_version

    result = verify_version(workspace, dataset, version)
    if as_json:
        print_json(result.to_dict())
    else:
        for one in result.findings:
            typer.echo(f"{STATES[one.state]}  {one.field}: {one.detail}")
        typer.echo(f"puma-{dataset} version {result.version} {result.conclusion}")
    if result.failed or result.unknown:
        raise typer.Exit(FAILED if result.failed else REFUSED)
