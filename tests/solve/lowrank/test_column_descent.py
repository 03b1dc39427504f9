"""Sweeps over the columns of sparse rows: each solves small systems, all of them the fit."""

import warnings

import numpy as np
import pytest
from scipy.sparse import csc_array, csr_array

from column_problems import objective, sparse_rows
from quadlin import FactorizationMachineRegressor
from quadlin.core import compiled_columns, library
from quadlin.core.chunks import MemorySource
from quadlin.core.compiled_columns import ColumnTable
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.lowrank import column_descent
from quadlin.solve.lowrank.column_rows import ColumnFit
from quadlin.solve.lowrank.column_start import MomentMatrix, begin
from quadlin.solve.lowrank.gauss_newton import GaussNewton
from quadlin.solve.lowrank.types import Options, Problem, Status
from quadlin.solve.lowrank.whitening import Identity

pytestmark = pytest.mark.skipif(library.library() is None, reason="there is no compiled kernel")


def table_of(n=200, d=60, k=3, seed=0, alpha=(0.7, 0.3)):
    X, y, weight = sparse_rows(n, d, seed)
    rng = np.random.default_rng(seed + 1)
    signs = np.where(np.arange(k) % 2, -1.0, 1.0)
    table = ColumnTable(
        csc_array(X), y, weight, rng.standard_normal(d), 0.5 + rng.random(d), signs, alpha
    )
    table.V[:], table.linear[:] = 0.3 * rng.standard_normal((d, k)), rng.standard_normal(d)
    return table, X.toarray(), y, weight


@pytest.mark.parametrize("k", [1, 3, 8, 9, 17])
def test_the_objective_is_that_of_its_definition(k):
    table, X, y, weight = table_of(k=k)
    expected = objective(table, X, y, weight, table.V, table.linear)
    table.evaluate()
    assert np.isclose(table.objective(), expected, rtol=1e-12)
    after = table.sweep()
    assert np.isclose(after, objective(table, X, y, weight, table.V, table.linear), rtol=1e-10)
    assert after < expected


@pytest.mark.parametrize("k", [2, 9])
def test_sweeps_end_where_the_gradient_of_the_definition_vanishes(k):
    d = 20
    table, X, y, weight = table_of(n=60, d=d, k=k, alpha=(2.0, 5.0))
    table.evaluate()
    reached = [table.sweep() for _ in range(1000)]
    theta, step = np.concatenate([table.V.ravel(), table.linear]), 1e-5

    def at(moved):
        return objective(table, X, y, weight, moved[:-d].reshape(d, k), moved[-d:])

    slope = [(at(theta + step * u) - at(theta - step * u)) / (2 * step) for u in np.eye(len(theta))]
    by_column = np.column_stack([np.reshape(slope[:-d], (d, k)), slope[-d:]])[X.any(axis=0)]
    # Central differences are exact to step² and rounding/step, 1e-10 of the objective each.
    assert np.abs(by_column).max() < 1e-5 * reached[0]
    assert reached == sorted(reached, reverse=True) or np.ptp(reached[-100:]) < 1e-9 * reached[0]


@pytest.mark.parametrize("k", [3, 9])
def test_sweeps_of_single_precision_go_where_those_of_double_precision_go(k):
    # 600 entries per column: their products are added in batches, in their own kind of number.
    X, y, weight = sparse_rows(2000, 40)
    rng = np.random.default_rng(1)
    mean, penalty, V = rng.standard_normal(40), 0.5 + rng.random(40), rng.standard_normal((40, k))
    ends = []
    for dtype in (np.float64, np.float32):
        signs = np.where(np.arange(k) % 2, -1.0, 1.0)
        alpha = (0.7, 0.3)
        table = ColumnTable(csc_array(X.astype(dtype)), y, weight, mean, penalty, signs, alpha)
        table.V[:] = 0.1 * V
        table.evaluate()
        ends.append([table.sweep() for _ in range(5)])
    np.testing.assert_allclose(ends[1], ends[0], rtol=3e-5)  # of 2,000 rows, 1e-7 each


