"""Registering at the same time from several machines, which share only the store.

There is no lock across machines. But MLflow gives version numbers one after the other. So each
process first creates its version, and then searches for others of the same model. The version
with the lowest number stays; the process that created a higher one deletes it.
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
ATTEMPTS = 10  # one fails only if another process succeeds
# What the databases and MLflow report when another process has just written the same row.
OVERTAKEN = ("UniqueViolation", "UNIQUE constraint", "Duplicate entry", "Giving up after")


def keep_first(
    client: MlflowClient, dataset: str, tag: str, value: str, made: ModelVersion
) -> ModelVersion:
    """The lowest version of ``dataset`` whose ``tag`` is ``value``; ``made`` is deleted if higher.

    Args:
        client: MLflow's client of the store.
        dataset: Whose registered model.
        tag: The tag that is the same for versions of the same model.
        value: Its value.
        made: The version that the caller has just created. Its run and its model are deleted
            with it.
    """
    first = find_tagged(client, dataset, tag, value)[0]
    if int(first.version) != int(made.version):
        _delete(client, made, keep=first)
    return first


def delete_duplicates(
    client: MlflowClient, dataset: str, tag: str, value: str
) -> ModelVersion | None:
    """The lowest version of ``dataset`` whose ``tag`` is ``value``, or None; others are deleted.

    Others are left by processes that died before :func:`keep_first`. One that somebody uses
    stays: an alias other than ``challenger`` points at it, or a version was made from it.
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
    """Create the registered model of ``dataset``, unless it exists."""
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
    """Create a version, also while other processes do."""
    name = model_name(dataset)
    return retry_overtaken(lambda: client.create_model_version(name, **described))


def set_alias(client: MlflowClient, dataset: str, alias: str, version: int) -> None:
    """Set an alias, also while other processes do."""
    name = model_name(dataset)
    retry_overtaken(lambda: client.set_registered_model_alias(name, alias, str(version)))


def retry_overtaken(act: Callable[[], T]) -> T:
    """Call ``act``, and again while it fails because another process wrote the same row.

    Args:
        act: One transaction: if it fails, it has changed nothing.

    Raises:
        RegistryError: It failed that way ten times.
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

    A second version of the same model does not count: it is about to be deleted.
    """
    seen, newest = set(), versions[-1]
    for each in find_versions(client, dataset):
        fingerprint = each.tags.get(FINGERPRINT)
        is_removal = fingerprint is not None and parent_version(each.tags) is not None
        if is_removal and fingerprint not in seen and int(each.version) > max(versions):
            newest = int(each.version)
        seen.add(fingerprint)
    return newest


def follow(client: MlflowClient, dataset: str, alias: str, newest: Callable[[], int]) -> None:
    """Set ``alias`` to the version that ``newest`` returns, until it returns the same again.

    Of several processes that do so at once, the last one sees all versions.
    """
    while find_aliases(client, dataset).get(alias) != (due := newest()):
        set_alias(client, dataset, alias, due)


def _delete(client: MlflowClient, found: ModelVersion, *, keep: ModelVersion) -> None:
    """Delete the version, then its model and its run, unless ``keep`` has the same ones.

    MLflow's client repeats a request whose response was lost: then two versions share them.
    """
    _delete_once(client.delete_model_version, found.name, str(found.version))
    if found.source != keep.source:
        _delete_once(delete_model, client, found.source.removeprefix("models:/"))
    if found.run_id != keep.run_id:
        _delete_once(delete_run, client, found.run_id)


def _delete_once(delete: Callable[..., None], *arguments: object) -> None:
    """Call ``delete``; another process may have deleted the same."""
    from mlflow.exceptions import MlflowException

    try:
        delete(*arguments)
    except MlflowException as error:
        if error.error_code != NOT_THERE:
            raise
