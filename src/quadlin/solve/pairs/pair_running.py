r"""A regression with given products that continues with new rows, since its Gram matrix is a sum.

For labels it sums the least squares that approximate the deviance of each batch around the model
before it: Newton's method with the information of all rows so far, each row seen once.

With a low-rank part its columns are those of L's tangent space where the regression began, so one
solution is a Gauss–Newton step from there with all rows so far.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from quadlin.core.arrays import Array, to_numpy
from quadlin.core.model import Model, with_rank
from quadlin.core.rows import Rows
from quadlin.core.units import Units, watchful_scale
from quadlin.solve.lowrank.levels import Fields, settled
from quadlin.solve.pairs.pair_joint import Joint, stepped
from quadlin.solve.pairs.pair_regression import MOST_FEATURES, MOST_TANGENT, Penalty
from quadlin.solve.pairs.pair_sums import LabelGram, RegressionColumns, joint_gram, label_gram
from quadlin.solve.pairs.pair_terms import PairTerms, Parts, whole

Pair = tuple[int, int]


@dataclass(frozen=True)
class PairNotes:
    """What a search has tried, and its path to the chosen pairs."""

    n_rows: int
    candidates: int
    path: tuple[tuple[float, float], ...]  # the criterion and R², with the first 0, 1, … of them
    exchangeable: tuple[tuple[Pair, Pair, float], ...] = ()
    at_limit: bool = False
    deviance: bool = False  # whether R² is D², the share of the deviance of labels


@dataclass(frozen=True)
class Solved:
    """The solution of a regression, and the uncertainty of its products."""

    beta: np.ndarray  # of all columns
    inverse: np.ndarray  # (m, m), of the Gram matrix of the products, all else projected out
    noise: float  # the variance of the noise of a row of weight 1
    left: float  # rows beyond the effective parameters


@dataclass(frozen=True)
class RunningPairs:
    """The regression of all rows so far on features, a low-rank part that moves, and products."""

    units: Units  # which stay the same
    U: Array  # (d, h), of L where the regression began
    s: Array  # (h,)
    w: Array  # (d,)
    c: float
    free: Array  # (d,)
    i: np.ndarray  # (m,), i ≤ j
    j: np.ndarray  # (m,)
    order: np.ndarray  # (m,), of entry, from 1
    gram: Array  # (p + 1, p + 1), of all columns and the response
    alpha: tuple[float, float, float]  # ridge on w, on L and on the products
    loss: str = "squared"  # or "logistic"

    @classmethod
    def of(cls, joint: Joint, share: float) -> "RunningPairs | None":
        """Return a regression that can continue; None if some parameters are not in its matrix.

        The weights of its rows were multiplied by `share`.
        """
        search, fit = joint.search, joint.fit
        columns, model = fit.columns, search.columns.model
        d, k = model.U.shape
        if len(columns.features) < d or (k and not columns.tangent):
            return None
        gram = search.normal(fit.i, fit.j)[0] / share
        first, second, third = (a / share for a in search.penalty.alpha)
        parts = (model.U, model.s, model.w, float(model.c), model.free)
        pairs = (fit.i, fit.j, fit.entry)
        return cls(_watchful(columns.units), *parts, *pairs, gram, (first, second, third))

    @classmethod
    def of_labels(
        cls,
        low_rank: Model,
        terms: PairTerms,
        units: Units,
        order: np.ndarray,
        alpha: tuple[float, float, float],
        rows: Rows,
    ) -> "RunningPairs | None":
        """Return the regression around log-odds that were fitted to rows: one pass.

        None if the parameters do not fit in a matrix.
        """
        d, k = low_rank.U.shape
        if d > MOST_FEATURES or d * k > MOST_TANGENT:
            return None
        parts = (low_rank.U, low_rank.s, low_rank.w, float(low_rank.c), low_rank.free)
        pairs, nothing = (terms.i, terms.j, order), np.zeros((0, 0))
        empty = cls(_watchful(units), *parts, *pairs, nothing, alpha, "logistic")
        beta = np.zeros(empty.columns.base + len(terms.i))
        beta[empty.columns.base :] = terms.coef
        return replace(empty, gram=to_numpy(rows.reduce(label_gram, empty.columns, beta).gram))

    @cached_property
    def columns(self) -> RegressionColumns:
        """Return the columns of the regression."""
        model = Model(self.U, self.s, self.w, self.c, self.free)
        features, i, j = np.arange(self.U.shape[0]), to_numpy(self.i), to_numpy(self.j)
        return RegressionColumns(self.units, model, features, bool(self.U.shape[1]), i, j)

    def sums(self, rows: Rows) -> tuple[Array, float]:
        """Return the Gram matrix of new rows, and their loss before they are learned: one pass."""
        if self.loss == "logistic":
            labels: LabelGram = rows.reduce(label_gram, self.columns, self.solved.beta)
            return to_numpy(labels.gram), labels.loss
        gram = to_numpy(rows.reduce(joint_gram, self.columns, True).gram)
        return gram, self.loss_of(gram, self.solved.beta)

    def with_sums(self, gram: Array) -> "RunningPairs":
        """Return the regression with the rows of another Gram matrix."""
        return replace(self, gram=to_numpy(self.gram) + gram)

    @property
    def size(self) -> int:
        """Return the number of parameters."""
        return self.columns.base + len(self.i)

    @property
    def weight(self) -> float:
        """Return the weight of the rows; for labels, the sum of ωp(1 − p)."""
        return float(self.gram[0, 0])

    @cached_property
    def solved(self) -> Solved:
        """Return the solution."""
        columns, gram = self.columns, to_numpy(self.gram)
        U, s, w = (to_numpy(a).astype(float) for a in (self.U, self.s, self.w))
        scale = to_numpy(self.units.penalty_scale).astype(float) ** 2
        penalty = Penalty(self.alpha, scale, w, U, s)
        projected = penalty.projected(gram, columns.base, columns.i, columns.j)
        fit, G, b = projected.solved(np.arange(len(columns.i))), gram[:-1, :-1], columns.base
        beta, apart = fit.beta, fit.apart
        dof = float(np.sum(projected.inverse * G[:b, :b]))
        dof += float(np.sum(fit.inverse * (apart.T @ G @ apart)))
        freedom = self.weight - dof
        if self.loss == "logistic":
            noise = 1.0  # known for labels
        else:
            noise = self.loss_of(gram, beta) / freedom if freedom > 0 else np.nan
        return Solved(beta, fit.inverse, noise, freedom)

    def loss_of(self, gram: Array, beta: np.ndarray) -> float:
        """Return Σω r² of the rows of a Gram matrix."""
        error = np.append(-beta, 1.0)
        return max(float(error @ gram @ error), 0.0)

    def model(self, fields: Fields) -> tuple[Model, Parts]:
        """Return the model of all rows so far, always of the same rank, and its parts."""
        columns, beta = self.columns, self.solved.beta
        low_rank = stepped(columns, beta)
        terms = PairTerms(columns.i, columns.j, beta[columns.base :])
        (d, k), m = self.U.shape, len(terms.i)
        most = min(2 * m, len(np.union1d(terms.i, terms.j)))
        together = settled(whole(low_rank, terms), self.units, fields)
        low_rank = settled(low_rank, self.units, fields)
        parts = Parts(low_rank.U, low_rank.s, terms)
        return with_rank(together, min(d, k + most)), parts


def _watchful(units: Units) -> Units:
    """Return units in which features that are constant so far count as soon as they vary."""
    return replace(units, scale=watchful_scale(units))
