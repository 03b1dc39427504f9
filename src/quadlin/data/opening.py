"""Rows from anywhere: arrays, frames, files, folders, iterators and Dask, as one kind of source."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import narwhals as nw
import numpy as np
from scipy.sparse import issparse

from quadlin.core.messages import Message, Option, Phrase
from quadlin.data.csv_text import Dialect
from quadlin.data.dask_collections import is_dask, is_dask_frame, open_dask_array, open_dask_frame
from quadlin.data.encoder import TableEncoder
from quadlin.data.errors import SourceError, explained
from quadlin.data.files import FORMATS, TITLES, find
from quadlin.data.iterators import open_iterator
from quadlin.data.readers import POLICIES, ArrayReader
from quadlin.data.schema import TableFeed, Wish, array_means, table_reader
from quadlin.data.sliceable import FrameFeed, load_numpy, open_array
from quadlin.data.source import Feed, Reader, Source, default_rows
from quadlin.data.svmlight import open_line_stream, open_lines

__all__ = ["Source", "SourceError", "is_dask", "open_source"]


@dataclass(frozen=True)
class _Asked:
    """The options of `open_source`."""

    wish: Wish
    target: Any
    weight: Any
    format: str | None
    n_features: int | None
    zero_based: bool | str
    dialect: Dialect

    @property
    def text(self) -> tuple[Any, ...]:
        """Return the columns that hold text, whatever they look like."""
        encoder = self.wish.encoder
        known = [] if encoder is None else zip(encoder.input_names, encoder.levels, strict=True)
        return (
            *(self.wish.levels or ()),
            *(name for name, levels in known if levels is not None),
            # What is only passed on stays as it is written: 007 is not 7.
            *(name for name in self.wish.keep if name not in self._read),
        )

    @property
    def _read(self) -> list[Any]:
        """Return the columns that are named to be read as numbers or text."""
        wish = self.wish
        columns = wish.columns if wish.encoder is None else wish.encoder.input_names
        columns = [columns] if isinstance(columns, str) else list(columns or ())
        return [*columns, *(n for n in (self.target, self.weight) if isinstance(n, str))]

    def named(self, title: str) -> Wish:
        """Return the wish, where target and weight are names of columns."""
        for role, value in (("target", self.target), ("weight", self.weight)):
            if value is not None and not isinstance(value, str | int):
                raise SourceError(f"{title}: name the column of the {role} instead of an array.")
        return replace(self.wish, target=self.target, weight=self.weight)

    def no_table(self, title: str) -> None:
        """Refuse what makes sense for tables only."""
        wish = self.wish
        for option in ("columns", "encoder", "levels"):
            if getattr(wish, option) is not None:
                raise SourceError(_for_tables(title, option))
        if wish.keep:
            raise SourceError(_for_tables(title, "keep"))

    def no_csv(self, title: str) -> None:
        """Refuse what makes sense for CSV only."""
        if self.dialect != Dialect():
            names = ("delimiter", "decimal", "encoding")
            raise SourceError(
                Message(
                    "{title} is not CSV: {delimiter}, {decimal} and {encoding} are for CSV only.",
                    title=title,
                    **{name: Option(name) for name in names},
                )
            )

    def written(self, format: str) -> Dialect:
        """Return how CSV of a format is written."""
        if format == "tsv" and self.dialect.delimiter is None:
            return replace(self.dialect, delimiter="\t")
        return self.dialect


def _for_tables(title: str, option: str) -> Message:
    return Message(
        "{title} has no named columns: {option} is for tables only.",
        title=title,
        option=Option(option),
    )


Opened = tuple[Feed, Reader, int | None]


def open_source(
    anything: Any,
    *,
    target: Any = None,
    weight: Any = None,
    columns: Sequence[Any] | None = None,
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
    keep: Sequence[Any] = (),
) -> Source:
    """Open rows, wherever they are, to be walked as chunks of even size.

    Parameters
    ----------
    anything : array, frame, path, iterator, function or file object
        numpy's arrays, memory maps and CSR; zarr, h5py and what else has a shape, a dtype and
        slices of rows; pandas, polars and Arrow frames; a polars LazyFrame; paths of Parquet, CSV,
        TSV, Arrow, .npy, .npz, svmlight and libffm files, folders of them, patterns and lists;
        a pyarrow.dataset; iterators of (X, y) or (X, y, weight), or functions that return such
        iterators; Dask arrays and frames; an open binary file, or "-" for the standard input,
        with `format`.
    target, weight : column name, or array
        Of tables a column, of arrays an array (for a .npy file also the path of another).
        svmlight and libffm files have their target built in.
    columns : sequence of names or None
        The features; None: all columns but the target and the weight.
    missing : {"error", "drop", "mean"} or None
        What to do with missing values: say where they are; leave the row out; put the column's
        mean in its place, and the level "missing" for text. None is "mean" where `fill` is given,
        else "error".
    chunk_rows : int or None
        Rows a chunk; None: as many as stay in the cache.
    format : str or None
        "parquet", "csv", "tsv", "arrow", "npy", "npz", "svmlight" or "libffm"; None: by the suffix.
    encoder : TableEncoder or None
        Of the text columns, when it is known already: levels it does not know are counted.
    levels : mapping of sequences or None
        The levels of each text column, for rows that can be walked only once.
    fill : mapping or None
        What ``missing="mean"`` puts in, by column, when it is known already, such as a model's
        `fill_`.
    n_features, zero_based : int or None, bool or "auto"
        Of svmlight files, when they are known; else one scan finds them.
    delimiter : str or None
        What separates the columns of CSV; None: a comma, or a semicolon, tab or bar where the
        header has no comma but one of those.
    decimal : {".", ","} or None
        The decimal point of CSV; None: a point, and columns of numbers with commas are refused.
    encoding : str or None
        The encoding of CSV, such as "latin1"; None: UTF-8.
    keep : sequence of names
        Columns that each chunk has beside its rows, as a frame `along`: identifiers, say. They are
        features only if `columns` names them. Those of CSV are text.

    Returns
    -------
    Source

    Raises
    ------
    SourceError
        Where rows cannot be read; it names the file, the column and the row.

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
    whole = isinstance(chunk_rows, int | np.integer) and not isinstance(chunk_rows, bool)
    if chunk_rows is not None and (not whole or chunk_rows < 1):
        raise SourceError(f"chunk_rows={chunk_rows!r} must be a whole number ≥ 1.")
    known = None
    if fill is not None and missing == "mean":
        known = {str(name): float(value) for name, value in fill.items()}
    passed_on = (keep,) if isinstance(keep, str) else tuple(keep)
    wish = Wish(None, None, columns, missing, encoder, levels, known, keep=passed_on)
    dialect = Dialect.of(delimiter, decimal, encoding)
    asked = _Asked(wish, target, weight, format, n_features, zero_based, dialect)
    feed, reader, counted = _opened(anything, asked)
    if isinstance(reader, ArrayReader) and missing == "mean":
        reader = replace(reader, fill=known) if known else array_means(feed, reader)
    inputs = getattr(feed, "per_row", None) or len(getattr(reader, "columns", reader.names))
    rows = feed.rows if counted is None and missing != "drop" else counted
    size = int(chunk_rows or default_rows(inputs, len(reader.names), reader.sparse))
    return Source(feed, reader, size, rows)


