"""How far an estimate is from the truth."""

from typing import Any

import numpy as np

from quadlin.core.model import degrees_of_freedom as degrees_of_freedom


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


def align_phase(signal: Any, reference: Any) -> np.ndarray:
    """Return a signal times the sign, or the phase if complex, that brings it nearest a reference.

    Intensities |⟨a, z⟩|² are the same for z and for z times any sign or phase.

    Examples
    --------
    >>> align_phase([1.0, -2.0], [-1.0, 2.1]).tolist()
    [-1.0, 2.0]
    >>> align_phase([1j, -2j], [1.0, -2.0]).round(12).tolist()
    [(1+0j), (-2+0j)]
    """
    signal, reference = np.asarray(signal), np.asarray(reference)
    if signal.shape != reference.shape:
        raise ValueError(f"The signal has shape {signal.shape} but the other {reference.shape}.")
    product = np.vdot(signal, reference)
    return np.asarray(signal * (product / abs(product))) if product else signal


def signal_error(signal_true: Any, signal: Any) -> float:
    r"""Return :math:`\min_\phi |z - \phi \hat z| / |z|`, φ any sign, or phase if complex.

    0 is perfect; a random signal of the same size has 1.4 or less.

    Examples
    --------
    >>> signal_error([3.0, 4.0], [-3.0, -4.0])
    0.0
    """
    signal_true = np.asarray(signal_true)
    error = np.linalg.norm(align_phase(signal, signal_true) - signal_true)
    return float(error / np.linalg.norm(signal_true))
