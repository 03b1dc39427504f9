"""A block of rows is an operator: its products are those of standardised rows."""

from dataclasses import fields, replace

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from problems import squares_matmul, squares_rmatmul
from quadlin.core.block import Block
from quadlin.core.moments import Moments
from quadlin.core.units import Target, Units, units_of

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
    np.testing.assert_allclose(squares_matmul(rows, Q), (Z * Z) @ Q, atol=1e-8)
    np.testing.assert_allclose(squares_rmatmul(rows, R), (Z * Z).T @ R, atol=1e-8)


@pytest.mark.parametrize("asarray", [torch.asarray, array_api_strict.asarray])
def test_other_arrays_give_the_same_products(asarray):
    X = table(0)
    m = Moments.of(asarray(X))
    u = units_of(m, m.tau > 0, TARGET, asarray(X).dtype)
    Q = np.random.default_rng(0).standard_normal((5, 2))
    product = Block(asarray(X), u).matmul(asarray(Q))
    assert type(product) is type(asarray(X))
    np.testing.assert_allclose(np.asarray(product), Block(X, units(X)).matmul(Q), atol=1e-10)


def test_float32_stays_float32():
    X = table(0).astype(np.float32)
    for form in (X, sparse.csr_array(X)):
        rows = Block(form, units(X, np.float32))
        assert rows.matmul(np.ones((5, 2), np.float32)).dtype == np.float32
        assert squares_rmatmul(rows, np.ones((40, 1), np.float32)).dtype == np.float32


def test_a_constant_column_is_standardised_to_zero():
    X = np.column_stack([np.full(20, 3.3), np.arange(20.0)])
    assert np.all(Block(X, units(X)).matmul(np.eye(2))[:, 0] == 0)


FORMS = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "every other column": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
    "every other row": lambda X: np.repeat(X, 2, axis=0)[::2],
    "backwards": lambda X: np.ascontiguousarray(X[::-1, ::-1])[::-1, ::-1],
    "csr": sparse.csr_array,
    "torch": torch.asarray,
    "strict": array_api_strict.asarray,
}


def in_torch(u):
    """Return units with their arrays in torch."""
    arrays = {f.name: getattr(u, f.name) for f in fields(u) if f.name != "target"}
    return replace(u, **{name: torch.asarray(a) for name, a in arrays.items()})


def worst(Z, products, given):
    """Return the largest error, in units of the size of the standardised rows and of `given`."""
    norms = np.linalg.norm(Z) * np.linalg.norm(given) + 1e-300
    return float(np.max(np.abs(products), initial=0)) / norms


