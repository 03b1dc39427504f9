"""Where sweeps over columns begin: ridge regression, and the directions of what it leaves."""

from dataclasses import dataclass
from math import ceil

import numpy as np
from scipy.sparse import csc_array

from quadlin.solve.lowrank import moment_sequence as mes
from quadlin.solve.lowrank.column_ridge import ridges
from quadlin.solve.lowrank.column_rows import ColumnFit, OrderedRows
from quadlin.solve.lowrank.types import Problem

RIDGE_TOL, RIDGE_PASSES = 0.1, 20  # for the linear model at the start of a fit
START_ROWS, START_PART = 20_000, 8  # the start is that of so many rows, or of this part of all
BLOCKS = 4  # products with the moment matrix, for the directions and signs of the start
ENTRIES, FEWEST = 0.4, 2000  # directions are of the columns that hold this share, or of so many
WEAKEST = 0.1  # of the largest component at the start: a component of zero would stay zero


def begin(problem: Problem, columns: ColumnFit) -> None:
    """Start from ridge regression and the leading directions of what it leaves, for a sample."""
    alpha, table = problem.options.alpha[0], columns.table
    sample = start_sample(problem, columns)
    share = float(sample.omega.sum()) / columns.weight
    path = ridges(*sample, table.penalty, [share * alpha], RIDGE_TOL, RIDGE_PASSES)
    V, signs = start_of(problem, columns, sample, path.coef[0])
    columns.begin(sample, path.coef[0], V, signs)
    passed(problem, columns, sample, path.passes + 2)


def start_sample(problem: Problem, columns: ColumnFit) -> OrderedRows:
    """Return the rows with which a start is computed."""
    return columns.sample(max(START_ROWS, len(columns.y) // START_PART), problem.rng)


def passed(problem: Problem, columns: ColumnFit, sample: OrderedRows, walks: float) -> None:
    """Count walks over a sample as the passes that they are worth."""
    problem.rows.counter.count += walks * problem.rows.share * len(sample.y) / len(columns.y)


def start_of(
    problem: Problem, columns: ColumnFit, sample: OrderedRows, w: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return factors in the rows' units, and the signs, of the leading directions beside w.

    Directions are those of the moment matrix of the most frequent columns, weighted by the root of
    the share of rows that have them: otherwise a few rare columns would lead, whose coefficients
    the penalty removes. A last product with the matrix of all columns gives the factors of these.
    """
    options, held = problem.options, np.cumsum(columns.shares)
    first = int(np.searchsorted(held, (1 - ENTRIES) * held[-1]))
    moments = MomentMatrix.of(columns, sample, w)
    frequent = moments.part(max(min(first, len(held) - FEWEST), 0))
    d, like = len(frequent.mean), frequent.mean
    random = problem.rng.standard_normal((d, min(d, options.rank + mes.OVERSAMPLING)))
    U, s, _ = mes.spectral(
        lambda Q: (frequent.product(Q, frequent), like),
        random.astype(like.dtype),
        options.rank,
        options.psd,
        BLOCKS,
    )
    passed(problem, columns, sample, ceil(2 * ENTRIES * BLOCKS) + 1)
    sign, size = np.where(np.asarray(s) < 0, -1.0, 1.0), np.abs(np.asarray(s, np.float64))
    U = moments.product(np.asarray(U), frequent)
    length = np.linalg.norm(U, axis=0)
    size = np.sqrt(np.maximum(size, WEAKEST * size.max())) / np.where(length > 0, length, 1.0)
    V = moments.weigh[:, None] * U * (-sign * size).astype(U.dtype)
    return V, np.ones_like(sign) if options.psd else sign


@dataclass(frozen=True)
class MomentMatrix:
    r"""Half of the moment matrix of the error r = xᵀw − y, without its diagonal.

    .. math:: M = \frac{1}{2 \sum \omega} \sum \omega r\, D (x - \mu)(x - \mu)^\top D

    of the last columns of a table, in its order; D are weights of columns.
    """

    A: csc_array  # (n, d)
    r: np.ndarray  # (n,), times ω/(2 Σω)
    mean: np.ndarray  # (d,)
    weigh: np.ndarray  # (d,), D
    slope: np.ndarray  # (d,), Aᵀr
    diagonal: np.ndarray  # (d,)

    @classmethod
    def of(cls, columns: ColumnFit, sample: OrderedRows, w: np.ndarray) -> "MomentMatrix":
        """Return that of all columns of a table, by some of its rows."""
        (X, y, omega), dtype = sample, sample.X.dtype
        r = X @ w.astype(dtype) - y
        r = (omega * (r - np.average(r, weights=omega)) / (2 * omega.sum())).astype(dtype)
        A, mean = X.tocsc(), columns.table.mean.astype(dtype)
        slope = A.T @ r
        squares = csc_array((A.data**2, A.indices, A.indptr), A.shape).T @ r
        weigh = (np.sqrt(columns.shares) * columns.units.scale[columns.order]).astype(dtype)
        return cls(A, r, mean, weigh, slope, squares - 2 * mean * slope)

    def part(self, first: int) -> "MomentMatrix":
        """Return that of the columns from `first` on."""
        A, (n, d) = self.A, self.A.shape
        begins = A.indptr[first]
        pointers = A.indptr[first:] - begins
        part = csc_array((A.data[begins:], A.indices[begins:], pointers), (n, d - first))
        numbers = (self.mean, self.weigh, self.slope, self.diagonal)
        mean, weigh, slope, diagonal = (a[first:] for a in numbers)
        return MomentMatrix(part, self.r, mean, weigh, slope, diagonal)

    def product(self, Q: np.ndarray, last: "MomentMatrix") -> np.ndarray:
        """Return M Q for a Q whose rows belong to the last columns: one pass."""
        E = last.weigh[:, None] * Q
        ME = self.A.T @ (self.r[:, None] * (last.A @ E))
        ME -= self.slope[:, None] * (last.mean @ E) + self.mean[:, None] * (last.slope @ E)
        ME[len(self.mean) - len(E) :] -= last.diagonal[:, None] * E
        return np.asarray(self.weigh[:, None] * ME)
