"""Phase retrieval and matrix sensing as estimators.

Imports `regression` and `rows`.
Gives users `PhaseRetriever` and `MatrixSensing`.
"""
