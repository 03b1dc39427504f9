r"""The sums of past rows for the levels of fields, and the machine that was learned from them.

The sums :math:`G_p` and :math:`h_p` of `field_sums` add over batches of rows. Those of a batch use
the factors of the other entities at that time, with their covariances: the uncertainty of these
factors counts as noise, which decreases with every later batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from quadlin.solve.fields.field_predict import Layout, in_raw_columns
from quadlin.solve.fields.field_rows import FieldRows
from quadlin.solve.fields.label_bounds import Calibration
from quadlin.solve.fields.loose_columns import RunningSlopes

LARGEST = 1e120  # of the numbers of a machine, so that their squares are finite


class Structure(NamedTuple):
    """The columns of an entity."""

    fields: tuple[int, ...]  # the numbers of its fields, the key first
    followers: tuple[int, ...]  # columns that follow the level of the key

    @classmethod
    def all_of(
        cls, rows: FieldRows, fields: Sequence[np.ndarray], columns: np.ndarray
    ) -> "tuple[Structure, ...]":
        """Return the entities of rows that have only some of the columns."""
        of_first = {int(field[0]): number for number, field in enumerate(fields)}
        structures = []
        for entity in rows.entities:
            numbers = [of_first.get(int(member.columns[0])) for member in entity.members]
            *inside, key = (number for number in numbers if number is not None)
            singles = [
                int(columns[member.columns[0]])
                for member, number in zip(entity.members, numbers, strict=True)
                if number is None
            ]
            structures.append(cls((key, *inside), tuple(singles)))
        return tuple(structures)


@dataclass(frozen=True)
class RunningLevels:
    """Sums over the rows of complete batches, and the means and precisions of the machine."""

    entities: tuple[Structure, ...]
    columns: np.ndarray  # (D,), those that have occurred; positions below are among them
    mean: np.ndarray  # (D,), subtracted from the columns
    scale: np.ndarray  # (D,), by which they were multiplied
    table: np.ndarray  # (D, K), means of the levels, K = rank + 1
    # The patterns of all entities, one entity after the other, as sparse rows of these columns.
    data: np.ndarray  # (entries,)
    indices: np.ndarray  # (entries,)
    indptr: np.ndarray  # (P + 1,)
    counts: np.ndarray  # (E,), patterns of each entity
    G: np.ndarray  # (K(K + 1)/2, P), upper triangles
    h: np.ndarray  # (K, P)
    rests: np.ndarray  # (E,)
    means: np.ndarray  # (groups, K)
    shapes: np.ndarray  # (groups,), of the gamma distributions of precisions
    rates: np.ndarray  # (groups, K)
    signs: np.ndarray  # (k,)
    noise_shape: float
    noise_rate: float
    intercept: float  # in units of the target below
    target_mean: float
    target_scale: float
    weight: float  # of all rows, in the units in which they were counted
    share: float  # by which given weights are multiplied to count rows
    error: float  # the mean squared error of working targets
    penalties: tuple[float, float]  # of w and M, equivalent to the precisions
    beside: RunningSlopes | None = None  # of columns that follow no field
    calibration: tuple[float, float] = (0.0, 1.0)  # of log-odds: shift and slope

    @property
    def noise(self) -> float:
        """Return the standard deviation of the noise, in the target's units."""
        return self.target_scale * float(np.sqrt(self.noise_rate / self.noise_shape))

    @property
    def patterns(self) -> csr_matrix:
        """Return the patterns of all entities."""
        shape = (len(self.indptr) - 1, len(self.columns))
        return csr_matrix((self.data, self.indices, self.indptr), shape=shape)

    @property
    def places(self) -> np.ndarray:
        """Return the columns of the model; those that follow no field come last."""
        return self.columns if self.beside is None else np.append(self.columns, self.beside.columns)

    def fields_among(self, fields: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the positions of the levels of each field."""
        return positions(self.columns, fields)

    def layout(self, fields: Sequence[np.ndarray]) -> Layout:
        """Return which positions are levels of which field and columns of which entity."""
        among = self.fields_among(fields)
        parts = [
            np.concatenate(
                [*(among[i] for i in e.fields), *positions(self.columns, [np.array(e.followers)])]
            )
            for e in self.entities
        ]
        return Layout(tuple(among), tuple(part.astype(int) for part in parts))

    def coefficients(self, fields: Sequence[np.ndarray]) -> tuple[float, np.ndarray]:
        """Return b and the table of (w, v) for the user's `places`, then the means of fields."""
        units = np.full(self.table.shape[1], np.sqrt(self.target_scale))
        units[0] = self.target_scale
        unseen, first = np.empty((len(fields), len(units))), 0
        for entity in self.entities:
            unseen[list(entity.fields)] = self.means[first : first + len(entity.fields)]
            first += len(entity.fields) + 1  # the last group is that of its followers
        table = np.concatenate([self.table, unseen]) * units
        b = self.target_mean + self.target_scale * self.intercept
        b, table = Calibration(*self.calibration).of(b, table)
        table = in_raw_columns(table, self.layout(fields), self.mean, self.scale)
        if (beside := self.beside) is None:
            return b, table
        lines = np.zeros((len(beside.slopes), table.shape[1]))
        lines[:, 0] = beside.slopes * beside.scale
        return b - float(lines[:, 0] @ beside.mean), np.insert(
            table, len(self.table), lines, axis=0
        )

    def moved(self, places: np.ndarray) -> "RunningLevels":
        """Return the same levels after each column of the rows has moved to a new place."""
        entities = tuple(
            e._replace(followers=tuple(int(places[j]) for j in e.followers)) for e in self.entities
        )
        beside = self.beside
        if beside is not None:
            beside = beside._replace(columns=places[beside.columns])
        return replace(self, entities=entities, columns=places[self.columns], beside=beside)

    def problem(self, d: int, fields: Sequence[np.ndarray]) -> str | None:
        """Return what is invalid in values read from a file; None if nothing is."""
        D, K, P = len(self.columns), self.table.shape[1], self.h.shape[1]
        numbers = sorted(number for entity in self.entities for number in entity.fields)
        followers = [j for entity in self.entities for j in entity.followers]
        places = (self.columns, self.indices, self.indptr, self.counts)
        if any(array.dtype.kind != "i" for array in places):
            return "the type of the columns of a machine"
        if not all(e.fields for e in self.entities) or numbers != list(range(len(fields))):
            return "the fields of a machine"
        groups = sum(len(entity.fields) + 1 for entity in self.entities)
        sizes = (len(self.signs), len(self.G), len(self.indptr), len(self.counts), len(self.means))
        if sizes != (K - 1, K * (K + 1) // 2, P + 1, len(self.entities), groups) or not D:
            return "the sizes of a machine"
        inside = bool((self.columns >= 0).all() and (self.columns < d).all())
        if not inside or len(np.unique(self.columns)) < D or not set(followers) <= {*self.columns}:
            return "the columns of a machine"
        steps = np.diff(self.indptr)
        among = bool((self.indices >= 0).all() and (self.indices < D).all())
        ends = self.indptr[0] == 0 and self.indptr[-1] == len(self.indices)
        if not (among and ends and (steps >= 0).all() and (self.counts > 0).all()):
            return "the patterns of a machine"
        if self.counts.sum() != P or not np.isin(self.signs, (-1, 1)).all():
            return "the patterns of a machine"
        if not self._have_levels(fields):
            return "the levels of a machine"
        positive = (self.scale, self.shapes, self.rates, np.array(self._sizes), self.G[0])
        if not all((a > 1 / LARGEST).all() for a in positive) or min(self.penalties) < 0:
            return "the precisions of a machine"
        shift, slope = self.calibration
        if not (abs(shift) < LARGEST and 0 < slope <= 1):
            return "the calibration of a machine"
        arrays = (self.mean, self.table, self.data, self.G, self.h, self.rests, self.means)
        numbers_of = (*arrays, *positive[:4], np.array([self.intercept, self.target_mean]))
        if not all((np.abs(a) < LARGEST).all() for a in numbers_of):
            return "the numbers of a machine"
        if self.beside is not None and self.beside.problem(d, self.columns):
            return "the slopes of a machine"
        return None if self._are_sums else "the sums of a machine"

    def _have_levels(self, fields: Sequence[np.ndarray]) -> bool:
        """Return whether each pattern has exactly one level of each field of its entity."""
        among, ends, X = self.fields_among(fields), np.cumsum(self.counts)[:-1], self.patterns
        parts = zip(self.entities, np.split(np.arange(X.shape[0]), ends), strict=True)
        return all(
            (levels.getnnz(axis=1) == 1).all() and (levels.data == 1).all()
            for entity, rows in parts
            for levels in (X[rows][:, among[number]] for number in entity.fields)
        )

    @property
    def _sizes(self) -> tuple[float, ...]:
        """Return the numbers that must be positive."""
        noise = self.noise_shape, self.noise_rate
        return (*noise, self.target_scale, self.weight, self.share)

    @property
    def _are_sums(self) -> bool:
        """Return whether G can be sums of squares."""
        i, j = np.triu_indices(self.table.shape[1])
        roots = np.sqrt(np.maximum(self.G[i == j], 0.0))
        return bool((np.abs(self.G) <= (1 + 1e-6) * roots[i] * roots[j]).all())


def positions(columns: np.ndarray, fields: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the positions of the columns of each field among some columns."""
    return [np.flatnonzero(np.isin(columns, field)) for field in fields]


# The shapes of arrays in files: a letter means the same number in all of them.
LEVEL_SHAPES: dict[type, dict[str, str]] = {
    RunningLevels: {
        **dict.fromkeys(("columns", "mean", "scale"), "D"),
        **dict.fromkeys(("data", "indices"), "N"),
        **dict.fromkeys(("counts", "rests"), "E"),
        **dict.fromkeys(("means", "rates"), "GK"),
        "table": "DK",
        "indptr": "Q",
        "G": "TP",
        "h": "KP",
        "shapes": "G",
        "signs": "R",
    },
    RunningSlopes: {
        **dict.fromkeys(("columns", "mean", "scale", "slopes", "score"), "V"),
        "gram": "VV",
    },
}
