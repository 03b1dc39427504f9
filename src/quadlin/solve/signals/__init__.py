"""Signals and matrices from measurements: phase retrieval, and matrices that are not symmetric.

Imports `choose` and what it imports.
Gives the estimators `PhaseRetriever` and `MatrixSensing` their solvers.
"""

# From top to bottom:
#   second_look         whether y holds something else: amplitudes, a background
#   phase               a signal from squares of products
#   symmetric, bilinear a matrix from products aᵀMa, aᵀMb
#   results             what was recovered, and what it leaves of y
#   search              several starts, by least squares or Huber's loss
#   levenberg           the steps of one start
#   measurements        products with A and Aᴴ, counted and conditioned
