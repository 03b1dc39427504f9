"""What a search for pairs needs besides the rows, and which rows it uses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.moments import Survey, survey
from quadlin.core.rows import Rows
from quadlin.core.units import Units, UnitsMaker
from quadlin.data import Source
from quadlin.data.columns.encoder import text_columns
from quadlin.data.columns.names import positions_of
from quadlin.solve.lowrank.observations import row_hash
from quadlin.solve.lowrank.polish import fit_rows
from quadlin.solve.lowrank.types import Options, finished
from quadlin.solve.pairs.pair_fit import PairFit
from quadlin.solve.pairs.pair_regression import MOST_FEATURES
from quadlin.solve.pairs.pair_search import PairSearch
from quadlin.solve.pairs.pair_sparse import sparse_search
from quadlin.solve.pairs.pair_sums import residual_squares


def first_half(n_rows: int) -> np.ndarray:
    """Return which rows are searched, by a hash of their numbers; the others are for tests.

    Examples
    --------
    >>> first_half(8).astype(int), int(first_half(1001).sum())
    (array([0, 1, 1, 0, 1, 1, 0, 0]), 500)
    """
    mixed = row_hash(np.arange(n_rows))
    chosen = np.zeros(n_rows, bool)
    chosen[np.argsort(mixed, kind="stable")[: n_rows // 2]] = True
    return chosen


@dataclass(frozen=True)
class PairSetting:
    """What a search needs besides the rows."""

    source: Source
    groups: Sequence[np.ndarray]
    make_units: UnitsMaker
    hierarchy: str | None
    excluded: np.ndarray | None = None  # (d, d), products that may not be taken

    def validated(
        self, rows: Rows, surveyed: Survey, cv: int, steps: int, most: int | None
    ) -> list[float]:
        """Return R² of rows left out, with 0, 1, … `steps` of the pairs found on the others."""
        part = np.argsort(np.argsort(row_hash(np.arange(surveyed.tally.rows)), kind="stable")) % cv
        loss = np.zeros(steps + 1)
        for left_out in range(cv):
            train = rows.reweighted((part != left_out).astype(float))
            test = rows.reweighted((part == left_out).astype(float))
            search = self.search(train, train.reduce(survey), "the rows of a fold")
            fit = search.run(most)
            scale = search.units.target.scale**2
            for m in range(len(loss)):
                first = fit.entry <= m
                again = search.tested(fit.i[first], fit.j[first])
                squares = test.collect(residual_squares, again.columns, again.beta)
                loss[m] += scale * sum(float(p.sum()) for pieces in squares for p in pieces)
        target = surveyed.target
        values: list[float] = (1 - loss / (target.weight * float(target.var[0]))).tolist()
        return values

    def stability(
        self, rows: Rows, surveyed: Survey, times: int, fit: PairFit, most: int | None
    ) -> list[float]:
        """Return in which share of resamples of the rows each pair of a fit is chosen again."""
        n, found = surveyed.tally.rows, np.zeros(len(fit.i))
        rng = np.random.default_rng(0)
        for _ in range(times):
            drawn = np.bincount(rng.integers(n, size=n), minlength=n).astype(float)
            sample = rows.reweighted(drawn)
            again = self.search(sample, sample.reduce(survey), "a resample of X").run(most)
            chosen = set(zip(again.i.tolist(), again.j.tolist(), strict=True))
            found += [(i, j) in chosen for i, j in zip(fit.i.tolist(), fit.j.tolist(), strict=True)]
        return [float(count) / times for count in found]

    def search(
        self, rows: Rows, surveyed: Survey, which: str, fit: PairFit | None = None
    ) -> PairSearch:
        """Return the search on some rows, beside the linear model; `fit` is to be tested there."""
        units = self.make_units(surveyed.features, surveyed.target)
        self._refuse(units, surveyed, which)
        limits: dict[str, Any] = {"hierarchy": self.hierarchy, "fields": self.groups}
        if self.source.width <= MOST_FEATURES:
            return PairSearch(rows, units, excluded=self.excluded, **limits)
        if self.excluded is not None:
            raise ValueError(
                f"`exclude` needs at most {MOST_FEATURES:,} features, and there are "
                f"{self.source.width:,}. Leave it out, or select features."
            )
        if not self.source.sparse:
            raise ValueError(
                f"There are {self.source.width:,} features. The search looks at all products of at "
                f"most {MOST_FEATURES:,} features, and in sparse rows at those that occur. Select "
                "features, or give a sparse matrix."
            )
        weight = surveyed.features.weight
        linear, _ = fit_rows(rows, units, Options(rank=0), weight, np.random.default_rng(0))
        finished(linear)
        if fit is None:
            return sparse_search(rows, units, linear.model, **limits)
        features = np.unique(np.concatenate([fit.i, fit.j]))
        return PairSearch(rows, units, model=linear.model, features=features, **limits)

    def _refuse(self, units: Units, surveyed: Survey, which: str) -> None:
        """Refuse rows in which no pair can be found."""
        in_groups = sum(len(group) for group in self.groups)
        if self.source.width - in_groups + len(self.groups) < 2:
            raise ValueError(f"X has one feature ({self.source.names[0]}), but a pair needs two.")
        d, n = int((to_numpy(units.scale) > 0).sum()), surveyed.tally.counting
        if n < d + 2:
            raise ValueError(
                f"There are {n} rows (of weight above 0) and {d} features that vary in {which}. "
                f"The linear model beside the pairs needs at least {d + 2} rows. Select features "
                "or add rows."
            )
        if not units.target.power:
            raise ValueError(f"The target is constant in {which}, so there is nothing to explain.")


def excluded_among(exclude: Sequence[Any], source: Source) -> np.ndarray | None:
    """Return which products may not be taken, as a matrix; None if all may."""
    if not len(exclude):
        return None
    mask, wholes = np.zeros((source.width, source.width), bool), text_columns(source.encoder)
    for item in exclude:
        both = isinstance(item, Sequence | np.ndarray) and not isinstance(item, str)
        if both and len(item) != 2:
            raise ValueError(f"exclude lists features and pairs of features, not {item!r}.")
        first, *second = (
            positions_of(source.names, wholes, feature) for feature in (item if both else [item])
        )
        other = second[0] if second else np.arange(source.width)
        mask[np.ix_(first, other)] = mask[np.ix_(other, first)] = True
    return mask
