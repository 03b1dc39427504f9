"""What must be known about a table before its rows can be read: columns, levels and means."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import narwhals as nw
import numpy as np

from quadlin.data.columns.columns import is_category, is_text, number_dtype
from quadlin.data.columns.encoder import NUMBER, LevelLearner, TableEncoder, kind_of, may_be_numbers
from quadlin.data.columns.errors import ColumnError, ReadOnceError, SourceError, first_line
from quadlin.data.columns.names import did_you_mean, shortened
from quadlin.data.sources.csv_text import Dialect
from quadlin.data.sources.feeds import Feed, default_rows
from quadlin.data.sources.readers import Counts, Means, Reader, means_unknown


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
    """Return the columns of the table that are features, after a check of all that are named."""
    given = options.columns if options.encoder is None else options.encoder.input_names
    columns = [given] if isinstance(given, str) else None if given is None else list(given)
    roles = {role: getattr(options, role) for role in ("target", "weight")}
    for role, name in roles.items():
        if name is not None and not isinstance(name, str | int):
            raise SourceError(f"{title}: name the column of the {role} instead of giving an array.")
    named: dict[str, Sequence[Any]] = {
        role: () if name is None else (name,) for role, name in roles.items()
    }
    named |= {o: getattr(options, o) for o in ("exclude", "categorical_features", "keep")}
    named["columns"] = columns or ()
    for option, names in named.items():
        for i, name in enumerate(names):
            if name not in available:
                _refuse_unknown(title, name, option, available, options.encoder is not None)
            if name in names[:i]:
                raise SourceError(f"`{option}` names {name!r} twice. Name it once.")
    if roles["target"] is not None and roles["target"] == roles["weight"]:
        raise SourceError(f"{roles['target']!r} cannot be both the target and the weight.")
    for role, name in roles.items():
        if columns and name is not None and name in columns:
            raise SourceError(
                f"{name!r} cannot be both a feature and the {role}. Leave it out of `columns`, or "
                f"name another `{role}`."
            )
    if columns is None:
        others = (*roles.values(), *options.keep, *options.exclude)
        columns = [name for name in available if name not in others]
    if not columns:
        raise SourceError(
            f"{title} has no columns left for features: it has {shortened(available)}. Name fewer "
            "columns, or give a table with at least one more."
        )
    return columns


def _refuse_unknown(
    title: str, name: Any, option: str, available: list[Any], is_fitted: bool
) -> NoReturn:
    """Raise an error that a table has no such column, with its columns and where it may be."""
    text = f"{title} has no column {name!r} of `{option}`; it has {shortened(available)}."
    for separator, shown in ((";", ";"), ("\t", r"\t"), ("|", "|"), (" ", " ")):
        split = (str(column).split(separator) for column in available if separator in str(column))
        if str(name) in (part.strip('" ') for parts in split if parts[0] for part in parts):
            raise SourceError(f"{text} If '{shown}' separates them, give delimiter={shown!r}.")
    if all(NUMBER.fullmatch(str(column)) for column in available):
        raise SourceError(f"{text} If the first row holds data, give header=False.")
    if len(available) == 1:
        raise SourceError(
            f"{text} If these are several columns, give their separator with `delimiter`."
        )
    remedy = " Give rows with the columns of the model." if is_fitted else ""
    raise SourceError(text + did_you_mean(name, available) + remedy)


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


MANY_LABELS, MOST_UNASKED = 1000, 50  # most labels of a target, if asked for and if not


def learned_labels(
    seen: set[str], rows: int, asked: bool, feed: Feed, target: Any
) -> tuple[str, ...]:
    """Return the sorted labels of a text target, or raise an error that says why they are none.

    Unless the user `asked` for classes, there must be few, and not numbers with a stray word.
    """
    words = sorted(label for label in seen if not is_number(label))
    most = MANY_LABELS if asked else min(MOST_UNASKED, max(rows, 20) // 2)
    if len(seen) <= most and (asked or not words or 2 * len(words) >= len(seen)):
        return tuple(sorted(seen))
    first = (words or sorted(seen))[0]
    classes = ' If each value is a class, give labels="learn".'
    raise SourceError(
        f"{feed.title}: the target {str(target)!r} is text with {len(seen):,} different values in "
        f"{rows:,} rows, such as {first!r} in {_first_row(feed, target, first)}. If it holds "
        'numbers, correct or empty such cells, or give decimal="," for decimal commas.'
        + classes
        * (len(seen) <= MANY_LABELS)
    )


def is_number(label: str) -> bool:
    """Return whether a label is a number, perhaps with a decimal comma."""
    return NUMBER.fullmatch(label.replace(",", ".", 1)) is not None


def table_reader(
    sample: nw.DataFrame[Any], feed: Feed, options: OpenOptions
) -> tuple[Feed, Reader, int | None]:
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
    keep = list(options.keep)
    kept_columns = sample.select(keep).head(0).to_native() if keep else None
    text = text_columns(sample, columns, options, title)
    labels, is_csv = None, _is_csv(feed)
    for role, name in (("target", options.target), ("weight", options.weight)):
        classify = role == "target" and options.labels is not None
        if name is not None and is_label(sample.get_column(name), role, classify, title, is_csv):
            labels = () if isinstance(options.labels, str) else tuple(options.labels or ())
    kinds = [dtype for name, dtype in sample.schema.items() if name in set(columns) - text]
    reader = Reader(
        tuple(columns),
        number_dtype(kinds) if options.encoder is None else options.encoder.dtype,
        options.target is not None or options.target_apart,
        options.missing,
        options.fill,
        is_table=True,
        text=frozenset(text),
        target=options.target,
        weight=options.weight,
        encoder=options.encoder,
        kept_columns=kept_columns,
        labels=labels,
        boolean_target=options.target is not None and sample.schema[options.target] == nw.Boolean,
    )
    feed = feed.only([*dict.fromkeys([*needed, *options.keep])])
    if text and reader.encoder is None and set(options.levels or ()) >= text:
        reader = replace(reader, encoder=_given_encoder(reader, options.levels or {}))
    return _scanned(feed, reader, options)


def _given_encoder(reader: Reader, levels: Mapping[Any, Sequence[str]]) -> TableEncoder:
    """Return the encoder of levels in the order in which the user gave them."""
    given = [levels[name] if name in reader.text else None for name in reader.columns]
    kinds = tuple(None if values is None else kind_of(np.asarray(values)) for values in given)
    numbered = tuple(
        None if v is None else {label: i for i, label in enumerate(dict.fromkeys(map(str, v)))}
        for v in given
    )
    try:
        return TableEncoder(tuple(map(str, reader.columns)), numbered, reader.dtype, kinds)
    except ValueError as error:
        raise SourceError(*error.args) from None


def _scanned(feed: Feed, reader: Reader, options: OpenOptions) -> tuple[Feed, Reader, int | None]:
    """Learn labels, levels and means in one pass, as far as they are unknown."""
    needs_labels = reader.labels == ()
    needs_levels = bool(reader.text) and reader.encoder is None
    needs_means = reader.missing == "mean" and reader.fill is None and bool(reader.numbers)
    if not (needs_labels or needs_levels or needs_means):
        return feed, reader, None
    if not feed.again:
        raise ReadOnceError(_cannot_walk_twice(reader, feed.title, needs_labels, needs_levels))
    labels, rows = set[str](), 0
    learner = LevelLearner(
        reader.columns,
        sorted(reader.text, key=str) if needs_levels else [],
        reader.dtype,
        options.categorical_features,
        reader.missing,
        options.dialect.decimal or "." if _is_csv(feed) else None,
    )
    means = Means(len(reader.numbers))
    # Levels are learned only from rows that are kept, and any column can cause a row to be dropped.
    narrow, walk = reader, feed
    if reader.missing == "error":
        text = tuple(name for name in reader.columns if name in learner.seen)
        narrow = replace(reader, columns=text, target=None, weight=None, kept_columns=None)
        walk = feed.only([*text, *([reader.target] if needs_labels else [])])
    counts = Counts()
    for piece in walk.pieces(default_rows(len(narrow.columns), 0, sparse=False)):
        rows += len(piece)
        if needs_labels and len(labels) <= MANY_LABELS:
            column = nw.from_native(piece.X, eager_only=True).get_column(reader.target)
            labels.update(column.drop_nulls().cast(nw.String()).unique().to_list())
        chunk, frame = narrow.keep(piece, counts)
        if needs_means:
            means.add(chunk.X, chunk.weight)
        if needs_levels:
            _learn(learner, frame)
    if needs_labels:
        known = learned_labels(labels, rows, options.labels == "learn", walk, reader.target)
        reader = replace(reader, labels=known)
    if needs_means:
        reader = replace(reader, fill=means.fill(reader.numbers, feed.title))
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


def _cannot_walk_twice(reader: Reader, title: str, labels: bool, levels: bool) -> str:
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
