"""A few products of two features: their sums, the search for them, and the regression with them.

Imports `lowrank`.
Gives `fits` the products that belong to a model, `composite` and `quadlin.explain` the search.
"""
