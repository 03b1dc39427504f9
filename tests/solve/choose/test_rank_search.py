"""Penalties without a matrix of the parameters, against those of the matrix."""

import numpy as np
import pytest

from quadlin.core.chunks import MemorySource
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.datasets import make_second_order
from quadlin.solve.choose.rank_search import RankSearch
from quadlin.solve.lowrank.types import Options


def search_of(X, y):
    rows = Rows.of(MemorySource(X, y))
    surveyed = rows.reduce(survey)
    names = [str(j) for j in range(X.shape[1])]
    units = UnitsMaker("auto", True, X.dtype, names)(surveyed.features, surveyed.target)
    return RankSearch(rows, units, Options(rank=0), len(y), float(len(y)), 0)


def test_penalties_of_determined_parameters_are_those_of_largest_evidence():
    data = make_second_order(6000, 40, rank=3, noise=1.0, random_state=0)
    search = search_of(data.X, data.y)
    evident = search.evident()
    assert evident is not None
    assert evident.rank == 3
    by_matrix = search_of(data.X, data.y).low_rank(3)
    # The search by evidence ends at a slope of 0.1 in log α, of some 100 determined parameters;
    # and with 38 rows per parameter, 0.98 of each parameter is determined.
    np.testing.assert_allclose(evident.alpha, by_matrix.alpha, rtol=0.05)
    assert evident.noise == pytest.approx(by_matrix.noise, rel=0.05)


def test_components_that_do_not_stand_out_are_not_evident():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6000, 40))
    assert search_of(X, X[:, 0] + rng.standard_normal(6000)).evident() is None
    # Many eigenvalues of decreasing size, none of which is clearly the last.
    Q = np.linalg.qr(rng.standard_normal((40, 40)))[0]
    quadratic = np.sum((X @ Q) ** 2 * 0.8 ** np.arange(40), axis=1)
    assert search_of(X, quadratic + rng.standard_normal(6000)).evident() is None
