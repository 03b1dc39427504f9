"""The rows and models that a command names: files or the standard input, read with progress."""

import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np

from quadlin.cli.options import (
    MODEL_SUFFIX,
    STANDARD,
    LabelledRowOptions,
    OutputOptions,
    RowOptions,
    TableOptions,
    UsageError,
    flag,
)
from quadlin.data import Source, SourceError, open_source
from quadlin.data.source import cached, find, format_of
from quadlin.explain.diagnosis import listed
from quadlin.files.atomic import kind_of
from quadlin.files.model_file import load

CSV = ("csv", "tsv")
TABLES = (*CSV, "parquet", "arrow")
CLEAR = "\r\x1b[K"  # the beginning of the line, without what was there
_folders: list[TemporaryDirectory[str]] = []  # removed when the process ends
Options = TypeVar("Options", bound=RowOptions)


def open_rows(
    data: str, read: RowOptions, output: OutputOptions, *, need_target: bool = True, **more: Any
) -> Source:
    """Open rows as the options say; `more` are other parameters of `open_source`."""
    if read.format is None and data.endswith(MODEL_SUFFIX):
        text = "is a model, not a table of rows. The model comes before the data."
        raise UsageError(f"{data} {text}")
    options: dict[str, Any] = {"format": read.format, "labels": "learn", **read.csv}
    if isinstance(read, LabelledRowOptions):
        options |= {"target": read.target, "weight": read.weight or None}
    if isinstance(read, TableOptions):
        options |= {"columns": read.columns, "exclude": read.exclude or []}
        options["categorical_features"] = read.categorical_features or []
    options |= {"missing": read.missing or "error"} | more
    with _shown(_Progress("looking at the columns"), output.silent):
        source = open_source(stored_rows(data, read), **options)
    if need_target and not source.has_target:
        names = ", ".join(map(str, source.columns[:12]))
        raise UsageError(f"Name the target column with --target; now {names} are features.")
    return source


def hold_rows(source: Source, answer: OutputOptions) -> Source:
    """Return the rows in memory, where they fit, so that they are read once."""
    with watched(source, "reading", answer.silent) as rows:
        near = cached(rows)
    return source if near is rows else near


def stored_rows(data: str, read: RowOptions) -> str:
    """Return the file of the rows; the standard input is written to a temporary one."""
    if data != STANDARD:
        return data
    if read.format is None:
        raise UsageError("The standard input needs --format, such as --format csv.")
    folder = TemporaryDirectory(prefix="quadlin-")
    _folders.append(folder)
    path = Path(folder.name) / f"standard-input.{read.format}"
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return str(path)


def check_output(path: Path, *inputs: Any) -> None:
    """Check that an output can be written, before an hour is spent on its content."""
    if str(path) == STANDARD:
        raise UsageError("This command writes to a file, not to the standard output. Name a file.")
    kind_of(path)
    for given in map(str, inputs):
        try:
            files = [file.path for file in find(given, None).files]
        except SourceError:  # reported when it is opened
            files = [given]
        if any(path.resolve() == Path(file).resolve() for file in files):
            raise UsageError(f"{path} is an input of this command, so it cannot be the output too.")


def load_model(path: Path) -> Any:
    """Read a model, or say why there is none."""
    if format_of(path.name) is not None:
        raise UsageError(
            f"{path} is a table of rows, not a model file. The model comes before the data."
        )
    return load(path)


