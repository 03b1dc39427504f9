"""Second order linear models, y = b + xᵀw + xᵀMx, with M low-rank and of either sign."""

from quadlin.moments import Moments, mip_report
from quadlin.regressor import FactorizationMachineRegressor, SecondOrderRegressor
from quadlin.selection import SecondOrderRegressorCV
from quadlin.solve import Status

__version__ = "0.1.0"

__all__ = [
    "FactorizationMachineRegressor",
    "Moments",
    "SecondOrderRegressor",
    "SecondOrderRegressorCV",
    "Status",
    "mip_report",
]
