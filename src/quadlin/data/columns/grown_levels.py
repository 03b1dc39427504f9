"""Encoders that learn more levels, and where the columns of the old ones stand among the new."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quadlin.data.columns.columns import missing_in
from quadlin.data.columns.encoder import TableEncoder
from quadlin.data.columns.label_sets import LabelSets, labels_in
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
        if isinstance(levels, LabelSets):
            new = labels_in(values, levels.separator)[0]
        elif levels is not None and len(there := filtered(values, ~missing_in(values))):
            kind, new = kind_of(there), {label for _, label in keyed_levels(there)}
        labels.append(new)
        kinds.append(kind)
    return _merged(encoder, labels, kinds)


def joint(encoder: TableEncoder, other: TableEncoder) -> TableEncoder:
    """Return an encoder with the levels of two, whose columns are the same."""
    kinds = other.kinds or (None,) * len(other.levels)
    return _merged(encoder, [levels or () for levels in other.levels], kinds)


def places(encoder: TableEncoder, grown: TableEncoder) -> np.ndarray:
    """Return where the output columns of an encoder stand among those of one with more levels."""
    position = {name: place for place, name in enumerate(grown.names)}
    return np.array([position[name] for name in encoder.names], dtype=np.int64)


def _merged(
    encoder: TableEncoder, more: Sequence[Collection[str]], kinds: Sequence[str | None]
) -> TableEncoder:
    before = encoder.kinds or (None,) * len(encoder.levels)
    levels: list[Levels | None] = []
    of_levels: list[str | None] = []
    for old, labels, kind, new_kind in zip(encoder.levels, more, before, kinds, strict=True):
        new = set(labels).difference(old or ())
        levels.append(old)
        of_levels.append(common_kind({kind, new_kind}) if new else kind)
        if old is None or not new:
            continue
        ordered = _ordered(old, new, of_levels[-1])
        same = LabelSets(ordered, old.separator) if isinstance(old, LabelSets) else None
        levels[-1] = {label: i for i, label in enumerate(ordered)} if same is None else same
    if all(now is old for now, old in zip(levels, encoder.levels, strict=True)):
        return encoder
    return replace(encoder, levels=tuple(levels), kinds=tuple(of_levels) if any(of_levels) else ())


def _ordered(old: Levels, new: set[str], kind: str | None) -> list[str]:
    """Return all labels, sorted as numbers or as text; new ones last where old ones are not."""
    is_number = kind is not None and np.dtype(kind).kind in "iuf"
    key: Any = float if is_number else str
    absent = [MISSING_LEVEL] if is_number and MISSING_LEVEL in old else []
    labels = [label for label in old if label not in absent]
    keys = [key(label) for label in labels]
    if keys != sorted(keys):
        return [*old, *sorted(new)]
    return [*sorted([*labels, *sorted(new)], key=key), *absent]
