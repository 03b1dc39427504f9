"""Moments add, whatever the size, the mean and the form of the rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse, stats

from quadlin import Moments
from quadlin.core.chunks import Chunk
from quadlin.core.moments import Tally


def assert_same(a, b, rtol=1e-9):
    for name in ("weight", "mean", "var", "kappa", "phi"):
        np.testing.assert_allclose(
            getattr(a, name), getattr(b, name), rtol=rtol, atol=rtol, err_msg=name
        )


def test_moments_agree_with_scipy():
    X = np.random.default_rng(0).gamma(2.0, size=(500, 3))
    m = Moments.of(X)
    np.testing.assert_allclose(m.mean, X.mean(0))
    np.testing.assert_allclose(m.var, X.var(0))
    np.testing.assert_allclose(m.kappa, stats.skew(X))
    np.testing.assert_allclose(m.phi, stats.kurtosis(X, fisher=False))


@given(
    seed=st.integers(0, 1000),
    cut=st.integers(1, 59),
    shift=st.sampled_from([0.0, 10.0, -1e3]),
    scale=st.sampled_from([1e-30, 1.0, 1e30]),
)
def test_moments_of_two_halves_add_to_the_whole(seed, cut, shift, scale):
    X = scale * (shift + np.random.default_rng(seed).standard_normal((60, 3)) ** 3)
    assert_same_scaled(Moments.of(X[:cut]) + Moments.of(X[cut:]), Moments.of(X))


def assert_same_scaled(a, b):
    np.testing.assert_allclose(a.mean, b.mean, rtol=1e-12)
    np.testing.assert_allclose(a.var, b.var, rtol=1e-9)
    np.testing.assert_allclose(a.kappa, b.kappa, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(a.phi, b.phi, rtol=1e-8)


def test_a_large_mean_beside_a_small_spread_loses_nothing():
    # 1e6 ± 1e-3: x itself is rounded to 1e-10, i.e. to 1e-7 of its spread, so that is the bar.
    z = np.random.default_rng(0).standard_normal((4000, 2))
    X = 1e6 + 1e-3 * z
    parts = [Moments.of(part) for part in np.array_split(X, 7)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    exact = Moments.of((X - 1e6) * 1e3)
    np.testing.assert_allclose(total.var * 1e6, exact.var, rtol=1e-6)
    np.testing.assert_allclose(total.kappa, exact.kappa, atol=1e-6)
    np.testing.assert_allclose(total.phi, exact.phi, rtol=1e-6)


@given(seed=st.integers(0, 1000))
def test_weights_equal_repetition(seed):
    rng = np.random.default_rng(seed)
    X, weight = rng.standard_normal((20, 2)), rng.integers(0, 4, 20)
    if weight.sum() == 0:
        weight[0] = 1
    assert_same(Moments.of(X, weight), Moments.of(np.repeat(X, weight, axis=0)))


@given(seed=st.integers(0, 1000), density=st.floats(0.0, 1.0))
def test_sparse_rows_have_the_moments_of_dense_ones(seed, density):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((30, 4)) * (rng.uniform(size=(30, 4)) < density)
    weight = rng.uniform(size=30)
    assert_same(Moments.of(sparse.csr_array(X), weight), Moments.of(X, weight))


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("size", [1e-120, 1e-82, 1e80, 1e120])
def test_the_size_of_a_feature_leaves_its_shape(form, size):
    X = np.random.default_rng(0).standard_normal((50, 3)) * (np.arange(50) % 3 > 0)[:, None]
    one, other = (
        Moments.of(form(X)),
        Moments.of(form(size * X[:20])) + Moments.of(form(size * X[20:])),
    )
    np.testing.assert_allclose(other.kappa, one.kappa)
    np.testing.assert_allclose(other.phi, one.phi)


def test_a_block_without_weight_changes_nothing():
    X = np.random.default_rng(0).standard_normal((10, 2))
    m = Moments.of(X)
    assert_same(m + Moments.of(X, np.zeros(10)), m)
    assert_same(Moments.of(X, np.zeros(10)) + m, m)


@given(
    seed=st.integers(0, 99),
    share=st.floats(0.001, 0.999),
    shift=st.sampled_from([0.0, 1.0, -1e3, 1e8]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_two_values_are_told_from_one_that_dwarfs_the_others(seed, share, shift, dtype):
    rng = np.random.default_rng(seed)
    x = (rng.uniform(size=(1000, 1)) < share).astype(dtype)
    x[:2] = [[0], [1]]
    two = x * dtype(64) + dtype(shift)  # 64 is not lost beside 1e8 in float32
    assert (Moments.of(two[:300]) + Moments.of(two[300:])).has_two_values.all()
    many = rng.standard_normal((1000, 1))
    for size in (1e3, 1e6, 1e12):
        many[7] = -size
        assert not Moments.of(many).has_two_values.any()


@pytest.mark.parametrize("n", [50, 400, 1000, 50_000])
@pytest.mark.parametrize("value", [0.1, 1.0, 2024.0, 1e6 + 0.1])
def test_a_constant_column_of_sparse_rows_is_constant(n, value):
    x = np.random.default_rng(0).standard_normal(n)
    weight = np.random.default_rng(1).uniform(0.1, 3.0, n)
    X = sparse.csr_array(np.column_stack([x, np.full(n, value)]))
    for omega in (None, weight):
        parts = [slice(0, n // 3), slice(n // 3, n)]
        one = Moments.of(X, omega)
        two = [Moments.of(X[p], None if omega is None else omega[p]) for p in parts]
        for moments in (one, two[0] + two[1]):
            np.testing.assert_array_equal(moments.varies(np.float64), [True, False])
            assert moments.mean[1] == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("weight", "observations"),
    [
        (None, 4),
        ([1, 2, 0, 3], 6),
        ([2, 4, 0, 6], 6),
        ([0.5, 0.5, 0.5, 0.5], 4),
        ([1.5, 1, 0, 0.5], 18 / 7),
    ],
)
def test_whole_weights_count_observations_and_others_are_relative(weight, observations):
    # (1.5 + 1 + 0.5)² / (1.5² + 1² + 0.5²) = 18/7
    weight = None if weight is None else np.array(weight, dtype=float)
    X, y = np.zeros((4, 2)), np.zeros(4)
    assert Tally.of(Chunk(X, y, weight)).observations == pytest.approx(observations)
    halves = [
        Chunk(X[a], y[a], None if weight is None else weight[a]) for a in (slice(2), slice(2, 4))
    ]
    assert (Tally.of(halves[0]) + Tally.of(halves[1])).observations == pytest.approx(observations)
