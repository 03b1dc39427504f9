import sys

import array_api_strict
import numpy as np
import pytest
import torch

from quadlin.core.block import Block
from quadlin.core.chunks import MemorySource
from quadlin.core.rows import Rows
from quadlin.core.standardise import UnitsMaker
from quadlin.core.survey import moments_of
from quadlin.paper import baselines
from quadlin.paper.baselines import Factors, gradient_descent, nuclear_norm, published_mes
from quadlin.paper.samplers import draw


def problem(features="truncated", parameter=0.0, n=4000, d=12, k=2, dtype=np.float64, noise=0.0):
    (rows,) = draw(features, parameter, (n,), d, k, 3)
    source = MemorySource(rows.X.astype(dtype), rows.f + noise * rows.noise)
    return source, units_for(source, features)


def units_for(source, features="truncated"):
    diagonal = "zero" if features == "bernoulli" else "free"
    names = [f"x{j}" for j in range(source.X.shape[1])]
    return UnitsMaker(diagonal, True, source.X.dtype, names)(*moments_of(source))


def random_factors(d, g, k, units, centred):
    rng = np.random.default_rng(0)
    U, V = rng.standard_normal((2, d, g * k))
    return Factors(U, V, rng.standard_normal((d, g)), rng.standard_normal(g), units.free, centred)


def losses(source, units, factors):
    """Half the mean squared residual of each function, by d×d matrices."""
    Z = (source.X - units.mean) * units.scale
    y = (source.y - units.target.mean) / units.target.scale
    g = factors.w.shape[1]
    found = []
    for i in range(g):
        k = factors.U.shape[1] // g
        part = slice(i * k, (i + 1) * k)
        M = factors.U[:, part] @ factors.V[:, part].T
        mean = np.sum(units.free * np.diag(M)) if factors.centred else 0.0
        M = M - np.diag((1 - units.free) * np.diag(M))
        f = factors.c[i] + Z @ factors.w[:, i] + np.einsum("ni,ij,nj->n", Z, M, Z) - mean
        found.append(np.mean((f - y) ** 2) / 2)
    return np.array(found)


