"""``torchrun … -m puma remove``: rank 0 serves the request, the others help it to remove."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from types import TracebackType

import torch.distributed
from torch import Tensor

from puma.errors import RankError
from puma.influence import rows_shared
from puma.influence.sharding import WAIT, backend, carried_out
from puma.lineage.models import initial_model
from puma.lineage.records import ModelIdentity
from puma.removal import Removal, RemovalMethod, Trained
from puma.requests.deletion_set import DeletionSet


@dataclass(frozen=True, repr=False)
class Task:
    """What rank 0 sends to the others: by what to remove, whom, and from which model.

    Attributes:
        remover: The method.
        forget_set: The rows, and the data that they belong to.
        identity: How the model is built.
        weights: Its state.
    """

    remover: RemovalMethod
    forget_set: DeletionSet
    identity: ModelIdentity
    weights: dict[str, Tensor]


class Ranks:
    """The processes that torchrun started for one removal, to be entered by each.

    Rank 0 alone reads and writes the registry, trains, audits and prints. Leaving, it releases the
    others, which wait for its tasks, each a day at most.

    Attributes:
        rank: Of this process; 0 is the first.
    """

    def __enter__(self) -> Ranks:
        torch.distributed.init_process_group(backend(), timeout=WAIT)
        self.rank = torch.distributed.get_rank()
        self._in_task = False
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._in_task:  # the others have failed, too, or will as soon as this process ends
            return
        if self.rank == 0:
            with contextlib.suppress(RankError):  # nothing depends on the others any more
                self._broadcast(None)
        torch.distributed.destroy_process_group()

    def remove(
        self,
        remover: RemovalMethod,
        trained: Trained,
        identity: ModelIdentity,
        forget_set: DeletionSet,
        *,
        progress: bool,
    ) -> Removal:
        """On rank 0: :meth:`RemovalMethod.remove` with the others, if the method shares its rows.

        Args:
            remover: The method.
            trained: The model to remove from.
            identity: How it is built; the others build it so.
            forget_set: The rows to remove.
            progress: Whether to show bars.

        Raises:
            RankError: Another rank has failed.
            PumaError: As ``remover.remove``.
        """
        if not remover.shares_rows:
            return remover.remove(trained, forget_set, progress=progress)
        self._broadcast(Task(remover, forget_set, identity, trained.predictor.state_dict()))
        self._in_task = True
        with rows_shared():
            removal = remover.remove(trained, forget_set, progress=progress)
        self._in_task = False
        return removal

    def help(self) -> None:
        """On the other ranks: take part in rank 0's removals, silently, until it leaves.

        Raises:
            RankError: Rank 0 or another rank has failed.
            PumaError: The removal fails, as it does on rank 0.
        """
        while (task := self._broadcast(None)) is not None:
            self._in_task = True
            model = initial_model(task.identity)
            model.load_state_dict(task.weights)
            trained = Trained(model.eval(), task.forget_set.dataset, model)
            with rows_shared(), warnings.catch_warnings(action="ignore"):
                task.remover.remove(trained, task.forget_set, progress=False)
            self._in_task = False

    def _broadcast(self, task: Task | None) -> Task | None:
        """Rank 0's ``task``, on every rank."""
        sent = [task]
        carried_out(torch.distributed.broadcast_object_list, sent, src=0)
        return sent[0]
