"""The compiled kernel: passes over numpy rows that read them from memory once.

Without it, the references in `kernels.py` do the same in numpy.
"""

import ctypes
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from quadlin.core.arrays import Array, remembered
from quadlin.core.kernels import Kernel, Residuals, runs
from quadlin.core.library import Pass, address, instruction_level, library, point, scratch, takes
from quadlin.core.response import Passed, Response
from quadlin.core.units import Units


def usable(X: Array, units: Units) -> bool:
    """Tell whether there is a compiled kernel for the dtypes of the rows and of the units."""
    return takes(X.dtype) and takes(units.scale.dtype)


class CompiledKernel(Kernel):
    """A kernel that carries out a pass as a whole."""

    # Runs a pass, and returns the sums (d, columns) and those of squares (d, square_columns).
    run: Callable[..., tuple[Array, Array]]

    def products(self, Q: Array, S: Array | None) -> tuple[Array, Array | None]:
        """Return Z Q and (Z∘Z) S, None without S."""
        n = self.X.shape[0]
        products = np.empty((Q.shape[1], n), self.dtype)
        squares = None if S is None else np.empty((S.shape[1], n), self.dtype)
        self.run(Pass(), {"products": products, "squares": squares}, Q, S, 0, 0)
        return products.T, None if squares is None else squares.T

    def sums(self, R: Array, square_columns: int) -> tuple[Array, Array]:
        """Return Zᵀ R, and (Z∘Z)ᵀ R for the first columns of R."""
        given = {"R": np.ascontiguousarray(R.T, self.dtype)}
        return self.run(Pass(), given, None, None, R.shape[1], square_columns)

    def passed(
        self, Q: Array, residuals: Response | Residuals, S: Array | None, squares: bool
    ) -> Passed:
        """Return the sums of residuals; those of a response in one call."""
        if not isinstance(residuals, Response):
            return super().passed(Q, residuals, S, squares)
        response, assembly, action = residuals, residuals.assembly, residuals.action
        m, actions = assembly.constant.shape[0], action.stop - action.start
        total, loss = np.zeros(m), np.zeros(1)
        vectors = {
            "constant": assembly.constant,
            "factor": response.factor,
            "y": response.y,
            "weight": response.weight,
        }
        arrays = {name: None if v is None else self.vector(v) for name, v in vectors.items()}
        given = {**arrays, "total": total, "loss": loss}
        what = Pass(respond=1, m=m, k=response.factor.shape[0], right=response.right)
        what.action, what.actions = action.start, actions
        back, p2 = self.run(what, given, Q, S, m + m * actions, m if squares else 0)
        return Passed(back[:, m:], back[:, :m], p2 if squares else None, total, float(loss[0]))

    def vector(self, v: Array) -> np.ndarray:
        """Return a vector, contiguous and in the dtype of the kernel."""
        return np.ascontiguousarray(v, self.dtype)


class DenseKernel(CompiledKernel):
    """Dense rows of any strides; each is standardised outright when it is read."""

    def __init__(self, X: np.ndarray, units: Units) -> None:
        super().__init__(X, units.scale.dtype)
        self.units = units

    @classmethod
    def of(cls, X: Array, units: Units) -> "DenseKernel | None":
        """Return the kernel for some rows; None if there is none."""
        dense = isinstance(X, np.ndarray) and X.flags.aligned
        return cls(X, units) if dense and usable(X, units) else None

    def parts(self) -> Iterable[slice]:
        """Return runs of rows that stay in the cache."""
        return runs(self.X, self.dtype)

    def rows(self, part: slice) -> Kernel:
        """Return the kernel of some rows."""
        return DenseKernel(self.X[part], self.units)

    def run(
        self,
        what: Pass,
        given: Mapping[str, np.ndarray | None],
        Q: Array | None,
        S: Array | None,
        columns: int,
        square_columns: int,
    ) -> tuple[Array, Array]:
        """Run a pass, and return the sums (d, columns) and those of squares (d, square_columns)."""
        X, units, d = self.X, self.units, self.X.shape[1]
        back = np.empty((columns, d), self.dtype)
        squares = np.empty((square_columns, d), self.dtype)
        arrays = {name: self.vector(getattr(units, name)) for name in ("mean", "scale", "rest")}
        arrays |= {"Q": rows_of(Q, self.dtype, d), "S": square_rows_of(S, self.dtype, d)}
        arrays |= {"back": back, "back_squares": squares}
        (what.n, what.d), what.x, what.x_bytes = X.shape, address(X), X.itemsize
        what.x_row, what.x_column = X.strides
        what.q, what.s = arrays["Q"].shape[0], arrays["S"].shape[0]
        what.columns, what.square_columns = columns, square_columns
        point(what, {**arrays, **given})
        loaded, size = library(), self.dtype.itemsize
        assert loaded is not None
        memory = scratch("compiled", loaded.memory_needed(ctypes.byref(what), size))
        what.memory = address(memory)
        loaded.run_pass(ctypes.byref(what), size, instruction_level())
        return back.T, squares.T


def _transposed(Q: Array | None, dtype: np.dtype, d: int) -> np.ndarray:
    """Return Qᵀ, contiguous; no rows without Q."""
    return np.empty((0, d), dtype) if Q is None else np.ascontiguousarray(Q.T, dtype)


rows_of, square_rows_of = remembered(_transposed), remembered(_transposed)
