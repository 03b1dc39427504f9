"""Signals and matrices from measurements: phase retrieval, and matrices that are not symmetric.

Imports `choose` and what it imports.
Gives the estimators `PhaseRetriever` and `MatrixSensing` their solvers.
"""

# From top to bottom:
#   phase     a signal from squares of products
#   matrices  a matrix from products aᵀMa, aᵀMb
#   search    rows as operators, Levenberg–Marquardt, several starts, and what a result leaves
