"""Files of predictions, written block by block."""

import csv
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from quadlin.cli.options import STANDARD
from quadlin.data import SourceError
from quadlin.storage.atomic import atomic_write

# Takes an array (n, 1), or (n, 2) with standard deviations, and an Arrow table beside it or None.
Write = Callable[[np.ndarray, Any], None]
SUFFIXES = (".parquet", ".pq", ".csv", ".npy")
ROW_GROUP = 1 << 17  # rows of a Parquet row group: a chunk alone would be too small
WHOLE = 2**53  # numbers below it that are whole are written so
GROUP_BYTES = 1 << 26  # or bytes, where long texts are kept


def prediction_writer(output: Path, names: list[str], along: Any) -> AbstractContextManager[Write]:
    """Open an output for predictions.

    Parameters
    ----------
    output : path
        Its suffix gives the format; a lone hyphen is CSV on the standard output.
    names : list of str
        The names of the columns of predictions.
    along : Arrow table or None
        A table without rows: the columns that come before the predictions.

    Returns
    -------
    context manager
        It gives a function that writes a block. The file appears when the last one is written.
    """
    suffix = output.suffix.lower()
    if str(output) == STANDARD:
        return _text(names, along)
    if suffix == ".npy":
        return _numpy(output, names)
    return _csv(output, names, along) if suffix == ".csv" else _parquet(output, names, along)


@contextmanager
def _text(names: list[str], along: Any) -> Iterator[Write]:
    header = _header(names, along)

    def write(block: np.ndarray, beside: Any) -> None:
        nonlocal header
        sys.stdout.write(header)  # not before there are rows: a command may fail at the first
        header = ""
        _print(sys.stdout.write, block, beside)

    yield write
    sys.stdout.flush()


@contextmanager
def _csv(path: Path, names: list[str], along: Any) -> Iterator[Write]:
    header = _header(names, along)
    with atomic_write(path) as file:
        file.write(header.encode())
        yield lambda block, beside: _print(lambda text: file.write(text.encode()), block, beside)


def _header(names: list[str], along: Any) -> str:
    if along is None:
        return _lines([names])
    for field in along.schema:
        if str(field.type).startswith(("list", "large_list", "struct", "map", "binary", "large_b")):
            raise SourceError(
                f"Column {field.name!r} holds {field.type}, which CSV cannot hold. Write a "
                ".parquet file."
            )
    return _lines([[*along.column_names, *names]])


def _print(write: Callable[[str], Any], block: np.ndarray, beside: Any) -> None:
    kept = [] if beside is None else [_cells(column) for column in beside.columns]
    write(_lines(zip(*kept, *block.T.tolist(), strict=True)))


def _cells(column: Any) -> list[Any]:
    """Return a column as Python prints it; dates and truths as Arrow does, 1999.0 as 1999."""
    if str(column.type).startswith(("date", "time", "duration", "bool")):
        column = column.cast("string")
    return [
        int(v) if isinstance(v, float) and v.is_integer() and abs(v) < WHOLE else v
        for v in column.to_pylist()
    ]


def _lines(rows: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


@contextmanager
def _parquet(path: Path, names: list[str], along: Any) -> Iterator[Write]:
    try:
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter
    except ImportError:
        raise ImportError('Parquet files need pyarrow: pip install "quadlin[table]".') from None
    schema = pa.schema([(name, pa.float64()) for name in names])
    if along is not None:
        schema = pa.schema([*along.schema, *schema])
    waiting: list[Any] = []

    def write(block: np.ndarray, beside: Any) -> None:
        kept = [] if beside is None else beside.columns
        numbers = [pa.array(column) for column in np.ascontiguousarray(block.T)]
        waiting.append(pa.table([*kept, *numbers], schema=schema))
        if sum(map(len, waiting)) >= ROW_GROUP or sum(t.nbytes for t in waiting) >= GROUP_BYTES:
            flush()

    def flush() -> None:
        writer.write_table(pa.concat_tables(waiting))
        waiting.clear()

    with atomic_write(path) as file, ParquetWriter(file, schema) as writer:
        yield write
        if waiting:
            flush()


@contextmanager
def _numpy(path: Path, names: list[str]) -> Iterator[Write]:
    """Write one or two columns; the header is written again when the number of rows is known."""
    total, shape = 0, () if len(names) == 1 else (len(names),)

    def write_header() -> None:
        layout = {"descr": "<f8", "fortran_order": False, "shape": (total, *shape)}
        np.lib.format.write_array_header_1_0(file, layout)  # leaves room for more rows

    with atomic_write(path) as file:
        write_header()

        def write(block: np.ndarray, beside: Any) -> None:
            nonlocal total
            file.write(np.ascontiguousarray(block, dtype="<f8").tobytes())
            total += len(block)

        yield write
        file.seek(0)
        write_header()
