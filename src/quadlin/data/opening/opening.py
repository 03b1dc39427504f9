"""The function that opens rows from anywhere: arrays, frames, files, streams, iterators or Dask."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import narwhals as nw
import numpy as np
from scipy.sparse import issparse

from quadlin.core.chunks import is_dask
from quadlin.data.columns.encoder import TableEncoder
from quadlin.data.columns.errors import SourceError, explained
from quadlin.data.opening.dask_collections import is_dask_frame, open_dask_array, open_dask_frame
from quadlin.data.opening.slices import SliceFeed, load_numpy, open_array
from quadlin.data.sources.csv_text import Dialect
from quadlin.data.sources.feeds import Feed, default_rows
from quadlin.data.sources.files import FORMATS, find
from quadlin.data.sources.iterators import open_iterator, vector_of
from quadlin.data.sources.lines import PARSERS, open_line_stream, open_lines
from quadlin.data.sources.readers import POLICIES, Reader, learn_means
from quadlin.data.sources.schema import OpenOptions, table_reader
from quadlin.data.sources.source import Source

Opened = tuple[Feed, Reader, int | None]


def open_rows(given: Any, options: OpenOptions) -> Opened:
    """Return the feed and the reader of what the user gave, and the number of rows if counted."""
    if isinstance(given, str | bytes | PathLike) and given != "-":
        return _open_path(given, options)
    if isinstance(given, list | tuple) and given and isinstance(given[0], str | PathLike):
        return _open_path(given, options)
    if hasattr(given, "read") or isinstance(given, str):
        return _open_handle(sys.stdin.buffer if isinstance(given, str) else given, options)
    options.no_csv(f"The {type(given).__name__}")
    if is_dask(given):
        return _open_dask(given, options)
    if hasattr(given, "to_batches") and hasattr(given, "schema") and hasattr(given, "scanner"):
        from quadlin.data.sources.table_files import open_dataset

        return table_reader(*open_dataset(given), options)
    with explained(f"The {type(given).__name__}", "Check its columns."):
        frame = nw.from_native(_wrapped(given), pass_through=True)
    if isinstance(frame, nw.DataFrame):
        return _open_frame(frame, given, options)
    if isinstance(frame, nw.LazyFrame):
        return _open_lazy(given, options)
    if _is_numbers(given):
        given = np.asarray(given, dtype=np.float64)
    if issparse(given) or all(hasattr(given, name) for name in ("shape", "dtype", "__getitem__")):
        options.no_table("The array")
        y, w = options.target, options.weight
        return *open_array(given, y, w, options.missing, _array_title(given)), None
    if callable(given) or isinstance(given, Iterable):
        return _open_iterator(given, options)
    raise SourceError(
        f"Rows cannot be read from a {type(given).__name__}. Give an array, a frame, a path, or an "
        "iterator of (X, y)."
    )


def _open_path(given: Any, options: OpenOptions) -> Opened:
    files = find(given, options.format)
    if files.format not in ("csv", "tsv"):
        options.no_csv(files.title)
    if files.format in PARSERS:
        options.no_table(files.title)
        if options.target is not None or options.weight is not None:
            raise SourceError(
                f"{files.title} contains its own target: leave out `target` and `weight`."
            )
        return *open_lines(files, options.n_features, options.zero_based, options.missing), None
    if files.format in ("npy", "npz"):
        options.no_table(files.title)
        if len(files.files) > 1:
            raise SourceError(f"{files.title}: give one NumPy file at a time.")
        file = files.files[0]
        X, y, w = load_numpy(file.path, files.format)
        target, weight = (_array_at(values) for values in (options.target, options.weight))
        y, w = (y if target is None else target), (w if weight is None else weight)
        return *open_array(X, y, w, options.missing, files.title, file), None
    from quadlin.data.sources.table_files import open_files

    return table_reader(*open_files(files, options.text, options.written(files.format)), options)


def _array_at(values: Any) -> Any:
    """Return an array, mapped from a .npy file if a path was given."""
    if isinstance(values, str | PathLike):
        return load_numpy(str(values), "npy")[0]
    return values


def _open_handle(handle: Any, options: OpenOptions) -> Opened:
    format, missing = options.format, options.missing
    if format not in (None, "csv", "tsv"):
        options.no_csv("The stream")
    if format in PARSERS:
        return *open_line_stream(
            handle, format, options.n_features, options.zero_based, missing
        ), None
    if format not in ("csv", "tsv", "arrow"):
        raise SourceError(
            (
                "An open file needs `format` csv, tsv, arrow (a stream), svmlight or libffm{else_}"
            ).format(else_=f"; {format!r} needs a file with a path." if format in FORMATS else ".")
        )
    from quadlin.data.sources.table_files import open_stream

    return table_reader(
        *open_stream(handle, format, options.text, options.written(format)), options
    )


def _open_dask(given: Any, options: OpenOptions) -> Opened:
    if not is_dask_frame(given):
        options.no_table("The Dask array")
        feed, reader = open_dask_array(given, options.target, options.weight, options.missing)
        return feed, reader, None
    if not hasattr(given, "columns"):
        raise SourceError("The Dask series has one column. Give a frame or an array.")
    y, weight, table = _apart(options)
    return table_reader(*open_dask_frame(given, y, weight), table)


def _open_frame(frame: nw.DataFrame[Any], given: Any, options: OpenOptions) -> Opened:
    title = f"{type(given).__module__.split('.')[0]} frame"
    y, weight, table = _apart(options)
    if not len(frame):
        raise SourceError(f"The {title} holds no rows. At least one is needed.")
    for values, role in ((y, "target"), (weight, "weight")):
        if values is not None and len(values) != len(frame):
            raise SourceError(
                f"The {role} has {len(values)} entries, but there are {len(frame)} rows."
            )
    return table_reader(frame, SliceFeed(frame, y, weight, title), table)


def _apart(options: OpenOptions) -> tuple[Any, Any, OpenOptions]:
    """Return the targets and weights if they are arrays, and options that keep only their names."""
    name = [v if isinstance(v, str | int) else None for v in (options.target, options.weight)]
    array = [None if isinstance(v, str | int) else v for v in (options.target, options.weight)]
    table = replace(options, target=name[0], weight=name[1], target_apart=array[0] is not None)
    y, weight = (values if is_dask(values) else vector_of(values) for values in array)
    return y, weight, table


def _open_lazy(given: Any, options: OpenOptions) -> Opened:
    if not hasattr(given, "collect_batches"):
        raise SourceError(
            f"A lazy {type(given).__module__.split('.')[0]} frame cannot be read in pieces. "
            "Collect it, or write it to Parquet and give the file."
        )
    from quadlin.data.sources.table_files import BatchFeed

    sample = nw.from_native(given.head(0).collect(), eager_only=True)
    feed = BatchFeed(_LazyWalk(given), tuple(sample.columns), "polars LazyFrame", None)
    return table_reader(sample, feed, options)


@dataclass(frozen=True)
class _LazyWalk:
    """Batches of a polars query."""

    query: Any

    def __call__(self, columns: Sequence[Any]) -> Any:
        return self.query.select(list(columns)).collect_batches(maintain_order=True)


def _open_iterator(given: Any, options: OpenOptions) -> Opened:
    feed, (X, y, _) = open_iterator(given)
    if not (hasattr(X, "columns") or hasattr(X, "column_names")):
        options.no_table("The iterator of arrays")
        if options.target is not None or options.weight is not None:
            raise SourceError("An iterator of arrays yields the target itself: (X, y).")
        _, reader = open_array(X, y, None, options.missing, "The iterator's first X")
        return feed, reader, None
    if options.target is not None and y is not None:
        raise SourceError("The iterator yields y, so target= must not name a column as well.")
    sample = nw.from_native(X, eager_only=True)
    feed = replace(feed, columns=tuple(sample.columns))
    return table_reader(sample, feed, replace(options, target_apart=y is not None))


def _wrapped(given: Any) -> Any:
    """Return a table if an Arrow batch was given."""
    if type(given).__name__ == "RecordBatch":
        import pyarrow

        return pyarrow.Table.from_batches([given])
    return given


def _is_numbers(given: Any) -> bool:
    """Return whether something is a list of lists of numbers."""
    nested = isinstance(given, list) and given and isinstance(given[0], list)
    return bool(nested and all(isinstance(value, int | float) for value in given[0]))


def _array_title(given: Any) -> str:
    name = type(given).__module__.split(".")[0]
    if issparse(given):
        return "sparse array"
    return {"numpy": "NumPy array", "zarr": "zarr array", "h5py": "HDF5 array"}.get(name, "array")


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
        TSV, Arrow, .npy, .npz, svmlight and libffm files, folders of them, patterns and lists;
        a pyarrow.dataset; iterators of (X, y) or (X, y, weight), or functions that return such
        iterators; Dask arrays and frames; an open binary file, or "-" for the standard input,
        with `format`.
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
        "parquet", "csv", "tsv", "arrow", "npy", "npz", "svmlight" or "libffm". If None, the suffix
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
        are features only if `columns` names them. Those of CSV are text.
    labels : "learn", "auto", sequence of str or None
        For classifiers whose target is a text column, the labels; the target of a row is then the
        position of its label. "learn" finds the labels by a scan and sorts them; a numeric target
        stays as it is. "auto" does the same, but refuses text that is unlikely to be labels:
        numbers with a stray word among them, more than 50 different values, or a different value
        in every second row.

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
    _check(missing, chunk_rows, exclude, columns)
    means = None
    if fill is not None and missing == "mean":
        means = {str(name): float(value) for name, value in fill.items()}
    label_names = None if labels in (None, "learn", "auto") else tuple(map(str, labels))
    dialect = Dialect.of(delimiter, decimal, encoding, header, na)
    options = OpenOptions(
        target,
        weight,
        columns,
        missing,
        encoder,
        levels,
        means,
        _names(keep),
        _names(categorical_features) if encoder is None else (),
        _names(exclude) if encoder is None else (),
        label_names or labels,
        format,
        n_features,
        zero_based,
        dialect,
    )
    feed, reader, counted = open_rows(anything, options)
    if not reader.is_table and missing == "mean":
        reader = replace(reader, fill=means) if means else learn_means(feed, reader)
    inputs = feed.per_row or len(reader.columns)
    all_kept = missing == "error" or (missing == "mean" and not reader.has_target)
    rows = feed.rows if counted is None and all_kept else counted
    size = int(chunk_rows or default_rows(inputs, len(reader.names), reader.sparse))
    return Source(feed, reader, size, rows, csv=dialect)


def _check(missing: str, chunk_rows: Any, exclude: Sequence[Any], columns: Any) -> None:
    """Refuse options that are invalid, alone or together."""
    if missing not in POLICIES:
        raise SourceError(f"missing={missing!r} is not one of {', '.join(map(repr, POLICIES))}.")
    is_integer = isinstance(chunk_rows, int | np.integer) and not isinstance(chunk_rows, bool)
    if chunk_rows is not None and (not is_integer or chunk_rows < 1):
        raise SourceError(f"chunk_rows={chunk_rows!r} must be a whole number ≥ 1.")
    if exclude and columns is not None:
        raise SourceError(
            "`exclude` cannot be combined with `columns`, which already says which "
            "columns are features."
        )


def _names(given: Sequence[Any]) -> tuple[Any, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
