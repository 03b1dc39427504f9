"""M = L + S: a low-rank part and a few products together, for targets and for labels.

Imports every package of `solve` below: `labels`, `choose`, `fits`, `pairs` and `lowrank`.
Gives the estimators the fit that decides between a higher rank, more pairs, and neither.
Begin with `fitting.py`, the fit of a table. It calls `PairStage` in `composer.py`, which tries
pairs and ranks, and returns a fit with or without pairs. `label_pairs.py` does the same for labels,
in terms of their log-odds, and `joint_classes.py` for several classes.
"""
