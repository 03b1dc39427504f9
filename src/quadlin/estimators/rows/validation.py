"""scikit-learn's check of rows, with the names of every frame."""

from typing import Any

import narwhals as nw
import numpy as np
from sklearn import __version__
from sklearn.utils.validation import validate_data

# Before 1.9 scikit-learn asks frames for their names by a protocol that polars 2 does not have.
_SEES_FRAMES = tuple(map(int, __version__.split(".")[:2])) >= (1, 9)


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


def validated(estimator: Any, X: Any, *target: Any, **checks: Any) -> Any:
    """Return what `validate_data` does, which notes or compares the names of the columns."""
    if not _SEES_FRAMES and not hasattr(X, "__dataframe__"):
        frame = nw.from_native(X, eager_only=True, pass_through=True)
        X = _NamedRows(frame) if isinstance(frame, nw.DataFrame) else X
    return validate_data(estimator, X, *target, **checks)
