"""`quadlin predict` and `quadlin evaluate`, and the files that commands write."""

import csv
import io
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import numpy as np
from cyclopts import Parameter
from sklearn.metrics import log_loss, roc_auc_score

from quadlin.cli.options import (
    MODEL_SUFFIX,
    STANDARD,
    Flag,
    LabelledRowOptions,
    Names,
    OutputOptions,
    RowOptions,
    UsageError,
    names_in,
    number,
    print_answer,
    print_note,
)
from quadlin.cli.rows import load_model, open_rows_for, row_counts, stored_rows, watched
from quadlin.core.arrays import to_numpy
from quadlin.core.losses import LOSSES
from quadlin.core.moments import Moments
from quadlin.data import Source, SourceError
from quadlin.data.files import find, format_of
from quadlin.estimators.labels.classifier import SecondOrderClassifier
from quadlin.estimators.rows.columns import NO_WEIGHT
from quadlin.explain.tables import text_table
from quadlin.files.atomic import atomic_write

SUFFIXES = (".parquet", ".pq", ".csv", ".npy")
# Takes an array (n, 1), or (n, 2) with standard deviations, and an Arrow table beside it or None.
Write = Callable[[np.ndarray, Any], None]
FOREIGN_MODELS = (".pkl", ".pickle", ".joblib", ".json", ".h5", ".pt", ".pth", ".skops")
ROW_GROUP = 1 << 17  # rows of a Parquet row group: a chunk alone would be too small
GROUP_BYTES = 1 << 26  # or bytes, where long texts are kept
SMALLEST_SHARE = 1e-12  # of a class that was never seen
LABEL = "prediction"  # the column of labels
FITTED_SHARES = "for the shares of the classes among the fitted rows"
COMMONEST = "for the class that is most frequent among the fitted rows"


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
    classes = isinstance(fitted, SecondOrderClassifier)
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
    lines = [] if to_stdout else [f"{rows:,} predictions in {output}"]
    print_answer(content, lines, answer)


def _numbers(
    model: Any, rows: Any, std: bool, level: float | None
) -> Iterator[tuple[np.ndarray, Any]]:
    """Yield predictions chunk by chunk, and what is kept beside them."""
    for chunk, y, deviation in model.predict_chunks(rows, return_std=std or level is not None):
        parts = [y, deviation] if std else [y]
        if level is not None:
            parts += model.fitted_.interval(y, deviation, level)
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
    if LOSSES[fitted.loss].score == "D²":  # D² needs another pass
        data = stored_rows(data, read)
    source = open_rows_for(fitted, data, read, answer, need_target=True)
    if isinstance(fitted, SecondOrderClassifier):
        with watched(source, "evaluating", answer.silent) as rows:
            content = scores(fitted, rows)
        content |= {"weight": source.weight, **row_counts(source)}
        print_answer(content, _lines(score_table(content), source), answer)
        return
    with_std = not LOSSES[fitted.loss].linked and fitted.fitted_.has_spread
    with watched(source, "evaluating", answer.silent) as rows:
        content = _scores(fitted, rows, with_std)
    content |= {"weight": source.weight, **row_counts(source)}
    table = [
        ["rows", f"{content['rows']:,}", ""],
        ["R²", *_ratio(content["r2"], "")],
        ["NMSE", *_ratio(content["nmse"], "1 for the mean of these rows")],
        ["RMSE", number(content["rmse"]), ""],
        ["MAE", number(content["mae"]), ""],
        ["RMSE, constant", number(content["rmse_constant"]), "for the mean of the fitted rows"],
    ]
    if LOSSES[fitted.loss].score == "D²":
        content["d2"] = fitted.score(source)
        table.insert(1, ["D²", number(content["d2"]), "the share of Poisson deviance explained"])
    if with_std:
        table.append(["coverage", f"{100 * content['coverage_95']:.1f}%", "of the 95% intervals"])
    print_answer(content, _lines(table, source), answer)


def _lines(table: list[list[str]], source: Source) -> list[str]:
    if source.weight is not None:
        table[0][-1] = f"weighted by {source.weight}"  # the line of the number of rows
    return text_table(None, table)


def _ratio(value: float | None, meaning: str) -> tuple[str, str]:
    """Return a score that is relative to the variance of y, or say that it is not defined."""
    if value is None:
        return "none", "not defined: the target is the same in all these rows"
    return number(value), meaning


