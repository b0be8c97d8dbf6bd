"""Retraining without the marked rows: the gold standard, and its price."""

from __future__ import annotations

import copy

from pydantic import model_validator

from puma.html_table import counted
from puma.models.training import batch_sizes, train
from puma.removal.base import RemovalMethod
from puma.removal.results import Patch, Trained
from puma.requests.deletion_set import DeletionSet
from puma.settings import RetrainSettings


class Retrain(RetrainSettings, RemovalMethod):
    """Train again from the initial weights on the retained rows alone.

    Attributes:
        schedule: "equal_epochs" as in the paper; fewer rows then mean fewer optimiser steps,
            which is why the paper's accuracy collapses at 80 % removal. "equal_steps" takes as
            many steps as the original training did, for a fair comparison.

    Of a training loop of the user's own the steps are those that optimisers of PyTorch took.
    """

    method = "retrain"
    exact = True

    @model_validator(mode="after")
    def _counts_what_can_be_counted(self) -> Retrain:
        if self.training.loop is not None and self.schedule != "equal_epochs":
            raise ValueError(
                f"schedule {self.schedule} counts optimiser steps, and training.loop "
                f"{self.training.loop!r} trains for epochs; set retrain.schedule to equal_epochs, "
                "or leave training.loop out"
            )
        return self

    @property
    def idempotent(self) -> bool:
        """True: it starts from the initial weights, whoever was removed before."""
        return True

    def _patch(self, trained: Trained, deletion_set: DeletionSet, *, progress: bool) -> Patch:
        retain_set = trained.dataset.train.without(deletion_set.rows)
        model = copy.deepcopy(trained.initial)
        per_epoch = batch_sizes(model, len(trained.dataset.train), self.training.batch_size)
        original_steps = self.training.epochs * len(per_epoch)
        history = train(
            model,
            retain_set,
            self.training,
            seed=self.seed,
            steps=original_steps if self.schedule == "equal_steps" else None,
            label=f"retrain without {counted(len(deletion_set), 'row')}",
            progress=progress,
        )
        return Patch(
            model,
            outcomes={"epochs": self.training.epochs, "steps": history.steps},
            history=history,
        )
