"""What several test files draw their rows from, and other helpers."""

import ast
from copy import copy
from pathlib import Path

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
    m = Moments(1.0, m.mean[columns], m.var[columns], m.kappa[columns], m.phi[columns])
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
    nothing = block.units.scale[:, None][:, :0]
    return block.through(nothing, lambda _, __, part: (R[part, :0], R[part, :]), None, True)[2]


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


PLANTED = [  # rows, features, pairs, noise and kind of problems whose pairs are all to be found
    (600, 40, 5, 0.5, "normal"),
    (2000, 40, 5, 0.5, "normal"),
    (1000, 40, 5, 0.5, "mixed"),
    (1500, 80, 8, 1.0, "normal"),
]


def planted_pairs(n, d, count, noise, seed=1, kind="normal", skew=1.0):
    """Correlated rows with pairs of strength 1 in standardised features; y; the pairs."""
    rng, correlation = np.random.default_rng(seed), 0.3
    X = np.sqrt(1 - correlation) * rng.standard_normal((n, d))
    X = X + np.sqrt(correlation) * rng.standard_normal((n, 1))
    if kind == "mixed":
        X[:, ::3] = X[:, ::3] > 0.5
        X[:, 1::3] = np.exp(skew * X[:, 1::3])
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    truth = set()
    while len(truth) < count:
        truth.add(tuple(sorted(rng.choice(d, 2, replace=False).tolist())))
    f = Z @ rng.standard_normal(d) / np.sqrt(d)
    f = f + sum(rng.choice([-1, 1]) * Z[:, i] * Z[:, j] for i, j in sorted(truth))
    return X, f + noise * rng.standard_normal(n), truth


def missing_tests(places):
    """Return those places, each a file and a test in it, where there is no such test."""
    here = Path(__file__).parent
    missing = []
    for place in places:
        path, name = place.split("::")
        tree = ast.parse((here / path).read_text())
        if name not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
            missing.append(place)
    return missing


class AfterSteps:
    """A callback that calls a function after each step of a fit, with the step's context."""

    def __init__(self, function):
        self.function = function

    def setup(self, estimator, context): ...
    def teardown(self, estimator, context): ...
    def on_fit_task_begin(self, estimator, context): ...
    def on_fit_task_end(self, estimator, context):
        return context.task_name == "step" and self.function(context)
