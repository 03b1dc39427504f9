r"""Newton's method on the rank-k matrices, for rows that fit in memory.

.. math:: \min\; \sum_i \omega_i r_i^2 + \alpha_1 |w|^2 + 2 \alpha_2 \|M\|_F^2,
          \qquad \mathrm{rank}\,M \le k

for features z/ρ, with w and the intercept eliminated. A change of M = U diag(s) Uᵀ is
D = UGᵀ + GUᵀ. The set is curved, so a step ends in M + D + H diag(s)⁻¹ Hᵀ with H = (I − UUᵀ)G, and
the gradient N of the squares adds ν_j/s_a to the curvature of the direction u_a, v_j, where ν_j and
v_j are the eigenpairs of N outside U. With that term the last steps converge quadratically, however
large the residual is.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from quadlin.core.arrays import lead, namespace, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.engine import one_blas_thread
from quadlin.core.model import Model
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.exact import Alpha, dense
from quadlin.solve.lowrank.tangent import orthonormalised
from quadlin.solve.lowrank.tangent_gram import Basis

STEPS = 60
SETTLED = 1e-4  # of the objective: a smaller gain of an undamped step ends the descent
STALLED = 1e-7  # the same for any step
NOTHING = 1e-14  # of the squares of the target: a smaller objective is rounding
FIRST_DAMPING, LAST_DAMPING = 1e-3, 1e-5  # shares of the mean curvature; none below the last
INDEFINITE, WORSE, BETTER = 8.0, 4.0, 1 / 16  # how the damping changes
AGREES = 0.5  # of the gain that the quadratic model promised
TRIES = 30
WIDE, SMALL = 2, 200  # more parameters per row, and in all, are too many for a p×p matrix


@dataclass(frozen=True)
class CentredTable:
    """Rows in memory, centred and weighted, in units with the same ridge for all features."""

    Z: np.ndarray  # (n, d), z/ρ
    y: np.ndarray  # (n,), √ω (y − ȳ)
    root: np.ndarray  # (n,), √ω
    mean: float  # ȳ
    fixed: np.ndarray  # (d,), True where the square is not modelled

    @classmethod
    def of(cls, rows: Rows, units: Units) -> "CentredTable":
        """Collect the rows of positive weight: one pass."""
        chunks = rows.collect(Chunk.counting)
        rho = to_numpy(units.penalty_scale).astype(np.float64)
        Z = np.concatenate([to_numpy(dense(c, units)) for c in chunks]) / rho
        y = np.concatenate([to_numpy(units.standardised_target(c.y)) for c in chunks])
        ones = np.ones(len(y))
        weights = [c.weight for c in chunks]
        weight = ones if weights[0] is None else np.concatenate([to_numpy(a) for a in weights])
        mean = float(np.average(y, weights=weight))
        root = np.sqrt(weight.astype(np.float64))
        return cls(Z, root * (y - mean), root, mean, to_numpy(units.free) == 0)

    @cached_property
    def share(self) -> np.ndarray:
        """Return ω/Σω."""
        return np.asarray(self.root**2 / np.sum(self.root**2))

    def centred(self, A: np.ndarray) -> np.ndarray:
        """Return centred columns, times √ω."""
        return np.asarray(self.root.reshape(-1, *([1] * (A.ndim - 1))) * (A - self.share @ A))

    @cached_property
    def linear(self) -> np.ndarray:
        """Return the features, centred and weighted."""
        return self.centred(self.Z)

    @cached_property
    def gram(self) -> np.ndarray:
        """Return the products of the features."""
        return np.asarray(self.linear.T @ self.linear)

    @cached_property
    def squares(self) -> np.ndarray:
        """Return the squares that are not modelled."""
        return np.asarray(self.Z[:, self.fixed] ** 2)

    def quadratic(self, U: np.ndarray, s: np.ndarray) -> np.ndarray:
        """Return zᵀMz without the squares that are not modelled."""
        f = (self.Z @ U) ** 2 @ s
        return np.asarray(f - self.squares @ (U[self.fixed] ** 2 @ s))


@dataclass(frozen=True)
class RankPoint:
    """A matrix of the rank, with its best linear part."""

    U: np.ndarray  # (d, k), orthonormal
    s: np.ndarray  # (k,)
    w: np.ndarray  # (d,)
    residual: np.ndarray  # (n,), √ω (f − y)
    objective: float


@dataclass(frozen=True)
class System:
    """The quadratic model near a matrix: (AᵀA + diag(ridge)) θ = −slope."""

    basis: Basis
    A: np.ndarray  # (n, p)
    ridge: np.ndarray  # (p,), with the curvature of the set
    slope: np.ndarray  # (p,)
    least: float  # ridge without that curvature
    d: int

    @cached_property
    def gram(self) -> np.ndarray:
        """Return AᵀA + diag(ridge)."""
        return np.asarray(self.A.T @ self.A + np.diag(self.ridge))

    @cached_property
    def unit(self) -> float:
        """Return the mean curvature of the directions of M."""
        M = self.A[:, self.d :]
        return float(np.sum(M * M)) / max(1, int(M.shape[1]))

    def solved(self, damping: float) -> np.ndarray | None:
        """Return θ, or None if the model has no minimum.

        The system is n×n if there are far more parameters than rows. Then no direction may have
        negative curvature, since the rows do not determine most of them.
        """
        n, p = self.A.shape
        added = damping * self.unit
        try:
            if p <= max(WIDE * n, SMALL):
                H = self.gram + added * np.eye(p)
                return np.asarray(-cho_solve(cho_factor(H, check_finite=False), self.slope))
            ridge = np.maximum(self.ridge, self.least) + added
            scaled = self.A / np.sqrt(ridge)
            inner = cho_factor(scaled @ scaled.T + np.eye(n), check_finite=False)
            first = self.slope / ridge
            return np.asarray(self.A.T @ cho_solve(inner, self.A @ first) / ridge - first)
        except LinAlgError:
            return None


class Newton:
    """The objective of one rank and its penalties."""

    def __init__(self, table: CentredTable, rank: int, alpha: Alpha) -> None:
        self.table, self.rank, self.alpha = table, rank, alpha
        d = table.Z.shape[1]
        self.linear = cho_factor(table.gram + alpha[0] * np.eye(d))

    def place(self, U: np.ndarray, s: np.ndarray) -> RankPoint:
        """Return a matrix with its best linear part and its objective."""
        table, (first, second) = self.table, self.alpha
        r = table.centred(table.quadratic(U, s)) - table.y
        w = -cho_solve(self.linear, table.linear.T @ r)
        r = r + table.linear @ w
        objective = float(r @ r + first * (w @ w) + 2 * second * (s @ s))
        return RankPoint(U, s, w, r, objective)

    def system(self, p: RankPoint) -> System:
        """Return the quadratic model of the objective near a matrix."""
        table, k, (first, second) = self.table, self.rank, self.alpha
        d = p.U.shape[0]
        N = (table.Z * (table.root * p.residual)[:, None]).T @ table.Z
        N[table.fixed, table.fixed] = 0.0
        complement = np.linalg.qr(p.U, mode="complete")[0][:, k:]
        nu, vectors = np.linalg.eigh(complement.T @ N @ complement)
        basis = Basis(np.concatenate([p.U, complement @ vectors], axis=1), k)
        A = table.centred(np.asarray(basis.quadratic(table.Z, table.fixed)))
        A = np.concatenate([table.linear, A], axis=1)
        theta, bend = np.zeros((k, d)), np.zeros((k, d))
        theta[np.arange(k), np.arange(k)] = p.s
        bend[:, k:] = _inverse(p.s)[:, None] * nu
        upper = np.triu(np.ones((k, d), dtype=bool))
        ridge = np.append(np.full(d, first), 2 * second + bend[upper])
        point = np.append(first * p.w, 2 * second * theta[upper])
        return System(basis, A, ridge, A.T @ p.residual + point, min(first, second), d)

    def moved(self, p: RankPoint, system: System, theta: np.ndarray) -> RankPoint:
        """Take the step θ along the curved set, and truncate to the rank."""
        k, W = self.rank, system.basis.W
        d = W.shape[0]
        T = np.zeros((k, d))
        T[np.triu(np.ones((k, d), dtype=bool))] = theta[d:] / np.sqrt(2)
        inner = T[:, :k] + T[:, :k].T
        inner[np.diag_indices(k)] /= np.sqrt(2)
        H = W[:, k:] @ T[:, k:].T  # (d, k)
        V, R = np.linalg.qr(np.concatenate([p.U, H], axis=1))
        u, h = R[:, :k], R[:, k:]
        cross = u @ h.T
        M = u @ (np.diag(p.s) + inner) @ u.T + cross + cross.T + (h * _inverse(p.s)) @ h.T
        s, vectors = lead(M, k)
        return self.place(V @ vectors, s)

    def optimum(self, U: np.ndarray, s: np.ndarray) -> RankPoint:
        """Descend to the optimum near a matrix, with damping if the model is not convex."""
        p, damping = self.place(U, s), FIRST_DAMPING
        nothing = NOTHING * float(self.table.y @ self.table.y)
        with one_blas_thread():
            for _ in range(STEPS):
                if p.objective <= nothing:
                    break
                q, damping, agrees = self.lower(p, damping)
                gain = p.objective - q.objective
                settled = SETTLED if damping <= FIRST_DAMPING and agrees else STALLED
                done = gain <= settled * p.objective
                p = q
                if done:
                    break
                if agrees:
                    damping = damping * BETTER if damping > LAST_DAMPING else 0.0
        return p

    def lower(self, p: RankPoint, damping: float) -> tuple[RankPoint, float, bool]:
        """Return a lower point, its damping, and whether its gain is about the promised one."""
        system = self.system(p)
        for _ in range(TRIES):
            theta = system.solved(damping)
            if theta is None:
                damping = max(INDEFINITE * damping, FIRST_DAMPING)
                continue
            q = self.moved(p, system, theta)
            if q.objective < p.objective:
                promised = -float(system.slope @ theta)
                return q, damping, p.objective - q.objective > AGREES * promised
            damping = max(WORSE * damping, FIRST_DAMPING)
        return p, damping, True

    def model(self, p: RankPoint, units: Units) -> Model:
        """Return a point as a model in standardised units."""
        table, rho = self.table, to_numpy(units.penalty_scale).astype(np.float64)
        c = table.mean - float(table.share @ (table.Z @ p.w + table.quadratic(p.U, p.s)))
        E = p.U / rho[:, None]
        c += float((E * E @ p.s) @ to_numpy(units.free))
        xp, like = namespace(units.scale), units.scale
        U, s, w = (xp.asarray(a, dtype=like.dtype, device=like.device) for a in (E, p.s, p.w / rho))
        return orthonormalised(Model(U, s, w, c, units.free))


def factors(model: Model, units: Units, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rank-k part of the M of a model, for features z/ρ."""
    E = to_numpy(units.penalty_scale * model.U.T).T.astype(np.float64)
    V, R = np.linalg.qr(E)
    s, vectors = lead((R * to_numpy(model.s)) @ R.T, rank)
    return V @ vectors, s


def _inverse(s: np.ndarray) -> np.ndarray:
    """Return 1/s; 0 for components of size zero."""
    nonzero = np.abs(s) > 1e-12 * np.max(np.abs(s), initial=0.0)
    return np.asarray(np.where(nonzero, 1 / np.where(nonzero, s, 1.0), 0.0))
