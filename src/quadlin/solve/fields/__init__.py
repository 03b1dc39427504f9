"""Factorization machines on fields, numbers and lists, fitted by sweeps over their columns.

Imports `fits`.
Gives the estimators their machines, and predictions for all pairs of two tables.
"""

# From top to bottom:
#   machine   rows as groups of columns that are swept, sampled and variational; what is learned
#   sweeps    the sweeps of a fit, of further rows, and the fit that they have reached
#   draws     draws, their predictions and standard errors, and lists of the best pairs
