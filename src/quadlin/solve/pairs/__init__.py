"""A few products of two features: their sums, the search for them, and the regression with them.

Imports `lowrank`.
Gives `fits` the products that belong to a model, `composite` and `quadlin.explain` the search.
Begin with `search.py`: it screens products, chooses among them in a regression with all other parts
(`regression.py`), leaves out those that rest on a few rows, and moves L together with the rest.
`products.py` has the products of a model, and sums over rows with all products.
"""
