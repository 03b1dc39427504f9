r"""Matrices of low rank from measurements aᵀMa of a symmetric one, or aᵀMb of any.

.. math:: y_i = a_i^\top M a_i + c + \text{noise} \qquad\text{or}\qquad
          y_i = a_i^\top M b_i + c + \text{noise}

The constant c is 0 unless it is fitted. The symmetric form is the second order model without a
linear part, and the ordinary fit is used. The other is the symmetric form of the vectors [a; b],
whose matrix has M/2 and its transpose off the diagonal and zeros on it: the zeros are known here
and not estimated, so the unknowns are those of M = PQᵀ, and Levenberg–Marquardt finds P and Q.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import diags_array, issparse

from quadlin.core.chunks import MemorySource
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.choose.choice import fit_choosing
from quadlin.solve.fits.fit_state import FitState, with_row_count
from quadlin.solve.fits.robust import ROUNDING, ROUNDS, predictions, weighted_median
from quadlin.solve.lowrank.types import Automatic, Options, Plan, Status, finished
from quadlin.solve.signals.search import (
    CLAIMED,
    EXACT,
    ROUGHLY,
    SAME,
    TYPICAL,
    Effort,
    End,
    LinearisedResidual,
    Majority,
    Measurements,
    Problem,
    Rest,
    best_of,
    conditioned,
    criterion,
    reweighted,
    search,
    typical_size,
)

MANY = 6  # measurements per unknown, with which one start leads to the optimum
SPECTRAL_STEPS, MIXED_STEPS, OVERSAMPLING = 10, 1, 5
PATIENCE = 3  # ranks in a row that bring nothing


class Factors(NamedTuple):
    """M = U diag(s) Vᵀ and c."""

    U: np.ndarray  # (d, k), orthonormal columns
    s: np.ndarray  # (k,), by decreasing size
    V: np.ndarray  # (e, k), orthonormal columns; U for a symmetric M
    intercept: float = 0.0

    def predict(self, A: Any, B: Any) -> np.ndarray:
        """Return aᵀMb + c of each pair of rows."""
        return np.asarray((A @ self.U) * (B @ self.V) @ self.s + self.intercept)

    def is_same(self, other: "Factors") -> bool:
        """Tell whether two matrices are the same optimum, by k×k products of their factors."""
        U, s, V, _ = other
        product = self.s @ ((self.U.T @ U) * (self.V.T @ V)) @ s
        size = self.s @ self.s
        return bool(size - 2 * product + s @ s <= SAME**2 * size)


@dataclass(frozen=True)
class Sensing:
    """Measurements by rows of A, or by pairs of rows of A and B, of which n differ."""

    A: Any
    B: Any  # None for a symmetric matrix
    y: np.ndarray
    weight: np.ndarray
    n: int
    effort: Effort
    seed: int
    constant: bool  # whether c is fitted
    psd: bool = False

    def unknowns(self, rank: int) -> int:
        """Return how many numbers a matrix of some rank has, with c."""
        d = int(self.A.shape[1])
        if self.B is None:
            return rank * d - rank * (rank - 1) // 2 + self.constant
        return rank * (d + int(self.B.shape[1]) - rank) + self.constant

    @property
    def usual_rank(self) -> int:
        """Return the rank with which a search begins: one start has enough rows for it."""
        d = int(self.A.shape[1])
        return max(1, min(d, self.n // (MANY * d)))

    def sense(self, rank: int | None) -> End:
        """Find c and M, of a given rank or of the best one; z are its factors."""
        if self.B is None:
            return best_of(self._ends(rank), self.effort.n_starts, Factors.is_same)
        rng, unit = np.random.default_rng(self.seed), typical_size(np.abs(self.y), self.weight)
        # In units of the targets no square overflows, even in single precision.
        scaled = replace(self, y=self.y / (unit or 1.0))
        end = scaled._sense_pairs(rank or scaled._choose_rank(rng), self.effort, rng)
        U, s, V, c = end.z
        history = tuple(replace(record, loss=record.loss * unit**2) for record in end.history)
        return replace(end, z=Factors(U, s * unit, V, c * unit), history=history)

    def rest(self, end: End) -> Rest:
        """Return what a matrix leaves of y."""
        unknowns = self.unknowns(len(end.z.s))
        fitted = end.z.predict(self.A, self.A if self.B is None else self.B)
        majority = Majority.of(self.n, unknowns) if self.effort.robust else None
        return Rest.of(self.y, fitted, self.weight, unknowns, majority)

    def background(self, rank: int | None, rest: Rest) -> tuple[End, Rest] | None:
        """Return the matrix with a background, if y holds one.

        The fit with it must be better than the one without it, and than that of any rank.
        """
        task = replace(self, constant=True)
        other = finished(task.sense(rank))
        less = task.rest(other)
        gain = CLAIMED**2  # of the criterion, which a parameter lowers by its squared ratio
        if rank is not None and less.criterion < rest.criterion - gain:
            rest = self.rest(finished(self.sense(None)))
        return (other, less) if less.criterion < rest.criterion - gain else None

    def _ends(self, rank: int | None) -> Iterator[End]:
        """Yield the ends of searches.

        A row and its negative measure the same. With random signs a constant column varies, as it
        has to in a second order model without w; and other signs are another start.
        """
        rng, task = np.random.default_rng(self.seed), self
        if np.any(constant_columns(self.A)):
            task = replace(self, A=_with_signs(self.A, rng))
        while True:
            if self.effort.robust:
                end = task._fit_robustly(rank)
            else:
                end = task._fit(self.weight, rank, lowest=rank is None)
            raw = end.z.raw
            U, s = np.asarray(raw.components).T, np.asarray(raw.eigenvalues)
            c = float(raw.intercept) if self.constant else 0.0
            yield replace(end, z=Factors(U, s, U, c))
            seed = int(rng.integers(2**31 - 1))
            task = replace(self, A=_with_signs(self.A, rng), seed=seed)

    def _fit(
        self,
        weight: np.ndarray,
        rank: int | None,
        warm: FitState | None = None,
        lowest: bool = False,
    ) -> End:
        """Fit by least squares with some weights; of exact fits, return that of `lowest` rank.

        A rank that is chosen has a penalty that is chosen, too.
        """
        rows = Rows.of(MemorySource(self.A, self.y, weight))
        d, auto, effort = int(self.A.shape[1]), rank is None, self.effort
        options = Options(
            min(rank or self.usual_rank, d),
            fit_linear=False,
            fit_intercept=self.constant,
            psd=self.psd,
            max_iter=effort.max_iter,
            tol=effort.tol,
        )
        names = [f"x{j}" for j in range(d)]
        maker = UnitsMaker("auto", self.constant, self.A.dtype, names, fit_linear=False)
        surveyed = rows.reduce(survey)
        plan = Plan(options, maker, self.seed, Automatic(auto, auto))
        state, options = fit_choosing(rows, plan, warm, surveyed=surveyed)
        if state.status is Status.interrupted and not state.has_steps:
            finished(state)
        state, loss = with_row_count(state, surveyed.tally, options), state.history[-1].loss
        left = loss / (float(np.average(self.y**2, weights=weight)) or 1.0)
        k, exact = len(state.model.s), left <= EXACT
        unknowns = self.unknowns(k)
        objective = criterion(int(np.count_nonzero(weight)), left, unknowns)
        if exact and lowest and k > 1:
            lower = self._fit(weight, k - 1, lowest=True)
            if lower.objective < objective:
                return lower
        certain = exact or self.n >= MANY * unknowns
        return End(state, objective, certain, state.status, state.history)

    def _fit_robustly(self, rank: int | None) -> End:
        """Fit by Huber's loss; a rank is chosen by least squares with the weights at its end."""
        given, size, first = self.weight, np.abs(self.y), rank or self.usual_rank
        rows = Rows.of(MemorySource(self.A, self.y, None))
        majority = Majority.of(self.n, self.unknowns(first))
        usual = size <= TYPICAL * typical_size(size, given)
        end, weight = reweighted(
            self._fit(given * usual, first),
            lambda state: np.abs(predictions(rows, state) - self.y),
            lambda state, weight: self._fit(weight, first, state),
            ROUNDING * majority.largest(size, given),
            given,
            majority,
            ROUNDS,
        )
        if end.status is Status.interrupted:
            return end
        return self._fit(weight, rank, end.z, lowest=rank is None)

    def _sense_pairs(self, rank: int, effort: Effort, rng: np.random.Generator) -> End:
        """Find M of a rank from pairs of rows, with targets of size 1."""
        left, right = (conditioned(X, self.weight, True, rng) for X in (self.A, self.B))
        right = replace(right, walks=left.walks)
        rank = min(rank, left.width, right.width)
        majority = Majority.of(self.n, self.unknowns(rank))
        unit = self.constant / float(np.sqrt(rank * np.sum(self.weight)))
        problem = PairsProblem(self.y, self.weight, left.walks, majority, left, right, unit)

        def is_same(Z: np.ndarray, other: np.ndarray) -> bool:
            return problem.factors(Z).is_same(problem.factors(other))

        end = search(problem, problem.starts(rank, effort.robust, rng), effort, is_same)
        return replace(end, z=problem.factors(end.z))

    def _choose_rank(self, rng: np.random.Generator) -> int:
        """Return the rank of pairs with the lowest criterion, by fits that are not precise."""
        starts, tol = min(2, self.effort.n_starts), max(self.effort.tol, ROUGHLY)
        brief, best, least, rank = replace(self.effort, n_starts=starts, tol=tol), 1, np.inf, 0
        while rank < min(self.A.shape[1], self.B.shape[1], best + PATIENCE):
            rank += 1
            if rank > 1 and self.n <= self.unknowns(rank):
                break
            end = finished(self._sense_pairs(rank, brief, rng))
            rest = self.rest(end)
            if rest.criterion < least:
                best, least = rank, rest.criterion
            if rest.exact:
                break
        return best


