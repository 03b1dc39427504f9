"""What has to be known of a table before its rows can be read: text columns, levels, means."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import narwhals as nw
import numpy as np
from scipy.sparse import issparse

from quadlin.core.messages import Message, Option, Phrase
from quadlin.data.encoder import LevelLearner, TableEncoder, is_text, number_dtype
from quadlin.data.errors import SourceError, first_line
from quadlin.data.feeds import Feed
from quadlin.data.missing import UncheckedRows, refuse_infinite_entry
from quadlin.data.names import did_you_mean, shortened
from quadlin.data.options import TableOptions
from quadlin.data.readers import MISSING_LEVEL, ArrayReader, TableReader
from quadlin.data.source import Counts, default_rows


class TableFeed(Feed, Protocol):
    """A feed of frames."""

    def only(self, columns: Sequence[Any]) -> "TableFeed":
        """Return a feed that reads no more than these columns."""


def table_reader(
    sample: nw.DataFrame[Any], options: TableOptions, feed: TableFeed, title: str
) -> tuple[TableFeed, TableReader, int | None]:
    """Decide how a table is read, with a scan of what must be known first.

    Parameters
    ----------
    sample : frame
        With all columns and their dtypes; rows are needed only for columns of Python objects.
    options : TableOptions
        How to read it.
    feed : TableFeed
        The table.
    title : str
        Its name in errors.

    Returns
    -------
    feed, reader, rows
        The feed of the columns in use, how to read it, and the number of rows that are kept where
        the scan has counted them.
    """
    columns = _features(list(sample.columns), options, title)
    wanted = [*columns, *(name for name in (options.target, options.weight) if name is not None)]
    kept_columns = _kept_columns(sample, options.keep, title)
    _refuse_commas(feed.numbers_with_commas(), wanted, title)
    text = _text_columns(sample, columns, options, title)
    for role, name in (("target", options.target), ("weight", options.weight)):
        if name is not None:
            _refuse_text(sample.get_column(name), role, title)
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
    )
    feed = feed.only([*dict.fromkeys([*wanted, *options.keep])])
    if text and reader.encoder is None and set(options.levels or ()) >= text:
        reader = replace(reader, encoder=_given_encoder(reader, options.levels or {}))
    return _scanned(feed, reader, options, title)


def _features(found: list[Any], options: TableOptions, title: str) -> list[Any]:
    for role, name in (("target", options.target), ("weight", options.weight)):
        if name is not None and name not in found:
            raise SourceError(_no_column(title, name, f" for the {role}", found))
    if options.target is not None and options.target == options.weight:
        raise SourceError(
            Message(
                "{name!r} cannot be both the target and the weight. Name another {weight}.",
                name=options.target,
                weight=Option("weight"),
            )
        )
    columns = options.columns if options.encoder is None else options.encoder.input_names
    if columns is None:
        left = [
            name for name in found if name not in (options.target, options.weight, *options.keep)
        ]
        if not left:
            raise SourceError(
                f"{title} has no columns left for features: it has {shortened(found)}."
            )
        return left
    columns = [columns] if isinstance(columns, str) else list(columns)
    if gone := [name for name in columns if name not in found]:
        raise SourceError(_no_column(title, gone[0], "", found))
    if not columns:
        raise SourceError(
            Message("{columns} is empty: name at least one column.", columns=Option("columns"))
        )
    if twice := [name for i, name in enumerate(columns) if name in columns[:i]]:
        raise SourceError(_twice("columns", twice[0]))
    for role, name in (("target", options.target), ("weight", options.weight)):
        if name is not None and name in columns:
            remedy = (
                "Leave it out of {option}." if options.encoder is None else "Name another {option}."
            )
            raise SourceError(
                Message(
                    "{name!r} cannot be both a feature and the {role}. " + remedy,
                    name=name,
                    role=role,
                    option=Option("columns" if options.encoder is None else role),
                )
            )
    return columns


def _kept_columns(sample: nw.DataFrame[Any], keep: Sequence[Any], title: str) -> Any:
    """Return a frame without rows of the columns that are passed on."""
    found = list(sample.columns)
    if gone := [name for name in keep if name not in found]:
        raise SourceError(_no_column(title, gone[0], " to keep", found))
    if twice := [name for i, name in enumerate(keep) if name in keep[:i]]:
        raise SourceError(_twice("keep", twice[0]))
    return sample.select(list(keep)).head(0).to_native() if keep else None


def _twice(option: str, name: Any) -> Message:
    return Message("{option} names {name!r} twice.", option=Option(option), name=name)


def _no_column(title: str, name: Any, purpose: str, found: list[Any]) -> Message:
    return Message(
        "{title} has no column {name!r}{purpose}{columns}",
        title=title,
        name=name,
        purpose=purpose,
        columns=_has(name, found),
    )


def _has(name: Any, found: list[Any]) -> str:
    """Say which columns there are, and where one may hide."""
    said = f"; it has {shortened(found)}."
    for separator, shown in ((";", ";"), ("\t", r"\t"), ("|", "|"), (" ", " ")):
        split = (str(column).split(separator) for column in found if separator in str(column))
        if str(name) in (part.strip('" ') for parts in split if parts[0] for part in parts):
            return Message(
                "{columns} If '{shown}' separates them, give {delimiter}.",
                columns=said,
                shown=shown,
                delimiter=Option("delimiter", shown),
            )
    if all(re.fullmatch(r"[-+]?[\d.,]+", str(column)) for column in found):
        return f"{said} That looks like a row: write the names of the columns above it."
    if len(found) == 1:
        return Message(
            "{columns} If that is several columns, say what separates them with {delimiter}.",
            columns=said,
            delimiter=Option("delimiter"),
        )
    return said + did_you_mean(name, found)


def _refuse_commas(commas: Mapping[Any, str], wanted: list[Any], title: str) -> None:
    """Refuse numbers such as 1,5 that would be text: a level for each number is never meant."""
    for name in wanted:
        if name in commas:
            raise SourceError(
                Message(
                    "{title}: column {name!r} holds numbers with commas, such as {example!r}. Give "
                    "{comma} if the comma is the decimal point, or {point} to read them as text; "
                    "remove separators of thousands.",
                    title=title,
                    name=name,
                    example=commas[name],
                    comma=Option("decimal", ","),
                    point=Option("decimal", "."),
                )
            )


def _text_columns(
    sample: nw.DataFrame[Any], columns: list[Any], options: TableOptions, title: str
) -> set[Any]:
    try:
        text = {name for name in columns if is_text(sample.get_column(name))}
    except ValueError as error:
        raise SourceError(f"{title}: {error}") from None
    if options.encoder is None:
        return text
    known = {
        name
        for name, levels in zip(options.encoder.input_names, options.encoder.levels, strict=True)
        if levels is not None
    }
    if wrong := [name for name in columns if (name in text) != (name in known)]:
        raise SourceError(
            f"{title}: column {wrong[0]!r} holds {'text' if wrong[0] in text else 'numbers'}, but "
            f"it held {'text' if wrong[0] in known else 'numbers'} when it was learned. Convert it."
        )
    return text


def _refuse_text(column: nw.Series[Any], role: str, title: str) -> None:
    try:
        text = is_text(column)
    except ValueError:
        text = True
    if text:
        raise SourceError(
            f"{title}: the {role} {column.name!r} has dtype {column.dtype}, but must be numbers."
        )


def _given_encoder(reader: TableReader, levels: Mapping[Any, Sequence[str]]) -> TableEncoder:
    learner = LevelLearner(reader.columns, [], reader.dtype)
    learner.seen = {
        # Given levels keep the order they are given in.
        name: {(i, str(label)) for i, label in enumerate(dict.fromkeys(levels[name]))}
        for name in reader.columns
        if name in reader.text
    }
    learner.rows = 2 * max(len(known) for known in learner.seen.values())  # nothing to warn of
    try:
        return learner.encoder()
    except ValueError as error:
        raise SourceError(str(error)) from None


def _scanned(
    feed: TableFeed, reader: TableReader, options: TableOptions, title: str
) -> tuple[TableFeed, TableReader, int | None]:
    """Learn levels and means in one walk over the columns that tell them."""
    needs_levels = bool(reader.text) and reader.encoder is None
    needs_means = reader.missing == "mean" and reader.fill is None and bool(reader.numbers)
    if not (needs_levels or needs_means):
        return feed, reader, None
    if not feed.again:
        raise SourceError(_cannot_walk_twice(reader, title, needs_levels))
    learner = LevelLearner(reader.columns, sorted(reader.text, key=str), reader.dtype)
    means = _Means(len(reader.numbers))
    # Only rows that are kept may teach levels, and any column can drop a row.
    if reader.missing == "error":
        narrow = replace(reader, columns=tuple(n for n in reader.columns if n in reader.text))
        narrow = replace(narrow, target=None, weight=None, kept_columns=None)
        walk = feed.only(narrow.columns)
    else:
        narrow, walk = reader, feed
    counts = Counts()
    for piece in walk.pieces(default_rows(len(narrow.columns), 0, sparse=False)):
        rows, frame = narrow.kept(piece, counts)
        if needs_means:
            names = tuple(map(str, reader.numbers))
            refuse_infinite_entry(rows, names)
            means.add(rows.X)
        if needs_levels:
            _learn(learner, frame, reader)
    if needs_means:
        reader = replace(reader, fill=means.fill(tuple(map(str, reader.numbers)), title))
    if needs_levels:
        try:
            reader = replace(reader, encoder=learner.encoder())
        except ValueError as error:
            raise SourceError(f"{title}: {error}") from None
    return feed, reader, learner.rows if needs_levels else None


def _learn(learner: LevelLearner, frame: nw.DataFrame[Any], reader: TableReader) -> None:
    try:
        if reader.missing != "mean":
            learner.add(frame)
            return
        learner.rows += len(frame)
        for name in learner.seen:
            column = frame.get_column(name)
            if column.null_count():
                learner.seen[name].add((MISSING_LEVEL, MISSING_LEVEL))
            one = LevelLearner([name], [name], reader.dtype)
            one.add(column.drop_nulls().to_frame())
            learner.seen[name] |= one.seen[name]
    except SourceError:
        raise
    except Exception as error:  # bytes that are no text, in the words of each library
        raise SourceError(
            Message(
                "The levels of {names} cannot be read: {error} Leave the column out of {columns}, "
                "or write it as UTF-8.",
                names=shortened(learner.seen),
                error=first_line(error),
                columns=Option("columns"),
            )
        ) from None


def array_means(feed: Feed, reader: ArrayReader) -> ArrayReader:
    """Learn the means of the features in one walk, zeros of sparse rows included."""
    if not feed.again:
        raise SourceError(_means_unknown(feed.title))
    means, probe = _Means(len(reader.names)), replace(reader, missing="mean", fill={})
    for piece in feed.pieces(default_rows(len(reader.names), 0, sparse=False)):
        X = probe.raw(piece)
        refuse_infinite_entry(UncheckedRows(X, None, None, piece), reader.names)
        means.add(X)
    return replace(reader, fill=means.fill(reader.names, feed.title))


class _Means:
    """Means of what is there, column by column."""

    def __init__(self, d: int) -> None:
        self.total, self.count = np.zeros(d), np.zeros(d)

    def add(self, X: Any) -> None:
        n, d = X.shape
        if issparse(X):
            there = ~np.isnan(X.data)
            self.total += np.bincount(X.indices[there], X.data[there], minlength=d)
            self.count += n - np.bincount(X.indices[~there], minlength=d)
        else:
            there = ~np.isnan(X)
            self.total += np.sum(X, axis=0, where=there, dtype=np.float64)
            self.count += there.sum(axis=0)

    def fill(self, names: Sequence[str], title: str) -> dict[str, float]:
        if not self.count.all():
            empty = names[int((self.count == 0).argmax())]
            raise SourceError(f"{title}: column {empty!r} has no value at all. Leave it out.")
        return dict(zip(names, (self.total / self.count).tolist(), strict=True))


def _cannot_walk_twice(reader: TableReader, title: str, levels: bool) -> str:
    if levels:
        named = shortened(sorted(reader.text, key=str))
        return Message(
            "{title} can be walked only once, but the levels of its text columns ({names}) must be "
            "known before. {python}eave the columns out of {columns}, or save the rows to a file "
            "first.",
            title=title,
            names=named,
            python=Phrase("Give them as levels={column: [...]} or encoder=, l", "L"),
            columns=Option("columns"),
        )
    return _means_unknown(title)


def _means_unknown(title: str) -> Message:
    return Message(
        "{title} can be walked only once, but {mean} needs the means first. {python}se {drop}, or "
        "save the rows to a file first.",
        title=title,
        mean=Option("missing", "mean"),
        python=Phrase("Give fill={column: value}, u", "U"),
        drop=Option("missing", "drop"),
    )
