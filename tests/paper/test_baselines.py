"""The printed algorithm by its formulas, and all solvers in other namespaces."""

from dataclasses import replace

import array_api_strict
import numpy as np
import pytest
import torch

from quadlin.paper.iterations import ITERATIONS
from quadlin.paper.methods import Race, Setting, Standardised, observe, steps
from quadlin.paper.problems import sample

LAWS = {"truncated": "truncated:0", "bernoulli": "bernoulli:0.3"}


def problem(name="truncated", n=3000, d=12, k=2, dtype=np.float64):
    data = sample(LAWS[name], n, d, k, 3, n_test=500, standardised=False, dtype=dtype, b=0.0)
    return data, Setting(k, data.truth.has_diagonal, 12, 0)


@pytest.mark.parametrize("name", LAWS)
def test_the_literal_step_is_the_printed_one(name):
    """By G, H, and dense matrices as in Algorithm 1, with the corrections that are stated."""
    data, setting = problem(name, n=500, d=6)
    X, y = data.X, data.y
    seen = []
    observe("literal", X, y, replace(setting, max_iter=1), lambda step: bool(seen.append(step)))
    rows = Standardised.of(X, y)
    (Z, t), n = rows.rows(X, y), len(y)
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
    assert np.allclose(seen[1].predict(X), rows.centre + rows.scale * f)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("method", ["plain", "gd_printed"])
def test_a_step_predicts_by_its_own_parameters(name, method):
    data, _ = problem(name)
    for step in steps(method, data, 2, max_iter=3):
        b, w, M = step.raw()
        X = data.X_test
        assert np.allclose(step.predict(X), b + X @ w + np.sum((X @ M) * X, axis=1))
        assert np.isclose(step.loss, np.mean((step.predict(data.X) - data.y) ** 2), rtol=1e-6)


@pytest.mark.parametrize("namespace", [torch, array_api_strict])
@pytest.mark.parametrize("name", LAWS)
def test_other_namespaces_give_the_same_curves(name, namespace):
    data, setting = problem(name, dtype=np.float32)
    rows = (data.X, data.y, data.X_test, data.y_test)
    moved = [namespace.asarray(a) for a in rows]
    for key in ITERATIONS:
        ends = [
            [line["nmse"] for line in Race(*place, replace(setting, max_iter=4)).run(key)]
            for place in (rows, moved)
        ]
        assert np.allclose(*ends, rtol=1e-2), key
