r"""The losses of a prediction f: value, slope and curvature per row.

Squared errors, :math:`(f - y)^2`; for log-odds f of labels y in {0, 1} the deviance

.. math:: 2 \log(1 + e^f) - 2 y f, \qquad \text{half slope } p - y, \quad
          \text{half curvature } p (1 - p), \quad p = 1/(1 + e^{-f})

and for logarithms f of the means of counts y ≥ 0 that of Poisson's law,

.. math:: 2 \left(e^f - y - y (f - \log y)\right), \qquad \text{half slope } e^f - y, \quad
          \text{half curvature } e^f
"""

from math import exp, log, log1p

from quadlin.core.arrays import Array, namespace

LINKED = ("logistic", "poisson")  # losses of targets whose means are a function of f
FLATTEST = 1e-6  # the smallest p(1 − p) of a working target: rows below it say nothing


def value_and_slope(loss: str, f: Array, y: Array) -> tuple[Array, Array]:
    """Return the loss of each row and half its slope."""
    if loss == "squared":
        r = f - y
        return r * r, r
    if loss == "logistic":
        return 2 * ((1 - y) * softplus(f) + y * softplus(-f)), probability(f) - y
    xp = namespace(f)
    r = bounded_exp(f) - y
    return 2 * (r - y * (f - xp.log(xp.where(y > 0, y, 1.0)))), r


def mean_of(loss: str, f: Array) -> Array:
    """Return the mean of the targets at predictions f, bounded for counts."""
    if loss == "squared":
        return f
    return probability(f) if loss == "logistic" else bounded_exp(f)


def curvature(f: Array, loss: str = "logistic") -> Array:
    """Return half the curvature of a loss, to full precision: for log-odds f it is p (1 − p)."""
    if loss == "poisson":
        return bounded_exp(f)
    xp = namespace(f)
    e = xp.exp(-xp.abs(f))
    return e / (1 + e) ** 2


def log_likelihood(loss: str, f: Array, y: Array) -> Array:
    """Return the log-likelihood of each row, for counts up to a constant."""
    if loss == "logistic":
        return -(1 - y) * softplus(f) - y * softplus(-f)
    return y * f - bounded_exp(f)


def probability(f: Array) -> Array:
    """Return 1/(1 + e⁻ᶠ), without overflow."""
    xp = namespace(f)
    e = xp.exp(-xp.abs(f))
    return xp.where(f >= 0, 1 / (1 + e), e / (1 + e))


def bounded_exp(f: Array) -> Array:
    """Return eᶠ, with f limited to where the square is finite; no step ends beyond."""
    xp = namespace(f)
    most = log(float(xp.finfo(f.dtype).max)) / 2 - 1
    return xp.exp(xp.where(f < most, f, most))


def softplus(f: Array) -> Array:
    """Return log(1 + eᶠ), without overflow."""
    xp = namespace(f)
    return xp.where(f > 0, f, 0.0) + xp.log1p(xp.exp(-xp.abs(f)))


def log_odds(share: float) -> float:
    """Return log p/(1 − p)."""
    return log(share) - log1p(-share)


def constant_deviance(share: float, f: float) -> float:
    """Return the mean deviance of the constant log-odds f if a `share` of the labels is 1."""
    return 2 * (log1p(exp(-abs(f))) + max(f, 0.0) - share * f)
