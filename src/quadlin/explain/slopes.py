"""Slopes of a model where all columns have their means."""

from typing import Any

import numpy as np

from quadlin.core.arrays import to_numpy


def mean_slopes(model: Any) -> np.ndarray:
    r"""Return :math:`w + 2 M \mu` (d,), in the user's units, μ the means of the fitted rows.

    Where there are products, w alone is the slope where all other features are zero, which no row
    may be near. Levels of one column are never together, so M has no products of them.
    """
    view, mean = model.interactions_, to_numpy(model.moments_.mean).astype(float)
    factor, signs = view.factor, view.signs
    Mx = factor @ (signs * (mean @ factor))
    lone = ~view.has_diagonal & (view.field < 0)
    Mx[lone] -= (np.sum(factor * signs * factor, axis=1) * mean)[lone]
    for number in range(int(view.field.max(initial=-1)) + 1):
        group = np.flatnonzero(view.field == number)
        Mx[group] -= factor[group] @ (signs * (mean[group] @ factor[group]))
    return np.asarray(to_numpy(model.coef_).astype(float) + 2 * Mx)


def mean_slope_errors(model: Any) -> np.ndarray:
    """Return the standard errors of the slopes (d,). Needs a law of the errors."""
    fitted, mean = model.fitted_, to_numpy(model.moments_.mean).astype(float)
    return np.asarray(fitted.law.slope_std(mean, fitted.fields))
