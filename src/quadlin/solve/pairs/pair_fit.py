"""What a search for pairs returns, and how sure the rows are of it: robust standard errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr

from quadlin.core.arrays import to_numpy
from quadlin.solve.pairs.pair_choice import PairChoice, Stepwise
from quadlin.solve.pairs.pair_projection import Coefficients
from quadlin.solve.pairs.pair_scores import Scores
from quadlin.solve.pairs.pair_sums import RegressionColumns

Pair = tuple[int, int]
LEAST_FREEDOM = 0.1
EXCHANGEABLE = 6.0  # a difference of the criterion that is no strong evidence, 2·log(20)


@dataclass(frozen=True)
class RobustErrors:
    """HC3: the residual of a row is that of a fit without the row."""

    std: np.ndarray  # (m,)
    freedom: np.ndarray  # (m,), how many rows the standard error is known from, less one
    unit_variance: np.ndarray  # (m,), of the coefficient, for noise of variance 1

    @classmethod
    def of(cls, score: Scores, noise: float | None = None) -> "RobustErrors":
        """Return the standard errors that a pass has summed up; not robust if `noise` is known.

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
        with np.errstate(divide="ignore"):
            tail: np.ndarray = np.log(stdtr(self.freedom, -np.abs(coef) / self.std))
        return tail


class Regressed(NamedTuple):
    """A regression with products."""

    columns: RegressionColumns
    fit: Coefficients


@dataclass(frozen=True)
class PairSteps:
    """The steps of a search, which are looked at where pairs are reported."""

    step: Stepwise
    choice: PairChoice
    pairs: Sequence[Pair]  # of each group of one product; of others the first

    @cached_property
    def path(self) -> tuple[PairChoice, ...]:
        """Return the choices of the first 0, 1, … of what was taken."""
        taken = self.choice.taken
        return tuple(self.step.judged(taken[:m]) for m in range(len(taken) + 1))

    @cached_property
    def exchangeable(self) -> tuple[tuple[Pair, Pair, float], ...]:
        """Return a pair, one that is as good, and what that costs, of each pair."""
        groups = self.step.groups
        return tuple(
            (self.pairs[g], self.pairs[other], cost)
            for g, others in self.step.exchanges(self.choice, EXCHANGEABLE).items()
            if len(groups[g]) == 1
            for other, cost in others
            if len(groups[other]) == 1
        )


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
    steps: PairSteps
    inverse: np.ndarray  # (m, m), of the Gram matrix of the products beside all else
    noise: float  # variance of that of a row of weight 1
    left: float  # rows beyond the parameters

    @classmethod
    def of(
        cls,
        regression: Regressed,
        errors: RobustErrors,
        steps: PairSteps,
        noise: float | None,
        freedom: float,
        most: int = 0,
    ) -> "PairFit":
        """Return what a search has taken, of `most` pairs, with as much freedom without any."""
        (columns, fit), choice = regression, steps.choice
        at, taken, left = columns.features, choice.taken, freedom - choice.dof
        order = [*enumerate((steps.step.groups[g] for g in taken), 1)]
        entry = {c: m for m, group in reversed(order) for c in group}
        return cls(
            at[columns.i],
            at[columns.j],
            fit.beta[columns.base :],
            np.array([entry[c] for c in steps.step.columns(taken)], dtype=np.int64),
            errors,
            columns,
            fit.beta,
            len(taken),
            choice.dof,
            choice.loss,
            choice.value,
            0 < most <= len(taken),
            steps,
            fit.inverse,
            noise or choice.loss / max(left, 1.0),
            left,
        )

    @property
    def path(self) -> tuple[PairChoice, ...]:
        """Return the choices of the first 0, 1, … of what was taken."""
        return self.steps.path

    @property
    def exchangeable(self) -> tuple[tuple[Pair, Pair, float], ...]:
        """Return a pair, one that is as good, and what that costs, of each pair."""
        return self.steps.exchangeable
