"""Learning from rows that are seen once: a first batch is fitted, later ones are one step each.

Where no row may be kept, the first model is found by power iteration on new rows.

Imports `solve` and `core`.
Gives the estimators `Stream`, and storage its state as plain data.
"""
