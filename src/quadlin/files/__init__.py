"""Model files, ONNX graphs and checkpoints, written atomically and checked when they are read.

`save`, `load` and `to_onnx` know the estimators; `atomic` and `checkpoints` are used by them.
"""
