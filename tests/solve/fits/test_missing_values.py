"""What missing values that were filled cost a prediction, beside draws of what they could be."""

import numpy as np
import pytest

from quadlin import SecondOrderRegressor
from quadlin.solve.fits.missing_values import missing_variance

D = 5


def rows(n, rng, missing=0.1, correlation=0.0):
    """Return rows far from zero, of two skewed and three normal columns, targets, and what is
    missing: a product, a square and slopes of columns that are sometimes missing."""
    shared = rng.normal(size=(n, 1))
    Z = np.sqrt(1 - correlation) * rng.normal(size=(n, D)) + np.sqrt(correlation) * shared
    Z[:, 3:] = rng.gamma(2.0, size=(n, 2)) - 2
    y = 1 + Z @ [3.0, -2.0, 1.0, 0.5, 0.0] + 2 * Z[:, 0] * Z[:, 1] + Z[:, 2] ** 2
    y = y + Z[:, 1] * Z[:, 3] + rng.normal(size=n)
    absent = rng.random((n, D)) < missing
    return np.where(absent, np.nan, Z + 10), y, absent


@pytest.fixture(scope="module")
def fitted():
    X, y, _ = rows(3000, np.random.default_rng(0))
    return SecondOrderRegressor(missing="mean", uncertainty=True).fit(X, y)


def test_the_variance_is_the_mean_square_over_values_that_a_missing_one_could_have(fitted):
    state, fill = fitted.fitted_.state, fitted.fitted_.fill_values
    X, _, absent = rows(40, np.random.default_rng(1), missing=0.5)
    X = np.where(absent, fill, X)
    gaps = fitted.fitted_.law.gaps
    variance = missing_variance(state.model, state.units, X, fill, gaps)
    # Columns drawn apart from each other, from the values that the fit saw.
    rng = np.random.default_rng(2)
    seen = rows(3000, np.random.default_rng(0))[0]
    columns = [seen[~np.isnan(seen[:, j]), j] for j in range(D)]
    other = np.column_stack([rng.choice(column, 40 * 3000) for column in columns])
    drawn = fitted.predict(np.where(np.tile(absent, (3000, 1)), other, np.tile(X, (3000, 1))))
    squares = (drawn.reshape(3000, 40) - fitted.predict(X)) ** 2
    expected, error = squares.mean(0), squares.std(0) / np.sqrt(3000)
    scaled = state.units.target.scale**2 * variance
    assert (scaled[~absent.any(1)] == 0).all()
    # Four standard errors of the draws, for 40 rows; the moments of the fit are rounded sums.
    assert (np.abs(scaled - expected) <= 4 * error + 1e-6 * expected).all()
