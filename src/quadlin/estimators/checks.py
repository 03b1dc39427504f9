"""Checks of what users pass: parameters, rows, targets and weights, in this order.

Errors say what came, where it is, and what to do; rows and names are checked by scikit-learn.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, time, timedelta
from math import inf
from numbers import Integral, Real
from typing import Any

import narwhals as nw
import numpy as np
from array_api_compat import is_array_api_obj
from scipy.sparse import issparse
from sklearn import __version__, get_config
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.validation import validate_data

from quadlin.core.arrays import Array, moved, namespace, to_numpy
from quadlin.core.losses import LOSSES, OF_REGRESSORS, loss_named
from quadlin.core.messages import warn
from quadlin.core.moments import Survey, Tally
from quadlin.data.columns import dates_in
from quadlin.explain.diagnosis import HANDFUL, MANY, listed
from quadlin.solve.lowrank.types import Options

# Before 1.9 scikit-learn asks frames for their names by a protocol that polars 2 does not have.
_SEES_FRAMES = tuple(map(int, __version__.split(".")[:2])) >= (1, 9)

DATES = (date, time, timedelta, np.datetime64, np.timedelta64)  # of objects, pandas' included
Rule = tuple[Callable[[Any], bool], str]
HEAVIEST = {32: 1e18, 64: 1e60}  # a mean weight whose sums, and their squares, are still numbers


def is_auto(value: Any) -> bool:
    """Tell whether a parameter is to be chosen from the rows."""
    return isinstance(value, str) and value == "auto"


def is_asked_for(pairs: Any) -> bool:
    """Tell whether pairs are wanted in any case, or only where the rows show some."""
    return not (pairs is None or is_auto(pairs))


def is_whole(value: Any, least: int) -> bool:
    """Tell whether a parameter is a whole number, not a boolean, and at least this large."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def refuse_conflicts(conflicts: Mapping[str, Any], text: str) -> None:
    """Raise an error for the first option that conflicts; `text` is its template."""
    for option, conflicting in conflicts.items():
        if conflicting:
            raise ValueError(text.format(option=option))


def alphas(alpha: Any) -> tuple[float, float]:
    """Return the penalties of the linear and of the quadratic part."""
    pair = (alpha, alpha) if isinstance(alpha, Real) else alpha
    good = isinstance(pair, Sequence | np.ndarray) and len(pair) == 2
    if not good or not all(isinstance(a, Real) and 0 <= float(a) < inf for a in pair):
        raise ValueError(
            f'alpha={alpha!r} must be "auto", a number ≥ 0, or a pair of them for w and for M.'
        )
    return float(pair[0]), float(pair[1])


def _among(*words: Any) -> Rule:
    def is_good(value: Any) -> bool:
        return isinstance(value, Integral | np.bool_ | str) and value in words

    return is_good, " or ".join(map(repr, words))


def _declares_columns(given: Any) -> bool:
    if given is None or (isinstance(given, str) and given == "from_dtype"):
        return True
    kinds = str | Integral | np.bool_ | Sequence | np.ndarray
    is_list = not isinstance(given, str) and isinstance(given, Sequence | np.ndarray)
    return is_list and all(isinstance(item, kinds) for item in given)


def _is_list_of_pairs(pairs: Any) -> bool:
    if isinstance(pairs, str) or not isinstance(pairs, Sequence | np.ndarray):
        return False
    return all(not isinstance(p, str) and np.shape(p) == (2,) for p in pairs)