def test_directions_that_nothing_tells_apart_stay_where_they_are():
    # Both components are the same, so that their equations are singular but for rounding.
    for dtype in (np.float64, np.float32):
        X, y, weight = sparse_rows(300, 20)
        ones = np.ones(20)
        table = ColumnTable(
            csc_array(X.astype(dtype)), y, weight, 0 * ones, ones, np.ones(2), (1e-9, 1e-9)
        )
        table.V[:] = np.random.default_rng(0).standard_normal((20, 1))
        table.evaluate()
        reached = [table.sweep() for _ in range(10)]
        assert reached == sorted(reached, reverse=True)
        assert np.abs(table.V).max() < 100


def test_each_instruction_set_sweeps_alike(monkeypatch):
    ends = []
    for level in range(library.instruction_level() + 1):
        monkeypatch.setattr(compiled_columns, "instruction_level", lambda level=level: level)
        table, *_ = table_of(k=9)
        table.evaluate()
        ends.append(table.sweep())
    np.testing.assert_allclose(ends, ends[0], rtol=1e-12)


def test_the_structure_agrees_with_that_of_the_kernel():
    import ctypes

    size = ctypes.sizeof(compiled_columns.ColumnsStructure)
    assert size == library.library().columns_size()


def problem_of(n=300, d=40, alpha=(2.0, 2.0), dtype=np.float64, weights=True):
    X, y, weight = sparse_rows(n, d, density=0.15)
    source = MemorySource(X.astype(dtype), y, weight if weights else None)
    rows = Rows.of(source)
    surveyed = rows.reduce(survey)
    names = [str(j) for j in range(d)]
    units = UnitsMaker("zero", True, dtype, names)(surveyed.features, surveyed.target)
    options = Options(3, alpha=alpha, max_iter=500, tol=1e-9)
    return Problem(rows, units, options, np.random.default_rng(0)), surveyed


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_model_by_columns_has_the_objective_of_a_pass(dtype):
    problem, _ = problem_of(dtype=dtype)
    columns = ColumnFit.of(problem)
    begin(problem, columns)
    columns.table.evaluate()
    reached = [columns.table.sweep() for _ in range(3)][-1] / columns.weight
    by_pass = GaussNewton(problem, Identity()).point_of(columns.model()).objective
    assert np.isclose(reached, by_pass, rtol=1e-4 if dtype == np.float32 else 1e-10)


def test_the_end_of_the_sweeps_is_an_optimum_of_gauss_newton():
    problem, _ = problem_of()
    columns = ColumnFit.of(problem)
    begin(problem, columns)
    ends = list(column_descent.descent(problem, columns, 1e-9))
    task = GaussNewton(problem, Identity())
    point = task.point_of(ends[-1].finished())
    g = task.gradient(point)
    promised = g.dot(task.coordinates.preconditioned(point.U, g))
    assert promised < 1e-5 * point.objective
    losses = [end.objective for end in ends]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("weights", [True, False])
def test_the_moment_matrix_of_a_start_is_that_of_its_definition(weights):
    problem, _ = problem_of(weights=weights)
    columns = ColumnFit.of(problem)
    X, y, order = columns.X.toarray(), columns.y, columns.order
    weight = columns.weights if weights else np.ones(len(y))
    rng = np.random.default_rng(0)
    w, first = rng.standard_normal(X.shape[1]), 15
    r = X @ w - y
    r -= np.average(r, weights=weight)
    share = np.average(X != 0, axis=0, weights=weight)
    Z = (X - np.average(X, axis=0, weights=weight)) * np.sqrt(share) * problem.units.scale
    M = Z.T @ ((weight * r)[:, None] * Z) / (2 * weight.sum())
    M = (M - np.diag(np.diag(M)))[order][:, order]
    sample = columns.sample(len(y), rng)
    all_columns = MomentMatrix.of(columns, sample, w[order])
    frequent, Q = all_columns.part(first), rng.standard_normal((X.shape[1] - first, 3))
    np.testing.assert_allclose(all_columns.product(Q, frequent), M[:, first:] @ Q, atol=1e-10)
    np.testing.assert_allclose(frequent.product(Q, frequent), M[first:, first:] @ Q, atol=1e-10)


def test_the_start_of_a_fit_takes_a_sample_of_the_rows_that_have_a_weight():
    problem, _ = problem_of()
    columns = ColumnFit.of(problem)
    columns.weights[::2] = 0
    sample = columns.sample(100, np.random.default_rng(0))
    rows = [np.flatnonzero(columns.y == value)[0] for value in sample.y]
    assert len(set(rows)) == 100
    assert min(columns.weights[rows]) > 0
    assert list(sample.omega) == list(columns.weights[rows])
    expected = columns.X.toarray()[rows][:, columns.order]
    np.testing.assert_array_equal(sample.X.toarray(), expected)