def open_rows_for(
    model: Any,
    data: str,
    read: RowOptions,
    output: OutputOptions,
    need_target: bool = False,
    keep: Sequence[str] = (),
) -> Source:
    """Open rows for a fitted model: its columns, its levels, its means for missing values."""
    encoder, inputs = model.encoder_, model.fitted_.columns
    format: str | None = read.format
    if data != STANDARD:
        format = None if data.endswith(MODEL_SUFFIX) else find(data, format).format
    if need_target and isinstance(read, LabelledRowOptions) and format in TABLES:
        read = replace(read, target=read.target or inputs.target)
    read, remembered = _as_in_the_fit(read, model, format)
    # Arrays have no names; columns of CSV without a header have those that arrays would have.
    named = format in TABLES and (inputs.names_in is not None or read.header is False)
    gaps = model.fill_ is not None or model.missing == "mean"  # levels alone need no means
    missing, labels = read.missing or ("mean" if gaps else "error"), None
    if getattr(model, "classes_", np.empty(0)).dtype.kind in "OU":
        labels = [str(label) for label in model.classes_]
    try:
        source = open_rows(
            data,
            read,
            output,
            need_target=need_target,
            labels=labels,
            missing=missing,
            encoder=encoder,
            columns=inputs.names if named and encoder is None else None,
            fill=model.fitted_.parts[0].fill if missing == "mean" else None,
            keep=keep,
        )
        if encoder is None and source.encoder is not None:
            raise SourceError("These are levels.", min(map(str, source.reader.text)))
    except SourceError as error:
        text = str(error)
        if encoder is None and error.column is not None:
            text = f"{error.column!r} holds text, but the model was fitted to numbers. Correct the "
            text += "column, or fit a model to rows with that text."
        if remembered:
            used = " ".join(flag(name, value) for name, value in remembered.items())
            text += f" The options of the fit were used: {used}. Give others if this table differs"
            text += " (--weight '' for no weights)." if "weight" in remembered else "."
        raise SourceError(text) from None
    return source


def classes_of(source: Source) -> str | None:
    """Return the number of classes and their names for a target of text, or of True and False."""
    if source.labels is None and not source.boolean_target:
        return None
    labels = ("False", "True") if source.labels is None else source.labels
    return f"{len(labels)} classes ({listed(labels)})"


def row_counts(source: Source) -> dict[str, Any]:
    """Return how many rows were left out, or had a level that the model does not know."""
    return {
        "dropped": source.dropped,
        "unseen_levels": dict(source.unseen),
        "missing_text": dict(source.unseen.missing),
    }


def _as_in_the_fit(read: Options, model: Any, format: str | None) -> tuple[Options, dict[str, Any]]:
    """Return the options with those of the fit that are not given, and what these are.

    They say which column holds weights, and how CSV is written.
    """
    columns, fitted = model.fitted_.columns, dict[str, Any]()
    if format in TABLES and isinstance(read, LabelledRowOptions) and columns.weight is not None:
        fitted["weight"] = columns.weight
    if format in CSV:
        fitted |= {name: v for name, v in columns.csv.declared.items() if name in read.csv}
    if format == "tsv":
        fitted.pop("delimiter", None)
    remembered = {name: value for name, value in fitted.items() if getattr(read, name) is None}
    return replace(read, **remembered), remembered


@contextmanager
def watched(source: Source, doing: str, quiet: bool, again: bool = False) -> Iterator[Source]:
    """Yield the source with progress that follows it; `again` if it is read many times."""
    progress = _Progress(doing, source.rows, again)
    with _shown(progress, quiet):
        yield source if quiet else replace(source, watch=progress.count)


class _Progress:
    """How far a command is: passes and rows, counted in whatever thread reads them."""

    def __init__(self, doing: str, total: int | None = None, again: bool = False) -> None:
        self.doing, self.total, self.again = doing, total, again
        self.passes, self.here = 1, 0
        self.start, self.lock = time.monotonic(), threading.Lock()

    def count(self, n: int) -> None:
        """Take note of rows; 0 is the end of a pass, which parts of a source do not tell."""
        with self.lock:
            if n == 0:
                self.total = max(self.total or 0, self.here)
            if n == 0 or (self.again and self.total and self.here + n > self.total):
                self.passes, self.here = self.passes + 1, 0
            self.here += n

    def __str__(self) -> str:
        """Return what is being done, how far it is, and for how long it has been done."""
        parts = [f"{self.doing}, pass {self.passes}" if self.again else self.doing]
        if self.here:
            parts.append(f"{self.here:,}{f' of {self.total:,}' if self.total else ''} rows")
        return ", ".join([*parts, str(timedelta(seconds=int(time.monotonic() - self.start)))])


@contextmanager
def _shown(state: _Progress, quiet: bool) -> Iterator[None]:
    """Show progress: a line that changes on a terminal, otherwise a line every ten seconds."""
    if quiet:
        yield
        return
    done, terminal = threading.Event(), sys.stderr.isatty()

    def show() -> None:
        while not done.wait(0.2 if terminal else 10.0):
            width = shutil.get_terminal_size().columns
            sys.stderr.write(f"{CLEAR}{str(state)[: width - 1]}" if terminal else f"{state}\n")
            sys.stderr.flush()

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        sys.stderr.write(CLEAR * terminal)
