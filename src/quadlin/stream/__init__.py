"""Learning from rows that are seen once: a first batch is fitted, later ones are one step each.

Imports `solve` and `core`.
Gives the estimators `Stream`, and storage its state as plain data.
"""
