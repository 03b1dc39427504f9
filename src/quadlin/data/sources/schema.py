"""What must be known about a table before its rows can be read: columns, levels and means."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import narwhals as nw
import numpy as np

from quadlin.data.columns.columns import number_dtype
from quadlin.data.columns.encoder import TableEncoder
from quadlin.data.columns.errors import ReadOnceError, SourceError, first_line
from quadlin.data.columns.level_codes import kind_of
from quadlin.data.columns.levels import LevelLearner
from quadlin.data.columns.names import shortened
from quadlin.data.sources.feature_columns import (
    columns_to_keep,
    feature_columns,
    is_label,
    text_columns,
)
from quadlin.data.sources.feeds import Feed
from quadlin.data.sources.means import Means, means_unknown
from quadlin.data.sources.missing import Counts, refuse_infinite_entry
from quadlin.data.sources.options import OpenOptions
from quadlin.data.sources.readers import TableReader
from quadlin.data.sources.source import default_rows
from quadlin.data.sources.target_labels import LabelLearner


def table_reader(
    sample: nw.DataFrame[Any], feed: Feed, options: OpenOptions
) -> tuple[Feed, TableReader, int | None]:
    """Decide how a table is read, after a scan for what must be known first.

    Parameters
    ----------
    sample : frame
        A frame with all columns and dtypes; only columns of Python objects need rows.
    feed : Feed
        The table.
    options : OpenOptions
        How to read it.

    Returns
    -------
    feed, reader, rows
        The feed of the columns in use, how to read it, and the number of rows that are kept if a
        scan has counted them.
    """
    title = feed.title
    columns = feature_columns(list(sample.columns), options, title)
    needed = [*columns, *(name for name in (options.target, options.weight) if name is not None)]
    kept_columns = columns_to_keep(sample, options.keep, title)
    text = text_columns(sample, columns, options, title)
    labels, is_csv = None, _is_csv(feed)
    for role, name in (("target", options.target), ("weight", options.weight)):
        classify = role == "target" and options.labels is not None
        if name is not None and is_label(sample.get_column(name), role, classify, title, is_csv):
            labels = () if isinstance(options.labels, str) else tuple(options.labels or ())
    kinds = [dtype for name, dtype in sample.schema.items() if name in set(columns) - text]
    reader = TableReader(
        tuple(columns),
        frozenset(text),
        number_dtype(kinds) if options.encoder is None else options.encoder.dtype,
        options.target,
        options.weight,
        options.target_apart,
        options.encoder,
        options.missing,
        options.fill,
        kept_columns,
        labels,
        options.target is not None and sample.schema[options.target] == nw.Boolean,
    )
    feed = feed.only([*dict.fromkeys([*needed, *options.keep])])
    if text and reader.encoder is None and set(options.levels or ()) >= text:
        reader = replace(reader, encoder=_given_encoder(reader, options.levels or {}))
    return _scanned(feed, reader, options)


def _given_encoder(reader: TableReader, levels: Mapping[Any, Sequence[str]]) -> TableEncoder:
    learner = LevelLearner(reader.columns, [], reader.dtype)
    learner.seen = {
        # Levels keep the order in which the user gave them.
        name: {(i, str(label)) for i, label in enumerate(dict.fromkeys(levels[name]))}
        for name in reader.columns
        if name in reader.text
    }
    learner.present = dict.fromkeys(learner.seen, 0)
    learner.kinds = {name: {kind_of(np.asarray(levels[name]))} for name in learner.seen}
    learner.rows = 2 * max(len(levels) for levels in learner.seen.values())  # prevents warnings
    try:
        return TableEncoder.of(learner)
    except ValueError as error:
        raise SourceError(*error.args) from None


def _scanned(
    feed: Feed, reader: TableReader, options: OpenOptions
) -> tuple[Feed, TableReader, int | None]:
    """Learn labels, levels and means in one pass, as far as they are unknown."""
    needs_labels = reader.labels == ()
    needs_levels = bool(reader.text) and reader.encoder is None
    needs_means = reader.missing == "mean" and reader.fill is None and bool(reader.numbers)
    if not (needs_labels or needs_levels or needs_means):
        return feed, reader, None
    if not feed.again:
        raise ReadOnceError(_cannot_walk_twice(reader, feed.title, needs_labels, needs_levels))
    classes = LabelLearner(feed.title, reader.target, options.labels == "learn")
    learner = LevelLearner(
        reader.columns,
        sorted(reader.text, key=str) if needs_levels else [],
        reader.dtype,
        options.categorical_features,
        reader.missing,
        options.dialect.decimal or "." if _is_csv(feed) else None,
    )
    means, names = Means(len(reader.numbers)), tuple(map(str, reader.numbers))
    # Levels are learned only from rows that are kept, and any column can cause a row to be dropped.
    narrow, walk = reader, feed
    if reader.missing == "error":
        text = tuple(name for name in reader.columns if name in learner.seen)
        narrow = replace(reader, columns=text, target=None, weight=None, kept_columns=None)
        walk = feed.only([*text, *([reader.target] if needs_labels else [])])
    counts = Counts()
    for piece in walk.pieces(default_rows(len(narrow.columns), 0, sparse=False)):
        if needs_labels:
            classes.add(piece)
        rows, frame = narrow.kept(piece, counts)
        if needs_means:
            refuse_infinite_entry(rows, names)
            means.add(rows.X, rows.weight)
        if needs_levels:
            _learn(learner, frame)
    if needs_labels:
        reader = replace(reader, labels=classes.labels())
    if needs_means:
        reader = replace(reader, fill=means.fill(names, feed.title))
    if needs_levels:
        try:
            reader = replace(reader, encoder=TableEncoder.of(learner, partial(_first_row, walk)))
        except ValueError as error:
            raise SourceError.about(feed.title, error) from None
    return feed, reader, learner.rows if needs_levels else None


def _is_csv(feed: Feed) -> bool:
    return getattr(feed, "format", feed.title.split()[0]) in ("csv", "tsv")


def _first_row(walk: Feed, name: Any, label: str) -> str:
    """Return the first row with a label of a column."""
    for piece in walk.only([name]).pieces(default_rows(1, 0, sparse=False)):
        labels = nw.from_native(piece.X, eager_only=True).get_column(name).cast(nw.String())
        rows = np.flatnonzero((labels == label).fill_null(value=False).to_numpy())
        if len(rows):
            return piece.where(int(rows[0]))
    return "a row that was dropped"


def _learn(learner: LevelLearner, frame: nw.DataFrame[Any]) -> None:
    try:
        learner.add(frame)
    except SourceError:
        raise
    except Exception as error:  # bytes that are not text; each library raises other errors
        raise SourceError(
            f"The levels of {shortened(learner.seen)} cannot be read: "
            f"{first_line(error)} Leave the column out of `columns`, or write it as "
            "UTF-8."
        ) from None


def _cannot_walk_twice(reader: TableReader, title: str, labels: bool, levels: bool) -> str:
    if labels:
        return (
            f"{title} can be read only once, but the labels of the target must be "
            "known beforehand. Give them as labels=[...], or save the rows to a file "
            "first."
        )
    if levels:
        return (
            f"{title} can be read only once, but the levels of its text columns "
            f"({shortened(sorted(reader.text, key=str))}) must be known beforehand. "
            "Give them as levels={column: [...]} or encoder=, leave the columns out "
            "of `columns`, or save the rows to a file first."
        )
    return means_unknown(title)
