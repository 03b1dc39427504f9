"""Intervals and tests by Student's distribution, which allows for an estimated noise level."""

from scipy.special import stdtr, stdtrit

from quadlin.core.messages import Message

NORMAL = 1e12  # degrees of freedom with which Student's law is the normal one


def standard_errors_of(level: float, left: float) -> float:
    """Return by how many standard errors an interval of probability `level` reaches each way.

    `left` are the degrees of freedom that the noise was estimated with: rows minus the effective
    number of parameters.

    >>> round(standard_errors_of(0.95, 3.0), 2), round(standard_errors_of(0.95, NORMAL), 2)
    (3.18, 1.96)
    """
    if not 0 < level < 1:
        raise ValueError(Message("{level=} must lie between 0 and 1.", level=level))
    return float(stdtrit(left, (1 + level) / 2))


def two_sided(t: float, left: float) -> float:
    """Return the probability of a statistic at least as far from zero as t."""
    return 2 * float(stdtr(left, -abs(t)))
