"""Rows and weights, checked by scikit-learn: with the names of every frame, and clearer errors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

import narwhals as nw
import numpy as np
from array_api_compat import is_array_api_obj
from scipy.sparse import issparse
from sklearn import __version__, get_config
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.validation import validate_data

from quadlin.core.arrays import Array, moved, namespace
from quadlin.core.messages import Message, Option

# Before 1.9 scikit-learn asks frames for their names by a protocol that polars 2 does not have.
_SEES_FRAMES = tuple(map(int, __version__.split(".")[:2])) >= (1, 9)

COMPLEX = (
    "Complex data not supported: X holds complex numbers. Give their real and imaginary parts as "
    "columns: np.hstack([X.real, X.imag])."
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
    """Return the weights as float64 beside y, or None where there are none."""
    if weight is None:
        return None
    xp = namespace(y)
    if isinstance(weight, Real):
        weight = xp.full(y.shape, float(weight), dtype=y.dtype, device=y.device)
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
    """Say where and what to do, where scikit-learn only says what is wrong with X."""
    try:
        yield
    except ValueError as error:
        if "Input X contains NaN" in str(error):
            raise ValueError(
                Message(
                    "Input X contains NaN (missing values){first}. Use {mean}, which replaces them "
                    "by the means of the fitted rows, or fill or drop them beforehand.",
                    first=_first(np.isnan, X),
                    mean=Option("missing", "mean"),
                )
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
