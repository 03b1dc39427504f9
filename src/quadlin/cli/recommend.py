"""`quadlin recommend`: the best items of each user, from a factorization machine."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import narwhals as nw
import numpy as np
from cyclopts import Parameter, validators

from quadlin.cli.classification import one_of
from quadlin.cli.model_rows import load_model, read_table
from quadlin.cli.options import (
    STANDARD,
    WHOLE,
    Names,
    OutputOptions,
    RowOptions,
    UsageError,
    names_in,
)
from quadlin.cli.outputs import check_rows_output, prediction_writer
from quadlin.cli.printing import print_answer
from quadlin.cli.progress import waiting
from quadlin.cli.reading import stored_rows
from quadlin.estimators.labels.logistic_model import LogisticModel
from quadlin.estimators.machines.recommending import Recommending

SUFFIXES = (".csv", ".parquet", ".pq")


def recommend(
    model: Path,
    users: str,
    items: str,
    *,
    n: Annotated[
        int, WHOLE, Parameter(name=["--number", "-n"], validator=validators.Number(gte=1))
    ] = 10,
    exclude: str | None = None,
    label: str | None = None,
    user_columns: Names = None,
    item_columns: Names = None,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    read: RowOptions = RowOptions(),
    answer: OutputOptions = OutputOptions(),
) -> None:
    """Write the best items for each user.

    The two tables together must have the columns of the model; other columns, such
    as titles, are copied to the output. Repeated rows count once, so the table of
    ratings can serve as both tables: name the columns of each.

      quadlin fit ratings.csv --target rating --fm --categorical user,film
      quadlin recommend model.safetensors users.csv films.csv \\
          --exclude ratings.csv -o top.csv
      quadlin recommend model.safetensors ratings.csv ratings.csv \\
          --user-columns user --item-columns film -n 5 -o -
      head -11 users.csv | quadlin recommend model.safetensors - films.csv \\
          --format csv -o -

    Parameters
    ----------
    model
        A model file written by quadlin fit --fm.
    users
        A table with one row per user: CSV, TSV, Parquet or Arrow, or - (with --format).
    items
        A table with one row per item, or -.
    n
        Number of items per user.
    exclude
        A table of pairs to leave out, such as the ratings, with columns of both tables.
    label
        For a classifier, the label that ranks the items. Default: the larger of two numbers.
    user_columns
        The columns to read from the first table, separated by commas. Default: all.
    item_columns
        The columns to read from the second table. Default: all.
    output
        A .csv or .parquet file, which replaces an existing one; - prints CSV.
    """
    fitted: Any = load_model(model)
    if not isinstance(fitted, Recommending):
        raise UsageError(f"{model} is not a factorization machine: fit it with --fm.")
    several = isinstance(fitted, LogisticModel) and len(fitted.classes_) > 2
    fitted = one_of(fitted, label)
    named = {} if label is None or several else {"label": label}
    inputs = [model, users, items, *([] if exclude is None else [exclude])]
    output, to_stdout = check_rows_output(output, "recommendations", SUFFIXES, answer, *inputs)
    (users, items, exclude), formats = _stored((users, items, exclude), read, answer)
    with waiting("reading the tables", answer.silent):
        tables = [
            _distinct(read_table(data, formats[data], fitted, names_in(columns)))
            for data, columns in ((users, user_columns), (items, item_columns))
        ]
        twice = [name for name in tables[0].column_names if name in tables[1].column_names]
        if twice:
            raise UsageError(
                f"Both tables have a column {twice[0]!r}. Name those of each table "
                "with --user-columns and --item-columns."
            )
        pairs = None if exclude is None else read_table(exclude, formats[exclude], fitted, None)
    with waiting("recommending", answer.silent):
        best = fitted.recommend(tables[0], tables[1], n, exclude=pairs, **named)
    score = best.column_names[-1]
    values = np.asarray(best.column(score), dtype=np.float64)[:, None]
    beside = best.drop_columns([score])
    with prediction_writer(output, [score], beside.slice(0, 0)) as write:
        write(values, beside)
    content = {"output": str(output), "users": len(tables[0]), "items": len(tables[1])}
    content["rows"] = len(best)
    lines = [f"{len(best):,} recommendations for {len(tables[0]):,} users in {output}"]
    print_answer(content, [] if answer.quiet or to_stdout else lines, answer.json)


def _stored(
    tables: tuple[str, str, str | None], read: RowOptions, answer: OutputOptions
) -> tuple[tuple[str, str, str | None], dict[str, RowOptions]]:
    """Return where the tables are, with the standard input in a file, and how to read each.

    Several tables may be the standard input, which is read once. Its format is not that of files.
    """
    if STANDARD not in tables:
        return tables, {data: read for data in tables if data is not None}
    file = stored_rows(STANDARD, read, answer)
    users, items, exclude = (file if data == STANDARD else data for data in tables)
    by_name = replace(read, format=None)
    formats = {data: by_name for data in (users, items, exclude) if data is not None}
    return (str(users), str(items), exclude), formats | {file: read}


def _distinct(table: Any) -> Any:
    """Return each row once, in the order in which they come first."""
    frame, row = nw.from_native(table, eager_only=True), "row of the file"
    distinct = frame.with_row_index(row).unique(frame.columns, keep="first")
    return distinct.sort(row).drop(row).to_native()  # not every backend keeps the order
