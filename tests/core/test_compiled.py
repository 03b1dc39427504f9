"""The compiled kernel says what the reference says."""

from dataclasses import replace
from fractions import Fraction
from shutil import which

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from problems import random_model, squares_matmul, squares_rmatmul
from quadlin.core import library
from quadlin.core.block import Block, Response
from quadlin.core.chunks import Chunk
from quadlin.core.model import Steps
from quadlin.core.moments import Moments
from quadlin.core.sums import change_sums, residual_sums
from quadlin.core.units import Target, units_of

TARGET = Target(0.3, 2.0, 0.0, 1.0)
FORMS = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "every other": lambda X: np.repeat(np.repeat(X, 2, axis=0), 2, axis=1)[::2, ::2],
    "backwards": lambda X: np.ascontiguousarray(X[::-1, ::-1])[::-1, ::-1],
    "other numbers": lambda X: X.astype(np.float32 if X.dtype == np.float64 else np.float64),
    "csr": sparse.csr_array,
    "csr of long indices": lambda X: _with_long_indices(sparse.csr_array(X)),
    "one value": lambda X: sparse.csr_array((X != 0).astype(X.dtype)),
}
needs_kernel = pytest.mark.skipif(library.library() is None, reason="there is no compiled kernel")


@pytest.mark.skipif(not any(map(which, ("cc", "gcc", "clang"))), reason="no C compiler")
def test_there_is_a_kernel_where_there_is_a_compiler():
    assert library.library() is not None  # else numpy would take its place unnoticed


def _with_long_indices(X):
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    return X


def sums_of(case, rng):
    """Return what every pass says of the rows of a case."""
    chunk, units, k = case
    d, dtype = units.scale.shape[0], units.scale.dtype

    def drawn(*shape):
        return rng.standard_normal(shape).astype(dtype)

    model = random_model(d, k, units.free, rng)
    arrays = {name: getattr(model, name).astype(dtype) for name in ("U", "s", "w", "free")}
    model = replace(model, **arrays)
    steps = Steps(model.U, drawn(d, 2, k), drawn(d, 2), drawn(2))
    block, R = Block(chunk.X, units), drawn(chunk.X.shape[0], 2)
    return [
        *vars(residual_sums(chunk, model, units)).values(),
        *vars(residual_sums(chunk, model, units, drawn(d, 2), False)).values(),
        *list(vars(change_sums(chunk, steps, units, True)).values())[2:],
        block.matmul(drawn(d, 4)),
        squares_matmul(block, drawn(d, 2)),
        block.rmatmul(R),
        squares_rmatmul(block, R),
    ]


