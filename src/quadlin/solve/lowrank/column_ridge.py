r"""Ridge regression of wide sparse rows in memory, for many penalties at once.

.. math:: \min\; \sum_i \omega_i (y_i - b - x_i^\top w)^2 + \alpha \sum_j \pi_j w_j^2

by conjugate gradients in :math:`\sqrt{\pi}\,w`, where another penalty only shifts the matrix by a
multiple of the identity. The residuals of all shifts are then parallel, so one pass per iteration,
with one column forward and back, is enough for all of them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class RidgePath(NamedTuple):
    """The linear model of each penalty."""

    coef: np.ndarray  # (p, d)
    intercept: np.ndarray  # (p,)
    passes: int

    def errors(self, X: Any, y: np.ndarray, i: int) -> np.ndarray:
        """Return f − y of the rows by the i-th model: one pass."""
        return np.asarray(X @ self.coef[i] + self.intercept[i] - y)


def ridges(
    X: Any,
    y: np.ndarray,
    weight: np.ndarray | None,
    penalty: np.ndarray,
    alphas: Sequence[float],
    tol: float,
    cap: int,
) -> RidgePath:
    """Solve for all penalties until the residual of the smallest has fallen by the factor `tol`.

    Memory: two vectors per penalty and a few more. Columns whose `penalty` is zero are left out.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.sparse import csr_array
    >>> X, y = csr_array(np.eye(4)[[0, 1, 1, 2]]), np.array([1.0, 2.0, 2.0, 0.0])
    >>> path = ridges(X, y, None, np.ones(4), [1.0, 1e6], 1e-8, 20)
    >>> path.coef.shape, bool(abs(path.coef[1]).max() < 1e-4), path.intercept[1].round(2)
    ((2, 4), True, np.float64(1.25))
    """
    dtype, (n, d) = X.dtype, X.shape
    omega = np.ones(n, dtype) if weight is None else weight.astype(dtype)
    total = float(omega.sum(dtype=np.float64))
    root = np.zeros(d, dtype)
    np.divide(1, np.sqrt(penalty), out=root, where=penalty > 0, casting="same_kind")
    mean, centre = (X.T @ omega) / dtype.type(total), float(omega @ y) / total
    shifts = np.asarray(alphas, np.float64)
    least = int(shifts.argmin())
    sigma = shifts - shifts[least]

    def product(p: np.ndarray) -> np.ndarray:
        turned = root * p
        z = omega * (X @ turned - mean @ turned)
        return np.asarray(root * (X.T @ z - mean * z.sum()) + dtype.type(shifts[least]) * p)

    r = root * (X.T @ (omega * (y - centre).astype(dtype)))
    solutions, directions = np.zeros((len(shifts), d), dtype), np.tile(r, (len(shifts), 1))
    size = float(r @ r)
    goal = tol**2 * size
    zeta, zeta_before = np.ones(len(shifts)), np.ones(len(shifts))  # relative residuals
    step_before, turn = 1.0, 0.0
    passes = 2
    while size > goal and passes < cap + 2:
        passes += 1
        grown = product(directions[least])
        step = size / float(directions[least] @ grown)
        behind = step * turn * (zeta_before - zeta)
        after = zeta * zeta_before * step_before
        after = after / (behind + zeta_before * step_before * (1 + sigma * step))
        solutions += (step * after / zeta)[:, None].astype(dtype) * directions
        r = r - dtype.type(step) * grown
        size, before = float(r @ r), size
        turn = size / before
        directions *= (turn * (after / zeta) ** 2)[:, None].astype(dtype)
        directions += after[:, None].astype(dtype) * r
        zeta_before, zeta, step_before = zeta, after, step
    coef = solutions * root
    return RidgePath(coef, centre - coef @ mean.astype(np.float64), passes)
