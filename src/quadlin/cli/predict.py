"""`quadlin predict`: rows in, predictions out, a chunk at a time."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter

from quadlin.cli.classification import columns_of, predicted, with_labels
from quadlin.cli.model_rows import load_model, open_rows_for, row_counts
from quadlin.cli.options import (
    Flag,
    Names,
    OutputOptions,
    RowOptions,
    UsageError,
    names_in,
)
from quadlin.cli.outputs import check_rows_output, prediction_writer
from quadlin.cli.printing import print_answer, print_note
from quadlin.cli.progress import watched
from quadlin.estimators.labels.logistic_model import LogisticModel
from quadlin.estimators.regression.predicting import interval as interval_of

SUFFIXES = (".parquet", ".pq", ".csv", ".npy")


def predict(
    model: Path,
    data: str,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    std: Flag = False,
    interval: float | None = None,
    keep: Names = None,
    read: RowOptions = RowOptions(),
    answer: OutputOptions = OutputOptions(),
) -> None:
    """Predict the rows of a table, in their order.

    Memory does not grow with the number of rows. Columns that neither the model
    nor --keep needs are not read. A classifier writes the most probable label and
    the probability of every label; a .npy file has the probabilities only.

      quadlin predict model.safetensors new.csv -o predictions.csv
      quadlin predict model.safetensors new.csv --keep id,city -o predictions.csv
      quadlin predict model.safetensors new.parquet --interval 0.95 -o out.parquet
      cat new.csv | quadlin predict model.safetensors - --format csv -o - | head

    Parameters
    ----------
    model
        A model file written by quadlin fit.
    data
        Rows: a file, a folder, a quoted pattern, or - for the standard input (with --format).
    output
        A .parquet, .csv or .npy file, which replaces an existing one; - prints CSV.
    std
        Add the standard deviation of a new observation. Needs fit --uncertainty.
    interval
        Add the bounds, low and high, of this prediction interval. Needs fit --uncertainty.
    keep
        Columns to copy next to the predictions, separated by commas, such as identifiers.
    """
    fitted = load_model(model)
    output, to_stdout = check_rows_output(output, "predictions", SUFFIXES, answer, model, data)
    classes = isinstance(fitted, LogisticModel)
    if interval is not None and not 0 < interval < 1:
        raise UsageError(f"--interval {interval:g} must lie between 0 and 1, such as 0.95.")
    if (std or interval) and classes:
        option = "--std" if std else "--interval"
        raise UsageError(f"{option} is for models of numbers; a classifier writes probabilities.")
    if (std or interval) and not fitted.fitted_.has_spread:
        raise ValueError(f"{model} has no standard errors: fit it with --uncertainty.")
    names = ["prediction", *["std"] * std, *(["low", "high"] if interval else [])]
    kept = _kept(keep, names, output)
    source = open_rows_for(fitted, data, read, answer, keep=kept)
    rows = 0
    with watched(source, "predicting", answer.silent or to_stdout) as watched_rows:
        kept_columns, named = source.reader.kept_columns, output.suffix.lower() != ".npy"
        if classes:
            names = columns_of(fitted)
            blocks = predicted(fitted, watched_rows, named)
            kept_columns = with_labels(kept_columns, fitted.classes_[:0]) if named else None
        else:
            blocks = _numbers(fitted, watched_rows, std, interval)
        first = next(blocks)  # rows that do not fit the model are refused before a file exists
        with prediction_writer(output, names, kept_columns) as write:
            for block, beside in chain([first], blocks):
                write(block, beside)
                rows += len(block)
    if source.dropped:
        aside = "" if kept else ", so the predictions do not line up with the rows"
        text = f"{source.dropped:,} rows with missing values were dropped{aside}."
        print_note(f"warning: {text}", quiet=False)
    content = {"output": str(output), "rows": rows, **row_counts(source)}
    lines = [] if answer.quiet or to_stdout else [f"{rows:,} predictions in {output}"]
    print_answer(content, lines, answer.json)


def _numbers(
    model: Any, rows: Any, std: bool, level: float | None
) -> Iterator[tuple[np.ndarray, Any]]:
    """Yield predictions chunk by chunk, and what is kept beside them."""
    for chunk, y, deviation in model.predict_chunks(rows, return_std=std or level is not None):
        parts = [y, deviation] if std else [y]
        if level is not None:
            parts += interval_of(model.fitted_, y, deviation, level)
        block = np.column_stack([np.asarray(part, dtype=np.float64) for part in parts])
        yield block, chunk.kept_columns


def _kept(keep: list[str] | None, names: list[str], output: Path) -> list[str]:
    """Return the columns to copy, where the output can hold them."""
    kept = names_in(keep) or []
    if keep is not None and not kept:
        raise UsageError("--keep is empty: name at least one column.")
    if kept and output.suffix.lower() == ".npy":
        raise UsageError("--keep needs a .parquet or .csv file: a .npy file has no named columns.")
    if taken := [name for name in kept if name in names]:
        raise UsageError(f"--keep {taken[0]} would be the name of two columns. Rename it first.")
    return kept
