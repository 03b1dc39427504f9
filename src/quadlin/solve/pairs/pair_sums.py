r"""Sums over rows about products z_i·z_j, by pure functions of a chunk."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import numpy as np

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive, summed
from quadlin.core.losses import FLATTEST, curvature, value_and_slope
from quadlin.core.model import Model, predict
from quadlin.core.rows import Rows
from quadlin.core.units import Units

T = TypeVar("T")
PIECE_ENTRIES = 1 << 21  # of dense columns at a time
NONE = np.zeros(0, np.int64)  # products


@dataclass(frozen=True)
class RegressionColumns:
    r"""The columns of a regression: 1, features, tangent directions of L, products.

    .. math:: y - f(z) = \beta_0 + \sum_l \beta_l z_l
              + \sum_{l,a} H_{la}\, 2 z_l (z^\top U_a) + \sum_m \beta_m z_{i_m} z_{j_m} + r

    The tangent directions are what a small change of L = U diag(s) Uᵀ may add to f, less the
    squares that are not modelled. Features are numbered within `features`, here and in all sums.
    """

    units: Units
    model: Model  # f
    features: Array  # (q,), positions of the features of the search: all, or some
    tangent: bool = False  # whether L may move; only if the search has all features
    i: Array = field(default_factory=lambda: NONE)  # (m,), products, positions among the features
    j: Array = field(default_factory=lambda: NONE)  # (m,)

    @property
    def base(self) -> int:
        """Return the number of columns that are not products."""
        d, k = self.model.U.shape
        return 1 + len(self.features) + (d * k if self.tangent else 0)

    def with_pairs(self, i: Array, j: Array) -> "RegressionColumns":
        """Return the columns with other products."""
        return replace(self, i=np.asarray(i, np.int64), j=np.asarray(j, np.int64))

    def pieces(self, chunk: Chunk, numbers: np.ndarray | None = None) -> Iterator["DenseRows"]:
        """Yield the rows of a chunk in small parts; `numbers` has one row for each of them."""
        n = chunk.X.shape[0]
        step = max(1, PIECE_ENTRIES // (2 * self.base + len(self.i)))
        for start in range(0, n, step):
            part = chunk if n <= step else chunk.at(np.arange(start, min(n, start + step)))
            block = Block(part.X, self.units)
            xp = namespace(self.units.scale)
            Z = xp.astype(self.units.standardised(part.X, self.features), xp.float64)
            y, f = self.units.standardised_target(part.y), predict(self.model, block)
            y, f, omega = xp.astype(y, xp.float64), xp.astype(f, xp.float64), part.weight
            omega = xp.ones_like(f) if omega is None else xp.astype(omega, xp.float64)
            given = None
            if numbers is not None:
                given = namespace(Z).asarray(numbers[start : start + step], device=Z.device)
            yield DenseRows(Z, self._made(Z), y, f, omega, given)

    def _made(self, Z: Array) -> Array:
        xp = namespace(Z)

        def taken(index: Array) -> Array:
            return xp.take(Z, xp.asarray(index, device=Z.device), axis=1)

        columns = [xp.ones_like(Z[:, :1]), Z]
        if self.tangent:
            U = xp.astype(self.model.U, xp.float64)
            hidden = xp.astype(1 - self.model.free, xp.float64)
            ZU = Z @ U
            for a in range(U.shape[1]):
                columns.append(2 * Z * (ZU[:, a : a + 1] - hidden * U[:, a] * Z))
        columns.append(taken(self.i) * taken(self.j))
        return xp.concat(columns, axis=1)


class DenseRows(NamedTuple):
    """Some rows, dense and in float64."""

    Z: Array  # (n, q), standardised features
    A: Array  # (n, p), the columns
    y: Array  # (n,)
    f: Array  # (n,), of the model
    omega: Array  # (n,)
    numbers: Array  # (n, …), or None if none were given

    def residual(self, beta: Array | None = None) -> Array:
        """Return y − f(z) − Aβ."""
        r = self.y - self.f
        return r if beta is None else r - self.A @ namespace(r).asarray(beta, device=r.device)

    def moments(self, r: Array, look: bool = True) -> tuple[float, Array]:
        """Return Σω r² and, if `look`, Σω r z_i z_j."""
        loss = float(namespace(r).sum(self.omega * r * r))
        return loss, ((self.omega * r)[:, None] * self.Z).T @ self.Z if look else self.Z[:0, :0]


@dataclass(frozen=True)
class ProductMoments(Additive):
    """Moments of pairs of features up to the fourth order."""

    weight: float  # Σω
    second: Array  # (d, d), Σω z_i z_j
    third: Array  # (d, d), Σω z_i² z_j
    fourth: Array  # (d, d), Σω z_i² z_j²


@dataclass(frozen=True)
class FirstLook(Additive):
    """Moments of the residual of a fitted model with every product."""

    features: ProductMoments
    loss: float  # Σω r²
    moments: Array  # (d, d), Σω r z_i z_j


@dataclass(frozen=True)
class ResidualMoments(Additive):
    """The same without the moments of the features."""

    loss: float  # Σω r²
    moments: Array  # (d, d), Σω r z_i z_j


@dataclass(frozen=True)
class JointGram(Additive):
    """Σω φ φᵀ of the columns φ and the response: its last rows, those of products and response."""

    gram: Array  # (base + m + 1, m + 1)


@dataclass(frozen=True)
class LabelGram(Additive):
    """The same for labels: the least squares that approximate the deviance near some log-odds."""

    gram: Array  # (base + m + 1, base + m + 1), with weights ωh and response (y − p)/h + Aβ
    loss: float  # Σω · deviance at the log-odds


def product_moments(chunk: Chunk, columns: RegressionColumns) -> ProductMoments:
    """Sum over one chunk."""
    return total(_product_moments(piece) for piece in columns.pieces(chunk))


def _product_moments(piece: DenseRows) -> ProductMoments:
    Z, weighted, squares = piece.Z, piece.omega[:, None] * piece.Z, piece.Z * piece.Z
    weight = float(namespace(Z).sum(piece.omega))
    return ProductMoments(weight, weighted.T @ Z, squares.T @ weighted, squares.T @ (Z * weighted))


def first_look(chunk: Chunk, columns: RegressionColumns) -> FirstLook:
    """Sum over one chunk: four products of d×n and n×d matrices."""
    return total(
        FirstLook(_product_moments(piece), *piece.moments(piece.residual()))
        for piece in columns.pieces(chunk)
    )


def another_look(
    chunk: Chunk, columns: RegressionColumns, beta: Array | None = None
) -> ResidualMoments:
    """Sum the part of a first look that depends on the model: one of the four products."""
    pieces = columns.pieces(chunk)
    return total(ResidualMoments(*piece.moments(piece.residual(beta))) for piece in pieces)


def look_at(rows: Rows, columns: RegressionColumns, features: ProductMoments | None) -> FirstLook:
    """Return the moments of a residual: one pass, a short one if those of features are given."""
    if features is None:
        look: FirstLook = rows.reduce(first_look, columns)
        return look
    second = rows.reduce(another_look, columns)
    return FirstLook(features, second.loss, second.moments)


def joint_gram(chunk: Chunk, columns: RegressionColumns, base: bool) -> JointGram:
    """Sum over one chunk; with `base` all columns of the matrix, not only those of products."""

    def of(piece: DenseRows) -> JointGram:
        A = namespace(piece.A).concat([piece.A, piece.residual()[:, None]], axis=1)
        return JointGram(A.T @ (piece.omega[:, None] * A[:, 0 if base else columns.base :]))

    return total(of(piece) for piece in columns.pieces(chunk))


def label_gram(chunk: Chunk, columns: RegressionColumns, beta: Array) -> LabelGram:
    """Sum over one chunk of labels 0 and 1, around the log-odds with coefficients β."""

    def of(piece: DenseRows) -> LabelGram:
        A, f, omega, xp = piece.A, piece.f, piece.omega, namespace(piece.A)
        along = A @ xp.asarray(beta, device=A.device)
        deviance, slope = value_and_slope("logistic", f + along, piece.y)
        h = xp.clip(curvature(f + along), min=FLATTEST)
        A = xp.concat([A, (along - slope / h)[:, None]], axis=1)
        return LabelGram(A.T @ ((omega * h)[:, None] * A), float(xp.sum(omega * deviance)))

    return total(of(piece) for piece in columns.pieces(chunk))


def base_leverages(chunk: Chunk, columns: RegressionColumns, inverse: Array) -> np.ndarray:
    """Return the leverages of rows of weight 1; `inverse` is that of the columns' Gram matrix."""

    def of(A: Array) -> np.ndarray:
        xp = namespace(A)
        return to_numpy(xp.sum(A * (A @ xp.asarray(inverse, device=A.device)), axis=1))

    return np.concatenate([of(piece.A) for piece in columns.pieces(chunk)])


def residual_squares(chunk: Chunk, columns: RegressionColumns, beta: Array) -> list[np.ndarray]:
    """Return ωr² of the rows of positive weight."""

    def of(piece: DenseRows) -> np.ndarray:
        r, omega = piece.residual(beta), piece.omega
        return to_numpy(omega * r * r)[to_numpy(omega) > 0]

    return [of(piece) for piece in columns.pieces(chunk)]


def total(parts: Iterator[T]) -> T:
    """Return the sum of the pieces of a chunk."""
    sums = summed(parts)
    assert sums is not None  # a chunk has rows
    return sums
