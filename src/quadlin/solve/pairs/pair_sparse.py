r"""Pairs of very many sparse features: only features that occur together are tried.

If two sparse features never occur together, s_i·s_j is zero in every row, and z_i·z_j, which is
s_i·s_j up to linear terms, adds nothing to w. So it is enough to keep the sums of products that
occur, and a product that occurs in few rows is not worth trying.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array, triu

from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive
from quadlin.core.model import Model, predict
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.pairs.pair_choice import Criterion
from quadlin.solve.pairs.pair_screen import WORTH_A_LOOK
from quadlin.solve.pairs.pair_search import PairSearch

FEWEST_ROWS = 10  # in which two features must occur together
DENSE = 100.0  # σ: columns whose mean is further from zero have next to no zeros
MOST_FEATURES = 400  # that are searched in full


@dataclass(frozen=True)
class Occurrences(Additive):
    """The number of rows in which each feature is not zero."""

    rows: np.ndarray  # (d,)


@dataclass(frozen=True)
class TogetherScores(Additive):
    """Sums over rows of products s_i·s_j, i < j, of features that occur together."""

    weight: float  # Σω
    loss: float  # Σω r²
    moments: Any  # (d, d) sparse, Σω r s_i s_j
    power: Any  # (d, d) sparse, Σω s_i² s_j²
    rows: Any  # (d, d) sparse, how many rows


def occurrences(chunk: Chunk) -> Occurrences:
    """Count over one chunk."""
    return Occurrences(np.bincount(chunk.X.indices, minlength=chunk.X.shape[1]))


def together(chunk: Chunk, model: Model, units: Units, often: np.ndarray) -> TogetherScores:
    """Sum products of features that occur often enough over one chunk."""
    block = Block(chunk.X, units)
    r = units.standardised_target(chunk.y) - predict(model, block)
    omega = np.ones(len(r)) if chunk.weight is None else chunk.weight
    S = _scaled(chunk.X[:, often], units.scale[often], units.nu[often])

    def gram(data: np.ndarray, weight: np.ndarray) -> Any:
        A = csr_array((data, S.indices, S.indptr), shape=S.shape)
        weighted = csr_array(
            (data * np.repeat(weight, np.diff(S.indptr)), S.indices, S.indptr), shape=S.shape
        )
        return csr_array(triu(A.T @ weighted, k=1))

    occurs = (S.data != 0).astype(float)
    return TogetherScores(
        float(np.sum(omega)),
        float(omega @ r**2),
        gram(S.data, omega * r),
        gram(S.data**2, omega),
        gram(occurs, np.ones(len(r))),
    )


def _scaled(X: csr_array, scale: np.ndarray, nu: np.ndarray) -> csr_array:
    """Return scaled sparse rows; columns with next to no zeros are also centred."""
    dense = (np.bincount(X.indices, minlength=X.shape[1]) == X.shape[0]) | (np.abs(nu) > DENSE)
    centre = np.where(dense, nu, 0).astype(np.float64)
    data = X.data * scale.astype(np.float64)[X.indices] - centre[X.indices]
    return csr_array((data, X.indices, X.indptr), shape=X.shape)


def sparse_search(
    rows: Rows,
    units: Units,
    model: Model,
    fields: Sequence[np.ndarray] = (),
    alpha: tuple[float, float, float] = (0.0, 0.0, 0.0),
    noise: float | None = None,
) -> PairSearch:
    """Return the search for pairs of any number of sparse features, after a fitted model.

    Memory: three numbers for each two features that occur together in some row. The features with
    the largest scores, at most 400, are then searched in full; every product that occurred counts
    as tried. The w of other features stays as in the model.
    """
    occurs = rows.reduce(occurrences).rows
    often = np.flatnonzero((occurs >= FEWEST_ROWS) & (np.asarray(units.scale) > 0))
    total = rows.reduce(together, model, units, often)
    count = total.rows.tocoo()
    enough = count.data >= FEWEST_ROWS
    i, j = count.row[enough], count.col[enough]
    candidates = max(int(enough.sum()), 1)
    power = np.asarray(total.power.tocsr()[i, j]).ravel()
    moments = np.asarray(total.moments.tocsr()[i, j]).ravel()
    variance = noise or max(total.loss / total.weight, 1e-300)
    t2 = moments**2 / (variance * np.maximum(power, 1e-300))
    entry = Criterion(total.weight, candidates, max(total.loss, 1e-300)).entry(0)
    order = np.argsort(-t2, kind="stable")
    order = order[t2[order] > WORTH_A_LOOK * entry]
    best: dict[int, None] = {}
    for pair in order:
        best.update({int(often[i[pair]]): None, int(often[j[pair]]): None})
        if len(best) >= MOST_FEATURES:
            break
    features = np.array(sorted(best), dtype=np.int64)
    return PairSearch(
        rows,
        units,
        model=model,
        alpha=alpha,
        fields=fields,
        features=features,
        candidates=candidates,
        noise=noise,
    )
