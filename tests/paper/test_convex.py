import sys

import numpy as np
import pytest

from quadlin.paper.studies.nuclear import nuclear_norm


def test_the_nuclear_norm_recovers_the_truth_from_few_rows():
    rng = np.random.default_rng(0)
    d, n = 12, 85  # and 91 unknowns, so that least squares could not
    X, Q = rng.standard_normal((n, d)), np.linalg.qr(rng.standard_normal((d, 1)))[0]
    M = Q @ Q.T
    w = rng.standard_normal(d)
    y = 2 + X @ w + np.einsum("ni,ij,nj->n", X, M, X)
    fit = nuclear_norm(X, y)
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
