"""The choice of rank and penalties: by evidence, confirmed by leave-one-out errors.

Imports `fields`, `fits`, `pairs` and `lowrank`.
Gives the estimators `choice`, the fit that chooses rank and penalties.
"""