def _opened(given: Any, asked: _Asked) -> Opened:
    if isinstance(given, str | bytes | PathLike) and given != "-":
        return _open_path(given, asked)
    if isinstance(given, list | tuple) and given and isinstance(given[0], str | PathLike):
        return _open_path(given, asked)
    if hasattr(given, "read") or isinstance(given, str):
        return _open_handle(sys.stdin.buffer if isinstance(given, str) else given, asked)
    asked.no_csv(f"The {type(given).__name__}")
    if is_dask(given):
        return _open_dask(given, asked)
    if hasattr(given, "to_batches") and hasattr(given, "schema") and hasattr(given, "scanner"):
        from quadlin.data.arrow_batches import open_dataset

        return _table(*open_dataset(given), asked.named("Arrow dataset"))
    with explained(f"The {type(given).__name__}", "Check its columns."):
        frame = nw.from_native(_wrapped(given), pass_through=True)
    if isinstance(frame, nw.DataFrame):
        return _open_frame(frame, given, asked)
    if isinstance(frame, nw.LazyFrame):
        return _open_lazy(given, asked)
    if _is_numbers(given):
        given = np.asarray(given, dtype=np.float64)
    if issparse(given) or all(hasattr(given, name) for name in ("shape", "dtype", "__getitem__")):
        asked.no_table("The array")
        y, w = asked.target, asked.weight
        return *open_array(given, y, w, asked.wish.missing, _array_title(given)), None
    if callable(given) or isinstance(given, Iterable):
        return _open_iterator(given, asked)
    raise SourceError(
        f"Rows cannot come from a {type(given).__name__}. Give an array, a frame, a path, or an "
        "iterator of (X, y)."
    )