# Of each parameter: whether a value can be used, and which can.
RULES: dict[str, Rule] = {
    "rank": (lambda v: is_auto(v) or is_whole(v, 0), 'a whole number ≥ 0, or "auto"'),
    "pairs": (
        lambda v: not is_asked_for(v) or is_whole(v, 0) or _is_list_of_pairs(v),
        '"auto", None, a whole number ≥ 0, or a list of pairs of features, by position or name',
    ),
    "squares": _among("auto", True, False),
    "loss": _among(*OF_REGRESSORS),
    "categorical_features": (
        _declares_columns,
        '"from_dtype", None, a list of names or positions of columns or of groups of 0/1 columns, '
        "or one boolean per column",
    ),
    "missing": _among("error", "mean"),
    "extrapolation": _among("clip", "free"),
    "uncertainty": _among(False, True, "robust"),
    "solver": _among("auto", "moments", "paper"),
    "max_iter": (lambda v: is_whole(v, 1), "a whole number ≥ 1"),
    "n_starts": (lambda v: is_whole(v, 1), "a whole number ≥ 1"),
    "tol": (lambda v: isinstance(v, Real) and 0 <= float(v) < 1, "a number in [0, 1)"),
    "max_memory": (
        lambda v: is_whole(v, 1) or v in ("auto", "minimal"),
        '"auto", "minimal" or a whole number of bytes above 0',
    ),
}


def check_parameters(estimator: Any, names: Iterable[str]) -> None:
    """Raise an error for parameters that make no sense by themselves, and say which would."""
    for name in names:
        value, (is_good, wanted) = getattr(estimator, name), RULES[name]
        if not is_good(value):
            raise ValueError(f"{name}={value!r} must be {wanted}.")


def check_options(estimator: Any) -> None:
    """Raise an error for parameters that make no sense, or not together, and say which would."""
    check_parameters(estimator, [name for name in vars(estimator) if name in RULES])
    penalised = not is_auto(estimator.alpha) and any(alphas(estimator.alpha))
    has_moments = loss_named(estimator.loss).has_moments
    moments = estimator.solver != "auto"
    if moments and penalised:
        raise ValueError('`alpha` above 0 needs solver="auto": moment estimates have no penalty.')
    if moments and not has_moments:
        raise ValueError(
            f'loss={estimator.loss!r} needs solver="auto": moment estimates minimise squared '
            "errors only."
        )
    if is_asked_for(estimator.pairs):
        conflicts = {
            "fit_intercept=False": not estimator.fit_intercept,
            f"solver={estimator.solver!r}": moments,
            f"loss={estimator.loss!r}": not has_moments,
        }
        refuse_conflicts(
            conflicts,
            "`pairs` cannot be combined with {option}: pairs are searched by least squares with "
            "b and w. Leave one of them out.",
        )


def check_one_pass(estimator: Any) -> None:
    """Raise an error for options that need several passes over the rows."""
    conflicts = {
        f"loss={estimator.loss!r}": not loss_named(estimator.loss).one_pass,
        f"uncertainty={estimator.uncertainty!r}": estimator.uncertainty,
    }
    refuse_conflicts(
        conflicts,
        "{option} needs several passes over the rows, but these can be read only once. Write them "
        "to a file first, or leave the option out.",
    )


def float_types(X: Any) -> tuple[Any, Any]:
    """Return the dtypes that rows may keep, in the namespace scikit-learn will leave them in.

    The first is what others become: tensors of single precision that scikit-learn is going to turn
    into arrays, whose dtype it does not know, stay single.
    """
    array_api = get_config()["array_api_dispatch"] and is_array_api_obj(X) and not issparse(X)
    xp = namespace(X) if array_api else np
    single = is_array_api_obj(X) and str(X.dtype).endswith("float32")
    return (xp.float32, xp.float64) if single else (xp.float64, xp.float32)


def checked_weight(weight: Any, y: Array, some: bool = True) -> Array | None:
    """Return the weights in float64, on the device of y; None if there are none.

    With `some`, one must be above 0.
    """
    if weight is None:
        return None
    xp = namespace(y)
    refuse_masked(weight, "sample_weight")
    refuse_dates(weight, "sample_weight")
    weight = check_array(weight, ensure_2d=False, dtype=None, input_name="sample_weight")
    weight = moved(weight, y)
    if weight.ndim != 1:
        raise ValueError(f"sample_weight must be one number per row; its shape is {weight.shape}.")
    check_consistent_length(y, weight)
    if bool(xp.any(weight < 0)):
        raise ValueError("sample_weight has negative entries; weights must be ≥ 0.")
    if some and not bool(xp.any(weight > 0)):
        raise ValueError("All entries of sample_weight are zero, so there is no row to fit.")
    return weight


