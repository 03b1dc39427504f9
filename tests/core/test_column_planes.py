"""Steps of sweeps over columns: the plane, the move, and factors that cancel."""

import numpy as np
import pytest
from scipy.sparse import csc_array

from column_problems import objective, sparse_rows
from quadlin.core import compiled_columns, library
from quadlin.core.column_planes import Plane, TrailingTable, balance

pytestmark = pytest.mark.skipif(library.library() is None, reason="there is no compiled kernel")


def table_of(n=200, d=60, k=3, seed=0, alpha=(0.7, 0.3), dtype=np.float64):
    X, y, weight = sparse_rows(n, d, seed)
    rng = np.random.default_rng(seed + 1)
    signs = np.where(np.arange(k) % 2, -1.0, 1.0)
    mean, penalty = rng.standard_normal(d), 0.5 + rng.random(d)
    table = TrailingTable(csc_array(X.astype(dtype)), y, weight, mean, penalty, signs, alpha)
    table.V[:], table.linear[:] = 0.3 * rng.standard_normal((d, k)), rng.standard_normal(d)
    table.remember()
    return table, (X.toarray(), y, weight)


def swept(table):
    """Sweep once more, and return where that ended, its step and the step before, of V and w."""
    k, width = table.k, table.factors.shape[1]
    before, last = table.past_factors[:, :k].copy(), table.past_factors[:, width : width + k].copy()
    linear = table.past_linear.copy()
    table.run("run_survey")
    table.run("run_sweep")
    V, w = table.V.copy(), table.linear.copy()
    return (V, w), (V - before, w - linear[:, 0]), (last, linear[:, 1])


@pytest.mark.parametrize("k", [1, 3, 8, 9, 17])
def test_the_plane_is_the_objective_of_its_definition(k):
    table, rows = table_of(k=k)
    for _ in range(2):
        table.step()
    place, step, before = swept(table)
    plane = table.plane()
    for t, u in ((0.0, 0.0), (-1.0, 0.0), (0.7, 0.4), (2.0, -1.5)):
        V, w = (x + t * a + u * b for x, a, b in zip(place, step, before, strict=True))
        assert np.isclose(plane.at(t, u), objective(table, *rows, V, w), rtol=1e-9)


@pytest.mark.parametrize("k", [1, 8, 9])
def test_a_move_has_the_products_and_errors_of_a_new_evaluation(k):
    table, _ = table_of(k=k)
    table.step()
    swept(table)
    plane = table.plane()
    table.move(plane, 0.6, -0.3)
    moved, intercept = table.state.copy(), table.intercept
    assert np.isclose(table.objective(), plane.at(0.6, -0.3), rtol=1e-10)
    table.evaluate()
    np.testing.assert_allclose(table.state[:, : k + 1], moved[:, : k + 1], atol=1e-9)
    assert np.isclose(table.intercept, intercept, atol=1e-9)


def test_steps_go_down_and_end_where_sweeps_gain_nothing():
    table, _ = table_of(n=60, d=20, k=2, alpha=(2.0, 5.0))
    reached = [table.step() for _ in range(200)]
    assert all(np.diff(reached) <= 1e-12 * reached[0])
    assert np.isclose(table.sweep(), reached[-1], rtol=1e-9)


def test_steps_need_half_as_many_sweeps():
    counts = []
    for method in (TrailingTable.step, TrailingTable.sweep):
        table, _ = table_of(n=400, d=100, k=3, alpha=(60.0, 60.0))
        reached = np.array([method(table) for _ in range(400)])
        counts.append(np.sum(reached > 1.01 * reached[-1]))
    assert counts[0] < 0.6 * counts[1]  # here 64 of 148


def test_steps_of_single_precision_go_where_those_of_double_precision_go():
    ends = []
    for dtype in (np.float64, np.float32):
        table, _ = table_of(n=2000, d=40, k=9, dtype=dtype)
        ends.append([table.step() for _ in range(10)])
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-4)  # of 2,000 rows, 1e-7 each, in 10 steps


def test_each_instruction_set_steps_alike(monkeypatch):
    ends = []
    for level in range(library.instruction_level() + 1):
        monkeypatch.setattr(compiled_columns, "instruction_level", lambda level=level: level)
        table, _ = table_of(k=9)
        ends.append([table.step() for _ in range(3)])
    np.testing.assert_allclose(ends, [ends[0]] * len(ends), rtol=1e-9)


