r"""Sparse rows by columns, and a sweep over the columns of a group.

.. math:: f = b + \sum_j x_j w_j + \tfrac12 \sum_a s_a \Big(T_a^2 - \sum_j x_j^2 v_{ja}^2\Big),
          \qquad T = \sum_j x_j v_j,

is linear in :math:`\theta_j = (w_j, v_j)`: :math:`f = f_{-j} + \theta_j^\top q` with
:math:`q = x_j (1, s \circ (T - x_j v_j))`. A sweep visits column after column, solves a K×K system
for its θ and moves the totals T and residuals of its rows: O(entries·K²).
"""

import ctypes
from collections.abc import Sequence
from ctypes import c_double, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csc_matrix

from quadlin.core.library import instruction_level, library, point, takes

MOST_UNKNOWNS = 40  # of a column, for which the kernel has memory


@dataclass(frozen=True)
class Columns:
    """Rows as sparse columns in groups, each of which is contiguous here."""

    starts: np.ndarray  # (d + 1,), int64
    rows: np.ndarray  # (entries,), int32
    x: np.ndarray | None  # (entries,); None where all are one
    places: np.ndarray  # (d,), of the columns in X
    bounds: np.ndarray  # (groups + 1,), of the columns of each group
    n: int

    @classmethod
    def of(cls, X: Any, groups: Sequence[np.ndarray]) -> "Columns":
        """Return the columns of X, sparse or dense, in the order of the groups."""
        places = np.concatenate([np.asarray(group, dtype=np.int64) for group in groups])
        ordered = csc_matrix(csc_matrix(X)[:, places], dtype=np.float64)
        bounds = np.concatenate([[0], np.cumsum([len(group) for group in groups])])
        x = None if (ordered.data == 1).all() else ordered.data
        starts, rows = ordered.indptr.astype(np.int64), ordered.indices.astype(np.int32)
        return cls(starts, rows, x, places, bounds.astype(np.int64), X.shape[0])

    @property
    def d(self) -> int:
        """The number of columns."""
        return len(self.places)

    @property
    def groups(self) -> list[slice]:
        """The columns of each group."""
        return [slice(*ends) for ends in zip(self.bounds[:-1], self.bounds[1:], strict=True)]

    def times(self, table: np.ndarray, power: int = 1) -> np.ndarray:
        """Return the products of the rows, or of powers of their entries, with a table (d, m)."""
        x = np.ones(len(self.rows)) if self.x is None else self.x**power
        return np.asarray(csc_matrix((x, self.rows, self.starts), shape=(self.n, self.d)) @ table)


class SweepStructure(ctypes.Structure):
    """What a sweep reads and moves: `column_sweep` in `_passes.c`, in the same order."""

    _fields_ = [
        *((name, c_int64) for name in ("K", "first", "last")),
        *((name, c_void_p) for name in ("starts", "rows", "x", "weight", "total", "residual")),
        *((name, c_void_p) for name in ("spread", "turn", "table", "cov", "mean", "precision")),
        *((name, c_void_p) for name in ("prior", "pull", "z", "signs", "variance")),
        ("noise", c_double),
    ]