def validated(estimator: Any, X: Any, *target: Any, **checks: Any) -> Any:
    """Return the result of `validate_data`; it also notes or compares the names of the columns."""
    if not _SEES_FRAMES and not hasattr(X, "__dataframe__"):
        frame = nw.from_native(X, eager_only=True, pass_through=True)
        X = frame.to_pandas() if isinstance(frame, nw.DataFrame) else X
    return validate_data(estimator, X, *target, **checks)


@contextmanager
def clear_errors(X: Any = None, y: Any = None) -> Iterator[None]:
    """Add to the errors of scikit-learn where in X or y a value is not finite, and what to do."""
    try:
        yield
    except ValueError as error:
        words = str(error).splitlines()[0].rstrip(".")
        for name, values in (("X", X), ("y", y)):
            if f"Input {name} contains" in words:
                advice = "Replace such values by finite numbers, or leave those rows out."
                if name == "X" and "NaN" in words:
                    advice = (
                        'Use missing="mean" to replace them with the means of the fitted rows, '
                        "or fill or drop them beforehand."
                    )
                place = _first(np.isnan if "NaN" in words else np.isinf, values, name == "X")
                raise ValueError(f"{words}{place}. {advice}") from None
        raise


def _first(is_bad: Callable[[np.ndarray], np.ndarray], values: Any, is_table: bool) -> str:
    """Say where the first bad value is."""
    try:
        table: Any = values.tocoo() if issparse(values) else np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):  # rows of other kinds, or on another device
        return ""
    places = np.argwhere(is_bad(table.data if issparse(table) else table))
    if issparse(table):
        places = np.stack([table.row, table.col], axis=1)[places[:, 0]]
    if not len(places):
        return ""
    row = f", first in row {places[0][0]} (counted from 0)"
    if not is_table:
        return row
    names = getattr(values, "column_names", getattr(values, "columns", None))
    column = int(places[0][1])
    return f"{row} of column {f'x{column}' if names is None else str(list(names)[column])!r}"


def check_targets(y: Any) -> None:
    """Raise an error for targets that are text, masked or dates."""
    refuse_masked(y, "y")
    refuse_dates(y, "y")
    label = next((value for value in _objects(y) if isinstance(value, str)), None)
    if label is not None:
        raise ValueError(
            f"The targets are text, such as {label!r}, but a regressor predicts numbers. If they "
            "are numbers stored as text, convert them: y.astype(float). For classes use "
            "SecondOrderClassifier (for a factorization machine FactorizationMachineClassifier)."
        )


def refuse_dates(values: Any, name: str, advice: str = "") -> None:
    """Raise an error for a list, an array or a series of dates, times or durations."""
    values = values.to_numpy() if hasattr(values, "to_numpy") else values
    if getattr(getattr(values, "dtype", None), "kind", "") in ("m", "M"):
        raise ValueError(dates_in(name, str(values.dtype)) + advice)
    for value in _objects(values):
        if isinstance(value, DATES):
            raise ValueError(dates_in(name, type(value).__name__) + advice)


