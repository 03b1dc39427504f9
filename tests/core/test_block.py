import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from quadlin.core.block import Block
from quadlin.core.moments import Moments
from quadlin.core.units import Target, units_of

TARGET = Target(0.0, 1.0, 0.0, 1.0)


def table(seed, n=40, d=5):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.uniform(size=(n, d)) < 0.4)
    X[:, 0] = 1e3 + rng.standard_normal(n)  # no zeros at all
    return X


def standardised(X):
    return (X - X.mean(0)) / X.std(0)


def units(X, dtype=np.float64):
    m = Moments.of(X)
    return units_of(m, m.tau > 0, TARGET, dtype)


@given(seed=st.integers(0, 1000), form=st.sampled_from(["C", "F", "csr", "csc"]))
def test_the_products_are_those_of_standardised_rows(seed, form):
    X = table(seed)
    Z = standardised(X)
    as_given = {
        "C": np.ascontiguousarray,
        "F": np.asfortranarray,
        "csr": sparse.csr_array,
        "csc": lambda X: sparse.csc_array(X).tocsr(),
    }[form](X)
    rows = Block(as_given, units(X))
    rng = np.random.default_rng(1)
    Q, R = rng.standard_normal((5, 3)), rng.standard_normal((40, 3))
    np.testing.assert_allclose(rows.matmul(Q), Z @ Q, atol=1e-9)
    np.testing.assert_allclose(rows.rmatmul(R), Z.T @ R, atol=1e-9)
    np.testing.assert_allclose(rows.rmatmul(R[:, 0]), Z.T @ R[:, 0], atol=1e-9)
    np.testing.assert_allclose(rows.squares_matmul(Q), (Z * Z) @ Q, atol=1e-8)
    np.testing.assert_allclose(rows.squares_rmatvec(R[:, 0]), (Z * Z).T @ R[:, 0], atol=1e-8)


@given(seed=st.integers(0, 1000), as_sparse=st.booleans())
def test_the_two_products_are_adjoint(seed, as_sparse):
    X = table(seed)
    rows = Block(sparse.csr_array(X) if as_sparse else X, units(X))
    rng = np.random.default_rng(seed)
    Q, R = rng.standard_normal((5, 2)), rng.standard_normal((40, 2))
    assert np.sum(rows.matmul(Q) * R) == pytest.approx(np.sum(Q * rows.rmatmul(R)), abs=1e-8)
    q, r = Q[:, :1], R[:, 0]
    left = rows.squares_matmul(q)[:, 0] @ r
    assert left == pytest.approx(q[:, 0] @ rows.squares_rmatvec(r), abs=1e-7)


@pytest.mark.parametrize("asarray", [torch.asarray, array_api_strict.asarray])
def test_other_arrays_give_the_same_products(asarray):
    X = table(0)
    m = Moments.of(asarray(X))
    u = units_of(m, m.tau > 0, TARGET, asarray(X).dtype)
    Q = np.random.default_rng(0).standard_normal((5, 2))
    own = Block(asarray(X), u).matmul(asarray(Q))
    assert type(own) is type(asarray(X))
    np.testing.assert_allclose(np.asarray(own), Block(X, units(X)).matmul(Q), atol=1e-10)


def test_float32_stays_float32():
    X = table(0).astype(np.float32)
    for form in (X, sparse.csr_array(X)):
        rows = Block(form, units(X, np.float32))
        assert rows.matmul(np.ones((5, 2), np.float32)).dtype == np.float32
        assert rows.squares_rmatvec(np.ones(40, np.float32)).dtype == np.float32


def test_sparse_float32_columns_far_from_zero_keep_their_digits():
    rng = np.random.default_rng(0)
    X = np.column_stack([2020 + rng.integers(-5, 6, 5000), rng.uniform(size=5000) < 0.1])
    X = X.astype(np.float32)
    rows = Block(sparse.csr_array(X), units(X, np.float32))
    Z = standardised(X.astype(float))
    np.testing.assert_allclose(
        rows.squares_matmul(np.eye(2, dtype="f4")), Z * Z, rtol=1e-3, atol=1e-3
    )


def test_a_zero_costs_the_other_rows_of_its_block_no_digits():
    rng = np.random.default_rng(0)
    X = np.column_stack([1e7 + 9 * rng.standard_normal(500), rng.standard_normal(500)])
    X = X.astype(np.float32)
    known = units(X, np.float32)
    mean, sd = X.astype(float).mean(0), X.astype(float).std(0)
    X[3, 0] = 0
    S = sparse.csr_array(X)
    S.data[S.indptr[5]] = X[5, 0] = 0  # stored
    Z = (X.astype(float) - mean) / sd
    rows, Q = Block(S, known), np.eye(2, dtype="f4")
    np.testing.assert_allclose(rows.matmul(Q), Z, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(rows.squares_matmul(Q), Z * Z, rtol=1e-4, atol=1e-4)


def test_a_constant_column_is_standardised_to_zero():
    X = np.column_stack([np.full(20, 3.3), np.arange(20.0)])
    assert np.all(Block(X, units(X)).matmul(np.eye(2))[:, 0] == 0)
