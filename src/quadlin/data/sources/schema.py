"""What must be known about a table before its rows can be read: columns, levels and means."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import narwhals as nw
import numpy as np

from quadlin.data.columns.columns import is_category, is_text, number_dtype
from quadlin.data.columns.encoder import TableEncoder
from quadlin.data.columns.errors import ColumnError, ReadOnceError, SourceError, first_line
from quadlin.data.columns.levels import NUMBER, LevelLearner, kind_of, may_be_numbers
from quadlin.data.columns.names import did_you_mean, shortened
from quadlin.data.sources.csv_text import Dialect
from quadlin.data.sources.feeds import Feed, Piece
from quadlin.data.sources.means import Means, means_unknown
from quadlin.data.sources.missing import Counts, refuse_infinite_entry
from quadlin.data.sources.readers import TableReader
from quadlin.data.sources.source import default_rows


@dataclass(frozen=True)
class OpenOptions:
    """The options of `open_source` after their check; see there for their meaning."""

    target: Any
    weight: Any
    columns: Sequence[Any] | None
    missing: str
    encoder: TableEncoder | None
    levels: Mapping[Any, Sequence[str]] | None
    fill: dict[str, float] | None
    keep: Sequence[Any]
    categorical_features: Sequence[Any]  # in addition to text columns
    exclude: Sequence[Any]
    labels: str | Sequence[str] | None
    format: str | None
    n_features: int | None
    zero_based: bool | str
    dialect: Dialect
    target_apart: bool = False  # y is a separate array, not a column

    @property
    def text(self) -> tuple[Any, ...]:
        """Return the columns of CSV that are text even if they look like numbers."""
        columns = self.columns if self.encoder is None else self.encoder.input_names
        columns = [columns] if isinstance(columns, str) else columns or ()
        read = {*columns, *(n for n in (self.target, self.weight) if isinstance(n, str))}
        return (
            *(self.levels or ()),
            *self.categorical_features,
            *({} if self.encoder is None else self.encoder.text),
            # Columns that are only passed on stay as they are written: 007 does not become 7.
            *(name for name in self.keep if name not in read),
        )

    def no_table(self, title: str) -> None:
        """Refuse options that only make sense for tables."""
        given = {name: getattr(self, name) is not None for name in ("columns", "encoder", "levels")}
        lists = ("keep", "categorical_features", "exclude")
        given |= {name: bool(getattr(self, name)) for name in lists}
        for name in [name for name, is_given in given.items() if is_given]:
            raise SourceError(f"{title} has no named columns: `{name}` is for tables only.")

    def no_csv(self, title: str) -> None:
        """Refuse options that only make sense for CSV."""
        if self.dialect != Dialect():
            raise SourceError(
                f"{title} is not CSV: `delimiter`, `decimal`, `encoding`, `header` "
                "and `na` are for CSV only."
            )

    def written(self, format: str) -> Dialect:
        """Return the dialect of CSV files of a format."""
        if format == "tsv" and self.dialect.delimiter is None:
            return replace(self.dialect, delimiter="\t")
        return self.dialect


def feature_columns(available: list[Any], options: OpenOptions, title: str) -> list[Any]:
    """Return the columns of the table that are features."""
    _check_roles(available, options, title)
    columns = options.columns if options.encoder is None else options.encoder.input_names
    if columns is None:
        others = (options.target, options.weight, *options.keep, *options.exclude)
        features = [name for name in available if name not in others]
        if not features:
            raise SourceError(
                "{title} has no columns left for features: it has {names}. {advice}.".format(
                    title=title,
                    names=shortened(available),
                    advice=(
                        "Leave out `exclude`, or name fewer columns"
                        if options.exclude
                        else "Give a table with at least one more column"
                    ),
                )
            )
        return features
    columns = [columns] if isinstance(columns, str) else list(columns)
    _check_features(columns, available, options, title)
    return columns


def _check_roles(available: list[Any], options: OpenOptions, title: str) -> None:
    """Refuse columns that the options name but the table does not have."""
    for role, name in (("target", options.target), ("weight", options.weight)):
        if name is not None and not isinstance(name, str | int):
            raise SourceError(f"{title}: name the column of the {role} instead of giving an array.")
        if name is not None and name not in available:
            remedy = f"Name one of them with `{role}`."
            raise SourceError(_no_column(title, name, f" for the {role}", available, remedy))
    if options.target is not None and options.target == options.weight:
        raise SourceError(
            f"{options.target!r} cannot be both the target and the weight. Name another `weight`."
        )
    for option in ("exclude", "categorical_features"):
        for name in getattr(options, option):
            if name not in available:
                where = f" of `{option}`"
                raise SourceError(_no_column(title, name, where, available, _correct(option)))


def _check_features(
    columns: list[Any], available: list[Any], options: OpenOptions, title: str
) -> None:
    """Refuse features that are not in the table, are named twice, or are the target or weight."""
    if absent := [name for name in columns if name not in available]:
        correct = "Correct `columns`, or give rows with that column."
        remedy = correct if options.encoder is None else "Give rows with the columns of the model."
        raise SourceError(_no_column(title, absent[0], "", available, remedy))
    if not columns:
        raise SourceError("`columns` is empty: name at least one column.")
    if repeated := [name for i, name in enumerate(columns) if name in columns[:i]]:
        raise SourceError(_named_twice("columns", repeated[0]))
    for role, name in (("target", options.target), ("weight", options.weight)):
        if name is not None and name in columns:
            chosen = options.encoder is None
            remedy = "Leave it out of {option}." if chosen else "Name another {option}."
            raise SourceError(
                ("{name!r} cannot be both a feature and the {role}. " + remedy).format(
                    name=name, role=role, option=f"`{'columns' if chosen else role}`"
                )
            )


def columns_to_keep(sample: nw.DataFrame[Any], keep: Sequence[Any], title: str) -> Any:
    """Return an empty frame with the columns that are passed on."""
    available = list(sample.columns)
    if absent := [name for name in keep if name not in available]:
        raise SourceError(_no_column(title, absent[0], " to keep", available, _correct("keep")))
    if repeated := [name for i, name in enumerate(keep) if name in keep[:i]]:
        raise SourceError(_named_twice("keep", repeated[0]))
    return sample.select(list(keep)).head(0).to_native() if keep else None


def _named_twice(option: str, name: Any) -> str:
    text = "{option} names {name!r} twice. Name it once."
    return text.format(option=f"`{option}`", name=name)


def _correct(option: str) -> str:
    return f"Correct `{option}`."


def _no_column(title: str, name: Any, purpose: str, available: list[Any], remedy: str) -> str:
    """Return a message that a table has no such column, with its columns and advice."""
    return f"{title} has no column {name!r}{purpose}{_has(name, available, remedy)}"


def _has(name: Any, available: list[Any], remedy: str) -> str:
    """Return a list of the columns of the table, and where the missing one may be."""
    listing = f"; it has {shortened(available)}."
    for separator, shown in ((";", ";"), ("\t", r"\t"), ("|", "|"), (" ", " ")):
        split = (str(column).split(separator) for column in available if separator in str(column))
        if str(name) in (part.strip('" ') for parts in split if parts[0] for part in parts):
            return f"{listing} If '{shown}' separates them, give delimiter={shown!r}."
    if all(NUMBER.fullmatch(str(column)) for column in available):
        return f"{listing} If the first row holds data, give header=False."
    if len(available) == 1:
        return f"{listing} If these are several columns, give their separator with `delimiter`."
    return " ".join([listing + did_you_mean(name, available), remedy])


def text_columns(
    sample: nw.DataFrame[Any], columns: list[Any], options: OpenOptions, title: str
) -> set[Any]:
    """Return the features that are categorical: with an encoder, those that it has levels of."""
    declared = set(columns) & set(options.categorical_features)
    encoder = options.encoder
    encoded = {} if encoder is None else dict(zip(encoder.input_names, encoder.levels, strict=True))

    def is_level(name: Any) -> bool:
        return is_category(sample.get_column(name), encoded.get(name) is not None)

    try:
        text = {name for name in columns if name in declared or is_level(name)}
    except ValueError as error:
        raise SourceError.about(title, error) from None
    if encoder is None:
        return text
    for name in columns:
        levels = encoded[name]
        if name in text if levels is None else not (name in text or may_be_numbers(levels)):
            raise SourceError(
                f"{title}: column {name!r} holds {'text' if name in text else 'numbers'}, but it "
                f"held {'numbers' if levels is None else 'text'} during the fit. Convert it."
            )
    return {name for name in columns if encoded[name] is not None}


def is_label(column: nw.Series[Any], role: str, classify: bool, title: str, is_csv: bool) -> bool:
    """Return whether a column is text that can be classified; refuse text that must be numeric."""
    try:
        text = is_text(column)
    except ColumnError:
        text, classify = True, False
    if text and not classify:
        comma = ' If it has decimal commas, give decimal=",".' if is_csv else ""
        raise SourceError(
            f"{title}: the {role} {column.name!r} has dtype {column.dtype}, but must be numbers. "
            f"Choose a numeric column with `{role}`, or replace its values by numbers.{comma}"
        )
    return text


MANY_LABELS = 1000  # text with more distinct values is refused, even if the user asks for labels
MOST_UNASKED, FEW = 50, 10  # most labels without being asked, and a number that is always accepted
AS_CLASSES = ' If each value is a class, give labels="learn".'


@dataclass
class LabelLearner:
    """Learns the labels of a text target from pieces of a table.

    Unless the user `asked` for classes, text that is mostly numbers is refused, with its first cell
    that is not a number; and so is text with a different value in every second row.
    """

    title: str  # of the table, in errors
    target: Any
    asked: bool
    seen: set[str] = field(default_factory=set)
    rows: int = 0  # with a cell that is not missing
    numbers: int = 0
    word: tuple[str, str] | None = None  # the first cell that is not a number, and its row

    def add(self, piece: Piece) -> None:
        """Note the labels of some rows."""
        column = nw.from_native(piece.X, eager_only=True).get_column(self.target).cast(nw.String())
        distinct = column.drop_nulls().unique().to_list()
        places = np.empty(0, dtype=int)
        if words := [label for label in distinct if not is_number(label)]:
            places = np.flatnonzero(column.is_in(words).fill_null(value=False).to_numpy())
        rows = len(column) - column.null_count()
        self.rows, self.numbers = self.rows + rows, self.numbers + rows - len(places)
        if self.word is None and len(places):
            self.word = str(column[int(places[0])]), piece.where(int(places[0]))
        if len(self.seen) <= MANY_LABELS:
            self.seen.update(distinct)

    def labels(self) -> tuple[str, ...]:
        """Return the sorted labels, or raise an error that says why the values are not labels."""
        many = len(self.seen) > MANY_LABELS
        if (many or not self.asked) and self.word is not None and 2 * self.numbers > self.rows:
            cell, where = self.word
            raise SourceError(
                (
                    "{title}: the target {target!r} holds numbers in {numbers:,} of {rows:,} "
                    "rows, but {cell!r} in {where}. Correct that cell, or empty it and give "
                    'missing="drop".{classes}'
                ).format(
                    title=self.title,
                    target=str(self.target),
                    numbers=self.numbers,
                    rows=self.rows,
                    cell=cell,
                    where=where,
                    classes="" if many else AS_CLASSES,
                )
            )
        most = min(MOST_UNASKED, max(self.rows, 2 * FEW) // 2)
        if many or (not self.asked and len(self.seen) > most):
            numbers = all(map(is_number, self.seen))
            raise SourceError(
                (
                    "{title}: the target {target!r} is {kind}, with {count} different "
                    "values{rows}, such as {first!r}. {advice}.{classes}"
                ).format(
                    title=self.title,
                    target=str(self.target),
                    kind="numbers as text" if numbers else "text",
                    count=f"more than {MANY_LABELS:,}" if many else f"{len(self.seen):,}",
                    rows="" if many else f" in {self.rows:,} rows",
                    first=min(self.seen),
                    advice=(
                        'Convert it to numbers, or give decimal="," if it has decimal commas'
                        if numbers
                        else "Choose a column of fewer labels, or of numbers"
                    ),
                    classes="" if many else AS_CLASSES,
                )
            )
        return tuple(sorted(self.seen))


def is_number(label: str) -> bool:
    """Return whether a label is a number, perhaps with a decimal comma."""
    return NUMBER.fullmatch(label.replace(",", ".", 1)) is not None


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
