"""``puma source``, ``request`` and ``remove``: what is prepared, what is asked, and serving it.

What takes seconds to import is imported when a command runs; see puma.cli.main.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from puma.cli.common import (
    FAILED,
    REFUSED,
    AsJson,
    DatasetName,
    several_ranks,
    version_at,
)
from puma.cli.tables import print_comparison, print_json
from puma.errors import DeletionError, PumaError, SettingsError
from puma.html_table import in_words, rows_of_people
from puma.project.workspace import Workspace
from puma.settings import BUILT_IN_DATASETS, OWN_CODE

if TYPE_CHECKING:
    from puma.requests.deletion_set import DeletionSet
    from puma.settings import Settings
    from puma.workflows.ranks import Ranks
    from puma.workflows.remove import RemovalOutcome

OWN_CODE_KEYS = ("name", "loop", "criterion")  # whose values may name the user's own code


def source(dataset: DatasetName) -> None:
    """Note what a dataset and its request are made from, and its model, training and methods.

    The pipeline's stage `source`: a changed file or setting reruns the stages of its own dataset,
    alone. Of your own data, network and training it notes digests, and of the code that each
    stage runs: another PUMA reruns the stages that it changed.
    """
    workspace = Workspace.of(dataset)
    settings = workspace.settings.for_dataset(dataset)
    own = settings.sources.get(dataset)
    from puma.project.files import write_json
    from puma.project.own_data import require_known, source_digest
    from puma.project.stage_code import stage_code

    require_known(dataset, own)
    content = None if own is None else source_digest(own, workspace.root)
    described = None if own is None else own.model_dump(mode="json")
    groups = {
        name: getattr(settings, name).model_dump(mode="json")
        for name in ("model", "training", *settings.methods)
        if name in type(settings).model_fields
    }
    notes = {name: {"settings": values, "code": _code(values)} for name, values in groups.items()}
    for stage, modules in stage_code(workspace).items():
        write_json(workspace.code_record(dataset, stage), modules)
    for name, note in notes.items():
        write_json(workspace.resolved(dataset, name), note)
    write_json(workspace.resolved(dataset, "groups"), {"groups": settings.puma.groups})
    write_json(workspace.request_record(dataset), {"request": _request_digest(workspace, dataset)})
    target = workspace.source_record(dataset)
    write_json(target, {"source": described, "sha256": content})
    origin = "PUMA's own" if own is None else f"{own.source or own.path}, SHA-256 {content}"
    typer.echo(f"{dataset}: {origin}; written to {target.relative_to(workspace.root)}")


def _code(values: Any) -> dict[str, str]:
    """The digests of the user's own modules that these settings name, by what is named."""
    from puma.project.user_code import code_digest

    if isinstance(values, list):
        return {name: digest for each in values for name, digest in _code(each).items()}
    if not isinstance(values, dict):
        return {}
    found = {}
    for key, value in values.items():
        if key in OWN_CODE_KEYS and OWN_CODE in str(value):
            found[value] = code_digest(value, key, "package.module:name", SettingsError).hex()
        elif key != "kwargs":
            found |= _code(value)
    return found


def _request_digest(workspace: Workspace, dataset: str) -> str | None:
    """Of the request's file, keyed; None where there is none, and the demonstration stands in."""
    from puma.requests.digest import keyed_digest, project_key

    path = workspace.request(dataset)
    _refuse_strays(path.parent, workspace.settings)
    if not os.path.lexists(path):
        return None
    try:
        content = path.read_bytes().hex()
    except OSError as error:  # the stage `request` tells what to do about it
        content = str(error.errno)
    return keyed_digest(project_key(workspace.key), "request file", content)


def request(dataset: DatasetName) -> None:
    """Check a dataset's deletion request, or mark the demonstration's, and write it down.

    The request is deletions/DATASET.csv (subject_id, request_id, requested_at, reason);
    without one, the rows that params.yaml's `marking` chooses stand in for it.
    """
    workspace = Workspace.of(dataset)
    chosen, source = _request(workspace, dataset)
    target = workspace.deletion_set(dataset)
    from puma.requests.archive import archive_request
    from puma.requests.digest import project_key

    archive_request(workspace, chosen)
    chosen.write(target, reason=source, key=project_key(workspace.key))
    typer.echo(f"{dataset}: {source}: {chosen.summary}")
    typer.echo(f"written to {target.relative_to(workspace.root)}")


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
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**32 - 1,
            help="Of the removal, and of weights trained anew; the version's if absent.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove a request's people from a registered version, audit, and register the result.

    The new version is also without everybody whom that version was without. The same request
    again finds the version that answers it.

    `torchrun --nproc-per-node 2 -m puma remove …` shares the rows of PUMA's passes among two
    processes.

    Exit code: 0 the verdict on the version that answers the request is one that
    `promotion.accept` names (passed, indistinguishable), 1 it is another one, 2 nothing was
    registered.
    """
    # As in dvc.yaml: with models this small threads wait for each other longer than they work.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with _ranks() as ranks:
        if ranks is not None and ranks.rank > 0:
            _help(ranks)
            return
        dataset, version = version_at(model)
        workspace = Workspace.of(dataset)
        from puma.workflows.remove import remove_request

        done = remove_request(
            workspace,
            dataset,
            version,
            deletions,
            method=method,
            budget=budget,
            seed=seed,
            ranks=ranks,
        )
    accepted = done.version.verdict in workspace.settings.promotion.accept
    if as_json:
        print_json(_as_json(done))
    else:
        _print_outcome(done, accepted=accepted)
    if not accepted:
        raise typer.Exit(FAILED)


def _ranks() -> AbstractContextManager[Ranks | None]:
    """The processes that torchrun started for this command; None where this is the only one."""
    if not several_ranks():
        return nullcontext()
    from puma.workflows.ranks import Ranks

    return Ranks()


def _help(ranks: Ranks) -> None:
    """Take part in the removal of rank 0, which prints; an error is for torchrun's report."""
    from torch.distributed.elastic.multiprocessing.errors import record

    @record
    def help_quietly() -> None:
        try:
            ranks.help()
        except PumaError as error:
            raise error from None  # what the user's own code raised may name a row

    try:
        help_quietly()
    except PumaError as error:
        if "TORCHELASTIC_ERROR_FILE" not in os.environ:
            typer.echo(f"puma: rank {ranks.rank}: {error}", err=True)
        raise typer.Exit(REFUSED) from error


