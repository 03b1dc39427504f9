"""Signals and matrices from measurements: phase retrieval, and matrices that are not symmetric.

Imports `fits` and `lowrank`.
Gives the estimators `PhaseRetriever` and `MatrixSensing` their solvers.
"""