def _scores(model: Any, source: Any, with_std: bool) -> dict[str, Any]:
    total = squares = absolute = constant = inside = 0.0
    rows, mean, target = 0, float(model.target_moments_.mean[0]), None
    for chunk, f, std in model.predict_chunks(source, return_std=with_std):
        y = np.asarray(chunk.y, dtype=np.float64)
        weight = np.ones(len(y)) if chunk.weight is None else chunk.weight
        error = np.abs(np.asarray(f, dtype=np.float64) - y)
        rows, total = rows + len(y), total + float(weight.sum())
        squares += float(weight @ error**2)
        absolute += float(weight @ error)
        constant += float(weight @ (y - mean) ** 2)
        if std is not None:
            low, high = model.fitted_.interval(f, std, 0.95)
            inside += float(weight @ ((low <= y) & (y <= high)))
        moments = Moments.of(y[:, None], weight)
        target = moments if target is None else target + moments
    variance = 0.0 if target is None else float(target.var[0])
    if not total > 0:
        raise ValueError(NO_WEIGHT)
    varies = target is not None and bool(target.varies(np.float64)[0])
    nmse = squares / total / variance if varies else None
    return {
        "rows": rows,
        "r2": None if nmse is None else 1 - nmse,
        "nmse": nmse,
        "rmse": math.sqrt(squares / total),
        "mae": absolute / total,
        "rmse_constant": math.sqrt(constant / total),
        "coverage_95": inside / total if with_std else None,
    }


def columns_of(model: SecondOrderClassifier) -> list[str]:
    """Return the names of the columns of probabilities."""
    return [f"probability={label}" for label in model.classes_]


def predicted(
    model: SecondOrderClassifier, rows: Source, named: bool
) -> Iterator[tuple[np.ndarray, Any]]:
    """Yield probabilities chunk by chunk, and beside them what was kept and the labels."""
    for chunk, P, labels in model.predict_chunks(rows):
        beside = chunk.kept_columns
        if named:
            beside = with_labels(beside, labels)
        yield np.asarray(P, dtype=np.float64), beside


def with_labels(kept: Any, labels: np.ndarray) -> Any:
    """Return a table of the columns that were kept, if any, and of labels."""
    import pyarrow as pa

    column = pa.array(labels.astype(str) if labels.dtype.kind in "OU" else labels)
    if kept is None:
        return pa.table({LABEL: column})
    return kept.append_column(LABEL, column)


def scores(model: SecondOrderClassifier, rows: Source) -> dict[str, Any]:
    """Return AUC (of two classes), log-loss and accuracy; 16 bytes per row are kept for the AUC."""
    values, codes, weights = [], [], []
    right = 0.0
    for chunk, P, labels in model.predict_chunks(rows):
        truth = model.classes_[_codes(to_numpy(chunk.y), rows, model)]
        weight = np.ones(len(truth)) if chunk.weight is None else to_numpy(chunk.weight)
        right += float(weight @ (to_numpy(labels) == truth))
        values.append(to_numpy(P))
        codes.append(np.searchsorted(model.classes_, truth))
        weights.append(weight)
    P, y, weight = (np.concatenate(parts) for parts in (values, codes, weights))
    if not weight.sum() > 0:
        raise ValueError(NO_WEIGHT)
    every, constant = np.arange(len(model.classes_)), class_shares(model)
    two = len(every) == 2 and len(np.unique(y[weight > 0])) == 2
    return {
        "rows": len(y),
        "auc": float(roc_auc_score(y, P[:, 1], sample_weight=weight)) if two else None,
        "log_loss": float(log_loss(y, P, labels=every, sample_weight=weight)),
        "log_loss_constant": float(weight @ -np.log(constant[y])) / float(weight.sum()),
        "accuracy": right / float(weight.sum()),
        "accuracy_constant": float(weight @ (y == np.argmax(constant))) / float(weight.sum()),
        "classes": model.classes_.tolist(),
    }


def class_shares(model: SecondOrderClassifier) -> np.ndarray:
    """Return the shares of the classes among the fitted rows, none of them 0."""
    parts = getattr(model.fitted_, "parts", (model.fitted_,))
    shares = np.array([float(part.state.target.mean[0]) for part in parts])
    if len(shares) == 1:
        shares = np.array([1 - shares[0], shares[0]])
    shares = np.maximum(shares, SMALLEST_SHARE)
    return np.asarray(shares / shares.sum())


