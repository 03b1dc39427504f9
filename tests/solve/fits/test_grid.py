"""Cells of a rank and penalties: the same whatever was asked before, against single fits."""

import numpy as np
import pytest

from quadlin import SecondOrderRegressor
from quadlin.core.block import Block
from quadlin.core.chunks import MemorySource
from quadlin.core.model import predict
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.datasets import make_second_order
from quadlin.solve.fits.grid import Cells
from quadlin.solve.lowrank.types import Options


def cells_of(data, **options):
    rows = Rows.of(MemorySource(data.X, data.y))
    names = [f"x{j}" for j in range(data.X.shape[1])]
    surveyed = rows.reduce(survey)
    units = UnitsMaker("auto", True, data.X.dtype, names)(surveyed.features, surveyed.target)
    return Cells(rows, units, Options(rank=1, **options), surveyed, seed=0)


def predicted(cells, data, point):
    units = cells.units
    f = predict(cells.solution(*point).model, Block(data.X, units))
    return units.target.mean + units.target.scale * f


@pytest.mark.parametrize(
    ("d", "psd"), [(5, False), (30, False), (30, True)]
)  # by all products, by Newton steps on matrices, and by walks
def test_a_cell_does_not_depend_on_those_before_it_and_is_that_of_a_single_fit(d, psd):
    data = make_second_order(300, d, rank=2, noise=0.5, random_state=0)
    point = (2, (3.0, 30.0))
    first, later = cells_of(data, psd=psd), cells_of(data, psd=psd)
    for other in ((1, (3.0, 30.0)), (2, (3.0, 0.1)), (3, (1.0, 300.0)), (0, (1.0, 1.0))):
        later.solution(*other)
    np.testing.assert_array_equal(predicted(first, data, point), predicted(later, data, point))
    single = SecondOrderRegressor(2, alpha=point[1], psd=psd, random_state=0).fit(data.X, data.y)
    gap = predicted(first, data, point) - single.predict(data.X)
    assert np.sqrt(np.mean(gap**2)) < 0.02 * data.y.std()  # both stop within a small share
    assert first.outright(*point) == (not psd)
    if not psd:
        assert first.rows.walks <= 3  # the survey, the rows, and the matrix of products
    loss = first.recorded(*point).history[-1].loss
    assert loss == pytest.approx(single.history_[-1].loss, rel=1e-3)
