"""One walk over few features says of any rank and penalty what walks of their own would say."""

import numpy as np
import pytest

from quadlin import SecondOrderRegressor
from quadlin.core.chunks import MemorySource
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.datasets import make_second_order
from quadlin.solve.choose import automatic
from quadlin.solve.choose.automatic import RankSearch
from quadlin.solve.lowrank.driver import follow
from quadlin.solve.lowrank.exact import products_of
from quadlin.solve.lowrank.gauss_newton import GaussNewton
from quadlin.solve.lowrank.polish import polish
from quadlin.solve.lowrank.product_gram import ProductGram
from quadlin.solve.lowrank.restarts import quick_start
from quadlin.solve.lowrank.tangent_gram import tangent_gram
from quadlin.solve.lowrank.types import Options, Problem
from quadlin.solve.lowrank.whitening import Identity

N, D, K = 500, 7, 3
ALPHA = (3.0, 7.0)


def problem():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D))
    X[:, 0], X[:, 1] = X[:, 0] > 0, np.exp(X[:, 1])  # without a square, and skewed
    y = X @ rng.standard_normal(D) + X[:, 2] * X[:, 3] - X[:, 1] * X[:, 0]
    y += rng.standard_normal(N)
    rows = Rows.of(MemorySource(X, y))
    surveyed = rows.reduce(survey)
    maker = UnitsMaker("auto", True, X.dtype, [str(j) for j in range(D)])
    units = maker(surveyed.features, surveyed.target)
    return Problem(rows, units, Options(rank=K, alpha=ALPHA, tol=1e-10), rng)


def product_gram(p):
    return ProductGram(products_of(p.rows, p.units), p.units, p.options)


@pytest.mark.parametrize("k", [0, K, D])
def test_the_linear_model_of_a_tangent_space_is_that_of_a_walk(k):
    p = problem()
    U = np.linalg.qr(p.rng.standard_normal((D, D)))[0][:, :k] if k < D else np.eye(D)
    one = tangent_gram(p.rows, p.units, p.options, U).centred(float(N))
    gram = product_gram(p)
    other = gram.tangent(gram.rho[:, None] * U).centred(float(N))
    assert list(one.sizes) == list(other.sizes)
    for log_alpha in ([0.0, 1.0], [-3.0, 4.0]):
        a, b = (g.at(np.array(log_alpha[: len(g.sizes)])) for g in (one, other))
        assert a.log_evidence == pytest.approx(b.log_evidence, rel=1e-9)
        assert a.gradient == pytest.approx(b.gradient, rel=1e-6, abs=1e-8)


def test_a_model_from_the_products_has_the_objective_that_the_rows_give_it():
    p = problem()
    gram, task = product_gram(p), GaussNewton(p, Identity())
    M = p.rng.standard_normal((D, D))
    start = gram.point(M + M.T, K, ALPHA)
    reached = gram.descended(start, ALPHA, float(N), 50, 1e-9)
    assert reached.objective < start.objective
    for point in (start, reached):
        model = gram.model(point, ALPHA)
        assert task.point_of(model).objective == pytest.approx(point.objective, rel=1e-9)
        assert gram.of(model, ALPHA).objective == pytest.approx(point.objective, rel=1e-9)


def test_its_optimum_is_that_of_the_fit():
    p = problem()
    best = follow(p, polish(p, Identity())).history[-1].loss / p.units.target.scale**2
    gram = product_gram(p)
    start = gram.of(quick_start(p, gram.gram), ALPHA)
    assert gram.descended(start, ALPHA, float(N), 100, 1e-12).objective == pytest.approx(best, 1e-4)


def test_no_penalty_and_columns_that_depend_on_each_other_are_no_obstacle():
    p = problem()
    X = p.rows.engine.source.X
    rows = Rows.of(MemorySource(np.column_stack([X, X[:, :2]]), p.rows.engine.source.y))
    surveyed = rows.reduce(survey)
    maker = UnitsMaker("auto", True, X.dtype, [str(j) for j in range(D + 2)])
    q = Problem(rows, maker(surveyed.features, surveyed.target), Options(rank=K), p.rng)
    gram = product_gram(q)
    start = gram.point(np.eye(D + 2), K, (0.0, 0.0))
    point = gram.descended(start, (0.0, 0.0), float(N), 20, 1e-6)
    assert np.isfinite(point.objective)
    assert point.objective < 0.3


@pytest.mark.parametrize(("n", "d"), [(60, 8), (2000, 12)])
def test_with_few_features_the_default_takes_hardly_more_walks_than_one_fit(n, d):
    data = make_second_order(n, d, rank=2, noise=0.5, random_state=0)
    model = SecondOrderRegressor(pairs=None, random_state=0).fit(data.X, data.y)
    assert model.history_[-1].passes <= 12  # 92 and more where each rank takes its own


def test_a_sample_of_many_rows_chooses_what_all_of_them_choose(monkeypatch):
    d, n = 56, 13_200  # more products than a matrix holds
    data = make_second_order(n, d, rank=2, noise=1.0, n_test=1000, random_state=0)
    rows = Rows.of(MemorySource(data.X, data.y))
    surveyed = rows.reduce(survey)
    maker = UnitsMaker("auto", True, data.X.dtype, [str(j) for j in range(d)])
    units = maker(surveyed.features, surveyed.target)
    args = (rows, units, Options(rank=1, max_iter=50), n, float(n), 0)
    walks = rows.walks
    few = RankSearch(*args).choice()
    cost = rows.walks - walks
    monkeypatch.setattr(automatic, "LEAST_RATIO", 1e9)  # no sample is small enough
    walks = rows.walks
    whole = RankSearch(*args).choice()
    assert few.options.rank == whole.options.rank == 2
    # Half of the rows tell a penalty to about √(2/parameters), twice that is 30%.
    assert few.options.alpha == pytest.approx(whole.options.alpha, rel=0.3)
    assert few.solution.history[-1].loss == pytest.approx(whole.solution.history[-1].loss, rel=1e-3)
    assert cost < 0.7 * (rows.walks - walks)


def test_a_higher_rank_begins_below_the_optimum_of_a_lower_one():
    p = problem()
    gram = product_gram(p)
    low = gram.descended(gram.point(np.eye(D), 1, ALPHA), ALPHA, float(N), 50, 1e-12)
    more = gram.extended(low, 3, ALPHA)
    assert len(more.s) == 3
    # By half the gradient, against finite differences of the objective.
    slope, h = gram._slope(low.M, ALPHA), 1e-4
    direction = np.random.default_rng(1).standard_normal((D, D))
    direction += direction.T
    full = [gram.point(low.M + sign * h * direction, D, ALPHA).objective for sign in (1, -1)]
    expected = (full[0] - full[1]) / (2 * h) * gram.weight
    assert 2 * np.sum(slope * direction) == pytest.approx(expected, rel=1e-5)
    best = gram.descended(more, ALPHA, float(N), 50, 1e-12)
    assert best.objective < more.objective < low.objective
    # What is added takes more than half of the way to the optimum.
    assert low.objective - more.objective > 0.5 * (low.objective - best.objective)
