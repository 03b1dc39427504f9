"""`quadlin check`: what a table holds, and the command that fits it."""

import shlex
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import narwhals as nw
import numpy as np
from scipy.sparse import issparse

from quadlin.cli.app import sentence
from quadlin.cli.options import (
    STANDARD,
    OutputOptions,
    TableOptions,
    aligned,
    flag,
    join_names,
    names_in,
    number,
    print_answer,
)
from quadlin.cli.rows import open_rows, stored_rows, watched
from quadlin.core.arrays import to_numpy
from quadlin.core.moments import Moments, survey
from quadlin.core.rows import Rows
from quadlin.data import Source, SourceError
from quadlin.data.names import IdentifierWarning
from quadlin.data.reader import Piece
from quadlin.explain.diagnosis import listed
from quadlin.metrics import degrees_of_freedom

MARKS = {"good": "ok", "note": "note", "warning": "!"}
SCARCE = 0.05  # of the rows: fewer incomplete ones are dropped rather than filled
RANKS = (1, 2, 5, 10)  # for which rows per parameter are told
PLENTY, ENOUGH = 10, 4  # rows per parameter: with noise, and with little of it
MIN_ROWS = 20  # from which on different whole numbers are no accident
DENSE = 1.5  # whole numbers per row in the range of a column that numbers its rows


class Finding(NamedTuple):
    """One line of the report."""

    kind: str  # "good", "note" or "warning"
    topic: str
    text: str


@dataclass
class _Column:
    """What the numbers of a column are like so far."""

    whole: bool = True
    rising: bool = True
    last: float = -np.inf
    low: float = np.inf
    high: float = -np.inf
    values: list[np.ndarray] = field(default_factory=list)  # while they may all be different

    def add(self, values: np.ndarray) -> None:
        values = values[np.isfinite(values)]
        self.whole = self.whole and np.array_equal(values, np.floor(values))
        if not self.whole or not len(values):
            self.values = []
            return
        self.rising = self.rising and bool(np.all(np.diff(values, prepend=self.last) > 0))
        self.last = float(values[-1])
        self.low, self.high = min(self.low, values.min()), max(self.high, values.max())
        self.values.append(values)

    @property
    def is_id(self) -> bool:
        """Tell whether whole numbers number the rows: all differ, and rise or leave no gaps."""
        if not self.whole or not self.values:
            return False
        values = np.concatenate(self.values)
        n = len(values)
        dense = self.high - self.low < DENSE * n
        return n >= MIN_ROWS and (self.rising or (dense and len(np.unique(values)) == n))


@dataclass
class _Scan:
    """Numbers of rows and of missing values, and the columns of numbers."""

    rows: int = 0
    complete: int = 0
    with_target: int = 0
    missing: dict[str, int] = field(default_factory=dict)  # by column, where any is
    numbers: dict[str, _Column] = field(default_factory=dict)


