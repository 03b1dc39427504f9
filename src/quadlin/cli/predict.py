"""`quadlin predict`: rows in, predictions out, a chunk at a time."""

from pathlib import Path
from typing import Any

import numpy as np

from quadlin.cli.messages import STANDARD, UsageError, emit, note
from quadlin.cli.options import (
    ROWS,
    SAY,
    Flag,
    Output,
    Rows,
    Say,
    loaded,
    opened_for,
    split,
    writable,
)
from quadlin.cli.outputs import SUFFIXES, writer
from quadlin.cli.progress import watched


def predict(
    model: Path,
    data: str,
    *,
    output: Output,
    std: Flag = False,
    keep: str | None = None,
    read: Rows = ROWS,
    say: Say = SAY,
) -> None:
    """Predict the rows of a table, in their order.

    Memory does not grow with the number of rows. Columns that are neither the
    model's nor named by --keep are not read. ±1.96 standard deviations are a 95% interval.

      quadlin predict model.safetensors new.csv -o predictions.csv
      quadlin predict model.safetensors new.csv --keep id,city -o predictions.csv
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
    keep
        Columns to copy beside the predictions, with commas between them, such as identifiers.
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
    names = ["prediction", "std"] if std else ["prediction"]
    kept = _kept(keep, names, output)
    source = opened_for(fitted, data, read, say, keep=kept)
    along = source.reader.kept_columns
    rows = 0
    with (
        watched(source, "predicting", say.still or to_stdout) as walked,
        writer(output, names, along) as write,
    ):
        for chunk, y, deviation in fitted.predict_chunks(walked, return_std=std):
            parts = [y] if deviation is None else [y, deviation]
            block = np.column_stack([np.asarray(part, dtype=np.float64) for part in parts])
            write(block, chunk.kept_columns)
            rows += len(y)
    if source.dropped:
        beside = "" if kept else ", so predictions do not stand line by line beside the rows"
        lost = f"{source.dropped:,} rows with missing values were dropped"
        note(f"warning: {lost}{beside}.", quiet=False)
    content: dict[str, Any] = {"output": str(output), "rows": rows, "dropped": source.dropped}
    content["unseen_levels"] = dict(source.unseen)
    lines = [] if say.quiet or to_stdout else [f"{rows:,} predictions in {output}"]
    emit(content, lines, say.json)


def _kept(keep: str | None, names: list[str], output: Path) -> list[str]:
    """Return the columns to copy, where the output can hold them."""
    kept = split(keep or "")
    if keep is not None and not kept:
        raise UsageError("--keep is empty: name at least one column.")
    if kept and output.suffix.lower() == ".npy":
        raise UsageError("--keep needs a .parquet or .csv file: a .npy file has no named columns.")
    if taken := [name for name in kept if name in names]:
        raise UsageError(f"--keep {taken[0]} would be the name of two columns. Rename it first.")
    return kept
