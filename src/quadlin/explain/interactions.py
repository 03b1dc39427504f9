"""Which features interact: entries of M in the user's units, never the whole of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappush, heappushpop
from typing import Any, NamedTuple

import numpy as np

from quadlin.core.arrays import unflagged
from quadlin.data.names import Name, position_of

SHOWN, SHOWN_FEATURES = 3, 2000  # interactions in a line, and features up to which they are sought


class Interaction(NamedTuple):
    """A pair of features and what their product adds to the prediction."""

    first: str
    second: str
    coefficient: float  # of x_i·x_j in y: 2 M_ij, or M_ii for a square
    strength: float  # the same for standardised features: comparable between pairs


@dataclass(frozen=True, repr=False)
class Interactions:
    """A view of M = A diag(s) Aᵀ, less the diagonals not modelled: any entry, row or the strongest.

    ``view[i, j]`` and ``view.row(i)`` are entries of M. In y the product x_i·x_j has twice that,
    since M_ij and M_ji are both there: `top` lists these coefficients, 2 M_ij (M_ii for squares).

    Memory: the d×k factor. An entry costs O(k), a row O(kd), the strongest pairs at most O(kd²)
    time, and far less when few features carry M, because pairs are visited by falling bound.

    Examples
    --------
    >>> import numpy as np
    >>> view = Interactions(np.array([[1.0], [2.0], [0.0]]), np.array([3.0]),
    ...                     np.ones(3, dtype=bool), np.full(3, -1), np.ones(3),
    ...                     ["a", "b", "c"])
    >>> float(view["a", "b"])
    6.0
    >>> view.top(1)
    [Interaction(first='a', second='b', coefficient=12.0, strength=12.0)]
    >>> view
    <Interactions of 3 features, rank 1: a × b +12>
    """

    factor: np.ndarray  # (d, k)
    signs: np.ndarray  # (k,), s
    has_diagonal: np.ndarray  # (d,), bool
    field: np.ndarray  # (d,), number of the one-hot group, −1 where there is none
    sd: np.ndarray  # (d,), of the features
    names: Sequence[str]

    def __repr__(self) -> str:
        d, k = self.factor.shape
        told = ""
        if d <= SHOWN_FEATURES:
            strongest = [f"{a} × {b} {c:+.4g}" for a, b, c, _ in self.top(SHOWN + 1)]
            told = ": " + ", ".join(strongest[:SHOWN]) if strongest else ": none"
            told += ", …" if strongest[SHOWN:] else ""
        return f"<Interactions of {d:,} features, rank {k}{told}>"

    @unflagged
    def __getitem__(self, pair: tuple[Name, Name]) -> float:
        """Return M_ij by position or name; the product x_i·x_j has coefficient 2 M_ij."""
        i, j = (self._position(feature) for feature in pair)
        if self.vanishes(i, j):
            return 0.0
        return float(self.factor[i] * self.signs @ self.factor[j])

    def vanishes(self, i: int, j: int) -> bool:
        """Tell whether M has no entry for two features, by position."""
        return bool(not self.has_diagonal[i] if i == j else self._together(i, j))

    @unflagged
    def row(self, feature: Name) -> np.ndarray:
        """Return the row of M that belongs to one feature."""
        i = self._position(feature)
        entries = self.factor @ (self.signs * self.factor[i])
        own = entries[i] * self.has_diagonal[i]
        entries[self._together(i, slice(None))] = 0.0  # one of them is always zero
        entries[i] = own
        return np.asarray(entries)

    @unflagged
    def top(self, count: int = 10, squares: bool = False) -> list[Interaction]:
        """Return the strongest interactions, by the size they have for standardised features."""
        if count < 1:
            return []
        A = self.factor * self.sd[:, None] * np.sqrt(np.abs(self.signs))
        signs = np.sign(self.signs)
        norms = np.linalg.norm(A, axis=1)
        order = np.argsort(-norms, kind="stable")
        A, norms = A[order], norms[order]
        heap: list[tuple[float, int, int]] = []
        for p in range(len(order)):
            bound = heap[0][0] if len(heap) == count else 0.0
            last = p if squares else p + 1
            stop = int(np.searchsorted(-2 * norms[p] * norms, -bound, side="left"))
            if stop <= last:  # |M_ij| ≤ ‖a_i‖‖a_j‖: nothing further down can be stronger
                if bound > 0 or norms[p] == 0:
                    break
                continue
            values = 2 * (A[last:stop] * signs) @ A[p]
            together = self._together(order[p], order[last:stop])
            if squares:
                values[0] *= self.has_diagonal[order[p]] / 2
                together[0] = False
            values[together] = 0.0
            best = np.argsort(-np.abs(values), kind="stable")[:count]
            for q in best:
                item = (abs(float(values[q])), int(order[p]), int(order[last + q]))
                if item[0] > 0:
                    (heappush if len(heap) < count else heappushpop)(heap, item)
        return [self._interaction(*sorted((i, j))) for _, i, j in sorted(heap, reverse=True)]

    def _together(self, i: int, others: Any) -> Any:
        """Tell which features are of the same field as feature i, so that products vanish."""
        return (self.field[others] == self.field[i]) & (self.field[i] >= 0)

    def _interaction(self, i: int, j: int) -> Interaction:
        coefficient = self[i, j] * (1 if i == j else 2)
        strength = coefficient * float(self.sd[i] * self.sd[j])
        return Interaction(self.names[i], self.names[j], coefficient, strength)

    def _position(self, feature: Name) -> int:
        return position_of(self.names, feature)
