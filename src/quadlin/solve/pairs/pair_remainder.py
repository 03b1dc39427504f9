"""A test of whether all products together explain more of a residual than of noise.

Features and residuals are clipped at a few standard deviations, so that a few rows with heavy tails
do not hide what the others show.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive, height
from quadlin.core.rows import Rows
from quadlin.solve.pairs.pair_sums import (
    DenseRows,
    RegressionColumns,
    random_signs,
    residual_squares,
    total,
)

BOUND = 2.5  # standard deviations at which whitened features and residuals are clipped
SD_PER_MEDIAN = 1.4826  # of the absolute value of a normal number
ROWS_PER_PRODUCT = 2.0  # with more, the sum over all products shows whether any remains
NEGLIGIBLE = 0.002  # of the variance of y, which may be overlooked
NEW = 1e-6  # of the largest variance: the least that a direction must have
FLIPS = 3  # residuals with random signs, with which the residual is compared


def uncorrelated(second: np.ndarray, least: float = NEW) -> np.ndarray:
    """Return W (d, q) such that the columns of ZW are uncorrelated and of variance 1.

    Directions with less than the share `least` of the largest variance are left out.
    """
    values, V = np.linalg.eigh(second)
    determined = values > least * values.max(initial=0.0)
    whitener: np.ndarray = V[:, determined] / np.sqrt(values[determined])
    return whitener


@dataclass(frozen=True)
class Remainder:
    """The residual of a regression on some rows."""

    rows: Rows
    columns: RegressionColumns
    beta: np.ndarray
    whitener: np.ndarray  # (d, q): makes features uncorrelated and of variance 1
    weight: float  # of the rows

    @cached_property
    def edge(self) -> float:
        """Return where residuals are clipped, from their median: one pass."""
        pieces = self.rows.collect(residual_squares, self.columns, self.beta)
        squares = np.concatenate([piece for part in pieces for piece in part])
        typical = float(np.median(squares)) or float(np.mean(squares))
        return BOUND * SD_PER_MEDIAN * sqrt(typical * len(squares) / self.weight)

    def moments(self, salt: int | None = None) -> "BoundedMoments":
        """Return the moments of the residual, with random signs if a salt is given: one pass."""
        n_rows = sum(self.rows.collect(height))
        args = (self.columns, self.beta, self.whitener, self.edge, salt)
        sums: BoundedMoments = self.rows.reduce_numbered(bounded_moments, n_rows, *args)
        return sums

    @cached_property
    def plain_moments(self) -> "BoundedMoments":
        """Return the moments of the residual itself: one pass."""
        return self.moments()

    def says_nothing(self, unexplained: float = 1.0) -> bool:
        """Return whether products explain no more of the residual than noise: two to five passes.

        Then, in whitened coordinates, the sum of their squared t is about their number p, with a
        variance of 2p(1 + p/n), or no larger than for residuals with random signs. All products
        together could still explain as much as √(2p) parameters would. That is little if there are
        many rows per product, or if hardly anything remains to be explained: `unexplained` is that
        share of the variance of y. Otherwise the test is inconclusive, and the answer is no.
        """
        q = self.whitener.shape[1]
        products = q * (q + 1) // 2
        sd = sqrt(2 * products * (1 + products / self.weight))
        overlooked = unexplained * sd / self.weight  # of the variance of y
        if self.weight < ROWS_PER_PRODUCT * products and overlooked > NEGLIGIBLE:
            return False
        energy = self.plain_moments.energy
        if energy <= products + sd:
            return True
        return any(energy <= self.moments(salt).energy for salt in range(FLIPS))


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
    def energy(self) -> float:
        """Return the sum of the squared t of all products, without the constant."""
        return float(np.triu(self._t**2).sum())

    @property
    def spectral_size(self) -> float:
        """Return the largest eigenvalue of the matrix of the t of all products."""
        return float(np.abs(self.eigenvalues).max(initial=0.0))

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
    numbered: tuple[Chunk, Sequence[int]],
    columns: RegressionColumns,
    beta: Array,
    whitener: np.ndarray,
    edge: float,
    salt: int | None,
) -> BoundedMoments:
    """Sum over one chunk; with a salt each residual has a sign that is a hash of its number.

    Residuals are clipped at ±edge, and whitened features at ±BOUND.
    """
    chunk, numbers = numbered
    signs = np.ones(len(numbers)) if salt is None else random_signs(numbers, salt)

    def of(piece: DenseRows) -> BoundedMoments:
        Z, omega, xp = piece.Z, piece.omega, namespace(piece.Z)
        e = piece.numbers * xp.clip(piece.residual(beta), min=-edge, max=edge)
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

    return total(of(piece) for piece in columns.pieces(chunk, signs))
