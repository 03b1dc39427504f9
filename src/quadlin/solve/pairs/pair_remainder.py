"""Whether the residual beside pairs says more about all products together than noise would.

Features and residuals are clipped at a few standard deviations, so that a few rows with heavy tails
do not hide what all others say.
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

BOUND = 2.5  # standard deviations at which whitened features and residuals end
SD_PER_MEDIAN = 1.4826  # of the absolute value of a normal number
ROWS_PER_PRODUCT = 2.0  # from which on the sum over all products tells whether any is left
NEGLIGIBLE = 0.002  # of the variance of y, that may be overlooked
NEW = 1e-6  # of the largest variance: what features must have beside each other
FLIPS = 3  # residuals with random signs, of which one may say as much


def uncorrelated(second: np.ndarray, least: float = NEW) -> np.ndarray:
    """Return W (d, q) such that the columns of ZW are uncorrelated and of variance 1.

    What has less than a `least` share of the largest variance is left out.
    """
    values, V = np.linalg.eigh(second)
    seen = values > least * values.max(initial=0.0)
    whitener: np.ndarray = V[:, seen] / np.sqrt(values[seen])
    return whitener


@dataclass(frozen=True)
class Remainder:
    """The residual that a regression left of some rows."""

    rows: Rows
    columns: RegressionColumns
    beta: np.ndarray
    whitener: np.ndarray  # (d, q): makes features uncorrelated and of variance 1
    weight: float  # of the rows

    @cached_property
    def edge(self) -> float:
        """Return where residuals end, by their median: a pass."""
        pieces = self.rows.collect(residual_squares, self.columns, self.beta)
        squares = np.concatenate([piece for part in pieces for piece in part])
        typical = float(np.median(squares)) or float(np.mean(squares))
        return BOUND * SD_PER_MEDIAN * sqrt(typical * len(squares) / self.weight)

    def moments(self, salt: int | None = None) -> "BoundedMoments":
        """Return what the residual says of products, with a salt that of random signs: a pass."""
        n_rows = sum(self.rows.collect(height))
        args = (self.columns, self.beta, self.whitener, self.edge, salt)
        sums: BoundedMoments = self.rows.reduce_numbered(bounded_moments, n_rows, *args)
        return sums

    @cached_property
    def plain_moments(self) -> "BoundedMoments":
        """Return what the residual itself says of products: a pass."""
        return self.moments()

    def says_nothing(self, unexplained: float = 1.0) -> bool:
        """Tell whether it says no more of all products than noise: two to five passes.

        Then, in whitened coordinates, the sum of their squared t is about their number p, with a
        variance of 2p(1 + p/n), or no larger than for residuals with random signs. All products
        together could still explain what √(2p) parameters would. That is little if there are many
        rows per product, or if hardly anything is left to explain: `unexplained` is that share of
        the variance of y. Otherwise nothing is known, and the answer is no.
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
    """What a bounded residual e says of products of bounded, whitened features v."""

    weight: float  # Σω
    total: float  # Σω e
    loss: float  # Σω e²
    second: Array  # (q, q), Σω v_i v_j
    fourth: Array  # (q, q), Σω v_i² v_j²
    moments: Array  # (q, q), Σω e v_i v_j

    @property
    def energy(self) -> float:
        """Return the sum of the squared t of all products, beside the constant."""
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

    Residuals end at ±edge, and whitened features at ±BOUND.
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
