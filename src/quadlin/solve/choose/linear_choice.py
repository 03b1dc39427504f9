"""The models that are linear in their parameters: ridge regression and all products.

They are one family: as the penalty of M grows from zero to infinity, all products become ridge
regression, which the evidence shrinks towards the mean. All products must lower the errors of
left-out rows by more than one standard error. Otherwise they rest on a few rows.
"""

from dataclasses import replace

import numpy as np

from quadlin.solve.choose.candidates import Candidates
from quadlin.solve.choose.leave_one_out import (
    LIKELY,
    inverses_of,
    left_out_squares,
    left_out_squares_by_rows,
    surely_less,
)
from quadlin.solve.lowrank.evidence import RowKernel
from quadlin.solve.lowrank.exact import Alpha
from quadlin.solve.lowrank.tangent_gram import Candidate

AGAINST = 6.0  # rows' worth of error that products must save if the evidence prefers a ridge
MANY_ROWS = 100  # per parameter: with so many, a fit cannot rest on a few rows
WORTH = 0.99  # of the error of left-out rows: what another size of the penalties must reach
SLOPE = 1e-4  # if a step saves a smaller share of the error, that may be rounding
CLOSE = 0.7  # log odds, 2 to 1, by which the best of smaller penalties must beat larger ones
CONSTANT = 1e9  # α₁/n that leaves only the mean of the target
FACTORS = np.exp(np.arange(-12.0, 5.0)).tolist()  # that are tried on the penalties of the evidence
CHEAP_EIGENVECTORS = 700  # most columns, or rows, for which factors on penalties are tried


def leaves_mean(alpha: Alpha, weight: float) -> bool:
    """Return whether penalties that were chosen for rows of this weight leave only a constant."""
    return alpha[0] >= 1e-3 * CONSTANT * weight  # labels hold less information than their weight


class LinearChoice(Candidates):
    """The choice between ridge regression and all products, by left-out rows."""

    def left_out(self, candidate: Candidate) -> float:
        """Return the mean squared error of rows left out one at a time."""
        return float(self.left_out_squares(candidate).sum()) / self.weight

    def left_out_squares(self, candidate: Candidate) -> np.ndarray:
        """Return ωe² of each row of positive weight when it is left out."""
        if candidate.key not in self.squares:
            self.squares[candidate.key] = self.squares_by_factors(candidate, [1.0])[:, 0]
        return self.squares[candidate.key]

    def squares_by_factors(self, candidate: Candidate, factors: list[float]) -> np.ndarray:
        """Return ωe² of each row left out, for multiples of the penalties: one pass."""
        gram, alpha = candidate.gram, candidate.alpha
        if isinstance(gram, RowKernel):
            return left_out_squares_by_rows(gram, alpha, factors)
        inverses = inverses_of(self.units, gram, alpha, self.weight, factors)
        return left_out_squares(self.rows, inverses)

    def is_cheap(self, candidate: Candidate) -> bool:
        """Return whether other penalties may be tried."""
        gram = candidate.gram
        size = len(gram.y) if isinstance(gram, RowKernel) else candidate.parameters
        return size <= CHEAP_EIGENVECTORS

    def is_ridge(self, products: Candidate) -> bool:
        """Return whether the penalty of M reduces all products to ridge regression."""
        return products.key in self.empty and self.options.loss == "squared"

    def better_linear(self, ridge: Candidate, products: Candidate | None = None) -> Candidate:
        """Return ridge regression or all products, with the better size of its penalties."""
        if products is None or self.is_ridge(products):
            return ridge if self.many_rows(ridge) else self.sized(ridge)
        if self.many_rows(products):
            return products if products.merit > ridge.merit else ridge
        prefers_products = products.merit > ridge.merit
        ridge, products = self.sized(ridge), self.sized(products)
        squares, others = self.left_out_squares(products), self.left_out_squares(ridge)
        against = 0.0 if prefers_products else AGAINST / self.observations
        better = float(squares.sum()) < (1 - against) * float(others.sum())
        return products if better and surely_less(squares, others, LIKELY) else ridge

    def given(self, k: int) -> Candidate | None:
        """Return a given rank with its best penalties."""
        candidate = self.candidate(k)
        if candidate is None or self.is_exact(candidate):
            return candidate
        if k in (0, self.d) and not self.many_rows(candidate):
            candidate = self.sized(candidate)
        return candidate

    def many_rows(self, candidate: Candidate) -> bool:
        """Return whether there are so many rows that the evidence needs no check."""
        return self.observations >= MANY_ROWS * candidate.parameters

    def sized(self, candidate: Candidate) -> Candidate:
        """Return the candidate with penalties of the size that predicts left-out rows best.

        The penalties are those of largest evidence, unless the nearest multiple of them, going
        downhill, predicts left-out rows better.
        """
        if not self.is_cheap(candidate):
            return candidate
        if candidate.key not in self.sized_alpha:
            squares = self.squares_by_factors(candidate, FACTORS)
            best = size_of(squares, FACTORS.index(1.0))
            first, second = candidate.alpha
            alpha = (first * FACTORS[best], second * FACTORS[best])
            self.sized_alpha[candidate.key] = alpha
            self.squares[candidate.rank, alpha] = squares[:, best].copy()
        return replace(candidate, alpha=self.sized_alpha[candidate.key])


def size_of(squares: np.ndarray, evidence: int) -> int:
    """Return which of rising penalties predict left-out rows best; column i has their errors.

    A better penalty beyond a hill is usually chance, and so is a smaller one that only few rows
    prefer.
    """
    errors = squares.sum(axis=0)
    best = downhill(errors, evidence)
    if errors[best] >= WORTH * errors[evidence]:
        return evidence
    larger = range(evidence, best, -1)  # empty if the best is larger than that of the evidence
    close = (i for i in larger if not surely_less(squares[:, best], squares[:, i], CLOSE))
    return next(close, best)


def downhill(values: np.ndarray, start: int) -> int:
    """Return where a walk ends that moves from `start` to smaller neighbouring values.

    It does not cross a plateau, where only rounding would lead it.

    Examples
    --------
    >>> downhill(np.array([0.0, 5.0, 2.0, 3.0, 4.0]), 3)
    2
    >>> downhill(np.array([0.0, 4.99999999, 5.0, 6.0]), 2)
    2
    """
    neighbours = range(max(start - 1, 0), min(start + 2, len(values)))
    best = min(neighbours, key=lambda i: (values[i], i != start))
    return downhill(values, best) if values[best] < (1 - SLOPE) * values[start] else start
