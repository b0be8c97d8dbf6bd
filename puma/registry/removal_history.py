"""Removals made from removals: how far they have gone since the last full training."""

from __future__ import annotations

from dataclasses import dataclass

from puma.lineage.records import RETRAIN
from puma.registry.versions import RegisteredVersion
from puma.settings import RetrainAfter

DRIFT, COUNT = "cumulative_drift", "removals_since_training"


@dataclass(frozen=True)
class RemovalHistory:
    """``count`` removals since the last full training; ``drift``: the sum of their criterion
    drifts, in nats, each of the rows that were retained then."""

    count: int
    drift: float

    def after(self, method: str, drift: float) -> RemovalHistory:
        """With one more removal. One by retraining starts anew."""
        return START if method == RETRAIN else RemovalHistory(self.count + 1, self.drift + drift)

    @property
    def metrics(self) -> dict[str, float]:
        return {DRIFT: self.drift, COUNT: float(self.count)}

    def retraining_reason(self, limits: RetrainAfter) -> str | None:
        """Why a full training is due; None while it is not."""
        reasons = []
        if abs(self.drift) >= limits.drift:
            reasons.append(f"the drift is {self.drift:+.3g} nats, of {limits.drift:g}")
        if self.count >= limits.count:
            reasons.append(f"the removals are {self.count}, of {limits.count}")
        return " and ".join(reasons) or None


START = RemovalHistory(0, 0.0)


def history_of(row: RegisteredVersion) -> RemovalHistory:
    """Where ``row`` stands. An original and a retrained version are full trainings."""
    if row.deletion_digest is None:
        return START
    if COUNT in row.metrics:
        return RemovalHistory(int(row.metrics[COUNT]), row.metrics[DRIFT])
    # The pipeline removes from originals alone, and leaves it at the one drift.
    return START.after(row.method, row.metrics["criterion_drift"])
