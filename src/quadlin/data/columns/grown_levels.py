"""Encoders that learn more levels, and the positions of their old columns among the new ones."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quadlin.data.columns.columns import missing_in
from quadlin.data.columns.encoder import TableEncoder
from quadlin.data.columns.level_codes import MISSING_LEVEL, Levels, common_kind, filtered, kind_of
from quadlin.data.columns.levels import keyed_levels


def with_levels_of(encoder: TableEncoder, rows: Any) -> TableEncoder:
    """Return an encoder that also has the levels of these rows.

    Examples
    --------
    >>> import polars as pl
    >>> encoder = TableEncoder.learn(pl.DataFrame({"city": ["Rome", "Oslo"] * 2}))
    >>> with_levels_of(encoder, pl.DataFrame({"city": ["Paris", "Rome"]})).names
    ('city=Oslo', 'city=Paris', 'city=Rome')
    """
    labels: list[Collection[str]] = []
    kinds: list[str | None] = []
    for values, levels in zip(encoder.columns_of(rows), encoder.levels, strict=True):
        kind, new = None, set[str]()
        if levels is not None and len(there := filtered(values, ~missing_in(values))):
            kind, new = kind_of(there), {label for _, label in keyed_levels(there)}
        labels.append(new)
        kinds.append(kind)
    return _merged(encoder, labels, kinds)


def joint(encoder: TableEncoder, other: TableEncoder) -> TableEncoder:
    """Return an encoder with the levels of two encoders of the same columns."""
    kinds = other.kinds or (None,) * len(other.levels)
    return _merged(encoder, [levels or () for levels in other.levels], kinds)


def places(encoder: TableEncoder, grown: TableEncoder) -> np.ndarray:
    """Return the positions of an encoder's output columns in an encoder with more levels."""
    position = {name: place for place, name in enumerate(grown.names)}
    return np.array([position[name] for name in encoder.names], dtype=np.int64)


def _merged(
    encoder: TableEncoder, more: Sequence[Collection[str]], kinds: Sequence[str | None]
) -> TableEncoder:
    old_kinds = encoder.kinds or (None,) * len(encoder.levels)
    levels: list[Levels | None] = []
    merged: list[str | None] = []
    for old, labels, kind, new_kind in zip(encoder.levels, more, old_kinds, kinds, strict=True):
        new = set(labels).difference(old or ())
        levels.append(old)
        merged.append(common_kind({kind, new_kind}) if new else kind)
        if old is None or not new:
            continue
        levels[-1] = {label: i for i, label in enumerate(_ordered(old, new, merged[-1]))}
    if all(new is old for new, old in zip(levels, encoder.levels, strict=True)):
        return encoder
    return replace(encoder, levels=tuple(levels), kinds=tuple(merged) if any(merged) else ())


def _ordered(old: Levels, new: set[str], kind: str | None) -> list[str]:
    """Return all labels, sorted as numbers or text; new ones come last if the old are unsorted."""
    is_number = kind is not None and np.dtype(kind).kind in "iuf"
    key: Any = float if is_number else str
    absent = [MISSING_LEVEL] if is_number and MISSING_LEVEL in old else []
    labels = [label for label in old if label not in absent]
    keys = [key(label) for label in labels]
    if keys != sorted(keys):
        return [*old, *sorted(new)]
    return [*sorted([*labels, *sorted(new)], key=key), *absent]
