"""A model predicts the same in every form and in every unit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from problems import dense_predict, random_model
from quadlin.core.block import Block
from quadlin.core.model import in_units, predict, tied, to_raw, with_rank
from quadlin.core.moments import Moments
from quadlin.core.units import Target, units_of

TARGET = Target(2.0, 3.0, 0.0, 1.0)


def problem(seed, target=TARGET):
    rng = np.random.default_rng(seed)
    X = rng.gamma(2.0, size=(50, 6)) * [1e-3, 1, 10, 1e3, 1, 1] + [0, 5, -20, 0, 0, 1e4]
    X[:, 4] = rng.uniform(size=50) < 0.3
    X[:2, 4] = [0, 1]  # never constant
    m = Moments.of(X)
    units = units_of(m, m.tau >= 0.05, target, np.float64)
    return X, units, random_model(6, 3, units.free, rng)


@given(seed=st.integers(0, 500))
def test_the_factored_prediction_is_the_dense_one(seed):
    X, units, model = problem(seed)
    rows = Block(X, units)
    np.testing.assert_allclose(
        predict(model, rows), dense_predict(model, rows.matmul(np.eye(6))), atol=1e-10
    )


@given(seed=st.integers(0, 500))
def test_the_raw_model_predicts_the_same_in_the_users_units(seed):
    X, units, model = problem(seed)
    raw = to_raw(model, units)
    M = (raw.components.T * raw.eigenvalues) @ raw.components
    M -= np.diag((1 - units.free) * np.diag(M))
    y = raw.intercept + X @ raw.coef + np.einsum("ni,ij,nj->n", X, M, X)
    f = predict(model, Block(X, units))
    # x²·M reaches 1e10 here (a mean of 1e4) before it cancels: 1e10 · 1e-16 is what is left.
    np.testing.assert_allclose(y, 2.0 + 3.0 * f, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(raw.components @ raw.components.T, np.eye(3), atol=1e-10)
    assert np.all(np.diff(np.abs(raw.eigenvalues)) <= 0)


@given(seed=st.integers(0, 500))
def test_a_change_of_units_changes_no_prediction(seed):
    X, units, model = problem(seed)
    m = Moments.of(X[:20] * 1.3 + 0.1)
    other = units_of(m, units.free > 0, Target(-1.0, 0.5, 0.0, 1.0), np.float64)
    moved = in_units(model, units, other)
    np.testing.assert_allclose(
        -1.0 + 0.5 * predict(moved, Block(X, other)),
        2.0 + 3.0 * predict(model, Block(X, units)),
        rtol=1e-7,
        atol=1e-7,
    )
    np.testing.assert_allclose(moved.U.T @ moved.U, np.eye(3), atol=1e-10)


@pytest.mark.parametrize(("linear", "intercept"), [(False, True), (True, False), (False, False)])
def test_a_tied_model_has_no_linear_part_or_intercept_in_raw_units(linear, intercept):
    _, units, model = problem(0, Target(0.0, 3.0, 0.0, 1.0))
    raw = to_raw(tied(model, units, linear, intercept), units)
    scale = np.abs(raw.eigenvalues[0])
    if not linear:
        np.testing.assert_allclose(raw.coef, 0, atol=1e-10 * scale)
    if not intercept:
        assert raw.intercept == pytest.approx(0, abs=1e-8 * scale)


def test_adding_empty_directions_changes_nothing_and_taking_them_away_neither():
    X, units, model = problem(0)
    wide = with_rank(model, 5)
    np.testing.assert_allclose(wide.U.T @ wide.U, np.eye(5), atol=1e-12)
    rows = Block(X, units)
    np.testing.assert_allclose(predict(wide, rows), predict(model, rows), atol=1e-12)
    np.testing.assert_allclose(predict(with_rank(wide, 3), rows), predict(model, rows), atol=1e-12)