@needs_kernel
@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 1000),
    n=st.sampled_from([1, 2, 7, 8, 9, 40]),
    d=st.sampled_from([1, 2, 31, 32, 33, 70]),
    k=st.sampled_from([1, 2, 5]),
    form=st.sampled_from(sorted(FORMS)),
    dtype=st.sampled_from([np.float32, np.float64]),
    mean=st.sampled_from([0.0, 0.3, 1e4]),
    weighted=st.booleans(),
)
def test_the_compiled_kernel_says_what_the_reference_says(
    seed, n, d, k, form, dtype, mean, weighted
):
    rng = np.random.default_rng(seed)
    entries = rng.standard_normal((50, d)) * (rng.uniform(size=(50, d)) < 0.5) + mean
    weight = (rng.uniform(size=n) * (rng.uniform(size=n) < 0.7)) if weighted else None
    moments = Moments.of(entries)
    units = units_of(moments, rng.uniform(size=d) < 0.7, TARGET, dtype)
    k = min(k, d)
    chunk = Chunk(FORMS[form](entries[:n].astype(dtype)), rng.standard_normal(n), weight)
    fast = sums_of((chunk, units, k), np.random.default_rng(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUADLIN_KERNEL", "numpy")
        assert Block(chunk.X, units).compiled is None
        slow = sums_of((chunk, units, k), np.random.default_rng(seed))
    # float32 rows of means of 1e4 σ are rounded to 1e-3 σ; both kernels get the same rows.
    eps = float(np.finfo(dtype).eps)
    for a, b in zip(fast, slow, strict=True):
        size = float(np.max(np.abs(b), initial=0)) + 1
        np.testing.assert_allclose(a, b, atol=2000 * eps * size)


@needs_kernel
@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 1000),
    columns=st.integers(1, 100),
    n=st.sampled_from([1, 7, 8, 17]),
    form=st.sampled_from(["csr", "csr of long indices", "one value"]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_sparse_rows_are_multiplied_by_any_number_of_columns(seed, columns, n, form, dtype):
    rng = np.random.default_rng(seed)
    entries = rng.standard_normal((n, 40)) * (rng.uniform(size=(n, 40)) < 0.3)
    X = FORMS[form](entries.astype(dtype))
    units = units_of(Moments.of(rng.standard_normal((50, 40))), np.full(40, True), TARGET, dtype)
    Z = units.standardised(X)
    Q, R = (rng.standard_normal((size, columns)).astype(dtype) for size in (40, n))
    forward, back = Block(X, units).matmul(Q), Block(X, units).rmatmul(R)
    squares = squares_rmatmul(Block(X, units), R)
    # Sums of up to 40 numbers, each up to about 10 in size: some hundred roundings.
    atol = 1000 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(forward, Z @ Q, atol=atol)
    np.testing.assert_allclose(back, Z.T @ R, atol=atol)
    np.testing.assert_allclose(squares, (Z * Z).T @ R, atol=10 * atol)


@needs_kernel
def test_a_response_is_what_it_says_of_each_row():
    """Against the formula written out, in loops."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((11, 4)) + 2
    units = units_of(Moments.of(X), np.array([1, 0, 1, 1], bool), TARGET, np.float64)
    Z = (X - X.mean(0)) / X.std(0)
    steps = Steps(*(rng.standard_normal(shape) for shape in [(4, 2), (4, 3, 2), (4, 3), (3,)]))
    weight, free = rng.uniform(size=11), units.free
    response = Response(
        steps.assembly(free), *steps.bilinear(), slice(0, 2), rng.standard_normal(11), weight
    )
    passed = Block(X, units).passed(steps.columns(), response, response.assembly.left_out, True)
    expected = np.zeros((4, 3, 2))
    loss = 0.0
    for z, y, omega in zip(Z, response.y, weight, strict=True):
        for i in range(3):
            M = steps.E @ steps.H[:, i].T + steps.H[:, i] @ steps.E.T
            m = np.diag(M)
            f = steps.c[i] + z @ steps.w[:, i] + z @ M @ z - (1 - free) * m @ z**2 - free @ m
            expected[:, i] += omega * (f - y) * np.outer(z, z @ steps.E)
            loss += omega * (f - y) ** 2
    np.testing.assert_allclose(passed.action.reshape(4, 3, 2), expected, atol=1e-10)
    assert passed.loss == pytest.approx(loss)


def exact_moments(X, weight):
    """Return mean, variance, κ and φ from products of whole numbers: Python's fractions."""
    weight = [Fraction(w) for w in weight]
    total = sum(weight)
    columns = [[Fraction(float(x)) for x in column] for column in X.T]
    for column in columns:
        mean = sum(w * x for w, x in zip(weight, column, strict=True)) / total
        powers = [
            sum(w * (x - mean) ** p for w, x in zip(weight, column, strict=True)) / total
            for p in (2, 3, 4)
        ]
        if not powers[0]:
            yield float(mean), 0.0, 0.0, 1.0
            continue
        # Ratios first: squares of 1e80 have squares beyond what a float holds.
        skew = float(powers[1] ** 2 / powers[0] ** 3) ** 0.5 * (1 if powers[1] > 0 else -1)
        yield float(mean), float(powers[0]), skew, float(powers[2] / powers[0] ** 2)


@needs_kernel
@settings(deadline=None, max_examples=100)
@given(
    seed=st.integers(0, 1000),
    n=st.sampled_from([1, 2, 8, 9, 20]),
    d=st.sampled_from([1, 2, 9]),
    form=st.sampled_from(sorted(set(FORMS) - {"other numbers"})),
    dtype=st.sampled_from([np.float32, np.float64]),
    mean=st.sampled_from([0.0, 1.0, -1e4, 1e9]),
    size=st.sampled_from([1.0, 1e-30, 1e28]),
    weighted=st.booleans(),
)
def test_compiled_moments_are_exact(seed, n, d, form, dtype, mean, size, weighted):
    rng = np.random.default_rng(seed)
    entries = rng.standard_normal((n, d)) * (rng.uniform(size=(n, d)) < 0.6) + mean
    X = FORMS[form]((size * entries).astype(dtype))
    weight = rng.uniform(0.1, 2, n) * (rng.uniform(size=n) < 0.7) if weighted else None
    m = Moments.of(X, weight)
    dense = X.toarray() if sparse.issparse(X) else X
    omega = np.ones(n) if weight is None else weight
    assert m.weight == pytest.approx(omega.sum())
    if not m.weight:
        assert np.all(m.low > m.high)
        return
    np.testing.assert_array_equal(m.low, dense[omega > 0].min(axis=0))
    np.testing.assert_array_equal(m.high, dense[omega > 0].max(axis=0))
    for j, (centre, var, kappa, phi) in enumerate(exact_moments(dense, omega)):
        # The mean is rounded to 1e-16 of itself, of which the others see the square and less.
        blur = (8 * np.finfo(float).eps * abs(centre)) / (var**0.5 or 1.0)
        assert m.mean[j] == pytest.approx(centre, rel=1e-13, abs=1e-13 * var**0.5)
        assert m.var[j] == pytest.approx(var, rel=1e-12 + blur**2)
        assert m.kappa[j] == pytest.approx(kappa, rel=1e-9, abs=1e-9 + 4 * blur)
        assert m.phi[j] == pytest.approx(phi, rel=1e-9 + 4 * blur)


@needs_kernel
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", ["C", "F", "csr"])
def test_compiled_moments_of_more_than_a_tile_are_those_of_the_reference(form, dtype):
    """Sorted rows: the strips have means that differ by many of their own standard deviations."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.standard_normal((700, 520)) ** 3, axis=0)
    X[:, 3], X[:, 4] = 0.1, np.arange(700) % 2  # constant; two-valued
    X[:, 5] *= rng.uniform(size=700) < 0.1
    rows, weight = FORMS[form](X.astype(dtype)), rng.integers(0, 3, 700) * 0.7
    fast = Moments.of(rows, weight)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUADLIN_KERNEL", "numpy")
        slow = Moments.of(rows, weight)
    assert fast.var[3] == 0
    assert fast.two_valued[4]
    np.testing.assert_array_equal(fast.two_valued, slow.two_valued)
    varies = np.arange(520) != 3
    for name in ("mean", "var", "kappa", "phi", "low", "high"):
        a, b = (getattr(m, name)[varies] for m in (fast, slow))
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13, err_msg=name)
