"""Explanations of a fitted model, and which features interact: text, tables, displays and HTML.

Imports `data`, `stream`, `solve` and `core`.
Gives the estimators `Interactions`, summaries, effects, contributions and the diagnosis, users
`find_pairs` and the displays of `quadlin.plot`, and the command line and the paper's report their
pages.
"""

# From top to bottom:
#   report, page, html        the report of a model as data and as a page, with its pictures
#   summary, quality          estimates with their tests, and how well the model fits
#   diagnosis                 what may be wrong: features (mip), rows (row_findings), rank
#   effects, contributions    how much columns move predictions, by decomposition into whole_columns
#   interactions              coefficients of products, by pair
#   pairs                     find_pairs: pair_setting, pair_tests and pair_report, in this order
#   *_display, drawing        pictures of all of these, and displays of measurements
#   tables                    words and tables that they share
