r"""Few rows of labels, counts or classes as one matrix: scores, evidence and rows left out.

.. math:: \min\; \sum_i \omega_i\, \mathrm{deviance}(f_i, y_i) + \sum_k \theta_k^\top R\,\theta_k,
          \qquad f_{ik} = \varphi_i^\top \theta_k

for one score of labels or counts, and for the scores of all classes, whose softmax is the
probability of each. The columns φ are (1, z), or all products as well, and all scores have the same
penalties: one prior. Newton's method takes all scores at once; the evidence is Laplace's
approximation at the optimum.

The evidence of separable rows rises as penalties shrink, so beyond the widest prior the variance of
a prior has the density of the tail of Cauchy's law.
"""

import itertools
from dataclasses import dataclass
from math import inf, log

import numpy as np
from scipy.linalg import cho_solve
from scipy.linalg.lapack import dtrtri
from scipy.optimize import minimize
from scipy.special import log_softmax

from quadlin.core.arrays import to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.losses import FLATTEST, LOSSES, curvature, value_and_slope
from quadlin.core.model import Model
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.choose.search import BEGIN
from quadlin.solve.lowrank.design import EXACT_COLUMNS, Alpha, Design
from quadlin.solve.lowrank.linear_model import (
    SMALLEST_RIDGE,
    Evidence,
    LeftOut,
    LinearModel,
    factored,
    with_ridge,
)
from quadlin.solve.lowrank.observations import LEAST_FREEDOM, repetitions
from quadlin.solve.lowrank.types import Options

MOST_ENTRIES = 1 << 22  # of the matrix: 32 MB
MOST_PRODUCTS = 1e9  # multiplications of a step: a second
WIDEST = 10.0  # largest standard deviation of scores that a prior expects
TOL, LOOSE_TOL = 1e-9, 1e-3  # relative decrease that ends a fit, and one of many
COMMON = 1e-6  # of the weight: a ridge on the intercepts of classes, whose differences matter
STEPS = 50
SIZES = tuple(0.25**i for i in range(7))  # of a step; the first that lowers the objective is used
STEP, MOST = 2.0, 14.0  # of log α, between first trials, and from the information at most
TRIALS = 20  # of penalties
EXPLAINED = 0.5  # deviance of all left-out rows together; with less, nothing is left to explain
TAIL = 0.5  # per unit of log variance beyond the widest prior


def floored(alpha: Alpha, d: int, k: int) -> Alpha:
    """Return the penalties, raised to the smallest that may be chosen."""
    first, second = (p / WIDEST**2 for p in (d, d * k - k * (k - 1) / 2))
    return max(alpha[0], first), max(alpha[1], second)


@dataclass(frozen=True)
class Scores:
    """The scores of some parameters."""

    theta: np.ndarray  # (K, p)
    F: np.ndarray  # (n, K)
    objective: float


