"""Ranks and penalties chosen by cross-validation.

Imports `regression` and `rows`.
Gives users `SecondOrderRegressorCV`.
"""
