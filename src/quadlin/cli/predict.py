"""`quadlin predict`: rows in, predictions out, a chunk at a time."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from quadlin.cli.options import ROWS, SAY, Flag, Output, Rows, Say, loaded, opened_for, writable
from quadlin.cli.progress import watched
from quadlin.cli.words import STANDARD, UsageError, emit, note
from quadlin.store import replacing

Write = Callable[[np.ndarray], None]  # of an array (n, 1), or (n, 2) with standard deviations
SUFFIXES = (".parquet", ".pq", ".csv", ".npy")


def predict(
    model: Path,
    data: str,
    *,
    output: Output,
    std: Flag = False,
    read: Rows = ROWS,
    say: Say = SAY,
) -> None:
    """Predict the rows of a table, in their order.

    Memory does not grow with the number of rows. Other columns are not read.
    ±1.96 standard deviations are a 95% interval.

      quadlin predict model.safetensors new.csv -o predictions.csv
      quadlin predict model.safetensors new.parquet --std -o predictions.parquet
      cat new.csv | quadlin predict model.safetensors - --format csv -o - | head

    Parameters
    ----------
    model
        A file that quadlin fit wrote.
    data
        Rows: a file, a folder, a quoted pattern, or - for the standard input (with --format).
    output
        A .parquet, .csv or .npy file, replaced if it is there; - is CSV on the standard output.
    std
        Also the standard deviation of a new observation. The model needs fit --uncertainty.
    """
    to_stdout = str(output) == STANDARD
    if not to_stdout:
        if output.suffix.lower() not in SUFFIXES:
            raise UsageError(f"-o {output} must end in {', '.join(SUFFIXES)}, or be -.")
        writable(output, model, data)
    elif say.json:
        raise UsageError("-o - and --json would both print to the standard output.")
    fitted = loaded(model)
    if std and fitted._law is None:
        raise ValueError(f"{model} has no standard errors: fit it with --uncertainty.")
    source = opened_for(fitted, data, read, say)
    names = ["prediction", "std"] if std else ["prediction"]
    rows = 0
    with (
        watched(source, "predicting", say.still or to_stdout) as walked,
        _writer(output, names, to_stdout) as write,
    ):
        for _, y, deviation in fitted.predict_chunks(walked, return_std=std):
            parts = [y] if deviation is None else [y, deviation]
            write(np.column_stack([np.asarray(part, dtype=np.float64) for part in parts]))
            rows += len(y)
    if source.dropped:
        note(
            f"warning: {source.dropped:,} rows with missing values were dropped, so predictions "
            "do not stand line by line beside the rows.",
            quiet=False,
        )
    content: dict[str, Any] = {"output": str(output), "rows": rows, "dropped": source.dropped}
    content["unseen_levels"] = dict(source.unseen)
    lines = [] if say.quiet or to_stdout else [f"{rows:,} predictions in {output}"]
    emit(content, lines, say.json)


def _writer(output: Path, names: list[str], to_stdout: bool) -> Any:
    if to_stdout:
        return _text(names)
    suffix = output.suffix.lower()
    if suffix == ".npy":
        return _numpy(output, names)
    return _csv(output, names) if suffix == ".csv" else _parquet(output, names)


@contextmanager
def _text(names: list[str]) -> Iterator[Write]:
    sys.stdout.write(",".join(names) + "\n")
    yield lambda block: _print(sys.stdout.write, block)
    sys.stdout.flush()


@contextmanager
def _csv(path: Path, names: list[str]) -> Iterator[Write]:
    with replacing(path) as file:
        file.write((",".join(names) + "\n").encode())
        yield lambda block: _print(lambda text: file.write(text.encode()), block)


def _print(write: Callable[[str], Any], block: np.ndarray) -> None:
    write("".join(",".join(map(repr, row)) + "\n" for row in block.tolist()))


@contextmanager
def _parquet(path: Path, names: list[str]) -> Iterator[Write]:
    try:
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter
    except ImportError:
        raise ImportError('Parquet files need pyarrow: pip install "quadlin[table]".') from None
    schema = pa.schema([(name, pa.float64()) for name in names])

    def table(blocks: list[np.ndarray]) -> Any:
        arrays = np.ascontiguousarray(np.concatenate(blocks).T)
        return pa.table([pa.array(column) for column in arrays], schema=schema)

    held: list[np.ndarray] = []

    def write(block: np.ndarray) -> None:
        held.append(block)
        if sum(map(len, held)) >= ROW_GROUP:
            writer.write_table(table(held))
            held.clear()

    with replacing(path) as file, ParquetWriter(file, schema) as writer:
        yield write
        if held:
            writer.write_table(table(held))


ROW_GROUP = 1 << 17  # rows of a Parquet row group: chunks alone would be too small


@contextmanager
def _numpy(path: Path, names: list[str]) -> Iterator[Write]:
    """Write one column, or two beside each other; the head is written again with the rows."""
    total, shape = 0, () if len(names) == 1 else (len(names),)

    def head() -> None:
        said = {"descr": "<f8", "fortran_order": False, "shape": (total, *shape)}
        np.lib.format.write_array_header_1_0(file, said)  # leaves room for more rows

    with replacing(path) as file:
        head()

        def write(block: np.ndarray) -> None:
            nonlocal total
            file.write(np.ascontiguousarray(block, dtype="<f8").tobytes())
            total += len(block)

        yield write
        file.seek(0)
        head()
