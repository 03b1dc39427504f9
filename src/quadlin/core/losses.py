r"""The losses of a prediction f: value, slope, curvature, link, score and law of the noise.

Squared errors, :math:`(f - y)^2`; for log-odds f of labels y in {0, 1} the deviance

.. math:: 2 \log(1 + e^f) - 2 y f, \qquad \text{half slope } p - y, \quad
          \text{half curvature } p (1 - p), \quad p = 1/(1 + e^{-f})

and for logarithms f of the means of counts y ≥ 0 that of Poisson's law,

.. math:: 2 \left(e^f - y - y (f - \log y)\right), \qquad \text{half slope } e^f - y, \quad
          \text{half curvature } e^f

A new loss is a new class here, with its name in `LOSSES`: estimators and solvers ask it, and never
compare its name.
"""

from math import exp, inf, log, log1p
from typing import Any

import numpy as np
from scipy.special import xlogy
from scipy.stats import nbinom

from quadlin.core.arrays import Array, namespace

FLATTEST = 1e-6  # the smallest p(1 − p) of a working target: rows below it say nothing


class Loss:
    """Squared errors, :math:`(f - y)^2`; the base of the other losses."""

    name = "squared"
    solved = "squared"  # the loss of the solver, which may weight its rows anew
    kind = "numbers"  # what the targets are
    linked = False  # whether means are a function of f, and the variance follows from the mean
    robust = False  # whether rows are weighted by their residuals
    has_moments = True  # whether moment estimates, streams and searches for pairs apply
    nonnegative = False  # whether targets must be ≥ 0
    dispersed = False  # whether the variance is an unknown multiple of `variance`
    separable = False  # whether f may grow without bound, as log-odds of rows that are separated
    near_constant = True  # whether the least squares about a constant are a start
    score = "R²"  # the name of the share that is explained
    scorer = "neg_mean_squared_error"  # of scikit-learn

    @property
    def one_pass(self) -> bool:
        """Tell whether a stream minimises this loss."""
        return self.has_moments and not self.robust

    def value_and_slope(self, f: Array, y: Array) -> tuple[Array, Array]:
        """Return the loss of each row and half its slope."""
        r = f - y
        return r * r, r

    def mean(self, f: Array) -> Array:
        """Return the mean of the targets at predictions f."""
        return f

    def link(self, mean: Array) -> Array:
        """Return the prediction of which this is the mean."""
        return mean

    def variance(self, mean: Array) -> Array:
        """Return the variance of the targets about their mean, up to a factor."""
        return namespace(mean).ones_like(mean)

    def curvature(self, f: Array) -> Array:
        """Return half the curvature of the loss."""
        return namespace(f).ones_like(f)

    def predicted(self, f: Array, most: float = inf) -> Array:
        """Return the mean of new observations, as far as its dtype can hold it."""
        return f

    def observed_std(self, mean: Array, std: Array) -> Array:
        """Return the standard deviation of new observations, `std` being that of `f`."""
        return std

    def interval(self, mean: Array, std: Array, level: float, reach: float) -> tuple[Array, Array]:
        """Return the ends of intervals; `reach` is Student's, in standard deviations."""
        return mean - reach * std, mean + reach * std

    def start(self, mean: float, n: float, varies: bool) -> float:
        """Return the f of a constant with this mean, of n rows."""
        return mean

    def constant_loss(self, mean: float, variance: float, f: float) -> float:
        """Return the mean loss of a constant f for targets with this mean and variance."""
        return variance + (f - mean) ** 2

    def entropy(self, y: np.ndarray) -> np.ndarray:
        """Return what `null` sums besides the mean and the variance of the targets."""
        return np.zeros(y.shape)

    def null(self, weight: float, mean: float, variance: float, entropy: float) -> float:
        """Return Σω times the loss of the best constant."""
        return weight * variance


class Huber(Loss):
    """Huber's loss: squared errors, with rows weighted by their residuals."""

    name, robust = "huber", True


