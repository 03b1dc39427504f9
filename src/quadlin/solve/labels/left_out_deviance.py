r"""The deviance of each row when it is left out of a fit of labels or counts, without a new fit.

Around a fit the loss is least squares to second order, with weights h and targets z (`Working`).
One Newton step from there leaves a row out: its prediction becomes

.. math:: f_{-i} = z_i - \frac{z_i - f_i}{1 - h_i \varphi_i^\top A^{-1} \varphi_i}

and its deviance is that of the loss itself at :math:`f_{-i}`.
"""

from dataclasses import dataclass, replace

import numpy as np

from quadlin.core.arrays import Array, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.losses import value_and_slope
from quadlin.core.rows import Rows
from quadlin.solve.labels.logistic import Working
from quadlin.solve.lowrank.design import EXACT_COLUMNS, Alpha, Design
from quadlin.solve.lowrank.linear_model import Gram, Kernel, LinearModel
from quadlin.solve.lowrank.observations import LEAST_FREEDOM, repetitions
from quadlin.solve.lowrank.types import Options


@dataclass(frozen=True)
class Repeated:
    """Rows whose weights are repetitions, one of which is left out at a time.

    If weights are not whole numbers, or targets are rates, the whole row is left out.
    """

    times: np.ndarray  # (n,), of each row of positive weight

    @classmethod
    def of(cls, rows: Rows) -> "Repeated":
        """Return how often each row occurs: one pass."""
        y, weight = _targets(rows)
        return cls(repetitions(weight if np.all(y % 1 == 0) else np.full_like(weight, 0.5)))

    def deviance(self, rows: Rows, f: np.ndarray, loss: str) -> np.ndarray:
        """Return ω times the deviance of rows at f, for each repetition separately: one pass."""
        return self.deviances(*_targets(rows), f, loss)

    def deviances(self, y: np.ndarray, omega: np.ndarray, f: np.ndarray, loss: str) -> np.ndarray:
        """Return the same for given targets and weights."""
        values = omega / self.times * value_and_slope(loss, f, y)[0]
        return np.repeat(values, self.times)

    def predictions(self, working: Working, linear: LinearModel, alpha: Alpha) -> np.ndarray:
        """Return f of each row of positive weight when it is left out once: two passes.

        `working` is the least squares around the fit with penalties `alpha`, `linear` its linear
        model. O(np²) or O(n³).
        """
        z, _ = _targets(working.rows)
        at = linear.left_out(working.rows, alpha)
        leverage = np.minimum(at.leverage[:, 0], 1 - LEAST_FREEDOM)
        return np.asarray(z - at.residual[:, 0] / (1 - leverage / self.times))


def linear_model_of(working: Working, U: Array, options: Options, n_rows: int) -> LinearModel:
    """Return the linear model of the rank of U around a fit: products of columns, or of rows."""
    d, k = U.shape
    if k == d and d * (d + 3) // 2 > min(n_rows, EXACT_COLUMNS):
        return replace(Kernel.of(working.rows, working.units), noise=1.0)
    return Gram.of(working.rows, Design.at(U, working.units, options), noise=1.0)


def _targets(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return targets and weights of the rows of positive weight: one pass."""
    y, weight = zip(*rows.collect(_target), strict=True)
    return np.concatenate(y), np.concatenate(weight)


def _target(chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
    chunk = chunk.counting()
    y = to_numpy(chunk.y).astype(np.float64)
    weight = chunk.weights
    return y, weight
