"""The function that opens rows from anywhere: `open_source`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quadlin.data.columns.encoder import TableEncoder
from quadlin.data.columns.errors import SourceError
from quadlin.data.opening.openers import open_rows
from quadlin.data.sources.csv_text import Dialect
from quadlin.data.sources.means import array_means
from quadlin.data.sources.options import OpenOptions
from quadlin.data.sources.readers import POLICIES, ArrayReader
from quadlin.data.sources.source import Source, default_rows


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
    if isinstance(reader, ArrayReader) and missing == "mean":
        reader = replace(reader, fill=means) if means else array_means(feed, reader)
    inputs = feed.per_row or len(reader.columns or reader.names)
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
