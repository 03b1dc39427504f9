"""Labels and counts: log-odds and logarithms of means, their ranks and penalties.

Imports `choose`, `fits` and `lowrank`.
Gives the estimators of labels and counts their fits, of one class and of several.
"""
