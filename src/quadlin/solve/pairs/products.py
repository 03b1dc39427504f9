r"""Products z_i·z_j of a few pairs as part of a model, and the moments of all products."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from quadlin.core.arrays import Array, lead, namespace, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive, folded, summed
from quadlin.core.model import Model, predict
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.design import dense, small_parts
from quadlin.solve.lowrank.levels import Fields, measured_from_mean
from quadlin.solve.lowrank.levels import whole as complete_fields

MOST_FEATURES = 3000  # of a search: three d×d matrices are kept
Pair = tuple[int, int]


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

    def of(self, block: Block) -> Array:
        """Return the sum for the rows of a block."""
        left, right = (block.units.standardised(block.X, at) for at in (self.i, self.j))
        xp = namespace(left)
        return xp.astype(left * right, xp.float64) @ xp.asarray(self.coef, device=left.device)


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


def less(rows: Rows, part: Callable[[Block], Array], units: Units) -> Rows:
    """Return the rows with targets less the contribution of a part of a model: one pass."""
    y = np.concatenate(rows.collect(less_part, part, units))
    like = namespace(units.scale)
    ones = like.ones(len(y), dtype=like.float64, device=units.scale.device)
    return rows.reweighted(ones, like.asarray(y, device=units.scale.device))


def less_part(chunk: Chunk, part: Callable[[Block], Array], units: Units) -> np.ndarray:
    """Return the targets of a chunk less the contribution of a part of a model."""
    f = to_numpy(part(Block(chunk.X, units)))
    y: np.ndarray = to_numpy(chunk.y) - units.target.scale * f
    return y


class Piece(NamedTuple):
    """Some rows, dense and in float64."""

    Z: Array  # (n, d), standardised features
    r: Array  # (n,), the residual of a model
    omega: Array  # (n,)


def residual_pieces(chunk: Chunk, model: Model, units: Units) -> Iterator[Piece]:
    """Yield the rows of a chunk in small parts, with the residual of a model."""
    for part in small_parts(chunk, 2 * chunk.X.shape[1] + 2):
        f = predict(model, Block(part.X, units))
        xp = namespace(f)
        r = xp.astype(units.standardised_target(part.y), xp.float64) - xp.astype(f, xp.float64)
        weight = xp.ones_like(r) if part.weight is None else xp.astype(part.weight, xp.float64)
        yield Piece(dense(part, units), r, weight)


@dataclass(frozen=True)
class ProductMoments(Additive):
    """Moments of pairs of features up to the fourth order."""

    weight: float  # Σω
    second: Array  # (d, d), Σω z_i z_j
    third: Array  # (d, d), Σω z_i² z_j
    fourth: Array  # (d, d), Σω z_i² z_j²


@dataclass(frozen=True)
class ResidualMoments(Additive):
    """Moments of a residual with all products."""

    loss: float  # Σω r²
    moments: Array  # (d, d), Σω r z_i z_j


def product_moments(chunk: Chunk, units: Units) -> ProductMoments:
    """Sum over one chunk: three products of d×n and n×d matrices."""
    parts = small_parts(chunk, 2 * chunk.X.shape[1] + 2)
    return folded(_product_moments, parts, (units,))[0]  # type: ignore[return-value]


def _product_moments(chunk: Chunk, units: Units) -> ProductMoments:
    Z = dense(chunk, units)
    weighted, squares = namespace(Z).asarray(chunk.weights, device=Z.device)[:, None] * Z, Z * Z
    sums = (weighted.T @ Z, squares.T @ weighted, squares.T @ (Z * weighted))
    return ProductMoments(chunk.total_weight, *sums)


def residual_moments(chunk: Chunk, model: Model, units: Units) -> ResidualMoments:
    """Sum over one chunk."""

    def of(piece: Piece) -> ResidualMoments:
        weighted = piece.omega * piece.r
        loss = float(namespace(weighted).sum(weighted * piece.r))
        return ResidualMoments(loss, (weighted[:, None] * piece.Z).T @ piece.Z)

    return summed(of(piece) for piece in residual_pieces(chunk, model, units))  # type: ignore[return-value]
