r"""Least squares for quadratic measurements: products with vectors, steps, and several starts.

.. math:: \min_z \sum_i \omega_i\, r_i(z)^2

Rows are operators: only products with them are used, in unknowns in which they are well
conditioned. A step of Levenberg–Marquardt solves :math:`(J^\top \Omega J + \lambda P^{-1}) h =
-J^\top \Omega r` by conjugate gradients; λ falls while steps succeed and rises when one fails, so
the loss never rises. Starts are tried until two of them agree, or one explains y exactly.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.sparse import issparse
from scipy.sparse.linalg import LinearOperator
from scipy.special import ndtri

from quadlin.core.chunks import BLOCK_ELEMENTS
from quadlin.core.rows import Walks
from quadlin.solve.fits.robust import BEND, FAR, ROUNDING, weighted_median
from quadlin.solve.lowrank.krylov import conjugate_gradients
from quadlin.solve.lowrank.types import Record, Status, finished

ROUNDED = 64  # times the rounding of one number: an exact fit
EXACT = 1e-12  # of the mean square of y: a loss that is only rounding
SAME = 1e-2  # results that differ by less, relative to their size, are the same optimum
ROUGHLY = 1e-3  # smaller gains end a start that is compared with others; small changes of weights
CLAIMED = 5.0  # standard errors of a background: noise of mean 0 never reaches it
TYPICAL = 30.0  # medians: Gaussian vectors measure nothing larger
FIRST_DAMPING, LAST_DAMPING = 1e-2, 1e8  # of the curvature along the first gradient
INNER_TOL, INNER_CAP = 0.03, 30  # of the conjugate gradients of a step
STEPS_PER_ROUND = 3  # before rows are reweighted
MOST = 0.95  # of the rows: the largest majority
MOST_WHITENED = 2000  # most columns for which a d×d matrix is formed
POWER_STEPS = 20  # that estimate the norm of an operator
DIRECTIONS, DIGITS = 3, 5  # of the products that compare rows: as many digits as float32 has
EDGE_SLACK = 1.2  # of the largest eigenvalue of a random Gram matrix, which fluctuates


@dataclass(frozen=True)
class Measurements:
    r"""Rows aᵢ with new unknowns v, :math:`z = Bv`, such that √Ω·AB has singular values of about 1.

    B is a d×r matrix, with which they are 1, or a diagonal (d,), with which the largest is 1; a
    diagonal is 0 for columns that measure nothing.
    """

    A: Any  # (n, d): array, sparse matrix or LinearOperator
    B: np.ndarray
    is_real: bool  # whether the signal is real
    walks: Walks = field(default_factory=Walks)

    @property
    def width(self) -> int:
        """Return the number of unknowns."""
        return int(self.B.shape[-1])

    @property
    def rank(self) -> int:
        """Return how many unknowns are measured."""
        return self.width if self.B.ndim == 2 else int(np.count_nonzero(self.B))

    @property
    def dtype(self) -> np.dtype:
        """Return the dtype of the unknowns."""
        return unknowns_dtype(self.A, self.is_real)

    def signal(self, v: np.ndarray) -> np.ndarray:
        """Return z = Bv."""
        z = self.B @ v if self.B.ndim == 2 else (self.B * v.T).T
        return np.asarray(z, dtype=self.dtype)

    def forward(self, v: np.ndarray) -> np.ndarray:
        """Return A B v: one pass over A."""
        self.walks.count += 1
        return np.asarray(self.A @ self.signal(v))

    def adjoint(self, u: np.ndarray) -> np.ndarray:
        """Return (AB)ᴴu, or its real part if the signal is real: one pass over A."""
        self.walks.count += 1
        z = adjoint(self.A, u)
        z = z.real if self.is_real else z
        return np.asarray(self.B.conj().T @ z if self.B.ndim == 2 else (self.B * z.T).T)

    def random(self, rng: np.random.Generator, *columns: int) -> np.ndarray:
        """Return random unknowns (r,), or (r, columns)."""
        v = rng.standard_normal((self.width, *columns))
        v = v if self.is_real else v + 1j * rng.standard_normal(v.shape)
        v = v if self.B.ndim == 2 else ((self.B > 0) * v.T).T
        return np.asarray(v, dtype=self.dtype)


def adjoint(A: Any, u: np.ndarray) -> np.ndarray:
    """Return Aᴴu without a conjugated copy of A."""
    if isinstance(A, LinearOperator):
        try:
            return np.asarray(A.rmatvec(u))
        except NotImplementedError as error:
            raise ValueError(
                "The operator A needs both products: matvec, A @ z, and rmatvec, its conjugate "
                "transpose, Aᴴ @ u."
            ) from error
    # In the precision of A, so that A is not copied to that of u.
    u = u.astype(np.result_type(A.dtype, np.complex64 if np.iscomplexobj(u) else np.float32))
    return np.asarray(A.T @ u.conj()).conj()


def in_double(numbers: np.ndarray) -> np.ndarray:
    """Return real or complex numbers in double precision."""
    return np.asarray(numbers, dtype=np.result_type(numbers.dtype, np.float64))


def unknowns_dtype(A: Any, is_real: bool) -> np.dtype:
    """Return the dtype of signals; float32 stays float32."""
    dtype = np.result_type(A.dtype, np.float32)
    return np.empty(0, dtype=dtype).real.dtype if is_real else dtype


def conditioned(
    A: Any, weight: np.ndarray, is_real: bool, rng: np.random.Generator
) -> Measurements:
    """Return the measurements with unknowns in which they are well conditioned.

    An array of up to 2,000 columns uses the matrix AᴴΩA: one pass, O(nd²). It is not whitened if
    its eigenvalues lie in (1 ± √(d/n))² of their mean, as those of independent columns do
    (Marchenko and Pastur): whitening would only mix the noise of the Gram matrix into a spectral
    start, which costs d/4 measurements. Other columns should be about orthogonal; those of arrays
    are scaled.
    """
    d = int(A.shape[1])
    eps = float(np.finfo(unknowns_dtype(A, is_real)).eps)
    if isinstance(A, LinearOperator):
        plain = Measurements(A, np.ones(d), is_real)
        sizes = _seen(plain, weight, rng)
    elif d > MOST_WHITENED:
        sizes = _gram(A, weight, diagonal=True)
        plain = Measurements(A, 1 / np.sqrt(np.where(sizes > 0, sizes, 1.0)), is_real, Walks(1))
    else:
        gram = _gram(A, weight)
        values, vectors = np.linalg.eigh(gram.real if is_real else gram)
        kept = values > d * eps * max(float(values[-1]), 0.0)
        edge = (1 + np.sqrt(d * np.sum(weight**2)) / np.sum(weight)) ** 2
        if kept.all() and values[-1] <= EDGE_SLACK * edge * np.mean(values):
            return Measurements(A, np.full(d, values[-1] ** -0.5), is_real, Walks(1))
        return Measurements(A, vectors[:, kept] / np.sqrt(values[kept]), is_real, Walks(1))
    plain = replace(plain, B=plain.B * (sizes > d * eps * np.max(sizes)))
    return replace(plain, B=plain.B / np.sqrt(_norm(plain, weight, plain.random(rng)) or 1.0))


def _seen(plain: Measurements, weight: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return |AᴴΩAv| of a random v, 0 for columns of zeros; check that the products match."""
    v = plain.random(rng)
    forward = in_double(plain.forward(v))
    back = plain.adjoint(weight * forward)
    product, size = np.vdot(v, back), float(np.sum(weight * abs(forward) ** 2))
    if not abs(product - size) <= ROUGHLY * size:
        raise ValueError(
            "The operator's rmatvec is not the conjugate transpose of its matvec: for some v, "
            f"v·Aᴴ(A v) is {product:.4g}, but the squared norm of A v is {size:.4g}. Conjugate and "
            "transpose in rmatvec, and scale both by the same number."
        )
    return np.asarray(np.abs(back))


