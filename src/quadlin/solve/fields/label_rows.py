"""Labels 0 and 1 as targets whose weights change from sweep to sweep.

Rows that agree in all patterns have the same log-odds, and are one row here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from quadlin.core.compiled_levels import Meetings
from quadlin.solve.fields.field_rows import Entity, FieldRows, PatternPairs, PatternTotals


@dataclass(frozen=True)
class LabelRows:
    """The labels of rows, merged where these have the same patterns."""

    merged: FieldRows  # a row for each combination of patterns
    of_row: np.ndarray  # (n,), which of them a given row is
    weight: np.ndarray  # (n,), of the given rows
    powers: np.ndarray  # (m,), Σ weight
    pull: np.ndarray  # (m,), Σ weight·(y − ½)
    order: np.ndarray | None  # (m,), by the patterns of the second entity, where there are two

    @classmethod
    def of(cls, rows: FieldRows) -> "LabelRows":
        """Merge rows whose targets are labels; the units of log-odds are those of `rows`."""
        labels = np.round(rows.shift + rows.scale * rows.y)
        entities, of_row = _merged(rows.entities)
        powers = np.bincount(of_row, rows.weight)
        pull = np.bincount(of_row, rows.weight * (labels - 0.5))
        order = None
        if rows.pairs is not None:
            order = np.argsort(entities[1].of_row, kind="stable")
        merged = replace(rows, entities=entities, y=pull, weight=powers, pairs=None)
        return cls(merged, of_row, rows.weight, powers, pull, order)

    @property
    def n(self) -> float:
        """Return the number of labels, repetitions counted."""
        return float(self.powers.sum())

    def as_targets(self, omega: np.ndarray, z: np.ndarray, precision: float) -> FieldRows:
        """Return the merged rows as targets z (m,) of precisions ω (m,).

        A weight of one has `precision`, and log-odds are in the units of the merged rows.
        """
        rows = self.merged
        y, weight = (z - rows.shift) / rows.scale, omega * (rows.scale**2 / precision)
        pairs = None if self.order is None else self._pairs(self.order, weight, y)
        return replace(rows, y=y, weight=weight, pairs=pairs)

    def _pairs(self, order: np.ndarray, weight: np.ndarray, y: np.ndarray) -> PatternPairs:
        """Return the sums of `pattern_pairs`: of one row each, which are in their order."""
        first, second = self.merged.entities
        values = weight, weight * y

        def by_rows(of: Entity, other: Entity, at: np.ndarray | slice) -> Meetings:
            starts = np.concatenate([[0], np.cumsum(np.bincount(of.of_row, minlength=of.size))])
            places = other.of_row[at].astype(np.int32)
            return Meetings(starts.astype(np.int64), places, values[0][at], values[1][at])

        totals = [
            PatternTotals(*(np.bincount(e.of_row, v, e.size) for v in values))
            for e in (first, second)
        ]
        by = by_rows(first, second, slice(None)), by_rows(second, first, order)
        return PatternPairs(by, (totals[0], totals[1]), float(weight @ y**2))


def _merged(entities: Sequence[Entity]) -> tuple[tuple[Entity, ...], np.ndarray]:
    """Return entities of rows that differ in some pattern, sorted, and which one each row is."""
    code, first = entities[0].of_row, np.arange(len(entities[0].of_row))
    for entity in entities[1:]:
        together = code.astype(np.int64) * entity.size + entity.of_row
        _, first, code = np.unique(together, return_index=True, return_inverse=True)
    return tuple(e._replace(of_row=e.of_row[first]) for e in entities), code.ravel()
