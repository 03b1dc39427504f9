r"""What the residual of ridge regression says of low ranks before any is fitted, in two passes.

In whitened coordinates the t of all products of two features are a symmetric matrix. Without
interactions its eigenvalues end at twice the root of its size q; a component of M adds one that
stands out, as soon as rows are many enough for a direction to be told from noise at all:

.. math:: \lambda = \theta + q / \theta > 2 \sqrt q \iff \theta > \sqrt q,
          \quad \theta = 2 |s| \sqrt n / \sigma

Components that do not stand out explain no more than q/2n of the residual's variance each.
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

CLEAR, GAP = 1.2, 1.4  # of 2√q, and times the next one: the last eigenvalue that is a component
EDGE = 2.0  # · q^(-1/6) beyond 2√q: noise stays below it in 99 of 100 draws (Tracy–Widom)
MANY = 8  # that stand out: more than low ranks begin with
ROWS_PER_FEATURE = 5  # from which on the residual of ridge regression is about as large as noise
LEAST_LEFT = 0.01  # of the noise that components are expected to leave
SPREAD = 16  # products of about the same size
NEGLIGIBLE = 0.01  # of the variance of y, that all products might still explain on new rows


@dataclass(frozen=True)
class ResidualSpectrum:
    """The eigenvalues of what the residual of ridge regression says of all products."""

    remainder: Remainder
    noise: float  # σ² of the ridge regression, of the standardised target

    @cached_property
    def sizes(self) -> np.ndarray:
        """Return the absolute eigenvalues in units of the edge of noise, by falling size."""
        values = np.abs(self.remainder.plain_moments.eigenvalues)
        return np.sort(values)[::-1] / (2 * sqrt(max(len(values), 1)))

    @cached_property
    def is_noise(self) -> bool:
        """Tell whether none stands out."""
        return bool(self.sizes.max(initial=0.0) <= self._edge)

    @property
    def is_dense(self) -> bool:
        """Tell whether many stand out, and none of them is the last one."""
        return self.standing_out == MANY and not self.components

    @property
    def standing_out(self) -> int:
        """Return how many stand out, of the largest few."""
        return int(np.sum(self.sizes[:MANY] > self._edge))

    @property
    def _edge(self) -> float:
        return 1 + EDGE / (2 * float(max(len(self.sizes), 1) ** (2 / 3)))

    @property
    def components(self) -> int:
        """Return how many stand out clearly, all others being clearly smaller; 0 if in doubt."""
        last = (self.sizes[:-1] > CLEAR) & (self.sizes[:-1] > GAP * self.sizes[1:])
        return int(np.flatnonzero(last)[-1]) + 1 if last.any() else 0

    def expected(self, k: int) -> tuple[float, float]:
        """Return the share of the noise that k components leave, and the penalty of M over n.

        It is σ²p/2|M|², with the |s| that have eigenvalues of these sizes.
        """
        q, n = len(self.sizes), self.remainder.weight
        size = np.maximum(self.sizes[:k], 1.0)
        theta = sqrt(q) * (size + np.sqrt(size**2 - 1))
        squares = float(np.sum(theta**2)) / (4 * n)  # |M|²/σ² of the residual of ridge regression
        left = max(1 - 2 * squares, LEAST_LEFT)
        return left, left * (q * k - k * (k - 1) / 2) / (2 * squares * n)

    def is_spread(self, largest: float) -> bool:
        """Tell whether it is of many products, the largest squared t of one of them being given.

        That of a single pair is the square of the eigenvalue; so many pairs of one feature with
        others have their sum.
        """
        top = 4 * len(self.sizes) * float(self.sizes.max(initial=0.0)) ** 2
        return not self.is_noise and bool(top > SPREAD * largest)

    @cached_property
    def says_nothing(self) -> bool:
        r"""Tell whether all products together say no more than noise does.

        A dense M that explains v of the residual's variance adds nv to the sum of the p squared t,
        whose standard deviation is √(2p(1 + p/n)). Of a v that this hides, a fit of all products
        predicts the share ρ/(1 + ρ), ρ = nv/p.
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
    """Return the spectrum of a ridge regression with an intercept: no pass until it is asked."""
    assert isinstance(ridge.gram, TangentGram)
    G, scale = ridge.gram.products, to_numpy(units.penalty_scale).astype(float)
    theta = ridge.gram.centred(weight).solved(np.log(ridge.alpha[:1]))
    constant = (G[0, -1] - G[0, 1:-1] @ theta) / G[0, 0]
    left = remainder_beside(rows, constant_model(units, 0), units, ridge.gram, weight)
    beta = np.concatenate([[constant], theta / scale])
    return ResidualSpectrum(replace(left, beta=beta), ridge.noise)


def remainder_beside(
    rows: Rows, model: Model, units: Units, features: TangentGram, weight: float
) -> Remainder:
    """Return what a model leaves; `features` are the products of features and an intercept."""
    columns = RegressionColumns(units, model, np.arange(units.scale.shape[0]))
    scale = to_numpy(units.penalty_scale).astype(float)
    second = features.products[1:-1, 1:-1] * np.outer(scale, scale)
    white = uncorrelated(second / weight)
    return Remainder(rows, columns, np.zeros(columns.base), white, weight)
