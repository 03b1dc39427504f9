"""`quadlin check`: does this table suit the model, and which options suit the table?"""

import shlex
import warnings
from dataclasses import replace
from typing import Any

from quadlin.cli.column_scan import ColumnScan, scan_columns
from quadlin.cli.findings import Finding, TableSummary, findings, recommended, useless_columns
from quadlin.cli.options import STANDARD, OutputOptions, TableOptions, UsageError
from quadlin.cli.printing import aligned, print_answer
from quadlin.cli.progress import watched
from quadlin.cli.reading import input_columns, open_rows
from quadlin.data import Source, SourceError

MARKS = {"good": "ok", "note": "note", "warning": "!"}
REPEATED = ("target", "weight", "columns", "format", "missing", "delimiter", "decimal", "encoding")


def check(
    data: str,
    *,
    read: TableOptions = TableOptions(),  # noqa: B008  it is frozen
    answer: OutputOptions = OutputOptions(),  # noqa: B008
) -> None:
    """Check whether a table suits the model, and how to fit it.

    Reports missing values, identifiers, rare levels, two-valued features, correlation,
    heavy tails, rows per parameter and memory, in three or four passes over the rows.
    Missing values are counted; everything else is computed from the complete rows.

      quadlin check houses.csv --target price
      quadlin check "sales/*.parquet" --target amount --json

    Parameters
    ----------
    data
        Rows: a file, a folder or a quoted pattern.
    """
    if data == STANDARD:
        raise UsageError("check reads the rows several times: save the stream to a file first.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of identifiers, which are reported here too
        source = open_rows(data, read, answer, missing="drop")
    with watched(source, "counting", answer.silent) as rows:
        scan = scan_columns(rows)
    if not scan.rows:
        raise SourceError(f"{source.feed.title} holds no rows. At least one is needed.")
    useless = useless_columns(source, scan)
    if useless:  # they would spoil every other finding
        kept = [name for name in input_columns(source) if name not in useless]
        chosen = replace(read, columns=None)
        source = open_rows(data, chosen, answer, missing="drop", columns=kept)
        with watched(source, "counting", answer.silent) as rows:
            scan = replace(scan, complete=scan_columns(rows).complete)
    summary = None
    if scan.complete:
        with watched(source, "looking", answer.silent, again=True) as rows:
            summary = TableSummary.of(rows)
    lines = findings(source, scan, summary, useless)
    command = _command(data, read, recommended(source, scan, summary, useless))
    content = {
        "data": data,
        "rows": scan.rows,
        "complete_rows": scan.complete,
        "features": source.width,
        "missing": scan.missing,
        **({} if summary is None else summary.numbers(source)),
        "findings": [{"kind": line.kind, "topic": line.topic, "text": line.text} for line in lines],
        "command": command,
        "useless_columns": useless,
    }
    print_answer(content, _text(source, scan, lines, command), answer.json)


def _command(data: str, read: TableOptions, options: dict[str, str]) -> str:
    """Return a command that fits these rows: the options given, and those recommended."""
    given: dict[str, Any] = {name: getattr(read, name) for name in REPEATED}
    given["features"] = read.features
    repeated = {name: str(value) for name, value in given.items() if value is not None}
    if read.zero_based is not None:
        repeated["zero-based" if read.zero_based else "one-based"] = ""
    parts = ["quadlin", "fit", data]
    for name, value in (repeated | options).items():
        parts += [f"--{name}", value] if value else [f"--{name}"]
    return shlex.join([*parts, "-o", "model.safetensors"])


def _text(source: Source, scan: ColumnScan, lines: list[Finding], command: str) -> list[str]:
    table = [[MARKS[line.kind], line.topic, line.text] for line in lines]
    head = f"{source.feed.title}, {scan.rows:,} rows × {source.width:,} features"
    return [head, "", *aligned(table, ""), "", "Try:", f"  {command}"]
