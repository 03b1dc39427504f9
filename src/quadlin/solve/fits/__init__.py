"""The fit of a table by least squares or Huber's loss, and its standard errors.

Imports `pairs` and `lowrank`.
Gives the estimators `FitState`, standard errors and the variance due to missing values.
Begin with `fit_state.py`, the fit of a given rank and its result. `robust.py` repeats it with other
weights; `uncertainty.py` computes its standard errors.
"""
