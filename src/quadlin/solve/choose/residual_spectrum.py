r"""What the residual of ridge regression shows about low ranks before any is fitted: two passes.

In whitened coordinates the t of all products of two features form a symmetric matrix. Without
interactions its largest eigenvalue is twice the root of its size q. A component of M adds one that
stands out, if there are enough rows to distinguish a direction from noise at all:

.. math:: \lambda = \theta + q / \theta > 2 \sqrt q \iff \theta > \sqrt q,
          \quad \theta = 2 |s| \sqrt n / \sigma

Each component that does not stand out explains no more than q/2n of the residual's variance.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.model import Model, constant_model
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.tangent_gram import Candidate, TangentGram
from quadlin.solve.pairs.pair_remainder import Remainder, uncorrelated
from quadlin.solve.pairs.pair_sums import RegressionColumns

CLEAR, GAP = 1.2, 1.4  # times 2√q, and times the next one: the last eigenvalue of a component
EDGE = 2.0  # · q^(-1/6) beyond 2√q: noise stays below in 99 of 100 draws (Tracy–Widom)
MANY = 8  # that stand out: more than the first low rank
ROWS_PER_FEATURE = 5  # with more, the residual of ridge regression is about as large as the noise
LEAST_LEFT = 0.01  # of the noise: the least that components are expected to leave
SPREAD = 16  # products of about the same size
NEGLIGIBLE = 0.01  # of the variance of y: what all products might still explain on new rows


@dataclass(frozen=True)
class ResidualSpectrum:
    """The eigenvalues of the t of all products with the residual of ridge regression."""

    remainder: Remainder
    noise: float  # σ² of the ridge regression, of the standardised target

    @cached_property
    def sizes(self) -> np.ndarray:
        """Return the absolute eigenvalues in units of the edge of noise, the largest first."""
        values = np.abs(self.remainder.plain_moments.eigenvalues)
        return np.sort(values)[::-1] / (2 * sqrt(max(len(values), 1)))

    @cached_property
    def is_noise(self) -> bool:
        """Return whether no eigenvalue stands out."""
        return bool(self.sizes.max(initial=0.0) <= self._edge)

    @property
    def is_dense(self) -> bool:
        """Return whether many eigenvalues stand out, and none of them is clearly the last."""
        return self.standing_out == MANY and not self.components

    @property
    def standing_out(self) -> int:
        """Return how many of the largest few eigenvalues stand out."""
        return int(np.sum(self.sizes[:MANY] > self._edge))

    @property
    def _edge(self) -> float:
        return 1 + EDGE / (2 * float(max(len(self.sizes), 1) ** (2 / 3)))

    @property
    def components(self) -> int:
        """Return how many stand out clearly, with all others clearly smaller; 0 if in doubt."""
        last = (self.sizes[:-1] > CLEAR) & (self.sizes[:-1] > GAP * self.sizes[1:])
        return int(np.flatnonzero(last)[-1]) + 1 if last.any() else 0

    def expected(self, k: int) -> tuple[float, float]:
        """Return the share of the noise that k components leave, and the penalty of M over n.

        The penalty is σ²p/2|M|², with the |s| that have eigenvalues of these sizes.
        """
        q, n = len(self.sizes), self.remainder.weight
        size = np.maximum(self.sizes[:k], 1.0)
        theta = sqrt(q) * (size + np.sqrt(size**2 - 1))
        squares = float(np.sum(theta**2)) / (4 * n)  # |M|²/σ² of the residual of ridge regression
        remaining = max(1 - 2 * squares, LEAST_LEFT)
        return remaining, remaining * (q * k - k * (k - 1) / 2) / (2 * squares * n)

    def is_spread(self, largest: float) -> bool:
        """Return whether many products contribute; `largest` is the largest squared t of any.

        The squared t of a single pair is the square of the eigenvalue; those of many pairs of one
        feature with others add up to it.
        """
        top = 4 * len(self.sizes) * float(self.sizes.max(initial=0.0)) ** 2
        return not self.is_noise and bool(top > SPREAD * largest)

    @cached_property
    def says_nothing(self) -> bool:
        r"""Return whether all products together explain no more than noise would.

        A dense M that explains v of the residual's variance adds nv to the sum of the p squared t,
        whose standard deviation is √(2p(1 + p/n)). If v is hidden by this, a fit of all products
        predicts only the share ρ/(1 + ρ) of it, where ρ = nv/p.
        """
        n, q = self.remainder.weight, len(self.sizes)
        products = q * (q + 1) / 2
        sd = sqrt(2 * products * (1 + products / n))
        lost = sd / n * sd / (products + sd) * self.noise
        if n < ROWS_PER_FEATURE * q or lost > NEGLIGIBLE:
            return False
        return self.is_noise and self.remainder.plain_moments.energy <= products + sd


def residual_spectrum(
    rows: Rows, units: Units, ridge: Candidate, weight: float
) -> ResidualSpectrum:
    """Return the spectrum of a ridge regression with an intercept; no pass until it is used."""
    assert isinstance(ridge.gram, TangentGram)
    G, scale = ridge.gram.products, to_numpy(units.penalty_scale).astype(float)
    theta = ridge.gram.centred(weight).solved(np.log(ridge.alpha[:1]))
    constant = (G[0, -1] - G[0, 1:-1] @ theta) / G[0, 0]
    remainder = remainder_of(rows, constant_model(units, 0), units, ridge.gram, weight)
    beta = np.concatenate([[constant], theta / scale])
    return ResidualSpectrum(replace(remainder, beta=beta), ridge.noise)


def remainder_of(
    rows: Rows, model: Model, units: Units, features: TangentGram, weight: float
) -> Remainder:
    """Return what a model leaves; `features` holds the products of features and an intercept."""
    columns = RegressionColumns(units, model, np.arange(units.scale.shape[0]))
    scale = to_numpy(units.penalty_scale).astype(float)
    second = features.products[1:-1, 1:-1] * np.outer(scale, scale)
    white = uncorrelated(second / weight)
    return Remainder(rows, columns, np.zeros(columns.base), white, weight)
