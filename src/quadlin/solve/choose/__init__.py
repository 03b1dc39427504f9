"""The choice of rank and penalties: by evidence, confirmed by leave-one-out errors.

Imports `fields`, `fits`, `pairs` and `lowrank`.
Gives the estimators `choice`, the fit that chooses rank and penalties.
Begin with `choice.py`: it calls `automatic.py`, the search by evidence, or chooses on held-out rows
(`rank.py`, `column_choice.py`). The search consists of `candidates.py` (a rank with its best
penalties), `rank_climb.py` (which ranks are tried), `linear_choice.py` (the mean, ridge regression
or all products, by left-out rows) and `last_fit.py`.
"""