def _norm(measure: Measurements, weight: np.ndarray, v: np.ndarray) -> float:
    """Return the largest eigenvalue of (AB)ᴴΩAB, by power iteration."""
    size = 0.0
    for _ in range(POWER_STEPS):
        v = measure.adjoint(weight * measure.forward(v))
        size = float(np.linalg.norm(v))
        if not size > 0:
            break
        v = v / size
    return size


def _gram(A: Any, weight: np.ndarray, diagonal: bool = False) -> np.ndarray:
    """Return AᴴΩA, or only its diagonal, summed over blocks of rows."""
    (n, d), total = A.shape, 0.0
    rows = max(1, BLOCK_ELEMENTS // max(d, 1))
    for first in range(0, n, rows):
        block = A[first : first + rows].astype(np.result_type(A.dtype, np.float64))
        omega = weight[first : first + rows]
        if diagonal:
            size = abs(block)
            total = total + (size.power(2) if issparse(block) else size**2).T @ omega
        elif issparse(block):
            total = total + (block.conj().T @ block.multiply(omega[:, None])).toarray()
        else:
            total = total + block.conj().T @ (omega[:, None] * block)
    return np.asarray(total)


def distinct_rows(weight: np.ndarray, *arrays: Any) -> int:
    """Return the number of different measurements: a row and its multiples measure the same.

    Rows are compared by three products with random vectors. The same row of several arrays is one
    measurement.
    """
    columns, rng = [], np.random.default_rng(0)
    for X in arrays:
        G = rng.standard_normal((int(X.shape[1]), DIRECTIONS)).astype(unknowns_dtype(X, True))
        by_one = isinstance(X, LinearOperator)  # it may take only single vectors
        P = in_double(np.stack([X @ g for g in G.T], axis=1) if by_one else np.asarray(X @ G))
        size = np.linalg.norm(P, axis=1)
        phase = P[:, 0].conj() / np.maximum(np.abs(P[:, 0]), np.finfo(np.float64).tiny)
        P = np.round(P * (phase / np.where(size > 0, size, 1.0))[:, None], DIGITS) + 0.0
        columns += [P.real, P.imag]
        weight = weight * (size > 0)
    return len(np.unique(np.hstack(columns)[weight > 0], axis=0))


@dataclass(frozen=True)
class Effort:
    """How far a search goes."""

    n_starts: int
    max_iter: int
    tol: float
    loss: str = "squared"

    @property
    def robust(self) -> bool:
        """Tell whether gross errors are left out."""
        return self.loss == "huber"


@dataclass(frozen=True)
class Majority:
    """The best-fitting rows, more than half of them: p + m/2 rows, with p unknowns and m more rows.

    Any p rows can be fitted, whatever they measure; so the rest decides, and no more than half of
    it may be gross errors. The size of the residuals of this majority determines σ.
    """

    share: float = 1.0
    per_sigma: float = 1.0  # the largest of their residuals, if noise is Gaussian

    @classmethod
    def of(cls, n: int, unknowns: int) -> "Majority":
        """Return the majority of n different measurements."""
        share = min((1 + unknowns / max(n, 1)) / 2, MOST)
        overfit = np.sqrt(max(1 - unknowns / max(n, 1), 1 - MOST))  # by which residuals shrink
        return cls(share, float(ndtri((1 + share) / 2) * overfit))

    def largest(self, size: np.ndarray, weight: np.ndarray) -> float:
        """Return the largest residual of the majority."""
        return float(np.quantile(size, self.share, weights=weight, method="inverted_cdf"))

    def sigma(self, size: np.ndarray, weight: np.ndarray) -> float:
        """Return the standard deviation of the noise, which gross errors do not affect."""
        return self.largest(size, weight) / self.per_sigma


@dataclass(frozen=True)
class LinearisedResidual:
    """The residual near a point z: r(z + h) ≈ residual + forward(h)."""

    residual: np.ndarray  # (n,)
    forward: Callable[[np.ndarray], np.ndarray]  # J h
    adjoint: Callable[[np.ndarray], np.ndarray]  # Jᵀu, for the inner product Re⟨·, ·⟩
    precondition: Callable[[np.ndarray], np.ndarray] | None = None


@dataclass(frozen=True)
class Problem:
    """Residuals f(z) − y, with the weights of the rows."""

    y: np.ndarray
    weight: np.ndarray
    walks: Walks  # products with the vectors
    majority: Majority  # of the rows, for Huber's loss

    def linearise(self, z: np.ndarray) -> LinearisedResidual:
        """Return the residual near z."""
        raise NotImplementedError


@dataclass(frozen=True)
class End:
    """What a start or a search led to."""

    z: Any
    objective: float  # to compare with that of other starts
    certain: bool  # whether no other start can be better, as only rounding remains
    status: Status
    history: tuple[Record, ...]

    def after(self, first: "End") -> "End":
        """Return this end with the path that led to its beginning."""
        steps = first.history[-1].step if first.history else 0
        more = self.history[1:] if first.history else self.history
        more = tuple(replace(record, step=steps + record.step) for record in more)
        return replace(self, history=(*first.history, *more))


Same = Callable[[Any, Any], bool]  # whether two results are the same optimum


def search(problem: Problem, starts: Iterator[np.ndarray], effort: Effort, same: Same) -> End:
    """Search from one start after the other and return the best search.

    A start is given up when a step gains less than 0.1% of the loss, so hopeless starts cost
    little; only the best is continued to the end.
    """
    descend = huber if effort.robust else least_squares
    brief = replace(effort, tol=max(effort.tol, ROUGHLY))
    best = best_of((descend(problem, z, brief) for z in starts), effort.n_starts, same)
    if best.certain or best.status is Status.interrupted:
        return best
    try:
        ended = descend(problem, best.z, effort)
    except KeyboardInterrupt:
        return replace(best, status=Status.interrupted)
    unsure = best.status is Status.ambiguous and not ended.certain
    if unsure and ended.status is not Status.interrupted:
        ended = replace(ended, status=Status.ambiguous)
    return ended.after(best)


def best_of(ends: Iterator[End], n_starts: int, same: Same) -> End:
    """Return the best of some starts; it is ambiguous if no other one agrees with it.

    The search ends at a result that is certain, when a second start leads to the best optimum so
    far, or after `n_starts`. After Ctrl-C, the best so far is returned.
    """
    best: End | None = None
    agreed = n_starts == 1
    try:
        for _ in range(n_starts):
            reached = next(ends)
            agreed = agreed or (best is not None and same(best.z, reached.z))
            if best is None or reached.objective < best.objective:
                best = reached
            finished(reached)
            if agreed or best.certain:
                break
    except KeyboardInterrupt:
        if best is None:
            raise
        return replace(best, status=Status.interrupted)
    assert best is not None
    return best if agreed or best.certain else replace(best, status=Status.ambiguous)


def least_squares(problem: Problem, z: np.ndarray, effort: Effort) -> End:
    """Descend by Levenberg–Marquardt until a step gains less than `tol` of the loss.

    A step takes about 20 products, at most 60. After Ctrl-C the best point so far is returned, if
    there is a better one than the start.
    """
    weight = problem.weight
    nothing = (ROUNDED * float(np.finfo(z.dtype).eps)) ** 2 * float(weight @ problem.y**2)
    history: list[Record] = []
    loss, status = np.inf, Status.out_of_steps

    def note(z: np.ndarray, now: LinearisedResidual) -> float:
        loss = float(weight @ now.residual**2)
        history.append(Record(len(history), problem.walks.rounded, loss / float(np.sum(weight))))
        return loss

    try:
        local = problem.linearise(z)
        loss = note(z, local)
        damping, unit = FIRST_DAMPING, 0.0
        while len(history) <= effort.max_iter and loss > nothing:
            downhill = -local.adjoint(weight * local.residual)
            unit = unit or _curvature(local, weight, downhill)
            better = None
            while better is None and unit and damping <= LAST_DAMPING:
                h, _ = conjugate_gradients(
                    lambda v, local=local: local.adjoint(weight * local.forward(v)),  # type: ignore[misc]
                    downhill,
                    inner,
                    INNER_TOL,
                    INNER_CAP,
                    local.precondition,
                    damping * unit,
                )
                trial = problem.linearise(z + h)
                if float(weight @ trial.residual**2) < loss:
                    better = trial
                else:
                    damping = max(10 * damping, 1e-4)
            if better is None:
                status = Status.converged  # as far as rounding allows
                break
            before, z, local = loss, z + h, better
            loss = note(z, local)
            if before - loss <= effort.tol * loss:
                status = Status.converged
                break
            damping = damping / 10 if damping > 1e-6 else 0.0
    except KeyboardInterrupt:
        if len(history) < 2:  # the first point is the start itself
            raise
        return End(z, loss, False, Status.interrupted, tuple(history))
    exact = loss <= nothing
    return End(z, loss, exact, Status.converged if exact else status, tuple(history))


def inner(u: np.ndarray, v: np.ndarray) -> float:
    """Return Re⟨u, v⟩, in which complex unknowns are pairs of real ones."""
    return float(np.vdot(u, v).real)


def _curvature(local: LinearisedResidual, weight: np.ndarray, direction: np.ndarray) -> float:
    """Return the curvature of the loss along a direction, in units of the preconditioner."""
    step = direction if local.precondition is None else local.precondition(direction)
    size = inner(direction, step)
    return float(weight @ local.forward(step) ** 2) / size if size > 0 else 0.0


def huber(problem: Problem, z: np.ndarray, effort: Effort) -> End:
    """Descend to an optimum of Huber's loss, without gross errors."""
    brief = replace(effort, max_iter=min(effort.max_iter, STEPS_PER_ROUND))
    eps = max(ROUNDING, ROUNDED * float(np.finfo(z.dtype).eps))
    return reweighted(
        End(z, np.inf, False, Status.out_of_steps, ()),
        lambda z: np.abs(problem.linearise(z).residual),
        lambda z, weight: least_squares(replace(problem, weight=weight), z, brief),
        eps * problem.majority.largest(np.abs(problem.y), problem.weight),
        problem.weight,
        problem.majority,
        effort.max_iter,
    )[0]


def reweighted(
    end: End,
    size_of: Callable[[Any], np.ndarray],
    descend: Callable[[Any, np.ndarray], End],
    rounding: float,
    given: np.ndarray,
    majority: Majority,
    rounds: int,
) -> tuple[End, np.ndarray]:
    """Descend to an optimum of Huber's loss by reweighted least squares; also return the weights.

    Beyond 1.345σ a residual counts linearly, beyond 10σ not at all: a bounded influence is not
    enough if unknowns are multiplied, since they could align with the gross errors. Searches are
    compared by σ.
    """
    sigma, factor, exact = np.inf, np.zeros_like(given), False
    for number in range(rounds):
        size = size_of(end.z)
        before = (sigma, factor)
        sigma = max(majority.sigma(size, given), rounding)
        ratio = size / (sigma or 1.0)
        factor = np.where(ratio > FAR[-1], 0.0, BEND / np.maximum(ratio, BEND))
        exact = sigma <= rounding
        steady = sigma > (1 - ROUGHLY) * before[0]
        if number and (exact or (steady and np.max(np.abs(factor - before[1])) <= ROUGHLY)):
            end = replace(end, status=Status.converged)
            break
        end = descend(end.z, given * factor).after(end)
        if end.status is Status.interrupted:
            exact = False
            break
        end = replace(end, status=Status.out_of_steps)  # unless another round follows
    return replace(end, objective=sigma, certain=bool(exact)), given * factor


def typical_size(size: np.ndarray, weight: np.ndarray) -> float:
    """Return the median of the sizes that are not 0, or 0."""
    counts = (size > 0) & (weight > 0)
    return weighted_median(size[counts], weight[counts]) if np.any(counts) else 0.0


@dataclass(frozen=True)
class Rest:
    """What a result leaves of y, over the rows that are no gross errors."""

    n: int  # rows that count
    unknowns: int
    left: float  # of the variance of y
    exact: bool  # whether that is only rounding
    left_out: float  # the share of gross errors
    kept: np.ndarray  # (n,), weights without them

    @classmethod
    def of(
        cls,
        y: np.ndarray,
        fitted: np.ndarray,
        weight: np.ndarray,
        unknowns: int,
        majority: Majority | None,
    ) -> "Rest":
        """Return what fitted values leave; with a `majority`, gross errors are left out."""
        size, kept = np.abs(fitted - y), weight
        if majority is not None:
            kept = weight * (size <= FAR[-1] * majority.sigma(size, weight))
        loss, power = (float(np.average(v**2, weights=kept)) for v in (size, y))
        variance = power - float(np.average(y, weights=kept)) ** 2
        left = loss / variance if variance > 0 else float(loss > 0)
        left_out = 1 - float(kept.sum() / weight.sum())
        n = int(np.count_nonzero(kept))
        return cls(n, unknowns, left, loss <= EXACT * power, left_out, kept)

    @property
    def criterion(self) -> float:
        """Return the criterion by which models are compared: the lower, the better."""
        return criterion(self.n, self.left, self.unknowns)


def criterion(n: int, left: float, unknowns: int) -> float:
    """Return n·log(left) + 3pn/(n − p), for p unknowns.

    This is Akaike's criterion for few rows with 3 instead of 2: of all directions that a matrix of
    higher rank may take, the noise favours the best.
    """
    return float(n * (np.log(max(left, EXACT)) + 3 * unknowns / max(n - unknowns, 1)))
