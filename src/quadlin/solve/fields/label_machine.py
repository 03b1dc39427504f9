"""Draws of a machine of log-odds from the posterior of labels, not from an approximation of it.

Near one point the logistic loss is about least squares, but where tastes are strong, the log-odds
of new pairs are uncertain by several units, which least squares about their means does not show. So
each sweep draws the curvature of every row anew (`polya_gamma`). Given it, levels are drawn as for
ratings, with noise one.
"""

from dataclasses import replace

import numpy as np
from scipy.sparse import csr_matrix

from quadlin.core.compiled_levels import Meetings
from quadlin.solve.fields.field_machine import FieldMachine
from quadlin.solve.fields.field_rows import FieldRows, PatternPairs, PatternTotals
from quadlin.solve.fields.field_sums import joined
from quadlin.solve.fields.level_posterior import Gamma
from quadlin.solve.fields.polya_gamma import polya_gamma
from quadlin.solve.fields.variational import HELD, HELD_PRECISION

BURN_IN, SHARE = 100, 0.25  # sweeps before the draws that are kept, at least; of those kept
UNIT = Gamma(1.0, 1.0)  # the noise, which the curvature of labels stands for


class LabelMachine(FieldMachine):
    """A sampler of log-odds of labels 0 and 1, in their own units."""

    def __init__(self, rows: FieldRows, signs: np.ndarray, rng: np.random.Generator) -> None:
        labels = np.round(rows.shift + rows.scale * rows.y)
        self.powers, self.pull = rows.weight, rows.weight * (labels - 0.5)
        self.meetings = None if rows.pairs is None else _Meetings(rows)
        super().__init__(replace(rows, shift=0.0, scale=1.0), signs, rng, sampled=True)
        self.noise = UNIT
        self.held = HELD  # sweeps of the start: free factors shrink before they point anywhere
        for _ in range(self.held):
            self.hold_factors(HELD_PRECISION)
            self.sweep()

    @property
    def log_odds(self) -> np.ndarray:
        """Return the log-odds of the rows (n,)."""
        entities = zip(self.state, self.rows.entities, strict=True)
        total, cross = joined([theta.mean[:, e.of_row] for theta, e in entities], self.signs)
        return np.asarray(self.b + total[0] + cross)

    def sweep(self) -> None:
        """Draw the curvature of every row, then every unknown once, given the others."""
        omega = polya_gamma(self.log_odds, self.powers, self.rng)
        y = self.pull / omega
        pairs = None if self.meetings is None else self.meetings.pairs(omega, y)
        self.rows = replace(self.rows, y=y, weight=omega, pairs=pairs)
        super().sweep()
        self.noise = UNIT


class _Meetings:
    """Where rows stand in the sums of `pattern_pairs`, which are taken anew in every sweep."""

    def __init__(self, rows: FieldRows) -> None:
        first, second = rows.entities
        self.at, self.sizes = (first.of_row, second.of_row), (first.size, second.size)
        met, self.place = np.unique(first.of_row * second.size + second.of_row, return_inverse=True)
        where = np.arange(len(met), dtype=np.float64)
        once = csr_matrix((where, (met // second.size, met % second.size)), shape=self.sizes)
        turned = once.T.tocsr()
        self.layouts = [
            (m.indptr.astype(np.int64), m.indices.astype(np.int32)) for m in (once, turned)
        ]
        self.orders = [m.data.astype(np.int64) for m in (once, turned)]

    def pairs(self, weight: np.ndarray, y: np.ndarray) -> PatternPairs:
        """Return the sums of rows with these weights and targets."""
        values = weight, weight * y
        sums = [np.bincount(self.place, v, len(self.orders[0])) for v in values]
        by = [
            Meetings(*layout, *(np.ascontiguousarray(s[order]) for s in sums))
            for layout, order in zip(self.layouts, self.orders, strict=True)
        ]
        totals = [
            PatternTotals(*(np.bincount(at, v, size) for v in values))
            for at, size in zip(self.at, self.sizes, strict=True)
        ]
        return PatternPairs((by[0], by[1]), (totals[0], totals[1]), float(weight @ y**2))
