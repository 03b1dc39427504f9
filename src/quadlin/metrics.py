"""How far an estimate is from the truth."""

from typing import Any

import numpy as np


def nmse(y_true: Any, y_pred: Any) -> float:
    r"""Return :math:`E(\hat y - y)^2 / \mathrm{Var}\,y`: 0 is perfect, 1 is the constant.

    Examples
    --------
    >>> nmse([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    0.0
    """
    y_true, y_pred = np.asarray(y_true, dtype=float), np.asarray(y_pred, dtype=float)
    if y_true.shape != y_pred.shape:
        raise ValueError(f"y_true has shape {y_true.shape} but y_pred has {y_pred.shape}.")
    return float(np.mean((y_pred - y_true) ** 2) / np.var(y_true))


def degrees_of_freedom(
    n_features: int, rank: int, *, linear: bool = True, intercept: bool = True
) -> int:
    """Return the number of free parameters: 1 + d + dk − k(k−1)/2, less parts that are not fitted.

    Examples
    --------
    >>> degrees_of_freedom(100, 3)
    398
    >>> degrees_of_freedom(100, 1, linear=False, intercept=False)
    100
    """
    k = min(rank, n_features)
    return intercept + linear * n_features + n_features * k - k * (k - 1) // 2