def constant_columns(A: Any) -> np.ndarray:
    """Return a mask of the columns that are constant, and not 0."""
    least, most = A.min(axis=0), A.max(axis=0)
    if issparse(A):
        least, most = least.toarray().ravel(), most.toarray().ravel()
    return np.asarray((least == most) & (most != 0))


def _with_signs(A: Any, rng: np.random.Generator) -> Any:
    """Return a copy of the rows with random signs."""
    signs = rng.choice([-1.0, 1.0], size=A.shape[0]).astype(A.dtype)
    return diags_array(signs).tocsr() @ A if issparse(A) else A * signs[:, None]


@dataclass(frozen=True)
class PairsProblem(Problem):
    """Pairs of rows, targets and weights; the unknowns are [P; Q], one below the other.

    With a constant there is one more row below; the constant is its sum times `unit`.
    """

    left: Measurements
    right: Measurements
    unit: float = 0.0  # of the constant; 0 without one

    def split(self, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return P and Q."""
        return Z[: self.left.width], Z[self.left.width :][: self.right.width]

    def constant(self, Z: np.ndarray) -> float:
        """Return c."""
        return self.unit * float(np.sum(Z[self.left.width + self.right.width :]))

    def above(self, Z: np.ndarray, entry: float) -> np.ndarray:
        """Return [P; Q] above the row of the constant, if there is one."""
        return np.vstack([Z, np.full((int(self.unit > 0), Z.shape[1]), entry, Z.dtype)])

    def linearise(self, Z: np.ndarray) -> LinearisedResidual:
        r"""Return Σ_a (AP)∘(BQ) + c − y and its derivative Σ_a (A dP)∘(BQ) + (AP)∘(B dQ) + dc."""
        P, Q = self.split(Z)
        F, G = self.left.forward(P), self.right.forward(Q)
        inverse_p, inverse_q = np.linalg.pinv(P.T @ P), np.linalg.pinv(Q.T @ Q)

        def forward(H: np.ndarray) -> np.ndarray:
            dP, dQ = self.split(H)
            changes = self.left.forward(dP) * G + F * self.right.forward(dQ)
            return np.asarray(np.sum(changes, axis=1) + self.constant(H))

        def adjoint(u: np.ndarray) -> np.ndarray:
            total, u = self.unit * float(np.sum(u)), u[:, None]
            Z = np.vstack([self.left.adjoint(u * G), self.right.adjoint(u * F)])
            return self.above(Z, total)

        def precondition(H: np.ndarray) -> np.ndarray:
            # In whitened units JᵀJ ≈ [dP (QᵀQ); dQ (PᵀP)].
            dP, dQ = self.split(H)
            return np.vstack([dP @ inverse_q, dQ @ inverse_p, H[len(dP) + len(dQ) :]])

        residual = np.sum(F * G, axis=1) + self.constant(Z) - self.y
        return LinearisedResidual(residual, forward, adjoint, precondition)

    def factors(self, Z: np.ndarray) -> Factors:
        """Return M and c."""
        P, Q = self.split(Z)
        (U, R), (V, S) = np.linalg.qr(self.left.signal(P)), np.linalg.qr(self.right.signal(Q))
        W, s, X = np.linalg.svd(R @ S.T)
        return Factors(U @ W, s, V @ X.T, self.constant(Z))

    def starts(self, rank: int, robust: bool, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """Yield starts; with gross errors, they leave out the largest targets.

        A constant begins at the median of y.
        """
        c = weighted_median(self.y, self.weight) if self.unit else 0.0
        y, steps = self.y - c, SPECTRAL_STEPS
        usual = np.abs(y) <= TYPICAL * typical_size(np.abs(y), self.weight)
        problem = replace(self, y=y, weight=self.weight * usual if robust else self.weight)
        while True:
            start = problem.spectral(rank, rng, steps)
            yield self.above(start, c * self.unit * float(np.sum(self.weight)))
            steps = MIXED_STEPS

    def spectral(self, rank: int, rng: np.random.Generator, steps: int) -> np.ndarray:
        """Return the leading part of E[y a bᵀ] = M, whitened, by subspace iteration."""
        wide = min(rank + OVERSAMPLING, self.left.width, self.right.width)
        y = (self.weight * self.y)[:, None] * float(np.sum(self.weight))
        V = np.linalg.qr(self.right.random(rng, wide))[0]
        for _ in range(steps):
            U = np.linalg.qr(self.left.adjoint(y * self.right.forward(V)))[0]
            V, R = np.linalg.qr(self.right.adjoint(y * self.left.forward(U)))
        left, s, right = np.linalg.svd(R.T)
        return np.asarray(np.vstack([U @ left[:, :rank], V @ right[:rank].T]) * np.sqrt(s[:rank]))
