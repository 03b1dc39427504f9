"""The function that opens rows from anywhere: arrays, frames, files, iterators or Dask."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any, NoReturn

import narwhals as nw
import numpy as np
from scipy.sparse import issparse

import quadlin.data.lines  # noqa: F401  (its formats)
from quadlin.core.chunks import is_dask
from quadlin.data.arrays import (
    open_array,
    open_frame,
    open_iterator,
    vector_of,
    without_batches,
)
from quadlin.data.columns import (
    FEWEST_IDS,
    NUMBER,
    OBJECTS,
    Counts,
    SeenLevels,
    TableEncoder,
    is_text,
    is_whole,
    joint,
    kind_of,
    number_dtype,
    values_of,
)
from quadlin.data.csv_text import Dialect
from quadlin.data.dask_rows import is_dask_frame, open_dask_array, open_dask_frame
from quadlin.data.names import SourceError, did_you_mean, explained, shortened
from quadlin.data.reader import POLICIES, Means, Reader
from quadlin.data.source import FORMATS, Feed, Source, default_rows, find
from quadlin.data.tables import CSV, open_dataset, open_query

MANY_LABELS = 1000  # of a target: a model for each
TABLE_ONLY = ("columns", "levels", "keep", "categorical_features", "exclude")


@dataclass(frozen=True)
class Options:
    """The options of `open_source` after their check; see there for their meaning."""

    target: Any
    weight: Any
    columns: list[Any] | None
    exclude: tuple[Any, ...]
    categorical_features: tuple[Any, ...]  # in addition to text columns
    missing: str
    format: str | None
    encoder: TableEncoder | None
    levels: Mapping[Any, Sequence[str]]
    fill: dict[str, float] | None
    n_features: int | None
    zero_based: bool | str
    dialect: Dialect
    keep: tuple[Any, ...]
    labels: str | tuple[str, ...] | None
    target_apart: bool = False  # y is a separate array, not a column

    @property
    def text(self) -> tuple[Any, ...]:
        """Return the columns of CSV that are text even if they look like numbers."""
        read = {*(self.columns or ()), *(n for n in (self.target, self.weight) if is_name(n))}
        levels = () if self.encoder is None else self.encoder.text
        # Columns that are only passed on stay as they are written: 007 does not become 7.
        kept = (name for name in self.keep if name not in read)
        return *self.levels, *self.categorical_features, *levels, *kept

    def refuse_table_options(self, title: str) -> None:
        """Raise an error for options that only make sense for tables."""
        if self.encoder is not None:
            raise SourceError(
                f"{title} has no named columns, but the model has text columns. Give a table of "
                f"{shortened(self.encoder.input_names)}."
            )
        for name in TABLE_ONLY:
            if getattr(self, name):
                raise SourceError(f"{title} has no named columns: `{name}` is for tables only.")

    def refuse_csv_options(self, title: str) -> None:
        """Raise an error for options that only make sense for CSV."""
        if self.dialect != Dialect():
            raise SourceError(
                f"{title} is not CSV: `delimiter`, `decimal`, `encoding`, `header` "
                "and `na` are for CSV only."
            )

    def dialect_of(self, format: str) -> Dialect:
        """Return the dialect of CSV files of a format."""
        if format == "tsv" and self.dialect.delimiter is None:
            return replace(self.dialect, delimiter="\t")
        return self.dialect


def is_name(given: Any) -> bool:
    """Return whether a target or a weight is the name of a column rather than an array."""
    return isinstance(given, str | int)


def open_rows(given: Any, options: Options) -> tuple[Feed, Reader]:
    """Return the feed and the reader of what the user gave."""
    if isinstance(given, str | bytes | PathLike):
        return _open_path(given, options)
    if isinstance(given, list | tuple) and given and isinstance(given[0], str | PathLike):
        return _open_path(given, options)
    if hasattr(given, "read"):
        raise SourceError(
            "Rows cannot be read from an open file. Give its path, or pyarrow.csv.open_csv(file) "
            "or another iterator of tables."
        )
    kind, y, weight = type(given).__name__, options.target, options.weight
    options.refuse_csv_options(f"The {kind}")
    if is_dask(given):
        if is_dask_frame(given):
            y, weight, options = _apart(options)
            return table_reader(*open_dask_frame(given, y, weight), options)
        options.refuse_table_options("The Dask array")
        return open_dask_array(given, y, weight, options.missing)
    if hasattr(given, "to_batches") and hasattr(given, "schema") and hasattr(given, "scanner"):
        return table_reader(*open_dataset(given), options)
    given = without_batches(given)
    with explained(f"The {kind}", "Check its columns."):
        frame = nw.from_native(given, pass_through=True)
    package = type(given).__module__.split(".")[0]
    if isinstance(frame, nw.DataFrame):
        y, weight, options = _apart(options)
        return table_reader(frame, open_frame(frame, y, weight, f"{package} frame"), options)
    if isinstance(frame, nw.LazyFrame):
        return table_reader(*open_query(given), options)
    nested = isinstance(given, list) and given and isinstance(given[0], list)
    if nested and all(isinstance(value, int | float) for value in given[0]):
        given = np.asarray(given, dtype=np.float64)
    if issparse(given) or all(hasattr(given, name) for name in ("shape", "dtype", "__getitem__")):
        options.refuse_table_options("The array")
        title = {"numpy": "NumPy array", "h5py": "HDF5 array"}.get(package, f"{package} array")
        return open_array(
            given, y, weight, options.missing, "sparse array" if issparse(given) else title
        )
    if callable(given) or isinstance(given, Iterable):
        return _open_iterator(given, options)
    raise SourceError(
        f"Rows cannot be read from a {kind}. Give an array, a frame, a path, or an iterator of "
        "(X, y)."
    )


def _open_path(given: Any, options: Options) -> tuple[Feed, Reader]:
    files = find(given, options.format)
    if files.format not in CSV:
        options.refuse_csv_options(files.title)
    format = FORMATS[files.format]
    if not format.is_table:
        options.refuse_table_options(files.title)
    feed, layout = format.open(files, options)
    return table_reader(layout, feed, options) if format.is_table else (feed, layout)


def _open_iterator(given: Any, options: Options) -> tuple[Feed, Reader]:
    feed, (X, y, _) = open_iterator(given)
    if not (hasattr(X, "columns") or hasattr(X, "column_names")):
        options.refuse_table_options("The iterator of arrays")
        if options.target is not None or options.weight is not None:
            raise SourceError("An iterator of arrays yields the target itself: (X, y).")
        _, reader = open_array(X, y, None, options.missing, "The iterator's first X")
        return feed, reader
    if options.target is not None and y is not None:
        raise SourceError("The iterator yields y, so target= must not name a column as well.")
    sample = nw.from_native(X, eager_only=True)
    return table_reader(sample, feed, replace(options, target_apart=y is not None))


def _apart(options: Options) -> tuple[Any, Any, Options]:
    """Return the targets and weights if they are arrays, and options that keep only their names."""
    given = options.target, options.weight
    names = [value if is_name(value) else None for value in given]
    arrays = [None if is_name(value) else value for value in given]
    y, weight = (values if is_dask(values) else vector_of(values) for values in arrays)
    table = replace(options, target=names[0], weight=names[1], target_apart=y is not None)
    return y, weight, table


def feature_columns(
    sample: nw.DataFrame[Any], options: Options, title: str
) -> tuple[tuple[Any, ...], frozenset[Any]]:
    """Return the feature columns, and which are text; check all that are named."""
    available, encoder = list(sample.columns), options.encoder
    columns = options.columns if encoder is None else list(encoder.input_names)
    roles = {"target": options.target, "weight": options.weight}
    named: dict[str, Sequence[Any]] = {"columns": columns or ()}
    for role, name in roles.items():
        if name is not None and not is_name(name):
            raise SourceError(f"{title}: name the column of the {role} instead of giving an array.")
        named[role] = () if name is None else (name,)
    named |= {o: getattr(options, o) for o in ("exclude", "categorical_features", "keep")}
    for option, names in named.items():
        for i, name in enumerate(names):
            if name not in available:
                _refuse_unknown(title, name, option, available, encoder is not None)
            if name in names[:i]:
                raise SourceError(f"`{option}` names {name!r} twice. Name it once.")
    used = [*(columns or ()), *roles.values()]
    for name in roles.values():
        if name is not None and used.count(name) > 1:
            raise SourceError(
                f"{name!r} can be a feature, the target or the weight, but only one of them. "
                "Leave it out of `columns`, or name another `target` or `weight`."
            )
    if columns is None:
        others = (*roles.values(), *options.keep, *options.exclude)
        columns = [name for name in available if name not in others]
    if not columns:
        raise SourceError(
            f"{title} has no columns left for features: it has {shortened(available)}. Name fewer "
            "columns, or give a table with at least one more."
        )
    try:
        if encoder is None:
            declared = {*options.categorical_features}
            text = [n for n in columns if n in declared or is_text(sample.get_column(n))]
        else:
            text = list(encoder.text)
            for number, name in enumerate(columns):
                encoder.check_column(number, sample.get_column(name))
    except SourceError as error:
        raise SourceError(f"{title}: {error}", error.column) from None
    return tuple(columns), frozenset(text)


def _refuse_unknown(
    title: str, name: Any, option: str, available: list[Any], is_fitted: bool
) -> NoReturn:
    """Raise an error that a table has no such column, with its columns and where it may be."""
    text = f"{title} has no column {name!r} of `{option}`; it has {shortened(available)}."
    if all(NUMBER.fullmatch(str(column)) for column in available):
        raise SourceError(f"{text} If the first row holds data, give header=False.")
    if len(available) == 1:
        raise SourceError(
            f"{text} If these are several columns, give their separator with `delimiter`."
        )
    remedy = " Give rows with the columns of the model." if is_fitted else ""
    raise SourceError(text + did_you_mean(name, available) + remedy)


def table_reader(sample: nw.DataFrame[Any], feed: Feed, options: Options) -> tuple[Feed, Reader]:
    """Return the feed of the columns in use, and how a table is read.

    Parameters
    ----------
    sample : frame
        A frame with all columns and dtypes; only columns of Python objects need rows.
    feed : Feed
        The table.
    options : Options
        How to read it.

    Returns
    -------
    feed, reader
    """
    columns, text = feature_columns(sample, options, feed.title)
    roles, labels = {"target": options.target, "weight": options.weight}, None
    for role, name in roles.items():
        dtype = None if name is None else sample.schema[name]
        if dtype is None or dtype.is_numeric() or dtype in (nw.Boolean, *OBJECTS):
            continue
        if role == "weight" or options.labels is None:
            comma = ' If it has decimal commas, give decimal=",".' if feed.is_csv else ""
            raise SourceError(
                f"{feed.title}: the {role} {name!r} has dtype {dtype}, but must be "
                f"numbers. Choose a numeric column with `{role}`, or replace its values by "
                f"numbers.{comma}"
            )
        labels = () if isinstance(options.labels, str) else options.labels
    encoder = options.encoder
    kind = number_dtype(sample.schema[name] for name in columns if name not in text)
    if encoder is not None:
        kind = encoder.dtype
    elif text and set(options.levels) >= text:
        encoder = _given_encoder(columns, text, options.levels, kind)
    keep = list(options.keep)
    reader = Reader(
        columns,
        kind,
        options.target is not None or options.target_apart,
        options.missing,
        is_table=True,
        text=text,
        whole=tuple(c for c in columns if c not in text and is_whole(sample.get_column(c))),
        target=options.target,
        weight=options.weight,
        encoder=encoder,
        kept_columns=sample.select(keep).head(0).to_native() if keep else None,
        labels=labels,
        boolean_target=options.target is not None and sample.schema[options.target] == nw.Boolean,
    )
    used = [*columns, *(name for name in roles.values() if name is not None), *keep]
    return feed.only(list(dict.fromkeys(used))), reader


def _given_encoder(
    columns: Sequence[Any],
    text: Collection[Any],
    levels: Mapping[Any, Sequence[str]],
    dtype: np.dtype,
) -> TableEncoder:
    """Return the encoder of levels in the order in which the user gave them."""
    seen = {name: SeenLevels(name) for name in text}
    for name, each in seen.items():
        each.keyed = {(i, str(level)) for i, level in enumerate(levels[name])}
        each.kinds = {kind_of(np.asarray(levels[name]))}
    return TableEncoder.of(columns, seen, dtype)


def learned(feed: Feed, reader: Reader, options: Options) -> tuple[Reader, int | None]:
    """Learn labels, levels and means in one pass, as far as they are unknown.

    Returns
    -------
    reader, rows
        The number of rows that are kept, None if they were not counted.
    """
    needs_labels = reader.labels == ()
    needs_levels = bool(reader.text) and reader.encoder is None
    needs_means = reader.missing == "mean" and reader.fill is None and bool(len(reader.numbers))
    if not (needs_labels or needs_levels or needs_means):
        return reader, None
    if not feed.again:
        shown = f" of its text columns {shortened(sorted(reader.text, key=str))}" * needs_levels
        raise SourceError(
            f"{feed.title} can be read only once, but its labels, levels and means{shown} must be "
            "known beforehand. Give labels=[...], levels={column: [...]} or fill={column: value}, "
            "or save the rows to a file first."
        )
    text = [name for name in reader.columns if name in reader.text and needs_levels]
    decimal = options.dialect.decimal or "." if feed.is_csv else None
    labels = SeenLevels(reader.target, True) if needs_labels else None
    means = Means(len(reader.numbers)) if needs_means else None
    seen = _seen(feed, reader, text, labels, means)
    if labels is not None:
        reader = replace(reader, labels=_learned_labels(labels, feed, decimal))
    if means is not None:
        reader = replace(reader, fill=means.fill(reader.numbers, feed.title))
    if not needs_levels:
        return reader, None
    try:
        for name in sorted(seen.keys() - set(options.categorical_features), key=str):
            seen[name].check(partial(_first_row, feed), decimal)
        reader = replace(reader, encoder=TableEncoder.of(reader.columns, seen, reader.dtype))
    except SourceError as error:
        raise SourceError(f"{feed.title}: {error}", error.column) from None
    return reader, seen[text[0]].rows


def with_ids(feed: Feed, reader: Reader, names: Sequence[Any]) -> Reader:
    """Return a reader to which columns of whole numbers are categories: one pass over the rows.

    Columns that hold only 0 and 1 stay numbers.
    """
    seen = _seen(feed, replace(reader, text=reader.text | set(names), encoder=None), names)
    ids = {name: each for name, each in seen.items() if not each.levels().keys() <= {"0", "1"}}
    if not ids:
        return reader
    encoder = TableEncoder.of(reader.columns, ids, reader.dtype)
    return replace(
        reader,
        text=reader.text | set(ids),
        whole=(),
        encoder=encoder if reader.encoder is None else joint(reader.encoder, encoder),
    )


def _seen(
    feed: Feed,
    reader: Reader,
    names: Sequence[Any],
    labels: SeenLevels | None = None,
    means: Means | None = None,
) -> dict[Any, SeenLevels]:
    """Return the levels of some columns, and add labels and numbers to those given: one pass.

    Only rows that are kept count, and any column can cause a row to be dropped.
    """
    seen = {name: SeenLevels(name, reader.missing == "mean") for name in names}
    if reader.missing == "error":
        feed = feed.only([*names, *([] if labels is None else [reader.target])])
        reader = replace(reader, columns=names, target=None, weight=None, kept_columns=None)
    for piece in feed.pieces(default_rows(len(reader.columns), 0, sparse=False)):
        if labels is not None and len(labels.keyed) <= MANY_LABELS:
            frame = nw.from_native(piece.X, eager_only=True)
            _see(labels, frame.get_column(labels.name).cast(nw.String()))
        chunk, frame = reader.keep(piece, Counts())
        if means is not None:
            means.add(chunk.X, chunk.weight)
        for name, levels in seen.items():
            _see(levels, frame.get_column(name))
    return seen


def _see(levels: SeenLevels, column: nw.Series[Any]) -> None:
    with explained(f"the text of column {str(levels.name)!r}", "Write it as UTF-8, or exclude it."):
        levels.add(values_of(column))


def _learned_labels(seen: SeenLevels, feed: Feed, decimal: str | None) -> tuple[str, ...]:
    """Return the sorted labels of a text target, or raise an error that says why they are none."""
    labels, most = sorted(seen.labels), max(FEWEST_IDS, min(MANY_LABELS, seen.rows // 2))
    problem = seen.number_problem(partial(_first_row, feed), decimal)
    if problem is None and len(labels) <= most:
        return tuple(labels)
    many = f"The target {str(seen.name)!r} is text with {len(labels):,} different values."
    raise SourceError(f"{feed.title}: {problem or many} If they are classes, give labels=[...].")


def _first_row(feed: Feed, name: Any, label: str) -> str:
    """Return the first row with a label of a column."""
    for piece in feed.only([name]).pieces(default_rows(1, 0, sparse=False)):
        labels = nw.from_native(piece.X, eager_only=True).get_column(name).cast(nw.String())
        rows = np.flatnonzero((labels == label).fill_null(value=False).to_numpy())
        if len(rows):
            return str(piece.where(int(rows[0])))
    return "a row that was dropped"


def open_source(
    anything: Any,
    *,
    target: Any = None,
    weight: Any = None,
    columns: Sequence[Any] | None = None,
    exclude: Sequence[Any] = (),
    categorical_features: Sequence[Any] = (),
    missing: str | None = None,
    chunk_rows: int | None = None,
    format: str | None = None,
    encoder: TableEncoder | None = None,
    levels: Mapping[Any, Sequence[str]] | None = None,
    fill: Mapping[str, float] | None = None,
    n_features: int | None = None,
    zero_based: bool | str = "auto",
    delimiter: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    header: bool | None = None,
    na: Sequence[str] | None = None,
    keep: Sequence[Any] = (),
    labels: str | Sequence[str] | None = None,
) -> Source:
    """Open rows from anywhere, to be read in chunks of equal size.

    Parameters
    ----------
    anything : array, frame, path, iterator, function or file object
        NumPy arrays, memory maps and CSR; zarr, h5py and other arrays with a shape, a dtype and
        slices of rows; pandas, polars and Arrow frames; a polars LazyFrame; paths of Parquet, CSV,
        TSV, Arrow, .npy, svmlight and libffm files, folders of them, patterns and lists;
        a pyarrow.dataset; iterators of (X, y), (X, y, weight) or tables, such as
        ``pyarrow.csv.open_csv(sys.stdin.buffer)``, or functions that return such
        iterators; Dask arrays and frames.
    target, weight : column name, or array
        The name of a column for tables, an array for arrays (for a .npy file also the path of
        another). svmlight and libffm files contain their target.
    columns : sequence of names or None
        The features. If None, all columns except the target, the weight and those in `keep` and
        `exclude`.
    exclude : sequence of names
        Columns to ignore, instead of `columns`.
    categorical_features : sequence of names
        Columns whose values are categories, such as ids and codes, even if they are numbers: each
        value becomes a level. Text columns need not be named.
    missing : {"error", "drop", "mean"} or None
        How missing values are handled. "error": an error says where they are. "drop": rows with
        missing values are dropped. "mean": missing numbers are replaced by the mean of their
        column and missing text by the level "missing"; only rows without a target are dropped.
        None means "mean" if `fill` is given, otherwise "error".
    chunk_rows : int or None
        Rows per chunk. If None, as many as fit in the cache.
    format : str or None
        "parquet", "csv", "tsv", "arrow", "npy", "svmlight" or "libffm". If None, the suffix
        decides.
    encoder : TableEncoder or None
        The encoder of the text columns, such as a model's `encoder_`. Unknown levels are counted.
    levels : mapping of sequences or None
        The levels of each text column, for rows that can be read only once, and for columns with
        more levels than would otherwise be accepted.
    fill : mapping or None
        The values that replace missing ones with ``missing="mean"``, by column, such as a model's
        `fill_`.
    n_features, zero_based : int or None, bool or "auto"
        For svmlight files; determined by a scan if not given.
    delimiter : str or None
        The column separator of CSV. If None, a comma, or the semicolon, tab or bar of a header
        without commas.
    decimal : {".", ","} or None
        The decimal point of CSV. If None, a point.
    encoding : str or None
        The encoding of CSV, such as "latin1". If None, UTF-8.
    header : bool or None
        Whether the first row of CSV contains the names of the columns; if False, they are called
        x0, x1, … None means True.
    na : sequence of str or None
        Values of CSV that are missing, in addition to empty cells, NA, N/A, null and NaN. If None,
        "?". An empty list adds none.
    keep : sequence of names
        Columns, such as identifiers, that each chunk passes on as the frame `kept_columns`. They
        are features only if `columns` names them. In CSV files they are text.
    labels : "learn", sequence of str or None
        For classifiers whose target is a text column, the labels; the target of a row is then the
        position of its label. "learn" finds the labels by a scan and sorts them; a numeric target
        stays as it is, and text that is unlikely to be labels raises an error: numbers with a
        stray word among them, or a different value in every second row.

    Returns
    -------
    Source

    Raises
    ------
    SourceError
        If rows cannot be read; the message names the file, the column and the row.

    Examples
    --------
    >>> import numpy as np
    >>> source = open_source(np.arange(12.0).reshape(6, 2), target=np.ones(6), chunk_rows=4)
    >>> [chunk.X.shape for chunk in source]
    [(4, 2), (2, 2)]
    >>> source.description
    'NumPy array, 6 rows × 2 features'

    Text becomes one-hot fields:

    >>> import polars as pl
    >>> table = pl.DataFrame({"city": ["Oslo", "Rome"] * 2, "age": [1, 2, 3, 4], "y": [0, 1, 0, 1]})
    >>> open_source(table, target="y").names
    ('city=Oslo', 'city=Rome', 'age')
    """
    if isinstance(anything, Source):
        return anything
    if missing is None:
        missing = "error" if fill is None else "mean"
    if missing not in POLICIES:
        raise SourceError(f"missing={missing!r} is not one of {', '.join(map(repr, POLICIES))}.")
    is_integer = isinstance(chunk_rows, int | np.integer) and not isinstance(chunk_rows, bool)
    if chunk_rows is not None and (not is_integer or chunk_rows < 1):
        raise SourceError(f"chunk_rows={chunk_rows!r} must be a whole number ≥ 1.")
    if len(exclude) and columns is not None:
        raise SourceError(
            "`exclude` cannot be combined with `columns`, which already says which "
            "columns are features."
        )
    learns = encoder is None  # what the columns are; an encoder knows
    options = Options(
        target,
        weight,
        None if columns is None else list(_names(columns)),
        _names(exclude) if learns else (),
        _names(categorical_features) if learns else (),
        missing,
        format,
        encoder,
        levels or {},
        {str(k): float(v) for k, v in fill.items()} if fill and missing == "mean" else None,
        n_features,
        zero_based,
        Dialect.of(delimiter, decimal, encoding, header, na),
        _names(keep),
        labels if labels in (None, "learn") else tuple(map(str, labels)),
    )
    feed, reader = open_rows(anything, options)
    reader = replace(reader, fill=options.fill)
    reader, counted = learned(feed, reader, options)
    inputs = feed.per_row or len(reader.columns)
    all_kept = missing == "error" or (missing == "mean" and not reader.has_target)
    rows = feed.rows if counted is None and all_kept else counted
    size = int(chunk_rows or default_rows(inputs, len(reader.names), reader.sparse))
    return Source(feed, reader, size, rows, csv=options.dialect)


def _names(given: Sequence[Any]) -> tuple[Any, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
