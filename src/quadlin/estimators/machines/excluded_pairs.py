"""Pairs of users and items that are left out of recommendations: by position, or by their ids."""

from collections.abc import Sequence
from typing import Any

import narwhals as nw
import numpy as np

from quadlin.data.encoder import TableEncoder, label_of
from quadlin.data.names import shortened

SIDES = ("user_rows", "item_rows")
Frame = nw.DataFrame[Any]


def keys_of(frame: Frame, names: Sequence[Any]) -> list[tuple[str, ...]]:
    """Return what each row has in some columns, as text."""
    values = [[label_of(value) for value in frame.get_column(n).to_list()] for n in names]
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
    rows, keys = [], []
    for frame, side in zip(frames, SIDES, strict=True):
        common = [name for name in frame.columns if name in pairs.columns]
        if not common:
            raise ValueError(
                f"`exclude` has no column in common with {side}: it has "
                f"{shortened(pairs.columns)}, and {side} {shortened(frame.columns)}."
            )
        ids = _ids(frame, common, encoder)
        at: dict[tuple[str, ...], list[int]] = {}
        for i, key in enumerate(keys_of(frame, ids)):
            at.setdefault(key, []).append(i)
        rows.append(at)
        keys.append(keys_of(pairs, ids))
    both = {
        (u, i)
        for user, item in zip(*keys, strict=True)
        for u in rows[0].get(user, ())
        for i in rows[1].get(item, ())
    }
    ordered = np.array(sorted(both), dtype=np.intp).reshape(-1, 2)
    return ordered[:, 0], ordered[:, 1]


def _ids(frame: Frame, names: list[Any], encoder: TableEncoder | None) -> list[Any]:
    """Return those of some columns that identify the rows: categories, as many as are needed.

    An age or genres may have changed since, and do not make another user or item.
    """
    levels = {} if encoder is None else dict(zip(encoder.input_names, encoder.levels, strict=True))
    size = {name: len(its) for name in names if (its := levels.get(str(name))) is not None}
    ids: list[Any] = []
    distinct = 0
    for name in sorted(size, key=lambda name: -size[name]):
        count = len(set(keys_of(frame, [*ids, name])))
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
