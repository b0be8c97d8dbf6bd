"""Finding again what a version was made from, by digests: the data, and whom it is without."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from puma.data.base import Dataset
from puma.data.groups import with_groups
from puma.errors import AbsentError, DataError, DeletionError
from puma.project.workspace import Workspace
from puma.requests.deletion_set import DeletionSet
from puma.requests.digest import project_key


def find_data(workspace: Workspace, dataset: str, digest: str) -> Dataset:
    """The project's data, with its groups, if its digest is ``digest``.

    Raises:
        AbsentError: The project holds no data of that name.
        DataError: It holds other data, or groups of other data.
    """
    path = workspace.data(dataset)
    if not path.exists():
        raise AbsentError(f"{path} is not here; run `dvc repro` to prepare it")
    data = Dataset.load(path)
    if data.digest != digest:
        raise DataError(
            f"{path} holds other data than this version was made from; check out that version's "
            "and run `dvc repro`"
        )
    return with_groups(data, workspace.groups(dataset))


def find_request(workspace: Workspace, data: Dataset, digest: str) -> DeletionSet:
    """Everybody who was removed for the deletion set of ``digest``.

    Searched among the archived requests, then in the pipeline's current one. The key is read,
    never created.

    Raises:
        AbsentError: Neither request is here, or the key is not.
        DataError: What is here is another request, has another key, or is not of this data.
    """
    if not workspace.key.exists():
        raise AbsentError(
            f"{workspace.key} is not here, and digests cannot be compared without it; restore it "
            "from a backup"
        )
    key = project_key(workspace.key)
    archived = workspace.archived_request(data.name, digest)
    current = workspace.deletion_set(data.name)
    here = [path for path in (archived, current) if path.exists()]
    if not here:
        raise AbsentError(
            f"neither {archived} nor {current} is here; put that version's request back"
        )
    for path in here:
        try:
            found = DeletionSet.read(path, data, allow_class_removal=True)
        except DeletionError as error:
            raise DataError(f"{path}: no request of this data any more ({error})") from error
        if found.digest(key) == digest:
            return found
    raise DataError(
        f"{' and '.join(map(str, here))}: another request, or {workspace.key} another key, than "
        f"this version was made with; put that version's back, the request as {archived}"
    )


def archive_request(workspace: Workspace, deletion_set: DeletionSet) -> None:
    """Keep a request that was served, readable by its owner alone; later removals build on it."""
    digest = deletion_set.digest(project_key(workspace.key))
    path = workspace.archived_request(deletion_set.dataset.name, digest)
    deletion_set.write(path, reason="answered")


@dataclass(frozen=True, repr=False)
class CumulativeRequest:
    """A request to a version that is already without some people.

    Attributes:
        new: Those still to be removed, as a set of the data without the earlier ones. None when
            nobody is left to remove.
        earlier: Those whom the version is already without. None for an original.
        everybody: Both, as a set of the whole data.
    """

    new: DeletionSet | None
    earlier: DeletionSet | None
    everybody: DeletionSet

    @property
    def n_rows(self) -> int:
        """How many training rows are still to be removed."""
        return 0 if self.new is None else len(self.new)

    @property
    def n_subjects(self) -> int:
        """How many people are still to be removed."""
        return 0 if self.new is None else len(self.new.subject_ids)


def read_cumulative_request(
    workspace: Workspace, path: Path, data: Dataset, earlier_digest: str | None
) -> CumulativeRequest:
    """Read the request at ``path``, to a version whose deletion set has ``earlier_digest``.

    Args:
        workspace: The project.
        path: The request, a CSV.
        data: The data that the version was trained on.
        earlier_digest: The keyed digest of everybody whom the version is already without; None
            for an original.

    Raises:
        DeletionError: The request cannot be honoured.
        DataError: The earlier request is not found; see :func:`find_request`.
    """
    allow = workspace.settings.deletion.allow_class_removal
    requested = DeletionSet.read(path, data, allow_class_removal=allow)
    if earlier_digest is None:
        return CumulativeRequest(requested, None, requested)
    earlier = find_request(workspace, data, earlier_digest)
    new = sorted({*requested.subject_ids} - {*earlier.subject_ids})
    if not new:
        return CumulativeRequest(None, earlier, earlier)
    everybody = DeletionSet.of(
        [*earlier.subject_ids, *earlier.test_only_ids, *new, *requested.test_only_ids],
        data,
        allow_class_removal=allow,
    )
    return CumulativeRequest(
        DeletionSet.of(new, earlier.remaining, allow_class_removal=allow), earlier, everybody
    )
