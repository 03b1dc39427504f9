r"""What the residual of ridge regression shows about low ranks before any is fitted: two passes.

In whitened coordinates the t of all products of two features form a symmetric matrix. Without
interactions its largest eigenvalue is twice the root of its size q. A component of M adds one that
stands out, if there are enough rows to distinguish a direction from noise at all:

.. math:: \lambda = \theta + q / \theta > 2 \sqrt q \iff \theta > \sqrt q,
          \quad \theta = 2 |s| \sqrt n / \sigma

Each component that does not stand out explains no more than q/2n of the residual's variance.
"""

from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive, summed
from quadlin.core.model import Model
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.fits.fit_state import squared_errors
from quadlin.solve.fits.robust import MAD
from quadlin.solve.lowrank.design import Alpha
from quadlin.solve.lowrank.linear_model import Gram
from quadlin.solve.pairs.products import Piece, residual_pieces
from quadlin.solve.pairs.regression import COLLINEAR
from quadlin.solve.pairs.search import PairFit

CLEAR, GAP = 1.2, 1.4  # times 2√q, and times the next one: the last eigenvalue of a component
EDGE = 2.0  # · q^(-1/6) beyond 2√q: noise stays below in 99 of 100 draws (Tracy–Widom)
SPREAD = 16  # products of about the same size: more than a few pairs
LEAST_LEFT = 0.01  # of the noise: the least that components are expected to leave
BOUND = 2.5  # standard deviations at which whitened features and residuals are clipped


@dataclass(frozen=True)
class ResidualSpectrum:
    """The eigenvalues of the t of all products with the residual of a regression.

    Features and residuals are clipped at a few standard deviations, so that a few rows with heavy
    tails do not hide what the others show.
    """

    rows: Rows
    model: Model
    units: Units
    whitener: np.ndarray  # (d, q): makes features uncorrelated and of variance 1
    weight: float  # of the rows

    @cached_property
    def edge(self) -> float:
        """Return where residuals are clipped, from their median: one pass."""
        squares, omega = map(to_numpy, squared_errors(self.model, self.units, self.rows))
        squares = (omega * squares)[omega > 0]
        typical = float(np.median(squares)) or float(np.mean(squares))
        return BOUND * MAD * sqrt(typical * len(squares) / self.weight)

    @cached_property
    def moments(self) -> "BoundedMoments":
        """Return the moments of the residual: one pass."""
        args = self.model, self.units, self.whitener, self.edge
        sums: BoundedMoments = self.rows.reduce(bounded_moments, *args)
        return sums

    @cached_property
    def sizes(self) -> np.ndarray:
        """Return the absolute eigenvalues in units of the edge of noise, the largest first."""
        values = np.abs(self.moments.eigenvalues)
        return np.sort(values)[::-1] / (2 * sqrt(max(len(values), 1)))

    @cached_property
    def is_noise(self) -> bool:
        """Return whether no eigenvalue stands out."""
        return bool(self.sizes.max(initial=0.0) <= self._edge)

    @property
    def is_clear(self) -> bool:
        """Return whether some eigenvalue stands out clearly."""
        return bool(self.sizes.max(initial=0.0) > CLEAR)

    def is_spread(self, largest: float) -> bool:
        """Return whether many products contribute; `largest` is the largest squared t of any.

        The squared t of a single pair is the square of the eigenvalue; those of many pairs of one
        feature with others add up to it.
        """
        top = 4 * len(self.sizes) * float(self.sizes.max(initial=0.0)) ** 2
        return self.is_clear and top > SPREAD * largest

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
        q, n = len(self.sizes), self.weight
        size = np.maximum(self.sizes[:k], 1.0)
        theta = sqrt(q) * (size + np.sqrt(size**2 - 1))
        squares = float(np.sum(theta**2)) / (4 * n)  # |M|²/σ² of the residual of ridge regression
        remaining = max(1 - 2 * squares, LEAST_LEFT)
        return remaining, remaining * (q * k - k * (k - 1) / 2) / (2 * squares * n)


def residual_spectrum(rows: Rows, ridge: Gram, alpha: Alpha) -> ResidualSpectrum:
    """Return the spectrum of a ridge regression with an intercept; no pass until it is used."""
    assert ridge.design is not None
    units, weight = ridge.design.units, 1 / ridge.share
    scale = to_numpy(units.penalty_scale).astype(float)
    theta, _ = ridge.solved(ridge.of_groups(alpha))
    white = uncorrelated(ridge.products * np.outer(scale, scale) / weight)
    return ResidualSpectrum(rows, ridge.model_of(theta), units, white, weight)


def spectrum_beside(fit: PairFit) -> ResidualSpectrum:
    """Return the spectrum of what a regression with pairs leaves."""
    search = fit.search
    white = uncorrelated(to_numpy(search.moments.second) / search.weight)
    return ResidualSpectrum(search.rows, fit.of_rows, search.units, white, search.weight)


def uncorrelated(second: np.ndarray) -> np.ndarray:
    """Return W (d, q) such that the columns of ZW are uncorrelated and of variance 1.

    Directions with next to none of the largest variance are left out.
    """
    values, V = np.linalg.eigh(second)
    determined = values > COLLINEAR * values.max(initial=0.0)
    whitener: np.ndarray = V[:, determined] / np.sqrt(values[determined])
    return whitener


@dataclass(frozen=True)
class BoundedMoments(Additive):
    """Moments of a clipped residual e with products of clipped, whitened features v."""

    weight: float  # Σω
    total: float  # Σω e
    loss: float  # Σω e²
    second: Array  # (q, q), Σω v_i v_j
    fourth: Array  # (q, q), Σω v_i² v_j²
    moments: Array  # (q, q), Σω e v_i v_j

    @property
    def eigenvalues(self) -> np.ndarray:
        """Return the eigenvalues of the matrix of the t of all products."""
        return np.linalg.eigvalsh(self._t)

    @property
    def _t(self) -> np.ndarray:
        second, fourth, moments = (to_numpy(a) for a in (self.second, self.fourth, self.moments))
        mean = self.total / self.weight
        noise = max(self.loss / self.weight - mean**2, 1e-300)
        power = np.maximum(fourth - second**2 / self.weight, 1e-12 * self.weight)
        t: np.ndarray = (moments - mean * second) / np.sqrt(noise * power)
        return t


def bounded_moments(
    chunk: Chunk, model: Model, units: Units, whitener: np.ndarray, edge: float
) -> BoundedMoments:
    """Sum over one chunk; residuals are clipped at ±edge, and whitened features at ±BOUND."""

    def of(piece: Piece) -> BoundedMoments:
        Z, omega, xp = piece.Z, piece.omega, namespace(piece.Z)
        e = xp.clip(piece.r, min=-edge, max=edge)
        V = xp.clip(Z @ xp.asarray(whitener, device=Z.device), min=-BOUND, max=BOUND)
        weighted, squares = omega[:, None] * V, V * V
        return BoundedMoments(
            float(xp.sum(omega)),
            float(xp.sum(omega * e)),
            float(xp.sum(omega * e * e)),
            weighted.T @ V,
            squares.T @ (weighted * V),
            (e[:, None] * weighted).T @ V,
        )

    return summed(map(of, residual_pieces(chunk, model, units)))  # type: ignore[return-value]
