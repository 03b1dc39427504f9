"""Bounds of the errors of rows left out, against the errors."""

import numpy as np
import pytest

from quadlin.core.chunks import MemorySource
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.choose.automatic import RankSearch
from quadlin.solve.choose.leave_one_out import left_out_squares
from quadlin.solve.choose.leverage_bounds import bounds_of_squares
from quadlin.solve.lowrank.tangent_gram import tangent_gram
from quadlin.solve.lowrank.types import Options

ALPHA = (5.0, 9.0)


def problem(n=3000, d=40, weight=None, extreme=False):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    y = X[:, 0] + X[:, 1] * X[:, 2] - X[:, 3] * X[:, 4] + 0.5 * rng.standard_normal(n)
    if extreme:
        X[::500] *= 30
        y[::500] = 30 * rng.standard_normal(len(y[::500]))
    rows = Rows.of(MemorySource(X, y, weight))
    surveyed = survey(rows)
    units = UnitsMaker("auto", True, np.float64, None)(surveyed.features, surveyed.target)
    return rows, units


@pytest.mark.parametrize("weighted", [False, True])
def test_errors_of_rows_left_out_are_within_their_bounds(weighted):
    weight = np.tile([0.0, 0.8, 1.0, 1.2], 750) if weighted else None
    rows, units = problem(weight=weight)
    U = np.linalg.qr(np.random.default_rng(1).standard_normal((40, 4)))[0]
    gram = tangent_gram(rows, units, Options(rank=0), U)
    squares = left_out_squares(rows, units, gram, ALPHA, 3000.0)[:, 0]
    least, most = bounds_of_squares(rows, units, gram, ALPHA, 3000.0, seed=0).T
    assert len(squares) == (2250 if weighted else 3000)
    assert np.all(least <= squares)
    # Leverages are about .08 here, and what bounds them is 1.24 times an estimate whose error is
    # 20%: a row in ten may be above its bound, by more than 5% of its square one in fifty. All of
    # them together are bounded.
    assert np.mean(squares <= 1.05 * most) > 0.97
    assert squares.sum() < most.sum() < 1.5 * squares.sum()


def test_a_row_that_decides_a_parameter_has_no_bound():
    rows, units = problem(extreme=True)
    gram = tangent_gram(rows, units, Options(rank=0), np.eye(40, 6))
    squares = left_out_squares(rows, units, gram, ALPHA, 3000.0)[::500, 0]
    most = bounds_of_squares(rows, units, gram, ALPHA, 3000.0, seed=0)[::500, 1]
    assert np.all(most >= squares)


@pytest.mark.parametrize("extreme", [False, True])
def test_bounds_agree_only_where_the_errors_do(extreme):
    rows, units = problem(extreme=extreme)
    search = RankSearch(rows, units, Options(rank=0), 3000, 3000.0, 0)
    ridge, low = search.ridge(), search.candidate(5)
    sure = search.surely_better(low, ridge, ridge)
    assert (5, low.alpha) not in search.squares  # no error of a row was looked at
    assert sure is not extreme
    assert search.confirmed(search.left_out_squares(low), ridge) or not sure
    assert not search.surely_better(low, ridge, ridge)  # now that errors are there
