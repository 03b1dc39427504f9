"""One split of cross-validation: its training rows, its test rows as models take them, scorers."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj, is_numpy_array
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import _safe_indexing

from quadlin.core.arrays import Array, namespace
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.model import predict
from quadlin.estimators.regression.trust import Trust
from quadlin.solve.fits.fit_state import trusted_predictions, trusted_range
from quadlin.solve.fits.grid import Cells, Point


@dataclass(frozen=True)
class Fold:
    """The training rows of a split, as weights on all rows, and its test rows themselves."""

    number: int  # among the splits
    cells: Cells
    index: np.ndarray  # of the test rows
    test: Chunk
    clips: bool  # whether features are held where they are trusted

    def rows_for(self, rank: int) -> Array:
        """Return the test rows as `predict` takes them for a model of this rank."""
        if not self.clips:
            return self.test.X
        if rank not in self._by_rank:
            surveyed, options = self.cells.surveyed, self.cells.options
            dof = options.dof(self.test.X.shape[1], rank)
            rows_per_parameter = surveyed.tally.counting / max(1, dof)
            bounds = trusted_range(surveyed.features, rank == 0, rows_per_parameter)
            self._by_rank[rank] = Trust(bounds).clipped(self.test.X)[0]
        return self._by_rank[rank]

    @cached_property
    def _by_rank(self) -> dict[int, Array]:
        return {}


def predicted(fold: Fold, point: Point) -> Array:
    """Return the predictions of the test rows of a fold."""
    units, xp = fold.cells.units, namespace(fold.test.y)
    model = fold.cells.solution(*point).model
    f = xp.astype(predict(model, Block(fold.rows_for(point[0]), units)), xp.float64)
    f = units.target.mean + units.target.scale * f
    bounds = trusted_predictions(fold.cells.surveyed.target) if fold.clips and point[0] else None
    return Trust(predictions=bounds).limited(f)


def rows_at(rows: Any, index: np.ndarray) -> Any:
    """Return some rows; tensors by an index of their own, which scikit-learn made only from 1.9."""
    if is_array_api_obj(rows) and not is_numpy_array(rows):
        xp = namespace(rows)
        return xp.take(rows, xp.asarray(index, device=rows.device), axis=0)
    return _safe_indexing(rows, index)


class Predicted(RegressorMixin, BaseEstimator):
    """An estimator whose predictions exist already, for scorers that are given by name."""

    def __init__(self, f: Array) -> None:
        self.f = f

    def predict(self, X: Any) -> Array:
        """Return the predictions."""
        return self.f


def mean_square(r: Array, weight: Array | None) -> float:
    """Return the weighted mean of squares."""
    xp = namespace(r)
    weight = xp.ones_like(r) if weight is None else weight
    return float(weight @ r**2) / float(xp.sum(weight))


def number_of(score: Any) -> float:
    """Return a score, if it is one number."""
    try:
        return float(score)
    except (TypeError, ValueError):
        raise ValueError(f"scoring must return one number, not {score!r}.") from None