def check(
    data: str,
    *,
    read: TableOptions = TableOptions(),
    answer: OutputOptions = OutputOptions(),
) -> None:
    """Check a table, and suggest how to fit it.

    Reports the numbers of rows and columns, types, missing values, constant columns,
    whole numbers that only identify rows, and rows per parameter.

      quadlin check houses.csv --target price
      quadlin check "sales/*.parquet" --target amount --json

    Parameters
    ----------
    data
        Rows: a file, a folder, a quoted pattern, or - for the standard input (with --format).
    """
    shown, data = "-" if data == STANDARD else data, stored_rows(data, read)
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always", UserWarning)
        source, chosen, lines = _open(data, read, answer)
        with watched(source, "counting", answer.silent) as rows:
            scan = _scan(rows)
        if not scan.rows:
            raise SourceError(f"{source.feed.title} holds no rows. At least one is needed.")
        ids = [name for name, column in scan.numbers.items() if column.is_id]
        ids += [str(w.message.column) for w in noticed if hasattr(w.message, "column")]
        empty = [name for name in scan.numbers if scan.missing.get(name) == scan.rows]
        left_out = [*ids, *(name for name in empty if name not in ids)]
        if left_out and len(left_out) < len(source.columns):
            chosen = _without(chosen, left_out)
        if left_out:
            source = open_rows(data, chosen, answer, missing="mean")
        with watched(source, "summing", answer.silent) as rows:
            total = Rows.of(rows).reduce(survey)
    kept = [w for w in noticed if not issubclass(w.category, IdentifierWarning)]
    lines += [
        Finding("note", "reading", t) for t in dict.fromkeys(sentence(w.message) for w in kept)
    ]
    width, target = source.width, total.target
    constant = [
        name
        for name, varies in zip(
            source.names, to_numpy(total.features.varies(np.float64)), strict=True
        )
        if not varies
    ]
    options = {name: getattr(read, name) for name in ("target", "weight", "format")} | read.csv
    for name in ("columns", "exclude", "categorical_features"):
        options[name] = names_in(getattr(chosen, name))
    incomplete = scan.rows - scan.complete
    fitted = scan.complete
    if incomplete:
        options["missing"] = read.missing or ("drop" if incomplete < SCARCE * scan.rows else "mean")
        fitted = scan.with_target if options["missing"] == "mean" else scan.complete
    labelled = source.labels is not None or source.boolean_target
    if not labelled and bool(target.has_two_values[0]):
        options["classify"] = True
    used = {name: value for name, value in options.items() if value not in (None, [], "")}
    parts = ["quadlin fit", shlex.quote(shown), *(flag(n, v) for n, v in used.items())]
    command = " ".join([*parts, "-o model.safetensors"])
    types = {str(name): "category" for name in source.columns}
    types |= {name: "number" for name in scan.numbers if name in types or not source.columns}
    ratios = {k: fitted / degrees_of_freedom(width, k) for k in RANKS if k <= max(width, 1)}
    lines += [
        *_missing(scan, incomplete),
        *_columns(ids, empty, constant, types),
        _target(source, target),
        _rows(fitted, ratios),
    ]
    title = "The standard input" if shown == "-" else source.feed.title
    head = f"{title}, {scan.rows:,} rows × {width:,} features"
    content = {
        "data": shown,
        "rows": scan.rows,
        "complete_rows": scan.complete,
        "features": width,
        "types": types,
        "missing": scan.missing,
        "constant": constant,
        "ids": ids,
        "rows_per_parameter": ratios,
        "findings": [line._asdict() for line in lines],
        "command": command,
    }
    table = aligned([[MARKS[line.kind], line.topic, line.text] for line in lines], "")
    print_answer(content, [head, "", *table, "", "Try:", f"  {command}"], answer)


def _open(
    data: str, read: TableOptions, answer: OutputOptions
) -> tuple[Source, TableOptions, list[Finding]]:
    """Open the rows without the columns that cannot be features, and say why they cannot be."""
    unusable: dict[str, str] = {}
    while True:
        try:
            source = open_rows(data, read, answer, missing="mean")
            return source, read, [Finding("warning", "columns", t) for t in unusable.values()]
        except SourceError as error:
            name = error.column
            if name is None or name in unusable or name == read.target:
                raise
            unusable[name] = sentence(error)
            read = _without(read, [name])


def _without(read: TableOptions, names: list[str]) -> TableOptions:
    if read.columns is None:
        return replace(read, exclude=[join_names([*(names_in(read.exclude) or []), *names])])
    left = [column for column in names_in(read.columns) or [] if column not in names]
    return replace(read, columns=[join_names(left)])


def _scan(source: Source) -> _Scan:
    """Read the rows as they are, with their missing values."""
    scan = _Scan()
    for piece in source.feed.pieces(source.chunk_rows):
        if source.watch is not None:
            source.watch(len(piece))
        bad, unlabelled = np.zeros((2, len(piece)), dtype=bool)
        for name, values, null in _parts(piece, source):
            if values is not None:
                scan.numbers.setdefault(name, _Column()).add(values)
            if null is None or not null.any():
                continue
            scan.missing[name] = scan.missing.get(name, 0) + int(null.sum())
            bad |= null
            if name in ("target", str(source.reader.target)):
                unlabelled |= null
        scan.rows += len(piece)
        scan.complete += int((~bad).sum())
        scan.with_target += int((~unlabelled).sum())
    return scan


