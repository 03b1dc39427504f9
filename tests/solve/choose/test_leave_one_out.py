"""Errors of rows left out, against fits without each of them."""

import numpy as np
import pytest

from quadlin.core.chunks import MemorySource
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.lowrank.design import Design
from quadlin.solve.lowrank.linear_model import Gram, Kernel
from quadlin.solve.lowrank.types import Options

ALPHA = (0.7, 1.9)


def problem(n=14, d=3, weight=None, **options):
    rng = np.random.default_rng(4)
    X, y = rng.standard_normal((n, d)), rng.standard_normal(n)
    rows = Rows.of(MemorySource(X, y, weight))
    surveyed = rows.reduce(survey)
    make = UnitsMaker("auto", options.get("fit_intercept", True), np.float64, None)
    units = make(surveyed.features, surveyed.target)
    return rows, units, Options(rank=0, **options)


def gram_of(rows, units, options, U):
    return Gram.of(rows, Design.at(U, units, options))


def refitted(rows, units, options, gram):
    """Return the weighted squared error of each row under a fit of the others."""
    chunk = next(iter(rows.walk()))
    A, ridge = gram.design.columns(chunk), gram.ridge(gram.of_groups(ALPHA))
    if options.fit_intercept:
        ridge = np.append(0.0, ridge)
    else:
        A = A[:, 1:]
    weight = np.ones(len(A)) if chunk.weight is None else chunk.weight
    R, squares = np.diag(ridge), []
    for i in range(len(A)):
        others = np.arange(len(A)) != i
        F, y, w = A[others, :-1], A[others, -1], weight[others]
        theta = np.linalg.solve(F.T @ (w[:, None] * F) + R, F.T @ (w * y))
        squares.append(weight[i] * (A[i, -1] - A[i, :-1] @ theta) ** 2)
    return np.array(squares)


@pytest.mark.parametrize("k", [0, 1, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("parts", [{}, {"fit_linear": False}, {"fit_intercept": False}])
def test_rows_left_out_have_the_errors_of_fits_without_them(k, weighted, parts):
    weight = np.linspace(0.2, 3, 14) if weighted else None
    rows, units, options = problem(weight=weight, **parts)
    U = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))[0][:, :k]
    gram = gram_of(rows, units, options, U)
    squares = refitted(rows, units, options, gram)
    by_row = gram.left_out(rows, ALPHA).squares
    np.testing.assert_allclose(by_row, squares, rtol=1e-8)


@pytest.mark.parametrize("weighted", [False, True])
def test_products_of_rows_give_the_same_errors_as_products_of_columns(weighted):
    weight = np.linspace(0.2, 3, 14) if weighted else None
    rows, units, options = problem(weight=weight)
    gram = gram_of(rows, units, options, np.eye(3))
    by_row = Kernel.of(rows, units).left_out(rows, ALPHA).squares
    others = gram.left_out(rows, ALPHA).squares
    np.testing.assert_allclose(by_row, others, rtol=1e-8)


def test_rows_without_weight_have_no_error():
    weight = np.linspace(0.2, 3, 14)
    weight[[2, 5]] = 0.0
    rows, units, options = problem(weight=weight)
    gram = gram_of(rows, units, options, np.eye(3))
    by_row = gram.left_out(rows, ALPHA).squares
    assert len(by_row) == 12
    others = Kernel.of(rows, units).left_out(rows, ALPHA).squares
    np.testing.assert_allclose(by_row, others, rtol=1e-8)
