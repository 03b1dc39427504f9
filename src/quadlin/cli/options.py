"""Options that several commands share, and how they open what they name."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from quadlin.cli.messages import STANDARD, UsageError
from quadlin.cli.progress import waiting
from quadlin.data import Source, SourceError, open_source
from quadlin.data.csv_text import Dialect
from quadlin.data.encoder import TableEncoder
from quadlin.data.files import FORMATS, find
from quadlin.explain.diagnosis import listed
from quadlin.export.model_file import load

READING = Group("Reading rows", sort_key=10)
ANSWER = Group("What is said", sort_key=20)
TABLES = ("csv", "tsv", "parquet", "arrow")
# A name in quotes, in which "" is one quote; or whatever stands before the next comma.
NAME = re.compile(r'\s*(?:("(?:[^"]|"")*")\s*(?=,|$)|([^,]+))(?:,|$)')
TABS = {"tab": "\t", "\\t": "\t"}  # a shell hardly lets one type the character
Missing = Literal["error", "drop", "mean"]
FLAG = Parameter(negative="", show_default=False)
Flag = Annotated[bool, FLAG]
Output = Annotated[Path, Parameter(name=["--output", "-o"])]


@Parameter(name="*", group=ANSWER)
@dataclass(frozen=True)
class Say:
    """How a command answers."""

    json: Flag = False
    """Print one JSON object instead of text."""
    quiet: Annotated[bool, FLAG, Parameter(alias="-q")] = False
    """No progress and no remarks; warnings and errors only."""

    @property
    def still(self) -> bool:
        """Tell whether there is to be no progress."""
        return self.json or self.quiet


def whole(kind: Any, tokens: Sequence[Any]) -> int | str:
    """Read a whole number, or the word auto where it is one of the choices."""
    said, auto = tokens[0].value, "auto" in str(kind)
    if auto and said == "auto":
        return str(said)
    try:
        return int(said)
    except ValueError:
        other = ", nor auto" if auto else ""
        raise ValueError(f"{said!r} is not a whole number{other}.") from None


WHOLE = Parameter(converter=whole)


@Parameter(name="*", group=READING)
@dataclass(frozen=True)
class Rows:
    """How rows are read."""

    missing: Missing | None = None
    """Missing values: error says where and stops, drop leaves the row out, mean fills it."""
    format: str | None = None
    """csv, tsv, parquet, arrow, npy, npz, svmlight or libffm; by the file's name by default."""
    features: Annotated[int | None, WHOLE] = None
    """How many features svmlight or libffm rows have; the largest index by default."""
    zero_based: Annotated[bool | None, Parameter(negative="--one-based")] = None
    """Whether the first feature of svmlight rows is number 0; if 0 occurs by default."""
    delimiter: str | None = None
    """What separates CSV columns, such as ";" or tab; as the header shows by default."""
    decimal: str | None = None
    """The decimal point of CSV numbers: . or ,"""
    encoding: str | None = None
    """The encoding of CSV, such as latin1; UTF-8 by default."""


@Parameter(name="*", group=READING)
@dataclass(frozen=True)
class Labelled(Rows):
    """How rows with a target are read."""

    target: str | None = None
    """The column of y (of a .npy file: another .npy file). svmlight files have their own."""
    weight: str | None = None
    """A column of weights: 2 counts as the row twice."""


@Parameter(name="*", group=READING)
@dataclass(frozen=True)
class Read(Labelled):
    """How rows with a target are read, and which columns of them."""

    columns: str | None = None
    """The features, with commas between them; by default all other columns."""


SAY, ROWS, LABELLED, READ = Say(), Rows(), Labelled(), Read()


def opened(
    data: str,
    read: Rows,
    say: Say,
    *,
    missing: str = "error",
    need_target: bool = True,
    encoder: TableEncoder | None = None,
    columns: list[str] | None = None,
    fill: Mapping[str, float] | None = None,
    keep: Sequence[str] = (),
) -> Source:
    """Open rows as the options say."""
    if data == STANDARD and read.format is None:
        raise UsageError("The standard input needs --format, such as --format csv.")
    if read.format is not None and read.format not in FORMATS:
        raise UsageError(f"--format {read.format} is not one of {', '.join(FORMATS)}.")
    delimiter = TABS.get(read.delimiter or "", read.delimiter)
    try:
        Dialect.of(delimiter, read.decimal, read.encoding)
    except SourceError as error:
        raise UsageError(str(error)) from None
    if read.features is not None and read.features < 1:
        raise UsageError(f"--features {read.features} must be a whole number ≥ 1.")
    if isinstance(read, Read) and read.columns is not None:
        columns = split(read.columns)
    with waiting("looking at the columns", say.still):
        source = open_source(
            "-" if data == STANDARD else data,
            target=getattr(read, "target", None),
            weight=getattr(read, "weight", None),
            columns=None if encoder is not None else columns,
            missing=read.missing or missing,
            format=read.format,
            encoder=encoder,
            fill=fill,
            n_features=read.features,
            zero_based="auto" if read.zero_based is None else read.zero_based,
            delimiter=delimiter,
            decimal=read.decimal,
            encoding=read.encoding,
            keep=keep,
        )
    if need_target and not source.has_target:
        known = encoder is not None or columns is not None  # the model's, and no target among them
        names = [] if known else [str(name) for name in getattr(source.reader, "columns", ())]
        has = f"; it has the columns {', '.join(names[:12])}" if names else ""
        raise UsageError(f"Name the column of the target by --target{has}.")
    return source