class Logistic(Loss):
    """The deviance of labels 0 and 1, for log-odds f."""

    name = solved = "logistic"
    kind, linked, separable, score, scorer = "labels", True, True, "accuracy", "neg_log_loss"

    def value_and_slope(self, f: Array, y: Array) -> tuple[Array, Array]:
        """Return the deviance of each row and half its slope."""
        return 2 * ((1 - y) * softplus(f) + y * softplus(-f)), probability(f) - y

    def mean(self, f: Array) -> Array:
        """Return the probability of 1."""
        return probability(f)

    def link(self, mean: Array) -> Array:
        """Return log-odds."""
        xp = namespace(mean)
        return xp.log(mean) - xp.log1p(-mean)

    def variance(self, mean: Array) -> Array:
        """Return p (1 − p)."""
        return mean * (1 - mean)

    def curvature(self, f: Array) -> Array:
        """Return p (1 − p), to full precision."""
        xp = namespace(f)
        e = xp.exp(-xp.abs(f))
        return e / (1 + e) ** 2

    def start(self, mean: float, n: float, varies: bool) -> float:
        """Return the log-odds of a share; with one label only, of half a row more of the other."""
        return log_odds(mean if varies else (n * mean + 0.5) / (n + 1))

    def constant_loss(self, mean: float, variance: float, f: float) -> float:
        """Return the mean deviance of the constant log-odds f."""
        return constant_deviance(mean, f)


class Poisson(Loss):
    """Poisson's deviance of counts y ≥ 0, for logarithms f of their means."""

    name = solved = "poisson"
    kind, linked, has_moments, nonnegative = "counts", True, False, True
    dispersed, near_constant = True, False
    score, scorer = "D²", "neg_mean_poisson_deviance"

    def value_and_slope(self, f: Array, y: Array) -> tuple[Array, Array]:
        """Return the deviance of each row and half its slope."""
        xp = namespace(f)
        r = bounded_exp(f) - y
        return 2 * (r - y * (f - xp.log(xp.where(y > 0, y, 1.0)))), r

    def mean(self, f: Array) -> Array:
        """Return eᶠ, bounded where its square would overflow."""
        return bounded_exp(f)

    def link(self, mean: Array) -> Array:
        """Return the logarithm of a mean."""
        return namespace(mean).log(mean)

    def variance(self, mean: Array) -> Array:
        """Return the mean."""
        return mean

    def curvature(self, f: Array) -> Array:
        """Return eᶠ."""
        return bounded_exp(f)

    def predicted(self, f: Array, most: float = inf) -> Array:
        """Return eᶠ, at most `most`, but never zero, which would rule every count out."""
        xp = namespace(f)
        least = log(float(xp.finfo(f.dtype).smallest_normal))
        return xp.exp(xp.clip(f, min=least, max=log(most) if most < inf else None))

    def observed_std(self, mean: Array, std: Array) -> Array:
        """Return the standard deviation of counts, which vary by √mean about their mean."""
        return namespace(mean).sqrt(mean + (mean * std) ** 2)

    def interval(self, mean: Array, std: Array, level: float, reach: float) -> tuple[Array, Array]:
        """Return counts: with an uncertain mean, they have a negative binomial law."""
        mean, variance = (np.asarray(a, dtype=np.float64) for a in (mean, std**2))
        share = np.minimum(mean / variance, 1 - 1e-9)  # 1 is Poisson's law itself
        size = mean * share / (1 - share)
        low, high = (nbinom.ppf(tail, size, share) for tail in ((1 - level) / 2, (1 + level) / 2))
        return low, high

    def start(self, mean: float, n: float, varies: bool) -> float:
        """Return the logarithm of a mean; of zeros only, with half a count more."""
        return log(mean if mean > 0 else 0.5 / (n + 1))

    def constant_loss(self, mean: float, variance: float, f: float) -> float:
        """Return about the mean deviance of the best constant."""
        return variance / mean

    def entropy(self, y: np.ndarray) -> np.ndarray:
        """Return y log y."""
        return np.asarray(xlogy(y, y))

    def null(self, weight: float, mean: float, variance: float, entropy: float) -> float:
        """Return Σω times the deviance of the best constant."""
        return 2 * (entropy - weight * float(xlogy(mean, mean)))


LOSSES: dict[str, Loss] = {each.name: each for each in (Loss(), Huber(), Logistic(), Poisson())}
OF_REGRESSORS = tuple(name for name, each in LOSSES.items() if each.kind != "labels")


def loss_named(name: Any) -> Loss:
    """Return the loss of a name; of squared errors, for a name that is wrong."""
    return LOSSES.get(name, LOSSES["squared"]) if isinstance(name, str) else LOSSES["squared"]


def value_and_slope(loss: str, f: Array, y: Array) -> tuple[Array, Array]:
    """Return the loss of each row and half its slope."""
    return LOSSES[loss].value_and_slope(f, y)


def curvature(f: Array, loss: str = "logistic") -> Array:
    """Return half the curvature of a loss, to full precision: for log-odds f it is p (1 − p)."""
    return LOSSES[loss].curvature(f)


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
