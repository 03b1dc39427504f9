"""Factorization machines on fields, numbers and lists, fitted by sweeps over their columns.

Imports `fits`.
Gives the estimators their machines, and predictions for all pairs of two tables.
"""

# From top to bottom:
#   swept_machine         sweeps over groups of columns, sampled and variational, and their priors
#   contexts              rows as such groups; what is learned, as a model, as draws, in a stream
#   sweeping              the sweeps of a fit, and the fit that they have reached
#   draws                 draws and their predictions
#   sampled_law           standard errors by draws
#   pairwise_predictions  predictions for all pairs of two tables
