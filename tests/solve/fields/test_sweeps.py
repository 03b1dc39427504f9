"""Sweeps over columns in groups: closed forms, a rising bound, and the exact posterior."""

import numpy as np
import pytest

from quadlin.core.chunks import MemorySource
from quadlin.core.sweeps import Columns, Point
from quadlin.solve.fields.machine import ROUND, Frame, Learned, Machine, Priors, refine

RNG = np.random.default_rng(0)
N = 300
X = np.hstack(
    [
        np.eye(8)[RNG.integers(8, size=N)],
        np.eye(5)[RNG.integers(5, size=N)],
        RNG.normal(size=(N, 2)) * (RNG.random((N, 2)) < 0.6),
    ]
)
GROUPS = [np.arange(8), np.arange(8, 13), np.arange(13, 15)]
V = RNG.normal(size=(15, 2))
TARGET = X @ RNG.normal(size=15) + ((X @ V) ** 2 - X**2 @ V**2) @ [0.5, -0.5] + RNG.normal(size=N)
Y = (TARGET - TARGET.mean()) / TARGET.std()
WEIGHT = RNG.integers(1, 3, N).astype(float)
SIGNS = np.array([1.0, -1.0, 1.0])


FRAME = Frame(np.repeat(np.arange(3), [8, 5, 2]), np.zeros(15), np.ones(15), 3, 0.0, 1.0)


def machine(rows=X, y=Y, weight=WEIGHT, **options):
    rng = np.random.default_rng(1)
    return Machine(FRAME, MemorySource(rows, y, weight), SIGNS, rng, **options)


def run(model, explored, refined):
    """Sweep, and return the bound after each round of variational sweeps."""
    for _ in range(explored):
        model.sweep()
    return np.array([model.bound for _ in refine(model, refined)][ROUND - 1 :: ROUND])


@pytest.fixture(params=["compiled", "numpy"])
def kernel(request, monkeypatch):
    monkeypatch.setenv("QUADLIN_KERNEL", "numpy" if request.param == "numpy" else "")


@pytest.mark.parametrize("labels", [False, True])
def test_the_bound_never_falls(kernel, labels):
    model = machine(y=(Y > 0).astype(float) if labels else Y, labels=labels)
    assert np.diff(run(model, 10, 60)).min() > -1e-6 * N


@pytest.mark.parametrize("labels", [False, True])
def test_the_compiled_kernel_is_numpy(labels, monkeypatch):
    tables = []
    for name in ("", "numpy"):
        monkeypatch.setenv("QUADLIN_KERNEL", name)
        model = machine(y=(Y > 0).astype(float) if labels else Y, labels=labels)
        run(model, 8, 8)
        tables.append(
            np.column_stack([model.point.table, np.sqrt(np.einsum("jaa->ja", model.point.cov))])
        )
    np.testing.assert_allclose(*tables, atol=1e-5)


def test_residuals_are_those_of_the_formula(kernel):
    model = machine()
    run(model, 5, 5)
    table, b = model.point.table, model.priors.intercept
    f = b + X @ table[:, 0] + ((X @ table[:, 1:]) ** 2 - X**2 @ table[:, 1:] ** 2) @ SIGNS / 2
    np.testing.assert_allclose(model.residuals(), Y - f, atol=1e-10)


def test_weights_equal_repetition(kernel):
    chosen = np.repeat(np.arange(N), WEIGHT.astype(int))
    repeated, weighted = machine(X[chosen], Y[chosen], None), machine()
    for each in (weighted, repeated):
        run(each, 10, 5)
    np.testing.assert_allclose(weighted.point.table, repeated.point.table, atol=1e-5)


def test_one_field_alone_is_shrunk_in_closed_form(kernel):
    columns = Columns.of(X[:, :8], [np.arange(8)])
    mean, precision, noise = np.array([0.3]), np.array([2.5]), 4.0
    point = Point.of(columns, Y, WEIGHT, np.empty(0), np.zeros((8, 1)))
    point.sweep(slice(0, 8), mean, precision, noise)
    counts, sums = WEIGHT @ X[:, :8], (WEIGHT * Y) @ X[:, :8]
    expected = (noise * sums + precision * mean) / (noise * counts + precision)
    np.testing.assert_allclose(point.table[:, 0], expected)


def test_factors_of_infinite_precision_leave_ridge_regression(kernel):
    priors = Priors(np.zeros((3, 4)), np.tile([2.0, 1e12, 1e12, 1e12], (3, 1)), 3.0, 0.0)
    model = machine(before=Learned(FRAME, np.zeros((15, 4)), priors, SIGNS, labels=False))
    for _ in range(1500):
        for g, group in enumerate(model.columns.groups):
            model.point.sweep(group, priors.mean[g], priors.precision[g], 3.0)
    gram = 3.0 * (X.T * WEIGHT) @ X + 2.0 * np.eye(15)
    np.testing.assert_allclose(
        model.point.table[:, 0], np.linalg.solve(gram, 3 * X.T @ (WEIGHT * Y)), atol=1e-6
    )


def test_draws_are_those_of_the_posterior_by_integration(kernel):
    """Two columns that occur together, one factor each: the posterior of (v, v') on a grid."""
    rows = np.tile([1.0, 1.0], (6, 1))
    y, noise, precision = np.full(6, 0.8), 2.0, np.array([1e12, 1.5])
    columns = Columns.of(rows, [np.array([0]), np.array([1])])
    rng = np.random.default_rng(0)
    point = Point.of(columns, y, None, np.ones(1), np.array([[0.0, 0.5], [0.0, 0.5]]))
    draws = []
    for _ in range(20000):
        for j in range(2):
            z = rng.standard_normal((2, 2))
            point.sweep(slice(j, j + 1), np.zeros(2), precision, noise, z)
        draws.append(point.table[:, 1].copy())
    grid = np.linspace(-5, 5, 801)
    v, u = np.meshgrid(grid, grid)
    log = -noise / 2 * 6 * (0.8 - v * u) ** 2 - 0.75 * (v**2 + u**2)
    p = np.exp(log - log.max())
    p /= p.sum()
    product = np.prod(draws, axis=1)
    # Batches of 1,000 sweeps are nearly independent, so a mean over 20 has a known error.
    for drawn, exact in ((product, (p * v * u).sum()), (np.square(draws)[:, 0], (p * v**2).sum())):
        parts = drawn.reshape(20, -1).mean(axis=1)
        assert abs(parts.mean() - exact) < 4 * parts.std() / np.sqrt(20)
