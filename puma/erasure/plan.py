"""Which version is to be erased, whether it may be, and by what it is told from all others."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch
from tqdm import tqdm

from puma.erasure.execution import Plan, read_plan
from puma.erasure.version_files import VersionDigests
from puma.erasure.weight_search import SHORTEST, WeightFragments, pieces
from puma.errors import RegistryError
from puma.project.workspace import Workspace
from puma.registry.loading import load_graph
from puma.registry.tombstones import Tombstone
from puma.registry.versions import (
    CHAMPION,
    WEIGHTS,
    RegisteredVersion,
    choose_version,
    match_version,
    model_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion
    from torch import Tensor


def plan_for(
    client: MlflowClient,
    workspace: Workspace,
    dataset: str,
    rows: list[RegisteredVersion],
    buried: dict[int, Tombstone],
    wanted: str,
) -> Plan:
    """The plan of an erasure that was begun, or a new one that names no file yet.

    Raises RegistryError for a version that must not be erased, or that is not there.
    """
    name = model_name(dataset)
    row = match_version(rows, wanted)
    number = row.version if row is not None else int(wanted) if wanted.isdecimal() else None
    if row is not None:
        _refuse_serving(dataset, row)
    begun = None if number is None else read_plan(workspace.erasing(dataset, number), name)
    if begun is not None and begun.searched:
        return begun
    if row is None and number is not None and number in buried:
        return Plan(buried[number])
    row = choose_version(rows, dataset, wanted)
    if not row.method:
        raise RegistryError(
            f"version {row.version} of {name} was not registered by PUMA, so that nothing says "
            "which files are its; delete it with MLflow"
        )
    found = client.get_model_version(name, str(row.version))
    _refuse_copied(client, found)
    plan = begun or Plan(Tombstone.of(found, row))
    plan.stone = Tombstone.of(found, row)  # as it is now
    plan.run_id, plan.model_id = row.run_id, found.source.removeprefix("models:/")
    return plan


def _refuse_serving(dataset: str, row: RegisteredVersion) -> None:
    if CHAMPION in row.aliases:
        raise RegistryError(
            f"version {row.version} of {model_name(dataset)} serves: it is `{CHAMPION}`; let "
            f"another one serve first (`puma promote {dataset} VERSION`)"
        )


def _refuse_copied(client: MlflowClient, found: ModelVersion) -> None:
    """Other registered versions may lead to the same run and the same archive."""
    for copy in client.search_model_versions(f"run_id='{found.run_id}'"):
        if (copy.name, copy.version) != (found.name, found.version):
            raise RegistryError(
                f"version {copy.version} of {copy.name} is registered from the same run as "
                f"version {found.version} of {found.name}; delete that one with MLflow first, if "
                "nothing uses it"
            )


def kept_versions(
    client: MlflowClient, dataset: str, rows: list[RegisteredVersion], version: int
) -> dict[int, ModelVersion]:
    """All versions of PUMA's but the one that is to be erased."""
    name = model_name(dataset)
    numbers = [row.version for row in rows if row.method and row.version != version]
    return {number: client.get_model_version(name, str(number)) for number in numbers}


def digests_of(tombstone: Tombstone, kept: dict[int, ModelVersion]) -> VersionDigests:
    return VersionDigests(
        tombstone.dataset,
        tombstone.fingerprint,
        tombstone.weights_digest,
        shares_weights=any(
            found.tags[WEIGHTS] == tombstone.weights_digest for found in kept.values()
        ),
    )


def fragments_of(
    state: Mapping[str, Tensor], stone: Tombstone, kept: dict[int, ModelVersion], *, progress: bool
) -> tuple[WeightFragments, list[str]]:
    """What the version's weights have and those of no kept version; and why it is nothing.

    Tensors that others have, too, tell of nothing: SISA retrains a part of its members only, and
    leaves the rest as they are. Raises RegistryError for a model that cannot be loaded.
    """
    same = [
        f"version {number} ({found.tags['puma.method']}) is kept and has the same weights; erase "
        "it, too"
        for number, found in kept.items()
        if found.tags[WEIGHTS] == stone.weights_digest
    ]
    if same:
        return WeightFragments(()), same
    known: set[bytes] = set()
    for found in tqdm(kept.values(), desc="loading kept versions", disable=not progress):
        for content in _contents(load_graph(found).state_dict()):
            known.update(map(_short, pieces(content)))
    told = [
        next((piece for piece in pieces(content) if _short(piece) not in known), None)
        for content in _contents(state)
    ]
    own = [piece for piece in told if piece is not None]
    if own or not state:
        return WeightFragments(own), []
    return WeightFragments(()), [
        f"each of its {len(told)} tensors is a kept version's, too, or has less than {SHORTEST} "
        "bytes, or one value: no file can be searched for the weights"
    ]


def _contents(state: Mapping[str, Tensor]) -> Iterator[bytes]:
    for tensor in state.values():
        yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _short(piece: bytes) -> bytes:
    return hashlib.sha256(piece).digest()
