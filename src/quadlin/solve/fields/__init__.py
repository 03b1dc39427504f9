"""Factorization machines on one-hot fields by their posterior: variational, or by draws from it.

Imports `fits`.
Gives the estimators their machines, and predictions for all pairs of two tables.
"""
