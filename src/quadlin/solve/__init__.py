"""From rows to a model: moment estimates, whitening, Gauss–Newton, rank, penalties, uncertainty.

Imports `core` only (and `quadlin.metrics`), and no frame, plot, cluster or deep-learning library.
Gives the others the fit of a table, a path of ranks and penalties, standard errors, and the
recovery of signals and matrices from measurements.
"""
