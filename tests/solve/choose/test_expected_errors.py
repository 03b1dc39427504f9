"""Errors of rows left out that are expected before any pass, against their definition."""

import numpy as np
import pytest

from quadlin.core.chunks import MemorySource
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.choose.expected_errors import expected_error, expected_errors
from quadlin.solve.lowrank.tangent_gram import columns, product_kernel, tangent_gram
from quadlin.solve.lowrank.types import Options

ALPHA = (0.7, 1.9)


def problem(d, intercept=True, n=14):
    rng = np.random.default_rng(4)
    X, y = rng.standard_normal((n, d)), rng.standard_normal(n)
    rows = Rows.of(MemorySource(X, y, np.linspace(0.2, 3, n)))
    surveyed = rows.reduce(survey)
    units = UnitsMaker("auto", intercept, np.float64, None)(surveyed.features, surveyed.target)
    options = Options(rank=0, fit_intercept=intercept)
    return rows, units, tangent_gram(rows, units, options, np.eye(d))


@pytest.mark.parametrize("factors", [(1.0,), (1.0, 0.05, 20.0)])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("d", [1, 3])
def test_errors_are_expected_as_if_all_leverages_were_the_same(factors, intercept, d):
    rows, units, gram = problem(d, intercept)
    chunk = next(iter(rows.walk()))
    A = columns(chunk, units, gram.options, gram.basis)[:, int(not intercept) :]
    F, y, weight = A[:, :-1], A[:, -1], chunk.weight
    all_expected = expected_errors(gram, ALPHA, weight.sum(), factors)
    for factor, expected in zip(factors, all_expected, strict=True):
        R = np.diag(factor * gram.penalty(ALPHA))
        smoother = np.linalg.solve(F.T @ (weight[:, None] * F) + R, F.T * weight)
        mean_leverage = np.trace(F @ smoother) / weight.sum()
        error = weight @ (y - F @ (smoother @ y)) ** 2 / weight.sum() / (1 - mean_leverage) ** 2
        assert expected == pytest.approx(error, rel=1e-9)


@pytest.mark.parametrize("factors", [(1.0,), (1.0, 0.05, 20.0)])
def test_products_of_rows_tell_the_same_as_products_of_columns(factors):
    rows, units, gram = problem(3)
    weight = next(iter(rows.walk())).weight.sum()
    kernel, _ = product_kernel(rows, units, 8, weight)  # fewer rows than products, it is told
    expected = expected_errors(gram, ALPHA, weight, factors)
    np.testing.assert_allclose(expected_errors(kernel, ALPHA, weight, factors), expected, rtol=1e-8)


def test_the_evidence_tells_the_same_without_more_work():
    rows, _, gram = problem(3)
    weight = next(iter(rows.walk())).weight.sum()
    at = gram.centred(weight).at(np.log(ALPHA))
    expected = expected_errors(gram, ALPHA, weight, (1.0, 2.0))[0]
    assert expected_error(at, weight, True) == pytest.approx(expected, rel=1e-9)
    without_slope = gram.centred(weight).at(np.log(ALPHA), gradient=False)
    assert expected_error(without_slope, weight, True) is None


def test_a_target_that_no_column_knows_of_has_its_variance():
    rows, _, gram = problem(3)
    weight = next(iter(rows.walk())).weight.sum()
    products = gram.products.copy()
    products[-1, 1:-1] = products[1:-1, -1] = products[0, -1] * products[0, 1:-1] / products[0, 0]
    unrelated = type(gram)(gram.basis, products, gram.options)
    power = products[-1, -1] - products[0, -1] ** 2 / products[0, 0]
    for error in expected_errors(unrelated, ALPHA, weight, (0.1, 1.0)):
        assert error > power / weight  # as leverages cost a little
