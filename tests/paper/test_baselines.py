"""The printed algorithm, gradient descent and the nuclear norm, by formulas and differences."""

from dataclasses import replace

import array_api_strict
import numpy as np
import pytest
import torch

from quadlin.paper.descent import Factors, descend, gradient
from quadlin.paper.iterations import ITERATIONS
from quadlin.paper.laws import law
from quadlin.paper.methods import SOLVERS
from quadlin.paper.problems import tables
from quadlin.paper.race import Race, Setting, Standardised
from quadlin.paper.studies.recovery import nuclear_norm

LAWS = {"truncated": 0.0, "bernoulli": 0.3}


def problem(name="truncated", n=3000, d=12, k=2, dtype=np.float64):
    features = law(name, LAWS[name])
    train, test = tables(features, (n, 500), d, k, 3)
    setting = Setting(k, features.is_invertible, 12, 0)
    return train.X.astype(dtype), train.f, test.X.astype(dtype), test.f, setting


class Recorder:
    """A report that keeps what it is given."""

    def __init__(self):
        self.passes, self.losses, self.predicts = [], [], []

    def __call__(self, passes, predict, loss=None):
        self.passes.append(passes)
        self.losses.append(np.atleast_1d(loss))
        self.predicts.append(predict)
        return False


def random_factors(d, g, k, has_diagonal, centred):
    rng = np.random.default_rng(0)
    U, V = rng.standard_normal((2, d, g, k))
    w, c = rng.standard_normal((d, g)), rng.standard_normal(g)
    return Factors(U, V, w, c, has_diagonal, centred)


def half_loss(factors, Z, t):
    """Half the mean squared residual of each function, by d×d matrices."""
    result = []
    for i in range(factors.w.shape[1]):
        M = factors.U[:, i] @ factors.V[:, i].T
        mean = np.trace(M) if factors.centred and factors.has_diagonal else 0.0
        M = M if factors.has_diagonal else M - np.diag(np.diag(M))
        f = factors.c[i] + Z @ factors.w[:, i] + np.einsum("ni,ij,nj->n", Z, M, Z) - mean
        result.append(np.mean((f - t) ** 2) / 2)
    return np.array(result)


@pytest.mark.parametrize("has_diagonal", [True, False])
@pytest.mark.parametrize("centred", [True, False])
def test_the_gradient_is_that_of_the_loss(has_diagonal, centred):
    rng = np.random.default_rng(1)
    Z, t = rng.standard_normal((200, 5)), rng.standard_normal(200)
    factors = random_factors(5, 2, 2, has_diagonal, centred)
    step = 1e-6
    for by_u in (False, True):
        loss, grad_c, grad_w, grad_Q = gradient(factors, Z, t, by_u)
        assert np.allclose(loss / 2, half_loss(factors, Z, t))
        for name, grad in (("c", grad_c), ("w", grad_w), ("U" if by_u else "V", grad_Q)):
            for where in np.ndindex(grad.shape):
                ends = []
                for sign in (1, -1):
                    block = getattr(factors, name).copy()
                    block[where] += sign * step
                    ends.append(half_loss(replace(factors, **{name: block}), Z, t))
                function = where[0] if name == "c" else where[1]
                slope = ((ends[0] - ends[1]) / (2 * step))[function]
                assert np.isclose(slope, grad[where], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("form", ["printed", "standardised", "centred"])
def test_gradient_descent_descends_in_two_passes_per_step(form):
    X, y, _, _, setting = problem()
    seen = Recorder()
    descend(X, y, setting, seen, form)
    assert all(np.diff(np.array(seen.losses)[:, 0]) < 0)  # of the smallest step size
    assert np.diff(seen.passes).tolist() == [2] * setting.max_iter


@pytest.mark.parametrize("name", LAWS)
def test_the_literal_step_is_the_printed_one(name):
    """By G, H, and dense matrices as in Algorithm 1, with the corrections that are stated."""
    X, y, _, _, setting = problem(name, n=500, d=6)
    seen = Recorder()
    SOLVERS["literal"](X, y, replace(setting, max_iter=1), seen)
    rows = Standardised.of(X, y)
    Z, t, n = rows.Z, rows.t, len(y)
    H = Z.T @ (t[:, None] * Z) / (2 * n)
    s, Q = np.linalg.eigh(H)
    U = Q[:, np.argsort(-np.abs(s))[:2]]
    r = -t  # V = 0 and w = 0 at the start
    P0, P1 = r.mean(), Z.T @ r / n
    P2 = (Z**2).T @ r / n - P0
    H = Z.T @ (r[:, None] * Z) / (2 * n) - P0 / 2 * np.eye(6)
    kappa, phi = (Z**3).mean(0), (Z**4).mean(0)
    if name == "bernoulli":
        estimate, W = H - np.diag(P2) / 2, P1
    else:
        A = np.array([[np.ones(6), kappa], [kappa, phi - 1]]).transpose(2, 0, 1)
        G = np.linalg.solve(A, np.stack([kappa, phi - 3], 1)[:, :, None])[:, :, 0]
        h = np.linalg.solve(A, np.tile([[1.0], [0.0]], (6, 1, 1)))[:, :, 0]
        estimate = H - np.diag(G[:, 0] * P1 + G[:, 1] * P2) / 2
        W = h[:, 0] * P1 + h[:, 1] * P2
    U_hat = -estimate @ U
    M = U_hat @ U.T  # U⁺V⁺ᵀ = U⁺RUᵀ
    mean = np.trace(M)
    if name == "bernoulli":
        M, mean = M - np.diag(np.diag(M)), 0.0
    f = -P0 - Z @ W + np.einsum("ni,ij,nj->n", Z, M, Z) - mean
    assert np.allclose(seen.predicts[1](X), rows.centre + rows.scale * f)


@pytest.mark.parametrize("namespace", [torch, array_api_strict])
@pytest.mark.parametrize("name", LAWS)
def test_other_namespaces_give_the_same_curves(name, namespace):
    X, y, X_test, f_test, setting = problem(name, dtype=np.float32)
    moved = [namespace.asarray(a) for a in (X, y, X_test, f_test)]
    for key in (*ITERATIONS, "gd_printed", "gd_standardised", "gd_centred"):
        ends = []
        for rows in ((X, y, X_test, f_test), moved):
            race = Race(*rows, rows[-1], replace(setting, max_iter=4))
            ends.append([row["nmse"] for row in race.run(key, SOLVERS[key])])
        assert np.allclose(*ends, rtol=1e-2), key


def test_the_nuclear_norm_recovers_the_truth_from_few_rows():
    rng = np.random.default_rng(0)
    X, q = rng.standard_normal((85, 12)), np.full(12, 12**-0.5)  # 91 unknowns
    w = rng.standard_normal(12)
    intercept, coef, M = nuclear_norm(X, 2 + X @ w + (X @ q) ** 2)
    assert np.allclose(M, np.outer(q, q), atol=1e-3)
    assert np.allclose([intercept, *coef], [2, *w], atol=1e-3)
