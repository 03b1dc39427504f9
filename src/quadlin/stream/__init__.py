"""Learning from rows that are seen once: a first batch is fitted, later ones are one step each.

If no row may be kept, power iteration on new rows gives the first model. Rows of one-hot fields are
learned by the posterior of their levels, batch by batch.

Imports `solve` and `core`.
Gives the estimators `Stream`, and storage its state as plain data.
"""
