"""Sparse rows by columns, and sweeps of the compiled kernel that solve for one column at a time."""

import ctypes
from ctypes import c_double, c_int64, c_void_p
from typing import Any

import numpy as np

from quadlin.core.library import aligned_zeros, instruction_level, library, point

MOST_WIDTH = 32  # components at most
AHEAD = 64  # entries whose rows are fetched beforehand: `COLUMN_AHEAD` in `_passes.c`
LANES = 8  # components per vector; those that are not used are zero

PAST, PLANES, SPREAD = (
    ("past", "past_factors", "past_linear", "past_centre"),
    ("errors_plane", "levels_plane", "products_plane"),
    ("beside", "whole", "spread", "all"),
)


class ColumnsStructure(ctypes.Structure):
    """The table below: `columns` in `_passes.c`, in the same order."""

    _fields_ = [
        *((name, c_int64) for name in ("n", "d", "k", "width")),
        *(
            (name, c_void_p)
            for name in ("starts", "rows", "x", "apart", "state", "factors", "linear")
        ),
        *((name, c_void_p) for name in ("penalty", "mean", "signs", "gram", "centre", "pull")),
        *((name, c_double) for name in ("first", "second", "ridge", "squares", "shift")),
        *((name, c_void_p) for name in PAST + PLANES),
        *((name, c_double) for name in ("along", "along_before")),
        *((name, c_void_p) for name in ("rotation", *SPREAD)),
        ("begins", c_int64),
    ]


def levels_of(V: np.ndarray, w: np.ndarray, s: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return ℓ = w + 2 (V s m − μ V² s), m = Vᵀμ: the slopes at the means of the other columns."""
    s, mean = s.astype(V.dtype), mean.astype(V.dtype)  # or numpy would convert V
    return np.asarray(w + 2 * (V @ (s * (mean @ V)) - mean * (V**2 @ s)))


class ColumnTable:
    r"""Sparse rows by columns and a factorization machine of them, which sweeps improve in place.

    .. math:: f = x^\top w + \sum_a s_a \Bigl((x^\top v_a)^2 - \sum_j x_j^2 v_{ja}^2\Bigr)

    The objective is :math:`\sum \omega e^2 + \alpha_1 \sum_j \pi_j \ell_j^2 +
    2 \alpha_2 \operatorname{tr}(sAsA)` with :math:`A = \sum_j \pi_j v_j v_j^\top` and
    :math:`\ell_j = w_j + 2 v_j^\top s (m - \mu_j v_j)`, :math:`m = V^\top \mu`: the slope at the
    means. Errors e are those with the best intercept.
    """

    def __init__(
        self,
        X: Any,
        y: np.ndarray,
        weight: np.ndarray | None,
        mean: np.ndarray,
        penalty: np.ndarray,
        signs: np.ndarray,
        alpha: tuple[float, float],
    ) -> None:
        n, d = X.shape
        k, dtype = len(signs), X.dtype
        width = -(-k // LANES) * LANES
        self.k, self.alpha, self.intercept = k, alpha, 0.0
        self.starts = np.asarray(X.indptr, np.int64)
        self.rows = np.zeros(X.nnz + AHEAD, np.int32)
        self.rows[: X.nnz] = X.indices
        self.x = np.ascontiguousarray(X.data)
        self.state = aligned_zeros((n, width + 8), dtype)  # a row of float32 and eight is one line
        self.state[:, width + 1] = 1.0 if weight is None else weight
        self.state[:, width + 2] = y
        self.factors, self.linear = aligned_zeros((d, width), dtype), np.zeros(d, dtype)
        self.mean, self.penalty = (np.ascontiguousarray(a, np.float64) for a in (mean, penalty))
        self.signs, self.centre, self.pull = (aligned_zeros((width,), np.float64) for _ in range(3))
        self.signs[:k] = signs
        self.gram = aligned_zeros((width, width), np.float64)  # sAs, see `_passes_columns.h`
        self.beside: np.ndarray | None = None  # this and the next three: see `column_spread`
        self.whole: np.ndarray | None = None
        self.spread: np.ndarray | None = None
        self.all: np.ndarray | None = None
        self.apart = np.zeros(d, np.uint8)  # whether a column is solved for with the next one
        self.run("run_parting")

    @property
    def V(self) -> np.ndarray:
        """Return the factors (d, k)."""
        return self.factors[:, : self.k]

    @property
    def weights(self) -> np.ndarray:
        """Return the weights of the rows (n,)."""
        return self.state[:, self.factors.shape[1] + 1]

    @property
    def levels(self) -> np.ndarray:
        """Return ℓ (d,), the slope of each column at the means of the others."""
        return levels_of(self.factors, self.linear, self.signs, self.mean)

    def evaluate(self) -> None:
        """Compute the products and errors of all rows."""
        self.run("run_evaluation")
        self.intercept = 0.0
        self._settle()

    def sweep(self) -> float:
        """Solve for each column, given all others, and return the objective."""
        self.run("run_survey")
        self.run("run_sweep")
        return self._settle() + self._ridges()

    def objective(self) -> float:
        """Return the objective after the last evaluation or sweep."""
        return self._settle() + self._ridges()

    def ridge_of_products(self) -> float:
        """Return 2α₂ tr(sAsA)."""
        self.run("run_survey")
        return 2 * self.alpha[1] * float(self.signs @ self.gram**2 @ self.signs)

    @property
    def errors(self) -> np.ndarray:
        """Return f − y (n,) after the last evaluation or sweep, also for rows without weight."""
        return self.state[:, self.factors.shape[1]].astype(np.float64)

    def _settle(self) -> float:
        """Move the intercept to its best value, and return the sum of squared errors."""
        done = self.run("run_settling")
        self.intercept -= done.shift
        return float(done.squares)

    def _ridges(self) -> float:
        levels = self.alpha[0] * self.run("run_survey").ridge
        return float(levels + 2 * self.alpha[1] * (self.signs @ self.gram**2 @ self.signs))

    def run(self, name: str, **numbers: float) -> ColumnsStructure:
        """Call a function of the kernel, and return what it was given and has changed."""
        (n, _), (d, width) = self.state.shape, self.factors.shape
        table = ColumnsStructure(n=n, d=d, k=self.k, width=width, **numbers)
        table.first, table.second = self.alpha
        arrays = {
            "starts": self.starts,
            "rows": self.rows,
            "x": self.x,
            "apart": self.apart,
            "state": self.state,
            "factors": self.factors,
            "linear": self.linear,
            "penalty": self.penalty,
            "mean": self.mean,
            "signs": self.signs,
            "gram": self.gram,
            "centre": self.centre,
            "pull": self.pull,
            **{name: getattr(self, name, None) for name in (*PAST, *PLANES, *SPREAD, "rotation")},
        }
        point(table, arrays)
        run = getattr(library(), name)
        run(ctypes.byref(table), self.x.itemsize, instruction_level())
        return table
