"""Second order linear models, y = b + xᵀw + xᵀMx, with M low-rank and of either sign."""

from importlib import import_module

from quadlin.core.version import __version__ as __version__

TYPE_CHECKING = False  # `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from quadlin.core.moments import Moments
    from quadlin.data import open_source
    from quadlin.estimators.classifier import SecondOrderClassifier
    from quadlin.estimators.factorization_machines import (
        FactorizationMachineClassifier,
        FactorizationMachineRegressor,
    )
    from quadlin.estimators.regressor import SecondOrderRegressor, SecondOrderRegressorCV
    from quadlin.estimators.signals import MatrixSensing, PhaseRetriever
    from quadlin.explain.pairs import find_pairs
    from quadlin.files.model_file import load, save
    from quadlin.files.onnx import to_onnx
    from quadlin.solve.lowrank.types import Status
    from quadlin.versions import show_versions


__all__ = [
    "FactorizationMachineClassifier",
    "FactorizationMachineRegressor",
    "MatrixSensing",
    "Moments",
    "PhaseRetriever",
    "SecondOrderClassifier",
    "SecondOrderRegressor",
    "SecondOrderRegressorCV",
    "Status",
    "find_pairs",
    "load",
    "mip_report",
    "open_source",
    "save",
    "show_versions",
    "to_onnx",
]

_HOMES = {  # loaded when first asked for, so that `import quadlin` costs next to nothing
    "FactorizationMachineClassifier": "quadlin.estimators.factorization_machines",
    "FactorizationMachineRegressor": "quadlin.estimators.factorization_machines",
    "MatrixSensing": "quadlin.estimators.signals",
    "Moments": "quadlin.core.moments",
    "PhaseRetriever": "quadlin.estimators.signals",
    "SecondOrderClassifier": "quadlin.estimators.classifier",
    "SecondOrderRegressor": "quadlin.estimators.regressor",
    "SecondOrderRegressorCV": "quadlin.estimators.regressor",
    "Status": "quadlin.solve.lowrank.types",
    "find_pairs": "quadlin.explain.pairs",
    "load": "quadlin.files.model_file",
    "mip_report": "quadlin.explain.diagnosis",
    "open_source": "quadlin.data",
    "save": "quadlin.files.model_file",
    "show_versions": "quadlin.versions",
    "to_onnx": "quadlin.files.onnx",
}


def __getattr__(name: str) -> "Any":
    if name not in _HOMES:
        raise AttributeError(f"module 'quadlin' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)  # asked for once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
