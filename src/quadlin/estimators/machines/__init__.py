"""Factorization machines for numbers and labels, and the recommendations that they make.

Imports `classifier`, `regressor` and what they import.
Gives users `FactorizationMachineRegressor` and `FactorizationMachineClassifier`.
"""
