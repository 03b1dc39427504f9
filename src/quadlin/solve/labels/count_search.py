r"""Ranks of counts: their dispersion, and penalties of the size that predicts left-out rows best.

Counts may vary many times more, or less, than Poisson's law says, by the factor

.. math:: \phi = \frac{1}{n - \gamma} \sum_i \omega_i \frac{(y_i - \mu_i)^2}{\mu_i}

of n rows, where a fit has determined γ parameters. Poisson's likelihood is then overconfident, or
underconfident, by that factor, and the evidence prefers penalties that are too small, or too large.
So the weights of rows are divided by φ, which is estimated during the search. The evidence is no
more certain than φ; therefore rows that are left out one at a time decide between penalties, linear
models, products and a constant, as for least squares.
"""

from dataclasses import dataclass, replace

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.losses import LOSSES
from quadlin.core.model import Model, predict
from quadlin.core.units import Units
from quadlin.solve.choose.candidates import LIKELY, WORTH, Candidate, surely_less
from quadlin.solve.labels.logistic_search import CERTAIN_ROWS, RESIZE, LogisticSearch, floored

LEAST, MOST = 1e-7, 1e4  # α/Σωh between which sizes are tried
LEAST_FREEDOM = 0.2  # of the rows: the fewest degrees of freedom of the noise
LEAST_DISPERSION = 1e-6  # the smallest φ


@dataclass
class CountSearch(LogisticSearch):
    """The search for the rank of largest evidence, for counts that are weighted by 1/φ."""

    def spread_by(self, factor: float) -> "CountSearch":
        """Return the search on the same rows with weights divided by a factor: one pass."""
        fit = self.fit_of.spread_by(factor)
        args = (fit.rows, fit.units, self.options, self.n_rows, fit.weight, fit.seed)
        table = None if self.table is None else self.table.reweighted(1 / factor)
        return CountSearch(*args, fit_of=fit, repeated=self.repeated, table=table)

    def dispersion(self, candidate: Candidate) -> float:
        """Return φ at the fit of a candidate."""
        model = self.refitted(candidate, candidate.alpha)
        linear, _ = self.linear(candidate.rank, model)
        determined = linear.at(np.log(linear.of_groups(candidate.alpha))).determined
        total = float(np.sum(self.rows.collect(_pearson, model, self.units, self.fit_of.loss)))
        n = float(self.repeated.times.sum())  # with repetitions
        freedom = max(n - float(np.sum(determined)), LEAST_FREEDOM * n)
        return max(total / freedom, LEAST_DISPERSION)

    def is_cheap(self, candidate: Candidate) -> bool:
        """Return whether other penalties may be tried: each takes a fit."""
        return self.table_for(candidate.rank) is not None and super().is_cheap(candidate)

    def sized(self, candidate: Candidate) -> Candidate:
        """Return the candidate with penalties of the size that predicts left-out rows best.

        Ever smaller penalties, or larger ones, are tried as long as they predict these rows better.
        """
        if not self.is_cheap(candidate) or candidate.rank not in (0, self.d):
            return candidate
        best, moved = candidate, False
        least = floored((0.0, 0.0), self.d, candidate.rank)
        if 0 < max(least) < min(candidate.alpha):
            smallest = replace(candidate, alpha=(least[0], max(least)))
            best = smallest if self.is_better(smallest, candidate) else candidate
        for factor in (1 / RESIZE, RESIZE):
            while True:
                first, second = best.alpha
                resized = replace(best, alpha=(first * factor, second * factor))
                if not LEAST * self.weight <= min(resized.alpha) < MOST * self.weight:
                    break
                if self.left_out(best) * self.weight <= CERTAIN_ROWS:
                    break
                if not self.is_better(resized, best):
                    break
                best, moved = resized, True
            if moved:
                break
        return best

    def is_better(self, other: Candidate, best: Candidate) -> bool:
        """Return whether other penalties predict left-out rows better, and not only a few."""
        if self.left_out(other) >= WORTH * self.left_out(best):
            return False
        return surely_less(self.left_out_squares(other), self.left_out_squares(best), LIKELY)


def _pearson(chunk: Chunk, model: Model, units: Units, loss: str) -> float:
    """Return Pearson's statistic of one chunk."""
    f = to_numpy(predict(model, Block(chunk.X, units))).astype(np.float64)
    y, mean = to_numpy(chunk.y).astype(np.float64), LOSSES[loss].mean(f)
    variance = np.maximum(LOSSES[loss].variance(mean), 1e-300)
    return float(np.sum(chunk.weights * (y - mean) ** 2 / variance))
