"""What the families of the campaign share: tables, what is required of fits, what is missing."""

import importlib
import tempfile
from pathlib import Path

import numpy as np

from quadlin import load, save


class BrokenPromiseError(AssertionError):
    """A promise that was not kept."""


class SkippedError(Exception):
    """What a family needs is not here."""


def require(good, text):
    if not good:
        raise BrokenPromiseError(text)


def needed(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SkippedError(f"{name} is not installed") from error


def table(rng, n=None, d=None):
    """Return (X, f): features of some kinds, and a quadratic function of them."""
    n = n or int(rng.integers(30, 200))
    d = d or int(rng.integers(1, 7))
    X = rng.standard_normal((n, d)) * 10.0 ** rng.integers(-3, 4, d) + rng.choice([0, 0, 5], d)
    binary = rng.uniform(size=d) < 0.3
    X[:, binary] = X[:, binary] > np.median(X[:, binary], axis=0)
    Z = (X - X.mean(0)) / np.where(X.std(0) > 0, X.std(0), 1.0)
    U = rng.standard_normal((d, rng.integers(0, 3)))
    f = Z @ rng.standard_normal(d) + (Z @ U) ** 2 @ rng.choice([-1.0, 1.0], U.shape[1])
    return X, f


def seed_of(rng):
    return int(rng.integers(1000))


def same_after_a_file(model, predict):
    with tempfile.TemporaryDirectory() as folder:
        save(model, Path(folder) / "model")
        loaded = load(Path(folder) / "model")
    require(np.array_equal(predict(model), predict(loaded)), "saved and loaded: other predictions")
    return loaded


def in_sample(model, X, y, weight, text):
    r = model.predict(X) - y
    omega = np.ones(len(y)) if weight is None else weight
    spread = np.average((y - np.average(y, weights=omega)) ** 2, weights=omega)
    error = np.average(r**2, weights=omega)
    require(np.isfinite(error), f"{text}: a prediction is not finite")
    require(error <= spread * (1 + 1e-6) + 1e-12, f"{text}: {error:.4g}, variance {spread:.4g}")