def refuse_masked(values: Any, name: str) -> None:
    """Raise an error for masked entries: below the mask are numbers that mean nothing."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        count = np.count_nonzero(np.ma.getmaskarray(values))
        raise ValueError(
            f"{name} is a masked array with {count} masked entries, whose values are meaningless. "
            'Drop those rows, or give X.filled(np.nan) and missing="mean".'
        )


def _objects(values: Any) -> list[Any]:
    """Return the values of a list, or of a vector that does not hold numbers."""
    if isinstance(values, list | tuple):
        return list(values)
    if not isinstance(values, np.ndarray) and hasattr(values, "to_numpy"):
        values = values.to_numpy()
    text = isinstance(values, np.ndarray) and values.dtype.kind in "OUT"
    return values.ravel().tolist() if text else []


def check_survey(surveyed: Survey, dtype: Any, names: Sequence[str], options: Options) -> None:
    """Check that rows can be fitted, and warn of suspicious ones, by what one pass showed."""
    if surveyed.tally.rows < 2:
        raise ValueError("There is 1 row with a target, but a fit needs at least 2. Add rows.")
    if surveyed.tally.rows == 2:
        warn(
            "There are only 2 rows. A line passes through any two, so the error of predictions "
            "cannot be estimated. Add rows.",
        )
    check_weights(surveyed.tally, dtype)
    low = float(surveyed.target.low[0])
    if LOSSES[options.loss].nonnegative and low < 0:
        raise ValueError(
            f"The targets go down to {low:.4g}, but loss={options.loss!r} is for counts "
            'and other targets ≥ 0. Leave those rows out, or use loss="squared".'
        )
    _check_merged(surveyed, names)
    target = surveyed.target
    if not bool(target.varies(target.mean.dtype)[0]):
        mean = float(target.mean[0])
        warn(f"The target is {mean:.4g} in every row, so the model is constant.")


def check_weights(tally: Tally, dtype: Any) -> None:
    """Raise an error for weights so large or so small that sums of that dtype would be lost."""
    mean = tally.weight / max(1, tally.counting)
    most = HEAVIEST[32 if "32" in str(dtype) else 64]
    if tally.counting and not 1 / most <= mean <= most:
        raise ValueError(
            f"The weights are {mean:.0e} on average, too {'large' if mean > 1 else 'small'} to sum "
            "up. Divide them all by the same number, and alpha as well."
        )


def _check_merged(surveyed: Survey, names: Sequence[str]) -> None:
    """Raise an error for numbers so large, and so close, that float64 has merged some of them.

    Whatever they were before: integers of a file, of Python or of an array of objects.
    """
    rows = surveyed.tally.rows  # with fewer numbers than rows in a range, some are equal
    for moments, titles in ((surveyed.features, names), (surveyed.target, ["y"])):
        low, high = (to_numpy(a).astype(np.float64) for a in (moments.low, moments.high))
        gap = np.spacing(np.maximum(np.abs(low), np.abs(high)))
        for j in np.flatnonzero((gap > 1) & (low < high) & (high - low < rows * gap)).tolist():
            what = "The target" if titles == ["y"] else f"Column {titles[j]!r}"
            raise ValueError(
                f"{what} holds numbers from {low[j]:.0f} to {high[j]:.0f}, which float64 rounds to "
                f"multiples of {gap[j]:.0f}, so different numbers became equal. Subtract the "
                "smallest before the conversion to float64, or leave the column out if it is an "
                "id."
            )


def warn_of_extremes(surveyed: Survey, names: Sequence[str], robust: bool) -> None:
    """Warn where a handful of rows carry the fourth moment of the target or of named features.

    Σz⁴ = nφ, and a row that is far from all others has z² ≈ n: so about n/φ rows carry it.
    """
    features, target = surveyed.features, surveyed.target
    most = max(features.weight, MANY) / HANDFUL
    few = to_numpy((features.phi > most) & ~features.has_two_values & (features.var > 0))
    if extreme := [names[int(j)] for j in np.flatnonzero(few) if names]:
        warn(
            f"A handful of rows have extreme values in {listed(extreme)}, and dominate squares and "
            "products. Check these values, or transform the columns, such as by a logarithm.",
        )
    if float(target.phi[0]) > most and not robust:
        warn(
            "A handful of rows have extreme targets, and dominate a fit by squared "
            'errors. Check them, or use loss="huber".',
        )
