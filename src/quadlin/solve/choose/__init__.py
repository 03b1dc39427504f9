"""The choice of rank and penalties: by evidence, confirmed by leave-one-out errors.

Imports `fields`, `fits`, `pairs` and `lowrank`.
Gives the estimators `choice`, the fit that chooses rank and penalties.
Begin with `search.py`: it compares ranks, each with its best penalties (`penalties.py`), for any
loss. `choice.py` has its task for targets, and the fit with what was chosen; `wide_rows.py` fits
wide sparse rows.
"""
