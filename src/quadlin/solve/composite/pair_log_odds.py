"""Log-odds with a few products: the model, and the deviance with its penalties."""

from dataclasses import dataclass, replace

import numpy as np

from quadlin.core.arrays import lead, to_numpy
from quadlin.core.model import Model
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.labels.logistic_search import WIDEST
from quadlin.solve.lowrank.tangent import Coordinates
from quadlin.solve.lowrank.types import Options, Problem
from quadlin.solve.lowrank.whitening import Identity
from quadlin.solve.pairs.pair_terms import PairTerms, whole, with_arrays

SHORTEST = 1 / 4096  # of a Newton step: log-odds of extreme rows overshoot by as much
PRIOR = 1 / (WIDEST * WIDEST)  # penalty of a product: a standard deviation of 10 in log-odds


@dataclass(frozen=True)
class LogOdds:
    """Log-odds with pairs: b, w and L, and products."""

    low_rank: Model
    terms: PairTerms

    @property
    def rank(self) -> int:
        """Return the rank of L."""
        return int(self.low_rank.s.shape[0])

    @property
    def model(self) -> Model:
        """Return the model of L + S."""
        return whole(self.low_rank, self.terms)

    def halfway(self, other: "LogOdds") -> "LogOdds":
        """Return the mean of two fits of the same rank and products."""
        a, b = self.low_rank, other.low_rank
        U = np.concatenate([to_numpy(m.U).astype(float) for m in (a, b)], axis=1)
        s = np.concatenate([to_numpy(m.s).astype(float) for m in (a, b)])
        basis = np.linalg.qr(U)[0]
        B = basis.T @ U
        values, vectors = lead((B * s / 2) @ B.T, self.rank)
        low_rank = with_arrays(a, (a.c + b.c) / 2, U=basis @ vectors, s=values)
        low_rank = replace(low_rank, w=(a.w + b.w) / 2)
        return LogOdds(low_rank, replace(self.terms, coef=(self.terms.coef + other.terms.coef) / 2))


@dataclass(frozen=True)
class Objective:
    """The deviance of log-odds with pairs, plus the penalties."""

    rows: Rows
    units: Units
    options: Options
    penalise: bool  # whether products have the penalty of L

    @property
    def on_products(self) -> float:
        """Return the penalty of a product."""
        return max(self.options.alpha[1] if self.penalise else 0.0, PRIOR)

    def __call__(self, fit: LogOdds) -> float:
        """Return the objective: one pass."""
        return self.loss(fit.model) + self.penalty(fit)

    def descended(self, start: LogOdds, value: float, goal: LogOdds) -> tuple[LogOdds, float]:
        """Return the goal, or a point nearer to the start that is no worse, and its objective."""
        size = 1.0
        while (reached := self(goal)) > value and size > SHORTEST:
            goal, size = start.halfway(goal), size / 2
        return (goal, reached) if reached <= value else (start, value)

    def penalty(self, fit: LogOdds) -> float:
        """Return what the penalties add to the deviance."""
        i, j, coef = fit.terms.i, fit.terms.j, fit.terms.coef
        rho = to_numpy(self.units.penalty_scale).astype(float)
        squares = float(np.sum((1 + (i == j)) * (rho[i] * rho[j] * coef) ** 2))
        ridge = Coordinates(self.units, self.options, Identity()).ridge(fit.low_rank)
        return ridge + self.on_products * squares

    def loss(self, model: Model) -> float:
        """Return the deviance: one pass."""
        options = replace(self.options, loss="logistic")
        problem = Problem(self.rows, self.units, options, np.random.default_rng(0))
        return float(problem.sums(model, squares=False).loss)


def moved(model: Model, by: float) -> Model:
    """Return the model with a constant added to it."""
    return replace(model, c=model.c + by)
