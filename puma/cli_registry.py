"""``puma promote`` and ``puma verify``: which version serves, and whether its record holds.

MLflow and PyTorch are imported only when a command runs, as in puma.cli.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from puma.cli_project import REFUSED, DatasetName, crash_tells_nothing, project_of, version_named

FAILED = 1
WORDS = {
    "holds": "holds     ",
    "fails": "FAILS     ",
    "unknown": "unknown   ",
    "skipped": "not here  ",
}


def promote(
    dataset: DatasetName,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="A number or an alias.")],
    force: Annotated[
        str | None,
        typer.Option(metavar="REASON", help="Promote past the gate; the reason is recorded."),
    ] = None,
) -> None:
    """Let a registered version serve: move `champion` to it, if it passes the gate.

    Its audit passed, its drift is within the budget, the audit is about its present weights and
    its own request, its certificate agrees with the registry, and nobody comes back whom another
    version has forgotten.

    Exit code: 0 it serves, 1 a condition fails, 2 one cannot be checked.
    """
    workspace = project_of(dataset)
    with crash_tells_nothing():
        from puma.registry.promotion import PromotionRefusedError
        from puma.registry.promotion import promote as move

        try:
            done = move(workspace, dataset, version, force=force)
        except PromotionRefusedError as error:
            typer.echo(f"puma: {error}", err=True)
            raise typer.Exit(FAILED if error.checked else REFUSED) from error
    if not done.moved:
        typer.echo(f"puma-{dataset} version {done.version} serves already; nothing was changed")
        return
    for condition in done.conditions:
        forced = "FORCED " if condition.name in done.overrode else ""
        typer.echo(f"{forced}{condition.name}: {condition.said}")
    if force is not None and not done.overrode:
        typer.echo("nothing had to be forced; the reason was not recorded")
    after = "" if done.former is None else f", after version {done.former}"
    typer.echo(f"puma-{dataset} version {done.version} is champion now{after}")


def verify(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="Or models:/puma-DATASET/VERSION, alone.")
    ],
    version: Annotated[
        str | None, typer.Argument(metavar="[VERSION]", help="A number or an alias.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
) -> None:
    """Check a version against its certificate, and both against what can be computed again.

    Exit code: 0 it holds, 1 it does not (the fields are named), 2 it cannot be checked.
    """
    dataset, version = version_named(dataset, version)
    workspace = project_of(dataset)
    with crash_tells_nothing():
        from puma.registry.verification import verify_version

        result = verify_version(workspace, dataset, version)
    if as_json:
        print(json.dumps(result.to_dict(), indent=2, allow_nan=False))
    else:
        for one in result.findings:
            typer.echo(f"{WORDS[one.state]}  {one.field}: {one.said}")
        typer.echo(f"puma-{dataset} version {result.version} {result.conclusion}")
    if result.failed or result.unknown:
        raise typer.Exit(FAILED if result.failed else REFUSED)
