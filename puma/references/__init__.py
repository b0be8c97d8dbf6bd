"""Models trained once that tell, for every request, where models retrained without it would be.

``removal``, ``audit`` and the rooms above them may import it.
"""

from puma.references.kernel_ridge import MOST_ROWS, LeaveOutRidge
from puma.references.partitions import leave_out_groups
from puma.references.pool import Pool, Prediction, train_pool

__all__ = [
    "MOST_ROWS",
    "LeaveOutRidge",
    "Pool",
    "Prediction",
    "leave_out_groups",
    "train_pool",
]
