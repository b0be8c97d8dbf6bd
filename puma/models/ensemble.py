"""Several models that vote, as one ordinary module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from puma.errors import ModelError
from puma.settings import TaskName

Vote = Literal["mean", "majority"]


class Ensemble(nn.Module):
    """The vote of several models.

    With a "mean" vote, the logits are the log of the members' mean probability. With a
    "majority", they are the log of (votes_c + 1/C) / (m + 1) for class c of C, where every one
    of m members votes for its most probable class and one more vote is shared by all classes,
    so that no logit is infinite. Either way softmax gives the shares back, the loss of an example
    is −log of its label's share, and the lowest class wins a tie. A majority has no gradient.
    Members with one logit for two classes vote with it and 0 for the other, and the ensemble's
    logit is the difference of the two shares' logs. Members of a regression give their mean.

    Attributes:
        members: The models.
        vote: "mean" or "majority".
        task: What the members' outputs are.
        voting: (members,) boolean buffer, saved with the weights. A member that is not True
            there is left out of the vote, as if it did not exist: see :meth:`silence`.

    Raises:
        ModelError: There are no members, or a regression's are to vote by majority.
    """

    voting: Tensor

    def __init__(
        self,
        members: Sequence[nn.Module],
        *,
        vote: Vote = "mean",
        task: TaskName = "classification",
    ) -> None:
        super().__init__()
        if not members:
            raise ModelError("an ensemble of 0 models cannot vote; pass at least one")
        if task == "regression" and vote == "majority":
            raise ModelError(
                "a majority needs classes, and these members are of a regression; set the vote "
                "(sisa.vote) to mean"
            )
        self.members = nn.ModuleList(members)
        self.vote: Vote = vote
        self.task: TaskName = task
        self.register_buffer("voting", torch.ones(len(members), dtype=torch.bool))

    def forward(self, features: Tensor) -> Tensor:
        """(B, K) outputs of (B, ...) ``features``."""
        outputs = torch.stack([member(features) for member in self.members])  # (members, B, K)
        counts = self.voting[:, None, None]
        if self.task == "regression":
            return torch.where(counts, outputs, 0.0).sum(0) / self.voting.sum()
        if self.task == "binary":
            shares = self._voted(torch.cat([torch.zeros_like(outputs), outputs], -1), counts)
            return shares[:, 1:] - shares[:, :1]
        return self._voted(outputs, counts)

    def _voted(self, logits: Tensor, counts: Tensor) -> Tensor:
        """(B, classes) logs of the shares that (members, B, classes) ``logits`` give."""
        if self.vote == "mean":
            silent = torch.full_like(logits, -torch.inf)
            summed = torch.where(counts, log_softmax(logits, -1), silent).logsumexp(0)
            return summed - self.voting.sum().to(logits.dtype).log()
        classes = logits.shape[-1]
        numbers = torch.arange(classes, device=logits.device)
        votes = (logits.argmax(-1, keepdim=True) == numbers) & counts
        shares = (votes.sum(0).to(logits.dtype) + 1 / classes) / (self.voting.sum() + 1)
        return shares.log()

    def silence(self, member: int) -> None:
        """Leave ``member`` (counted from 0) out of the vote from now on.

        Raises:
            ModelError: It is the last one that votes; nothing is changed.
        """
        others = self.voting.clone()
        others[member] = False
        if not others.any():
            raise ModelError("the last voting member of an ensemble cannot be silenced")
        self.voting.copy_(others)

    def member(self, number: int) -> nn.Module:
        """Return the model of that number, counted from 0."""
        return self.members[number]
