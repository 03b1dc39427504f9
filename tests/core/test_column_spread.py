"""Belief propagation over columns: against its equations in numpy, and exact on trees."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csc_array

from column_problems import sparse_rows
from quadlin.core import column_spread, library
from quadlin.core.column_spread import spread_of
from quadlin.core.compiled_columns import ColumnTable

pytestmark = pytest.mark.skipif(library.library() is None, reason="there is no compiled kernel")

ALPHA = (0.7, 0.3)


def table_of(X, weight, k, seed, dtype=np.float64):
    rng, d = np.random.default_rng(seed), X.shape[1]
    args = (rng.standard_normal(d) / 4, 0.5 + rng.random(d), np.ones(k), ALPHA)
    table = ColumnTable(csc_array(X).astype(dtype), np.zeros(X.shape[0]), weight, *args)
    table.V[:] = rng.standard_normal((d, k))
    return table


def gradients(table, X, whole):
    """Return φ_ij (n, d, k + 1), zero where a row has no entry, and (1, 2p)."""
    E, off = table.V.astype(float), X - table.mean
    p = off @ E
    beside = 2 * (p[:, None, :] - off[:, :, None] * E)
    size = np.where(X != 0, np.where(whole, X, off), 0.0)
    phi = size[:, :, None] * np.concatenate([np.ones((*X.shape, 1)), beside], axis=2)
    return phi, np.concatenate([np.ones((len(p), 1)), 2 * p], axis=1)


def ridges(table):
    """Return R_j (d, k + 1, k + 1)."""
    E, k = table.V.astype(float), table.k
    R = np.zeros((len(E), k + 1, k + 1))
    R[:, 0, 0] = ALPHA[0] * table.penalty
    R[:, 1:, 1:] = (
        4 * ALPHA[1] * table.penalty[:, None, None] * (E.T @ (table.penalty[:, None] * E))
    )
    return R


def fixed_point(table, X, weight, whole, rounds=400):
    """Iterate the equations of the module in their plainest form."""
    (phi, q), R, noise = gradients(table, X, whole), ridges(table), 1 / weight
    beside, mean = np.zeros(X.shape), np.where(whole, 0.0, table.mean)
    for _ in range(rounds):
        around = noise[:, None] + beside.sum(axis=1, keepdims=True) - beside
        P = R + np.einsum("ija,ijb,ij->jab", phi, phi, 1 / around)
        pulls = np.einsum("ija,ij->ja", phi, 1 / around)
        inside = np.where(X != 0, 1 / around, 0.0).sum(axis=0)
        absent = (X == 0) / (noise + beside.sum(axis=1))[:, None]
        total = inside + absent.sum(axis=0)
        P += np.einsum("ij,ia,ib,j->jab", absent, q, q, mean**2)
        pulls -= np.einsum("ij,ia,j->ja", absent, q, mean)
        centring = np.where(whole, 0, 1 / total)
        middle = centring[:, None] * pulls
        S = np.linalg.inv(P - middle[:, :, None] * pulls[:, None, :])
        off = np.where(X[:, :, None] != 0, phi - middle, 0.0)
        h = np.einsum("ija,jab,ijb->ij", off, S, off)
        beside = h / (1 - h / around / (1 - centring / around))
    return S, beside.sum(axis=1)


def unpacked(triangles, size):
    i, j = np.tril_indices(size)
    S = np.zeros((len(triangles), size, size))
    S[:, i, j] = S[:, j, i] = triangles
    return S


@pytest.fixture
def to_the_end(monkeypatch):
    monkeypatch.setattr(column_spread, "SETTLED", 1e-12)
    monkeypatch.setattr(column_spread, "MOST_SWEEPS", 300)


@pytest.mark.parametrize("k", [1, 3, 8, 9, 20])
def test_the_kernel_reaches_the_fixed_point_of_the_equations(k, to_the_end):
    X, _, weight = sparse_rows(80, 30, seed=k)
    table, whole = table_of(X, weight, k, seed=k), np.arange(30) % 3 == 0
    spread = spread_of(table, whole)
    S, variances = fixed_point(table, X.toarray(), weight, whole)
    S[1] = 0  # a column without entries
    atol = 1e-5 * S.max()  # the plain iteration is slow for many components
    np.testing.assert_allclose(unpacked(spread.covariances, k + 1), S, rtol=1e-6, atol=atol)
    np.testing.assert_allclose(spread.variances, variances, rtol=1e-5)


def forest(d, rng):
    """Rows of two columns each, which join every column to one before it."""
    X = np.zeros((d - 1, d))
    for i in range(d - 1):
        X[i, [i + 1, rng.integers(i + 1)]] = rng.uniform(0.5, 2, 2) * rng.choice([-1, 1], 2)
    return X


@settings(max_examples=30, deadline=None)
@given(st.integers(3, 9), st.integers(1, 10), st.integers(0, 2**31), st.floats(0.1, 10))
def test_it_is_the_inverse_of_the_precision_if_rows_and_columns_form_a_tree(more, k, seed, size):
    rng, d = np.random.default_rng(seed), k + more  # or no ridge would hold some factors
    X, weight = forest(d, rng), size * rng.uniform(0.2, 5, d - 1)
    table = table_of(X, weight, k, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_spread, "SETTLED", 1e-13)
        patch.setattr(column_spread, "MOST_SWEEPS", 100)
        spread = spread_of(table, np.ones(d, bool))
    J = gradients(table, X, True)[0].reshape(d - 1, -1)
    H = J.T @ (weight[:, None] * J)
    for j, R in enumerate(ridges(table)):
        part = slice(j * (k + 1), (j + 1) * (k + 1))
        H[part, part] += R
    C = np.linalg.inv(H)
    blocks = [C[a : a + k + 1, a : a + k + 1] for a in range(0, d * (k + 1), k + 1)]
    scale = max(np.abs(block).max() for block in blocks)
    covariances = unpacked(spread.covariances, k + 1)
    np.testing.assert_allclose(covariances / scale, np.array(blocks) / scale, atol=1e-7)
    leverage = weight * np.einsum("ia,ab,ib->i", J, C, J)
    v = weight * spread.variances
    np.testing.assert_allclose(v / (1 + v), leverage, rtol=1e-6)


def test_sweeps_that_end_early_are_on_the_safe_side(monkeypatch):
    X, _, weight = sparse_rows(200, 60, seed=1)
    ended = []
    for most in (0, 1, 2, 50):
        monkeypatch.setattr(column_spread, "MOST_SWEEPS", most)
        spread = spread_of(table_of(X, weight, 3, seed=2), np.ones(60, bool))
        ended.append(unpacked(spread.covariances, 4).diagonal(axis1=1, axis2=2))
    assert all((now <= before * (1 + 1e-9)).all() for before, now in pairwise(ended))


def test_float32_agrees_with_float64_though_ridges_leave_much_open():
    X, _, weight = sparse_rows(300, 80, seed=3)
    one, other = (
        spread_of(table_of(X, weight, 3, seed=4, dtype=dtype), np.zeros(80, bool))
        for dtype in (np.float32, np.float64)
    )
    np.testing.assert_allclose(one.covariances, other.covariances, rtol=2e-3, atol=1e-6)
    np.testing.assert_allclose(one.variances, other.variances, rtol=2e-3)


def test_columns_without_rows_and_rows_without_weight_say_nothing():
    X, _, weight = sparse_rows(100, 30, seed=5)
    X = X.toarray()
    X[:, 7] = 0
    weight[:40] = 0
    spread = spread_of(table_of(X, weight, 2, seed=6), np.zeros(30, bool))
    assert not spread.covariances[7].any()
    alone = spread_of(table_of(X[40:], weight[40:], 2, seed=6), np.zeros(30, bool))
    np.testing.assert_allclose(spread.covariances, alone.covariances, rtol=1e-9)
