"""What columns and pairs of columns add to predictions: strengths, and the parts of each row."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.explain.decomposition import Decomposition
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
        """Return the sums over the parts, which are the predictions."""
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
