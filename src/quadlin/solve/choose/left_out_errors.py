"""The errors of rows left out of each candidate, and which of them need not be looked at."""

from math import sqrt

import numpy as np

from quadlin.solve.choose.candidates import Candidates
from quadlin.solve.choose.expected_errors import expected_errors
from quadlin.solve.choose.leave_one_out import (
    CLEARLY,
    Inverses,
    inverses_of,
    left_out_of_mean,
    left_out_squares,
    left_out_squares_by_rows,
)
from quadlin.solve.choose.leverage_bounds import LEAST_COLUMNS, LEAST_ROWS, bounds_of_squares
from quadlin.solve.lowrank.evidence import RowKernel
from quadlin.solve.lowrank.tangent_gram import Candidate, TangentGram

CONSTANT = 1e9  # α₁/n that leaves the mean of the target
FACTORS = np.exp(np.arange(-12.0, 5.0)).tolist()  # on the penalties of largest evidence, tried
CHEAP_EIGENVECTORS = 700  # columns, or rows, up to which factors on penalties are tried


def leaves_mean(alpha: tuple[float, float], weight: float) -> bool:
    """Tell whether penalties that were chosen for rows of this weight leave only a constant."""
    return alpha[0] >= 1e-3 * CONSTANT * weight  # information of labels is less than their weight


class LeftOutErrors(Candidates):
    """Candidates with the errors of rows that are left out of them."""

    def left_out(self, candidate: Candidate) -> float:
        """Return the mean squared error of rows left out one at a time."""
        key = candidate.rank, candidate.alpha
        if key not in self.errors:
            self.errors[key] = float(self.left_out_squares(candidate).sum()) / self.weight
        return self.errors[key]

    def left_out_squares(self, candidate: Candidate) -> np.ndarray:
        """Return ωe² of each row of positive weight when it is left out."""
        key = candidate.rank, candidate.alpha
        if key not in self.squares:
            self.squares[key] = self.squares_by_factors(candidate, [1.0])[:, 0]
        return self.squares[key]

    def squares_by_factors(self, candidate: Candidate, factors: list[float]) -> np.ndarray:
        """Return ωe² of each row left out, for multiples of the penalties: one pass."""
        gram, alpha = candidate.gram, candidate.alpha
        if isinstance(gram, RowKernel):
            return left_out_squares_by_rows(gram, alpha, factors)
        if candidate.rank == 0 and min(factors) * alpha[0] >= CONSTANT * self.weight:
            squares = left_out_of_mean(self.rows, self.units, gram)
            return np.repeat(squares[:, None], len(factors), axis=1)
        inverses = self._inverses(candidate, gram, factors)
        args = (self.rows, self.units, gram, alpha, self.weight, factors)
        return left_out_squares(*args, inverses)

    def _inverses(self, candidate: Candidate, gram: TangentGram, factors: list[float]) -> Inverses:
        """Return what errors come from, of the last candidate without new work."""
        key = candidate.rank, candidate.alpha, tuple(factors)
        if self.inverses is None or self.inverses[0] != key:
            args = (gram, candidate.alpha, self.weight, factors)
            self.inverses = key, inverses_of(self.units, *args)
        return self.inverses[1]

    def is_cheap(self, candidate: Candidate) -> bool:
        """Tell whether other penalties may be tried."""
        gram = candidate.gram
        size = len(gram.y) if isinstance(gram, RowKernel) else candidate.parameters
        return size <= CHEAP_EIGENVECTORS

    def is_ridge(self, products: Candidate) -> bool:
        """Tell whether the penalty of M leaves nothing but ridge regression of all products."""
        return (products.rank, products.alpha) in self.empty and self.options.loss == "squared"

    def is_behind(self, products: Candidate, error: float) -> bool:
        """Tell whether all products predict rows left out worse than by some mean squared error.

        With any size of their penalties that may be tried, and without the pass that tells more.
        Their errors are no smaller than is expected of them but by chance.
        """
        if self.options.loss != "squared":
            return False  # errors are deviances
        key, sure = (products.rank, products.alpha), 1 - 1 / sqrt(self.n_rows)
        if key in self.expected and sure * self.expected[key] <= error:
            return False
        if key not in self.least_expected:
            if self.is_cheap(products):
                args = (products.gram, products.alpha, self.weight, FACTORS)
                self.least_expected[key] = float(expected_errors(*args).min())
            elif key in self.expected:
                self.least_expected[key] = self.expected[key]
            elif isinstance(products.gram, RowKernel):
                return False  # the errors themselves take no more
            else:
                args = (products.gram, products.alpha, self.weight, [1.0])
                self.least_expected[key] = float(expected_errors(*args)[0])
        return sure * self.least_expected[key] > error

    def surely_better(self, candidate: Candidate, ridge: Candidate, other: Candidate) -> bool:
        """Tell whether rows left out agree to a low rank by bounds of their errors: a quick pass.

        It is then no worse than another candidate, and surely better than ridge regression. False
        where bounds are not enough, or cost as much as the errors.
        """
        gram, p = candidate.gram, candidate.parameters
        if isinstance(gram, RowKernel) or p < LEAST_COLUMNS or self.n_rows < LEAST_ROWS * p:
            return False
        if (candidate.rank, candidate.alpha) in self.squares or self.options.loss != "squared":
            return False
        args = (gram, candidate.alpha, self.weight, self.seed)
        bounds = bounds_of_squares(self.rows, self.units, *args)
        if bounds is None or float(bounds[:, 1].sum()) > self.left_out(other) * self.weight:
            return False
        saved = self.left_out_squares(ridge)[:, None] - bounds
        largest = float(np.linalg.norm(np.abs(saved).max(axis=1)))
        return float(saved[:, 1].sum()) > sqrt(CLEARLY / 2) * largest