@dataclass
class Point:
    """The unknowns of all columns, and what they leave in the rows; changed by sweeps.

    Covariances, where there are any, make the sweeps variational.
    """

    columns: Columns
    signs: np.ndarray  # (K,), zero for w
    weight: np.ndarray | None  # (n,)
    table: np.ndarray  # (d, K), (w, v) of each column
    total: np.ndarray  # (n, K − 1)
    residual: np.ndarray  # (n,)
    cov: np.ndarray | None = None  # (d, K, K)
    spread: np.ndarray | None = None  # (n, k(k + 1)/2), float32: Σ x²C of the columns, of v
    turn: np.ndarray | None = None  # (n, k): Σ x³C(s∘v) − x²c, with c the covariances of v and w
    prior: np.ndarray | None = None  # (d, K, K), precisions from earlier rows
    pull: np.ndarray | None = None  # (d, K), precisions times means from earlier rows

    @classmethod
    def of(
        cls,
        columns: Columns,
        y: np.ndarray,
        weight: np.ndarray | None,
        signs: np.ndarray,
        table: np.ndarray,
    ) -> "Point":
        """Return the point with these unknowns."""
        signs = np.concatenate([[0.0], signs])
        table = np.ascontiguousarray(table, dtype=np.float64)
        total = np.ascontiguousarray(columns.times(table[:, 1:]))
        f = columns.times(table[:, :1])[:, 0]
        f += (total**2 - columns.times(table[:, 1:] ** 2, 2)) @ signs[1:] / 2
        return cls(columns, signs, weight, table, total, y - f)

    def begin_covariances(self) -> None:
        """Make the sweeps variational, from a point without uncertainty."""
        (d, K), n = self.table.shape, self.columns.n
        self.cov = np.zeros((d, K, K))
        self.spread, self.turn = np.zeros((n, K * (K - 1) // 2), np.float32), np.zeros((n, K - 1))

    def sweep(
        self,
        group: slice,
        mean: np.ndarray,
        precision: np.ndarray,
        noise: float,
        z: np.ndarray | None = None,
    ) -> None:
        """Solve for each column of a group in turn, given its prior; draw, with normal z (d, K)."""
        arrays = {"mean": mean, "precision": precision, "z": z}
        if self._compiled:
            self._run("run_column_sweep", group, noise, arrays)
        else:
            for j in range(group.start, group.stop):
                _sweep_column(self, j, mean, precision, noise, None if z is None else z[j])

    def variance(self) -> np.ndarray:
        """Return the variance of the prediction of each row (n,)."""
        assert self.cov is not None
        assert self.spread is not None
        variance = np.zeros(self.columns.n)
        whole = slice(0, self.columns.d)
        if self._compiled:
            self._run("run_column_variance", whole, 1.0, {"variance": variance})
        else:
            for j in range(self.columns.d):
                rows, x, q, _ = _entries(self, j)
                own = np.sum(np.outer(self.signs, self.signs) * self.cov[j] ** 2)
                np.add.at(variance, rows, np.sum(q @ self.cov[j] * q, axis=1) - x**4 * own / 2)
        a, b = np.tril_indices(self.table.shape[1] - 1)
        pairs = self.signs[1:][a] * self.signs[1:][b] * np.where(a == b, 0.5, 1.0)
        return np.asarray(variance + self.spread**2 @ pairs.astype(np.float32))

    @property
    def _compiled(self) -> bool:
        return takes(np.dtype(np.float64)) and self.table.shape[1] <= MOST_UNKNOWNS

    def _run(self, name: str, group: slice, noise: float, arrays: Any) -> None:
        columns = self.columns
        names = ("weight", "total", "residual", "spread", "turn", "table", "cov", "prior", "pull")
        given = {name: getattr(self, name) for name in (*names, "signs")}
        given |= {"starts": columns.starts, "rows": columns.rows, "x": columns.x}
        given |= {k: a if a is None else np.ascontiguousarray(a) for k, a in arrays.items()}
        K = self.table.shape[1]
        structure = SweepStructure(K=K, first=group.start, last=group.stop, noise=noise)
        point(structure, given)
        getattr(library(), name)(ctypes.byref(structure), instruction_level())


def _entries(at: Point, j: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows and values of a column, q (m, K), and the residuals without the column."""
    columns, theta = at.columns, at.table[j]
    entries = slice(columns.starts[j], columns.starts[j + 1])
    rows = columns.rows[entries]
    x = np.ones(len(rows)) if columns.x is None else columns.x[entries]
    q = np.empty((len(rows), len(theta)))
    q[:, 0] = x
    q[:, 1:] = x[:, None] * at.signs[1:] * (at.total[rows] - x[:, None] * theta[1:])
    return rows, x, q, at.residual[rows] + q @ theta


def _sweep_column(
    at: Point,
    j: int,
    mean: np.ndarray,
    precision: np.ndarray,
    noise: float,
    z: np.ndarray | None,
) -> None:
    """Solve for one column: what the kernel does, in numpy."""
    theta, signs = at.table[j].copy(), at.signs
    rows, x, q, s = _entries(at, j)
    omega = np.ones(len(rows)) if at.weight is None else at.weight[rows]
    G, h = (q.T * omega) @ q, q.T @ (omega * s)
    if at.cov is not None and at.spread is not None and at.turn is not None:
        old, x2, s = at.cov[j].copy(), (x * x)[:, None], signs[1:]
        own = x[:, None] * (old[1:, 1:] @ (s * theta[1:])) - old[1:, 0]
        a, b = np.tril_indices(len(s))
        others = np.empty((len(rows), len(s), len(s)))
        others[:, a, b] = others[:, b, a] = at.spread[rows]
        others -= x2[:, :, None] * old[1:, 1:]
        G[1:, 1:] += np.einsum("r,rab->ab", omega * x * x, others) * np.outer(s, s)
        h[1:] -= s * np.einsum("r,rab,rb->a", omega, others, q[:, 1:])
        h[1:] += s * ((omega * x) @ (at.turn[rows] - x2 * own))
    G, h = noise * G + np.diag(precision), noise * h + precision * mean
    if at.prior is not None and at.pull is not None:
        G, h = G + at.prior[j], h + at.pull[j]
    factor = np.linalg.cholesky(G)
    half = np.linalg.solve(factor, h)
    solution = np.linalg.solve(factor.T, half if z is None else half + z)
    if at.cov is not None and at.spread is not None and at.turn is not None:
        at.cov[j] = np.linalg.inv(G)
        new = x[:, None] * (at.cov[j][1:, 1:] @ (s * solution[1:])) - at.cov[j][1:, 0]
        change = (at.cov[j] - old)[1:, 1:][a, b]
        at.spread[rows] += (x2 * change).astype(np.float32)
        at.turn[rows] += x2 * (new - own)
    at.residual[rows] -= q @ (solution - theta)
    at.total[rows] += x[:, None] * (solution - theta)[1:]
    at.table[j] = solution
