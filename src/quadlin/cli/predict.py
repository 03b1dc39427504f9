"""`quadlin predict` and `quadlin evaluate`: a model on rows."""

import csv
import io
import math
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import numpy as np
from cyclopts import Parameter
from cyclopts.validators import Number
from sklearn.metrics import log_loss, roc_auc_score

from quadlin.cli.options import (
    OUTPUT_FILE,
    STANDARD,
    LabelledRowOptions,
    Names,
    OutputOptions,
    RowOptions,
    UsageError,
    number,
    print_answer,
    print_note,
)
from quadlin.cli.rows import check_output, load_model, open_rows_for, row_counts, watched
from quadlin.core.arrays import to_numpy
from quadlin.core.losses import LOSSES
from quadlin.core.moments import Moments
from quadlin.data import Source, SourceError
from quadlin.estimators.classifier import SecondOrderClassifier
from quadlin.estimators.columns import NO_WEIGHT
from quadlin.estimators.regressor import explained
from quadlin.explain.tables import text_table
from quadlin.files.atomic import atomic_write

SUFFIXES = (".parquet", ".pq", ".csv", ".npy")
ROW_GROUP = 1 << 17  # rows of a Parquet row group: a chunk alone would be too small


def predict(
    model: Path,
    data: str,
    *,
    output: Annotated[Path, OUTPUT_FILE],
    std: bool = False,
    interval: Annotated[float | None, Parameter(validator=Number(gt=0, lt=1))] = None,
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
        A .parquet, .csv or .npy file; an existing one is replaced, and - prints CSV.
    std
        Add the standard deviation of a new observation. Needs fit --uncertainty.
    interval
        Add the bounds, low and high, of this prediction interval. Needs fit --uncertainty.
    keep
        Columns to copy next to the predictions, separated by commas, such as identifiers.
    """
    fitted, kept = load_model(model), keep or []
    suffix = "-" if str(output) == STANDARD else output.suffix.lower()
    if suffix == "-" and answer.json:
        raise UsageError("-o - and --json would both print to the standard output.")
    if suffix != "-":
        if suffix not in SUFFIXES:
            raise UsageError(f"-o {output} must end in {', '.join(SUFFIXES)}, or be -.")
        check_output(output, model, data)
    if (std or interval) and isinstance(fitted, SecondOrderClassifier):
        raise UsageError("--std and --interval are for numbers; a classifier writes probabilities.")
    if kept and suffix == ".npy":
        raise UsageError("--keep needs a .parquet or .csv file: a .npy file has no named columns.")
    source = open_rows_for(fitted, data, read, answer, keep=kept)
    with watched(source, "predicting", answer.silent or suffix == "-") as watched_rows:
        tables = _predicted(fitted, watched_rows, std, interval)
        first = next(tables)  # rows that do not fit the model raise an error before a file exists
        tables = chain([first], tables)
        write = _write_numbers if suffix == ".npy" else _write_tables
        piped = nullcontext(sys.stdout.buffer)
        with piped if suffix == "-" else atomic_write(output) as file:
            rows = write(file, suffix, first.schema, tables)
    if source.dropped:
        text = f"warning: {source.dropped:,} rows with missing values have no prediction."
        print_note(text, quiet=False)
    content = {"output": str(output), "rows": rows, **row_counts(source)}
    print_answer(content, [f"{rows:,} predictions in {output}"] * (suffix != "-"), answer)


def _predicted(model: Any, rows: Source, std: bool, level: float | None) -> Iterator[Any]:
    """Yield Arrow tables of the columns that are kept, and of predictions."""
    import pyarrow as pa

    def table(kept: Any, columns: dict[str, Any]) -> Any:
        names = [*(() if kept is None else kept.column_names), *columns]
        if twice := {name for name in names if names.count(name) > 1}:
            raise UsageError(f"--keep {min(twice)} would be the name of two columns. Rename it.")
        beside = () if kept is None else kept.columns
        return pa.Table.from_arrays([*beside, *map(pa.array, columns.values())], names)

    if isinstance(model, SecondOrderClassifier):
        for chunk, P, labels in model.predict_chunks(rows):
            labels = labels.astype(str) if labels.dtype.kind in "OU" else labels
            shares = dict(zip(model.classes_, np.asarray(P, dtype=np.float64).T, strict=True))
            named = {f"probability={label}": share for label, share in shares.items()}
            yield table(chunk.kept_columns, {"prediction": labels, **named})
        return
    for chunk, y, deviation in model.predict_chunks(rows, return_std=std or level is not None):
        columns = {"prediction": y} | ({"std": deviation} if std else {})
        if level is not None:
            ends = model.fitted_.interval(y, deviation, level)
            columns |= dict(zip(("low", "high"), ends, strict=True))
        columns = {name: np.asarray(v, dtype=np.float64) for name, v in columns.items()}
        yield table(chunk.kept_columns, columns)


def _write_tables(file: Any, suffix: str, schema: Any, tables: Iterator[Any]) -> int:
    """Write Arrow tables of a schema as CSV or Parquet; return the number of their rows."""
    import pyarrow as pa
    from pyarrow.csv import CSVWriter, WriteOptions
    from pyarrow.parquet import ParquetWriter

    if suffix in (".csv", "-"):
        header = io.StringIO()  # Arrow would write all names in quotes
        csv.writer(header, lineterminator="\n").writerow(schema.names)
        file.write(header.getvalue().encode())
        options = WriteOptions(include_header=False, quoting_style="needed")
        opened = CSVWriter(file, schema, write_options=options)
    else:
        opened = ParquetWriter(file, schema)
    total, waiting = 0, list[Any]()
    with opened as writer:
        for table in tables:
            total, waiting = total + len(table), [*waiting, table.cast(schema)]
            if sum(map(len, waiting)) >= ROW_GROUP:
                writer.write_table(pa.concat_tables(waiting))
                waiting = []
        if waiting:
            writer.write_table(pa.concat_tables(waiting))
    return total


def _write_numbers(file: BinaryIO, suffix: str, schema: Any, tables: Iterator[Any]) -> int:
    """Write the numbers of tables as one array, without labels; return the number of rows."""
    names, total = [field.name for field in schema if field.type == "double"], 0
    layout = {"descr": "<f8", "fortran_order": False}

    def write_header() -> None:  # leaves room for more rows
        shape = (total,) if len(names) == 1 else (total, len(names))
        np.lib.format.write_array_header_1_0(file, layout | {"shape": shape})

    write_header()
    for table in tables:
        block = np.column_stack([table[name].to_numpy() for name in names])
        file.write(block.astype("<f8").tobytes())
        total += len(block)
    file.seek(0)
    write_header()
    return total


def evaluate(
    model: Path,
    data: str,
    *,
    read: LabelledRowOptions = LabelledRowOptions(),
    answer: OutputOptions = OutputOptions(),
) -> None:
    """Measure how well a model predicts rows with a target.

    Memory does not grow with the number of rows. NMSE is the mean squared error
    divided by the variance of y: 0 is perfect, 1 is as good as the mean of these
    rows. The target and the weights are the columns that the model was fitted to,
    unless --target and --weight name others (--weight '' is none). For a
    classifier it prints AUC, log-loss and accuracy, and keeps a few numbers per
    row in memory.

      quadlin evaluate model.safetensors test.csv
      quadlin evaluate model.safetensors test.parquet --target price --json

    Parameters
    ----------
    model
        A model file written by quadlin fit.
    data
        Rows: a file, a folder, a quoted pattern, or - for the standard input (with --format).
    """
    fitted = load_model(model)
    source = open_rows_for(fitted, data, read, answer, need_target=True)
    with watched(source, "evaluating", answer.silent) as rows:
        of_labels = isinstance(fitted, SecondOrderClassifier)
        content, table = (_scores_of_labels if of_labels else _scores)(fitted, rows)
    content |= {"weight": source.weight, **row_counts(source)}
    weighted = "" if source.weight is None else f"weighted by {source.weight}"
    table = [["rows", f"{content['rows']:,}", weighted], *table]
    print_answer(content, text_table(None, table), answer)


def _scores(model: Any, rows: Source) -> tuple[dict[str, Any], list[list[str]]]:
    """Return the scores of a model of numbers, as data and as lines to print."""
    loss, mean = LOSSES[model.loss], float(model.target_moments_.mean[0])
    with_std = not loss.linked and model.fitted_.has_spread
    n, sums = 0, np.zeros(4)
    target: Moments | None = None

    def measured() -> Iterator[Any]:
        nonlocal n, sums, target
        for chunk, f, std in model.predict_chunks(rows, return_std=with_std):
            y, f = (to_numpy(a).astype(np.float64) for a in (chunk.y, f))
            low, high = (y, y) if std is None else model.fitted_.interval(f, std, 0.95)
            parts = [(f - y) ** 2, np.abs(f - y), (y - mean) ** 2, (low <= y) & (y <= high)]
            n, sums = n + len(y), sums + np.stack(parts) @ chunk.weights
            moments = Moments.of(y[:, None], chunk.weight)
            target = moments if target is None else target + moments
            yield chunk, f, std

    share = explained(loss, measured())
    assert target is not None
    square, distance, constant, inside = (sums / target.weight).tolist()
    nmse = square / float(target.var[0]) if bool(target.varies(np.float64)[0]) else None
    content = {
        "rows": n,
        "r2": None if nmse is None else 1 - nmse,
        "nmse": nmse,
        "rmse": math.sqrt(square),
        "mae": distance,
        "rmse_constant": math.sqrt(constant),
        "coverage_95": inside if with_std else None,
    }
    table = [
        ["R²", number(content["r2"]), ""],
        ["NMSE", number(nmse), "1 for the mean of these rows"],
        ["RMSE", number(content["rmse"]), ""],
        ["MAE", number(distance), ""],
        ["RMSE, constant", number(content["rmse_constant"]), "for the mean of the fitted rows"],
    ]
    if loss.score == "D²":
        content["d2"] = share
        table.insert(0, ["D²", number(share), "the share of Poisson deviance explained"])
    if with_std:
        table.append(["coverage", f"{inside:.1%}", "of the 95% intervals"])
    return content, table


def _scores_of_labels(
    model: SecondOrderClassifier, rows: Source
) -> tuple[dict[str, Any], list[list[str]]]:
    """Return the scores of a classifier; some 8 bytes per class and row are kept for the AUC."""
    pieces = [
        (to_numpy(P), _codes(to_numpy(chunk.y), rows, model), chunk.weights, to_numpy(labels))
        for chunk, P, labels in model.predict_chunks(rows)
    ]
    P, y, weight, labels = (np.concatenate(part) for part in zip(*pieces, strict=True))
    total = float(weight.sum())
    if not total > 0:
        raise ValueError(NO_WEIGHT)
    parts = getattr(model.fitted_, "parts", (model.fitted_,))
    constant = np.array([float(part.state.target.mean[0]) for part in parts])
    constant = np.append(1 - constant, constant) if len(constant) == 1 else constant / sum(constant)
    constant = np.maximum(constant, np.finfo(float).tiny)  # of a class that was never seen
    two = len(constant) == 2 and len(np.unique(y[weight > 0])) == 2
    every = np.arange(len(constant))
    content = {
        "rows": len(y),
        "auc": float(roc_auc_score(y, P[:, 1], sample_weight=weight)) if two else None,
        "log_loss": float(log_loss(y, P, labels=every, sample_weight=weight)),
        "log_loss_constant": float(weight @ -np.log(constant[y])) / total,
        "accuracy": float(weight @ (labels == model.classes_[y])) / total,
        "accuracy_constant": float(weight @ (y == np.argmax(constant))) / total,
        "classes": model.classes_.tolist(),
    }
    auc = ["AUC", number(content["auc"]), "0.5 for guessing, 1 is perfect"]
    table = [
        *[auc] * two,
        ["log-loss", number(content["log_loss"]), "of the probabilities, 0 is perfect"],
        ["log-loss, constant", number(content["log_loss_constant"]), "for the shares of classes"],
        ["accuracy", f"{content['accuracy']:.1%}", "of the labels are predicted"],
        ["accuracy, constant", f"{content['accuracy_constant']:.1%}", "for the commonest class"],
    ]
    return content, table


def _codes(y: np.ndarray, rows: Source, model: SecondOrderClassifier) -> np.ndarray:
    """Return the numbers of the classes of targets, which are labels or positions of them."""
    if rows.labels is not None:
        return y.astype(np.int64)  # the source was opened with the labels of the model
    strange = y if model.classes_.dtype.kind in "OU" else y[~np.isin(y, model.classes_)]
    if len(strange):
        labels = ", ".join(map(str, model.classes_))
        raise SourceError(
            f"The target is {number(float(strange[0]))} in a row, but the classes of the model are "
            f"{labels}. Name the column of labels with --target."
        )
    return np.searchsorted(model.classes_, y)
