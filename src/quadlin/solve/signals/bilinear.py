r"""Rank-one sensing of a matrix that is not symmetric, by Gauss–Newton on its factors.

.. math:: y_i = a_i^\top M b_i + c + \text{noise}, \qquad M = P Q^\top

The constant c is 0 unless it is fitted.

This is the symmetric problem of the vectors [a; b] whose matrix has M/2 and its transpose off the
diagonal and zeros on it. The zeros are known here and not estimated, so the unknowns are those of
M.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from quadlin.core.rows import Walks
from quadlin.solve.fits.robust import weighted_median
from quadlin.solve.lowrank.types import finished
from quadlin.solve.signals.levenberg import LinearisedResidual
from quadlin.solve.signals.measurements import Measurements, conditioned, distinct_rows
from quadlin.solve.signals.results import EXACT, Sensed, pair_unknowns
from quadlin.solve.signals.search import (
    ALL_ROWS,
    FAR,
    SAME,
    Effort,
    Majority,
    search,
    typical_size,
    usual_limit,
)

SPECTRAL_STEPS, MIXED_STEPS, OVERSAMPLING = 10, 1, 5
HELD_OUT, PATIENCE = 0.2, 3  # rows that compare ranks; ranks in a row that may bring nothing
ROWS_PER_UNKNOWN = 1.2  # the fewest with which a rank is tried
ROUGHLY = 1e-3  # of the loss: a smaller gain ends a fit that is compared with others
BETTER = 0.99  # of the error on those rows: what a higher rank must reach


@dataclass(frozen=True)
class Pairs:
    """Pairs of rows with their targets and weights, and whether the model has a constant."""

    A: Any
    B: Any
    y: np.ndarray
    weight: np.ndarray
    constant: bool

    @cached_property
    def n_distinct(self) -> int:
        """Return how many pairs measure something different."""
        return distinct_rows(self.A, self.weight, self.B)

    def rows(self, at: np.ndarray) -> "Pairs":
        """Return some of the pairs."""
        return Pairs(self.A[at], self.B[at], self.y[at], self.weight[at], self.constant)


@dataclass(frozen=True)
class BilinearProblem:
    """Pairs of rows, targets and weights; the unknowns are [P; Q], one below the other.

    With a constant there is one more row below; the constant is its sum times `unit`.
    """

    left: Measurements
    right: Measurements
    y: np.ndarray
    weight: np.ndarray
    majority: Majority = ALL_ROWS
    unit: float = 0.0  # of the constant; 0 without one

    @property
    def walks(self) -> Walks:
        """Return the count of products with A and B."""
        return self.left.counter

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

    def spectral(self, rank: int, rng: np.random.Generator, steps: int) -> np.ndarray:
        """Return the leading part of E[y a bᵀ] = M, whitened, by subspace iteration."""
        wide = min(rank + OVERSAMPLING, self.left.width, self.right.width)
        y = (self.weight * self.y)[:, None] * float(np.sum(self.weight))
        V = np.linalg.qr(self.right.random(rng, wide))[0]
        for _ in range(steps):
            U = np.linalg.qr(self.left.adjoint(y * self.right.forward(V)))[0]
            V, R = np.linalg.qr(self.right.adjoint(y * self.left.forward(U)))
        left, s, right = np.linalg.svd(R.T)
        return balanced(U @ left[:, :rank], s[:rank], V @ right[:rank].T)

    def centred(self, robust: bool) -> tuple["BilinearProblem", float]:
        """Return the problem with y centred instead of a constant, and the entries of its row."""
        if not self.unit:
            return self, 0.0
        middle = weighted_median if robust else lambda y, weight: np.average(y, weights=weight)
        c = float(middle(self.y, self.weight))
        return replace(self, y=self.y - c), c * self.unit * float(np.sum(self.weight))


def balanced(U: np.ndarray, s: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Return [P; Q] with PQᵀ = U diag(s) Vᵀ, where P and Q have the same size."""
    return np.asarray(np.vstack([U, V]) * np.sqrt(s))