def _table(sample: nw.DataFrame[Any], feed: TableFeed, wish: Wish) -> Opened:
    return table_reader(sample, wish, feed, feed.title)


def _open_path(given: Any, asked: _Asked) -> Opened:
    found = find(given, asked.format)
    wish = asked.wish
    if found.format not in ("csv", "tsv"):
        asked.no_csv(found.title)
    if found.format in ("svmlight", "libffm"):
        asked.no_table(found.title)
        if asked.target is not None or asked.weight is not None:
            raise SourceError(
                Message(
                    "{title} contains its own target: leave out {target} and {weight}.",
                    title=found.title,
                    target=Option("target"),
                    weight=Option("weight"),
                )
            )
        return *open_lines(found, asked.n_features, asked.zero_based, wish.missing), None
    if found.format in ("npy", "npz"):
        asked.no_table(found.title)
        if len(found.files) > 1:
            raise SourceError(f"{found.title}: give one NumPy file at a time.")
        file = found.files[0]
        X, y, w = load_numpy(file.path, found.format)
        target, weight = (_array_at(values) for values in (asked.target, asked.weight))
        y, w = (y if target is None else target), (w if weight is None else weight)
        return *open_array(X, y, w, wish.missing, found.title, file), None
    from quadlin.data.table_files import open_files

    opened = open_files(found, asked.text, asked.written(found.format))
    return _table(*opened, asked.named(found.title))


def _array_at(values: Any) -> Any:
    """Return an array, mapped from a .npy file where a path came."""
    if isinstance(values, str | PathLike):
        return load_numpy(str(values), "npy")[0]
    return values


def _open_handle(handle: Any, asked: _Asked) -> Opened:
    format, missing = asked.format, asked.wish.missing
    if format not in (None, "csv", "tsv"):
        asked.no_csv("The stream")
    if format in ("svmlight", "libffm"):
        return *open_line_stream(handle, format, asked.n_features, asked.zero_based, missing), None
    if format not in ("csv", "tsv", "arrow"):
        raise SourceError(
            Message(
                "{what} needs {format} csv, tsv, arrow (a stream), svmlight or libffm{else_}",
                what=Phrase("An open file", "The standard input"),
                format=Option("format"),
                else_=f"; {format!r} needs a file with a path." if format in FORMATS else ".",
            )
        )
    from quadlin.data.handles import open_stream

    opened = open_stream(handle, format, asked.text, asked.written(format))
    return _table(*opened, asked.named(f"{TITLES[format]} stream"))


