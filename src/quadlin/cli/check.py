"""`quadlin check`: is this table fit for the model, and which options suit it?"""

import shlex
import warnings
from dataclasses import replace
from typing import Any

from quadlin.cli.findings import Finding, Look, findings, recommended, useless_columns
from quadlin.cli.messages import STANDARD, UsageError, columns, emit
from quadlin.cli.missing_values import Gaps, gaps_of
from quadlin.cli.options import READ, SAY, Read, Say, opened
from quadlin.cli.progress import watched
from quadlin.data import SourceError

MARKS = {"good": "ok", "note": "note", "warning": "!"}


def check(data: str, *, read: Read = READ, say: Say = SAY) -> None:
    """Say whether a table suits the model, and with which options to fit it.

    Looks at missing values, identifiers, rare levels, features with two values,
    correlation, heavy tails, rows for each parameter and memory, in three or four
    walks over the rows. What is missing is counted; all else is judged by complete rows.

      quadlin check houses.csv --target price
      quadlin check "sales/*.parquet" --target amount --json

    Parameters
    ----------
    data
        Rows: a file, a folder or a quoted pattern.
    """
    if data == STANDARD:
        raise UsageError("check walks the rows several times: save the stream to a file first.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of identifiers: found here as well
        source = opened(data, read, say, missing="drop")
    with watched(source, "counting", say.still) as rows:
        gaps = gaps_of(rows)
    if not gaps.rows:
        raise SourceError(f"{source.feed.title} holds no rows. At least one is needed.")
    useless = useless_columns(source, gaps)
    if useless:  # they would spoil every other judgement
        kept = [
            name for name in map(str, getattr(source.reader, "columns", ())) if name not in useless
        ]
        source = opened(data, replace(read, columns=None), say, missing="drop", columns=kept)
        with watched(source, "counting", say.still) as rows:
            gaps = replace(gaps, complete=gaps_of(rows).complete)
    look = None
    if gaps.complete:
        with watched(source, "looking", say.still, again=True) as rows:
            look = Look.at(rows)
    found = findings(source, gaps, look, useless)
    command = _command(data, read, recommended(source, gaps, look, useless))
    content = _content(data, source, gaps, look, found, command)
    content["useless_columns"] = useless
    emit(content, _lines(source, gaps, found, command), say.json)


def _command(data: str, read: Read, options: dict[str, str]) -> str:
    """Return a line that fits these rows."""
    given: dict[str, Any] = {"target": read.target, "weight": read.weight, "columns": read.columns}
    given |= {"format": read.format, "missing": read.missing, "delimiter": read.delimiter}
    given |= {"decimal": read.decimal, "encoding": read.encoding, "features": read.features}
    told: dict[str, str] = {k: str(v) for k, v in given.items() if v is not None}
    if read.zero_based is not None:
        told["zero-based" if read.zero_based else "one-based"] = ""
    parts = ["quadlin", "fit", data]
    for name, value in (told | options).items():
        parts += [f"--{name}", value] if value else [f"--{name}"]
    return shlex.join([*parts, "-o", "model.safetensors"])


def _lines(source: Any, gaps: Gaps, found: list[Finding], command: str) -> list[str]:
    rows = [[MARKS[item.kind], item.topic, item.text] for item in found]
    head = f"{source.feed.title}, {gaps.rows:,} rows × {source.width:,} features"
    return [head, "", *columns(rows, ""), "", "Try:", f"  {command}"]


def _content(
    data: str, source: Any, gaps: Gaps, look: Look | None, found: list[Finding], command: str
) -> dict[str, Any]:
    numbers = {} if look is None else look.numbers(source)
    return {
        "data": data,
        "rows": gaps.rows,
        "complete_rows": gaps.complete,
        "features": source.width,
        "missing": gaps.missing,
        **numbers,
        "findings": [item._asdict() for item in found],
        "command": command,
    }
