"""`quadlin check`: does this table suit the model, and which options suit the table?"""

import shlex
import warnings
from dataclasses import replace
from typing import Any

from quadlin.cli.columns import (
    ColumnScan,
    SuspectColumns,
    is_csv,
    missing_marks,
    remarks_on,
    roles_of,
    scan_columns,
    useless_columns,
    with_lists,
)
from quadlin.cli.findings import HEAVY, Finding, TableSummary, findings
from quadlin.cli.first_rows import FirstRows
from quadlin.cli.fit_report import is_zero_or_one
from quadlin.cli.options import (
    STANDARD,
    OutputOptions,
    TableOptions,
    join_names,
    names_in,
)
from quadlin.cli.printing import Option, aligned, arguments, message_text, print_answer
from quadlin.cli.progress import watched
from quadlin.cli.reading import held, input_columns, open_rows, stored_rows
from quadlin.data import Source, SourceError
from quadlin.data.columns.errors import IdentifierWarning

MARKS = {"good": "ok", "note": "note", "warning": "!"}
SCARCE = 0.05  # of the rows: fewer incomplete ones are dropped rather than filled
SMALL = 2e8  # bytes of rows that are kept in memory, and not read again for every finding
LISTS = ("columns", "exclude", "categorical", "multi_hot", "na")


def check(
    data: str,
    *,
    read: TableOptions = TableOptions(),
    answer: OutputOptions = OutputOptions(),
) -> None:
    """Check a table, and suggest how to fit it.

    Reports missing values, identifiers and codes, rare levels, levels that differ
    only in case, two-valued features, correlation, heavy tails, rows per parameter
    and memory. Small files are read two to five times, others four to ten times.
    Missing values are counted; everything else is computed from the complete rows.

      quadlin check houses.csv --target price
      quadlin check "sales/*.parquet" --target amount --json

    Parameters
    ----------
    data
        Rows: a file, a folder, a quoted pattern, or - for the standard input (with --format).
    """
    name, data = "-" if data == STANDARD else data, stored_rows(data, read, answer)
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always", UserWarning)
        warnings.simplefilter("ignore", IdentifierWarning)  # they are reported here too
        source, read, unusable = _opened(data, read, answer)
        listing = with_lists(source, read)
        if listing is not None:  # where a cell without labels is not a missing value
            source, read, unusable = _opened(data, listing, answer)
    texts = dict.fromkeys(message_text(w.message) for w in noticed)
    remarks = [Finding("note", "reading", text) for text in texts]
    with watched(source, "counting", answer.silent) as rows:
        scan = scan_columns(rows)
    if not scan.rows:
        raise SourceError(f"{source.feed.title} holds no rows. At least one is needed.")
    declared = names_in(read.categorical) or []
    useless = [name for name in useless_columns(source, scan) if name not in declared]
    remarks += [Finding("warning", "columns", text) for text in unusable.values()]
    kept = [name for name in input_columns(source) if name not in useless]
    if useless:  # they would spoil every other finding
        source, scan = _reopened(data, read, answer, kept, scan)
    near = held(source, SMALL, answer) if scan.complete else source
    if scan.complete and is_csv(source):
        with watched(near, "looking", answer.silent, again=True) as rows:
            first = FirstRows.of(rows, source)
        if marks := first.marks():  # so would numbers that stand for missing values
            others = [name for name, code in first.codes().items() if code not in marks]
            told = [f"{text} It is missing here." for text in first.code_remarks(True, others)]
            remarks += [Finding("warning", "columns", text) for text in told]
            markers = [*missing_marks(source), *map(str, marks)]
            read = replace(read, na=[join_names(markers)])
            source, scan = _reopened(data, read, answer, kept, scan)
            near = held(source, SMALL, answer) if scan.complete else source
    useless = [*unusable, *useless]
    summary, columns = None, SuspectColumns(useless)
    if scan.complete:
        with watched(near, "looking", answer.silent, again=True) as rows:
            columns = SuspectColumns(useless, roles_of(rows, source))
            told = remarks_on(rows, source, [*useless, *columns.codes, *columns.roles.times])
            remarks += [Finding("warning", "columns", text) for text in told]
            summary = TableSummary.of(rows)
    usable = columns._replace(useless=[name for name in useless if name not in unusable])
    lines = [*remarks, *findings(source, scan, summary, usable)]
    command = _command(name, read, _recommended(source, scan, summary, columns, read))
    content = {
        "data": name,
        "rows": scan.rows,
        "complete_rows": scan.complete,
        "features": source.width,
        "missing": scan.missing,
        **({} if summary is None else summary.numbers(source)),
        "findings": [{"kind": line.kind, "topic": line.topic, "text": line.text} for line in lines],
        "command": command,
        "useless_columns": useless,
        "code_columns": columns.codes,
    }
    title = "The standard input" if name == "-" else source.feed.title
    head = f"{title}, {scan.rows:,} rows × {source.width:,} features"
    print_answer(content, _text(head, lines, command), answer.json)


