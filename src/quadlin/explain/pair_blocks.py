"""Products of whole text columns, which enter a model together: one test for all of them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import f as fisher

from quadlin.core.messages import printable
from quadlin.explain.tables import p_value

UNSEEN = 1e-9  # of the largest variance: products that others of the block explain


class PairBlock(NamedTuple):
    """The products of two columns that entered in one step, tested as a whole."""

    first: str  # the column, or the feature
    second: str
    n_products: int
    F: float  # Wald: how much larger than by chance, for noise that is equal in all rows
    p: float
    order: int  # of entry, from 1

    def __str__(self) -> str:
        words = f"{self.first} × {self.second}, {self.n_products} products together"
        return printable(f"{self.order:>3} {words}: F = {self.F:.1f}, p {_told(self.p)}")


def blocks_of(
    names: Sequence[str],
    i: np.ndarray,
    j: np.ndarray,
    coef: np.ndarray,
    inverse: np.ndarray,
    entry: np.ndarray,
    noise: float,
    left: float,
) -> list[PairBlock]:
    r"""Return F = βᵀ V⁻¹ β / (q σ²) of the q coefficients of each step that took several products.

    V is the block of the inverse Gram matrix; `noise` is σ², known from `left` rows.
    """
    blocks = []
    for order in np.unique(entry):
        at = np.flatnonzero(entry == order)
        if len(at) < 2 or not noise > 0:
            continue
        values, V = np.linalg.eigh(inverse[np.ix_(at, at)])
        seen = values > UNSEEN * values.max()
        q = int(seen.sum())
        F = float(np.sum((V[:, seen].T @ coef[at]) ** 2 / values[seen])) / (q * noise)
        first, second = (_column([names[k] for k in ends[at]]) for ends in (i, j))
        p = float(fisher.sf(F, q, max(left, 1.0)))
        blocks.append(PairBlock(first, second, len(at), F, p, int(order)))
    return blocks


def _column(names: Sequence[str]) -> str:
    """Return the name of a feature, or of the column that several levels belong to."""
    different = list(dict.fromkeys(names))
    if len(different) == 1:
        return different[0]
    columns = {name.partition("=")[0] for name in different}
    return columns.pop() if len(columns) == 1 else f"{different[0]}…{different[-1]}"


def _told(p: float) -> str:
    text = p_value(p)
    return text if text.startswith("<") else f"= {text}"
