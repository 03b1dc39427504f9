"""Eigenpairs reproduce every entry of M, whatever the units of its features."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadlin import SecondOrderRegressor
from quadlin.core.graded_eigenvectors import graded_eigenpairs


def entries_apart(A, s, values, V):
    """Return the largest error of an entry of Σ λ v vᵀ, beside the size of its terms."""
    M, size = (A * s) @ A.T, np.sqrt((A**2) @ np.abs(s))
    return np.max(np.abs((V * values) @ V.T - M) / np.maximum(np.outer(size, size), 1e-300))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.data())
def test_eigenpairs_reproduce_every_entry(seed, d, data):
    k = data.draw(st.integers(1, d))
    exponents = data.draw(st.lists(st.floats(-12, 12), min_size=d, max_size=d))
    zeros = data.draw(st.lists(st.sampled_from([0.0, 1.0, 1.0, 1.0]), min_size=d, max_size=d))
    rng = np.random.default_rng(seed)
    U, s = np.linalg.qr(rng.standard_normal((d, k)))[0], rng.standard_normal(k) * zeros[:k]
    A = (10.0 ** np.array(exponents) * zeros[::-1])[:, None] * U
    values, V = graded_eigenpairs(A, s)
    # 3,000 random matrices were right to 3e-9 at worst; without grading the error is 10²².
    assert entries_apart(A, s, values, V) < 1e-7
    np.testing.assert_allclose(V.T @ V, np.eye(k), atol=1e-13)
    assert (np.diff(np.abs(values)) <= 0).all()


def test_eigenvalues_of_one_scale_are_those_of_numpy():
    rng = np.random.default_rng(0)
    A, s = rng.standard_normal((30, 7)), rng.standard_normal(7)
    values, V = graded_eigenpairs(A, s)
    dense = np.linalg.eigvalsh((A * s) @ A.T)
    expected = dense[np.argsort(-np.abs(dense))][:7]
    np.testing.assert_allclose(values, expected, rtol=1e-11)
    assert entries_apart(A, s, values, V) < 1e-13


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_components_and_eigenvalues_reproduce_m_at_scales_of_1e12(dtype):
    rng = np.random.default_rng(3)
    scale = np.array([1e12, 1.0, 1e-12, 1e6, 1e-6])
    Z = rng.standard_normal((300, 5))
    y = (Z[:, 0] + Z[:, 2]) ** 2 - Z[:, 1] * Z[:, 3] + Z[:, 4] + 0.1 * rng.standard_normal(300)
    X, y = (Z * scale).astype(dtype), y.astype(dtype)
    model = SecondOrderRegressor(rank=3, alpha=0.0, random_state=0).fit(X, y)
    V = model.components_.astype(np.float64)
    M = (V.T * model.eigenvalues_) @ V
    expected = np.array([[model.interaction(i, j) / 2 for j in range(5)] for i in range(5)])
    expected[np.diag_indices(5)] *= 2
    # In units of the features, M is of size 1: each entry must be there, also the smallest.
    apart = np.abs(M - expected) * np.outer(scale, scale)
    assert np.max(apart) < (1e-9 if dtype == np.float64 else 1e-4)
    np.testing.assert_allclose(V @ V.T, np.eye(3), atol=1e-6)