def _opened(
    data: str, read: TableOptions, answer: OutputOptions
) -> tuple[Source, TableOptions, dict[str, str]]:
    """Open the rows without columns that cannot be features, and say why they cannot be.

    The options come back with the signs of numbers, where they leave no doubt.
    """
    unusable: dict[str, str] = {}
    given = read
    while True:
        try:
            return open_rows(data, read, answer, missing="drop"), given, unusable
        except SourceError as error:
            name = error.column
            if name is None or name in unusable or name == read.target:
                raise
            unusable[name] = message_text(error)
            if read.columns is None:
                read = replace(read, exclude=[join_names([*(names_in(read.exclude) or []), name])])
            else:
                left = [column for column in names_in(read.columns) or [] if column != name]
                read = replace(read, columns=[join_names(left)])


def _reopened(
    data: str, read: TableOptions, answer: OutputOptions, columns: list[str], scan: ColumnScan
) -> tuple[Source, ColumnScan]:
    """Open the rows again with other columns or marks of missing values, and count these."""
    chosen = replace(read, columns=None, exclude=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # as above
        source = open_rows(data, chosen, answer, missing="drop", columns=columns)
    with watched(source, "counting", answer.silent) as rows:
        again = scan_columns(rows)
    return source, replace(scan, complete=again.complete, missing=scan.missing | again.missing)


def _command(data: str, read: TableOptions, options: dict[str, Any]) -> str:
    """Return a command that fits these rows: the options given, and those recommended."""
    given = {"target": read.target, "weight": read.weight, **vars(read)}
    given |= {name: names_in(given[name]) for name in LISTS}
    chosen = {name: value for name, value in given.items() if value is not None} | options
    parts = ["quadlin", "fit", data]
    for name, value in chosen.items():
        flag, *values = arguments(Option(name, value))
        if values and values[0].startswith("-"):  # it is not an option, but -999
            parts += [f"{flag}={values[0]}"]
        else:
            parts += [flag, *values]
    return shlex.join([*parts, "-o", "model.safetensors"])


def _recommended(
    source: Source,
    scan: ColumnScan,
    summary: TableSummary | None,
    columns: SuspectColumns,
    read: TableOptions,
) -> dict[str, Any]:
    """Return the options of `fit` that suit the table."""
    options = _reading_options(source, scan, columns, read)
    if columns.roles.ids:
        options["fm"] = True
    if summary is None:
        return options
    chosen = _model_options(source, summary)
    return options | (chosen if "fm" not in options or "classify" in chosen else {})


def _reading_options(
    source: Source, scan: ColumnScan, columns: SuspectColumns, read: TableOptions
) -> dict[str, Any]:
    """Return which columns to read, and how."""
    options: dict[str, Any] = {}
    out = [*columns.useless, *columns.roles.times, *columns.roles.copies]
    if out and read.columns is not None:
        left = [name for name in input_columns(source) if name not in out]
        options["columns"] = left
    elif out:
        options["exclude"] = [*(names_in(read.exclude) or []), *out]
    if columns.codes:
        options["categorical"] = [*(names_in(read.categorical) or []), *columns.codes]
    incomplete = [name for name in scan.missing if name not in columns.useless]
    if marks := missing_marks(source):
        options["na"] = list(marks)
    if incomplete:
        gaps = set(incomplete) - {"target", source.target}  # rows without a target go anyway
        few = not columns.roles.ids and scan.complete >= (1 - SCARCE) * scan.rows
        options["missing"] = "drop" if few or not gaps or "weight" in gaps else "mean"
    return options


def _model_options(source: Source, summary: TableSummary) -> dict[str, Any]:
    """Return the loss that suits the target; `fit` chooses the rank and the penalties itself."""
    target = summary.survey.target
    if source.labels is not None or source.boolean_target:
        return {}  # they are classified as they are
    if is_zero_or_one(target):
        return {"classify": True}
    return {"loss": "huber"} if target.phi[0] > HEAVY and not target.has_two_values[0] else {}


def _text(head: str, lines: list[Finding], command: str) -> list[str]:
    table = [[MARKS[line.kind], line.topic, line.text] for line in lines]
    return [head, "", *aligned(table, ""), "", "Try:", f"  {command}"]
