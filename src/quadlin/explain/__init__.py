"""Explanations of a fitted model, and which features interact: text, tables, displays and HTML.

Imports `data`, `stream`, `solve` and `core`.
Gives the estimators `Interactions`, summaries, effects, contributions and the diagnosis, users
`find_pairs` and the displays of `quadlin.plot`, and the command line and the paper's report their
pages.
"""
