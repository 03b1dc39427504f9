"""Penalties without a matrix of the parameters, against those of the matrix."""

import numpy as np
import pytest

from quadlin.core.chunks import MemorySource
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.datasets import make_second_order
from quadlin.solve.choose.choice import LeastSquares
from quadlin.solve.choose.penalties import Diagonal, maximised
from quadlin.solve.choose.search import Search
from quadlin.solve.lowrank.design import Design
from quadlin.solve.lowrank.linear_model import Gram
from quadlin.solve.lowrank.types import Options


def search_of(X, y):
    rows = Rows.of(MemorySource(X, y))
    surveyed = rows.reduce(survey)
    names = [str(j) for j in range(X.shape[1])]
    units = UnitsMaker("auto", True, X.dtype, names)(surveyed.features, surveyed.target)
    return Search(LeastSquares(rows, units, Options(rank=0), len(y), float(len(y)), 0))


def test_penalties_of_determined_parameters_are_those_of_largest_evidence():
    data = make_second_order(6000, 40, rank=3, noise=1.0, random_state=0)
    search = search_of(data.X, data.y)
    found = search.best()
    assert found.rank == 3
    assert isinstance(found.linear, Diagonal)
    task = search.task
    gram = Gram.of(task.rows, Design.at(found.model.U, task.units, task.options))
    best = maximised(gram, [(-4.0, -4.0)])
    # The search by evidence ends at a slope of 0.1 in log α, of some 100 determined parameters.
    np.testing.assert_allclose(np.log(found.alpha), best.log_alpha, atol=0.05)
    assert found.noise == pytest.approx(best.noise, rel=0.02)


def test_noise_has_no_rank():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6000, 40))
    assert search_of(X, X[:, 0] + rng.standard_normal(6000)).best().rank == 0