def _open_dask(given: Any, asked: _Asked) -> Opened:
    if not is_dask_frame(given):
        asked.no_table("The Dask array")
        feed, reader = open_dask_array(given, asked.target, asked.weight, asked.wish.missing)
        return feed, reader, None
    if not hasattr(given, "columns"):
        raise SourceError("The Dask series has one column. Give a frame or an array.")
    y, weight, wish = _beside(asked)
    sample, frames = open_dask_frame(given, y, weight)
    return _table(sample, frames, wish)


def _open_frame(frame: nw.DataFrame[Any], given: Any, asked: _Asked) -> Opened:
    title = f"{type(given).__module__.split('.')[0]} frame"
    y, weight, wish = _beside(asked)
    if not len(frame):
        raise SourceError(f"The {title} holds no rows. At least one is needed.")
    for values, role in ((y, "target"), (weight, "weight")):
        if values is not None and len(values) != len(frame):
            raise SourceError(
                f"The {role} has {len(values)} entries, but there are {len(frame)} rows."
            )
    return _table(frame, FrameFeed(frame, y, weight, title), wish)


def _beside(asked: _Asked) -> tuple[Any, Any, Wish]:
    """Tell arrays that come beside a frame from names of its columns."""
    name = [v if isinstance(v, str | int) else None for v in (asked.target, asked.weight)]
    array = [None if isinstance(v, str | int) else v for v in (asked.target, asked.weight)]
    wish = replace(asked.wish, target=name[0], weight=name[1], beside=array[0] is not None)
    return _vector(array[0]), _vector(array[1]), wish


def _vector(values: Any) -> Any:
    if values is None or is_dask(values) or isinstance(values, np.ndarray):
        return values
    return np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)


def _open_lazy(given: Any, asked: _Asked) -> Opened:
    if not hasattr(given, "collect_batches"):
        raise SourceError(
            f"A lazy {type(given).__module__.split('.')[0]} frame cannot be walked in pieces. "
            "Collect it, or write it to Parquet and give the file."
        )
    from quadlin.data.arrow_batches import BatchFeed

    sample = nw.from_native(given.head(0).collect(), eager_only=True)
    feed = BatchFeed(_LazyWalk(given), tuple(sample.columns), "polars LazyFrame", None)
    return _table(sample, feed, asked.named("polars LazyFrame"))


@dataclass(frozen=True)
class _LazyWalk:
    """Batches of a polars query."""

    query: Any

    def __call__(self, columns: Sequence[Any]) -> Any:
        return self.query.select(list(columns)).collect_batches(maintain_order=True)


def _open_iterator(given: Any, asked: _Asked) -> Opened:
    feed, (X, y, _) = open_iterator(given)
    if not (hasattr(X, "columns") or hasattr(X, "column_names")):
        asked.no_table("The iterator of arrays")
        if asked.target is not None or asked.weight is not None:
            raise SourceError("An iterator of arrays yields the target itself: (X, y).")
        _, reader = open_array(X, y, None, asked.wish.missing, "The iterator's first X")
        return feed, reader, None
    sample = nw.from_native(X, eager_only=True)
    feed = replace(feed, columns=tuple(sample.columns))
    wish = replace(asked.named("The iterator"), beside=y is not None)
    if asked.target is not None and y is not None:
        raise SourceError("The iterator yields a y, so target= must not name a column as well.")
    return _table(sample, feed, wish)


def _wrapped(given: Any) -> Any:
    """Return a table where an Arrow batch came."""
    if type(given).__name__ == "RecordBatch":
        import pyarrow

        return pyarrow.Table.from_batches([given])
    return given


def _is_numbers(given: Any) -> bool:
    """Tell whether something is a list of lists of numbers."""
    nested = isinstance(given, list) and given and isinstance(given[0], list)
    return bool(nested and all(isinstance(value, int | float) for value in given[0]))


def _array_title(given: Any) -> str:
    name = type(given).__module__.split(".")[0]
    if issparse(given):
        return "sparse array"
    return {"numpy": "NumPy array", "zarr": "zarr array", "h5py": "HDF5 array"}.get(name, "array")
