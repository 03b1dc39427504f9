r"""Probabilities of several classes, from the log-odds of each against all others.

.. math:: p_k \propto \frac{\sigma(f_k)}{(1 - \sigma(f_k))^\theta}

With θ = 0 the probabilities are divided by their sum, which is exact where all log-odds are, as
those of scores of a joint fit. With θ = 1 it is a softmax of the log-odds, which is better where
classes can be separated and penalties hold the log-odds back.
"""

from quadlin.core.arrays import Array, namespace
from quadlin.core.losses import probability, softplus

COUPLINGS = (0.0, 0.5, 1.0)  # θ; larger ones are too sure where few rows choose
UNDERFLOW = -30.0  # of log-odds: below, a probability is the exponential


def probabilities(f: Array, coupling: float = 0.0) -> Array:
    """Return the probabilities of log-odds (n,), or of several classes (n, K) against the rest."""
    xp = namespace(f)
    if f.ndim == 1:
        return xp.stack([probability(-f), probability(f)], axis=1)
    if coupling:
        return xp.exp(log_probabilities(f, coupling))
    # Shares of log-odds far below zero, which all underflow, are those of their exponentials.
    low = xp.max(f, axis=1, keepdims=True) < UNDERFLOW
    p = probability(xp.where(low, f - xp.max(f, axis=1, keepdims=True), f))
    return p / xp.sum(p, axis=1, keepdims=True)


def log_probabilities(f: Array, coupling: float = 0.0) -> Array:
    """Return the logarithms of `probabilities`, which do not underflow for two classes."""
    xp = namespace(f)
    if f.ndim == 1:
        return xp.stack([-softplus(f), -softplus(-f)], axis=1)
    log_p = coupling * softplus(f) - softplus(-f)
    top = xp.max(log_p, axis=1, keepdims=True)
    return log_p - top - xp.log(xp.sum(xp.exp(log_p - top), axis=1, keepdims=True))


def log_odds_of(scores: Array) -> Array:
    """Return the log-odds of each class against all others whose scores (n, K) have a softmax.

    log p/(1 − p) is the score less the logarithm of the sum of the exponentials of all others.
    """
    xp = namespace(scores)
    f = [scores[:, k] for k in range(scores.shape[1])]
    columns = []
    for k, score in enumerate(f):
        rest = xp.stack(f[:k] + f[k + 1 :], axis=1)
        top = xp.max(rest, axis=1)
        columns.append(score - top - xp.log(xp.sum(xp.exp(rest - top[:, None]), axis=1)))
    return xp.stack(columns, axis=1)
