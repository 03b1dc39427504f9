"""`quadlin check`: what a table holds, and the command that fits it."""

import shlex
import warnings
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from quadlin.cli.app import sentence
from quadlin.cli.options import (
    STANDARD,
    OutputOptions,
    TableOptions,
    flag,
    number,
    print_answer,
)
from quadlin.cli.rows import classes_of, open_rows, stored_rows, watched
from quadlin.core.arrays import to_numpy
from quadlin.core.moments import Moments, survey
from quadlin.core.rows import Rows
from quadlin.data import Source, SourceError
from quadlin.data.columns import MISSING_LEVEL, column_of, find_ids
from quadlin.explain.diagnosis import listed
from quadlin.explain.tables import text_table

MARKS = {"good": "ok", "note": "note", "warning": "!"}


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

    Reports the numbers of rows and columns, missing values, constant columns and
    whole numbers that only identify rows.

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
    names, n_rows, target = list(map(str, source.names)), kept + source.dropped, total.target
    if source.dropped:
        missing[read.target or "target"] = source.dropped
    texts = set(getattr(source.encoder, "text", ()))
    numbers = [name for name in map(str, source.columns or names) if name not in texts]
    first = next(iter(rows.walk())).X
    ids = find_ids(rows, numbers, names)
    values = {name: column_of(first, names.index(name)) for name in ids}
    repeated = [name for name in ids if len(np.unique(values[name])) < len(values[name])]
    unique = [name for name in ids if name not in repeated]
    if len(unique) < len(numbers) + len(texts):
        chosen = _without(chosen, unique)
    varies = to_numpy(total.features.varies(np.float64))
    constant = [name for name, v in zip(names, varies, strict=True) if not v]
    options = {name: getattr(read, name) for name in ("target", "weight", "format")} | read.csv
    for name in ("columns", "exclude", "categorical_features"):
        options[name] = getattr(chosen, name) or []
    options["categorical_features"] = [*options["categorical_features"], *repeated]
    if complete < n_rows:
        options["missing"] = read.missing or "mean"
    fitted = kept if options.get("missing") == "mean" else complete
    options["classify"] = (classes_of(source) is None and bool(target.has_two_values[0])) or None
    used = {name: value for name, value in options.items() if value not in (None, [], "")}
    parts = ["quadlin fit", shlex.quote(shown), *(flag(n, v) for n, v in used.items())]
    command = " ".join([*parts, "-o model.safetensors"])
    said = dict.fromkeys(sentence(warning.message) for warning in noticed)
    lines += [Finding("note", "reading", text) for text in said]
    gaps = Finding("good", "missing", "no value is missing.")
    if complete < n_rows:
        counts = listed([f"{name} {count:,}" for name, count in missing.most_common()])
        text = f"{n_rows - complete:,} of {n_rows:,} rows lack a value ({counts})."
        gaps = Finding("warning", "missing", text)
    lines.append(gaps)
    for kind, what, columns in (
        ("good", "numbers", numbers),
        ("good", "categories", sorted(texts)),
        ("warning", "a different value in each row, like an id. Left out below", unique),
        ("warning", "whole numbers that look like ids. Categories below", repeated),
        ("warning", "constant, without information", constant),
    ):
        if columns:
            lines.append(Finding(kind, "columns", f"{listed(columns)}: {what}."))
    lines.append(_target(source, target))
    lines.append(Finding("good", "rows", f"{fitted:,} to fit."))
    width = source.width - len(unique)
    title = "The standard input" if shown == "-" else source.title
    content = {
        "data": shown,
        "rows": n_rows,
        "complete_rows": complete,
        "features": width,
        "missing": missing,
        "constant": constant,
        "ids": ids,
        "findings": [line._asdict() for line in lines],
        "command": command,
    }
    head = f"{title}, {n_rows:,} rows × {width:,} features"
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
        return replace(read, exclude=[*(read.exclude or []), *names])
    return replace(read, columns=[name for name in read.columns if name not in names])


def _missing(rows: Rows, source: Source) -> tuple[Counter[str], int, int]:
    """Return the missing values of each column, the rows with a target, and the complete ones."""
    names, kept, complete = list(map(str, source.names)), 0, 0
    counts: Counter[str] = Counter()
    gaps = {f"{name}={MISSING_LEVEL}": name for name in getattr(source.encoder, "text", ())}
    levels = {j: gaps[name] for j, name in enumerate(names) if name in gaps}
    for chunk in rows.walk():
        n = chunk.X.shape[0]
        bad = np.zeros(n, dtype=bool)
        if chunk.absent is not None:
            bad |= np.diff(chunk.absent.indptr) > 0
            per_column = np.bincount(chunk.absent.indices, minlength=len(names))
            counts.update({names[j]: int(per_column[j]) for j in np.flatnonzero(per_column)})
        for j, name in levels.items():
            null = column_of(chunk.X, j) > 0
            counts[name] += int(null.sum())
            bad |= null
        kept, complete = kept + n, complete + int((~bad).sum())
    return +counts, kept, complete


def _target(source: Source, target: Moments) -> Finding:
    if classes := classes_of(source):
        return Finding("note", "target", f"has {classes}, so fit trains a classifier.")
    if not bool(target.varies(np.float64)[0]):
        text = f"is {number(float(target.mean[0]))} in every row: there is nothing to learn."
        return Finding("warning", "target", text)
    if bool(target.has_two_values[0]):
        text = "takes two values: with --classify the model predicts their probabilities."
        return Finding("note", "target", text)
    mean, sd = float(target.mean[0]), float(target.var[0]) ** 0.5
    return Finding("good", "target", f"mean {number(mean)}, standard deviation {number(sd)}.")
