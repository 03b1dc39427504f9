"""Opening what a command names: rows and models."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from quadlin.cli.options import (
    STANDARD,
    LabelledRowOptions,
    OutputOptions,
    RowOptions,
    TableOptions,
    UsageError,
    join_names,
    lists_in,
    names_in,
)
from quadlin.cli.printing import print_note
from quadlin.cli.progress import waiting
from quadlin.cli.standard_input import KEPT, Recorded, check_format
from quadlin.core.messages import Message, Option
from quadlin.data import Source, SourceError, open_source
from quadlin.data.columns.encoder import TableEncoder
from quadlin.data.columns.errors import ReadOnceError
from quadlin.data.sources.csv_text import Dialect
from quadlin.data.sources.files import FORMATS, find, format_of
from quadlin.explain.diagnosis import listed
from quadlin.export.model_file import load

CSV = ("csv", "tsv")
TABLES = (*CSV, "parquet", "arrow")
TABS = {"tab": "\t", "\\t": "\t"}  # a shell hardly lets one type the character
MODEL_SUFFIX = ".safetensors"
Options = TypeVar("Options", bound=RowOptions)


def open_rows(
    data: str,
    read: RowOptions,
    output: OutputOptions,
    *,
    missing: str = "error",
    need_target: bool = True,
    encoder: TableEncoder | None = None,
    columns: list[str] | None = None,
    fill: Mapping[str, float] | None = None,
    keep: Sequence[str] = (),
    classes: str | Sequence[str] | None = "auto",
) -> Source:
    """Open rows as the options say; `classes` are the labels of a target that is text."""
    delimiter = TABS.get(read.delimiter or "", read.delimiter)
    _check_row_options(data, read, delimiter)
    exclude, categorical, lists = [], [], {}
    if isinstance(read, TableOptions):
        columns = columns if read.columns is None else names_in(read.columns)
        exclude, categorical = names_in(read.exclude) or [], names_in(read.categorical) or []
        lists = lists_in(read)
    labels = read if isinstance(read, LabelledRowOptions) else LabelledRowOptions()
    reading_once = data == STANDARD and read.format in (*CSV, "arrow")
    rows = Recorded() if reading_once else "-" if data == STANDARD else data

    def opened(given: Any) -> Source:
        return open_source(
            given,
            target=labels.target,
            weight=labels.weight or None,
            columns=None if encoder is not None else columns,
            exclude=exclude,
            categorical_features=categorical,
            multi_hot=lists,
            missing=read.missing or missing,
            format=read.format,
            encoder=encoder,
            fill=fill,
            n_features=read.features,
            zero_based="auto" if read.zero_based is None else read.zero_based,
            delimiter=delimiter,
            decimal=read.decimal,
            thousands=read.thousands,
            encoding=read.encoding,
            header=read.header,
            na=names_in(read.na),
            keep=keep,
            labels=classes,
        )

    try:
        with waiting("looking at the columns", output.silent):
            source = (
                opened(rows)
                if isinstance(rows, str)
                else _opened_stream(rows, opened, read, output)
            )
    except SourceError as error:  # about a column that may well be the target
        if need_target and labels.target is None and error.column is not None:
            raise UsageError(
                f"Name the target column with --target: it cannot be {error.column!r}."
            ) from None
        raise
    if need_target and not source.has_target:
        chosen = encoder is not None or columns is not None  # these do not include the target
        names = [] if chosen else input_columns(source)
        has = f"; the columns are {', '.join(names[:12])}" if names else ""
        raise UsageError(f"Name the target column with --target{has}.")
    return source


def _opened_stream(
    rows: Recorded, opened: Callable[[Any], Source], read: RowOptions, output: OutputOptions
) -> Source:
    """Open the standard input, by way of a file where its rows are needed more than once."""
    try:
        with warnings.catch_warnings(record=True) as noticed:
            warnings.simplefilter("always")
            source = opened(rows)
    except ReadOnceError:  # what was noticed will be noticed again
        print_note(KEPT, output.silent)
        return opened(rows.stored(str(read.format)))
    for warning in noticed:
        warnings.warn(warning.message, warning.category, stacklevel=2)
    rows.forget()
    return source


def _check_row_options(data: str, read: RowOptions, delimiter: str | None) -> None:
    if data == STANDARD:
        check_format(read)
    if read.format is None and data.endswith(MODEL_SUFFIX):
        raise UsageError(
            f"{data} is a model, not a table of rows. The model comes before the data."
        )
    if read.format is not None and read.format not in FORMATS:
        raise UsageError(f"--format {read.format} is not one of {', '.join(FORMATS)}.")
    if read.features is not None and read.features < 1:
        raise UsageError(f"--features {read.features} must be a whole number ≥ 1.")
    try:
        _dialect(read, delimiter)
    except SourceError as error:
        raise UsageError(error.args[0]) from None


def _dialect(read: RowOptions, delimiter: str | None) -> Dialect:
    signs, na = (delimiter, read.decimal), names_in(read.na)
    return Dialect.of(*signs, read.encoding, read.header, na, read.thousands)


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
    delimiter = TABS.get(read.delimiter or "", read.delimiter)
    if files.format == "tsv" and delimiter is None:
        delimiter = "\t"
    dialect = _dialect(read, delimiter)
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


def input_columns(source: Source) -> list[str]:
    """Return the columns of a table that become features; none where rows have no names."""
    return [str(name) for name in source.columns]


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
    format = None if data.endswith(MODEL_SUFFIX) else _format(data, read)
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
        if encoder is None and error.column is not None and error.remedy is None:
            error = _text_instead(data, [error.column])  # of which levels could not be made
        if remembered:
            raise SourceError(Message.joined([*error.args, _otherwise(remembered)])) from None
        raise error from None
    return source


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


def _otherwise(remembered: dict[str, Any]) -> Message:
    """Say which options of the fit were used, and how to do without them."""
    options = [
        Message("{option}", option=Option(name, list(value) if name == "na" else value))
        for name, value in remembered.items()
    ]
    none = " (--weight '' for no weights)" if "weight" in remembered else ""
    return Message(
        f"The options of the fit were used: {{options}}. Give others if this table differs{none}.",
        options=Message.joined(options),
    )


def _format(data: str, read: RowOptions) -> str | None:
    return read.format if data == STANDARD else find(data, read.format).format


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
