"""Which rows are held out together: shuffled by their content, by groups, or as a splitter says."""

from collections.abc import Iterable, Iterator
from numbers import Integral
from typing import Any

import numpy as np
from scipy.sparse import issparse
from scipy.stats import rankdata
from sklearn.model_selection import GroupKFold, KFold, check_cv

from quadlin.core.arrays import Array, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.observations import row_hash, told_apart

FOLDS = 5
PROBES = 4  # projections of the rows by which neighbours are compared
ALIKE = 5.0  # standard errors of a correlation of neighbours that is not chance
FEWEST = 50  # rows whose order can say anything

Split = tuple[Any, Any]  # positions of training and test rows


def splits(
    cv: Any, given: tuple[Any, Any], chunk: Chunk, rows: Rows, groups: Any, seed: int
) -> Iterable[Split]:
    """Return the folds: `given` are X and y in the user's form, the others are all the rows."""
    shuffled = cv is None or (isinstance(cv, Integral) and not isinstance(cv, bool))
    if groups is None and shuffled:
        return _by_content(chunk, rows, cv, seed)
    if groups is not None:
        groups = np.asarray(groups)
        if len(groups) != chunk.X.shape[0]:
            raise ValueError(
                f"groups has {len(groups)} entries, but X has {chunk.X.shape[0]} rows."
            )
        if shuffled:
            n_groups = len(np.unique(groups))
            n_splits = min(FOLDS, n_groups) if cv is None else int(cv)
            if n_groups < 2:
                raise ValueError(
                    "groups has only one group, but there must be two to hold one out."
                )
            cv = GroupKFold(n_splits, shuffle=True, random_state=seed % 2**31)
        elif not hasattr(cv, "split"):
            raise ValueError("groups cannot be combined with a list of splits: give a splitter.")
    return check_cv(cv).split(*given, groups)  # type: ignore[no-any-return]


def is_shuffled(cv: Any, groups: Any) -> bool:
    """Tell whether the folds are the library's own."""
    return groups is None and (cv is None or isinstance(cv, Integral))


def _by_content(chunk: Chunk, rows: Rows, cv: int | None, seed: int) -> Iterator[Split]:
    """Yield folds of shuffled rows, whatever the order of the rows."""
    everyone = np.arange(chunk.X.shape[0])
    counting = everyone if chunk.weight is None else everyone[to_numpy(chunk.weight) > 0]
    n_splits = min(FOLDS, max(2, len(counting))) if cv is None else int(cv)
    KFold(n_splits).get_n_splits()  # refuses fewer than two
    if n_splits > len(everyone):
        raise ValueError(f"cv={n_splits} folds need as many rows; X has {len(everyone)}.")
    keys = told_apart(np.concatenate(rows.collect(row_keys, seed))[counting])
    order = counting[np.argsort(keys, kind="stable")]
    for test in np.array_split(order, n_splits):
        held = np.zeros(len(everyone), dtype=bool)
        held[test] = True
        yield everyone[~held], np.sort(test)


def row_keys(chunk: Chunk, seed: int) -> np.ndarray:
    """Return 64 pseudo-random bits for each row, by features and target.

    The products are summed row by row, never by a matrix product, whose rounding depends on where
    in a block a row stands.
    """
    q = np.random.default_rng(seed).standard_normal(chunk.X.shape[1] + 1)
    values = _projected(chunk.X, q[1:]) + q[0] * to_numpy(chunk.y).astype(np.float64)
    return row_hash((values + 0.0).view(np.uint64), seed % 2**32)


def _projected(X: Any, q: np.ndarray) -> np.ndarray:
    if issparse(X):
        return np.asarray(X.astype(np.float64) @ q)
    return np.asarray((to_numpy(X).astype(np.float64) * q).sum(axis=1))


def neighbours_are_alike(rows: Rows, y: Array, units: Units) -> bool:
    """Tell whether rows that follow each other resemble each other more than others do."""
    n, d = y.shape[0], units.scale.shape[0]
    if n < FEWEST:
        return False
    Q = units.array(np.random.default_rng(0).standard_normal((d, PROBES)))
    columns = [*np.concatenate(rows.collect(_probed, units, Q)).T, to_numpy(y)]
    return any(_lag_correlation(column) > ALIKE / np.sqrt(n) for column in columns)


def _probed(chunk: Chunk, units: Units, Q: Array) -> np.ndarray:
    return to_numpy(Block(chunk.X, units).matmul(Q))


def _lag_correlation(values: np.ndarray) -> float:
    """Return the rank correlation of neighbours, which extreme values hardly affect."""
    ranks = rankdata(values)
    ranks -= ranks.mean()
    return float(ranks[1:] @ ranks[:-1] / max(ranks @ ranks, 1e-300))
