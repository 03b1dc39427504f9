"""The function that opens rows from anywhere: `open_source`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quadlin.core.messages import Message, Option
from quadlin.data.csv_text import Dialect
from quadlin.data.encoder import TableEncoder
from quadlin.data.errors import SourceError
from quadlin.data.means import array_means
from quadlin.data.openers import open_rows
from quadlin.data.options import OpenOptions, TableOptions
from quadlin.data.readers import POLICIES, ArrayReader
from quadlin.data.source import Source, default_rows


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
    header: bool | None = None,
    na: Sequence[str] | None = None,
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
    header : bool or None
        Whether the first row of CSV names the columns; False calls them x0, x1, … None: it does,
        and a first row that looks like data is refused.
    na : sequence of str or None
        What stands for a missing value in CSV, beside an empty cell, NA, N/A, null and NaN. None:
        "?", and such as "-", "." or "none" in a column that is numeric otherwise, with a warning;
        an empty list: nothing else.
    keep : sequence of names
        Columns, such as identifiers, that each chunk passes on as the frame `kept_columns`. They
        are features only if `columns` names them. Those of CSV are text.

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
        raise SourceError(
            Message(
                "{missing} is not one of {policies}.",
                missing=Option("missing", missing),
                policies=", ".join(map(repr, POLICIES)),
            )
        )
    whole = isinstance(chunk_rows, int | np.integer) and not isinstance(chunk_rows, bool)
    if chunk_rows is not None and (not whole or chunk_rows < 1):
        raise SourceError(
            Message("{rows} must be a whole number ≥ 1.", rows=Option("chunk_rows", chunk_rows))
        )
    means = None
    if fill is not None and missing == "mean":
        means = {str(name): float(value) for name, value in fill.items()}
    kept = (keep,) if isinstance(keep, str) else tuple(keep)
    table = TableOptions(None, None, columns, missing, encoder, levels, means, keep=kept)
    dialect = Dialect.of(delimiter, decimal, encoding, header, na)
    options = OpenOptions(table, target, weight, format, n_features, zero_based, dialect)
    feed, reader, counted = open_rows(anything, options)
    if isinstance(reader, ArrayReader) and missing == "mean":
        reader = replace(reader, fill=means) if means else array_means(feed, reader)
    inputs = feed.entries_per_row() or len(reader.input_columns or reader.names)
    rows = feed.rows if counted is None and missing != "drop" else counted
    size = int(chunk_rows or default_rows(inputs, len(reader.names), reader.sparse))
    return Source(feed, reader, size, rows)
