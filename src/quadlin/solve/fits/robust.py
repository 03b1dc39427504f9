r"""Huber's loss by reweighted least squares, which limits the influence of gross errors in y.

.. math:: \min \sum_i \omega_i\, \sigma^2 \rho(r_i/\sigma), \qquad
          \rho(t) = t^2 \text{ for } |t| \le h, \text{ else } 2h|t| - h^2

With σ fixed, a fit with weights ω·min(1, hσ/|r|) lowers this objective; σ is estimated by the
median of |r| until it settles. The loss is linear in a gross error, so its influence does not
depend on its size: if |r| > gσ, y is moved so that |r| = gσ. Otherwise the squares of gross errors,
which no model can lower, would dominate the least-squares objective. g is lowered as the fit
settles, because at first a large residual may be the model's fault.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from quadlin.core.arrays import Array, moved, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.model import Model, predict
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.fits.fit_state import FitState, squared_errors
from quadlin.solve.fits.uncertainty import Uncertainty
from quadlin.solve.lowrank.types import Status

BEND = 1.345  # h: 95% as efficient as least squares when the noise is Gaussian
MAD = 1.4826  # the standard deviation of a Gaussian over its median absolute deviation
ROUNDING = 1e-12  # of a typical y: smaller residuals count as zero
ROUNDS, PASSES = 30, 2000  # maxima: with as many parameters as rows, weights may oscillate
FAR = (1e6, 1e3, 10.0)  # g
SETTLED = 1e-4  # the largest change of a weight that counts as none
ROUGHLY = 0.03  # the same for the weights with which rank and penalties are chosen
# A change of weights by δ changes the objective by about δ²: the tolerance of a fit is this share
# of it, and the first tolerance is the second number. The last one is the same share of `tol`, so
# that a fit that starts at the one before notices small changes.
SHARE, FIRST_TOL = 1e-2, 1e-4

Fit = Callable[[Rows, FitState | None, float], FitState]  # rows, a start and a tolerance


def fit_robustly(
    rows: Rows,
    fit: Fit,
    tol: float,
    warm: FitState | None = None,
    begin: FitState | None = None,
    settled: float = SETTLED,
) -> tuple[FitState, Rows]:
    """Fit by Huber's loss; `fit(rows, warm, tol)` is a least-squares fit.

    Also return the rows with the weights of the last fit. The weights start from the median, or
    from a robust fit `begin`, and change until none changes by more than `settled`; the last fits
    have the tolerance `tol`. Passes: those of one fit and a few for each further round, at most
    2,000 plus those of one more fit. The history is that of the last round.
    """
    like, y, given = _gathered(rows)
    nothing = ROUNDING * _typical(y, given)
    f, limits = np.full(len(y), weighted_median(y, given)), list(FAR)
    if begin is not None:
        warm, f, limits = begin, predictions(rows, begin), list(FAR[-1:])
    state: FitState | None = None
    precise = max(tol, FIRST_TOL)  # the tolerance of the last fit, and of the next one
    factor, weighted = np.ones(len(y)), rows  # given weights times factor
    last = rows.counter.count + PASSES
    for _ in range(ROUNDS):
        if rows.counter.count > last:
            break
        size = np.abs(y - f)
        scale = MAD * weighted_median(size, given)
        if scale <= nothing and state is None and np.any(given[size > nothing] > 0):
            # Most of y is the same value, so the other values determine the scale.
            scale = MAD * weighted_median(size[size > nothing], given[size > nothing])
        if scale <= nothing:
            break  # an exact fit of most rows, or a constant target
        new = huber_factor(size / scale, limits[0])
        change = float(np.max(np.abs(new - factor)[given > 0]))
        enough = max(tol, SHARE * settled**2)  # precise enough to see that weights have settled
        while state is not None and precise <= enough and limits and change <= settled:
            limits = limits[1:]
            new = huber_factor(size / scale, limits[0]) if limits else new
            change = float(np.max(np.abs(new - factor)[given > 0]))
        if not limits:
            break
        if state is not None:
            precise = min(precise, max(enough, SHARE * change**2))
        factor, limit = new, limits[0] * scale
        target = np.where(size > limit, f + np.clip(y - f, -limit, limit), y)
        weighted = rows.reweighted(moved(factor, like), moved(target, like))
        try:
            state = fit(weighted, warm if state is None else state, precise)
            if state.status in (Status.interrupted, Status.stopped):
                break
            f = predictions(rows, state)
        except KeyboardInterrupt:
            if state is None:
                raise
            return replace(state, status=Status.interrupted), weighted
    return fit(rows, warm, tol) if state is None else state, weighted


def tighter(tol: float, eps: float) -> float:
    """Return the tolerance of a reweighted fit; sums of rounded terms are not exact to eps/64."""
    return min(tol, max(SHARE * tol, eps / 64))


def huber_factor(size: np.ndarray, far: float) -> np.ndarray:
    """Return the weights of residuals of some size, in σ; larger ones are moved to `far`."""
    return np.asarray(BEND / np.clip(size, BEND, far))


def robust_law(law: Uncertainty, rows: Rows, weighted: Rows, state: FitState) -> Uncertainty:
    r"""Return the law of a fit by Huber's loss from that of its last reweighted least squares.

    .. math:: \mathrm{cov} = K^2\, \frac{\sum \omega \psi^2 / (n - \mathrm{dof})}{(E \psi')^2}
              (J^\top \Omega J)^{-1}, \qquad
              K = 1 + \frac{\mathrm{dof}}{n} \frac{1 - E \psi'}{E \psi'}

    (Huber, 1973), where ψ is r clipped at hσ. The matrix of the given law has the weights of the
    reweighting, on average ω̄ of the given weights; a robust law has both for each direction. The
    noise of an observation is such that ±1.96 of it cover 95% of the residuals that are not gross
    errors. This holds for heavy tails, too, where the median alone would be too optimistic.
    """
    size, given = _residuals(rows, state)
    n = float(given.sum())
    freedom = n - law.dof
    if not freedom >= 1 or weighted.values is None or (law.robust and not law.left >= 1):
        return law  # no degrees of freedom remain
    scale = MAD * weighted_median(size, given) * np.sqrt(n / freedom)
    share = float(given @ (size <= BEND * scale)) / n  # E ψ'
    mean_weight = float(given @ to_numpy(weighted.values.weight)) / n
    K = 1 + law.dof / n * (1 - share) / share
    if law.robust:
        error = law.error * K * (1 if law.exact else mean_weight / share)
    else:
        psi = np.minimum(size, BEND * scale)
        error = K / share * np.sqrt(float(given @ psi**2) / freedom * mean_weight)
    usual = size <= FAR[-1] * scale
    tail = np.quantile(size[usual], 0.95, weights=given[usual], method="inverted_cdf")
    noise = tail / 1.96 * np.sqrt(n / freedom)
    return replace(law, noise=float(noise), error=float(error), left=freedom)


def bend_of(rows: Rows, state: FitState) -> float:
    """Return the residual where Huber's loss turns linear, in standardised units: one pass."""
    return BEND * MAD * weighted_median(*_residuals(rows, state))


def _residuals(rows: Rows, state: FitState) -> tuple[np.ndarray, np.ndarray]:
    """Return |r| of all rows, in standardised units, and their weights: one pass."""
    squares, weight = map(to_numpy, squared_errors(state.model, state.units, rows))
    return np.sqrt(squares), weight


def predictions(rows: Rows, state: FitState) -> np.ndarray:
    """Return f of all rows, in the user's units: one pass."""
    return np.concatenate(rows.collect(_predictions, state.model, state.units))


def _predictions(chunk: Chunk, model: Model, units: Units) -> np.ndarray:
    f = to_numpy(predict(model, Block(chunk.X, units))).astype(np.float64)
    return np.asarray(units.target.mean + units.target.scale * f)


def _gathered(rows: Rows) -> tuple[Array, np.ndarray, np.ndarray]:
    """Return an array on the device of the rows, y and the weights: one pass."""
    y, weight = zip(*rows.collect(_target), strict=True)
    numbers = (np.concatenate([to_numpy(a) for a in each]) for each in (y, weight))
    return y[0], *numbers


def _target(chunk: Chunk) -> tuple[Array, Array]:
    return chunk.y, np.ones(chunk.y.shape[0]) if chunk.weight is None else chunk.weight


def _typical(y: np.ndarray, weight: np.ndarray) -> float:
    """Return the typical size of y, which gross errors do not affect."""
    middle = weighted_median(y, weight)
    size = np.abs(y - middle)
    other = (size > 0) & (weight > 0)
    return max(abs(middle), weighted_median(size[other], weight[other]) if other.any() else 0.0)


def weighted_median(values: np.ndarray, weight: np.ndarray) -> float:
    """Return the weighted median; with whole weights, that of the repeated rows."""
    return float(np.quantile(values, 0.5, weights=weight, method="inverted_cdf"))
