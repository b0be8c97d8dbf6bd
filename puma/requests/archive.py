"""What a version was made from, found again by its digests: the data, and whom it is without."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from puma.data.base import Dataset
from puma.errors import AbsentError, DataError, DeletionError
from puma.project.workspace import Workspace
from puma.requests.deletion_set import DeletionSet, project_key


def find_data(workspace: Workspace, dataset: str, digest: str) -> Dataset:
    """The project's data, if it is that of ``digest``.

    Raises AbsentError when there is none, DataError for other data.
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
    return data


def find_request(workspace: Workspace, data: Dataset, digest: str) -> DeletionSet:
    """Everybody who was removed for the deletion set of ``digest``.

    Looked for among the answered requests, then in what the pipeline acts on. The key is read,
    never made. Raises AbsentError when neither is here, or no key; DataError when what is here is
    another request, was keyed otherwise, or is none of this data.
    """
    if not workspace.key.exists():
        raise AbsentError(
            f"{workspace.key} is not here, and digests cannot be compared without it; restore it "
            "from a backup"
        )
    key = project_key(workspace.key)
    kept, current = workspace.answered(data.name, digest), workspace.deletion_set(data.name)
    here = [path for path in (kept, current) if path.exists()]
    if not here:
        raise AbsentError(f"neither {kept} nor {current} is here; put that version's request back")
    for path in here:
        try:
            found = DeletionSet.read(path, data, allow_class_removal=True)
        except DeletionError as error:
            raise DataError(f"{path}: no request of this data any more ({error})") from error
        if found.digest(key) == digest:
            return found
    raise DataError(
        f"{' and '.join(map(str, here))}: another request, or {workspace.key} another key, than "
        f"this version was made with; put that version's back, the request as {kept}"
    )


def archive_request(workspace: Workspace, deletion_set: DeletionSet) -> None:
    """Keep a request that is answered, for its owner's eyes alone; later removals build on it."""
    digest = deletion_set.digest(project_key(workspace.key))
    deletion_set.write(workspace.answered(deletion_set.dataset.name, digest), reason="answered")


@dataclass(frozen=True, repr=False)
class Asked:
    """A request, beside whom a version is without already.

    new: those still to be removed, as a set of the data without the earlier ones; None when
    there is nobody. earlier: whom the parent is without. everybody: both, of the whole data."""

    new: DeletionSet | None
    earlier: DeletionSet | None
    everybody: DeletionSet

    @property
    def n_rows(self) -> int:
        return 0 if self.new is None else len(self.new)

    @property
    def n_subjects(self) -> int:
        return 0 if self.new is None else len(self.new.subject_ids)


def read_request(workspace: Workspace, path: Path, data: Dataset, answered: str | None) -> Asked:
    """The request at ``path``, to a version whose deletion set has the digest ``answered``.

    ``answered`` is None for an original. Raises DeletionError for a request that cannot be
    honoured, and as :func:`find_request` does.
    """
    allow = workspace.settings.deletion.allow_class_removal
    asked = DeletionSet.read(path, data, allow_class_removal=allow)
    if answered is None:
        return Asked(asked, None, asked)
    earlier = find_request(workspace, data, answered)
    new = sorted({*asked.subject_ids} - {*earlier.subject_ids})
    if not new:
        return Asked(None, earlier, earlier)
    everybody = DeletionSet.of(
        [*earlier.subject_ids, *earlier.test_only_ids, *new, *asked.test_only_ids],
        data,
        allow_class_removal=allow,
    )
    left = replace(data, train=data.train.without(earlier.rows))
    return Asked(DeletionSet.of(new, left, allow_class_removal=allow), earlier, everybody)
