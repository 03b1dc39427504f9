"""Pairs of users and items that are left out of recommendations: by position, or by their ids."""

from collections.abc import Sequence
from typing import Any

import narwhals as nw
import numpy as np

from quadlin.data.encoder import TableEncoder, label_of, labels_of
from quadlin.data.names import shortened

SIDES = ("user_rows", "item_rows")
ROW = "quadlin row"  # the name of a column of positions
Frame = nw.DataFrame[Any]


def keys_of(frame: Frame, names: Sequence[Any]) -> list[tuple[str, ...]]:
    """Return what each row has in some columns, as text."""
    columns = [frame.get_column(name) for name in names]
    values = [
        labels_of(column.to_numpy())
        if column.dtype.is_integer() and not column.null_count()
        else [label_of(value) for value in column.to_list()]
        for column in columns
    ]
    return list(zip(*values, strict=True))


def matches(
    pairs: Frame, frames: tuple[Frame, Frame] | None, encoder: TableEncoder | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of users and items that have the ids of a pair."""
    if frames is None:
        raise ValueError(
            "exclude is a frame, but user_rows and item_rows are arrays: give two columns of "
            "positions, those of users and those of items."
        )
    ids = [_ids(frame, pairs, side, encoder) for frame, side in zip(frames, SIDES, strict=True)]
    sides = [
        frame.with_row_index(ROW).select([ROW, *its])
        for frame, its in zip(frames, ids, strict=True)
    ]
    # Most pairs are of other users: the frames' library compares what has the same dtype.
    pairs = _within(pairs, sides[0], ids[0])
    sides = [_within(side, pairs, its) for side, its in zip(sides, ids, strict=True)]
    rows = []
    for side, its in zip(sides, ids, strict=True):
        at: dict[tuple[str, ...], list[int]] = {}
        for i, key in zip(side.get_column(ROW).to_list(), keys_of(side, its), strict=True):
            at.setdefault(key, []).append(i)
        rows.append(at)
    keys = zip(*(keys_of(pairs, its) for its in ids), strict=True)
    both = {
        (u, i) for user, item in keys for u in rows[0].get(user, ()) for i in rows[1].get(item, ())
    }
    ordered = np.array(sorted(both), dtype=np.intp).reshape(-1, 2)
    return ordered[:, 0], ordered[:, 1]


def _within(rows: Frame, others: Frame, names: list[Any]) -> Frame:
    """Return the rows whose values may also be those of other rows."""
    for name in names:
        values, known = rows.get_column(name), others.get_column(name)
        plain = values.dtype == known.dtype and values.dtype not in (nw.List, nw.Object)
        if plain and not known.null_count():
            rows = rows.filter(values.is_in(known.unique().to_list()))
    return rows


def _ids(frame: Frame, pairs: Frame, side: str, encoder: TableEncoder | None) -> list[Any]:
    """Return those of the shared columns that identify the rows of a side.

    These are categories, as many as are needed: an age or genres may have changed since, and do not
    make another user or item.
    """
    names = [name for name in frame.columns if name in pairs.columns]
    if not names:
        raise ValueError(
            f"`exclude` has no column in common with {side}: it has "
            f"{shortened(pairs.columns)}, and {side} {shortened(frame.columns)}."
        )
    levels = {} if encoder is None else dict(zip(encoder.input_names, encoder.levels, strict=True))
    size = {name: len(its) for name in names if (its := levels.get(str(name))) is not None}
    if len(size) == 1:
        return list(size)
    ids: list[Any] = []
    distinct = 0
    for name in sorted(size, key=lambda name: -size[name]):
        count = len(frame.select([*ids, name]).unique())
        if count > distinct:
            ids, distinct = [*ids, name], count
    return ids or names


def positions(pairs: Any, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return positions of users and items that were given, if they exist."""
    pairs = np.asarray(pairs)
    if pairs.size == 0:
        return np.empty(0, dtype=np.intp), np.empty(0, dtype=np.intp)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        raise ValueError(
            "exclude must be a frame with columns of user_rows and of item_rows, or whole numbers "
            f"in two columns, the positions of users and items; it has shape {pairs.shape} and "
            f"dtype {pairs.dtype}."
        )
    if (pairs < 0).any() or (pairs >= shape).any():
        raise ValueError(
            f"exclude has positions from {pairs.min()} to {pairs.max()}, but there are {shape[0]} "
            f"users and {shape[1]} items, numbered from 0."
        )
    return pairs[:, 0], pairs[:, 1]
