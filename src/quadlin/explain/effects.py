r"""A model taken apart: a baseline, what each column adds alone, and what each pair adds.

With d = z − z₀ the distance of a row from the reference, and columns c, e with features of their
own, the model is exactly

.. math:: f(x) = f_0 + \sum_c a_c(x) + \sum_{c < e} 2\, d_c^\top M_{ce}\, d_e, \qquad
          a_c(x) = g_c^\top d_c + d_c^\top M_{cc}\, d_c, \qquad g = w + 2 M z_0

where the square of a column of numbers belongs to the column itself. Of a one-hot field one feature
is 1 and the others are 0, so that :math:`M_{cc}` is part of w, and :math:`a_c` is linear, the
effect of a level. With M = U diag(s) Uᵀ a pair is :math:`2 \langle P_c, P_e \rangle_s` with
:math:`P_c = U_c^\top d_c`, so that a row costs O(kd) but for the pairs themselves.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple

import narwhals as nw
import numpy as np
from scipy.sparse import eye_array, issparse

from quadlin.core.arrays import to_numpy
from quadlin.core.sums import ELEMENTS
from quadlin.data.columns import UNSEEN, TableEncoder, level_codes, values_of
from quadlin.data.names import position_of, shortened
from quadlin.explain.tables import (
    ROUNDING,
    SHOWN,
    Records,
    columns_of,
    frame_of,
    product_name,
    text_table,
)
from quadlin.solve.fits.fit_state import FitState

MOST_COLUMNS = 1000  # whose pairs are all looked at: half a million
INDEPENDENT = "rows like those fitted, if the columns were independent"
OTHER_PAIRS = "other pairs"
ZERO = object()  # the value of a column whose features are all zero
ENDS = "_=:.- /"  # what may stand between the name of a column and the name of a level
MEAN = "the mean of the fitted rows"


class WholeColumn(NamedTuple):
    """A column as it was given: one feature, or the levels of a text column or one-hot group."""

    name: str
    features: np.ndarray  # positions
    levels: tuple[str, ...] | None  # None for a column of numbers

    def values_of(self, value: Any) -> np.ndarray:
        """Return the features of a value of the column: a number or a level."""
        if value is ZERO:
            return np.zeros(len(self.features))
        if self.levels is not None:
            if str(value) not in self.levels:
                raise ValueError(
                    f"{str(value)!r} is not a level of {self.name!r}. Its levels are "
                    f"{shortened(self.levels)}."
                )
            return np.array([float(level == str(value)) for level in self.levels])
        try:
            return np.array([float(value)])
        except (TypeError, ValueError):
            raise ValueError(
                f"{self.name!r} holds numbers, but its reference is {value!r}. Give a number."
            ) from None


def whole_columns(
    names: Sequence[str], fields: Sequence[np.ndarray], encoder: TableEncoder | None
) -> tuple[WholeColumn, ...]:
    """Gather the features of each field.

    Parameters
    ----------
    names : sequence of str
        Of the features.
    fields : sequence of arrays
        The positions of the features of each one-hot group.
    encoder : TableEncoder or None
        Of the text columns. Other groups are named after their features.

    Returns
    -------
    tuple of WholeColumn
        In the order of their first features.

    Examples
    --------
    >>> columns = whole_columns(["age", "city_Oslo", "city_Rome"], [np.array([1, 2])], None)
    >>> [(column.name, column.levels) for column in columns]
    [('age', None), ('city', ('Oslo', 'Rome'))]
    """
    groups = list(fields) if encoder is None else list(encoder.text.values())
    grouped = {int(j) for group in groups for j in group}
    columns = [
        WholeColumn(str(name), np.array([j]), None)
        for j, name in enumerate(names)
        if j not in grouped
    ]
    if encoder is not None:
        for name, features in encoder.text.items():
            labels = tuple(str(names[j])[len(name) + 1 :] for j in features)
            columns.append(WholeColumn(name, np.asarray(features), labels))
    else:
        taken = {column.name for column in columns}
        columns += [
            _group([str(names[j]) for j in field], np.asarray(field), taken) for field in fields
        ]
    return tuple(sorted(columns, key=lambda column: int(column.features[0])))


def _group(names: list[str], field: np.ndarray, taken: set[str]) -> WholeColumn:
    """Name a one-hot group by what the names of its features begin with, if that is a name."""
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    start = "".join(letters[0] for letters in same)
    start = start[: max(start.rfind(end) for end in ENDS) + 1]
    name = start.rstrip(ENDS)
    if not name or name in taken:
        return WholeColumn(f"{names[0]} … {names[-1]}", field, tuple(names))
    taken.add(name)
    return WholeColumn(name, field, tuple(level[len(start) :] for level in names))


def column_values(X: Any, column: WholeColumn) -> np.ndarray:
    """Return the numbers of a column, or the positions of its levels (negative for others).

    Parameters
    ----------
    X : frame, array or sparse matrix
        Rows in memory.
    column : WholeColumn
        The column.

    Returns
    -------
    array (n_rows,)

    Examples
    --------
    >>> import polars as pl
    >>> city = WholeColumn("city", np.array([0, 1]), ("Oslo", "Rome"))
    >>> column_values(pl.DataFrame({"city": ["Rome", "Oslo", "Bonn"]}), city)
    array([ 1,  0, -1])
    """
    table = nw.from_native(X, eager_only=True, pass_through=True)
    if isinstance(table, nw.DataFrame):
        names = {str(name): name for name in table.columns}
        if column.name in names:
            values = table.get_column(names[column.name])
            if column.levels is None:
                return np.asarray(values.to_numpy(), dtype=float)
            place = {level: i for i, level in enumerate(column.levels)}
            return level_codes(values_of(values), place)
        X = table.to_numpy()
    part = X[:, column.features]
    part = part.toarray() if issparse(part) else to_numpy(part)
    if column.levels is None:
        return np.asarray(part[:, 0], dtype=float)
    return np.where((part != 0).any(axis=1), part.argmax(axis=1), UNSEEN)


def value_pairs(X: Any, first: WholeColumn, second: WholeColumn) -> np.ndarray:
    """Return the values of two columns in each row (n, 2)."""
    return np.column_stack([column_values(X, column) for column in (first, second)])


@dataclass(frozen=True)
class Decomposition:
    """The model in standardised units of the features and the user's units of y."""

    columns: tuple[WholeColumn, ...]
    mean: np.ndarray  # (d,), with `scale` and `rest` as in `Units`
    scale: np.ndarray  # (d,)
    rest: np.ndarray  # (d,)
    U: np.ndarray  # (d, k)
    s: np.ndarray  # (k,)
    w: np.ndarray  # (d,), with what products within a field come to
    squares: np.ndarray  # (d,), the diagonal of U diag(s) Uᵀ where it is modelled, otherwise 0
    left_out: np.ndarray  # (d,), the diagonal of U diag(s) Uᵀ where it is not modelled, otherwise 0
    constant: float
    seen: tuple[np.ndarray, np.ndarray]  # (d,) each, the least and largest values of features
    z: np.ndarray  # (d,), the reference, standardised
    reference: str = MEAN  # in words

    @classmethod
    def of(cls, state: FitState, columns: Sequence[WholeColumn]) -> "Decomposition":
        """Return the decomposition of a fitted model, measured from the mean of its rows."""
        model, units, y = state.model, state.units, state.units.target.scale
        given = (units.mean, units.scale, units.rest, units.free, model.U, model.s, model.w)
        mean, scale, rest, free, U, s, w = (to_numpy(a).astype(np.float64) for a in given)
        s, w, nu = y * s, y * w, mean * scale + rest
        m = (U * U) @ s
        squares, left_out = free * m, (1 - free) * m
        constant = units.target.mean + y * float(model.c) - float(squares.sum())
        for column in columns:
            if column.levels is not None:  # one of z + ν is `scale`, the others are 0
                c = column.features
                within = U[c] @ (s * (nu[c] @ U[c])) - left_out[c] * nu[c]  # M_cc ν_c
                linear = scale[c] * squares[c] - 2 * within
                w[c] += linear
                constant += float(nu[c] @ (linear + within))
        ends = state.features.low, state.features.high
        seen = (to_numpy(ends[0]).astype(np.float64), to_numpy(ends[1]).astype(np.float64))
        parts = (mean, scale, rest, U, s, w, squares, left_out, constant, seen)
        return cls(tuple(columns), *parts, z=np.zeros(len(w)))

    def measured_from(self, reference: Any) -> "Decomposition":
        """Return the same model measured from somewhere else.

        Parameters
        ----------
        reference : "mean", "zero" or mapping
            The mean of the fitted rows, zero in every column, or values of columns, with all
            others at the mean.
        """
        if isinstance(reference, str) and reference == "mean":
            return self
        names = [column.name for column in self.columns]
        if isinstance(reference, str) and reference == "zero":
            reference, words = dict.fromkeys(names, ZERO), "zero in every column"
        elif isinstance(reference, Mapping):
            values = ", ".join(f"{name}={value}" for name, value in reference.items())
            words = f"{values}, and from {MEAN} elsewhere"
        else:
            raise ValueError(
                f'reference={reference!r} must be "mean", "zero" or a mapping of columns '
                "to values, such as {'city': 'Oslo'}."
            )
        z = np.zeros(len(self.w))
        for name, value in reference.items():
            column = self.columns[position_of(names, str(name))]
            z[column.features] = self._standardised(column.values_of(value), column.features)
        return replace(self, z=z, reference=words)

    @cached_property
    def fields(self) -> list[int]:
        """Return the numbers of the columns that are one-hot fields."""
        return [i for i, column in enumerate(self.columns) if column.levels is not None]

    @cached_property
    def numbers(self) -> list[int]:
        """Return the numbers of the columns that hold numbers."""
        return [i for i, column in enumerate(self.columns) if column.levels is None]

    @cached_property
    def single(self) -> np.ndarray:
        """Return the features of the columns that hold numbers."""
        return np.array([self.columns[i].features[0] for i in self.numbers], dtype=int)

    @cached_property
    def slope(self) -> np.ndarray:
        """Return g = w + 2 M z₀ (d,), M without its blocks within fields."""
        Mz = self.U @ (self.s * (self.z @ self.U))
        Mz[self.single] -= (self.left_out * self.z)[self.single]
        for number in self.fields:
            c = self.columns[number].features
            Mz[c] -= self.U[c] @ (self.s * (self.z[c] @ self.U[c]))
        return np.asarray(self.w + 2 * Mz)

    @cached_property
    def baseline(self) -> float:
        """Return f₀, the prediction at the reference."""
        return float(self.constant + self.z @ (self.w + self.slope) / 2)

    def blocks(self, X: Any) -> Iterator["RowParts"]:
        """Yield the parts of rows of features, some rows at a time."""
        step = max(1, ELEMENTS // max(1, len(self.columns) * (1 + len(self.s))))
        for start in range(0, X.shape[0], step):
            yield self.parts(X[start : start + step])

    def parts(self, X: Any) -> "RowParts":
        """Return what rows of features (n, d), dense or sparse, are taken apart into."""
        X = X.tocsc() if issparse(X) else to_numpy(X)
        alone, of_fields = np.empty((X.shape[0], len(self.columns))), {}
        d, alone[:, self.numbers] = self._along_numbers(X[:, self.single], self.single)
        for number in self.fields:
            alone[:, number], of_fields[number] = self._along_field(
                number, X[:, self.columns[number].features]
            )
        return RowParts(self, alone, d, of_fields)

    def along(self, number: int, x: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return a_c (n,) and P_c (n, k) of one column, given its features (n, width)."""
        if number in self.fields:
            return self._along_field(number, x)
        c = self.columns[number].features
        d, alone = self._along_numbers(x, c)
        return alone[:, 0], d * self.U[c]

    def _along_numbers(self, x: Any, j: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return d and a_c (n, width) of some columns of numbers, given their features."""
        d = self._standardised(x.toarray() if issparse(x) else x, j) - self.z[j]
        return d, d * (self.slope[j] + self.squares[j] * d)

    def _along_field(self, number: int, x: Any) -> tuple[np.ndarray, np.ndarray]:
        c = self.columns[number].features
        nu = (self.mean * self.scale + self.rest + self.z)[c]
        Y = x.multiply(self.scale[c]).tocsr() if issparse(x) else x * self.scale[c]
        P, YY = Y @ self.U[c], Y.multiply(Y).tocsr() if issparse(Y) else Y * Y
        alone = (Y @ self.slope[c] - nu @ self.slope[c]) + (
            # Only in rows that have several levels, or shares of them, this is not zero.
            P**2 @ self.s - YY @ self.left_out[c] - Y @ (self.scale * self.squares)[c]
        )
        return alone, P - nu @ self.U[c]

    def _standardised(self, x: np.ndarray, j: np.ndarray) -> np.ndarray:
        return np.asarray((x - self.mean[j]) * self.scale[j] - self.rest[j])

    def level_effects(self, number: int) -> np.ndarray:
        """Return what each level of a field adds alone."""
        return self.along(number, eye_array(len(self.columns[number].features), format="csr"))[0]


@dataclass(frozen=True)
class RowParts:
    """Some rows, taken apart."""

    model: Decomposition
    alone: np.ndarray  # (n, columns), a_c
    d: np.ndarray  # (n, columns of numbers), the distance from the reference: P_c = d_c U_c
    of_fields: dict[int, np.ndarray]  # by column: P_c (n, k)

    @cached_property
    def halves(self) -> np.ndarray:
        """Return half of all pairs of each column (n, columns), in O(kd) per row."""
        U, s = self.model.U[self.model.single], self.model.s
        total, halves = self.d @ U + sum(self.of_fields.values()), np.empty_like(self.alone)
        halves[:, self.model.numbers] = self.d * ((total * s) @ U.T - self.d * ((U * U) @ s))
        for number, P in self.of_fields.items():
            halves[:, number] = (P * (total - P)) @ s
        return halves

    def pair(self, first: int, second: int) -> np.ndarray:
        """Return what two columns add together (n,)."""
        return np.asarray(2 * (self._P(first) * self._P(second)) @ self.model.s)

    def _P(self, number: int) -> np.ndarray:
        if number in self.of_fields:
            return self.of_fields[number]
        at = self.model.numbers.index(number)
        return np.asarray(self.d[:, [at]] * self.model.U[self.model.single[at]])

    def pair_sums(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the sums over rows of every pair and of its square, (columns, columns) each."""
        U, s, numbers, d = self.model.U[self.model.single], self.model.s, self.model.numbers, self.d
        sums, squares = np.zeros((2, *self.alone.shape[1:] * 2))
        A, block = 2 * (U * s) @ U.T, np.ix_(numbers, numbers)
        sums[block], squares[block] = A * (d.T @ d), A**2 * ((d**2).T @ d**2)
        for i, P in self.of_fields.items():
            values = np.empty_like(self.alone)
            values[:, numbers] = 2 * d * ((P * s) @ U.T)
            for j, other in self.of_fields.items():
                values[:, j] = 2 * (P * other) @ s
            sums[i] = sums[:, i] = values.sum(axis=0)
            squares[i] = squares[:, i] = np.sum(values**2, axis=0)
        np.fill_diagonal(sums, 0.0)
        np.fill_diagonal(squares, 0.0)
        return sums, squares


class Effect(NamedTuple):
    """A column, or a pair of columns, and how much it moves the prediction."""

    first: str
    second: str | None  # None for a column alone
    strength: float  # standard deviation over rows of what it contributes, in units of y

    @property
    def name(self) -> str:
        """Return the name of the column or of the pair."""
        return self.first if self.second is None else product_name(self.first, self.second)


class LevelEffect(NamedTuple):
    """What a level of a text column adds alone."""

    column: str
    level: str
    effect: float  # in units of y, measured from the reference
    share: float  # of the fitted rows

    @property
    def name(self) -> str:
        """Return the name of the level with its column."""
        return f"{self.column}={self.level}"


@dataclass(frozen=True, repr=False)
class Effects(Records[Effect]):
    """How much each column and each pair of columns moves the prediction; columns come first.

    The strength of a column, or of a pair of columns, is the standard deviation over rows of what
    it contributes to the prediction, as `contributions` returns it.

    Attributes
    ----------
    columns : list of Effect
        Each column alone, strongest first.
    pairs : list of Effect
        Each pair of columns, strongest first.
    levels : list of LevelEffect
        What each level of the text columns adds alone, measured from the reference.
    reference : str
        Where contributions are measured from, in words.
    rows : str
        Which rows the standard deviations are of, in words.
    table : array (n_columns, n_columns)
        The strength of each pair, and of each column alone on the diagonal, in the order of X.
    """

    columns: list[Effect]
    pairs: list[Effect]
    levels: list[LevelEffect]
    reference: str
    rows: str
    table: np.ndarray

    @property
    def records(self) -> list[Effect]:
        """Return the columns, and the pairs."""
        return [*self.columns, *self.pairs]

    def to_frame(self) -> Any:
        """Return columns and pairs as a pandas frame, or as a dict of columns without pandas.

        `second` is an empty text for a column alone.
        """
        return frame_of(columns_of([e._replace(second=e.second or "") for e in self], Effect))

    def strongest_levels(self, top: int) -> list[LevelEffect]:
        """Return some levels by falling effect."""
        return sorted(self.levels, key=lambda level: -abs(level.effect))[:top]

    def __str__(self) -> str:
        lines = [
            "How much columns move the prediction: the standard deviation, over",
            f"{self.rows}, of what they contribute,",
            f"measured from {self.reference}.",
        ]
        for heading, effects in (("column alone", self.columns), ("pair", self.pairs)):
            rows = [[e.name, f"{e.strength:.4g}"] for e in effects[:SHOWN]]
            lines += ["", *text_table([heading, "strength"], rows)] if rows else []
            more = len(effects) - SHOWN
            lines += [f"and {more:,} more"] if more > 0 else []
        if self.levels:
            rows = [
                [e.name, f"{e.effect:+.4g}", f"{e.share:.1%}"] for e in self.strongest_levels(SHOWN)
            ]
            lines += ["", *text_table(["level", "effect", "of rows"], rows)]
            lines += [f"Effects of levels are measured from {self.reference}."]
        return "\n".join(lines)


def effects_of(model: Decomposition, state: FitState, blocks: Iterable[Any] | None) -> Effects:
    """Measure a model over blocks of rows, or over independent columns without rows.

    Cost: O(nk·columns + n·columns²) with rows, O(k²·columns²) without.
    """
    _refuse_many(model, "Use interactions_.top() for the strongest pairs.")
    if blocks is None:
        table, rows = independent_strengths(model, state), INDEPENDENT
    else:
        table, count = measured_strengths(model, blocks)
        rows = f"the {count:,} rows given"
    table = np.maximum(table, table.T)  # whose rounding may differ
    names, alone = [column.name for column in model.columns], np.diag(table)
    i, j = np.triu_indices(len(names), 1)
    pairs = np.argsort(-table[i, j], kind="stable")
    pairs = pairs[table[i, j][pairs] > ROUNDING * table.max(initial=0.0)]
    shares = to_numpy(state.features.mean)
    levels = []
    for n in model.fields:
        column = model.columns[n]
        parts = zip(column.levels or (), model.level_effects(n), column.features, strict=True)
        levels += [
            LevelEffect(column.name, level, float(effect), float(shares[feature]))
            for level, effect, feature in parts
        ]
    return Effects(
        [Effect(names[c], None, float(alone[c])) for c in np.argsort(-alone, kind="stable")],
        [
            Effect(names[a], names[b], float(table[a, b]))
            for a, b in zip(i[pairs], j[pairs], strict=True)
        ],
        levels,
        model.reference,
        rows,
        table,
    )


def measured_strengths(model: Decomposition, blocks: Iterable[Any]) -> tuple[np.ndarray, int]:
    """Return the deviations over rows of pairs, and of columns on the diagonal, and the rows."""
    # Deviations from the first row, so that a large mean does not round the variance away.
    start: np.ndarray | None = None
    total, squares = np.zeros((2, len(model.columns), len(model.columns)))
    count = 0
    for X in blocks:
        for parts in model.blocks(X):
            start = parts.alone[0].copy() if start is None else start
            centred = parts.alone - start
            sums, sums_of_squares = parts.pair_sums()
            total = total + sums + np.diag(centred.sum(axis=0))
            squares = squares + sums_of_squares + np.diag(np.sum(centred**2, axis=0))
            count += len(centred)
    if not count:
        raise ValueError("Effects need at least one row.")
    return np.sqrt(np.maximum(squares / count - (total / count) ** 2, 0.0)), count


def independent_strengths(model: Decomposition, state: FitState) -> np.ndarray:
    r"""Return the deviations of pairs, and of columns on the diagonal, if columns were independent.

    The variance of a pair is then :math:`4\,\mathrm{tr}\,K_c S K_e S` with
    :math:`K_c = U_c^\top \mathrm{cov}(z_c)\, U_c`.
    """
    k, G = len(model.s), len(model.columns)
    alone, K = np.zeros(G), np.zeros((G, k, k))
    kappa, phi, share = (
        to_numpy(a).astype(np.float64)
        for a in (state.units.kappa, state.units.phi, state.features.mean)
    )
    j = model.single
    g, square, U, varies = model.slope[j], model.squares[j], model.U[j], model.scale[j] > 0
    variance = g**2 + 2 * g * square * kappa[j] + square**2 * (phi[j] - 1)
    alone[model.numbers] = variance * varies
    K[model.numbers] = U[:, :, None] * U[:, None, :] * varies[:, None, None]
    for number in model.fields:
        c = model.columns[number].features
        effect, p = model.level_effects(number), share[c]
        alone[number] = p @ effect**2 - (p @ effect) ** 2
        V = model.scale[c, None] * model.U[c]
        K[number] = (V * p[:, None]).T @ V - np.outer(p @ V, p @ V)
    KS = K * model.s
    table = 4 * KS.reshape(G, -1) @ KS.swapaxes(1, 2).reshape(G, -1).T
    np.fill_diagonal(table, alone)
    return np.asarray(np.sqrt(np.maximum(table, 0.0)))


@dataclass(frozen=True, repr=False)
class Contributions:
    """What each part of a model adds to the predictions of some rows.

    `baseline` + the sum of a row of `columns` + the sum of that row of `pairs` is its prediction.

    Attributes
    ----------
    baseline : float
        The prediction at the reference, the same for all rows.
    columns : array (n_rows, n_columns)
        What each column adds alone; with ``pairs=False``, half of each of its pairs included.
    pairs : array (n_rows, n_pairs)
        What each pair of columns adds to what its columns add alone.
    column_names : list of str
        Names of the columns.
    pair_names : list of str
        Names of the pairs, such as ``age × city``; the last may be "other pairs".
    reference : str
        Where contributions are measured from, in words.
    index : index of the frame that was given, or None
        Names of the rows.
    """

    baseline: float
    columns: np.ndarray
    pairs: np.ndarray
    column_names: list[str]
    pair_names: list[str]
    reference: str
    index: Any = None

    @property
    def names(self) -> list[str]:
        """Return the names of all parts: the baseline, the columns and the pairs."""
        return ["baseline", *self.column_names, *self.pair_names]

    @property
    def values(self) -> np.ndarray:
        """Return all parts (n_rows, parts), in the order of `names`."""
        baseline = np.full((len(self.columns), 1), self.baseline)
        return np.concatenate([baseline, self.columns, self.pairs], axis=1)

    @property
    def prediction(self) -> np.ndarray:
        """Return the predictions: the sums over the parts."""
        return np.asarray(self.baseline + self.columns.sum(axis=1) + self.pairs.sum(axis=1))

    def to_frame(self) -> Any:
        """Return a pandas frame with a column per part, or a dict of columns without pandas."""
        values = self.values
        return frame_of({name: values[:, j] for j, name in enumerate(self.names)}, self.index)

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        n, columns = self.columns.shape
        return (
            f"<Contributions to {n:,} predictions: a baseline, {columns:,} columns and "
            f"{self.pairs.shape[1]:,} pairs, measured from {self.reference}>"
        )


def contributions_of(
    model: Decomposition,
    state: FitState,
    blocks: Iterable[Any],
    pairs: bool | int,
    index: Any = None,
) -> Contributions:
    """Take blocks of rows apart; see `SecondOrderRegressor.contributions`."""
    chosen = _chosen(model, state, pairs)
    names = [column.name for column in model.columns]
    pair_names = [product_name(names[i], names[j]) for i, j in chosen]
    if pairs is not False and len(chosen) < len(names) * (len(names) - 1) // 2:
        pair_names.append(OTHER_PAIRS)
    columns, products = [np.empty((0, len(names)))], [np.empty((0, len(pair_names)))]
    for X in blocks:
        for parts in model.blocks(X):
            together = [parts.pair(i, j) for i, j in chosen]
            if OTHER_PAIRS in pair_names:
                together.append(parts.halves.sum(axis=1) - sum(together))
            columns.append(parts.alone + parts.halves if pairs is False else parts.alone)
            products.append(np.reshape(together, (len(pair_names), len(parts.alone))).T)
    both = np.concatenate(columns), np.concatenate(products)
    return Contributions(model.baseline, *both, names, pair_names, model.reference, index)


def _chosen(model: Decomposition, state: FitState, pairs: bool | int) -> list[tuple[int, int]]:
    """Return the pairs that are told apart, in order of columns or strongest first."""
    if pairs is False:
        return []
    _refuse_many(model, "Use pairs=False for columns only.")
    i, j = np.triu_indices(len(model.columns), 1)
    order = np.arange(len(i))
    if pairs is not True:
        order = np.argsort(-independent_strengths(model, state)[i, j], kind="stable")[:pairs]
    return list(zip(i[order].tolist(), j[order].tolist(), strict=True))


def _refuse_many(model: Decomposition, advice: str) -> None:
    if len(model.columns) > MOST_COLUMNS:
        raise ValueError(
            f"There are {len(model.columns):,} columns, and tables of their pairs are made for at "
            f"most {MOST_COLUMNS:,}. {advice}"
        )
