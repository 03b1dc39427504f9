"""Phase retrieval and matrix sensing as estimators.

Imports `regressor` and what it imports.
Gives users `PhaseRetriever` and `MatrixSensing`.
"""
