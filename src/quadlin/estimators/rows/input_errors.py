"""What the rows show before a fit: errors where no model can fit them, and warnings."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.messages import warn
from quadlin.core.moments import Survey, Tally
from quadlin.explain.diagnosis import listed
from quadlin.solve.lowrank.types import Options

LEAST_LABELS, FEW_LABELS, MOST_LABELS = 1e-3, 0.1, 1e9  # that rows of a stream may count as
MERGED = 1000  # times the distance of neighbouring numbers: a column of a smaller range is rounding
HEAVIEST = {32: 1e18, 64: 1e60}  # a mean weight whose sums, and their squares, are still numbers
MANY_ROWS, HANDFUL = 100, 6  # fewer rows that carry a fourth moment are worth a warning
LARGE = 100  # times the usual largest value of a column: suspicious in sparse rows


def check_survey(
    surveyed: Survey,
    dtype: Any,
    names: Sequence[str],
    options: Options,
    robust: bool,
    sparse: bool,
) -> None:
    """Refuse rows that cannot be fitted, and warn of suspicious ones, by what one pass showed."""
    check_row_count(surveyed.tally.rows)
    check_weights(surveyed.tally, dtype)
    _check_counts(surveyed, options)
    _check_merged(surveyed, names)
    warn_of_target(surveyed, options)
    _warn_of_extremes(surveyed, names, options, robust, sparse)


def check_row_count(rows: int) -> None:
    """Refuse a single row, as of an array, and warn of two."""
    if rows < 2:
        raise ValueError("There is 1 row with a target, but a fit needs at least 2. Add rows.")
    if rows == 2:
        warn(
            "There are only 2 rows. A line passes through any two, so the fit says nothing about "
            "the error of its predictions. Add rows."
        )


def check_weights(tally: Tally, dtype: Any) -> None:
    """Refuse weights so large or so small that sums of that dtype would be lost."""
    mean = tally.weight / max(1, tally.counting)
    most = HEAVIEST[32 if "32" in str(dtype) else 64]
    if tally.counting and not 1 / most <= mean <= most:
        raise ValueError(
            f"The weights are {mean:.0e} on average, too {'large' if mean > 1 else 'small'} to sum "
            "up. Divide them all by the same number, and alpha as well."
        )


def check_label_weights(tally: Tally, first: bool) -> None:
    """Refuse weights that count no labels in a stream, and warn of the first if they count few."""
    if not tally.counting:
        return
    mean = tally.weight / tally.counting
    text = (
        f"The weights are {mean:.0e} on average. In a stream weights count labels, and the "
        f"{tally.counting:,} rows count as {tally.weight:.2g}. Divide them by their mean."
    )
    if mean > MOST_LABELS or (first and mean < LEAST_LABELS):
        raise ValueError(text)
    if first and mean < FEW_LABELS:
        warn(text)


def warn_of_target(surveyed: Survey, options: Options) -> None:
    """Warn of a target from which there is nothing to learn, or which the model cannot reach."""
    target, mean = surveyed.target, float(surveyed.target.mean[0])
    if not bool(target.varies(target.mean.dtype)[0]):
        warn(f"The target is {mean:.4g} in every row, so the model is constant.")
    if options.psd and not (options.fit_linear or options.fit_intercept) and mean < 0:
        warn(
            f"The targets are negative on average ({mean:.4g}), but the model "
            "predicts no negative numbers with psd=True and neither a linear term "
            "nor an intercept. Leave out psd=True, or change the sign of the targets."
        )


def _check_merged(surveyed: Survey, names: Sequence[str]) -> None:
    """Refuse numbers so large, and so close, that float64 has merged some of them; warn of one.

    Whatever they were before: integers of a file, of Python or of an array of objects.
    """
    for moments, titles in ((surveyed.features, names), (surveyed.target, ["y"])):
        if moments.low is None or moments.high is None:
            continue
        low, high = (to_numpy(a).astype(np.float64) for a in (moments.low, moments.high))
        gap = np.spacing(np.maximum(np.abs(low), np.abs(high)))
        for j in np.flatnonzero((gap > 1) & (high - low < MERGED * gap)).tolist():
            what = "The target" if titles == ["y"] else f"Column {titles[j]!r}"
            if low[j] == high[j]:
                warn(
                    f"{what} is {low[j]:.0f} in every row, as far as float64 can tell: it rounds "
                    f"integers of this size to multiples of {gap[j]:.0f}. If they differ, subtract "
                    "the smallest before the conversion to float64."
                )
                continue
            raise ValueError(
                f"{what} holds numbers from {low[j]:.0f} to {high[j]:.0f}, which float64 rounds to "
                f"multiples of {gap[j]:.0f}, so different numbers became equal. Subtract the "
                "smallest before the conversion to float64, or leave the column out if it is an "
                "id."
            )


def _check_counts(surveyed: Survey, options: Options) -> None:
    """Refuse negative targets where they are to be counts."""
    low = surveyed.target.low
    if options.loss == "poisson" and low is not None and float(low[0]) < 0:
        raise ValueError(
            f'The targets go down to {float(low[0]):.4g}, but loss="poisson" is for '
            "counts and other targets ≥ 0. Leave those rows out, or use "
            'loss="squared".'
        )


def _warn_of_extremes(
    surveyed: Survey, names: Sequence[str], options: Options, robust: bool, sparse: bool
) -> None:
    """Warn where a handful of rows carry the fourth moment of the target or of features.

    Σz⁴ = nφ, and a row that is far from all others has z² ≈ n: so about n/φ rows carry it. In
    sparse rows that is normal, so a value must be large beside those of other columns, too.
    """
    n = surveyed.features.weight
    if n < MANY_ROWS:
        return
    features, target = surveyed.features, surveyed.target
    few = to_numpy((features.phi > n / HANDFUL) & ~features.has_two_values & (features.var > 0))
    if sparse and few.any() and features.low is not None:
        largest = np.maximum(*(np.abs(to_numpy(v)) for v in (features.low, features.high)))
        few &= largest > LARGE * np.median(largest[largest > 0])
    extreme = [names[int(j)] for j in np.flatnonzero(few)]
    if extreme:
        warn(
            f"A handful of rows have extreme values in {listed(extreme)}, and dominate squares and "
            "products. Check these values, or transform the columns, such as by a logarithm."
        )
    linked = options.loss != "squared"
    if float(target.phi[0]) > n / HANDFUL and not robust and not linked:
        warn(
            "A handful of rows have extreme targets, and dominate a fit by squared "
            'errors. Check them, or use loss="huber".'
        )
