"""Rows and targets that cannot be fitted are refused, and suspicious ones are warned of."""

from collections.abc import Iterator, Sequence
from typing import Any

import narwhals as nw
import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.messages import Message, Option, warn
from quadlin.core.moments import Survey, Tally
from quadlin.data.columns.columns import dates_in
from quadlin.explain.diagnosis import listed
from quadlin.solve.lowrank.types import Options

EXACT = 2**53  # integers up to here are numbers of float64
MERGED = 1000  # times the distance of neighbouring numbers: a column of a smaller range is rounding
HEAVIEST = {32: 1e18, 64: 1e60}  # a mean weight whose sums, and their squares, are still numbers
COMPLEX_TARGETS = (
    "Complex data not supported: y holds complex numbers, but a target is one real number per row. "
    "Fit one model to y.real and one to y.imag."
)


def refuse_unusable(X: Any, y: Any, weight: Any) -> None:
    """Refuse rows that are no table or masked, and targets that are text, dates or missing."""
    refuse_no_table(X)
    refuse_rounded_integers(X)
    for values, name in ((X, "X"), (y, "y"), (weight, "sample_weight")):
        refuse_masked(values, name)
    refuse_text_targets(y)
    refuse_other_targets(y)
    refuse_missing_targets(y)


def refuse_missing_targets(y: Any) -> None:
    """Refuse targets that are missing or infinite, by the first of them."""
    if y is None:
        return
    try:
        values = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):  # scikit-learn has words for these
        return
    bad = ~np.isfinite(values)
    if values.ndim not in (1, 2) or not bad.any():
        return
    row = int(np.argwhere(bad)[0, 0])
    what = "NaN (a missing value)"
    if not np.isnan(values[bad]).any():
        what = "infinity or a value too large for dtype('float64')"
    raise ValueError(
        f"Input y contains {what}, first in row {row} (counted from 0); {int(bad.sum())} of the "
        f"{len(values)} targets are like this. Leave those rows out of X and y."
    )


def refuse_other_targets(y: Any) -> None:
    """Refuse targets that are complex numbers or dates."""
    kind = getattr(getattr(y, "dtype", None), "kind", "")
    if kind == "c":
        raise ValueError(COMPLEX_TARGETS)
    if kind in ("m", "M"):
        raise ValueError(dates_in("y", str(y.dtype)))


def refuse_masked(values: Any, name: str) -> None:
    """Refuse a masked array with masked entries: below the mask are numbers that mean nothing."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        count = int(np.count_nonzero(np.ma.getmaskarray(values)))
        raise ValueError(
            Message(
                "{name} is a masked array with {count} masked entries, whose values are "
                "meaningless. "
                + (
                    "Use {name}.filled(np.nan) with {mean}, or drop those rows."
                    if name == "X"
                    else "Drop those rows."
                ),
                name=name,
                count=count,
                mean=Option("missing", "mean"),
            )
        )


def refuse_no_table(X: Any) -> None:
    """Refuse rows that are no table of numbers or text, where scikit-learn has no words."""
    kind, dtype = type(X).__name__, getattr(X, "dtype", None)
    shape = getattr(X, "shape", None)
    if isinstance(X, dict | set) or hasattr(X, "__next__"):
        raise TypeError(
            f"X is a {kind}, not a table. Give an array, a sparse matrix or a frame (pd.DataFrame "
            "of a dict of columns), or open rows that come one by one with quadlin.open_source."
        )
    if isinstance(dtype, np.dtype) and dtype.names:
        raise TypeError(
            f"X is a structured array with the fields {', '.join(dtype.names)}. Give a table: "
            "pd.DataFrame(X), or np.lib.recfunctions.structured_to_unstructured(X)."
        )
    if isinstance(shape, tuple) and len(shape) == 2 and shape[1] == 0 and hasattr(X, "columns"):
        raise ValueError(
            f"Found array with 0 feature(s) (shape={shape}) while a minimum of 1 is required: the "
            "frame has no columns."
        )


def refuse_rounded_integers(X: Any) -> None:
    """Refuse columns of integers so large, and so close, that float64 cannot tell them apart."""
    for name, column in _wide_integers(X):
        low, high = int(column.min()), int(column.max())
        gap = float(np.spacing(np.float64(max(abs(low), abs(high)))))
        if gap > 1 and 0 < high - low < MERGED * gap:
            raise ValueError(
                f"Column {name!r} holds integers from {low} to {high}, of which float64 keeps only "
                f"multiples of {gap:.0f}. Subtract {low} from it, or leave it out if it is an id."
            )


def _wide_integers(X: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the columns of 64-bit integers, with their names."""
    if isinstance(X, np.ndarray):
        if X.ndim == 2 and X.dtype in (np.int64, np.uint64) and len(X):
            for place in np.flatnonzero((X.max(axis=0) > EXACT) | (X.min(axis=0) < -EXACT)):
                yield f"x{place}", X[:, place]
        return
    table = nw.from_native(X, eager_only=True, pass_through=True)
    if isinstance(table, nw.DataFrame) and len(table):
        for name in table.columns:
            column = table.get_column(name)  # names may be numbers
            whole = column.dtype in (nw.Int64, nw.UInt64) and not column.is_null().any()
            if whole and (column.max() > EXACT or column.min() < -EXACT):
                yield str(name), column.to_numpy()


