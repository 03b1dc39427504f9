"""A few products of two features: their sums, the search for them, and the regression with them.

Imports `lowrank`.
Gives `fits` the products that belong to a model, `composite` and `quadlin.explain` the search.
Begin with `pair_search.py`: it screens products (`pair_screen.py`), chooses among them
(`pair_choice.py`) in a regression with all other parts (`pair_regression.py`), and returns a
`pair_fit.py`. `pair_joint.py` fits products and L together, and `pair_running.py` continues with
new rows.
"""
