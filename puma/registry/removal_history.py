"""How far a line of removals has gone since the last full training."""

from __future__ import annotations

from dataclasses import dataclass

from puma.lineage.records import RETRAIN
from puma.registry.versions import RegisteredVersion
from puma.settings import RetrainAfter

DRIFT, COUNT = "cumulative_drift", "removals_since_training"


@dataclass(frozen=True)
class RemovalHistory:
    """The removals since the last full training.

    Attributes:
        count: How many there were.
        drift: The sum of their criterion drifts, in nats. Each is the change of the mean loss of
            the rows that were retained then.
    """

    count: int
    drift: float

    def after(self, method: str, drift: float) -> RemovalHistory:
        """The history after one more removal; a removal by retraining is a full training."""
        if method == RETRAIN:
            return START
        return RemovalHistory(self.count + 1, self.drift + drift)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics that a version logs."""
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
    """The history of a registered version; originals and retrained versions start a new one."""
    if row.deletion_digest is None:
        return START
    if COUNT in row.metrics:
        return RemovalHistory(int(row.metrics[COUNT]), row.metrics[DRIFT])
    # The pipeline removes only from originals and logs only the one drift.
    return START.after(row.method, row.metrics["criterion_drift"])
