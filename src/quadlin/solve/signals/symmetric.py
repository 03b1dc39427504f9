"""A symmetric matrix from measurements aᵀMa: the second order model without a linear part."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import diags_array, issparse

from quadlin.core.chunks import MemorySource
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.choose.choice import fit_choosing
from quadlin.solve.fits.fit_state import FitState, with_row_count
from quadlin.solve.fits.robust import ROUNDING, predictions
from quadlin.solve.lowrank.types import Automatic, Options, Plan, Status, finished
from quadlin.solve.signals.measurements import distinct_rows
from quadlin.solve.signals.results import EXACT, Sensed, symmetric_unknowns
from quadlin.solve.signals.search import (
    SAME,
    Effort,
    Majority,
    StartEnd,
    best_of,
    reweighted,
    usual_limit,
)

MANY = 6  # measurements per unknown, with which one start leads to the optimum
ROUNDS = 30  # of a fit whose rows are weighted anew
FIRST_RANK = 5  # with which gross errors are found before the rank is chosen


def constant_columns(A: Any) -> np.ndarray:
    """Return a mask of the columns that are constant, and not 0."""
    least, most = A.min(axis=0), A.max(axis=0)
    if issparse(A):
        least, most = least.toarray().ravel(), most.toarray().ravel()
    return np.asarray((least == most) & (most != 0))


@dataclass(frozen=True)
class SymmetricProblem:
    """Measurements by rows of A, of which n differ, and what is wanted of M."""

    A: Any
    y: np.ndarray
    weight: np.ndarray
    rank: int | None  # None: the rank of largest evidence
    effort: Effort
    constant: bool
    psd: bool
    n: int

    def plan(self, rank: int | None, seed: int) -> Plan:
        """Return the plan of a fit; a rank that is chosen has a penalty that is chosen, too."""
        d, auto = int(self.A.shape[1]), rank is None
        options = Options(
            min(FIRST_RANK if rank is None else rank, d),
            fit_linear=False,
            fit_intercept=self.constant,
            psd=self.psd,
            max_iter=self.effort.max_iter,
            tol=self.effort.tol,
        )
        names = [f"x{j}" for j in range(d)]
        maker = UnitsMaker("auto", self.constant, self.A.dtype, names, fit_linear=False)
        return Plan(options, maker, seed, Automatic(auto, auto))

    def fit(
        self,
        weight: np.ndarray,
        rank: int | None,
        seed: int,
        warm: FitState | None = None,
        lowest: bool = False,
    ) -> StartEnd:
        """Fit by least squares with some weights; of exact fits, return that of `lowest` rank."""
        at = np.flatnonzero(weight)
        equal = np.ptp(weight[at]) == 0
        A, y = (self.A, self.y) if len(at) == len(weight) else (self.A[at], self.y[at])
        rows = Rows.of(MemorySource(A, y, None if equal else weight[at]))
        plan, surveyed = self.plan(rank, seed), rows.reduce(survey)
        state, options = fit_choosing(rows, plan, warm, surveyed=surveyed)
        if state.status is Status.interrupted and not state.has_steps:
            finished(state)
        state, loss = with_row_count(state, surveyed.tally, options), state.history[-1].loss
        power = float(np.average(np.square(y, dtype=np.float64), weights=weight[at])) or 1.0
        unknowns = symmetric_unknowns(A.shape[1], len(state.model.s))
        criterion = len(at) * np.log(max(loss / power, EXACT)) + unknowns * np.log(len(at))
        exact = loss <= EXACT * power
        if exact and lowest and len(state.model.s) > 1:
            lower = self.fit(weight, len(state.model.s) - 1, seed, lowest=True)
            if lower.objective < criterion:
                return lower
        certain = exact or self.n >= MANY * unknowns
        return StartEnd(state, float(criterion), certain, state.status, state.history)

    def fit_robustly(self, seed: int) -> StartEnd:
        """Fit by Huber's loss; a rank is chosen by least squares with the weights at its end."""
        d, given, size = int(self.A.shape[1]), self.weight, np.abs(self.y)
        rank = self.rank or min(FIRST_RANK, d, max(1, self.n // (2 * d)))
        rows = Rows.of(MemorySource(self.A, self.y, None))
        majority = Majority.of(self.n, symmetric_unknowns(d, rank))
        usual = size <= usual_limit(size, given)
        end, weight = reweighted(
            self.fit(given * usual, rank, seed),
            lambda state: np.abs(predictions(rows, state) - self.y),
            lambda state, weight: self.fit(weight, rank, seed, state),
            ROUNDING * majority.largest(size, given),
            given,
            majority,
            ROUNDS,
        )
        if end.status is Status.interrupted:
            return end
        return self.fit(weight, self.rank, seed, end.z, lowest=self.rank is None)

    def ends(self, rng: np.random.Generator, seed: int) -> Iterator[StartEnd]:
        """Yield the ends of searches.

        A row and its negative measure the same. With random signs a constant column varies, as it
        has to in a second order model without w; and other signs are another start.
        """
        signed = bool(np.any(constant_columns(self.A)))
        while True:
            A = with_signs(self.A, rng) if signed else self.A
            problem = replace(self, A=A)
            if self.effort.robust:
                yield problem.fit_robustly(seed)
            else:
                yield problem.fit(self.weight, self.rank, seed, lowest=self.rank is None)
            signed, seed = True, int(rng.integers(2**31 - 1))


def with_signs(A: Any, rng: np.random.Generator) -> Any:
    """Return a copy of the rows with random signs."""
    signs = rng.choice([-1.0, 1.0], size=A.shape[0]).astype(A.dtype)
    return diags_array(signs).tocsr() @ A if issparse(A) else A * signs[:, None]


def is_same(first: FitState, second: FitState) -> bool:
    """Tell whether two matrices are the same optimum, by k×k products of their components."""
    (U, s), (V, t) = ((f.raw.components, f.raw.eigenvalues) for f in (first, second))
    size = float(s @ s)
    difference = size - 2 * float(s @ (U @ V.T) ** 2 @ t) + float(t @ t)
    return difference <= SAME**2 * size


def sense_symmetric(
    A: Any,
    y: np.ndarray,
    weight: np.ndarray,
    rank: int | None,
    effort: Effort,
    seed: int,
    constant: bool,
    psd: bool,
) -> Sensed:
    """Find c and M, of a given rank or of the rank of largest evidence."""
    n = distinct_rows(A, weight)
    problem = SymmetricProblem(A, y, weight, rank, effort, constant, psd, n)
    best = best_of(problem.ends(np.random.default_rng(seed), seed), effort.n_starts, is_same)
    raw = best.z.raw
    intercept = float(raw.intercept) if constant else 0.0
    U, s = np.asarray(raw.components).T, np.asarray(raw.eigenvalues)
    return Sensed(U, s, U, best.status, best.history, intercept)
