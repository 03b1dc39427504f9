r"""Probabilities of classes: those of scores by a softmax, those of separate log-odds by their sum.

.. math:: p_k = \frac{\sigma(f_k)}{\sum_j \sigma(f_j)}

for log-odds f of each class against all others, which is exact where they are those of scores.
"""

from quadlin.core.arrays import Array, namespace
from quadlin.core.losses import softplus


def probabilities(f: Array) -> Array:
    """Return the probabilities of log-odds (n,), or of several classes (n, K) against the rest."""
    return namespace(f).exp(log_probabilities(f))


def log_probabilities(f: Array) -> Array:
    """Return the logarithms of `probabilities`, which do not underflow for two classes."""
    xp = namespace(f)
    if f.ndim == 1:
        return xp.stack([-softplus(f), -softplus(-f)], axis=1)
    log_p = -softplus(-f)
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
