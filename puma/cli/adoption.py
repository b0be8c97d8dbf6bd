"""``puma adopt``: somebody else's model becomes a version.

What takes seconds to import is imported when a command runs; see puma.cli.main.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from puma.cli.common import AsJson
from puma.cli.tables import print_json
from puma.errors import SettingsError
from puma.project.workspace import Workspace

if TYPE_CHECKING:
    from puma.workflows.adopt import Adoption, Fit


def adopt(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="models:/NAME/VERSION or models:/NAME@ALIAS.")
    ],
    dataset: Annotated[str, typer.Option(help="The dataset whose rows it was trained on.")],
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Open a pickle, which RUNS what is in it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a version of a model that somebody else trained, from MLflow's registry.

    params.yaml names its class, and how it is trained. It is refused, and nothing is registered,
    unless its weights fit that class and its predictions of the training rows make sense.
    """
    name, version = _foreign(model)
    workspace = Workspace.of(dataset)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from puma.workflows.adopt import adopt as take_over

    done = take_over(workspace, dataset, name, version, allow_pickle=allow_pickle)
    if as_json:
        shown = {
            "created": done.created,
            "adopted_from": done.origin,
            "train": asdict(done.train),
            "test": asdict(done.test),
            "notes": done.notes,
            "version": done.version.to_dict(),
        }
        print_json(shown)
        return
    _print(workspace, dataset, done)


def _foreign(model: str) -> tuple[str, str]:
    """The name of the registered model, and its version or alias."""
    match = re.fullmatch(r"models:/(.+?)[/@]([^/@]+)", model)
    if match is None:
        raise SettingsError(
            f"name a registered model as models:/NAME/VERSION or models:/NAME@ALIAS, got {model!r}"
        )
    return match[1], match[2]


def _print(workspace: Workspace, dataset: str, done: Adoption) -> None:
    version, training = done.version, workspace.settings.for_dataset(dataset).training
    state = "registered" if done.created else "in place: it was adopted before"
    typer.echo(f"{version.name} version {version.version}, adopted from {done.origin}: {state}")
    for rows, fit in (("training", done.train), ("test", done.test)):
        typer.echo(f"{rows} rows: {_in_words(fit)}")
    for note in done.notes:
        typer.echo(f"note: {note}")
    how = (
        f"PUMA's own loop, {training.epochs} epochs"
        if training.loop is None
        else f"{training.loop}, {training.epochs} epochs"
    )
    typer.echo(
        f"Retraining, the pool and the audits train as params.yaml says ({how}). Was it trained "
        "otherwise, name its loop as training.loop first."
    )
    typer.echo("Next:")
    stages = f"shadow@{dataset} reference@{dataset}-original"
    typer.echo(f"  dvc repro {stages}    # what audits and removals compare with")
    typer.echo(f"  puma audit {dataset} {version.version}")
    typer.echo(f"  puma remove --model models:/{version.name}/{version.version} --deletions FILE")


def _in_words(fit: Fit) -> str:
    return (
        f"{fit.rows}, {fit.metric} {fit.value:.3f} (of the best constant: "
        f"{fit.constant_value:.3f}), mean loss {fit.loss:.3g} nats (of the best constant: "
        f"{fit.constant_loss:.3g})"
    )
