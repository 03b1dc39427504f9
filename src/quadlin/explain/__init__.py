"""What a fitted model says: its interactions, a diagnosis in words, displays, pages of HTML.

Imports `stream`, `solve` and `core`.
Gives the estimators `Interactions` and the diagnosis, users the displays of `quadlin.plot`, and the
command line and the paper's report their pages.
"""
