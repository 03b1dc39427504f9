"""Rows, targets and weights, checked by scikit-learn, with the column names of any frame.

What cannot be fitted is refused, by errors that say where it is and what to do.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, time, timedelta
from numbers import Real
from typing import Any

import narwhals as nw
import numpy as np
from array_api_compat import is_array_api_obj
from scipy.sparse import issparse
from sklearn import __version__, get_config
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.validation import validate_data

from quadlin.core.arrays import Array, moved, namespace, refuse_broken_sparse
from quadlin.data.columns import TIMES, dates_in

# Before 1.9 scikit-learn asks frames for their names by a protocol that polars 2 does not have.
_SEES_FRAMES = tuple(map(int, __version__.split(".")[:2])) >= (1, 9)

COMPLEX = (
    "Complex data not supported: X holds complex numbers. Give their real and imaginary parts as "
    "columns: np.hstack([X.real, X.imag])."
)
DATES = (date, time, timedelta, np.datetime64, np.timedelta64)  # of objects, pandas' included
COMPLEX_TARGETS = (
    "Complex data not supported: y holds complex numbers, but a target is one real number per row. "
    "Fit one model to y.real and one to y.imag."
)


class _NamedRows:
    """A frame as rows with names, by the protocol that older versions of scikit-learn ask for."""

    def __init__(self, frame: nw.DataFrame[Any]):
        self.frame, self.shape = frame, frame.shape

    def __len__(self) -> int:
        return len(self.frame)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.frame.to_numpy(), dtype=dtype)

    def __dataframe__(self) -> "_NamedRows":
        return self

    def column_names(self) -> list[str]:
        return self.frame.columns

    def num_rows(self) -> int:
        return len(self.frame)


def float_types(X: Any) -> tuple[Any, Any]:
    """Return the dtypes that rows may keep, in the namespace scikit-learn will leave them in.

    The first is what others become: tensors of single precision that scikit-learn is going to turn
    into arrays, whose dtype it does not know, stay single.
    """
    array_api = get_config()["array_api_dispatch"] and is_array_api_obj(X) and not issparse(X)
    xp = namespace(X) if array_api else np
    single = is_array_api_obj(X) and str(X.dtype).endswith("float32")
    return (xp.float32, xp.float64) if single else (xp.float64, xp.float32)


def checked_weight(weight: Any, y: Array) -> Array | None:
    """Return the weights in float64, on the device of y; None if there are none."""
    if weight is None:
        return None
    xp = namespace(y)
    if isinstance(weight, Real):
        weight = xp.full(y.shape, float(weight), dtype=y.dtype, device=y.device)
    refuse_masked(weight, "sample_weight")
    refuse_dates(weight, "sample_weight")
    weight = check_array(weight, ensure_2d=False, dtype=None, input_name="sample_weight")
    weight = moved(weight, y)
    if weight.ndim != 1:
        raise ValueError(f"sample_weight must be one number per row; its shape is {weight.shape}.")
    check_consistent_length(y, weight)
    if bool(xp.any(weight < 0)):
        raise ValueError("sample_weight has negative entries; weights must be ≥ 0.")
    if not bool(xp.any(weight > 0)):
        raise ValueError("All entries of sample_weight are zero, which leaves no row to fit.")
    return weight


def validated(estimator: Any, X: Any, *target: Any, **checks: Any) -> Any:
    """Return what `validate_data` does, which notes or compares the names of the columns."""
    if not _SEES_FRAMES and not hasattr(X, "__dataframe__"):
        frame = nw.from_native(X, eager_only=True, pass_through=True)
        X = _NamedRows(frame) if isinstance(frame, nw.DataFrame) else X
    return validate_data(estimator, X, *target, **checks)


def validated_numbers(
    estimator: Any, X: Any, *target: Any, may_be_missing: bool, **checks: Any
) -> Any:
    """Return rows of numbers, and targets if there are any; errors say what is wrong, and where."""
    finite = "allow-nan" if may_be_missing else True
    checks |= {"accept_sparse": "csr", "dtype": float_types(X), "ensure_all_finite": finite}
    with clear_errors(X):
        return validated(estimator, X, *target, **checks)


@contextmanager
def clear_errors(X: Any = None) -> Iterator[None]:
    """Add to the errors of scikit-learn where in X the problem is, and what to do."""
    try:
        yield
    except ValueError as error:
        if "Input X contains NaN" in str(error):
            raise ValueError(
                f"Input X contains NaN (missing values){_first(np.isnan, X)}. Use "
                'missing="mean", which replaces them by the means of the fitted rows, or '
                "fill or drop them beforehand."
            ) from None
        if "Input X contains infinity" in str(error) and (first := _first(np.isinf, X)):
            raise ValueError(
                f"Input X contains infinity{first}. Replace such values by finite numbers, or "
                "leave those rows out."
            ) from None
        if "Complex data not supported" in str(error):
            raise ValueError(COMPLEX) from None
        raise


def _first(is_bad: Callable[[np.ndarray], np.ndarray], X: Any) -> str:
    """Say where the first bad value of rows is."""
    names = getattr(X, "column_names", getattr(X, "columns", None))
    try:
        values: Any = X.tocsr() if issparse(X) else np.asarray(X, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):  # rows of other kinds, or on another device
        return ""
    if issparse(values):
        at = np.flatnonzero(is_bad(values.data))
        if not len(at):
            return ""
        row, column = int(np.searchsorted(values.indptr, at[0], "right")) - 1, values.indices[at[0]]
    else:
        places = np.argwhere(is_bad(values))
        if not len(places) or places.shape[1] != 2:
            return ""
        row, column = places[0]
    name = f"x{column}" if names is None else str(list(names)[column])
    return f", first in row {row} (counted from 0) of column {name!r}"


def refuse_unusable(X: Any, y: Any, weight: Any) -> None:
    """Refuse rows that are not a table or are masked, and targets that are not numbers."""
    refuse_no_table(X)
    for values, name in ((X, "X"), (y, "y"), (weight, "sample_weight")):
        refuse_masked(values, name)
    refuse_text_targets(y)
    if getattr(getattr(y, "dtype", None), "kind", "") == "c":
        raise ValueError(COMPLEX_TARGETS)
    refuse_missing_targets(y)


def refuse_missing_targets(y: Any) -> None:
    """Refuse targets that are missing, masked, infinite or dates, by the first of them."""
    if y is None:
        return
    refuse_masked(y, "y")
    refuse_dates(y, "y")
    try:
        values = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):  # scikit-learn refuses these by itself
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


def refuse_dates(values: Any, name: str) -> None:
    """Refuse a list, an array or a series of dates, times or durations."""
    if (kind := kind_of_dates(values)) is not None:
        raise ValueError(dates_in(name, kind))


def kind_of_dates(values: Any) -> str | None:
    """Return the dtype of dates, times or durations, or the type of one among objects, if any."""
    series = nw.from_native(values, pass_through=True, allow_series=True)
    times = isinstance(series, nw.Series) and series.dtype in TIMES
    if times or getattr(getattr(values, "dtype", None), "kind", "") in ("m", "M"):
        return str(values.dtype)
    return next((type(v).__name__ for v in _objects(values) if isinstance(v, DATES)), None)


def refuse_masked(values: Any, name: str) -> None:
    """Refuse a masked array with masked entries: below the mask are numbers that mean nothing."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        count = int(np.count_nonzero(np.ma.getmaskarray(values)))
        raise ValueError(
            f"{name} is a masked array with {count} masked entries, whose values are meaningless. "
            + (
                'Use X.filled(np.nan) with missing="mean", or drop those rows.'
                if name == "X"
                else "Drop those rows."
            )
        )


def refuse_no_table(X: Any) -> None:
    """Refuse rows that are not a table, of kinds for which scikit-learn has no clear error."""
    kind, dtype, shape = type(X).__name__, getattr(X, "dtype", None), getattr(X, "shape", None)
    if (isinstance(X, dict | set) and not issparse(X)) or hasattr(X, "__next__"):
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
    refuse_broken_sparse(X)


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
