"""A fit as it is kept, by least squares or Huber's loss, how sure it is, and grids of fits.

Imports `pairs` and `lowrank`.
Gives the estimators `FitState`, standard errors and what missing values cost.
"""
