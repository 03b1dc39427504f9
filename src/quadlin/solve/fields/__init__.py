"""Factorization machines on one-hot fields, fitted by variational inference or Gibbs sampling.

Imports `fits`.
Gives the estimators their machines, and predictions for all pairs of two tables.
"""
