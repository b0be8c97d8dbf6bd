"""Several people register at the same time, on machines that share nothing but the store.

No lock reaches them all. MLflow gives out the numbers of versions one after the other, though:
whoever is given a higher one can see what was registered under the lower. So everybody creates
first and looks then, and of two versions of the same the first stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from puma.errors import RegistryError
from puma.registry.deletion import NOT_THERE, delete_model, delete_run
from puma.registry.versions import (
    CHALLENGER,
    FINGERPRINT,
    find_aliases,
    find_tagged,
    find_versions,
    model_name,
    parent_version,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

T = TypeVar("T")
ATTEMPTS = 10  # each of which is lost only to somebody else's success
# What the databases and MLflow say when somebody else has just written the same.
OVERTAKEN = ("UniqueViolation", "UNIQUE constraint", "Duplicate entry", "Giving up after")


def settle(
    client: MlflowClient, dataset: str, tag: str, value: str, made: ModelVersion
) -> ModelVersion:
    """The version of ``dataset`` that stands for ``value`` of ``tag``: the lowest.

    ``made`` is the one that the caller has just created, and deleted if it is not the lowest,
    with its run and its model.
    """
    first = find_tagged(client, dataset, tag, value)[0]
    if int(first.version) != int(made.version):
        _delete(client, made, keep=first)
    return first


def sweep(client: MlflowClient, dataset: str, tag: str, value: str) -> ModelVersion | None:
    """The lowest version of the same, if there is one; later ones, whose makers died before they
    could delete them, are deleted.

    Those that an alias points at, or another version was made from, stay: somebody chose them.
    ``challenger`` is no choice: it is set to what is newest.
    """
    found = find_tagged(client, dataset, tag, value)
    if len(found) > 1:
        aliases = find_aliases(client, dataset)
        used = {number for alias, number in aliases.items() if alias != CHALLENGER}
        made_from = (parent_version(each.tags) for each in find_versions(client, dataset))
        used |= {number for number in made_from if number is not None}
        for each in found[1:]:
            if int(each.version) not in used:
                _delete(client, each, keep=found[0])
    return found[0] if found else None


def create_model(client: MlflowClient, dataset: str, description: str) -> None:
    """The registered model of ``dataset``, unless there is one."""
    from mlflow.exceptions import MlflowException

    name = model_name(dataset)
    if client.search_registered_models(f"name='{name}'"):
        return
    try:
        client.create_registered_model(name, description=description)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def create_next(client: MlflowClient, dataset: str, **described: Any) -> ModelVersion:
    """``client.create_model_version``, whoever else is given a number meanwhile."""
    name = model_name(dataset)
    return persist(lambda: client.create_model_version(name, **described))


def set_alias(client: MlflowClient, dataset: str, alias: str, version: int) -> None:
    """``client.set_registered_model_alias``, whoever else sets it for the first time, too."""
    name = model_name(dataset)
    persist(lambda: client.set_registered_model_alias(name, alias, str(version)))


def persist(act: Callable[[], T]) -> T:
    """``act`` again whenever it failed because somebody else was writing the same.

    It is to be one transaction, so that what failed has left nothing. Raises RegistryError when
    others are always quicker.
    """
    from mlflow.exceptions import MlflowException

    for _ in range(ATTEMPTS):
        try:
            return act()
        except MlflowException as error:
            if not any(words in str(error) for words in OVERTAKEN):
                raise
    raise RegistryError(
        f"others wrote the same to the store {ATTEMPTS} times while this was to be registered; "
        "run the same command again"
    )


def newest_removal(client: MlflowClient, dataset: str, versions: Sequence[int]) -> int:
    """The last of ``versions``, or the newest removal that was registered after all of them.

    Twins that are still to be settled do not count.
    """
    seen, newest = set(), versions[-1]
    for each in find_versions(client, dataset):
        fingerprint = each.tags.get(FINGERPRINT)
        is_removal = fingerprint is not None and parent_version(each.tags) is not None
        if is_removal and fingerprint not in seen and int(each.version) > max(versions):
            newest = int(each.version)
        seen.add(fingerprint)
    return newest


def point(client: MlflowClient, dataset: str, alias: str, newest: Callable[[], int]) -> None:
    """Set ``alias`` to what ``newest`` reads from the registry, until that is still the newest.

    Of several who do so at the same time, the one that comes last sees what all others made.
    """
    while find_aliases(client, dataset).get(alias) != (due := newest()):
        set_alias(client, dataset, alias, due)


def _delete(client: MlflowClient, found: ModelVersion, *, keep: ModelVersion) -> None:
    """The version first: what is listed is whole. Its run and its model are left to ``keep`` if
    they are the same, as when a request whose answer was lost was sent once more."""
    _gone(client.delete_model_version, found.name, str(found.version))
    if found.source != keep.source:
        _gone(delete_model, client, found.source.removeprefix("models:/"))
    if found.run_id != keep.run_id:
        _gone(delete_run, client, found.run_id)


def _gone(delete: Callable[..., None], *arguments: object) -> None:
    """Somebody else may have deleted it at the same time."""
    from mlflow.exceptions import MlflowException

    try:
        delete(*arguments)
    except MlflowException as error:
        if error.error_code != NOT_THERE:
            raise