def test_a_fit_begins_below_ridge_regression_alone():
    problem, _ = problem_of()
    columns = ColumnFit.of(problem)
    begin(problem, columns)
    columns.table.evaluate()
    start = columns.table.objective()
    X, y, weight = columns.X.toarray(), columns.y, columns.weights
    centred = X - np.average(X, axis=0, weights=weight)
    penalty = columns.parts[-1]
    gram = centred.T @ (weight[:, None] * centred) + 2.0 * np.diag(penalty)
    w = np.linalg.lstsq(gram, centred.T @ (weight * y), rcond=None)[0]
    rest = y - np.average(y, weights=weight) - centred @ w
    assert start < weight @ rest**2 + 2.0 * penalty @ w**2


def wide_table(n=1500, levels=300, fields=8, seed=0):
    """Return more columns than rows, one-hot, and targets with products in them."""
    rng = np.random.default_rng(seed)
    codes = (levels * rng.random((n, fields)) ** 2).astype(int) + levels * np.arange(fields)
    d = levels * fields
    X = csr_array(
        (np.ones(codes.size), codes.ravel(), np.arange(0, codes.size + 1, fields)), (n, d)
    )
    w, v = rng.standard_normal(d), rng.standard_normal(d)
    y = w[codes].sum(axis=1) + (v[codes].sum(axis=1) / 2) ** 2 + 0.1 * rng.standard_normal(n)
    return X, y


@pytest.mark.parametrize(("alpha", "passes"), [(10.0, 100), (30.0, 60), (300.0, 30)])
@pytest.mark.parametrize("seed", [0, 1])
def test_wide_sparse_rows_take_few_passes_and_end_near_the_optimum(alpha, passes, seed):
    X, y = wide_table(seed=seed)
    options = {"alpha": alpha, "pairs": None, "random_state": 0}
    machine = FactorizationMachineRegressor(4, **options).fit(X, y)
    assert machine.status_ is Status.converged
    assert machine.history_[-1].passes <= passes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tight = FactorizationMachineRegressor(4, tol=1e-8, max_iter=100, **options).fit(X, y)
    assert machine.history_[-1].loss < 1.01 * tight.history_[-1].loss


def test_weights_count_as_repetitions_of_wide_sparse_rows():
    X, y = wide_table(n=600)
    weight = np.where(np.arange(600) % 3 == 0, 2.0, 1.0)
    again = np.repeat(np.arange(600), weight.astype(int))
    options = {"alpha": 30.0, "pairs": None, "random_state": 0}
    one = FactorizationMachineRegressor(2, **options).fit(X, y, sample_weight=weight)
    other = FactorizationMachineRegressor(2, **options).fit(X[again], y[again])
    # The same sums in another order, in every one of some 30 sweeps.
    np.testing.assert_allclose(one.predict(X), other.predict(X), atol=1e-5 * np.std(y))


@pytest.mark.parametrize(
    ("shift", "dtype", "expected"),
    [(0.0, np.float32, True), (1e3, np.float32, False), (1e3, np.float64, True)],
)
def test_columns_far_from_zero_are_left_to_centred_rows(monkeypatch, shift, dtype, expected):
    monkeypatch.setattr(column_descent, "NARROW", 10)
    X, y, _ = sparse_rows(60, 40)
    X = X.toarray()
    X[:, 0] = shift + np.arange(60) % 7
    rows = Rows.of(MemorySource(csr_array(X.astype(dtype)), y, None))
    surveyed = rows.reduce(survey)
    maker = UnitsMaker("zero", True, dtype, [str(j) for j in range(40)])
    units = maker(surveyed.features, surveyed.target)
    options = Options(3, alpha=(1.0, 1.0))
    assert column_descent.goes_by_columns(rows, units, options, surveyed.tally) is expected


def test_without_the_kernel_wide_sparse_rows_are_fitted_by_passes(monkeypatch):
    monkeypatch.setattr(column_descent, "NARROW", 10)
    problem, surveyed = problem_of(n=60)
    options = (problem.rows, problem.units, problem.options, surveyed.tally)
    assert column_descent.goes_by_columns(*options)
    monkeypatch.setenv("QUADLIN_KERNEL", "numpy")
    assert not column_descent.goes_by_columns(*options)
