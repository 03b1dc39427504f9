"""A few products of two features: their sums, the search for them, and the regression with them.

Imports `lowrank`.
Gives `fits` the products that belong to a model, `composite` and `quadlin.explain` the search.
Begin with `search.py`: it screens products, chooses among them (`stepwise.py`) in a regression with
all other parts (`regression.py`), and leaves out those that rest on a few rows. `joint.py` moves L
together with the products, and continues with new rows. `products.py` has their sums over rows.
"""