def sense_pairs(
    A: Any,
    B: Any,
    y: np.ndarray,
    weight: np.ndarray,
    rank: int | None,
    effort: Effort,
    seed: int,
    constant: bool,
) -> Sensed:
    """Find c and M, of a given rank or of the rank that predicts held-out rows best."""
    rng = np.random.default_rng(seed)
    unit = typical_size(np.abs(y), weight, effort.robust) or 1.0
    # In units of the targets no square overflows, even in single precision.
    pairs = Pairs(A, B, y / unit, weight, constant)
    if rank is None:
        rank = chosen_rank(pairs, effort, rng)
    sensed = _sensed(pairs, rank, effort, rng)
    history = tuple(replace(record, loss=record.loss * unit**2) for record in sensed.history)
    s, intercept = sensed.s * unit, sensed.intercept * unit
    return replace(sensed, s=s, intercept=intercept, history=history)


def _sensed(pairs: Pairs, rank: int, effort: Effort, rng: np.random.Generator) -> Sensed:
    """Find M of a rank from targets of size 1."""
    left, right = (conditioned(X, pairs.weight, True, rng) for X in (pairs.A, pairs.B))
    rank = min(rank, left.width, right.width)
    unknowns = pair_unknowns(left.width, right.width, rank) + pairs.constant
    majority = Majority.of(pairs.n_distinct, unknowns)
    counted = replace(right, counter=left.counter)
    unit = pairs.constant / float(np.sqrt(rank * np.sum(pairs.weight)))
    problem = BilinearProblem(left, counted, pairs.y, pairs.weight, majority, unit)

    def same(Z: np.ndarray, other: np.ndarray) -> bool:
        (P, Q), (R, S) = problem.split(Z), problem.split(other)
        # |PQᵀ − RSᵀ|² from k×k products.
        size = np.sum((P.T @ P) * (Q.T @ Q))
        difference = size - 2 * np.sum((P.T @ R) * (Q.T @ S)) + np.sum((R.T @ R) * (S.T @ S))
        return bool(difference <= SAME**2 * size)

    best = search(problem, _starts(problem, rank, effort.robust, rng), effort, same)
    P, Q = problem.split(best.z)
    (U, R), (V, S) = np.linalg.qr(left.signal(P)), np.linalg.qr(right.signal(Q))
    inner_left, s, inner_right = np.linalg.svd(R @ S.T)
    c = problem.constant(best.z)
    return Sensed(U @ inner_left, s, V @ inner_right.T, best.status, best.history, c)


def _starts(
    problem: BilinearProblem, rank: int, robust: bool, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield starts; with gross errors, every second start leaves out the largest targets."""
    centred, entry = problem.centred(robust)
    size, steps = np.abs(centred.y), SPECTRAL_STEPS
    most = usual_limit(size, problem.weight) if robust else np.inf
    everything = replace(centred, y=np.clip(centred.y, -most, most))
    usual = replace(everything, weight=problem.weight * (size <= most))
    while True:
        for start in (usual, everything) if robust else (everything,):
            yield problem.above(start.spectral(rank, rng, steps), entry)
            steps = MIXED_STEPS


def chosen_rank(pairs: Pairs, effort: Effort, rng: np.random.Generator) -> int:
    """Return the rank whose fit of four fifths of the rows predicts the others best."""
    counting = rng.permutation(np.flatnonzero(pairs.weight > 0))
    new, old = map(pairs.rows, np.split(counting, [int(HELD_OUT * len(counting))]))
    tol, n_starts = max(effort.tol, ROUGHLY), min(2, effort.n_starts)
    effort, best, least, rank = replace(effort, n_starts=n_starts, tol=tol), 1, np.inf, 0
    d, e = pairs.A.shape[1], pairs.B.shape[1]
    while rank < min(d, e, best + PATIENCE):
        rank += 1
        if rank > 1 and old.n_distinct < ROWS_PER_UNKNOWN * pair_unknowns(d, e, rank):
            break
        sensed = finished(_sensed(old, rank, effort, rng))
        residual = sensed.predict(new.A, new.B) - new.y
        error = held_out_error(residual, new.weight, effort.robust)
        if error < BETTER * least:
            best, least = rank, error
        if error <= EXACT * held_out_error(new.y, new.weight, effort.robust):
            break
    return best


def held_out_error(r: np.ndarray, weight: np.ndarray, robust: bool) -> float:
    """Return the sum of squares; with gross errors, each counts as ten standard deviations."""
    if robust:
        size = np.abs(r)
        limit = FAR * Majority.of(len(r), 0).sigma(size, weight)
        r = np.minimum(size, limit)
    return float(weight @ r**2)
