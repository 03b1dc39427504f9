"""Fitted estimators as files: `save` and `load` for quadlin, ONNX for other runtimes.

Imports every room below.
Gives users `save`, `load` and `to_onnx`.
"""

from quadlin.export.model_file import load, save
from quadlin.export.onnx import to_onnx

__all__ = ["load", "save", "to_onnx"]
