"""SISA: models on disjoint shards, trained slice by slice, retrained from a checkpoint."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from puma.data.base import Dataset, Examples
from puma.errors import DataError, DeletionError
from puma.models import Ensemble, load_weights, save_weights
from puma.models.training import History, train
from puma.removal.base import RemovalMethod
from puma.removal.results import Parameter, Patch, Trained
from puma.removal.training_records import seal, sealed, unseal
from puma.requests.deletion_set import DeletionSet
from puma.settings import SisaSettings, original_of


class SISA(SisaSettings, RemovalMethod):
    """Sharded, Isolated, Sliced, Aggregated training (Bourtoule et al., 2021, Section V).

    ``fit`` deals the training rows into ``shards``, and every shard into ``slices``. Each shard
    trains a model of its own, all from the same initial weights, in as many stages as there are
    slices: stage r goes on from stage r − 1 and learns from slices 0 to r. The weights after
    every stage are kept. The predictor is the vote of the shards' models.

    ``remove`` goes back, in every shard that holds a marked row, to the weights before the
    first slice that holds one, and does the stages from there again without the marked rows.
    That is exactly what training without them, on the same shards and slices, gives: no weight
    depends on a marked row. The other shards keep their weights bit for bit. A shard of which
    no row is left is left out of the vote.

    Every stage is a training of its own, with a fresh optimiser and a seed that depends on the
    shard and the slice alone; otherwise the moments of Adam would be a further thing to keep
    and to forget.

    Attributes:
        shards: How many models. More make removals cheaper and every model weaker.
        slices: Stages of each shard, and checkpoints to go back to.
        assignment: "random" deals people out by the seed; "ordered" in the order of the data, so
            that rows which are likely to go together, or late, can be put next to each other
            (the paper's Ordered scenario). A person's rows all go into one slice: a request
            names a person, and takes all of their rows, so this way it costs one shard.
        vote: "mean" or "majority", see :class:`puma.models.Ensemble`.
    """

    method = "sisa"
    original = original_of("sisa")
    exact = True

    @property
    def epochs_per_slice(self) -> int:
        """2/(R + 1) of ``training.epochs``, rounded, at least 1 (Bourtoule et al., Section V).

        Stage r visits r of R slices, so the stages together visit as many examples as plain
        training does.
        """
        return max(1, round(2 * self.training.epochs / (self.slices + 1)))

    def _start(self, model: nn.Module, dataset: Dataset) -> nn.Module:
        members = [copy.deepcopy(model) for _ in range(self.shards)]
        return Ensemble(members, vote=self.vote, task=dataset.task.name)

    def _train(
        self, predictor: nn.Module, dataset: Dataset, records: Path | None, *, progress: bool
    ) -> History:
        folder, ensemble = cast(Path, records), cast(Ensemble, predictor)
        places = self._places(dataset.train)
        unseal(folder)
        curves = _Curves(self.slices)
        with self._bar(self.shards * self.slices, "fit", progress) as bar:
            for shard in range(self.shards):
                member = ensemble.member(shard)
                for stage in range(self.slices):
                    rows = self._rows(places, shard, stage)
                    curves.add(stage, self._stage(member, dataset.train, rows, shard, stage))
                    save_weights(member, _checkpoint(folder, shard, stage))
                    bar.update()
        seal(folder, self._manifest(dataset))
        return curves.history

    def _patch(self, trained: Trained, deletion_set: DeletionSet, *, progress: bool) -> Patch:
        folder = sealed(trained.records, self._manifest(trained.dataset))
        examples = trained.dataset.train
        ensemble = cast(Ensemble, copy.deepcopy(trained.predictor))
        initial = cast(Ensemble, trained.initial)
        places = self._places(examples)
        affected = places[deletion_set.rows]
        places[deletion_set.rows] = -1  # in no shard any more
        first = {
            shard: int((affected[affected // self.slices == shard] % self.slices).min())
            for shard in (affected // self.slices).unique().tolist()
        }
        if not (places >= 0).any():
            raise DeletionError(
                f"no training row is left in any of the {self.shards} shards; no model can stand "
                "on nothing: retire the model instead"
            )
        curves = _Curves(self.slices)
        stages = sum(self.slices - start for start in first.values())
        label = f"retrain {len(first)} of {self.shards} shards"
        with self._bar(stages, label, progress) as bar:
            for shard, start in first.items():
                member = ensemble.member(shard)
                if start == 0:
                    member.load_state_dict(initial.member(shard).state_dict())
                else:
                    load_weights(member, _checkpoint(folder, shard, start - 1))
                for stage in range(start, self.slices):
                    rows = self._rows(places, shard, stage)
                    curves.add(stage, self._stage(member, examples, rows, shard, stage))
                    bar.update()
                if not len(rows):
                    ensemble.silence(shard)
        return Patch(
            ensemble.eval(),
            outcomes={
                "epochs_per_slice": self.epochs_per_slice,
                "steps": curves.history.steps,
            },
            diagnostics={
                "shards_retrained": float(len(first)),
                "shards_silenced": float((~ensemble.voting).sum()),
                "slices_retrained": float(stages),
            },
            history=curves.history,
        )

    def _places(self, examples: Examples) -> Tensor:
        """(n,) shard·slices + slice of every row; depends on who owns which row alone.

        Raises DataError when a shard gets none.
        """
        _, first, owner, sizes = np.unique(
            examples.subject_ids, return_index=True, return_inverse=True, return_counts=True
        )
        people = np.argsort(first)  # in the order of the data
        if self.assignment == "random":
            people = np.random.default_rng(self.seed).permutation(people)
        # The k-th of n rows, people in this order, belongs to cell k·cells/n: a person goes
        # where the middle of their rows does.
        cells = self.shards * self.slices
        middles = np.cumsum(sizes[people]) - sizes[people] / 2
        of_person = np.empty(len(people), dtype=np.int64)
        of_person[people] = (middles * cells / len(examples)).astype(np.int64)
        places = torch.from_numpy(of_person[owner])
        filled = len((places // self.slices).unique())
        if filled < self.shards:
            raise DataError(
                f"{len(examples)} training rows of {len(people)} people fill {filled} of "
                f"{self.shards} shards; lower sisa.shards"
            )
        return places

    def _rows(self, places: Tensor, shard: int, stage: int) -> Tensor:
        """(m,) ascending row indices of what ``stage`` of ``shard`` learns from."""
        start = shard * self.slices
        return ((places >= start) & (places <= start + stage)).nonzero().flatten()

    def _stage(
        self, member: nn.Module, examples: Examples, rows: Tensor, shard: int, stage: int
    ) -> History:
        """Train ``member`` on ``rows``; a stage without rows leaves it as it is."""
        if not len(rows):
            return History((), 0)
        seed = int(np.random.SeedSequence((self.seed, shard, stage)).generate_state(1)[0])
        settings = self.training.model_copy(update={"epochs": self.epochs_per_slice})
        return train(member, examples.subset(rows), settings, seed=seed, progress=False)

    def _training_parameters(self) -> dict[str, Parameter]:
        return {**self.recorded_settings(), "epochs_per_slice": self.epochs_per_slice}

    def _manifest(self, dataset: Dataset) -> dict[str, Any]:
        return {"data_digest": dataset.digest, **self.model_dump(), "method": self.method}

    def _bar(self, total: int, label: str, progress: bool) -> tqdm[Any]:
        return tqdm(total=total, desc=label, unit="slice", disable=not progress, mininterval=0.5)


class _Curves:
    """The loss curves of the shards' stages, and the mean of those that were trained."""

    def __init__(self, stages: int) -> None:
        self._stages: list[list[tuple[float, ...]]] = [[] for _ in range(stages)]
        self._steps = 0

    def add(self, stage: int, history: History) -> None:
        self._steps += history.steps
        if history.loss:
            self._stages[stage].append(history.loss)

    @property
    def history(self) -> History:
        """``loss``: stage after stage, epoch by epoch, the mean over the shards (nats)."""
        means = [np.mean(curves, axis=0) for curves in self._stages if curves]
        return History(tuple(float(loss) for curve in means for loss in curve), self._steps)


def _checkpoint(records: Path, shard: int, stage: int) -> Path:
    return records / f"shard-{shard}-slice-{stage}.pt"
