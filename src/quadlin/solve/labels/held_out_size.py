"""The size of penalties of labels or counts that were chosen by least squares, on rows held out.

Log-odds of classes that are easily told apart are larger than squared errors of 0 and 1 suggest, so
their penalties must be smaller. Both penalties are divided by the same factor, in steps, as long as
the likelihood of rows that were held out rises.
"""

from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from quadlin.core.arrays import moved
from quadlin.core.model import Model, with_rank
from quadlin.core.rows import Rows
from quadlin.solve.choose.rank import FOLDS, LOOSE_TOL, folds_by
from quadlin.solve.labels.logistic import LogisticFit
from quadlin.solve.labels.logistic_search import floored
from quadlin.solve.lowrank.observations import content_keys
from quadlin.solve.lowrank.types import Options, Problem, finished

STEP = 10**0.5  # between sizes
ENOUGH_ROWS = 500  # that are held out, if there are so many: one fold after the other
FEWEST = 50  # rows; fewer keep their penalties
WORTH = 5e-3  # of the loss: what a step must gain


@dataclass
class HeldOutLikelihood:
    """Fits to four fifths of the rows, and their losses on the others; each starts from the last.

    Passes: some ten for each size and fold. Memory: that of a fit, and one number per row.
    """

    fit: LogisticFit
    splits: list[tuple[LogisticFit, Rows]]  # the fit of the rows that are kept, and the others
    models: list[Model]

    @classmethod
    def of(cls, fit: LogisticFit, start: Model) -> "HeldOutLikelihood":
        """Divide the rows of a fit."""
        folds = folds_by(content_keys(fit.rows, fit.units), np.random.default_rng(fit.seed))
        count = min(FOLDS, max(1, ceil(ENOUGH_ROWS * FOLDS / len(folds))))
        splits = []
        for fold in range(count):
            kept, test = (
                fit.rows.reweighted(moved(mask.astype(float), fit.units.scale))
                for mask in (folds != fold, folds == fold)
            )
            splits.append((replace(fit, rows=kept, white=None), test))
        return cls(fit, splits, [start] * count)

    def loss(self, options: Options) -> float:
        """Return the loss of the rows held out with some penalties."""
        options = replace(options, tol=max(LOOSE_TOL, options.tol))
        total = 0.0
        for number, (kept, test) in enumerate(self.splits):
            self.models[number] = finished(kept.polished(options, self.models[number])[0]).model
            rng = np.random.default_rng(self.fit.seed)
            problem = Problem(test, self.fit.units, replace(options, loss=self.fit.loss), rng)
            total += problem.sums(self.models[number], squares=False).loss
        return total


def resized(fit: LogisticFit, options: Options, start: Model, choose_rank: bool) -> Options:
    """Return the options with penalties of the size that predicts held-out rows best.

    A rank that squared errors have chosen must predict them better than rank 0: to squared errors,
    products also stand for the fact that probabilities level off.
    """
    if fit.surveyed.tally.counting < FEWEST:
        return options
    best, least = _smaller(fit, options, start)
    if choose_rank and options.rank:
        linear = replace(options, rank=0)
        other, loss = _smaller(fit, linear, with_rank(start, 0))
        best = best if least < (1 - WORTH) * loss else other
    return best


def _smaller(fit: LogisticFit, options: Options, start: Model) -> tuple[Options, float]:
    """Return the options with smaller penalties, as far as they pay, and the loss of these."""
    held_out, d = HeldOutLikelihood.of(fit, start), int(fit.units.scale.shape[0])
    best, least = options, held_out.loss(options)
    while True:
        first, second = best.alpha
        smaller = replace(best, alpha=floored((first / STEP, second / STEP), d, best.rank))
        loss = held_out.loss(smaller) if smaller.alpha != best.alpha else least
        if loss > (1 - WORTH) * least:
            return best, least
        best, least = smaller, loss
