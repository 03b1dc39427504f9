"""Second order linear models, y = b + xᵀw + xᵀMx, with M low-rank and of either sign."""

from quadlin.factorization import FactorizationMachineRegressor
from quadlin.moments import Moments, mip_report
from quadlin.onnx import to_onnx
from quadlin.persist import load, save
from quadlin.regressor import SecondOrderRegressor
from quadlin.selection import SecondOrderRegressorCV
from quadlin.solve import Status
from quadlin.sources import open_source

__version__ = "0.1.0"

__all__ = [
    "FactorizationMachineRegressor",
    "Moments",
    "SecondOrderRegressor",
    "SecondOrderRegressorCV",
    "Status",
    "load",
    "mip_report",
    "open_source",
    "save",
    "to_onnx",
]
