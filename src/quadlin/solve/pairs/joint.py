r"""Products and an L that moves: their joint optimum, and the same regression with new rows.

The regression with new rows is a sum of Gram matrices. For labels it sums the least squares that
approximate the deviance of each batch around the model before it: Newton's method with the
information of all rows so far, each row seen once. With a low-rank part its columns are those of
L's tangent space where the regression began, so one solution is a Gauss–Newton step from there.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from quadlin.core.arrays import Array, lead, to_numpy
from quadlin.core.model import Model, with_rank
from quadlin.core.rows import Rows
from quadlin.core.units import Units, watchful_scale
from quadlin.solve.lowrank.gauss_newton import BACKTRACKS
from quadlin.solve.lowrank.levels import Fields, settled
from quadlin.solve.pairs.products import (
    JointGram,
    PairTerms,
    Parts,
    RegressionColumns,
    joint_gram,
    whole,
    with_arrays,
)
from quadlin.solve.pairs.regression import JITTER, MOST_FEATURES, MOST_TANGENT, Penalty
from quadlin.solve.pairs.search import Pair, PairFit, PairSearch

STEPS, TOL = 20, 1e-9  # of the joint fit; the relative change of the objective that ends it


@dataclass(frozen=True)
class Joint:
    """Pairs that were chosen or given for a model, and the regression that they are part of.

    The tangent of L in the regression gives the uncertainty of its parts. The model keeps L as it
    is: if features explain each other, a step along the tangent may have any length.
    """

    search: PairSearch
    fit: PairFit

    @property
    def columns(self) -> RegressionColumns:
        """Return the columns of the regression, without products."""
        return self.search.columns

    @property
    def rank(self) -> int:
        """Return the rank of L."""
        return int(self.columns.model.s.shape[0])

    @cached_property
    def matrix(self) -> np.ndarray:
        """Return the Gram matrix and the ridge: one pass, unless the sums are there."""
        gram, ridge = self.search.normal(self.fit.i, self.fit.j)
        return np.asarray(gram + ridge)

    @cached_property
    def moving(self) -> tuple[float, np.ndarray]:
        """Return the objective, Σω r² and the penalties, if L moves along its tangent space."""
        return _solved(self.matrix, np.ones(len(self.matrix) - 1, bool))

    @cached_property
    def still(self) -> tuple[float, np.ndarray]:
        """Return the objective with L as it is, and the coefficients of all columns."""
        stays = np.ones(len(self.matrix) - 1, bool)
        if self.columns.tangent:
            stays[1 + len(self.columns.features) : self.columns.base] = False
        return _solved(self.matrix, stays)

    @property
    def loss(self) -> float:
        """Return Σω r² with L as it is, without penalties: rounding may make it negative."""
        error = np.append(-self.still[1], 1.0)
        return max(float(error @ self.search.normal(self.fit.i, self.fit.j)[0] @ error), 0.0)

    @property
    def model(self) -> Model:
        """Return the model without the products."""
        return stepped(self.columns, self.still[1], 0.0)

    @property
    def terms(self) -> PairTerms:
        """Return the products with their coefficients."""
        return PairTerms(self.fit.i, self.fit.j, self.still[1][self.columns.base :])

    @property
    def cost(self) -> float:
        """Return the cost of the products in the criterion, whatever they explain."""
        choice, criterion = self.fit.choice, self.search.criterion
        return criterion(1.0, choice.dof, len(choice.taken)) - criterion(1.0, 0, 0)


def _solved(G: np.ndarray, kept: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the squared error of the last column, fitted by some others, and the coefficients."""
    size = np.sqrt(np.maximum(np.diag(G)[:-1], 1e-300))
    A = G[:-1, :-1] / np.outer(size, size) + JITTER * np.eye(len(size))
    beta = np.zeros(len(size))
    beta[kept] = np.linalg.solve(A[np.ix_(kept, kept)], (G[:-1, -1] / size)[kept])
    beta = beta / size
    return float(G[-1, -1] - 2 * G[:-1, -1] @ beta + beta @ G[:-1, :-1] @ beta), beta