def _parts(
    piece: Piece, source: Source
) -> Iterator[tuple[str, np.ndarray | None, np.ndarray | None]]:
    """Yield the columns of a piece: name, numbers (of features) and which values are missing."""
    reader = source.reader
    for name, column in (("target", piece.y), ("weight", piece.weight)):
        if column is not None:
            yield name, None, np.isnan(np.asarray(column, dtype=float))
    if not source.columns:
        X: Any = piece.X
        if issparse(X):
            rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
            for j in np.unique(X.indices[np.isnan(X.data)]):
                null = np.zeros(X.shape[0], dtype=bool)
                null[rows[(X.indices == j) & np.isnan(X.data)]] = True
                yield f"x{j}", None, null
            return
        for j, values in enumerate(np.asarray(X, dtype=float).T):
            yield f"x{j}", values, np.isnan(values)
        return
    frame = nw.from_native(piece.X, eager_only=True)
    for name in [*reader.columns, *(n for n in (reader.target, reader.weight) if n is not None)]:
        column = frame.get_column(name)
        if name in reader.text or (name == reader.target and reader.labels is not None):
            yield str(name), None, column.is_null().to_numpy()
        else:
            values = np.asarray(column.cast(nw.Float64()).to_numpy())
            yield str(name), values if name in reader.columns else None, np.isnan(values)


def _missing(scan: _Scan, incomplete: int) -> list[Finding]:
    if not incomplete:
        return [Finding("good", "missing", "no value is missing.")]
    worst = sorted(scan.missing.items(), key=lambda item: -item[1])
    counts = listed([f"{name} {count:,}" for name, count in worst])
    text = f"{incomplete:,} of {scan.rows:,} rows have a missing value ({counts})."
    return [Finding("warning", "missing", text)]


def _columns(
    ids: list[str], empty: list[str], constant: list[str], types: dict[str, str]
) -> list[Finding]:
    lines = []
    for kind in ("number", "category"):
        if names := [name for name in types if types[name] == kind]:
            plural = {"number": "numbers", "category": "categories"}[kind]
            lines.append(
                Finding("good", "columns", f"{len(names):,} of {plural} ({listed(names)}).")
            )
    if ids:
        text = f"{listed(ids)}: a different value in each row, like an id. Left out below."
        lines.append(Finding("warning", "columns", text))
    if empty:
        lines.append(Finding("warning", "columns", f"{listed(empty)}: empty. Left out below."))
    if constant:
        text = f"{listed(constant)}: constant, without information."
        lines.append(Finding("warning", "columns", text))
    return lines


def _target(source: Source, target: Moments) -> Finding:
    if source.labels is not None and len(source.labels) > 1:
        classes = f"{len(source.labels)} classes ({listed(source.labels)})"
        return Finding("note", "target", f"has {classes}, so fit trains a classifier.")
    if source.boolean_target:
        return Finding("note", "target", "is True or False, so fit trains a classifier.")
    if not bool(target.varies(np.float64)[0]):
        text = f"is {number(float(target.mean[0]))} in every row: there is nothing to learn."
        return Finding("warning", "target", text)
    if bool(target.has_two_values[0]):
        text = "takes two values: with --classify the model predicts their probabilities."
        return Finding("note", "target", text)
    mean, sd = float(target.mean[0]), float(target.var[0]) ** 0.5
    return Finding("good", "target", f"mean {number(mean)}, standard deviation {number(sd)}.")


def _rows(fitted: int, ratios: dict[int, float]) -> Finding:
    if fitted < 2:
        return Finding("warning", "rows", f"{fitted}, but a fit needs at least 2.")
    told = ", ".join(f"{number(ratio)} at rank {k}" for k, ratio in ratios.items())
    text = f"{fitted:,} to fit, or per parameter {told}."
    if ratios.get(1, PLENTY) >= PLENTY:
        return Finding("good", "rows", text)
    few = "Few for noisy data" if ratios[1] >= ENOUGH else "Too few without a penalty"
    return Finding("note", "rows", f"{text} {few}: fit chooses penalties that suit them.")
