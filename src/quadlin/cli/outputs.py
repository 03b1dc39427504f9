"""The files that a command writes: checked before anything is computed, then written in blocks."""

import csv
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from quadlin.cli.options import MODEL_SUFFIX, STANDARD, OutputOptions, UsageError
from quadlin.data import SourceError
from quadlin.data.sources.files import find, format_of
from quadlin.files.atomic import atomic_write

# Takes an array (n, 1), or (n, 2) with standard deviations, and an Arrow table beside it or None.
Write = Callable[[np.ndarray, Any], None]
FOREIGN_MODELS = (".pkl", ".pickle", ".joblib", ".json", ".h5", ".pt", ".pth", ".skops")
ROW_GROUP = 1 << 17  # rows of a Parquet row group: a chunk alone would be too small
WHOLE = 2**53  # numbers below it that are whole are written so
GROUP_BYTES = 1 << 26  # or bytes, where long texts are kept


def check_output(path: Path, *inputs: Any) -> Path:
    """Refuse an output that cannot be written, before an hour is spent on its content."""
    if str(path) == STANDARD:
        raise UsageError("This command writes to a file, not to the standard output. Name a file.")
    folder = path.parent
    if path.is_dir():
        raise SourceError(f"{path} is a folder. Give the name of a file in it.")
    if not folder.is_dir():
        raise SourceError(f"There is no folder {folder} to write {path.name} to. Create it first.")
    if not os.access(folder, os.W_OK):
        raise SourceError(f"The folder {folder} is not writable. Choose another one for {path}.")
    for given in inputs:
        if any(_same(path, other) for other in _files(str(given))):
            raise UsageError(f"{path} is an input of this command, so it cannot be the output too.")
    return path


def check_model_output(path: Path, *inputs: Any) -> None:
    """Refuse a name that promises another format than that of a model file."""
    check_output(path, *inputs)
    suffix = path.suffix.lower()
    if suffix == ".onnx":
        raise UsageError(
            f"-o {path}: fit writes .safetensors files. Save such a file first, then use quadlin "
            "export for ONNX."
        )
    if suffix in FOREIGN_MODELS or format_of(path.name) is not None:
        raise UsageError(
            f"-o {path}: a model is written in the safetensors format, so its name cannot end in "
            f"{suffix}. Use -o {path.with_suffix(MODEL_SUFFIX)}."
        )


def _files(given: str) -> list[Path]:
    """Return the files that an argument of a command stands for."""
    try:
        return [Path(file.path) for file in find(given, None).files]
    except SourceError:  # reported when it is opened
        return [Path(given)]


def _same(path: Path, other: Path) -> bool:
    if path.exists() and other.exists():
        return path.samefile(other)
    return path.resolve() == other.resolve()


def check_rows_output(
    output: Path | None, what: str, suffixes: Sequence[str], answer: OutputOptions, *inputs: Any
) -> tuple[Path, bool]:
    """Refuse an output of rows that cannot be written; tell whether it is the standard output."""
    if output is None:
        raise UsageError(f"Name a file for the {what}, such as -o {what}.csv, or -o -.")
    if str(output) == STANDARD:
        if answer.json:
            raise UsageError("-o - and --json would both print to the standard output.")
        return output, True
    if output.suffix.lower() not in suffixes:
        raise UsageError(f"-o {output} must end in {', '.join(suffixes)}, or be -.")
    check_output(output, *inputs)
    return output, False


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
    if suffix == ".csv" or str(output) == STANDARD:
        return _csv(output, names, along)
    return _numpy(output, names) if suffix == ".npy" else _parquet(output, names, along)


@contextmanager
def _csv(path: Path, names: list[str], along: Any) -> Iterator[Write]:
    header = _header(names, along)
    with nullcontext() if str(path) == STANDARD else atomic_write(path) as file:

        def write(block: np.ndarray, beside: Any) -> None:
            nonlocal header
            kept = [] if beside is None else [_cells(column) for column in beside.columns]
            # The header does not come before there are rows: a command may fail at the first.
            text = header + _lines(zip(*kept, *block.T.tolist(), strict=True))
            header = ""
            if file is None:
                sys.stdout.write(text)
            else:
                file.write(text.encode())

        yield write
    sys.stdout.flush()


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
