"""Intervals of new observations, from the means and standard deviations of predictions."""

import numpy as np
from scipy.stats import nbinom

from quadlin.core.arrays import Array
from quadlin.estimators.regression.fitted import Fitted
from quadlin.solve.fits.uncertainty import NORMAL, standard_errors_of


def interval(fitted: Fitted, mean: Array, std: Array, level: float) -> tuple[Array, Array]:
    """Return the ends of intervals that contain new observations with probability `level`.

    Targets are within as many standard deviations as Student's distribution says. Counts follow
    Poisson's law with an uncertain mean, which has the quantiles of a negative binomial one.
    """
    left = NORMAL if fitted.law is None else fitted.law.left  # draws include what is not certain
    reach = standard_errors_of(level, left)
    if fitted.stream.options.loss != "poisson":
        return mean - reach * std, mean + reach * std
    mean, variance = (np.asarray(a, dtype=np.float64) for a in (mean, std**2))
    share = np.minimum(mean / variance, 1 - 1e-9)  # 1 is Poisson's law itself
    size = mean * share / (1 - share)
    low, high = (nbinom.ppf(tail, size, share) for tail in ((1 - level) / 2, (1 + level) / 2))
    return low, high
