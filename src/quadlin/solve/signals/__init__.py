"""Signals and matrices from measurements: phase retrieval, and matrices that are not symmetric.

Imports `fits` and `lowrank`.
Gives the estimators `PhaseRetriever` and `MatrixSensing` their solvers.
"""

# From top to bottom:
#   phase, second_look  a signal from squares of products, and a check of its residual
#   bilinear            a matrix from products aᵀMb
#   search              several starts, by least squares or Huber's loss
#   levenberg           the steps of one start
#   measurements        products with A and Aᴴ, counted and conditioned
