"""Which features interact: coefficients of products in the user's units, by pair."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isclose, nan
from typing import Any, NamedTuple

import numpy as np

from quadlin.core.arrays import unflagged
from quadlin.data.names import Name, position_of
from quadlin.explain.pair_report import Pair, PairReport
from quadlin.explain.tables import ROUNDING, columns_of, frame_of
from quadlin.solve.fits.uncertainty import two_sided

CANCELLED = 1e-6  # of the terms that add up to an entry of M: smaller entries count as zero


class Interaction(NamedTuple):
    """A pair of features and what their product adds to the prediction."""

    first: str
    second: str
    coefficient: float  # of x_i·x_j in y: 2 M_ij, or M_ii for a square
    strength: float  # the same for standardised features: comparable between pairs
    std_error: float | None = None  # of the coefficient; None where it is not known


@dataclass(frozen=True, repr=False)
class Interactions:
    """A view of M = A diag(s) Aᵀ, less the diagonals not modelled, as coefficients of products.

    ``view[i, j]``, ``view.row(i)``, ``view.std_error(i, j)`` and ``view.top()`` all refer to the
    coefficient of x_i·x_j in y. That is 2 M_ij for two features, since M_ij and M_ji both count,
    and M_ii for a square. Only `matrix` returns M itself.

    Memory: the d×k factor. An entry costs O(k), a row O(kd), the strongest pairs at most O(kd²)
    time, and far less when few features carry M, because pairs are visited by falling bound.

    Examples
    --------
    >>> import numpy as np
    >>> view = Interactions(np.array([[1.0], [2.0], [0.0]]), np.array([3.0]),
    ...                     np.ones(3, dtype=bool), np.full(3, -1), np.ones(3),
    ...                     ["a", "b", "c"])
    >>> view["a", "b"], view["b", "b"]
    (12.0, 12.0)
    >>> view.matrix().tolist()
    [[3.0, 6.0, 0.0], [6.0, 12.0, 0.0], [0.0, 0.0, 0.0]]
    >>> view.top(1)
    [Interaction(first='a', second='b', coefficient=12.0, strength=12.0, std_error=None)]
    >>> view
    <Interactions of 3 features, rank 1>
    """

    factor: np.ndarray  # (d, k)
    signs: np.ndarray  # (k,), s
    has_diagonal: np.ndarray  # (d,), bool
    field: np.ndarray  # (d,), number of the one-hot group, −1 where there is none
    sd: np.ndarray  # (d,), of the features
    names: Sequence[str]
    entry_std: Callable[[int, int], float] | None = None  # the standard error of M_ij

    def __repr__(self) -> str:
        d, k = self.factor.shape
        return f"<Interactions of {d:,} features, rank {k}>"

    @unflagged
    def __getitem__(self, pair: tuple[Name, Name]) -> float:
        """Return the coefficient of x_i·x_j in y, for features by position or name."""
        i, j = (self._position(feature) for feature in pair)
        if self.vanishes(i, j):
            return 0.0
        return _times(i, j) * float(self.factor[i] * self.signs @ self.factor[j])

    def std_error(self, first: Name, second: Name) -> float | None:
        """Return the standard error of the coefficient of x_i·x_j; None where it is not known."""
        if self.entry_std is None:
            return None
        i, j = self._position(first), self._position(second)
        return 0.0 if self.vanishes(i, j) else _times(i, j) * self.entry_std(i, j)

    def vanishes(self, i: int, j: int) -> bool:
        """Tell whether the model has no product of two features, by position."""
        return bool(not self.has_diagonal[i] if i == j else self._together(i, j))

    @unflagged
    def row(self, feature: Name) -> np.ndarray:
        """Return the coefficients of the products of one feature with each feature."""
        i = self._position(feature)
        coefficients = 2 * (self.factor @ (self.signs * self.factor[i]))
        square = coefficients[i] / 2 * self.has_diagonal[i]
        coefficients[self._together(i, slice(None))] = 0.0  # one of them is always zero
        coefficients[i] = square
        return np.asarray(coefficients)

    @unflagged
    def matrix(self) -> np.ndarray:
        """Return M, symmetric (d, d): half of the coefficient of x_i·x_j off its diagonal."""
        M = (self.factor * self.signs) @ self.factor.T
        diagonal = np.diag(M) * self.has_diagonal
        M[(self.field[:, None] == self.field) & (self.field >= 0)] = 0.0
        np.fill_diagonal(M, diagonal)
        return np.asarray(M)

    def to_frame(self, count: int | None = None, squares: bool = True) -> Any:
        """Return the strongest pairs as a pandas frame, or as a dict of columns without pandas.

        Parameters
        ----------
        count : int or None, default=None
            Number of pairs; None takes all whose coefficient is not zero.
        squares : bool, default=True
            Whether the square of a feature counts as a pair.

        Returns
        -------
        frame
            `first`, `second`, the `coefficient` of their product in y, its `strength` for
            standardised features, and its `std_error` (NaN where it is not known).
        """
        d = len(self.names)
        pairs = self.top(d * (d + 1) // 2 if count is None else count, squares)
        columns = columns_of(pairs, Interaction)
        unknown = float("nan")
        columns["std_error"] = [unknown if e is None else e for e in columns["std_error"]]
        return frame_of(columns)

    @unflagged
    def top(self, count: int = 10, squares: bool = False) -> list[Interaction]:
        """Return the strongest interactions, by the size they have for standardised features.

        Parameters
        ----------
        count : int, default=10
            Maximum number.
        squares : bool, default=False
            Whether the square of a feature counts as a pair.

        Returns
        -------
        list of Interaction
            `first`, `second`, the `coefficient` of x_i·x_j in y, its `strength` (the same for
            standardised features) and its `std_error`, which is None without
            ``uncertainty=True``.
        """
        if count < 1:
            return []
        A = self.factor * self.sd[:, None] * np.sqrt(np.abs(self.signs))
        signs = np.sign(self.signs)
        norms = np.linalg.norm(A, axis=1)
        order = np.argsort(-norms, kind="stable")
        A, norms = A[order], norms[order]
        pieces, bound = [np.empty((0, 3))], 0.0  # sizes, with the features they belong to
        for p in range(len(order)):
            # |M_ij| ≤ ‖a_i‖‖a_j‖: nothing from `stop` on can be stronger.
            stop = int(np.searchsorted(-2 * norms[p] * norms, -bound, side="left"))
            if stop <= p or norms[p] == 0:
                break
            values = 2 * (A[p:stop] * signs) @ A[p]
            values[0] *= self.has_diagonal[order[p]] * squares / 2
            values[1:][self._together(order[p], order[p + 1 : stop])] = 0.0
            least = np.maximum(CANCELLED * norms[p:stop], ROUNDING * norms[0]) * norms[p]
            new = np.flatnonzero(np.abs(values) > np.maximum(least, bound))
            ends = np.full(len(new), order[p]), order[p + new]
            pieces.append(np.stack([np.abs(values[new]), *ends], axis=1))
            if sum(map(len, pieces)) >= (2 if bound else 1) * count:
                pieces = [_largest(pieces, count)]
                bound = float(pieces[0][-1, 0])
        pairs = _largest(pieces, count)[:, 1:].astype(int).tolist()
        return [self._interaction(*sorted(pair)) for pair in pairs]

    def _together(self, i: int, others: Any) -> Any:
        """Tell which features belong to the field of feature i, so that their products are zero."""
        return (self.field[others] == self.field[i]) & (self.field[i] >= 0)

    def _interaction(self, i: int, j: int) -> Interaction:
        coefficient = self[i, j]
        strength = coefficient * float(self.sd[i] * self.sd[j])
        error = self.std_error(i, j)
        return Interaction(self.names[i], self.names[j], coefficient, strength, error)

    def _position(self, feature: Name) -> int:
        return position_of(self.names, feature)


def report_of_products(
    report: PairReport, view: Interactions, left: float, rank: int
) -> PairReport:
    """Return a report whose pairs have the coefficients of whole products, as `view` has them.

    A search measures a level from the other levels, and beside a low-rank part. The standard error
    is that of the same coefficient. Where the model has none, it is that of the search if nothing
    but the pair contributes to the product: then the one coefficient is a multiple of the other.
    """

    def columns(pair: Pair) -> frozenset[tuple[int, int]]:
        places = (position_of(view.names, name) for name in pair[:2])
        return frozenset((int(view.field[j]), j if view.field[j] < 0 else -1) for j in places)

    pairs_of = Counter(map(columns, report.pairs))

    def whole(pair: Pair) -> Pair:
        names = pair.first, pair.second
        coefficient, error = view[names], view.std_error(*names)
        if error is not None:
            t = coefficient / error if error else nan
            p = two_sided(t, left) if error else nan
            return pair._replace(coefficient=coefficient, std_error=error, t=t, p=p)
        share = coefficient / pair.coefficient if pair.coefficient else 1.0
        alone = rank == 0 and pairs_of[columns(pair)] == 1
        if alone or isclose(share, 1.0, rel_tol=1e-6):
            return pair._replace(coefficient=coefficient, std_error=abs(share) * pair.std_error)
        return pair._replace(coefficient=coefficient, std_error=nan, t=nan, p=nan)

    return replace(report, pairs=list(map(whole, report.pairs)), rank=rank)


def _times(i: int, j: int) -> int:
    """Return how often the entry of a pair is in xᵀMx."""
    return 1 if i == j else 2


def _largest(pieces: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Return the rows with the largest first numbers, in order."""
    rows = np.concatenate(pieces)
    return rows[np.argsort(-rows[:, 0], kind="stable")[:count]]
