r"""The result of a search for pairs, with robust standard errors.

The leverage of a row is that without products, which is the same for all of them, plus what the
products add: tᵀSt, where t is the row of the products less their projections, and S the inverse of
their Gram matrix.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive
from quadlin.solve.pairs.pair_choice import PairChoice, Stepwise
from quadlin.solve.pairs.pair_regression import Coefficients, Projected
from quadlin.solve.pairs.pair_sums import DenseRows, RegressionColumns, total

Pair = tuple[int, int]
Group = tuple[int, ...]  # products that are chosen together: positions i·d + j, i ≤ j
LEAST_FREEDOM = 0.1
EXCHANGEABLE = 6.0  # a difference of the criterion, 2·log(20), that is not strong evidence


class Regressed(NamedTuple):
    """A regression with products."""

    columns: RegressionColumns
    fit: Coefficients


class Listed(NamedTuple):
    """Groups of products that may be chosen, and the stepwise choice among them."""

    groups: list[Group]
    i: np.ndarray  # of the products of all groups, each once, in order
    j: np.ndarray
    projected: Projected
    step: Stepwise

    def places(self, groups: Iterable[Group]) -> list[int]:
        """Return the positions of groups."""
        return [self.groups.index(group) for group in groups]

    def regressed(self, columns: RegressionColumns, choice: PairChoice) -> Regressed:
        """Return the regression with a choice."""
        index = self.step.columns(choice.taken)
        return Regressed(
            columns.with_pairs(self.i[index], self.j[index]), self.projected.solved(index)
        )


@dataclass(frozen=True)
class PairFit:
    """The chosen pairs, in the order of entry, and their regression."""

    i: np.ndarray  # (m,), i ≤ j
    j: np.ndarray  # (m,)
    coef: np.ndarray  # (m,), of z_i·z_j
    entry: np.ndarray  # (m,), the step in which each entered, from 1
    errors: "RobustErrors"  # as if the pairs had been given
    columns: RegressionColumns
    beta: np.ndarray  # of all columns: 1, features, tangent, products
    onto: np.ndarray  # (base, m), the projection of the products onto the base
    inverse: np.ndarray  # (m, m), of the Gram matrix of the products, all else projected out
    noise: float  # the variance of the noise of a row of weight 1
    left: float  # rows beyond the parameters
    step: Stepwise
    choice: PairChoice  # the pairs and blocks that were chosen from those that were tried
    tried: Sequence[Pair]  # the first product of each group that was tried
    at_limit: bool  # whether no more could be chosen

    @cached_property
    def path(self) -> tuple[PairChoice, ...]:
        """Return the choices of the first 0, 1, … chosen groups."""
        taken = self.choice.taken
        return tuple(self.step.judged(taken[:m]) for m in range(len(taken) + 1))

    @cached_property
    def exchangeable(self) -> tuple[tuple[Pair, Pair, float], ...]:
        """Return chosen pairs with others that are about as good, and the cost of the others."""
        groups = self.step.groups
        return tuple(
            (self.tried[g], self.tried[other], cost)
            for g, others in self.step.exchanges(self.choice, EXCHANGEABLE).items()
            if len(groups[g]) == 1
            for other, cost in others
            if len(groups[other]) == 1
        )


@dataclass(frozen=True)
class Scores(Additive):
    """Moments of the residual with every product, and sums for errors of the chosen products."""

    loss: float  # Σω r²
    moments: Array  # (d, d), Σω r z_i z_j
    spread: Array  # (m,), Σω (a_m r / (1 − h))²: a_m influence of a row on β_m, h its leverage
    squares: Array  # (m,), Σω a_m²
    fourths: Array  # (m,), Σω a_m⁴


@dataclass(frozen=True)
class RobustErrors:
    """HC3 standard errors: the residual of a row is that of a fit without the row."""

    std: np.ndarray  # (m,)
    freedom: np.ndarray  # (m,), the number of rows that determine the standard error, less one
    unit_variance: np.ndarray  # (m,), of the coefficient, for noise of variance 1

    @classmethod
    def of(cls, score: Scores, noise: float | None = None) -> "RobustErrors":
        """Return the standard errors from the sums of a pass; not robust if `noise` is known.

        With a the influence of the rows on a coefficient, (Σa²)²/Σa⁴ is the number of rows that
        determine it: all of them if their influences are equal, one if the others have none.
        """
        spread, squares, fourths = (
            np.maximum(to_numpy(a), 1e-300) for a in (score.spread, score.squares, score.fourths)
        )
        spread = spread if noise is None else noise * squares
        freedom = np.maximum(squares**2 / fourths - 1, LEAST_FREEDOM)
        return cls(np.sqrt(spread), freedom, squares)

    def log_tail(self, coef: np.ndarray) -> np.ndarray:
        """Return log P(T > |t|) of each coefficient, T of Student's distribution."""
        with np.errstate(divide="ignore"):
            tail: np.ndarray = np.log(stdtr(self.freedom, -np.abs(coef) / self.std))
        return tail


def scores(
    chunk_and_leverages: tuple[Chunk, np.ndarray],
    columns: RegressionColumns,
    fit: Coefficients,
    look: bool,
    contrast: np.ndarray | None = None,
) -> Scores:
    """Sum over one chunk, with the leverages of its rows without products.

    Moments with all products are summed only if `look`; otherwise only errors are. They are those
    of the rows of `contrast` times the coefficients, if it is given.
    """

    def of(piece: DenseRows) -> Scores:
        r, influence, leverage = _influences(piece, fit)
        # Of a fit without the row, or without one of the observations that it stands for.
        one = namespace(r).clip(piece.omega, max=1.0) * leverage
        left_out = r / (1 - namespace(r).clip(one, max=1 - 1e-9))
        if contrast is not None:
            influence = influence @ namespace(r).asarray(contrast.T, device=r.device)
        squared, omega = influence**2, piece.omega
        spread, squares = (omega * left_out**2) @ squared, omega @ squared
        return Scores(*piece.moments(r, look), spread, squares, omega @ squared**2)

    return total(of(piece) for piece in columns.pieces(*chunk_and_leverages))


def weighted_residuals(
    chunk_and_leverages: tuple[Chunk, np.ndarray], columns: RegressionColumns, fit: Coefficients
) -> list[np.ndarray]:
    """Return ω, r and 1 − h of the rows of positive weight, from leverages without products."""

    def of(piece: DenseRows) -> np.ndarray:
        r, _, leverage = _influences(piece, fit)
        parts = np.stack([to_numpy(a) for a in (piece.omega, r, 1 - piece.omega * leverage)])
        return parts[:, parts[0] > 0]

    return [of(piece) for piece in columns.pieces(*chunk_and_leverages)]


def _influences(piece: DenseRows, fit: Coefficients) -> tuple[Array, Array, Array]:
    """Return the residuals, the influences of rows on products, and leverages with products."""
    A, xp = piece.A, namespace(piece.A)
    apart, inverse = (xp.asarray(a, device=A.device) for a in (fit.apart, fit.inverse))
    rest = A @ apart
    influence = rest @ inverse
    return piece.residual(fit.beta), influence, piece.numbers + xp.sum(rest * influence, axis=1)