def stepped(columns: RegressionColumns, beta: np.ndarray, size: float = 1.0) -> Model:
    """Return the model moved by the coefficients of the columns: M + UHᵀ + HUᵀ, of the same rank.

    `size` is the share of the step that L takes.
    """
    model, q = columns.model, len(columns.features)
    U, s, w = (to_numpy(a).astype(float) for a in (model.U, model.s, model.w))
    (d, k), free = U.shape, to_numpy(model.free).astype(float)
    w[columns.features] += beta[1 : q + 1]
    c = model.c + beta[0]
    if columns.tangent:
        H = size * beta[d + 1 : columns.base].reshape(k, d).T
        basis = np.linalg.qr(np.concatenate([U, H], axis=1))[0]
        B, T = basis.T @ U, basis.T @ H
        values, vectors = lead((B * s) @ B.T + B @ T.T + T @ B.T, k)
        before, U, s = free @ (U * U) @ s, basis @ vectors, values
        c = c + free @ (U * U) @ s - before  # c is the mean of f; the columns were not centred
    return with_arrays(model, float(c), U=U, s=s, w=w)


def joined(joint: Joint) -> Joint:
    """Move L and w together with the products to the joint optimum: one pass per step.

    Each step is a Gauss–Newton step along the tangent space of L, if that is in the regression.
    """
    fit, at = joint.fit, joint
    for _ in range(STEPS if joint.columns.tangent else 0):
        before = at.still[0]
        if before - at.moving[0] <= TOL * before:
            break
        models = (stepped(at.columns, at.moving[1], size) for size in BACKTRACKS)
        tried = (Joint(at.search.moved(model, fit.i, fit.j), fit) for model in models)
        reached = next((each for each in tried if each.still[0] < before), None)
        if reached is None:
            break
        at = reached
        if before - at.still[0] <= TOL * before:
            break
    if at is joint:
        return joint
    return Joint(at.search, at.search.tested(fit.i, fit.j, fit.entry, fit.errors))


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
    loss: str = "squared"

    @classmethod
    def begun(
        cls,
        low_rank: Model,
        terms: PairTerms,
        units: Units,
        order: np.ndarray,
        alpha: tuple[float, float, float],
        rows: Rows,
        loss: str,
    ) -> "RunningPairs | None":
        """Return the regression around a model that was fitted to rows: one pass.

        None if the parameters do not fit in a matrix.
        """
        d, k = low_rank.U.shape
        if d > MOST_FEATURES or d * k > MOST_TANGENT:
            return None
        # Features that are constant so far count as soon as they vary.
        units = replace(units, scale=watchful_scale(units))
        nothing = np.zeros((0, 0))
        parts = (low_rank.U, low_rank.s, low_rank.w, float(low_rank.c), low_rank.free)
        empty = cls(units, *parts, terms.i, terms.j, order, nothing, alpha, loss)
        return replace(empty, gram=empty._sums(rows, terms.coef).gram)

    @cached_property
    def columns(self) -> RegressionColumns:
        """Return the columns of the regression."""
        (d, k), i, j = self.U.shape, to_numpy(self.i), to_numpy(self.j)
        model = Model(self.U, self.s, self.w, self.c, self.free)
        return RegressionColumns(self.units, model, np.arange(d), bool(k), i, j)

    def _sums(self, rows: Rows, coef: np.ndarray) -> JointGram:
        beta = np.concatenate([np.zeros(self.columns.base), coef])
        sums: JointGram = rows.reduce(joint_gram, self.columns, 0, self.loss, beta)
        return replace(sums, gram=to_numpy(sums.gram))

    def sums(self, rows: Rows) -> JointGram:
        """Return the Gram matrix of new rows, and their loss before they are learned: one pass."""
        args = self.columns, 0, self.loss, self.solved.beta
        sums: JointGram = rows.reduce(joint_gram, *args)
        return replace(sums, gram=to_numpy(sums.gram))

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
        fit = projected.solved(columns, np.arange(len(columns.i)))
        G, b, apart = gram[:-1, :-1], columns.base, fit.apart
        dof = float(np.sum(projected.inverse * G[:b, :b]))
        dof += float(np.sum(fit.inverse * (apart.T @ G @ apart)))
        freedom, error = self.weight - dof, np.append(-fit.beta, 1.0)
        noise = 1.0  # known for labels
        if self.loss == "squared":
            noise = max(float(error @ gram @ error), 0.0) / freedom if freedom > 0 else np.nan
        return Solved(fit.beta, fit.inverse, noise, freedom)

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
