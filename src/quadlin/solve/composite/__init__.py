"""M = L + S: a low-rank part and a few products together, of targets and of labels.

Imports every room of `solve` below: `labels`, `choose`, `fits`, `pairs` and `lowrank`.
Gives the estimators the fit that decides between more rank, more pairs, and neither.
"""
