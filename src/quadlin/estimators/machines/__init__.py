"""Factorization machines for numbers and labels, and the recommendations that they make.

Imports `labels`, `regression` and `rows`.
Gives users `FactorizationMachineRegressor` and `FactorizationMachineClassifier`.
"""
