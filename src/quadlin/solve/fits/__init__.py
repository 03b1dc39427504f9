"""The fit of a table by least squares or Huber's loss, its standard errors, and grids of fits.

Imports `pairs` and `lowrank`.
Gives the estimators `FitState`, standard errors and the variance due to missing values.
"""
