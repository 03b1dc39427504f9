"""Wide sparse rows by columns, with the model that sweeps improve."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from quadlin.core.chunks import Chunk
from quadlin.core.column_planes import TrailingTable
from quadlin.core.compiled_columns import levels_of
from quadlin.core.entries import by_columns, entry_counts
from quadlin.core.model import Model
from quadlin.core.units import Units
from quadlin.solve.lowrank.types import Problem


class OrderedRows(NamedTuple):
    """Some rows, with the columns in the order of a table."""

    X: csr_array
    y: np.ndarray  # (m,), standardised
    omega: np.ndarray  # (m,), their weights


@dataclass(frozen=True)
class ColumnFit:
    """The rows by columns, a model of them, and its standardised units."""

    table: TrailingTable  # its columns are those of X in `order`
    X: csr_array
    y: np.ndarray  # (n,), standardised
    weights: np.ndarray | None  # (n,)
    units: Units
    order: np.ndarray  # (d,), from the rarest column to the most frequent one
    shares: np.ndarray  # (d,), in this order: of the rows, by weight, that have an entry

    @classmethod
    def of(cls, problem: Problem) -> "ColumnFit":
        """Collect the rows: one pass."""
        rows, units, options = problem.rows, problem.units, problem.options
        targets, weights = zip(*rows.collect(_values, units), strict=True)
        y = np.concatenate(targets)
        weight = None if weights[0] is None else np.concatenate(weights)
        scale = units.scale.astype(np.float64)
        varies = scale > 0
        inverse = 1 / np.where(varies, scale, 1.0)
        penalty = np.where(varies, (units.penalty_scale * inverse) ** 2, 0.0)
        signs = np.ones(max(options.rank, 1))
        X = csr_array(rows.engine.source.X)  # in memory, see `goes_by_columns`
        counts, d = entry_counts(X), X.shape[1]
        if weight is None:
            weights_of, order = counts, np.sort(counts * d + np.arange(d)) % d  # stable, and fast
        else:
            each = np.repeat(weight, np.diff(X.indptr))
            weights_of = np.bincount(X.indices, each, d)
            order = np.argsort(weights_of, kind="stable")
        mean, sorted_rows = (units.nu * inverse)[order], by_columns(X, order, counts)
        table = TrailingTable(sorted_rows, y, weight, mean, penalty[order], signs, options.alpha)
        shares = weights_of[order] / (len(y) if weight is None else weight.sum())
        return cls(table, X, y, weight, units, order, shares)

    @property
    def parts(self) -> tuple[csr_array, np.ndarray, np.ndarray | None, np.ndarray]:
        """Return the rows, targets and weights, and the penalties of columns."""
        return self.X, self.y, self.weights, self._as_in_rows(self.table.penalty)

    def _as_in_rows(self, of_table: np.ndarray) -> np.ndarray:
        """Return what the table has of its columns, in the order of the columns of X."""
        in_order = np.empty_like(of_table)
        in_order[self.order] = of_table
        return in_order

    @property
    def weight(self) -> float:
        """Return the total weight of the rows."""
        return float(len(self.y) if self.weights is None else self.weights.sum())

    def sample(self, most: int, rng: np.random.Generator) -> OrderedRows:
        """Return the rows that have a weight, or `most` of them, drawn at random."""
        kept = np.arange(len(self.y)) if self.weights is None else np.flatnonzero(self.weights)
        if len(kept) > most:
            kept = np.sort(rng.choice(kept, most, replace=False))
        X = self.X if len(kept) == len(self.y) else self.X[kept]
        omega = np.ones(len(kept)) if self.weights is None else np.asarray(self.weights[kept])
        return OrderedRows(_reordered(X, self.order), self.y[kept], omega.astype(np.float64))

    def begin(self, sample: OrderedRows, w: np.ndarray, V: np.ndarray, signs: np.ndarray) -> None:
        """Start with the slopes w at the means, and with the best length of V for a sample.

        w and V are in the order of the table. Along the line M = t V diag(s) Vᵀ the objective is a
        parabola.
        """
        table, k = self.table, self.table.k
        table.signs[:k], table.V[:], table.linear[:] = signs, V, 0.0
        table.linear[:] = -table.levels
        omega, squared = sample.omega, sample.X.multiply(sample.X)
        signs = signs.astype(table.V.dtype)  # or numpy would convert V
        products = sample.X @ table.linear + (sample.X @ table.V) ** 2 @ signs
        products = products - squared @ (table.V**2 @ signs)
        products -= np.average(products, weights=omega)
        rest = sample.y - sample.X @ w.astype(sample.X.dtype)
        rest -= np.average(rest, weights=omega)
        ridge = table.ridge_of_products() * omega.sum() / self.weight
        along, size = omega @ (products * rest), omega @ products**2 + ridge
        length = max(float(along), 0.0) / size if size > 0 else 0.0
        table.linear[:] = w + length * table.linear
        table.V[:] *= sqrt(length)

    def model(self) -> Model:
        """Return the current model; its U is not orthonormal."""
        return self.snapshot()()

    def snapshot(self) -> Callable[[], Model]:
        """Return what makes the current model, also once sweeps have moved on.

        Few of the models that a fit passes are asked for, and copies of the factors cost less.
        """
        table, units = self.table, self.units
        V, w, s = table.V.copy(), table.linear.copy(), table.signs[: table.k].copy()
        mean, intercept = table.mean, table.intercept

        def model() -> Model:
            middle, dtype = mean @ V, units.scale.dtype
            centre = float(s @ middle**2 - mean**2 @ (V**2 @ s.astype(V.dtype)))
            c, levels = intercept + float(mean @ w) + centre, levels_of(V, w, s, mean)
            sd = self.inverse.astype(dtype)
            U, slopes = self._as_in_rows(V), sd * self._as_in_rows(levels)
            U *= sd[:, None]
            return Model(U, s.astype(dtype), slopes.astype(dtype), c, units.free)

        return model

    def linear_model(self, w: np.ndarray) -> Model:
        """Return the model with these slopes and no products."""
        units, d = self.units, len(w)
        dtype = units.scale.dtype
        U, s = np.zeros((d, 1), dtype), np.zeros(1, dtype)
        return Model(U, s, (self.inverse * w).astype(dtype), units.target.centre, units.free)

    @property
    def inverse(self) -> np.ndarray:
        """Return the standard deviations (d,), zero for constant columns."""
        scale = self.units.scale.astype(np.float64)
        return np.where(scale > 0, 1 / np.where(scale > 0, scale, 1.0), 0.0)


def _values(chunk: Chunk, units: Units) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the targets of some rows, standardised, and their weights."""
    weight = chunk.weight
    return units.standardised_target(chunk.y), None if weight is None else np.asarray(weight)


def _reordered(X: csr_array, order: np.ndarray) -> csr_array:
    """Return X[:, order], whose rows are not sorted."""
    place = np.empty(len(order), X.indices.dtype)
    place[order] = np.arange(len(order))
    return csr_array((X.data, place[X.indices], X.indptr), X.shape)
