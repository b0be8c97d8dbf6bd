"""What models trained once tell of every request: where models retrained without it would be.

``removal``, ``audit`` and the rooms above them may import it.
"""

from puma.references.kernel_ridge import LeaveOutRidge
from puma.references.partitions import leave_out_groups
from puma.references.pool import Half, Pool, Prediction
from puma.references.population import Population

__all__ = ["Half", "LeaveOutRidge", "Pool", "Population", "Prediction", "leave_out_groups"]
