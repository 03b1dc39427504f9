"""The options of `quadlin fit` that suit a table."""

from quadlin.cli.classification import is_zero_or_one
from quadlin.cli.columns import ColumnScan, SuspectColumns, missing_marks
from quadlin.cli.findings import HEAVY, TableSummary
from quadlin.cli.options import TableOptions, join_names, names_in
from quadlin.cli.reading import input_columns
from quadlin.data import Source

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
    if columns.roles.ids:
        options["fm"] = None
    if summary is None:
        return options
    chosen = _model_options(source, summary)
    return options | (chosen if "fm" not in options or "classify" in chosen else {})


def _reading_options(
    source: Source, scan: ColumnScan, columns: SuspectColumns, read: TableOptions
) -> dict[str, str | None]:
    """Return which columns to read, and how."""
    options: dict[str, str | None] = {}
    out = [*columns.useless, *columns.roles.times, *columns.roles.copies]
    if out and read.columns is not None:
        left = [name for name in input_columns(source) if name not in out]
        options["columns"] = join_names(left)
    elif out:
        options["exclude"] = join_names([*(names_in(read.exclude) or []), *out])
    if columns.codes:
        options["categorical"] = join_names([*(names_in(read.categorical) or []), *columns.codes])
    incomplete = [name for name in scan.missing if name not in columns.useless]
    if marks := missing_marks(source):
        options["na"] = join_names(marks)
    if incomplete:
        gaps = set(incomplete) - {"target", source.target}  # rows without a target go anyway
        few = not columns.roles.ids and scan.complete >= (1 - SCARCE) * scan.rows
        options["missing"] = "drop" if few or not gaps or "weight" in gaps else "mean"
    return options


def _model_options(source: Source, summary: TableSummary) -> dict[str, str | None]:
    """Return the loss that suits the target; `fit` chooses the rank and the penalties itself."""
    target = summary.survey.target
    if source.labels is not None:
        return {}  # they are classified as they are
    if is_zero_or_one(target):
        return {"classify": None}
    return {"loss": "huber"} if target.phi[0] > HEAVY and not target.two_valued[0] else {}