def refuse_text_targets(y: Any) -> None:
    """Refuse targets that are classes."""
    label = next((value for value in _objects(y) if isinstance(value, str)), None)
    if label is not None:
        raise ValueError(
            f"The targets are text, such as {label!r}, but a regressor predicts numbers. If they "
            "are numbers stored as text, convert them: y.astype(float). For classes use "
            "SecondOrderClassifier (for a factorization machine FactorizationMachineClassifier)."
        )


def _objects(values: Any) -> list[Any]:
    """Return the values of a list, or of a vector that does not hold numbers."""
    if isinstance(values, list | tuple):
        return list(values)
    if not isinstance(values, np.ndarray) and hasattr(values, "to_numpy"):
        values = values.to_numpy()
    text = isinstance(values, np.ndarray) and values.dtype.kind in "OUT"
    return values.ravel().tolist() if text else []


def check_survey(
    surveyed: Survey, dtype: Any, names: Sequence[str], options: Options, robust: bool
) -> None:
    """Refuse rows that cannot be fitted, and warn of suspicious ones, by what one pass showed."""
    check_row_count(surveyed.tally.rows)
    check_weights(surveyed.tally, dtype)
    _check_counts(surveyed, options)
    _check_merged(surveyed, names)
    warn_of_target(surveyed, options)
    _warn_of_extremes(surveyed, names, options, robust)


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


MANY_ROWS, HANDFUL = 100, 6  # fewer rows that carry a fourth moment are worth a warning


def warn_of_target(surveyed: Survey, options: Options) -> None:
    """Warn of a target from which there is nothing to learn, or which the model cannot reach."""
    target, mean = surveyed.target, float(surveyed.target.mean[0])
    if not bool(target.varies(target.mean.dtype)[0]):
        warn(f"The target is {mean:.4g} in every row, so the model is constant.")
    if options.psd and not (options.fit_linear or options.fit_intercept) and mean < 0:
        warn(
            Message(
                "The targets are negative on average ({mean:.4g}), but the model predicts no "
                "negative numbers with {psd} and neither a linear term nor an intercept. Leave "
                "out {psd}, or change the sign of the targets.",
                mean=mean,
                psd=Option("psd", True),
            )
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
            Message(
                "The targets go down to {low:.4g}, but {loss} is for counts and other targets ≥ 0. "
                "Leave those rows out, or use {other}.",
                low=float(low[0]),
                loss=Option("loss", "poisson"),
                other=Option("loss", "squared"),
            )
        )


def _warn_of_extremes(
    surveyed: Survey, names: Sequence[str], options: Options, robust: bool
) -> None:
    """Warn where a handful of rows carry the fourth moment of the target or of features.

    Σz⁴ = nφ, and a row that is far from all others has z² ≈ n: so about n/φ rows carry it.
    """
    n = surveyed.features.weight
    if n < MANY_ROWS:
        return
    features, target = surveyed.features, surveyed.target
    few = to_numpy((features.phi > n / HANDFUL) & ~features.two_valued & (features.var > 0))
    extreme = [name for name, is_extreme in zip(names, few, strict=True) if is_extreme]
    if extreme:
        warn(
            f"A handful of rows have extreme values in {listed(extreme)}, and dominate squares and "
            "products. Check these values, or transform the columns, such as by a logarithm."
        )
    linked = options.loss != "squared"
    if float(target.phi[0]) > n / HANDFUL and not robust and not linked:
        warn(
            Message(
                "A handful of rows have extreme targets, and dominate a fit by squared errors. "
                "Check them, or use {huber}.",
                huber=Option("loss", "huber"),
            )
        )