def split(text: str) -> list[str]:
    """Return names that have commas between them; one with a comma in it stands in quotes.

    Examples
    --------
    >>> split('area, "size, net"')
    ['area', 'size, net']
    """
    names = []
    for quoted, bare in NAME.findall(text):
        name = quoted[1:-1].replace('""', '"') if quoted else bare.strip()
        names += [name] if name else []
    return names


def joined(names: Iterable[str]) -> str:
    """Return names as `split` takes them.

    Examples
    --------
    >>> joined(["area", "size, net", " old"])
    'area,"size, net"," old"'
    """
    said = []
    for name in names:
        odd = name != name.strip() or "," in name or name.startswith('"')
        said.append('"{}"'.format(name.replace('"', '""')) if odd else name)
    return ",".join(said)


def opened_for(
    model: Any,
    data: str,
    read: Rows,
    say: Say,
    need_target: bool = False,
    keep: Sequence[str] = (),
) -> Source:
    """Open rows for a fitted model: its columns, its levels, its means for what is missing."""
    names = getattr(model, "feature_names_in_", None)
    fill = model.fill_
    missing = read.missing or ("error" if fill is None else "mean")
    if missing == "mean" and fill is None:
        from quadlin.export.fitted_parts import feature_names, number_columns

        features = feature_names(model, model.encoder_)
        mean = dict(zip(features, model.moments_.mean.tolist(), strict=True))
        fill = {name: mean[name] for name in number_columns(features, model.encoder_)}
    if names is not None and _format(data, read) in TABLES:
        columns = [str(name) for name in names]
    else:
        columns = None  # arrays have no names
    if model.encoder_ is not None and _format(data, read) not in TABLES:
        raise SourceError(
            f"{data} has no named columns, but the model has text columns: "
            f"{listed(model.encoder_.input_names)} are needed."
        )
    source = opened(
        data,
        read,
        say,
        missing=missing,
        need_target=need_target,
        encoder=model.encoder_,
        columns=columns,
        fill=fill if missing == "mean" else None,
        keep=keep,
    )
    if model.encoder_ is None and source.encoder is not None:
        text = sorted(map(str, getattr(source.reader, "text", ())))
        raise SourceError(
            f"{source.feed.title}: {listed(text)} holds text, but the model knows numbers only. "
            "Mend the column, or fit a model to rows with that text."
        )
    model._met(source, reset=False, target=False)  # before anything is written
    return source


def _format(data: str, read: Rows) -> str | None:
    return read.format if data == STANDARD else find(data, read.format).format


def loaded(path: Path) -> Any:
    """Read a model, or say that there is none."""
    if str(path) == STANDARD:
        raise UsageError("A model is read from a file, not from the standard input.")
    if not path.exists():
        raise FileNotFoundError(
            f"There is no model {path}. Make one by: quadlin fit DATA -o {path}"
        )
    return load(path)


def writable(path: Path, *inputs: Any) -> Path:
    """Refuse an output that cannot be written, before an hour is spent on what goes into it."""
    if str(path) == STANDARD:
        raise UsageError("This command writes to a file, not to the standard output. Name one.")
    folder = path.parent
    if path.is_dir():
        raise SourceError(f"{path} is a folder. Give the name of a file in it.")
    if not folder.is_dir():
        raise SourceError(f"There is no folder {folder} to write {path.name} to. Make it first.")
    if not os.access(folder, os.W_OK):
        raise SourceError(f"The folder {folder} may not be written to. Choose another for {path}.")
    for given in inputs:
        if any(_same(path, other) for other in _files(str(given))):
            raise UsageError(f"{path} is used by this command, so it cannot be written as well.")
    return path


def _files(given: str) -> list[Path]:
    """Return the files that an argument of a command means."""
    try:
        return [Path(file.path) for file in find(given, None).files]
    except SourceError:  # said when it is opened
        return [Path(given)]


def _same(path: Path, other: Path) -> bool:
    if path.exists() and other.exists():
        return path.samefile(other)
    return path.resolve() == other.resolve()
