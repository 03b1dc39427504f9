"""Rank and penalties of wide sparse rows, by rows held out while columns are swept."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.sparse import csr_array, hstack
from sklearn.linear_model import Ridge

from quadlin import FactorizationMachineRegressor, SecondOrderRegressor
from quadlin.core import library
from quadlin.core.chunks import MemorySource
from quadlin.core.column_planes import TrailingTable
from quadlin.core.moments import moments_of, survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.choose import column_choice
from quadlin.solve.fields.field_rows import has_many_entities
from quadlin.solve.lowrank.types import Automatic, Options, Plan, Status

pytestmark = pytest.mark.skipif(library.library() is None, reason="there is no compiled kernel")


def one_hot(codes, levels):
    """Return the rows of some fields, all with so many levels."""
    n, fields = codes.shape
    at = (codes + levels * np.arange(fields)).ravel()
    return csr_array(
        (np.ones(at.size), at, np.arange(0, at.size + 1, fields)), (n, levels * fields)
    )


def wide_rows(n, strength, seed=0, levels=300, fields=8):
    """Return one-hot rows of more columns than rows, and targets with products of a strength."""
    rng = np.random.default_rng(seed)
    codes = (levels * rng.random((n, fields)) ** 3).astype(int)
    X = one_hot(codes, levels)
    w, v = rng.standard_normal(X.shape[1]), rng.standard_normal(X.shape[1])
    y = X @ w + strength * ((X @ v) ** 2 - X @ v**2) + 0.5 * rng.standard_normal(n)
    return X, y


def test_the_default_predicts_new_rows_better_than_biases_alone():
    X, y = wide_rows(6000, 0.35)
    machine = FactorizationMachineRegressor(random_state=0).fit(X[:4000], y[:4000])
    biases = [Ridge(alpha).fit(X[:4000], y[:4000]) for alpha in (1.0, 3.0, 10.0)]
    best = max(ridge.score(X[4000:], y[4000:]) for ridge in biases)
    # With this seed it was better by 0.12, with four others by 0.03 to 0.29.
    assert machine.score(X[4000:], y[4000:]) > best + 0.06
    assert machine.rank_ > 0
    assert machine.history_[-1].passes < 200


def test_rows_without_products_are_left_to_ridge_regression():
    X, y = wide_rows(1200, 0.0)
    machine = FactorizationMachineRegressor(random_state=0).fit(X, y)
    assert machine.rank_ == 0
    assert machine.status_ is Status.converged


def test_a_rank_that_is_given_is_kept_and_so_are_penalties():
    X, y = wide_rows(1000, 0.5)
    assert FactorizationMachineRegressor(3, random_state=0).fit(X, y).rank_ == 3
    machine = FactorizationMachineRegressor(alpha=(20.0, 50.0), random_state=0).fit(X, y)
    assert machine.alpha_ == (20.0, 50.0)


@pytest.mark.parametrize("n", [3, 6, 20])
def test_a_handful_of_wide_rows_chooses_nothing(n):
    X, y = wide_rows(n, 0.5)
    machine = FactorizationMachineRegressor(random_state=0).fit(X, y)
    assert machine.rank_ == 0
    assert machine.alpha_ == (n, n)
    assert np.isfinite(machine.predict(X)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_linear_model_of_wide_sparse_rows_is_ridge_regression(dtype):
    X, y = wide_rows(500, 0.0)
    model = FactorizationMachineRegressor(0, alpha=7.0, fields=None).fit(X.astype(dtype), y)
    dense = X.toarray()
    sd = dense.std(axis=0)
    q = sd**2
    # A rare 0/1 column weighs as a level does, from a standard deviation of 0.1 downwards.
    root = np.where(sd > 0, sd * np.sqrt(np.clip(0.1 / np.sqrt(np.where(q > 0, q, 1)), 1, None)), 1)
    ridge = Ridge(7.0, solver="cholesky").fit(dense / root, y)
    error = np.abs(model.predict(X.astype(dtype)) - ridge.predict(dense / root)).max()
    # Residuals of the equations are 1e-5 of what they were, and their condition number is 280.
    assert error < 3e-3 * np.std(y)


def test_no_candidate_is_swept_twice_or_for_next_to_nothing(monkeypatch):
    X, y = wide_rows(4000, 0.35)
    tried, swept = [], []
    judged, step = column_choice.ColumnSearch.sweep, TrailingTable.step

    def noted(self, rank, second):
        tried.append((rank, second))
        return judged(self, rank, second)

    def counted(self):
        swept.append(len(tried))
        return step(self)

    monkeypatch.setattr(column_choice.ColumnSearch, "sweep", noted)
    monkeypatch.setattr(TrailingTable, "step", counted)
    units, tally, rows = parts_of(X, y)
    plan = Plan(Options(8), None, 0, Automatic(True, True))
    column_choice.choose_by_columns(rows, units, plan, tally)
    assert len(tried) == len(set(tried)) >= 4
    assert len(swept) <= 4 * len(tried)  # eight are allowed


def parts_of(X, y, weight=None):
    rows = Rows.of(MemorySource(X, y, weight))
    surveyed = rows.reduce(survey)
    maker = UnitsMaker("zero", True, X.dtype, [str(j) for j in range(X.shape[1])])
    return maker(surveyed.features, surveyed.target), surveyed.tally, rows


def search_of(X, y, weight=None, rank=3):
    units, _, rows = parts_of(X, y, weight)
    return column_choice.ColumnSearch(rows, units, Options(rank), 0)


def test_errors_of_rows_held_out_are_those_of_the_model():
    X, y = wide_rows(600, 0.1)
    search = search_of(X, y, 0.5 + np.random.default_rng(1).random(600))
    squares = search.ridge(np.array([10.0, 100.0, 1000.0]))
    centred = search.columns.y - search.columns.y.mean()
    assert search.omega @ squares < search.omega @ centred[search.held] ** 2
    search.begin(3, 50.0)
    search.sweep(3, 50.0)
    table = search.columns.table
    V, s = table.V, table.signs[:3]
    X = X[:, search.columns.order]  # the table has columns in this order
    f = table.intercept + X @ table.linear + (X @ V) ** 2 @ s - X.multiply(X) @ (V**2 @ s)
    np.testing.assert_allclose(table.errors, f - search.columns.y, atol=1e-10)
    assert not search.columns.weights[search.held].any()


def test_equal_targets_do_not_decide_which_rows_are_held_out():
    X, y = wide_rows(1000, 0.0)
    stars = np.clip(np.round(y), -2, 2)
    held = search_of(X, stars).held
    assert len(held) == 200
    shares = [np.mean(stars[held] == star) - np.mean(stars == star) for star in np.unique(stars)]
    # The standard error of a share of 200 rows is at most 0.035.
    assert np.abs(shares).max() < 0.12
    order = np.random.default_rng(0).permutation(1000)
    again = search_of(X[order], stars[order]).held
    np.testing.assert_array_equal(np.sort(order[again]), held)


def test_fields_that_follow_others_are_no_entities():
    rng = np.random.default_rng(0)
    user, item = rng.integers(30, size=500), rng.integers(30, size=500)
    fields = [30 * f + np.arange(30) for f in range(3)]
    follows = one_hot(np.column_stack([user, item, user // 3]), 30)
    assert not has_many_entities(follows, fields)
    third = one_hot(np.column_stack([user, item, rng.integers(30, size=500)]), 30)
    assert has_many_entities(third, fields)
    # Where most rows have a level of their own, everything is a function of it.
    row = one_hot(np.column_stack([np.arange(500), np.resize(user, 500)]), 500)
    both = csr_array(hstack([row, third], format="csr"))
    sizes = [500, 500, 30, 30, 30]
    edges = np.cumsum([0, *sizes])
    assert has_many_entities(both, [np.arange(a, b) for a, b in pairwise(edges)])


def test_rare_columns_of_two_values_are_shrunk_as_levels_are():
    rng = np.random.default_rng(0)
    X = (rng.random((4000, 3)) < [0.5, 0.05, 0.001]).astype(float) * [1.0, 1.0, 5.0]
    X = np.column_stack([X, rng.standard_normal(4000)])
    rows = Rows.of(MemorySource(X, rng.standard_normal(4000)))
    units = UnitsMaker("zero", True, X.dtype, "abcd")(*moments_of(rows))
    q = np.mean(X[:, 2] > 0)
    expected = [1, 1, np.sqrt(0.1 / np.sqrt(q * (1 - q))), 1]
    np.testing.assert_allclose(units.penalty_scale, expected, rtol=1e-6)
    assert SecondOrderRegressor(0, alpha=1.0).fit(X, X[:, 0]).status_ is Status.converged
