"""The options of `quadlin fit` that suit a table."""

from quadlin.cli.columns import ColumnScan, SuspectColumns
from quadlin.cli.findings import HEAVY, PLENTY, RANKS, TableSummary
from quadlin.cli.options import TableOptions, join_names, names_in
from quadlin.cli.reading import input_columns
from quadlin.data import Source
from quadlin.metrics import degrees_of_freedom

IN_MEMORY = 10**8  # bytes of rows up to which cross-validation is advised
SCARCE = 0.05  # of the rows: fewer incomplete ones are dropped rather than filled


def recommended(
    source: Source,
    scan: ColumnScan,
    summary: TableSummary | None,
    columns: SuspectColumns,
    read: TableOptions,
) -> dict[str, str | None]:
    """Return the options of `fit` that suit the table; None is a flag."""
    options = _reading_options(source, scan, columns, read)
    return options if summary is None else options | _model_options(source, summary)


def _reading_options(
    source: Source, scan: ColumnScan, columns: SuspectColumns, read: TableOptions
) -> dict[str, str | None]:
    """Return which columns to read, and how."""
    options: dict[str, str | None] = {}
    if columns.useless and read.columns is not None:
        options["columns"] = join_names(input_columns(source))
    elif columns.useless:
        options["exclude"] = join_names([*(names_in(read.exclude) or []), *columns.useless])
    if columns.codes:
        options["categorical"] = join_names([*(names_in(read.categorical) or []), *columns.codes])
    incomplete = [name for name in scan.missing if name not in columns.useless]
    dialect = getattr(source.feed, "dialect", None)
    if dialect is not None and dialect.na:  # markers that were noticed, or declared
        options["na"] = join_names(dialect.na)
    if incomplete:
        labelled = not {"target", "weight", source.target} & set(incomplete)
        few = scan.complete >= (1 - SCARCE) * scan.rows
        options["missing"] = "drop" if few or not labelled else "mean"
    return options


def _model_options(source: Source, summary: TableSummary) -> dict[str, str | None]:
    """Return the loss, the rank and the penalty that suit the number of rows."""
    n, d = summary.survey.tally.counting, source.width
    if summary.survey.target.phi[0] > HEAVY:
        ranks = [k for k in RANKS if n >= PLENTY * degrees_of_freedom(d, k)]
        return {"loss": "huber", "rank": str(min(ranks[-1] if ranks else 1, 5))}
    if n < PLENTY * degrees_of_freedom(d, 1):
        if source.dtype.itemsize * n * d <= IN_MEMORY:
            return {"cv": None}
        return {"rank": "1", "alpha": "1"}
    return {"rank": "auto"}
