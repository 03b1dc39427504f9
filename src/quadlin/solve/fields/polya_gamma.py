r"""Pólya–Gamma numbers, which make labels Gaussian.

.. math:: \frac{e^{y f}}{1 + e^f} = \tfrac12 e^{(y - 1/2) f}
          \int e^{-\omega f^2/2}\, p(\omega)\, d\omega, \qquad p = \mathrm{PG}(1, 0),

so that given ω ~ PG(1, f) a label is a target (y − ½)/ω of precision ω, and f is drawn as for least
squares. Numbers of PG(1, f) are drawn exactly, by Devroye's rejection from a mixture of an
inverse Gaussian below `CUT` and an exponential above it (Polson, Scott, Windle 2013). A row of
another weight b has PG(b, f), drawn as the gamma distribution of its mean and variance.

Variational inference goes on with the mean of ω at :math:`\xi = \sqrt{\mathrm{E} f^2}`, which is
the bound of Jaakkola and Jordan.
"""

import numpy as np
from scipy.special import log_ndtr

CUT = 0.64
SMALL = 1e-3  # |f|, below which mean and variance are those of the limit
ROUNDING = 1e-9  # of a weight, where weights were divided by their mean
LARGE = 700.0  # |f|, beyond which e^f overflows


def polya_gamma(
    f: np.ndarray, weight: np.ndarray, rng: np.random.Generator, exact: bool = True
) -> np.ndarray:
    """Return a draw of PG(weight, f) for each row; if not `exact`, a gamma number for all."""
    f = np.minimum(np.abs(f), LARGE)
    omega, single = np.empty(len(f)), exact & (np.abs(weight - 1) < ROUNDING)
    omega[single] = _of_one(f[single] / 2, rng)
    mean, variance = moments(f[~single])
    shape = weight[~single] * mean**2 / variance
    omega[~single] = rng.gamma(shape, variance / mean)
    return np.maximum(omega, np.finfo(np.float64).tiny ** 0.5)


def mean_curvature(f: np.ndarray) -> np.ndarray:
    """Return the mean of PG(1, f) for f ≥ 0; that of weight b is b times it."""
    g = np.maximum(f, SMALL)
    return np.asarray(np.tanh(g / 2) / (2 * g))


def moments(f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the variance of PG(1, f) for f ≥ 0; those of weight b are b times it."""
    g, mean = np.maximum(f, SMALL), mean_curvature(f)
    e = np.exp(-g)  # (sinh g − g)/(4g³ cosh²(g/2)), without overflow
    variance = (1 - e**2 - 2 * g * e) / (2 * g**3 * (1 + e) ** 2)
    return mean, np.where(f < SMALL, 1 / 24, variance)


def _of_one(z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return draws of PG(1, 2z), a quarter of the Jacobi numbers of z."""
    rate = np.pi**2 / 8 + z**2 / 2
    scaled, root = np.log(rate) + rate * CUT, CUT**-0.5
    low = np.exp(scaled - z + log_ndtr(root * (CUT * z - 1)))
    low += np.exp(scaled + z + log_ndtr(-root * (CUT * z + 1)))
    above = 1 / (1 + 4 / np.pi * low)  # the share of the exponential
    draws, left = np.empty(len(z)), np.arange(len(z))
    while len(left):
        x = np.empty(len(left))
        high = rng.uniform(size=len(left)) < above[left]
        x[high] = CUT + rng.exponential(size=int(high.sum())) / rate[left[high]]
        x[~high] = _below(z[left[~high]], rng)
        accepted = _accepted(x, rng)
        draws[left[accepted]] = x[accepted] / 4
        left = left[~accepted]
    return draws


def _accepted(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Tell which proposals are kept: the density is an alternating series that bounds itself."""
    bound = _term(0, x)
    height, accepted = rng.uniform(size=len(x)) * bound, np.zeros(len(x), dtype=bool)
    undecided, n = np.ones(len(x), dtype=bool), 0
    while undecided.any():
        n += 1
        bound = bound + (-1) ** n * _term(n, x)
        decided = undecided & ((height <= bound) if n % 2 else (height > bound))
        accepted |= decided if n % 2 else False
        undecided &= ~decided
    return accepted


def _term(n: int, x: np.ndarray) -> np.ndarray:
    """Return the n-th term of the series, in the form that falls faster at x."""
    k = (n + 0.5) * np.pi
    below = (2 / np.pi / x) ** 1.5 * np.exp(-2 * (n + 0.5) ** 2 / x)
    return np.asarray(k * np.where(x <= CUT, below, np.exp(-(k**2) * x / 2)))


def _below(z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return draws of an inverse Gaussian of mean 1/z that is at most `CUT`."""
    x, near = np.empty(len(z)), z * CUT > 1
    left = np.flatnonzero(~near)
    while len(left):
        first, second = rng.exponential(size=(2, len(left)))
        tried = CUT / (1 + CUT * first) ** 2
        kept = first**2 <= 2 * second / CUT
        kept &= rng.uniform(size=len(left)) <= np.exp(-(z[left] ** 2) * tried / 2)
        x[left[kept]], left = tried[kept], left[~kept]
    left = np.flatnonzero(near)
    while len(left):
        tried = rng.wald(1 / z[left], 1.0)
        kept = tried <= CUT
        x[left[kept]], left = tried[kept], left[~kept]
    return x
