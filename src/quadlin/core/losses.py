r"""The losses of a prediction f: value, slope and curvature per row.

Squared errors, :math:`(f - y)^2`, and for log-odds f of labels y in {0, 1} the deviance

.. math:: 2 \log(1 + e^f) - 2 y f, \qquad \text{half slope } p - y, \quad
          \text{half curvature } p (1 - p), \quad p = 1/(1 + e^{-f})
"""

from math import exp, log, log1p

from quadlin.core.arrays import Array, namespace


def value_and_slope(loss: str, f: Array, y: Array) -> tuple[Array, Array]:
    """Return the loss of each row and half its slope."""
    if loss == "squared":
        r = f - y
        return r * r, r
    return 2 * ((1 - y) * softplus(f) + y * softplus(-f)), probability(f) - y


def probability(f: Array) -> Array:
    """Return 1/(1 + e⁻ᶠ), without overflow."""
    xp = namespace(f)
    e = xp.exp(-xp.abs(f))
    return xp.where(f >= 0, 1 / (1 + e), e / (1 + e))


def curvature(f: Array) -> Array:
    """Return p (1 − p) of log-odds f, to full precision on both sides."""
    xp = namespace(f)
    e = xp.exp(-xp.abs(f))
    return e / (1 + e) ** 2


def softplus(f: Array) -> Array:
    """Return log(1 + eᶠ), without overflow."""
    xp = namespace(f)
    return xp.where(f > 0, f, 0.0) + xp.log1p(xp.exp(-xp.abs(f)))


def log_odds(share: float) -> float:
    """Return log p/(1 − p)."""
    return log(share) - log1p(-share)


def constant_deviance(share: float, f: float) -> float:
    """Return the mean deviance of the constant log-odds f where so large a share has label 1."""
    return 2 * (log1p(exp(-abs(f))) + max(f, 0.0) - share * f)
