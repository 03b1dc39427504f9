"""The choice of rank and penalties: by evidence, confirmed by leave-one-out errors.

Imports `fields`, `fits`, `pairs` and `lowrank`.
Gives the estimators `choice`, the fit that chooses rank and penalties.
Begin with `choice.py`: it calls `rank_search.py`, the search by evidence, or chooses on held-out
rows (`rank.py`; `wide_rows.py` for wide sparse rows). The search compares `candidates.py`, each of
them a rank with its best penalties (`penalties.py`).
"""
