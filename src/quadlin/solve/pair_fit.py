"""What a search for pairs returns, and how sure the rows are of it: robust standard errors."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from quadlin.core.arrays import to_numpy
from quadlin.solve.pair_choice import PairChoice
from quadlin.solve.pair_sums import RegressionColumns, Scores

Pair = tuple[int, int]
LEAST_FREEDOM = 0.1


@dataclass(frozen=True)
class RobustErrors:
    """HC3: the residual of a row is that of a fit without the row."""

    std: np.ndarray  # (m,)
    freedom: np.ndarray  # (m,), how many rows the standard error is known from, less one
    unit_variance: np.ndarray  # (m,), of the coefficient, for noise of variance 1

    @classmethod
    def of(cls, score: Scores, noise: float | None = None) -> "RobustErrors":
        """Return the standard errors that a walk has summed up; not robust if `noise` is known.

        With a the influence of the rows on a coefficient, (Σa²)²/Σa⁴ is the number of rows that
        carry it: all of them if they do so alike, one if the others say nothing.
        """
        spread, squares, fourths = (
            np.maximum(to_numpy(a), 1e-300) for a in (score.spread, score.squares, score.fourths)
        )
        spread = spread if noise is None else noise * squares
        freedom = np.maximum(squares**2 / fourths - 1, LEAST_FREEDOM)
        return cls(np.sqrt(spread), freedom, squares)

    def log_tail(self, coef: np.ndarray) -> np.ndarray:
        """Return log P(T > |t|) of each coefficient, T of Student's distribution."""
        tail: np.ndarray = student.logsf(np.abs(coef) / self.std, self.freedom)
        return tail


@dataclass(frozen=True)
class PairFit:
    """The pairs taken, by order of entry, and the regression they are taken into."""

    i: np.ndarray  # (m,), i ≤ j
    j: np.ndarray  # (m,)
    coef: np.ndarray  # (m,), of z_i·z_j
    entry: np.ndarray  # (m,), in which step each entered, from 1
    errors: RobustErrors  # as if the pairs had been given
    columns: RegressionColumns
    beta: np.ndarray  # of all columns: 1, features, tangent, products
    taken: int  # pairs and blocks
    dof: int  # their parameters
    loss: float  # Σω r², with the penalty
    criterion: float
    at_limit: bool  # whether no more could be taken
    path: tuple[PairChoice, ...]  # with the first 0, 1, … of what was taken
    exchangeable: tuple[tuple[Pair, Pair, float], ...]  # a pair, one as good, what that costs
    inverse: np.ndarray  # (m, m), of the Gram matrix of the products beside all else
    noise: float  # variance of that of a row of weight 1
    left: float  # rows beyond the parameters
