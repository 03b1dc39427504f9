r"""Normal log-odds f ~ N(m, v) of labels: what is expected of their likelihood.

A quadratic approximation of the likelihood turns a label into a target z of precision ω. Two have a
bound of the log evidence that levels can be updated by:

- Jaakkola and Jordan's, with :math:`\omega = \tanh(\xi/2)/(2\xi)` at :math:`\xi^2 = m^2 + v`
  and :math:`z = (y - \tfrac12)/\omega`,

  .. math:: \mathrm{E} \log p(y \mid f) \ge (y - \tfrac12) m - \log 2 \cosh\tfrac{\xi}{2}.

  Every update raises it, from any start, but it is low where log-odds are large: components that
  the labels support vanish, and log-odds are too small.
- The expectation itself, with :math:`\omega = \mathrm{E}\, p(1 - p)` and
  :math:`z = m + (y - \mathrm{E}\, p)/\omega`, its Newton step, which may be too long.
"""

from typing import NamedTuple

import numpy as np

from quadlin.core.losses import FLATTEST, log_odds, probability
from quadlin.solve.fields.polya_gamma import mean_curvature

NODES, SHARES = np.polynomial.hermite_e.hermegauss(9)
SHARES = SHARES / SHARES.sum()
LEAST = 1e-6  # variance of log-odds, so that its effect is not rounding
STEPS, SMALL_STEP = 25, 1e-6  # of a calibration, at most; after which there is none
SAME = 1e-8  # variance of log-odds, below which there is no slope
SLOPES = 0.01, 1.0  # of a calibration


class Calibration(NamedTuple):
    """Log-odds a + c m instead of their means m."""

    shift: float = 0.0  # a
    slope: float = 1.0  # c

    def of(self, b: float, table: np.ndarray) -> tuple[float, np.ndarray]:
        """Return an intercept and coefficients (w, v) of columns (…, K) with these log-odds."""
        units = np.full(table.shape[-1], self.slope**0.5)
        units[0] = self.slope
        return self.shift + self.slope * b, table * units


class LabelTargets(NamedTuple):
    """Labels as targets, and the bound of their log-likelihood."""

    omega: np.ndarray  # (n,), precisions
    pull: np.ndarray  # (n,), precisions times targets
    bound: float = -np.inf

    def damped(self, last: "LabelTargets | None", share: float) -> "LabelTargets":
        """Return what is a share of the way from this to the last one, as natural parameters."""
        if last is None or share == 0:
            return self
        omega, pull = ((1 - share) * self[i] + share * last[i] for i in (0, 1))
        return LabelTargets(np.asarray(omega), np.asarray(pull))


def by_tangents(powers: np.ndarray, pull: np.ndarray, m: np.ndarray, v: np.ndarray) -> LabelTargets:
    """Return targets by Jaakkola and Jordan's bound; `pull` is Σ weight·(y − ½) of a row."""
    xi = np.sqrt(m**2 + v)
    omega = powers * mean_curvature(xi)
    bound = pull @ m - powers @ (xi / 2 + np.log1p(np.exp(-xi)))
    return LabelTargets(omega, pull, float(bound))


def by_expectation(
    powers: np.ndarray, pull: np.ndarray, m: np.ndarray, v: np.ndarray
) -> LabelTargets:
    """Return targets by the expected log-likelihood."""
    softplus, p, turned = np.zeros((3, len(m)))
    root = np.sqrt(v + LEAST)
    for node, share in zip(NODES, SHARES, strict=True):
        f = m + node * root
        e = np.exp(-np.abs(f))
        softplus += share * (np.maximum(f, 0.0) + np.log1p(e))
        chance = share * np.where(f > 0, 1.0, e) / (1 + e)
        p += chance
        turned += node * chance
    h = turned / root  # E p(1 − p), as the slope in v/2 of what the nodes sum up
    bound = pull @ m + powers @ (m / 2 - softplus)
    omega = powers * np.maximum(h, FLATTEST)
    return LabelTargets(omega, omega * m + pull + powers * (0.5 - p), float(bound))


def calibration(m: np.ndarray, v: np.ndarray) -> Calibration:
    """Return the line for which σ(a + c m) is closest to E σ(f), in Kullback and Leibler's sense.

    Log-odds that are not known well are less sure than their means. `m` and `v` are those of rows
    that may be predicted.
    """
    omega, pull, _ = by_expectation(np.ones(len(m)), np.zeros(len(m)), m, v)
    target = 0.5 + omega * m - pull  # E σ(f)
    share = float(np.clip(np.mean(target), FLATTEST, 1 - FLATTEST))
    X, beta = np.column_stack([np.ones(len(m)), m]), np.array([log_odds(share), 0.0])
    if np.var(m) < SAME:
        return Calibration(float(beta[0] - np.mean(m)), 1.0)
    for _ in range(STEPS):
        p = probability(X @ beta)
        h = np.maximum(p * (1 - p), FLATTEST)
        step = np.linalg.solve(X.T @ (h[:, None] * X), X.T @ (target - p))
        beta = beta + step
        if step @ step < SMALL_STEP**2:
            return Calibration(float(beta[0]), float(np.clip(beta[1], *SLOPES)))
    return Calibration()
