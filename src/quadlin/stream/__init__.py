"""Learning from rows that are seen once: a first batch is fitted, later ones are one step each.

If no row may be kept, power iteration on new rows gives the first model.

Imports `solve` and `core`.
Gives the estimators `Stream`, and storage its state as plain data.
"""
