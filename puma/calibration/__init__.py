"""Calibration: how far confidence is from accuracy, and ways to repair it (Appendix E).

Notebooks and benchmarks import it.
"""

from puma.calibration.ece import Reliability, hard_ece, reliability
from puma.calibration.measures import Calibration, measure, reliability_of
from puma.calibration.repair import Groups, Repair, Step, calibrate_directly, patch
from puma.calibration.search import smallest_criterion
from puma.calibration.temperature import TemperatureScaled, fit_temperature, temperature_scaled

__all__ = [
    "Calibration",
    "Groups",
    "Reliability",
    "Repair",
    "Step",
    "TemperatureScaled",
    "calibrate_directly",
    "fit_temperature",
    "hard_ece",
    "measure",
    "patch",
    "reliability",
    "reliability_of",
    "smallest_criterion",
    "temperature_scaled",
]