def _request(workspace: Workspace, dataset: str) -> tuple[DeletionSet, str]:
    """The deletion set and, in words, where it came from."""
    from puma.data import Dataset
    from puma.requests.deletion_set import DeletionSet

    settings = workspace.settings
    data = Dataset.load(workspace.data(dataset))
    allow = settings.deletion.allow_class_removal
    path = workspace.request(dataset)
    _refuse_strays(path.parent, settings)
    if os.path.lexists(path):  # a link to nowhere, too, was meant as a request
        chosen = DeletionSet.read(path, data, allow_class_removal=allow)
        return chosen, f"request in {path.relative_to(workspace.root)}"
    from puma.requests.demonstration import describe, mark

    rows = mark(data, settings.marking, seed=settings.seed)
    ids = sorted(set(data.train.subject_ids[rows.numpy()].tolist()))
    chosen = DeletionSet.of(ids, data, allow_class_removal=allow)
    return chosen, f"demonstration ({describe(settings.marking)})"


def _refuse_strays(folder: Path, settings: Settings) -> None:
    """Raise DeletionError when ``folder`` holds what no dataset's request is read from."""
    if not os.path.lexists(folder):
        return
    try:
        found = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise DeletionError(
            f"{folder}: cannot be read ({error.strerror}); make it a folder that you can read"
        ) from error
    datasets = settings.datasets
    names = (*BUILT_IN_DATASETS, *settings.sources, *datasets)
    read = {"README.md", *(f"{name}.csv" for name in names)}
    strays = [name for name in found if name not in read and not name.startswith(".")]
    if strays:
        raise DeletionError(
            f"{folder}: {', '.join(map(repr, strays))} would go unread; a request is named "
            f"<dataset>.csv after a dataset ({', '.join(datasets)}): rename it, or move it away"
        )


def _as_json(done: RemovalOutcome) -> dict[str, object]:
    return {
        "dataset": done.dataset,
        "outcome": done.outcome,
        "n_rows": done.n_rows,
        "n_subjects": done.n_subjects,
        "removals_since_training": done.history.count,
        "cumulative_drift": done.history.drift,
        "retrain_due": done.retrain_due,
        "request_verdict": done.request_verdict,
        "seconds": done.seconds,
        "version": done.version.to_dict(),
    }


def _print_outcome(done: RemovalOutcome, *, accepted: bool) -> None:
    name = f"puma-{done.dataset} version {done.version.version}"
    rows = sorted((*done.compared, done.version), key=lambda row: row.version)
    print_comparison(f"puma-{done.dataset}", rows)
    outcome = {
        "registered": f"{name} registered: {rows_of_people(done.n_rows, done.n_subjects)} removed",
        "in place": f"{name} answers this request already; nothing was registered",
        "nothing left": f"{name} is without all of these people already; nothing was registered",
    }
    typer.echo(f"{outcome[done.outcome]}, in {done.seconds:.1f} s")
    typer.echo(f"audit: {in_words(done.version.verdict or 'none')}")
    if done.request_verdict is not None:
        verdict = in_words(done.request_verdict.partition(":")[0])
        typer.echo(f"of everybody removed so far; of those of its own request alone: {verdict}")
    from puma.registry.versions import BOUND

    bound = done.version.tags.get(BOUND)
    if bound is not None:
        typer.echo(f"kept from their target margins by the budgets of: {bound}")
    count, drift = done.history.count, done.history.drift
    moved = f"which moved the loss by {drift:+.3g} nats"
    typer.echo(f"removals since the last full training: {count}, {moved}")
    if done.retrain_due is not None:
        typer.echo(f"a full training is due: {done.retrain_due}; run it with --method retrain")
    if "champion" not in done.version.aliases:
        words = "let it serve" if accepted else "it may not serve; this says how to go on"
        typer.echo(f"{words}: puma promote {done.dataset} {done.version.version}")
