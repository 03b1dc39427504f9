"""How much to fit: rank and penalties by evidence, confirmed by rows left out.

Imports `fields`, `fits`, `pairs` and `lowrank`.
Gives the estimators the fit that chooses by itself, `choice`.
"""
