r"""Huber's loss by reweighted least squares: gross errors in y lose their pull.

.. math:: \min \sum_i \omega_i\, \sigma^2 \rho(r_i/\sigma), \qquad
          \rho(t) = t^2 \text{ for } |t| \le h, \text{ else } 2h|t| - h^2

A fit with weights ω·min(1, hσ/|r|) lowers this objective, σ fixed; σ is estimated by the median
of |r| until it settles.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from quadlin.arrays import Array, moved, to_numpy
from quadlin.chunks import Chunk, Reweighted
from quadlin.design import Rows, Units
from quadlin.engine import collect
from quadlin.model import Model, predict
from quadlin.solve import Status
from quadlin.stream import Learned
from quadlin.uncertainty import Uncertainty

BEND = 1.345  # h: 95% as efficient as least squares when the noise is Gaussian
MAD = 1.4826  # the standard deviation of a Gaussian, in medians of its size
ROUNDS = 20
SETTLED = 1e-3  # the largest change of a weight that still counts as none


def learn_robustly(
    source: Iterable[Chunk],
    learn: Callable[[Iterable[Chunk], Learned | None], Learned],
    warm: Learned | None = None,
) -> tuple[Learned, Iterable[Chunk]]:
    """Fit by Huber's loss, `learn(source, warm)` being the least-squares fit.

    Also return the rows with the weights of the last one. Starts from the median. Passes: those of
    one fit, and a few for each round after.
    """
    like, y, given = _gathered(source)
    nothing = 1e-12 * float(np.max(np.abs(y), initial=0.0))
    residual, learned = y - _median(y, given), None
    factor, weighted = np.ones(len(y)), source  # given weights times factor
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
        weighted = Reweighted(source, moved(factor, like))
        learned = learn(weighted, warm if learned is None else learned)
        if learned.status in (Status.interrupted, Status.stopped):
            break
        residual = residuals(source, learned)
    return learn(source, warm) if learned is None else learned, weighted


def robust_law(
    law: Uncertainty, source: Iterable[Chunk], weighted: Iterable[Chunk], learned: Learned
) -> Uncertainty:
    r"""Return the law of a fit by Huber's loss from that of its last reweighted least squares.

    .. math:: \mathrm{cov} = K^2\, \frac{\sum \omega \psi^2 / (n - \mathrm{dof})}{(E \psi')^2}
              (J^\top \Omega J)^{-1}, \qquad
              K = 1 + \frac{\mathrm{dof}}{n} \frac{1 - E \psi'}{E \psi'}

    (Huber, 1973), ψ = r clipped at hσ. The law's own matrix has the weights of the reweighting, on
    average ω̄ of the given ones. An observation has the σ of the residuals that are no gross errors.
    """
    r = residuals(source, learned) / learned.units.target.scale
    given = _gathered(source)[2]
    n = float(given.sum())
    left = n - law.dof
    if not left >= 1 or not isinstance(weighted, Reweighted):
        return law
    scale = MAD * _median(np.abs(r), given) * np.sqrt(n / left)
    psi = np.clip(r, -BEND * scale, BEND * scale)
    share = float(given @ (np.abs(r) <= BEND * scale)) / n  # E ψ'
    mean_weight = float(given @ to_numpy(weighted.weight)) / n
    K = 1 + law.dof / n * (1 - share) / share
    error = K / share * np.sqrt(float(given @ psi**2) / left * mean_weight)
    return replace(law, noise=float(scale), error=float(error), left=left)


def residuals(source: Iterable[Chunk], learned: Learned) -> np.ndarray:
    """Return y − f of all rows, in the user's units: one pass."""
    return np.concatenate(collect(_residuals, source, learned.model, learned.units))


def _residuals(chunk: Chunk, model: Model, units: Units) -> np.ndarray:
    f = to_numpy(predict(model, Rows(chunk.X, units)))
    return np.asarray(to_numpy(chunk.y) - units.target.mean - units.target.scale * f)


def _gathered(source: Iterable[Chunk]) -> tuple[Array, np.ndarray, np.ndarray]:
    """Return an array that lives where the rows do, y and the weights: one pass."""
    y, weight = zip(*collect(_target, source), strict=True)
    numbers = (np.concatenate([to_numpy(a) for a in each]) for each in (y, weight))
    return y[0], *numbers


def _target(chunk: Chunk) -> tuple[Array, Array]:
    return chunk.y, np.ones(chunk.y.shape[0]) if chunk.weight is None else chunk.weight


def _median(values: np.ndarray, weight: np.ndarray) -> float:
    """Return the weighted median: with whole weights, that of the rows repeated."""
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])
