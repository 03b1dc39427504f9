"""The errors of rows left out of each candidate, and which of them need not be looked at."""

from math import sqrt

import numpy as np

from quadlin.solve.choose.candidates import Candidates
from quadlin.solve.choose.leave_one_out import (
    Inverses,
    inverses_of,
    left_out_of_mean,
    left_out_squares,
    left_out_squares_by_rows,
)
from quadlin.solve.lowrank.evidence import RowKernel
from quadlin.solve.lowrank.tangent_gram import Candidate, TangentGram

CONSTANT = 1e9  # α₁/n that leaves the mean of the target
FACTORS = np.exp(np.arange(-12.0, 5.0)).tolist()  # on the penalties of largest evidence, tried
CHEAP_EIGENVECTORS = 700  # columns, or rows, up to which factors on penalties are tried


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
        """Return ωe² of each row left out, for multiples of the penalties: one walk."""
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

    def is_behind(self, products: Candidate, error: float) -> bool:
        """Tell whether all products predict rows left out worse than by some mean squared error.

        With any size of their penalties that may be tried, and without the walk that tells more.
        Their errors are no smaller than is expected of them but by chance.
        """
        gram = products.gram
        if isinstance(gram, RowKernel) or self.options.loss != "squared":
            return False  # the errors themselves take little more, or are deviances
        factors = FACTORS if self.is_cheap(products) else [1.0]
        expected = min(self._inverses(products, gram, factors).expected)
        return (1 - 1 / sqrt(self.n_rows)) * expected > error
