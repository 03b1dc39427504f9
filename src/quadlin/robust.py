r"""Huber's loss by reweighted least squares: gross errors in y lose their pull.

.. math:: \min \sum_i \omega_i\, \sigma^2 \rho(r_i/\sigma), \qquad
          \rho(t) = t^2 \text{ for } |t| \le h, \text{ else } 2h|t| - h^2

A fit with weights ω·min(1, hσ/|r|) lowers this objective, σ fixed; σ is estimated by the median
of |r| until it settles.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from quadlin.arrays import namespace, to_numpy
from quadlin.chunks import MemorySource
from quadlin.design import Rows
from quadlin.model import predict
from quadlin.solve import Status
from quadlin.stream import Learned

BEND = 1.345  # h: 95% as efficient as least squares when the noise is Gaussian
MAD = 1.4826  # the standard deviation of a Gaussian, in medians of its size
ROUNDS = 20
SETTLED = 1e-3  # the largest change of a weight that still counts as none


def learn_robustly(
    source: MemorySource, learn: Callable[[MemorySource, Learned | None], Learned]
) -> Learned:
    """Fit by Huber's loss, `learn(source, warm)` being the least-squares fit.

    Starts from the median. Passes: those of one fit, and a few for each round after.
    """
    xp = namespace(source.y)
    y = to_numpy(source.y)
    given = np.ones(len(y)) if source.weight is None else to_numpy(source.weight)
    nothing = 1e-12 * float(np.max(np.abs(y), initial=0.0))
    residual, learned = y - _median(y, given), None
    factor = np.ones(len(y))
    for _ in range(ROUNDS):
        size = np.abs(residual)
        scale = MAD * _median(size, given)
        if scale <= nothing and learned is None and np.any(given[size > nothing] > 0):
            # Most of y is one and the same value: let the others tell the scale.
            scale = MAD * _median(size[size > nothing], given[size > nothing])
        if scale <= nothing:
            break  # an exact fit of most rows, or a constant target
        new = BEND * scale / np.maximum(size, BEND * scale)
        if learned is not None and np.max(np.abs(new - factor)) <= SETTLED:
            break
        factor = new
        weight = xp.asarray(given * factor, device=source.y.device)
        learned = learn(replace(source, weight=weight), learned)
        if learned.status in (Status.interrupted, Status.stopped):
            break
        residual = residuals(source, learned)
    return learn(source, None) if learned is None else learned


def residuals(source: MemorySource, learned: Learned) -> np.ndarray:
    """Return y − f of all rows, in the user's units: one pass."""
    units = learned.units
    parts = [
        to_numpy(chunk.y)
        - units.target.mean
        - units.target.scale * to_numpy(predict(learned.model, Rows(chunk.X, units)))
        for chunk in source
    ]
    return np.concatenate(parts)


def _median(values: np.ndarray, weight: np.ndarray) -> float:
    """Return the weighted median: with whole weights, that of the rows repeated."""
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])
