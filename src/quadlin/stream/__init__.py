"""Learning from rows that are seen once: a first batch is fitted, or looked for without keeping a row; later ones are one step each.

Imports `solve` and `core`.
Gives the estimators `Stream`, and storage its state as plain data.
"""
