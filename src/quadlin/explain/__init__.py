"""What a fitted model says: its interactions, a diagnosis in words, displays.

Imports `stream`, `solve` and `core`.
Gives the estimators `Interactions` and the diagnosis, and users the displays of `quadlin.plot`.
"""
