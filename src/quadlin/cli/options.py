"""The options that commands share, as data: groups of flags, and how their text is read."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

MODEL = Group("Model", sort_key=5)
READING = Group("Reading rows", sort_key=10)
OUTPUT = Group("Output", sort_key=20)
MODEL_SUFFIX = ".safetensors"
STANDARD = "(standard input or output)"  # what a lone hyphen becomes
# A name in quotes, in which "" is one quote; or whatever stands before the next comma.
NAME = re.compile(r'\s*(?:("(?:[^"]|"")*")\s*(?=,|$)|([^,]+))(?:,|$)')
FLAG = Parameter(negative="", show_default=False)
Flag = Annotated[bool, FLAG]
# May be repeated; each may list several names.
Names = Annotated[list[str] | None, Parameter(negative="")]
Hierarchy = Literal["none", "weak", "strong"]
OutputPath = Annotated[Path, Parameter(name=["--output", "-o"])]


class UsageError(ValueError):
    """A command line that makes no sense: exit code 2."""


def whole_number(kind: Any, tokens: Sequence[Any]) -> int | str:
    """Read a whole number, or a word where it is one of the choices."""
    text = str(tokens[0].value)
    words = [word for word in ("auto", "minimal") if word in str(kind)]
    if text in words:
        return text
    try:
        return int(text)
    except ValueError:
        other = "".join(f" or {word}" for word in words)
        raise ValueError(f"{text!r} is not a whole number{other}.") from None


WHOLE = Parameter(converter=whole_number)


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True)
class OutputOptions:
    """How a command answers."""

    json: Flag = False
    """Print one JSON object instead of text."""
    quiet: Annotated[bool, FLAG, Parameter(alias="-q")] = False
    """Print warnings and errors only: no progress and no remarks."""

    @property
    def silent(self) -> bool:
        """Tell whether progress and remarks are left out."""
        return self.json or self.quiet


@Parameter(name="*", group=READING)
@dataclass(frozen=True)
class RowOptions:
    """How rows are read."""

    missing: Literal["error", "drop", "mean"] | None = None
    """Missing values: error stops; drop skips rows; mean fills them, and skips rows without y."""
    format: str | None = None
    """csv, tsv, parquet, arrow, npy, npz, svmlight or libffm. Default: from the file name."""
    features: Annotated[int | None, WHOLE] = None
    """Number of features in svmlight or libffm rows. Default: the largest index."""
    zero_based: Annotated[bool | None, Parameter(negative="--one-based")] = None
    """Whether svmlight indices start at 0. Default: yes if index 0 occurs."""
    delimiter: str | None = None
    """The column separator of CSV files, such as ";" or tab. Default: that of the header."""
    decimal: str | None = None
    """The decimal mark of CSV numbers: . or ,"""
    thousands: str | None = None
    """The thousands separator of CSV numbers, such as the comma of 71,742."""
    encoding: str | None = None
    """The encoding of CSV text, such as latin1. Default: UTF-8."""
    header: bool | None = None
    """Whether CSV files start with a header. Without one, the columns are called x0, x1, …"""
    na: Annotated[Names, Parameter(allow_leading_hyphen=True)] = None
    """CSV values that mean missing, such as "?,-", in addition to empty cells, NA and the like."""

    @property
    def csv(self) -> dict[str, Any]:
        """Return how CSV is written, as options of `open_source`."""
        names = ("decimal", "thousands", "encoding", "header")
        delimiter = "\t" if self.delimiter in ("tab", r"\t") else self.delimiter  # hard to type
        options = {name: getattr(self, name) for name in names}
        return options | {"delimiter": delimiter, "na": names_in(self.na)}


@Parameter(name="*", group=READING)
@dataclass(frozen=True)
class LabelledRowOptions(RowOptions):
    """How rows with a target are read."""

    target: str | None = None
    """The target column (for a .npy file: another .npy file). svmlight files contain the target."""
    weight: str | None = None
    """A column of row weights. The default for a model is the column of its fit; '' is none."""


@Parameter(name="*", group=READING)
@dataclass(frozen=True)
class TableOptions(LabelledRowOptions):
    """How rows with a target are read, and which columns of them."""

    columns: Names = None
    """The features, separated by commas. Default: all other columns."""
    exclude: Names = None
    """Columns to ignore, separated by commas; all others are features."""
    categorical: Names = None
    """Columns of ids or codes, separated by commas: each value becomes a level, like text."""
    multi_hot: Names = None
    """Columns that list several labels per cell, such as drama|war: each becomes a 0/1 column."""
    separator: str | None = None
    """What separates the labels of --multi-hot columns. Default: |"""


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True)
class ModelOptions:
    """The options of the estimator."""

    rank: Annotated[int | Literal["auto"], WHOLE] = "auto"
    """Rank of M; auto chooses the rank of largest evidence."""
    alpha: str = "auto"
    """Ridge penalty, or two separated by a comma for w and for M; auto chooses both."""
    rarity: str = "auto"
    """How much more strongly rare columns are shrunk than others: auto, none, or 0 to 1."""
    diagonal: Literal["auto", "free", "zero"] = "auto"
    """Squares: auto models those that can be estimated; zero is a factorization machine."""
    loss: Literal["squared", "huber", "poisson"] = "squared"
    """huber limits the influence of outliers in y; poisson is for counts."""
    fit_linear: Annotated[bool, Parameter(name="--linear")] = True
    """Fit w; otherwise it is zero."""
    fit_intercept: Annotated[bool, Parameter(name="--intercept")] = True
    """Fit b; otherwise it is zero."""
    psd: Flag = False
    """Keep the low-rank part positive semi-definite."""
    whiten: Literal["auto", "full", "lowrank", "none"] = "auto"
    """How correlated features are decorrelated internally."""
    polish: bool = True
    """Continue from the moment estimates to the least-squares optimum."""
    max_iter: Annotated[int, WHOLE] = 50
    """Maximum number of steps."""
    tol: float = 1e-6
    """Stop when a step would lower the objective by less than this fraction."""
    batch_size: Annotated[int | Literal["auto"], WHOLE] = "auto"
    """Rows per step with --one-pass."""
    max_memory: Annotated[int | Literal["auto", "minimal"], WHOLE] = "auto"
    """Bytes for the first rows with --one-pass; minimal keeps no row."""
    random_state: Annotated[int, WHOLE] = 0
    """Random seed: the same command gives the same model."""
    uncertainty: Flag = False
    """Also compute standard errors, for predict --std."""
    robust_errors: Flag = False
    """Like --uncertainty, with standard errors that allow the noise to differ between rows."""
    pairs: str = "auto"
    """Products added to the low-rank part: auto, none, a maximum, or "age:income,age:age"."""
    hierarchy: Hierarchy = "none"
    """Whether one (weak) or both (strong) features of a pair need a linear effect."""
    extrapolation: Literal["clip", "free"] = "clip"
    """clip limits predictions for rows far outside the training data; free does not."""


def hierarchy_of(word: Hierarchy) -> str | None:
    """Return the hierarchy as the library has it."""
    return None if word == "none" else word


def split_names(text: str) -> list[str]:
    """Return names that are separated by commas; a name that contains a comma is quoted.

    Examples
    --------
    >>> split_names('area, "size, net"')
    ['area', 'size, net']
    """
    names = []
    for quoted, bare in NAME.findall(text):
        name = quoted[1:-1].replace('""', '"') if quoted else bare.strip()
        names += [name] if name else []
    return names


def names_in(given: Iterable[str] | None) -> list[str] | None:
    """Return the names of an option that may be repeated and may list several; None without it."""
    if given is None:
        return None
    return [name for text in given for name in split_names("-" if text == STANDARD else text)]


def lists_in(read: TableOptions) -> dict[str, str]:
    """Return the columns of lists and what separates their labels."""
    names = names_in(read.multi_hot) or []
    if read.separator is not None and not names:
        raise UsageError("--separator is only for --multi-hot columns: name them with --multi-hot.")
    from quadlin.data.columns.label_sets import SEPARATOR

    return dict.fromkeys(names, SEPARATOR if read.separator is None else read.separator)


def join_names(names: Iterable[str]) -> str:
    """Return names as `split_names` reads them.

    Examples
    --------
    >>> join_names(["area", "size, net", " old"])
    'area,"size, net"," old"'
    """
    quoted = []
    for name in names:
        odd = name != name.strip() or "," in name or name.startswith('"')
        quoted.append('"{}"'.format(name.replace('"', '""')) if odd else name)
    return ",".join(quoted)
