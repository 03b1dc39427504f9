"""What the residual of ridge regression says of ranks, before any is fitted."""

import numpy as np
import pytest

from quadlin import SecondOrderRegressor
from quadlin.core.chunks import MemorySource
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.metrics import degrees_of_freedom
from quadlin.solve.choose.automatic import RankSearch
from quadlin.solve.lowrank.types import Options

D = 30


def search(X, y):
    rows = Rows.of(MemorySource(X, y))
    surveyed = rows.reduce(survey)
    units = UnitsMaker("auto", True, np.float64, None)(surveyed.features, surveyed.target)
    return RankSearch(rows, units, Options(rank=0), len(y), float(len(y)), 0)


def drawn(rng, n, d, rank, noise):
    X = rng.standard_normal((n, d))
    U = np.linalg.qr(rng.standard_normal((d, rank)))[0]
    y = X @ rng.standard_normal(d) + ((X @ U) ** 2) @ np.resize([3.0, -3.0], rank)
    return X, y + noise * rng.standard_normal(n)


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_components_are_counted_and_their_penalties_are_expected(rank):
    X, y = drawn(np.random.default_rng(rank), 4000, D, rank, 4.0)
    tried = search(X, y)
    assert tried.spectrum.components == rank
    expected = tried.start(rank)[1]
    assert tried.best().rank == rank
    # Within a factor of two, a wrong n, p or σ² is not; the first guess of old, .2n, is 40 times.
    assert np.max(np.abs(np.log(expected) - np.log(tried.tried[rank].alpha))) < np.log(2)


@pytest.mark.parametrize("seed", range(3))
def test_neither_ranks_nor_products_are_tried_where_the_residual_is_noise(seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((600, D))
    y = X @ rng.standard_normal(D) + rng.standard_normal(600)
    tried = search(X, y)
    tried.best()
    # Noise stays below the edge in 99 of 100 draws.
    assert set(tried.tried) == {0}
    assert tried.rows.walks <= 7  # for ridge regression and its rows left out most of them


@pytest.mark.parametrize(("d", "rank"), [(26, 2), (26, 5), (40, 4), (40, 8), (60, 3), (60, 10)])
def test_nothing_is_hidden_that_few_rows_determine(d, rank):
    # Without noise a rank is found from 1.6 rows per parameter on; it must stand out there.
    for seed in range(5):
        n = int(1.6 * degrees_of_freedom(d, rank))
        X, y = drawn(np.random.default_rng(seed), n, d, rank, 0.0)
        assert not search(X, y).spectrum.is_noise


def test_a_dense_matrix_is_not_hidden_and_all_products_are_tried_first():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1500, D))
    U = np.linalg.qr(rng.standard_normal((D, D)))[0]
    y = ((X @ U) ** 2) @ np.resize([1.0, -1.0], D)
    tried = search(X, y / y.std() + 0.2 * rng.standard_normal(1500))
    assert not tried.spectrum.says_nothing
    assert tried.spectrum.is_dense
    assert tried.best().rank == D
    assert max(set(tried.tried) - {D}) <= 5  # no rank on the way can reach them


def test_as_many_ranks_are_begun_with_as_stand_out_of_many_rows():
    # Of components that fall slowly none is the last one.
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6000, 60))
    U = np.linalg.qr(rng.standard_normal((60, 14)))[0]
    y = ((X @ U) ** 2) @ (np.resize([1.0, -1.0], 14) * 0.85 ** np.arange(14))
    y += y.std() / 2 * rng.standard_normal(6000)
    many, few = search(X, y), search(X[:900], y[:900])
    assert many.spectrum.components == 0
    assert many.first_rank(16) == many.spectrum.standing_out > 4
    assert few.first_rank(16) == 4  # rows that do not tell so many parameters


def test_a_few_extreme_rows_are_no_component():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1500, D))
    y = X @ rng.standard_normal(D) + rng.standard_normal(1500)
    X[:5] *= 20
    y[:5] = 50 * X[:5, 0] ** 2 / 400  # five rows that agree on a square
    assert search(X, y).spectrum.components == 0


def test_a_pair_is_not_spread_and_a_component_of_many_features_is():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, D))
    noise = rng.standard_normal(3000)
    one = X[:, 0] * X[:, 1] + noise
    direction = np.full(D, D**-0.5)
    many = (X @ direction) ** 2 + noise
    for y, is_spread in ((one, False), (many, True)):
        t = X.T @ ((y - y.mean())[:, None] * X) / np.sqrt(len(y)) / y.std()
        assert search(X, y).spectrum.is_spread(np.max(t**2)) is is_spread


def test_pairs_of_one_feature_with_many_others_are_still_found():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((2000, D))
    y = X[:, :1] * X[:, 1:9] @ np.ones(8) + X[:, 0] + 0.5 * rng.standard_normal(2000)
    model = SecondOrderRegressor().fit(X, y)
    assert {(p.first, p.second) for p in model.pairs_.pairs} == {
        ("x0", f"x{j}") for j in range(1, 9)
    }
