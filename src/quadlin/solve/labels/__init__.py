"""Labels and counts: log-odds and logarithms of means, their ranks and penalties.

Imports `choose`, `fits` and `lowrank`.
Gives the estimators of labels and counts their fits, of one class and of several.
Begin with `logistic_choice.py`, the fit that chooses: it calls `logistic.py`, the fit of one rank,
and the searches `logistic_search.py` and `count_search.py`. If rows are few, they are kept as one
matrix (`label_table.py`; for several classes `class_table.py`).
"""
