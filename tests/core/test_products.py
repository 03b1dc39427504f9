"""A few products beside the low-rank part: the same function in every unit."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from problems import random_model
from quadlin.core.block import Block
from quadlin.core.chunks import MemorySource
from quadlin.core.model import Products, in_units, predict, to_raw
from quadlin.core.standardise import UnitsMaker
from quadlin.core.survey import survey


def units_of_rows(X, y):
    known = survey(MemorySource(X, y))
    return UnitsMaker("auto", True, X.dtype, "abcdef")(known.features, known.target)


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    X = rng.exponential(size=(50, 6)) * (rng.uniform(size=(50, 6)) < 0.7)
    y = rng.standard_normal(50)
    units = units_of_rows(X, y)
    S = Products(np.array([0, 2, 3]), np.array([4, 5, 3]), np.array([1.0, -2.0, 0.5]), np.ones(3))
    return X, y, units, replace(random_model(6, 2, units.free, rng), products=S)


def test_a_model_with_products_predicts_their_sum_from_dense_and_sparse_rows(problem):
    X, _, units, model = problem
    rows = Block(X, units)
    Z, S = rows.S, model.products
    more = sum(a * (Z[:, i] * Z[:, j] - 1) for i, j, a in zip(S.i, S.j, S.coef, strict=True))
    plain = predict(replace(model, products=None), rows)
    np.testing.assert_allclose(predict(model, rows), plain + more)
    np.testing.assert_allclose(predict(model, Block(csr_array(X), units)), plain + more)


def test_products_in_the_users_units_are_the_same_function(problem):
    X, _, units, model = problem
    raw = to_raw(model, units)
    M = (raw.components.T * raw.eigenvalues) @ raw.components
    M = np.where(np.eye(6) > units.free, 0.0, M)
    for i, j, a in zip(raw.products.i, raw.products.j, raw.products.coef, strict=True):
        M[i, j] += a / 2
        M[j, i] += a / 2
    f = raw.intercept + X @ raw.coef + np.einsum("ni,ij,nj->n", X, M, X)
    expected = units.target.mean + units.target.scale * predict(model, Block(X, units))
    np.testing.assert_allclose(f, expected)


def test_products_in_other_units_are_the_same_function(problem):
    X, y, units, model = problem
    other = units_of_rows(X[:30] * 1.5 + 1, 3 * y[:30] - 2)
    moved = in_units(model, units, replace(other, free=units.free))
    expected = units.target.mean + units.target.scale * predict(model, Block(X, units))
    f = other.target.mean + other.target.scale * predict(moved, Block(X, other))
    np.testing.assert_allclose(f, expected)
