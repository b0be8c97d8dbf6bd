"""``puma remove``: a deletion request answered on a registered version."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from puma.cli.common import crash_exits_with_2, project_of, version_named
from puma.cli.tables import print_comparison

if TYPE_CHECKING:
    from puma.workflows.remove import Answer


def remove(
    model: Annotated[
        str, typer.Option(help="models:/puma-DATASET@ALIAS or models:/puma-DATASET/VERSION.")
    ],
    deletions: Annotated[Path, typer.Option(help="The request, a CSV as in deletions/.")],
    method: Annotated[str, typer.Option(help="puma, puma_paper or retrain.")] = "puma",
    budget: Annotated[
        float | None,
        typer.Option(
            help="Nats that the retained rows' mean loss may move; puma.budget if absent."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The outcome, as JSON.")] = False,
) -> None:
    """Remove a request's people from a registered version, audit, and register the result.

    The new version is also without everybody whom that version was without. The same request
    again finds the version that answers it.

    Exit code: 0 the version that answers the request passed its audit, 1 it has another verdict,
    2 nothing was registered.
    """
    dataset, version = version_named(model)
    workspace = project_of(dataset)
    # As in dvc.yaml: with models this small threads wait for each other longer than they work.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with crash_exits_with_2():
        from puma.workflows.remove import answer

        done = answer(workspace, dataset, version, deletions, method=method, budget=budget)
    if as_json:
        print(json.dumps(_told(done), indent=2, allow_nan=False))
    else:
        _print(done)
    if not done.row.passed:
        raise typer.Exit(1)


def _told(done: Answer) -> dict[str, object]:
    return {
        "dataset": done.dataset,
        "outcome": done.outcome,
        "n_rows": done.n_rows,
        "n_subjects": done.n_subjects,
        "removals_since_training": done.sequence.count,
        "cumulative_drift": done.sequence.drift,
        "retrain_due": done.due,
        "seconds": done.seconds,
        "version": done.row.to_dict(),
    }


def _print(done: Answer) -> None:
    name = f"puma-{done.dataset} version {done.row.version}"
    rows = sorted((*done.compared, done.row), key=lambda row: row.version)
    print_comparison(f"puma-{done.dataset}", rows)
    said = {
        "registered": f"{name} registered: {done.n_rows} rows of {done.n_subjects} people removed",
        "in place": f"{name} answers this request already; nothing was registered",
        "nothing left": f"{name} is without all of these people already; nothing was registered",
    }
    typer.echo(f"{said[done.outcome]}, in {done.seconds:.1f} s")
    typer.echo(f"audit: {(done.row.verdict or 'none').replace('_', ' ')}")
    count, drift = done.sequence.count, done.sequence.drift
    typer.echo(f"removals since the last full training: {count}, which moved the loss {drift:+.3g}")
    if done.due is not None:
        typer.echo(f"a full training is due: {done.due}; run it with --method retrain")
    if done.row.passed and "champion" not in done.row.aliases:
        typer.echo(f"let it serve: puma promote {done.dataset} {done.row.version}")
