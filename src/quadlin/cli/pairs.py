"""`quadlin pairs`: which features interact."""

from typing import Annotated, Literal

from cyclopts import Parameter

from quadlin.cli.options import WHOLE, Hierarchy, OutputOptions, TableOptions, hierarchy_of
from quadlin.cli.printing import print_answer
from quadlin.cli.progress import watched
from quadlin.cli.reading import open_rows, stored_rows
from quadlin.explain.pairs import find_pairs


def pairs(
    data: str,
    *,
    max_pairs: Annotated[int | Literal["auto"], WHOLE] = "auto",
    hierarchy: Hierarchy = "none",
    squares: Annotated[bool, Parameter(negative="--no-squares", show_default=False)] = True,
    stability: int | None = None,
    test_on: Literal["all", "half"] = "all",
    read: TableOptions = TableOptions(),
    answer: OutputOptions = OutputOptions(),
) -> None:
    """Find the pairs of features that interact.

    Prints the products of two features that improve a linear model, with their
    coefficients, robust standard errors and shares of R². No model is saved:
    `quadlin fit` searches for the same pairs and adds them to its model.

      quadlin pairs houses.csv --target price
      quadlin pairs houses.csv --target price --test-on half --hierarchy weak

    Parameters
    ----------
    data
        Rows: a file, a folder, a quoted pattern, or - for the standard input (with --format).
    max_pairs
        Maximum number of pairs; auto is one per ten residual degrees of freedom, from 1 to 32.
    hierarchy
        Whether one (weak) or both (strong) features of a pair must have a linear effect.
    squares
        Whether squares of features are candidates, too.
    stability
        Number of resamples of the rows; shows in which share of them each pair is chosen again.
    test_on
        Test the pairs on all rows, or on the half of the rows that the search did not see.
    """
    source = open_rows(stored_rows(data, read, answer), read, answer, classes=None)
    with watched(source, "searching", answer.silent, again=True) as rows:
        report = find_pairs(
            rows,
            hierarchy=hierarchy_of(hierarchy),
            max_pairs=max_pairs,
            squares=squares,
            stability=stability,
            test_on=None if test_on == "all" else test_on,
        )
    content = {
        "pairs": [pair._asdict() for pair in report.pairs],
        "exchangeable": [exchange._asdict() for exchange in report.exchangeable],
        "path": [step._asdict() for step in report.path],
        "low_rank": report.low_rank,
        "rows": report.n_rows,
        "features": report.n_features,
        "candidates": report.n_candidates,
        "at_limit": report.at_limit,
        "test_on": test_on,
        "stability": report.stability,
    }
    print_answer(content, [] if answer.quiet else str(report).splitlines(), answer.json)