@dataclass
class ScoreTable(LinearModel):
    """Rows of positive weight as the columns of a linear model, with their targets."""

    A: np.ndarray  # (n, p), φ
    y: np.ndarray  # (n,), labels, counts, or numbers of classes
    omega: np.ndarray  # (n,)
    times: np.ndarray  # (n,), the observations that a row stands for
    design: Design
    loss: str
    count: int = 1  # K, of scores
    noise = 1.0

    def __post_init__(self) -> None:
        self.sizes = [self.count * size for size in self.design.sizes]
        self.weight = self._information()  # the unit of penalties
        self.last: Scores | None = None  # the start of the next fit

    @classmethod
    def of(
        cls,
        rows: Rows,
        units: Units,
        options: Options,
        k: int,
        n_rows: int,
        codes: np.ndarray | None = None,
    ) -> "ScoreTable | None":
        """Return the table of rank 0 or d; None if the rows are many: one pass.

        `codes` are the classes of all rows; without them the rows have targets of a loss.
        """
        d = int(units.scale.shape[0])
        p, count = 1 + d + d * k - k * (k - 1) // 2, 1 if codes is None else int(codes.max()) + 1
        small = n_rows * p <= MOST_ENTRIES and n_rows * (count * p) ** 2 <= MOST_PRODUCTS
        if not (k in (0, d) and options.plain and small and count * p <= EXACT_COLUMNS):
            return None
        design = Design.of_rank(k, units, options)
        parts = zip(*rows.collect(_columns, design), strict=True)
        A, y, omega, counting = (np.concatenate(part) for part in parts)
        y = y if codes is None else codes[counting]
        return cls(A, y, omega, repeated(y, omega), design, options.loss, count)

    @property
    def mean(self) -> np.ndarray:
        """Return the mean of labels or counts."""
        return np.asarray(self.omega @ self.y / self.omega.sum())

    def _information(self) -> float:
        """Return Σωh of a score at the best constants."""
        total = float(self.omega.sum())
        if self.count == 1:
            return total * float(LOSSES[self.loss].variance(self.mean))
        shares = np.bincount(self.y, self.omega, self.count) / total
        return total * float(np.mean(shares * (1 - shares)))

    @property
    def rank(self) -> int:
        """Return 0 or d."""
        return self.design.basis.rank

    def ridge(self, alpha: Alpha) -> np.ndarray:
        """Return R of each parameter of a score."""
        sizes = [*self.design.sizes, 0][:2]
        ridge = np.repeat(np.maximum(alpha, SMALLEST_RIDGE * self.weight), sizes) * self.design.unit
        return np.concatenate([[0.0], ridge])

    def terms(self, F: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the deviance of each row, half its slope (n, K) and half its curvature."""
        if self.count == 1:
            value, slope = value_and_slope(self.loss, F[:, 0], self.y)
            h = np.clip(curvature(F[:, 0], self.loss), FLATTEST, None)
            return value, slope[:, None], h[:, None, None]
        log_p = log_softmax(F, axis=1)
        P, mine = np.exp(log_p), self.y[:, None] == np.arange(self.count)
        return -2 * log_p[mine], P - mine, P[:, :, None] * (np.eye(self.count) - P[:, None, :])

    def fitted(self, alpha: Alpha, start: Scores | None = None, tol: float = TOL) -> Scores:
        """Return the optimum, by Newton steps."""
        R, theta = self.ridge(alpha), np.zeros((self.count, self.A.shape[1]))
        if self.count == 1:  # counts may be so large that no step would lead there from zero
            theta[0, 0] = LOSSES[self.loss].link(self.mean)
        at = self._at(theta if start is None else start.theta, R)
        for _ in range(STEPS):
            slope = self.terms(at.F)[1]
            down = -((self.omega[:, None] * slope).T @ self.A + R * at.theta)
            step = cho_solve((self.factor(at, R), True), down.ravel(), check_finite=False).reshape(
                down.shape
            )
            ends = (self._at(at.theta + size * step, R) for size in SIZES)
            new = next((end for end in ends if end.objective < at.objective), None)
            if new is None:
                break
            before, at = at, new
            if before.objective - at.objective <= tol * at.objective:
                break
        return at

    def _at(self, theta: np.ndarray, R: np.ndarray) -> Scores:
        F = self.A @ theta.T
        value = float(self.omega @ self.terms(F)[0] + np.sum(R * theta**2))
        return Scores(theta, F, value if np.isfinite(value) else np.inf)

    def factor(self, at: Scores, R: np.ndarray) -> np.ndarray:
        """Return L with LLᵀ half the curvature of the objective."""
        H, p = self.omega[:, None, None] * self.terms(at.F)[2], len(R)
        C = np.zeros((self.count, p, self.count, p))
        for a in range(self.count):
            for b in range(a + 1):
                root = np.sqrt(np.abs(H[:, a, b]))[:, None] * self.A  # H is negative if a ≠ b
                C[a, :, b] = root.T @ root if a == b else -root.T @ root
        common = COMMON * self.weight * (self.count > 1) * (np.arange(p) == 0)
        size = self.count * p
        L = factored(with_ridge(C.reshape(size, size), np.tile(R + common, self.count)))
        assert L is not None
        return L

    def deviances_left_out(self, alpha: Alpha) -> np.ndarray:
        """Return the deviance of each observation when it is left out."""
        at = self.fitted(alpha, self.last)
        return self._left_out(at, self.factor(at, self.ridge(alpha)))

    def _left_out(self, at: Scores, L: np.ndarray) -> np.ndarray:
        """Return the deviance of each observation when it is left out, by one Newton step."""
        K, p = self.count, self.A.shape[1]
        inverse = dtrtri(L, lower=1)[0]
        B = np.stack([inverse[:, a * p : (a + 1) * p] @ self.A.T for a in range(K)])
        V = np.einsum("amn,bmn->nab", B, B, optimize=True)  # φᵀA⁻¹φ of two scores, for each row
        _, slope, H = self.terms(at.F)
        share = (self.omega / self.times)[:, None]
        remaining = (1 + LEAST_FREEDOM) * np.eye(K) - V @ (share[:, :, None] * H)
        moved = np.linalg.solve(remaining, V @ (share * slope)[:, :, None])[:, :, 0]
        return np.repeat(share[:, 0] * self.terms(at.F + moved)[0], self.times)

    def of_groups(self, alpha: Alpha) -> np.ndarray:
        """Return the penalties of the groups, from those of w and M."""
        return np.asarray(alpha[: len(self.sizes)], np.float64)

    def maximised(self) -> Evidence:
        """Return the best penalties, by evidence and by left-out rows: some 20 fits."""
        begin, unit = (-2.0, log(BEGIN))[: len(self.sizes)], log(self.weight)
        simplex = np.add(begin, STEP * np.eye(len(begin) + 1, len(begin), k=-1)) + unit

        def falls(log_alpha: np.ndarray) -> float:
            if np.any(np.abs(log_alpha - unit) > MOST):
                return inf
            evidence, left_out = self._values(np.exp(log_alpha), LOOSE_TOL)
            prior = max(self.count - 1, 1) * TAIL * float(self._beyond(log_alpha).sum())
            share = 0.0 if LOSSES[self.loss].dispersed else 0.5
            return left_out / 2 - share * (evidence + left_out / 2) + prior

        settings = {"initial_simplex": simplex, "maxfev": TRIALS, "xatol": 0.5, "fatol": 0.1}
        end = minimize(falls, simplex[0], method="Nelder-Mead", options=settings)
        return self.at(end.x)

    def _values(self, alpha: np.ndarray, tol: float = TOL) -> tuple[float, float]:
        """Return the evidence, and the deviance of left-out rows."""
        both = float(alpha[0]), float(alpha[-1])
        self.last = self.fitted(both, self.last, tol)
        R = self.ridge(both)
        L = self.factor(self.last, R)
        log_det = self.count * float(np.log(R[1:]).sum()) - 2 * float(np.log(np.diag(L)).sum())
        return (log_det - self.last.objective) / 2, float(self._left_out(self.last, L).sum())

    def _beyond(self, log_alpha: np.ndarray) -> np.ndarray:
        """Return how far the log variance of each prior is beyond the widest."""
        widest = self.of_groups(floored((0.0, 0.0), len(self.design.units.scale), self.rank))
        return np.asarray(np.maximum(np.log(widest) - log_alpha, 0.0))

    def at(self, log_alpha: np.ndarray, least: float = -inf) -> Evidence:
        """Return the evidence at some penalties."""
        alpha = np.exp(log_alpha)
        evidence, left_out = self._values(alpha)
        assert self.last is not None
        R = self.ridge((float(alpha[0]), float(alpha[-1])))
        inverse = dtrtri(self.factor(self.last, R), lower=1)[0]
        shrunk = np.tile(R, self.count) * np.einsum("ij,ij->j", inverse, inverse)
        determined = np.asarray(self.sizes) - self._by_group(shrunk.reshape(self.count, -1))
        noise = float(left_out > EXPLAINED)  # that of labels is known
        return Evidence(evidence, log_alpha, noise, determined)

    def _by_group(self, values: np.ndarray) -> np.ndarray:
        """Return the sums over the parameters (K, p) of each group, without the intercepts."""
        ends = 1 + np.cumsum([0, *self.design.sizes])
        return np.array([values[:, a:b].sum() for a, b in itertools.pairwise(ends)])

    def model(self, alpha: Alpha) -> Model:
        """Return the model of the first score."""
        return self.models(self.fitted(alpha, self.last))[0]

    def left_out(self, rows: Rows, alpha: Alpha) -> LeftOut:
        """Return nothing: the deviances of rows left out are `deviances_left_out`."""
        raise NotImplementedError

    def models(self, at: Scores) -> list[Model]:
        """Return the model of each score."""
        return [self.design.model(theta[1:], float(theta[0])) for theta in at.theta]


def repeated(y: np.ndarray, omega: np.ndarray) -> np.ndarray:
    """Return the observations that rows of positive weight stand for, one of which is left out.

    If weights are not whole numbers, or targets are rates, the whole row is left out.
    """
    return repetitions(omega if np.all(y % 1 == 0) else np.full_like(omega, 0.5))


def _columns(chunk: Chunk, design: Design) -> tuple[np.ndarray, ...]:
    """Return φ, the target and the weight of rows of positive weight, and which rows those are."""
    counting, chunk = chunk.weights > 0, chunk.counting()
    A = to_numpy(design.columns(chunk))[:, :-1]
    return np.ascontiguousarray(A), to_numpy(chunk.y).astype(np.float64), chunk.weights, counting