def _codes(y: np.ndarray, rows: Source, model: SecondOrderClassifier) -> np.ndarray:
    """Return the numbers of the classes of targets, which are labels or positions of them."""
    if rows.labels is not None:
        return y.astype(np.int64)  # the source was opened with the labels of the model
    numbers = model.classes_.dtype.kind not in "OU"
    strange = np.flatnonzero(~np.isin(y, model.classes_)) if numbers else np.arange(len(y))
    if len(strange):
        labels = ", ".join(map(str, model.classes_))
        raise SourceError(
            f"The target is {number(float(y[strange[0]]))} in row {strange[0]} (counted from 0), "
            f"but the classes of the model are {labels}. Name the column of labels with --target."
        )
    return np.searchsorted(model.classes_, y)


def score_table(content: dict[str, Any]) -> list[list[str]]:
    """Return the scores as lines to print."""
    table = [["rows", f"{content['rows']:,}", ""]]
    if content["auc"] is not None:
        table.append(["AUC", number(content["auc"]), "0.5 for guessing, 1 is perfect"])
    return [
        *table,
        ["log-loss", number(content["log_loss"]), "of the probabilities, 0 is perfect"],
        ["log-loss, constant", number(content["log_loss_constant"]), FITTED_SHARES],
        ["accuracy", f"{100 * content['accuracy']:.1f}%", "of the labels are predicted"],
        ["accuracy, constant", f"{100 * content['accuracy_constant']:.1f}%", COMMONEST],
    ]


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


@contextmanager
def prediction_writer(output: Path, names: list[str], along: Any) -> Iterator[Write]:
    """Open an output for predictions; the file appears when the last of them is written.

    Parameters
    ----------
    output : path
        Its suffix gives the format; a lone hyphen is CSV on the standard output.
    names : list of str
        The names of the columns of predictions.
    along : Arrow table or None
        A table without rows: the columns that come before the predictions.

    Yields
    ------
    function
        It writes a block.
    """
    if str(output) == STANDARD:
        with _table_writer(sys.stdout.buffer, True, names, along) as write:
            yield write
        sys.stdout.flush()
        return
    suffix = output.suffix.lower()
    with atomic_write(output) as file:
        if suffix == ".npy":
            with _numpy_writer(file, names) as write:
                yield write
        else:
            with _table_writer(file, suffix == ".csv", names, along) as write:
                yield write


@contextmanager
def _table_writer(file: Any, is_csv: bool, names: list[str], along: Any) -> Iterator[Write]:
    import pyarrow as pa
    from pyarrow.csv import CSVWriter, WriteOptions
    from pyarrow.parquet import ParquetWriter

    beside = () if along is None else along.schema
    schema = pa.schema([*beside, *((name, pa.float64()) for name in names)])
    if is_csv:
        for field in schema:
            if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
                raise SourceError(
                    f"Column {field.name!r} holds {field.type}, which CSV cannot hold. Write a "
                    ".parquet file."
                )
        header = io.StringIO()  # Arrow would write all names in quotes
        csv.writer(header, lineterminator="\n").writerow(schema.names)
        file.write(header.getvalue().encode())
        options = WriteOptions(include_header=False, quoting_style="needed")
        opened = CSVWriter(file, schema, write_options=options)
    else:
        opened = ParquetWriter(file, schema)
    waiting: list[Any] = []

    def flush() -> None:
        if waiting:
            writer.write_table(pa.concat_tables(waiting))
            waiting.clear()

    def write(block: np.ndarray, beside: Any) -> None:
        kept = [] if beside is None else beside.columns
        numbers = [pa.array(column) for column in np.ascontiguousarray(block.T)]
        waiting.append(pa.table([*kept, *numbers], schema=schema))
        if sum(map(len, waiting)) >= ROW_GROUP or sum(t.nbytes for t in waiting) >= GROUP_BYTES:
            flush()

    with opened as writer:
        yield write
        flush()


@contextmanager
def _numpy_writer(file: BinaryIO, names: list[str]) -> Iterator[Write]:
    """Write one or two columns; the header is written again when the number of rows is known."""
    total, shape = 0, () if len(names) == 1 else (len(names),)

    def write_header() -> None:
        layout = {"descr": "<f8", "fortran_order": False, "shape": (total, *shape)}
        np.lib.format.write_array_header_1_0(file, layout)  # leaves room for more rows

    def write(block: np.ndarray, beside: Any) -> None:
        nonlocal total
        file.write(np.ascontiguousarray(block, dtype="<f8").tobytes())
        total += len(block)

    write_header()
    yield write
    file.seek(0)
    write_header()
