"""`quadlin check`: what a table holds, and the command that fits it."""

import shlex
import warnings
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import issparse

from quadlin.cli.app import sentence
from quadlin.cli.options import (
    STANDARD,
    OutputOptions,
    TableOptions,
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
from quadlin.data.columns import find_ids
from quadlin.data.encoder import MISSING_LEVEL
from quadlin.exceptions import IdentifierWarning
from quadlin.explain.diagnosis import listed
from quadlin.explain.tables import text_table

MARKS = {"good": "ok", "note": "note", "warning": "!"}
SCARCE = 0.05  # of the rows: fewer incomplete ones are dropped rather than filled


class Finding(NamedTuple):
    """One line of the report."""

    kind: str  # "good", "note" or "warning"
    topic: str
    text: str


def check(
    data: str,
    *,
    read: TableOptions = TableOptions(),
    answer: OutputOptions = OutputOptions(),
) -> None:
    """Check a table, and suggest how to fit it.

    Reports the numbers of rows and columns, types, missing values, constant columns
    and whole numbers that only identify rows.

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
        with watched(source, "summing", answer.silent) as watched_rows:
            rows = Rows.of(watched_rows)
            total, missing, kept, complete = rows.reduce(survey), *_missing(rows, source)
    left_out = [str(w.message.column) for w in noticed if hasattr(w.message, "column")]
    types = _types(source)
    numbers = [name for name, kind in types.items() if kind == "number"]
    ids = find_ids(rows, numbers, source.names)
    n_rows = kept + source.dropped
    if source.dropped:
        missing[read.target or "target"] = source.dropped
    varies = to_numpy(total.features.varies(np.float64))
    constant = [name for name, v in zip(source.names, varies, strict=True) if not v]
    repeated = [name for name in ids if _repeats(rows, source, name)]
    unique = [*left_out, *(name for name in ids if name not in repeated)]
    if len(unique) < len(types):
        chosen = _without(chosen, unique)
    width = source.width - sum(name not in repeated for name in ids)
    options = {name: getattr(read, name) for name in ("target", "weight", "format")} | read.csv
    for name in ("columns", "exclude", "categorical_features"):
        options[name] = names_in(getattr(chosen, name)) or []
    options["categorical_features"] += repeated
    fitted = complete
    if complete < n_rows:
        few = n_rows - complete < SCARCE * n_rows
        options["missing"] = read.missing or ("drop" if few else "mean")
        fitted = kept if options["missing"] == "mean" else complete
    labelled = source.labels is not None or source.boolean_target
    options["classify"] = (not labelled and bool(total.target.has_two_values[0])) or None
    used = {name: value for name, value in options.items() if value not in (None, [], "")}
    parts = ["quadlin fit", shlex.quote(shown), *(flag(n, v) for n, v in used.items())]
    command = " ".join([*parts, "-o model.safetensors"])
    lines += [
        *(Finding("note", "reading", text) for text in _notes(noticed)),
        _incomplete(missing, n_rows, complete),
        *_columns(types),
        *_odd_columns(
            {
                "a different value in each row, like an id. Left out below": unique,
                "whole numbers that look like ids. Categories below": repeated,
                "constant, without information": constant,
            }
        ),
        _target(source, total.target),
        _rows(fitted),
    ]
    title = "The standard input" if shown == "-" else source.feed.title
    head = f"{title}, {n_rows:,} rows × {width:,} features"
    content = {
        "data": shown,
        "rows": n_rows,
        "complete_rows": complete,
        "features": width,
        "types": types,
        "missing": missing,
        "constant": constant,
        "ids": [*left_out, *ids],
        "findings": [line._asdict() for line in lines],
        "command": command,
    }
    table = text_table(None, [[MARKS[line.kind], line.topic, line.text] for line in lines])
    print_answer(content, [head, "", *table, "", "Try:", f"  {command}"], answer)


def _open(
    data: str, read: TableOptions, answer: OutputOptions
) -> tuple[Source, TableOptions, list[Finding]]:
    """Open the rows without the columns that cannot be features, and say why they cannot be."""
    unusable: dict[str, str] = {}
    while True:
        try:
            source = open_rows(data, replace(read, missing="mean"), answer)
            return source, read, [Finding("warning", "columns", t) for t in unusable.values()]
        except SourceError as error:
            name = error.column
            if name is None or name in unusable or name == read.target:
                raise
            unusable[name] = sentence(error)
            read = _without(read, [name])


def _without(read: TableOptions, names: list[str]) -> TableOptions:
    if not names:
        return read
    if read.columns is None:
        return replace(read, exclude=[join_names([*(names_in(read.exclude) or []), *names])])
    left = [column for column in names_in(read.columns) or [] if column not in names]
    return replace(read, columns=[join_names(left)])


def _types(source: Source) -> dict[str, str]:
    """Return which columns are numbers, and which are categories."""
    if source.encoder is None:
        return dict.fromkeys(map(str, source.names), "number")
    columns = zip(source.encoder.input_names, source.encoder.levels, strict=True)
    return {str(name): "number" if levels is None else "category" for name, levels in columns}


def _missing(rows: Rows, source: Source) -> tuple[Counter[str], int, int]:
    """Return the missing values of each column, the rows with a target, and the complete ones."""
    names, kept, complete = list(map(str, source.names)), 0, 0
    counts: Counter[str] = Counter()
    gaps = {f"{name}={MISSING_LEVEL}": name for name in getattr(source.encoder, "input_names", ())}
    levels = {j: gaps[name] for j, name in enumerate(names) if name in gaps}
    for chunk in rows.walk():
        n = chunk.X.shape[0]
        bad = np.zeros(n, dtype=bool)
        if chunk.absent is not None:
            bad |= np.diff(chunk.absent.indptr) > 0
            per_column = np.bincount(chunk.absent.indices, minlength=len(names))
            counts.update({names[j]: int(per_column[j]) for j in np.flatnonzero(per_column)})
        for j, name in levels.items():
            null = _column(chunk.X, j) > 0
            counts[name] += int(null.sum())
            bad |= null
        kept, complete = kept + n, complete + int((~bad).sum())
    return counts, kept, complete


def _column(X: Any, j: int) -> np.ndarray:
    return np.asarray(X[:, [j]].toarray()[:, 0] if issparse(X) else X[:, j])


def _repeats(rows: Rows, source: Source, name: str) -> bool:
    """Tell whether a number is in several rows, as those of users and films are."""
    values = _column(next(iter(rows.walk())).X, list(map(str, source.names)).index(name))
    return len(np.unique(values)) < len(values)


def _notes(noticed: list[warnings.WarningMessage]) -> list[str]:
    kept = [w.message for w in noticed if not issubclass(w.category, IdentifierWarning)]
    return list(dict.fromkeys(map(sentence, kept)))


def _incomplete(missing: Counter[str], rows: int, complete: int) -> Finding:
    if complete == rows:
        return Finding("good", "missing", "no value is missing.")
    counts = listed([f"{name} {count:,}" for name, count in missing.most_common()])
    gaps = rows - complete
    verb = "has" if gaps == 1 else "have"
    text = f"{gaps:,} of {rows:,} rows {verb} a missing value ({counts})."
    return Finding("warning", "missing", text)


def _columns(types: dict[str, str]) -> list[Finding]:
    lines = []
    for kind, plural in (("number", "numbers"), ("category", "categories")):
        if names := [name for name in types if types[name] == kind]:
            text = f"{len(names):,} of {plural} ({listed(names)})."
            lines.append(Finding("good", "columns", text))
    return lines


def _odd_columns(odd: dict[str, list[str]]) -> list[Finding]:
    return [
        Finding("warning", "columns", f"{listed(names)}: {what}.")
        for what, names in odd.items()
        if names
    ]


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


def _rows(fitted: int) -> Finding:
    if fitted < 2:
        return Finding("warning", "rows", f"{fitted}, but a fit needs at least 2.")
    return Finding("good", "rows", f"{fitted:,} to fit.")
