r"""Products z_i·z_j of a few pairs: as part of a model, and as columns of a regression."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import numpy as np

from quadlin.core.arrays import Array, lead, namespace, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive, summed
from quadlin.core.losses import FLATTEST, curvature, value_and_slope
from quadlin.core.model import Model, predict
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.levels import Fields, measured_from_mean
from quadlin.solve.lowrank.levels import whole as complete_fields

T = TypeVar("T")
PIECE_ENTRIES = 1 << 21  # of dense columns at a time
NONE = np.zeros(0, np.int64)  # products


@dataclass(frozen=True)
class PairTerms:
    r"""A few products :math:`\sum_m a_m z_{i_m} z_{j_m}`: the sparse part S of L + S."""

    i: np.ndarray  # (m,), i ≤ j
    j: np.ndarray  # (m,)
    coef: np.ndarray  # (m,), a: twice the entry of S, or once on its diagonal

    @property
    def pairs(self) -> frozenset[tuple[int, int]]:
        """Return the pairs, in no order."""
        return frozenset(zip(self.i.tolist(), self.j.tolist(), strict=True))

    def of(self, block: Block) -> np.ndarray:
        """Return the sum for the rows of a block."""
        left, right = (block.units.standardised(block.X, at) for at in (self.i, self.j))
        values: np.ndarray = to_numpy(left * right) @ self.coef
        return values


@dataclass(frozen=True)
class Parts:
    """The parts of the M of a fitted model, in its units."""

    U: Array  # (d, k), of L
    s: Array  # (k,), of L
    terms: PairTerms

    def low_rank(self, model: Model) -> Model:
        """Return the model with L instead of M."""
        return replace(model, U=self.U, s=self.s)


def whole(model: Model, terms: PairTerms) -> Model:
    r"""Return the model with L + S instead of L, of rank at most k + 2 per pair.

    On the span of U and the features of the pairs, M is a small matrix. The squares of S are part
    of c, the mean of f.
    """
    i, j, a = terms.i, terms.j, terms.coef
    if not len(i):
        return model
    d = model.U.shape[0]
    U, s = (to_numpy(v).astype(np.float64) for v in (model.U, model.s))
    features = np.unique(np.concatenate([i, j]))
    at_features = (np.arange(d)[:, None] == features).astype(np.float64)
    basis = np.linalg.qr(np.concatenate([at_features, U], axis=1))[0]
    first, second, B = basis[i], basis[j], basis.T @ U
    half = (first.T * (a / 2)) @ second
    values, vectors = lead((B * s) @ B.T + half + half.T, basis.shape[1])
    most = min(U.shape[1] + 2 * len(i), d)
    kept = np.abs(values) > 1e-12 * np.max(np.abs(values), initial=0.0)
    kept &= np.arange(len(values)) < most
    c = model.c + float(a[i == j].sum())
    return with_arrays(model, c, U=(basis @ vectors)[:, kept], s=values[kept])


def level_contrast(i: np.ndarray, j: np.ndarray, units: Units, fields: Fields) -> np.ndarray | None:
    """Return the matrix that measures coefficients of products from the means of their fields.

    None if no product has a level of a field in which every row has a level.
    """
    features = np.unique(np.concatenate([i, j]))
    full = complete_fields(units, fields)
    if not full or not np.isin(features, np.concatenate(full)).any():
        return None
    at = namespace(units.scale).asarray(np.eye(units.scale.shape[0])[:, features])
    P = to_numpy(measured_from_mean(at, units, full))[features]
    a, b = np.searchsorted(features, [i, j])
    entries = (P[np.ix_(a, a)] * P[np.ix_(b, b)] + P[np.ix_(a, b)] * P[np.ix_(b, a)]) / 2
    return np.asarray(np.where(i == j, 1.0, 2.0)[:, None] * entries)


def with_arrays(model: Model, c: float, **arrays: np.ndarray) -> Model:
    """Return the model with another constant and other arrays, of its dtype and on its device."""
    xp, like = namespace(model.U), {"dtype": model.U.dtype, "device": model.U.device}
    return replace(model, c=c, **{name: xp.asarray(a, **like) for name, a in arrays.items()})


def less_pairs(rows: Rows, terms: PairTerms, units: Units) -> Rows:
    """Return the rows with targets less the contribution of the pairs: one pass."""
    y = np.concatenate(rows.collect(_less, terms, units))
    like = namespace(units.scale)
    ones = like.ones(len(y), dtype=like.float64, device=units.scale.device)
    return rows.reweighted(ones, like.asarray(y, device=units.scale.device))


def _less(chunk: Chunk, terms: PairTerms, units: Units) -> np.ndarray:
    part = terms.of(Block(chunk.X, units))
    y: np.ndarray = to_numpy(chunk.y) - units.target.scale * part
    return y


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
class JointGram(Additive):
    """The least squares that approximate a loss near f + Aβ, to second order.

    They have weights ωh and responses −l′/2h + Aβ; for squared errors they are exact.
    """

    gram: Array  # (p + 1, p + 1), of the columns and the response, or its last columns
    loss: float  # Σω · loss at f + Aβ


def product_moments(chunk: Chunk, columns: RegressionColumns) -> ProductMoments:
    """Sum over one chunk: three products of d×n and n×d matrices."""

    def of(piece: DenseRows) -> ProductMoments:
        Z, weighted, squares = piece.Z, piece.omega[:, None] * piece.Z, piece.Z * piece.Z
        sums = (weighted.T @ Z, squares.T @ weighted, squares.T @ (Z * weighted))
        return ProductMoments(float(namespace(Z).sum(piece.omega)), *sums)

    return total(of(piece) for piece in columns.pieces(chunk))


def joint_gram(
    chunk: Chunk,
    columns: RegressionColumns,
    start: int = 0,
    loss: str = "squared",
    beta: Array | None = None,
) -> JointGram:
    """Sum over one chunk; only the columns of the matrix from `start` on. None is β = 0."""

    def of(piece: DenseRows) -> JointGram:
        A, xp = piece.A, namespace(piece.A)
        along = 0 * piece.f if beta is None else A @ xp.asarray(beta, device=A.device)
        value, slope = value_and_slope(loss, piece.f + along, piece.y)
        h = xp.clip(curvature(piece.f + along, loss), min=FLATTEST)
        A = xp.concat([A, (along - slope / h)[:, None]], axis=1)
        gram = A.T @ ((piece.omega * h)[:, None] * A[:, start:])
        return JointGram(gram, float(xp.sum(piece.omega * value)))

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
