"""Signals and matrices from measurements: few or many rows, zeros, repeated rows, gross errors."""

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import aslinearoperator
from sklearn.base import clone

from campaign_families.checks import require, seed_of
from quadlin import MatrixSensing, PhaseRetriever, Status
from quadlin.metrics import signal_error

RECOVERED = (Status.converged,)  # with noise-free measurements: the truth is what they promise


def measured(rng, d, rows_per_unknown):
    """Return vectors as rows, some zero or repeated, perhaps weights, and whether complex."""
    n = max(2, int(rows_per_unknown * d))
    A = rng.standard_normal((n, d))
    is_complex = bool(rng.uniform() < 0.4)
    if is_complex:
        A = A + 1j * rng.standard_normal((n, d))
    if rng.uniform() < 0.3:
        A[rng.integers(n, size=2)] = 0
    if rng.uniform() < 0.3:
        A[rng.integers(n, size=n // 4)] = A[0]
    weight = rng.uniform(0.1, 3, n) if rng.uniform() < 0.3 else None
    return A, weight, is_complex


def in_form(A, rng):
    if rng.uniform() < 0.25:
        return aslinearoperator(A)
    return sparse.csr_array(A) if rng.uniform() < 0.25 else A


def phase(rng):
    """Say that a signal is found only where it is, whatever the rows."""
    d, share = int(rng.integers(1, 7)), rng.choice([0.6, 1.5, 3, 6, 10])
    A, weight, is_complex = measured(rng, d, share)
    real = not is_complex or bool(rng.uniform() < 0.3)
    z = rng.standard_normal(d) + (0 if real else 1j * rng.standard_normal(d))
    y = np.abs(A @ z) ** 2 * 10.0 ** rng.integers(-8, 9)
    noise = str(rng.choice(["none", "none", "some", "gross", "zeros"]))
    if noise == "some":
        y = np.maximum(y + 0.05 * y.std() * rng.standard_normal(len(y)), 0)
    elif noise == "gross":
        y[rng.uniform(size=len(y)) < 0.1] *= 1e3
    elif noise == "zeros":
        y = np.zeros_like(y)
    loss = "huber" if noise == "gross" and rng.uniform() < 0.7 else "squared"
    options = {"real": real, "loss": loss, "random_state": seed_of(rng)}
    given = in_form(A, rng)
    model = PhaseRetriever(**options).fit(given, y, sample_weight=weight)
    text = f"{len(y)} rows of {d}, {noise}, {options}"
    require(np.isfinite(model.signal_).all(), f"{text}: the signal is not finite")
    require(np.isrealobj(model.signal_) or not real, f"{text}: a complex signal of a real one")
    f = model.predict(given)
    require(np.isfinite(f).all() and (f >= 0).all(), f"{text}: an intensity is no number ≥ 0")
    if loss == "squared":
        omega = np.ones(len(y)) if weight is None else weight
        error, power = (float(omega @ a**2) for a in (f - y, y))
        require(error <= power * (1 + 1e-6), f"{text}: error {error:.3g}, zero has {power:.3g}")
        exact = noise == "none" and model.status_ in RECOVERED and error <= 1e-12 * power
        if exact and share >= 6:
            scale = np.sqrt(power / max(float(omega @ np.abs(A @ z) ** 4), 1e-300)) ** 0.5
            apart = signal_error(scale * z, model.signal_)
            require(apart < 1e-3, f"{text}: converged, but the signal is {apart:.3g} off")
    again = clone(model).fit(given, y, sample_weight=weight)
    require(np.array_equal(again.signal_, model.signal_), f"{text}: the same seed, other bits")


def sensing(rng):
    """Say that a matrix is found only where it is; a semidefinite one is semidefinite."""
    d, e, k = (int(rng.integers(1, 6)) for _ in range(3))
    pair = bool(rng.uniform() < 0.5)
    k, e = min(k, 2, d, e if pair else d), e if pair else d
    n = max(3, int(rng.choice([0.7, 2, 5, 12]) * k * (d + e)))
    A, B = rng.standard_normal((n, d)), rng.standard_normal((n, e))
    psd = not pair and bool(rng.uniform() < 0.4)
    U, V = rng.standard_normal((d, k)), rng.standard_normal((e, k))
    V = V if pair else U * (1 if psd else rng.choice([-1.0, 1.0], k))
    if rng.uniform() < 0.2:
        A[rng.integers(n, size=max(1, n // 4))] = A[0]
    if rng.uniform() < 0.2:
        A[rng.integers(n)] = 0
    y = np.sum((A @ U) * ((B if pair else A) @ V), axis=1) * 10.0 ** rng.integers(-6, 7)
    noisy = rng.uniform() < 0.5
    y = y + 0.1 * y.std() * rng.standard_normal(n) if noisy else y
    rank = "auto" if rng.uniform() < 0.4 else k
    options = {"rank": rank, "psd": psd, "random_state": seed_of(rng)}
    given = (A, B) if pair else A
    model = MatrixSensing(**options).fit(given, y)
    text = f"{n} rows of {d} × {e}, rank {k}, {options}"
    f, M = model.predict(given), model.matrix_
    require(np.isfinite(f).all() and np.isfinite(M).all(), f"{text}: not finite")
    if psd:
        least = np.linalg.eigvalsh(M).min()
        require(least >= -1e-6 * np.abs(M).max(), f"{text}: an eigenvalue is {least:.3g}")
    error, power = np.mean((f - y) ** 2), np.mean(y**2)
    require(error <= power * (1 + 1e-6), f"{text}: error {error:.3g}, zero has {power:.3g}")
    apart = np.abs(np.sum((A @ M) * (B if pair else A), axis=1) - f).max()
    require(apart <= 1e-6 * (np.abs(f).max() + 1e-300), f"{text}: matrix_ predicts otherwise")
    again = clone(model).fit(given, y)
    require(np.array_equal(again.matrix_, M), f"{text}: the same seed, other bits")


MEASUREMENTS = {"phase": (0.03, phase), "sensing": (0.03, sensing)}
