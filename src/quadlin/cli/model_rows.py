"""Models that a command names, and rows that are read as the fit of a model read them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from quadlin.cli.options import (
    MODEL_SUFFIX,
    STANDARD,
    LabelledRowOptions,
    OutputOptions,
    RowOptions,
    UsageError,
    join_names,
)
from quadlin.cli.printing import Option, flag
from quadlin.cli.reading import CSV, open_rows
from quadlin.data import Source, SourceError
from quadlin.data.sources.csv_text import Dialect
from quadlin.data.sources.files import find, format_of
from quadlin.explain.diagnosis import listed
from quadlin.files.model_file import load

TABLES = (*CSV, "parquet", "arrow")
Options = TypeVar("Options", bound=RowOptions)


def load_model(path: Path) -> Any:
    """Read a model, or say why there is none."""
    if str(path) == STANDARD:
        raise UsageError("A model is read from a file, not from the standard input.")
    if not path.exists():
        raise FileNotFoundError(
            f"There is no model {path}. Make one with: quadlin fit DATA -o {path}"
        )
    if path.is_dir() or format_of(path.name) is not None:
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
    gaps = model.fill_ is not None or model.missing == "mean"  # levels alone need no means
    missing = read.missing or ("mean" if gaps else "error")
    format = read.format
    if data != STANDARD:
        format = None if data.endswith(MODEL_SUFFIX) else find(data, read.format).format
    if encoder is not None and format is not None and format not in TABLES:
        raise SourceError(
            f"{data} has no named columns, but the model has text columns: it needs "
            f"{listed(encoder.input_names)}."
        )
    if need_target and isinstance(read, LabelledRowOptions) and format in TABLES:
        read = replace(read, target=read.target or inputs.target)
    read, remembered = _as_in_the_fit(read, model, format)
    # Arrays have no names; columns of CSV without a header have those that arrays would have.
    named = format in TABLES and (inputs.names_in is not None or read.header is False)
    labels: Any = getattr(model, "classes_", None)
    if labels is not None:
        labels = [str(label) for label in labels] if labels.dtype.kind in "OU" else None
    try:
        source = open_rows(
            data,
            read,
            output,
            classes=labels,
            missing=missing,
            need_target=need_target,
            encoder=encoder,
            columns=inputs.names if named and encoder is None else None,
            fill=model.fitted_.fill if missing == "mean" else None,
            keep=keep,
        )
        if encoder is None and source.encoder is not None:
            raise _text_instead(data, sorted(map(str, source.reader.text)))
    except SourceError as error:
        if encoder is None and error.column is not None:
            error = _text_instead(data, [error.column])  # of which levels could not be made
        if remembered:
            raise SourceError(" ".join([*map(str, error.args), _otherwise(remembered)])) from None
        raise error from None
    return source


def row_counts(source: Source) -> dict[str, Any]:
    """Return how many rows were left out, or had a level that the model does not know."""
    return {
        "dropped": source.dropped,
        "unseen_levels": dict(source.unseen),
        "missing_text": dict(source.unseen.missing),
    }


def _text_instead(data: str, columns: list[str]) -> SourceError:
    """Return an error about text in columns that were numbers."""
    where = "The standard input" if data == STANDARD else data
    return SourceError(
        f"{where}: {listed(columns)} holds text, but the model was fitted to numbers. Correct the "
        "column, or fit a model to rows with that text."
    )


def _as_in_the_fit(read: Options, model: Any, format: str | None) -> tuple[Options, dict[str, Any]]:
    """Return the options with those of the fit that are not given, and what these are.

    They say which column holds weights, and how CSV is written.
    """
    columns, fitted = model.fitted_.columns, dict[str, Any]()
    if format in TABLES and isinstance(read, LabelledRowOptions) and columns.weight is not None:
        fitted["weight"] = columns.weight
    if format in CSV:
        fitted |= columns.csv.declared
    if format == "tsv":
        fitted.pop("delimiter", None)
    signs = ("decimal", "thousands")  # one without the other could contradict what is given
    given = {name for name in fitted if getattr(read, name) is not None}
    given |= set(signs) if given.intersection(signs) else set()
    remembered = {name: value for name, value in fitted.items() if name not in given}
    texts = {"na": [join_names(remembered["na"])]} if "na" in remembered else {}
    return replace(read, **(remembered | texts)), remembered


def _otherwise(remembered: dict[str, Any]) -> str:
    """Say which options of the fit were used, and how to do without them."""
    options = [
        flag(Option(name, list(value) if name == "na" else value))
        for name, value in remembered.items()
    ]
    none = " (--weight '' for no weights)" if "weight" in remembered else ""
    used = " ".join(options)
    return f"The options of the fit were used: {used}. Give others if this table differs{none}."


def read_table(data: str, read: RowOptions, model: Any, columns: list[str] | None) -> Any:
    """Read a whole table of users or items for a fitted model, as an Arrow table.

    Categories of the model, and columns that it does not know, stay as they are written.
    """
    import pyarrow as pa

    from quadlin.data.sources.table_files import open_files

    files = find(data, read.format)
    if files.format not in TABLES:
        raise UsageError(f"{data} has no named columns. Give a CSV, TSV, Parquet or Arrow file.")
    read, _ = _as_in_the_fit(read, model, files.format)
    dialect = Dialect.of(**read.csv)
    if files.format == "tsv" and dialect.delimiter is None:
        dialect = replace(dialect, delimiter="\t")
    sample, feed = open_files(files, [], dialect)
    if columns is not None:
        if gone := [name for name in columns if name not in sample.columns]:
            raise UsageError(f"{data} has no column {gone[0]!r}; it has {listed(sample.columns)}.")
        feed = feed.only(columns)
    encoder = model.encoder_
    numbers = () if encoder is None else set(encoder.input_names) - set(encoder.text)
    text = [name for name in feed.columns if encoder is not None and name not in numbers]
    if text:
        feed = open_files(files, text, dialect)[1].only(feed.columns)
    pieces = [piece.X for piece in feed.pieces(1 << 16)]
    if not pieces:
        raise UsageError(f"{data} holds no rows. At least one is needed.")
    return pa.concat_tables(pieces).combine_chunks()
