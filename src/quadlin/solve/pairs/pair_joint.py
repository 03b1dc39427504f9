r"""The joint fit of w, L and given products: Gauss–Newton on their Gram matrix, or alternately."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from quadlin.core.arrays import lead, to_numpy
from quadlin.core.model import Model
from quadlin.solve.lowrank.gauss_newton import BACKTRACKS
from quadlin.solve.lowrank.polish import fit_rows
from quadlin.solve.lowrank.types import Options, finished
from quadlin.solve.pairs.pair_fit import PairFit
from quadlin.solve.pairs.pair_regression import JITTER, PairRegression
from quadlin.solve.pairs.pair_search import PairSearch
from quadlin.solve.pairs.pair_sums import RegressionColumns
from quadlin.solve.pairs.pair_terms import PairTerms, less_pairs, with_arrays

STEPS, TOL = 20, 1e-9  # of the joint fit; the relative change of the objective that ends it


@dataclass(frozen=True)
class Joint:
    """Pairs that were chosen or given for a model, and the regression that they are part of.

    The tangent of L in the regression gives the uncertainty of its parts. The model keeps L as it
    is: if features explain each other, a step along the tangent may have any length.
    """

    search: PairSearch
    fit: PairFit

    @cached_property
    def regression(self) -> "Regression":
        """Return the regression with L as it is: one pass, unless its matrix is there."""
        return Regression.of(self.search, self.fit)

    @property
    def model(self) -> Model:
        """Return the model without the products."""
        return stepped(self.search.columns, self.regression.still, 0.0)

    @property
    def terms(self) -> PairTerms:
        """Return the products with their coefficients."""
        coef = self.regression.still[self.search.columns.base :]
        return PairTerms(self.fit.i, self.fit.j, coef)

    @property
    def loss(self) -> float:
        """Return Σω r² and the penalties."""
        return self.regression.objective

    @property
    def cost(self) -> float:
        """Return the cost of the products in the criterion, whatever they explain."""
        criterion = self.search.criterion
        choice = self.fit.choice
        return criterion(1.0, choice.dof, len(choice.taken)) - criterion(1.0, 0, 0)


@dataclass(frozen=True)
class Regression:
    """The regression with some products, with an L that stays and one that moves."""

    beta: np.ndarray  # of all columns
    still: np.ndarray  # the same if L stays
    promised: float  # the objective if L moved along its tangent space
    objective: float  # with L as it is: Σω r² and the penalties

    @classmethod
    def of(cls, search: PairRegression, fit: PairFit) -> "Regression":
        """Solve for given products: one pass."""
        gram, ridge = search.normal(fit.i, fit.j)
        G, columns = gram + ridge, search.columns
        stays = np.ones(len(G) - 1, bool)
        if columns.tangent:
            stays[1 + len(columns.features) : columns.base] = False
        promised, beta = _solved(G, np.ones_like(stays))
        objective, still = _solved(G, stays)
        return cls(beta, still, promised, objective)


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


def joined(joint: Joint, options: Options, seed: int) -> Joint:
    """Move L and w together with the products, to the joint optimum.

    If the tangent space of L is part of the regression, each step is a Gauss–Newton step: one pass.
    If it is too large for that, or w also has other features, the model is fitted to what the
    products leave, and the products to what the model leaves, alternately.
    """
    search = joint.search
    has_all_features = len(search.columns.features) == search.units.scale.shape[0]
    if has_all_features and not search.columns.model.U.shape[1]:
        return joint  # linear in all its parameters
    at = joint.regression
    for _ in range(STEPS):
        if search.columns.tangent and at.objective - at.promised <= TOL * at.objective:
            break
        for model in _tries(search, joint, at, options, seed):
            moved = search.moved(model, joint.fit.i, joint.fit.j)
            reached = Regression.of(moved, joint.fit)
            if reached.objective < at.objective:
                break
        else:
            break
        settled = at.objective - reached.objective <= TOL * at.objective
        search, at = moved, reached
        if not search.columns.tangent:  # its steps start from the products
            joint = Joint(search, search.refit(joint.fit))
        if settled:
            break
    return joint if search is joint.search else Joint(search, search.refit(joint.fit))


def _tries(
    search: PairSearch, joint: Joint, at: Regression, options: Options, seed: int
) -> Iterator[Model]:
    """Yield models that may be better, the most likely first."""
    if search.columns.tangent:
        for size in BACKTRACKS:
            yield stepped(search.columns, at.beta, size)
        return
    rest = less_pairs(search.rows, joint.terms, search.units)
    options = replace(options, rank=int(search.columns.model.s.shape[0]))
    rng = np.random.default_rng(seed)
    solution, _ = fit_rows(rest, search.units, options, search.weight, rng, joint.model)
    yield finished(solution).model


def choose_with_low_rank(
    search: PairSearch, options: Options, seed: int, most: int | None
) -> Joint:
    """Choose pairs, fit them jointly with L, and choose again, since others may suit a better L."""
    joint = Joint(search, search.run(most))
    if not joint.terms.pairs:
        return joint
    moved = joined(joint, options, seed)
    if moved.search is search:
        return joint
    again = Joint(moved.search, moved.search.run(most))
    same = again.terms.pairs in (frozenset(), joint.terms.pairs)
    return again if same else joined(again, options, seed)