@given(
    seed=st.integers(0, 1000),
    n=st.sampled_from([0, 1, 2, 7, 61, 300]),
    d=st.sampled_from([1, 2, 5, 33, 70]),
    q=st.sampled_from([1, 2, 9]),
    form=st.sampled_from(sorted(FORMS)),
    dtype=st.sampled_from([np.float32, np.float64]),
    far=st.sampled_from(["none", "one", "some", "all"]),
    power=st.integers(-2, 8),
    squares=st.booleans(),
    fixed=st.booleans(),
)
def test_a_pass_through_the_block_is_that_of_exact_standardised_rows(
    seed, n, d, q, form, dtype, far, power, squares, fixed
):
    """For all layouts and sizes off the tiles, and means of up to 1e8 standard deviations."""
    if (n == 0 and form == "csr") or (form == "every other column" and d == 1):
        return
    rng = np.random.default_rng(seed)
    share = {"none": 0, "one": 0.01, "some": 0.3, "all": 1}[far]
    moved = rng.uniform(size=d) < share
    moved[0] |= far == "one"
    sd = 10.0 ** rng.uniform(-3, 3, d)
    X = (rng.standard_normal((n, d)) + np.where(moved, 10.0**power, 0)) * sd
    if form == "csr":
        X[:, ~moved] *= rng.uniform(size=(n, d))[:, ~moved] < 0.4
    X = X.astype(dtype)
    mean = (np.where(moved, 10.0**power, 0.0) * sd).astype(dtype)
    mean64 = mean.astype(np.float64)
    scale = (1 / sd).astype(dtype)
    scale[d // 2] = 0  # a constant feature
    rest = np.where(moved & (scale > 0), 0.25, 0).astype(dtype) * (rng.uniform() < 0.5)
    Z = (X.astype(np.float64) - mean64) * scale.astype(np.float64) - rest
    rows = FORMS[form](X)
    xp = torch if form == "torch" else array_api_strict if form == "strict" else np
    as_given = xp.asarray
    parts = (as_given(a) for a in (mean, scale, scale, scale, np.ones(d, dtype)))
    u = Units(*parts, TARGET, as_given(np.ones(d, dtype)), as_given(rest.astype(dtype)))
    Q, s = rng.standard_normal((d, q)).astype(dtype), rng.standard_normal(d).astype(dtype)
    omega = (rng.uniform(size=n) < 0.8).astype(dtype)[:, None]  # some rows count for nothing
    seen = []

    def respond(products, square, part):
        seen.append((np.asarray(products), None if square is None else np.asarray(square)))
        assert (square is None) is not fixed
        r = as_given(np.ones_like(omega[part]))
        return r, as_given(omega[part]), products

    weights = as_given(s[:, None]) if fixed else None
    back, p1, p2, *_ = Block(rows, u).passed(as_given(Q), respond, weights, squares)
    # (1 + |ν|)² is 4 at the float32 line, 1e4 at that of float64, and far columns lose nothing.
    eps = float(np.finfo(dtype).eps)
    products = np.concatenate([p for p, _ in seen])
    assert products.dtype == dtype
    assert worst(Z, products - Z @ Q, Q) < 50 * eps
    R = omega * products.astype(np.float64)
    assert worst(Z, np.asarray(back) - Z.T @ R, R) < 50 * eps
    assert worst(Z, np.asarray(p1) - Z.T @ omega, omega) < 50 * eps
    loss = 4 if dtype is np.float32 else 1e4
    if squares:
        assert worst(Z * Z, np.asarray(p2) - (Z * Z).T @ omega, omega) < 10 * loss * eps
    else:
        assert p2 is None
    if fixed:
        square = np.concatenate([v for _, v in seen])
        assert worst(Z * Z, square - (Z * Z) @ s[:, None], s) < 10 * loss * eps


@pytest.mark.parametrize("form", ["C", "F", "csr", "torch"])
@pytest.mark.parametrize(("mean", "sd"), [(0, 1e16), (1e20, 1e18)])
def test_one_column_whose_squares_overflow_leaves_the_others_alone(form, mean, sd):
    X = np.random.default_rng(0).standard_normal((50, 20))
    X[:, 3] = mean + sd * X[:, 3]
    X = X.astype(np.float32)
    u = units(X, np.float32)
    Z = (X.astype(float) - u.mean) * u.scale - u.rest
    u, Q, ones = (u, np.eye(20, dtype="f4"), np.ones((50, 1), "f4"))
    if form == "torch":
        u, Q, ones = in_torch(u), torch.asarray(Q), torch.asarray(ones)
    rows = Block(FORMS[form](X), u)
    np.testing.assert_allclose(np.asarray(squares_matmul(rows, Q)), Z * Z, rtol=1e-3, atol=1e-4)
    expected = (Z * Z).sum(0)[:, None]
    np.testing.assert_allclose(np.asarray(squares_rmatmul(rows, ones)), expected, rtol=1e-4)


@pytest.mark.parametrize("form", ["C", "F", "csr"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_gram_matrix_and_the_array_are_those_of_standardised_rows(form, weighted):
    X = table(3)
    omega = np.random.default_rng(0).uniform(size=40) if weighted else None
    rows, Z = Block(FORMS[form](X), units(X)), standardised(X)
    expected = Z.T @ (Z if omega is None else omega[:, None] * Z)
    np.testing.assert_allclose(rows.gram(omega), expected, atol=1e-9)
    np.testing.assert_allclose(rows.units.standardised(rows.X), Z, atol=1e-11)


def test_float32_rows_in_float64_units_are_multiplied_in_float64():
    X = table(0).astype(np.float32)
    for form in (X, sparse.csr_array(X)):
        products = Block(form, units(X.astype(float))).matmul(np.eye(5))
        np.testing.assert_allclose(products, standardised(X.astype(float)), atol=1e-10)
