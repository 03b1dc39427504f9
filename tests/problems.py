"""What several test files draw their rows from, and other helpers."""

from copy import copy

import numpy as np

from quadlin.core.chunks import Chunk
from quadlin.core.model import Model
from quadlin.core.moments import Moments
from quadlin.core.units import Target, units_of

KINDS = ("gaussian", "truncated", "bernoulli", "uniform", "mixed")


def draw(kind, n, d, rng):
    from quadlin.datasets import _features

    return _features(rng, n, d, kind, None)


def population_units(kind, d, dtype=np.float64):
    """Units with the moments of the distribution itself, from very many draws of a column."""
    X = draw(kind, 4_000_000, 2, np.random.default_rng(99))
    m = Moments.of(X)
    columns = np.arange(d) % 2
    parts = (m.mean, m.var, m.kappa, m.phi, m.low, m.high)
    m = Moments(1.0, *(part[columns] for part in parts))
    return units_of(m, m.tau >= 0.05, Target(0.0, 1.0, 0.0, 1.0), dtype)


def random_model(d, k, free, rng, c=0.3):
    U = np.linalg.qr(rng.standard_normal((d, k)))[0]
    s = np.where(np.arange(k) % 2, -1.0, 1.0) * rng.uniform(0.5, 1.5, k)
    return Model(U, s, rng.standard_normal(d), c, free)


def dense_m(model):
    """M with its diagonal left out where it is not modelled, formed outright."""
    M = (model.U * model.s) @ model.U.T
    return M - np.diag((1 - model.free) * np.diag(M))


def dense_predict(model, Z):
    """f(z) by the d×d matrix, independently of the library."""
    M = dense_m(model)
    return model.c + Z @ model.w + np.einsum("ni,ij,nj->n", Z, M, Z) - np.trace(M)


def squares_matmul(block, Q):
    """Return (Z∘Z) Q."""
    return block.products(Q[:, :0], Q)[1]


def squares_rmatmul(block, R):
    """Return (Z∘Z)ᵀ R for R (n, q)."""
    return block.kernel.sums(R, R.shape[1])[1]


def places(value, at=()):
    """Yield all places in a JSON value."""
    yield at
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*at, key))


def changed(value, at, new):
    """Return the value with something else at a place."""
    if not at:
        return new
    value = copy(value)
    value[at[0]] = changed(value[at[0]], at[1:], new)
    return value


def chunk_of(X, y, weight=None):
    return Chunk(X, y, weight)
