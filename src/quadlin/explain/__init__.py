"""Explanations of a fitted model, and which features interact: text, tables, displays and HTML.

Imports `data`, `stream`, `solve` and `core`.
Gives the estimators `Interactions`, summaries, effects, contributions and the diagnosis, users
`find_pairs` and the displays of `quadlin.plot`, and the command line and the paper's report their
pages.
"""

# From top to bottom:
#   summary       estimates with their tests, how well the model fits, and the page with pictures
#   displays      pictures: interactions, one pair, one prediction, the spectrum
#   diagnosis     what may be wrong: features, rows, rank
#   effects       how much columns add to predictions: the model taken apart
#   pairs         find_pairs
#   interactions  coefficients of products, and the report of a search for pairs
#   tables        words and tables that they share