def test_factors_that_cancel_are_made_orthogonal_and_the_model_stays():
    table, rows = table_of(k=4)
    table.V[:, 1] = 30 * (table.V[:, 0] / 30 + table.V[:, 1] / 1e3)
    table.V[:, 0] *= 1.0 + 1e-3
    table.remember()
    before = objective(table, *rows, table.V, table.linear)
    A = (table.penalty[:, None] * table.V).T @ table.V
    T, signs = balance(A, table.signs[:4])
    V = table.V @ T
    np.testing.assert_allclose(
        (V * signs) @ V.T, (table.V * table.signs[:4]) @ table.V.T, atol=1e-9
    )
    gram = (table.penalty[:, None] * V).T @ V
    np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-9 * gram.max())
    assert np.trace(gram) < 0.5 * np.trace(A)
    assert table.step() < before
    assert balance((table.penalty[:, None] * table.V).T @ table.V, table.signs[:4]) is None


def test_components_without_factors_are_left_out_of_a_balance():
    A = np.array([[1.0, 0.99, 0.0], [0.99, 1.0, 0.0], [0.0, 0.0, 0.0]])
    T, signs = balance(A, np.array([1.0, -1.0, 1.0]))
    np.testing.assert_allclose((T * signs) @ T.T, np.diag([1.0, -1.0, 1.0]), atol=1e-9)


def test_the_lowest_point_of_a_plane_is_that_of_a_fine_grid():
    rng = np.random.default_rng(0)
    for _ in range(20):
        F = rng.standard_normal((8, 6)) * [1.0, 0.5, 0.5, 0.1, 0.1, 0.1]
        plane = Plane(F.T @ F, np.zeros(6))
        t, u = plane.lowest()
        value = plane.at(t, u)
        near = [plane.at(t + a, u + b) for a in (-1e-2, 0, 1e-2) for b in (-1e-2, 0, 1e-2)]
        assert value <= min([*near, plane.at(0.0, 0.0)])


@pytest.mark.parametrize("k", [3, 9])
@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-10), (np.float32, 1e-4)])
def test_steps_keep_what_a_survey_would_find(k, dtype, rtol):
    # Sums of 60 columns, which cancel in part, of numbers with 7 or 16 digits.
    table, _ = table_of(k=k, dtype=dtype)
    for _ in range(4):
        table.step()
    kept = [a.copy() for a in (table.centre, table.gram, table.pull)]
    table.run("run_survey")
    for got, expected in zip(kept, (table.centre, table.gram, table.pull), strict=True):
        np.testing.assert_allclose(got, expected, atol=rtol * np.abs(expected).max())


@pytest.mark.parametrize("k", [3, 9])
def test_a_turn_of_the_factors_turns_rows_and_sums_with_them(k):
    table, rows = table_of(k=k)
    for _ in range(2):
        table.step()
    before = objective(table, *rows, table.V, table.linear)
    T = np.eye(table.factors.shape[1])
    T[:2, :2] = [[np.cosh(1.0), np.sinh(1.0)], [np.sinh(1.0), np.cosh(1.0)]]  # of signs 1 and -1
    A = table.gram * np.outer(table.signs, table.signs)
    table._turn(A, T, table.signs.copy())
    assert np.isclose(objective(table, *rows, table.V, table.linear), before, rtol=1e-10)
    np.testing.assert_allclose(table.state[:, :k], rows[0] @ table.V, atol=1e-10)
    kept = [a.copy() for a in (table.centre, table.gram, table.pull)]
    table.run("run_survey")
    for got, expected in zip(kept, (table.centre, table.gram, table.pull), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-10 * np.abs(expected).max())
    reached = table.step()
    assert np.isclose(reached, objective(table, *rows, table.V, table.linear), rtol=1e-10)
    assert reached < before


def test_a_step_of_rounding_is_no_direction_to_go_in():
    G = np.diag([50.0, 0.0, 5e-33, 0.0, 0.0, 0.0])
    G[0, 2] = G[2, 0] = -1e-17
    assert Plane(G, np.zeros(6)).lowest(np.finfo(np.float64).eps) == (0.0, 0.0)
    G[1, 1], G[0, 1], G[1, 0] = 1.0, -2.0, -2.0
    t, u = Plane(G, np.zeros(6)).lowest(np.finfo(np.float64).eps)
    assert np.allclose([t, u], [2.0, 0.0])
