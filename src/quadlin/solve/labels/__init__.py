"""Labels and counts: log-odds and logarithms of means, their ranks and penalties.

Imports `choose`, `fits` and `lowrank`.
Gives the estimators of labels and counts their fits, of one class and of several.
Begin with `label_choice.py`, the fit that chooses: it calls `logistic.py`, the fit of one rank. If
rows are few, they are kept as one matrix (`score_table.py`), also those of several classes.
"""
