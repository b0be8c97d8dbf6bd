"""Commands about versions: list, compare, promote and erase them, and see that all are registered.

What takes seconds to import is imported when a command runs; see puma.cli.main.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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
from puma.cli.tables import print_comparison, print_json, print_table, version_cells
from puma.errors import RegistryError
from puma.project.workspace import Workspace
from puma.settings import ORIGINAL, is_original

if TYPE_CHECKING:
    from puma.erasure.erase import Erasure
    from puma.registry import RegisteredVersion
    from puma.registry.promotion_rules import Condition


def versions(
    dataset: DatasetName,
    as_json: AsJson = False,
) -> None:
    """List every registered version of a dataset's model."""
    workspace = Workspace.of(dataset)
    from puma.registry import Registry

    registry = Registry.open(workspace)
    rows = registry.versions(dataset)
    if as_json:
        print_json([row.to_dict() for row in rows])
        return
    test = "R²" if any("test_r2" in row.metrics for row in rows) else "acc."
    columns = ("no.", "method", "aliases", "from", "rows", "deletion", test, "verdict", "secs")
    print_table(
        f"Versions of puma-{dataset}",
        columns,
        [version_cells(row) for row in rows],
        wrapped=("aliases", "verdict"),
    )
    for tombstone in registry.tombstones(dataset).values():
        words = f"version {tombstone.version} ({tombstone.method}) was erased on {tombstone.when}"
        typer.echo(f"{words}; the certificates that refer to it can still be checked")
    if not rows:
        typer.echo(f"no version of puma-{dataset} yet; run `dvc repro`", err=True)


def compare(
    dataset: Annotated[
        str | None,
        typer.Argument(metavar="[DATASET]", help="A dataset of params.yaml; all if absent."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the versions of the current pipeline side by side.

    First the plain original and every removal; then what was trained for one method alone. As
    JSON: by dataset, a list as `puma versions --json` gives it.
    """
    workspace = Workspace.find() if dataset is None else Workspace.of(dataset)
    names = workspace.settings.datasets if dataset is None else [dataset]
    if as_json:
        print_json({name: [row.to_dict() for row in _current(workspace, name)] for name in names})
        return
    for name in names:
        rows = _current(workspace, name)
        own = [row for row in rows if is_original(row.method) and row.method != ORIGINAL]
        print_comparison(f"Versions of puma-{name}", [row for row in rows if row not in own])
        if own:
            print_comparison("Originals that one method removes from", own)


def _current(workspace: Workspace, dataset: str) -> list[RegisteredVersion]:
    """The versions that the pipeline made from what it has now."""
    from puma.lineage.records import read_model_records
    from puma.registry import Registry

    current = {record.fingerprint for record in read_model_records(workspace, dataset)}
    rows = [row for row in Registry.open(workspace).versions(dataset) if row.fingerprint in current]
    if len(rows) < len(current):
        raise RegistryError(
            f"{len(current) - len(rows)} of the {len(current)} versions of {dataset!r} are not "
            "registered yet; run `dvc repro`"
        )
    return rows


def registered(as_json: AsJson = False) -> None:
    """Exit with 0 when every model record has its version, and with 1 when one has not."""
    workspace = Workspace.find()
    from puma.registry import missing

    gap = missing(workspace)
    if as_json:
        print_json({"registered": gap is None, "missing": gap})
    else:
        typer.echo("every version is registered" if gap is None else f"not registered: {gap}")
    if gap is not None:
        raise typer.Exit(FAILED)


def promote(
    dataset: DatasetName,
    version: VersionName,
    force: Annotated[
        str | None,
        typer.Option(
            metavar="REASON",
            help="Promote although a condition does not hold; the reason is recorded.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let a registered version serve: move `champion` to it, if it meets the conditions.

    Its audit passed, its drift is within the budget, the audit is about its present weights and
    its own request, its certificate agrees with the registry, and nobody comes back whom another
    version has forgotten.

    Exit code: 0 it serves, 1 a condition fails, 2 one cannot be checked.
    """
    workspace = Workspace.of(dataset)
    from puma.registry.promotion import PromotionRefusedError
    from puma.registry.promotion import promote as move

    try:
        done = move(workspace, dataset, version, force=force)
    except PromotionRefusedError as error:
        typer.echo(f"puma: {error}", err=True)
        if as_json:
            print_json({"dataset": dataset, "moved": False, **_checked(error.conditions)})
        raise typer.Exit(FAILED if error.any_fails else REFUSED) from error
    if as_json:
        print_json({**vars(done), **_checked(done.conditions)})
        return
    if not done.moved:
        typer.echo(f"puma-{dataset} version {done.version} serves already; nothing was changed")
        return
    for condition in done.conditions:
        forced = "FORCED " if condition.name in done.overridden else ""
        typer.echo(f"{forced}{condition.name}: {condition.detail}")
    if force is not None and not done.overridden:
        typer.echo("nothing had to be forced; the reason was not recorded")
    after = "" if done.previous is None else f", after version {done.previous}"
    typer.echo(f"puma-{dataset} version {done.version} is champion now{after}")


def _checked(conditions: tuple[Condition, ...]) -> dict[str, list[dict[str, str]]]:
    """The conditions of a promotion, as data."""
    return {"conditions": [vars(each) for each in conditions]}


def erase(
    dataset: DatasetOrModel,
    version: OptionalVersion = None,
    yes: Annotated[bool, typer.Option("--yes", help="Erase; else it is only shown.")] = False,
    as_json: AsJson = False,
) -> None:
    """Erase a version that serves no more: its model and run, its files, its part of DVC's cache.

    Without --yes, shows what would go and what is out of reach. Afterwards every file of the
    project is searched for the weights.

    Exit code: 0 nothing of it is left (or would be), 1 something is, 2 it is not to be erased.
    """
    dataset, version = version_named(dataset, version)
    workspace = Workspace.of(dataset)
    from puma.erasure.erase import erase as remove

    done = remove(workspace, dataset, version, act=yes)
    if as_json:
        print_json(done.to_dict())
    else:
        _print_erasure(done)
    if done.left:
        raise typer.Exit(FAILED)


def _print_erasure(done: Erasure) -> None:
    word = "erased" if done.acted else "would erase"
    titles = {
        "registry": f"{word} from the registry:",
        "files": f"{word} files:",
        "cache": f"{word} from DVC's cache:",
        "stages": f"{word} stages that dvc.lock tells of:",
    }
    sections = [(title, done.removed[kind]) for kind, title in titles.items()]
    sections += [("stays, as others need it:", done.kept), ("LEFT:", done.left)]
    sections += [("out of reach:", done.out_of_reach)]
    for title, lines in sections:
        if lines:
            typer.echo("\n  ".join([title, *lines]))
    name = f"puma-{done.dataset} version {done.version}"
    if done.left:
        typer.echo(
            f"{name}: {'not all is erased' if done.acted else 'not all would be erased'}; "
            "see LEFT, and run the command again"
        )
    elif not any(done.removed.values()):
        typer.echo(f"{name}: nothing is left to erase")
    elif done.acted:
        typer.echo(f"{name} is erased; no file that was searched holds its weights")
    else:
        typer.echo(f"{name}: nothing was changed; --yes erases it")
