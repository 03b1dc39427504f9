"""Recognises what was given: arrays, frames, files, folders, streams, iterators or Dask."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import narwhals as nw
import numpy as np
from scipy.sparse import issparse

from quadlin.core.chunks import is_dask
from quadlin.data.columns.errors import SourceError, explained
from quadlin.data.opening.dask_collections import is_dask_frame, open_dask_array, open_dask_frame
from quadlin.data.opening.slices import SliceFeed, open_array
from quadlin.data.sources.feeds import Feed
from quadlin.data.sources.files import FORMATS, find
from quadlin.data.sources.iterators import open_iterator, vector_of
from quadlin.data.sources.numpy_files import load_numpy
from quadlin.data.sources.options import OpenOptions
from quadlin.data.sources.readers import Reader
from quadlin.data.sources.schema import table_reader
from quadlin.data.sources.svmlight import open_line_stream, open_lines

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
        from quadlin.data.sources.arrow_batches import open_dataset

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
    if files.format in ("svmlight", "libffm"):
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
    if format in ("svmlight", "libffm"):
        return *open_line_stream(
            handle, format, options.n_features, options.zero_based, missing
        ), None
    if format not in ("csv", "tsv", "arrow"):
        raise SourceError(
            (
                "An open file needs `format` csv, tsv, arrow (a stream), svmlight or libffm{else_}"
            ).format(else_=f"; {format!r} needs a file with a path." if format in FORMATS else ".")
        )
    from quadlin.data.opening.handles import open_stream

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
    from quadlin.data.sources.arrow_batches import BatchFeed

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