@pytest.mark.parametrize("features", ["truncated", "bernoulli"])
@pytest.mark.parametrize("centred", [False, True])
def test_the_gradient_is_that_of_the_loss(features, centred):
    source, units = problem(features, 0.3, n=200, d=5)
    factors = random_factors(5, 2, 2, units, centred)
    half = losses(source, units, factors)
    step = 1e-6
    for by_v in (False, True):
        total = Rows.of(source).reduce(baselines.residuals, factors, units, by_v)
        assert np.allclose(total.loss / total.weight / 2, half)
        grad_c, grad_w, grad_Q = baselines.gradient(factors, total, by_v)
        for name, grad in (("c", grad_c), ("w", grad_w), ("U" if by_v else "V", grad_Q)):
            for where in np.ndindex(grad.shape):
                ends = []
                for sign in (1, -1):
                    block = getattr(factors, name).copy()
                    block[where] += sign * step
                    ends.append(losses(source, units, baselines.replace(factors, **{name: block})))
                slope = (ends[0] - ends[1]) / (2 * step)
                owner = where[-1] // (2 if name in "UV" else 1)
                assert np.isclose(slope[owner], grad[where], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("features", ["truncated", "bernoulli"])
def test_the_published_step_is_the_printed_one(features):
    """By G, H, and dense matrices as in Algorithm 1, with the corrections that are stated."""
    source, units = problem(features, 0.3, n=500, d=6)
    factors = random_factors(6, 1, 2, units, True)
    total = Rows.of(source).reduce(baselines.residuals, factors, units)
    Z = (source.X - units.mean) * units.scale
    y = (source.y - units.target.mean) / units.target.scale
    M = factors.U @ factors.V.T
    if features == "bernoulli":
        M = M - np.diag(np.diag(M))
    z = factors.c[0] + Z @ factors.w[:, 0] + np.einsum("ni,ij,nj->n", Z, M, Z) - np.trace(M) - y
    n = len(z)
    P0, P1 = z.mean(), Z.T @ z / n
    P2 = (Z**2).T @ z / n - P0
    H = Z.T @ (z[:, None] * Z) / (2 * n) - P0 / 2 * np.eye(6)
    if features == "bernoulli":
        estimate, W = H - np.diag(P2) / 2, P1
    else:
        A = np.array([[np.ones(6), units.kappa], [units.kappa, units.phi - 1]]).transpose(2, 0, 1)
        G = np.linalg.solve(A, np.stack([units.kappa, units.phi - 3], 1)[:, :, None])[:, :, 0]
        h = np.linalg.solve(A, np.tile([[1.0], [0.0]], (6, 1, 1)))[:, :, 0]
        estimate = H - np.diag(G[:, 0] * P1 + G[:, 1] * P2) / 2
        W = h[:, 0] * P1 + h[:, 1] * P2
    step = baselines.published_step(factors, total, units)
    U_hat = factors.V - estimate @ factors.U
    assert np.allclose(step.U @ step.V.T, U_hat @ factors.U.T)
    assert np.allclose(step.U.T @ step.U, np.eye(2))
    assert np.allclose(step.w[:, 0], factors.w[:, 0] - W)
    assert np.allclose(step.c, factors.c - P0)


@pytest.mark.parametrize(("features", "parameter"), [("truncated", 0.0), ("bernoulli", 0.3)])
def test_published_mes_contracts_and_then_stalls(features, parameter):
    # 250 rows a parameter; with k = 3 the trace alone would diverge, were r not centred.
    source, units = problem(features, parameter, n=20_000, d=20, k=3)
    steps = list(published_mes(source, units, 3, np.random.default_rng(0), 60))
    loss = np.array([float(step.loss[0]) for step in steps])
    assert np.isclose(loss[0], 1)
    assert all(np.diff(loss[:6]) < 0)
    assert loss[5] < 0.01
    # The skew part that it found at first is still there in the end.
    last = steps[-1].factors
    skew = last.U @ last.V.T - last.V @ last.U.T
    assert np.linalg.norm(skew) > 1e-4
    assert loss[-1] > 1e-12
    assert [step.passes for step in steps[:3]] == [5, 6, 7]


def test_gradient_descent_descends_and_a_lost_step_size_stays_put():
    source, units = problem(n=2000, d=20, dtype=np.float32)
    walk = gradient_descent(source, units, 2, np.random.default_rng(0), 15, (0.1, 0.4, 50.0))
    loss = np.array([step.loss for step in walk])
    assert all(np.diff(loss[:, 0]) < 0)
    assert loss[-1, 1] < 0.05 * loss[0, 1]
    assert not loss[-1, 2] < 1e6
    assert not np.isfinite(loss[-1, 2]) or loss[-1, 2] == loss[-2, 2]


def test_centred_gradient_descent_is_faster():
    source, units = problem(n=3000, d=20, k=4)
    last = {}
    for centred in (False, True):
        for step in gradient_descent(
            source, units, 4, np.random.default_rng(0), 30, centred=centred
        ):
            last[centred] = np.nanmin(step.loss)
    assert last[True] < 0.2 * last[False]


def solvers(source, units):
    rng = np.random.default_rng
    yield list(published_mes(source, units, 2, rng(0), 4))[-1]
    yield list(gradient_descent(source, units, 2, rng(0), 4, (0.1, 0.2)))[-1]


@pytest.mark.parametrize("namespace", [torch, array_api_strict])
@pytest.mark.parametrize("features", ["truncated", "bernoulli"])
def test_other_namespaces_give_the_same_and_keep_their_type(features, namespace):
    source, units = problem(features, 0.3, dtype=np.float32)
    moved = MemorySource(namespace.asarray(source.X), namespace.asarray(source.y), block_rows=999)
    other = units_for(moved, features)
    for a, b in zip(solvers(source, units), solvers(moved, other), strict=True):
        assert a.factors.U.dtype == np.float32
        assert b.factors.U.dtype == namespace.float32
        assert np.allclose(np.asarray(b.loss), a.loss, rtol=1e-3)
        f = baselines.predict(a.factors, Block(source.X, units))
        g = baselines.predict(b.factors, Block(moved.X, other))
        assert np.allclose(np.asarray(g), f, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("diagonal", [True, False])
def test_the_nuclear_norm_recovers_the_truth_from_few_rows(diagonal):
    rng = np.random.default_rng(0)
    d, n = 12, 85  # and 91 unknowns with a diagonal, so that least squares could not
    X, Q = rng.standard_normal((n, d)), np.linalg.qr(rng.standard_normal((d, 1)))[0]
    M = Q @ Q.T - (0 if diagonal else np.diag((Q @ Q.T).diagonal()))
    w = rng.standard_normal(d)
    y = 2 + X @ w + np.einsum("ni,ij,nj->n", X, M, X)
    fit = nuclear_norm(X, y, diagonal=diagonal)
    assert fit.status == "optimal"
    assert np.allclose(fit.M, M, atol=1e-3)
    assert np.allclose(fit.coef, w, atol=1e-3)
    assert np.isclose(fit.intercept, 2, atol=1e-3)
    assert np.allclose(fit.predict(X), y, atol=1e-2)


def test_a_large_penalty_leaves_no_quadratic_part():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 4))
    fit = nuclear_norm(X, X[:, 0] + X[:, 1] * X[:, 2], penalty=100.0)
    assert np.abs(fit.M).max() < 1e-5
    linear = np.linalg.lstsq(np.column_stack([np.ones(200), X]), X[:, 0] + X[:, 1] * X[:, 2])[0]
    assert np.allclose(fit.coef, linear[1:], atol=1e-4)


def test_the_nuclear_norm_says_what_it_misses(monkeypatch):
    with pytest.raises(ValueError, match="at most 60"):
        nuclear_norm(np.ones((3, 61)), np.ones(3))
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(ImportError, match=r"quadlin\[reproduce\]"):
        nuclear_norm(np.ones((3, 2)), np.ones(3))
