"""Intensities before a signal is searched for, and what to say about them afterwards."""

from typing import Any

import numpy as np
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_array

from quadlin.core.messages import warn
from quadlin.estimators.checks import check_targets
from quadlin.estimators.signals.sensing_rows import (
    EXACT,
    POOR,
    counted,
    gross_errors,
    share_of,
    warn_of_left_out,
)
from quadlin.estimators.signals.vectors import refuse_paths, refuse_unsquarable
from quadlin.solve.signals.phase import Retrieval
from quadlin.solve.signals.second_look import SecondLook

MOST_NEGATIVE = 0.1  # of the sum of squares of y: below this, noise need not explain it
POSITIVE = 3.0  # standard errors: the mean of intensities is above 0, whatever the noise
ENOUGH = 4  # measurements per entry of the signal, for the search to succeed


def checked_intensities(y: Any, n: int) -> np.ndarray:
    """Return y as numbers, or say why they are not intensities."""
    if y is None:
        raise ValueError("PhaseRetriever requires y to be passed, but the target y is None.")
    if np.iscomplexobj(np.asarray(y)):
        raise ValueError(
            "Complex data not supported in y: give the intensities |A @ z|², real numbers."
        )
    y = checked_targets(y, n, "A has")
    negative = y < 0
    mean, error = float(np.mean(y)), float(np.std(y)) / np.sqrt(n)
    if np.sum(y[negative] ** 2) > MOST_NEGATIVE * np.sum(y**2) and not mean > POSITIVE * error:
        raise ValueError(
            f"{np.count_nonzero(negative)} of the {n} intensities in y are negative, and their "
            f"mean, {mean:.4g} with a standard error of {error:.2g}, is not above 0. Intensities "
            "are squares, |A @ z|²: square amplitudes first, and do not subtract the mean."
        )
    return np.asarray(y)


def checked_targets(y: Any, n: int, rows: str) -> np.ndarray:
    """Return y as n numbers, one per row."""
    check_targets(y)
    refuse_other_lengths(y, n, rows)
    y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
    refuse_unsquarable(y, "y", least=0.0)
    return np.asarray(column_or_1d(y, warn=True))


def refuse_other_lengths(y: Any, n: int, rows: str) -> None:
    """Refuse y of another length, or in the shape of a picture, with what to do about it."""
    shape = np.asarray(y).shape
    if shape and int(np.prod(shape)) == shape[0] != n:
        raise ValueError(f"{rows} {n} rows, but y has {shape[0]} entries. Give one per row.")
    if len(shape) > 1 and int(np.prod(shape)) == n and max(shape) < n:
        raise ValueError(
            f"y should be a 1d array, got an array of shape {shape} instead. {rows} {n} rows, one "
            "for each entry: use y.ravel() if they are in that order."
        )


def refuse_other_operators(A: Any) -> None:
    """Refuse functions, and objects with products, that are no operators of scipy."""
    refuse_paths(A)
    parts = A if isinstance(A, tuple | list) else (A,)
    functions = any(callable(part) for part in parts[:2])
    if functions or (hasattr(A, "matvec") and not hasattr(A, "__array__")):
        kind = "functions" if functions else f"an object of type {type(A).__name__}"
        raise TypeError(
            f"A is {kind}. Give an array of rows, or an operator: "
            "scipy.sparse.linalg.LinearOperator(shape, matvec=forward, rmatvec=adjoint, "
            "dtype=complex), with forward(z) = A @ z and adjoint(u) = Aᴴ @ u."
        )


def warn_of_columns(result: Retrieval, d: int) -> None:
    """Warn where columns of A do not tell every entry of the signal."""
    if result.rank < d:
        warn(
            f"The {d} columns of A are linearly dependent: they span {result.rank} "
            f"{'dimension' if result.rank == 1 else 'dimensions'}. Of all signals with the same "
            "intensities, this is the smallest: entries that no measurement sees are 0."
        )


def is_enough(n: int, rows: int, d: int, real: bool) -> bool:
    """Tell whether n measurements, of some rows, can determine a signal; warn where they cannot."""
    needed = 2 * d - 1 if real else 2 * d
    if n < needed:
        kind = "real" if real else "complex"
        warn(
            f"{counted(n, rows)} {'does' if n == 1 else 'do'} not determine a {kind} signal of {d} "
            f"{'entry' if d == 1 else 'entries'}: at least {needed} are needed, and about "
            f"{ENOUGH * d} for the search to succeed. Add measurements by other vectors."
        )
    return n >= needed


def warn_of_rest(look: SecondLook, robust: bool) -> None:
    """Warn where y is explained badly, by what explains it well if that is clear."""
    left = share_of(look.unexplained)
    if look.amplitudes is not None:
        text = (
            "y seems to hold amplitudes |A @ z|, not intensities |A @ z|²: the signal leaves "
            "{left} of the variance of y unexplained, and one that was fitted to the squares of y "
            "leaves {less}. Square y first."
        )
        warn(text.format(left=left, less=share_of(look.amplitudes)))
    elif look.background is not None:
        text = (
            "y seems to contain a background of about {size:.3g}, the same for each measurement: "
            "without it, a signal leaves {less} of the variance of y unexplained instead of "
            "{left}. Subtract the background from y first."
        )
        size, less = look.background
        warn(text.format(left=left, less=share_of(less), size=size))
    elif look.unexplained > POOR:
        text = (
            "The signal leaves {left} of the variance of y unexplained. The cause may be noise, "
            "{errors}, or a y that does not hold intensities |A @ z|²."
        )
        warn(text.format(left=left, errors=gross_errors(robust)))
    elif look.unexplained > EXACT:  # an exact fit of the rows that are left is proof
        warn_of_left_out(look.left_out, "signal")
