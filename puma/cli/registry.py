"""``puma promote``, ``puma verify`` and ``puma erase``: which version serves, whether its record
holds, and its end.

MLflow and PyTorch are imported only when a command runs, as in puma.cli.main.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from puma.cli.common import REFUSED, DatasetName, crash_exits_with_2, project_of, version_named

if TYPE_CHECKING:
    from puma.erasure.erase import Erasure

FAILED = 1
VersionDataset = Annotated[
    str, typer.Argument(metavar="DATASET", help="Or models:/puma-DATASET/VERSION, alone.")
]
VersionName = Annotated[
    str | None, typer.Argument(metavar="[VERSION]", help="A number or an alias.")
]
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
        typer.Option(
            metavar="REASON",
            help="Promote although a condition does not hold; the reason is recorded.",
        ),
    ] = None,
) -> None:
    """Let a registered version serve: move `champion` to it, if it meets the conditions.

    Its audit passed, its drift is within the budget, the audit is about its present weights and
    its own request, its certificate agrees with the registry, and nobody comes back whom another
    version has forgotten.

    Exit code: 0 it serves, 1 a condition fails, 2 one cannot be checked.
    """
    workspace = project_of(dataset)
    with crash_exits_with_2():
        from puma.registry.promotion import PromotionRefusedError
        from puma.registry.promotion import promote as move

        try:
            done = move(workspace, dataset, version, force=force)
        except PromotionRefusedError as error:
            typer.echo(f"puma: {error}", err=True)
            raise typer.Exit(FAILED if error.any_fails else REFUSED) from error
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


def verify(
    dataset: VersionDataset,
    version: VersionName = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
) -> None:
    """Check a version against its certificate, and both against what can be computed again.

    Exit code: 0 it holds, 1 it does not (the fields are named), 2 it cannot be checked.
    """
    dataset, version = version_named(dataset, version)
    workspace = project_of(dataset)
    with crash_exits_with_2():
        from puma.registry.certificate.verify import verify_version

        result = verify_version(workspace, dataset, version)
    if as_json:
        print(json.dumps(result.to_dict(), indent=2, allow_nan=False))
    else:
        for one in result.findings:
            typer.echo(f"{WORDS[one.state]}  {one.field}: {one.detail}")
        typer.echo(f"puma-{dataset} version {result.version} {result.conclusion}")
    if result.failed or result.unknown:
        raise typer.Exit(FAILED if result.failed else REFUSED)


def erase(
    dataset: VersionDataset,
    version: VersionName = None,
    yes: Annotated[bool, typer.Option("--yes", help="Erase; else it is only shown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
) -> None:
    """Erase a version that serves no more: its model and run, its files, its part of DVC's cache.

    Without --yes, shows what would go and what is out of reach. Afterwards every file of the
    project is searched for the weights.

    Exit code: 0 nothing of it is left (or would be), 1 something is, 2 it is not to be erased.
    """
    dataset, version = version_named(dataset, version)
    workspace = project_of(dataset)
    with crash_exits_with_2():
        from puma.erasure.erase import erase as remove

        done = remove(workspace, dataset, version, act=yes)
    if as_json:
        print(json.dumps(done.to_dict(), indent=2, allow_nan=False))
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
