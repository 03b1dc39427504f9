"""What the baseline, each column and each pair of columns add to the prediction of each row."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quadlin.explain.decomposition import Decomposition
from quadlin.explain.effects import independent_strengths
from quadlin.explain.tables import frame_of, product_name
from quadlin.solve.fits.fit_state import FitState

MOST = 2**27  # numbers of a table of contributions: 1 GB
OTHER_PAIRS = "other pairs"


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
        What each pair of columns adds beside what its columns add alone.
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
    bounds: tuple[float, float] | None = None,
) -> Contributions:
    """Take blocks of rows apart; see `SecondOrderRegressor.contributions`.

    Where a prediction is clipped to a bound, all parts are shrunk so that they add up to it.
    """
    chosen = _chosen(model, state, pairs)
    names = [column.name for column in model.columns]
    every = pairs is True or len(chosen) == len(names) * (len(names) - 1) // 2
    pair_names = [product_name(names[i], names[j]) for i, j in chosen]
    if pairs is not False and not every:
        pair_names.append(OTHER_PAIRS)
    columns, products, count = [], [], 0
    for X in blocks:
        count += X.shape[0]
        _refuse_too_large(count, len(names), len(pair_names))
        for parts in model.blocks(X):
            if pairs is False:
                columns.append(parts.alone + parts.halves)
                products.append(np.empty((len(parts.alone), 0)))
                continue
            columns.append(parts.alone)
            together = [parts.pair(i, j) for i, j in chosen]
            if not every:
                together.append(parts.halves.sum(axis=1) - sum(together))
            products.append(np.array(together).reshape(len(pair_names), -1).T)
    added = Contributions(
        model.baseline,
        np.concatenate(columns or [np.empty((0, len(names)))]),
        np.concatenate(products or [np.empty((0, len(pair_names)))]),
        names,
        pair_names,
        model.reference.words,
        index,
    )
    return added if bounds is None else _held(added, bounds)


def _held(parts: Contributions, bounds: tuple[float, float]) -> Contributions:
    added = parts.prediction - parts.baseline
    wanted = np.clip(parts.prediction, *bounds) - parts.baseline
    share = np.where(added == wanted, 1.0, wanted / np.where(added == 0, 1.0, added))[:, None]
    return replace(parts, columns=share * parts.columns, pairs=share * parts.pairs)


def _chosen(model: Decomposition, state: FitState, pairs: bool | int) -> list[tuple[int, int]]:
    """Return the pairs that are told apart, in order of columns or strongest first."""
    if pairs is False:
        return []
    G = len(model.columns)
    _refuse_too_large(1, G, G * (G - 1) // 2)
    i, j = np.triu_indices(G, 1)
    if pairs is True:
        return list(zip(i.tolist(), j.tolist(), strict=True))
    strength = independent_strengths(model, state)[1][i, j]
    order = np.argsort(-strength, kind="stable")[:pairs]
    return list(zip(i[order].tolist(), j[order].tolist(), strict=True))


def _refuse_too_large(rows: int, columns: int, pairs: int) -> None:
    if rows * (1 + columns + pairs) > MOST:
        raise ValueError(
            f"The contributions of {columns:,} columns and {pairs:,} pairs to "
            f"{rows:,} or more rows are too many numbers to keep. Give fewer rows, or "
            "use pairs=20 for the strongest pairs or pairs=False for columns only."
        )
