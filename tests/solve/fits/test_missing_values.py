"""What missing values that were filled cost a prediction, beside draws of what they could be."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from quadlin import SecondOrderRegressor, load, open_source, save
from quadlin.data.columns.columns import fill_for
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


@pytest.mark.parametrize("kwargs", [{}, {"loss": "huber"}, {"uncertainty": "robust"}])
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_intervals_of_rows_with_missing_values_cover_what_they_promise(kwargs, correlation):
    rng = np.random.default_rng(3)
    X, y, _ = rows(3000, rng, correlation=correlation)
    T, target, absent = rows(6000, rng, correlation=correlation)
    options = {"missing": "mean", "uncertainty": True, "rank": 3, "pairs": None, **kwargs}
    model = SecondOrderRegressor(**options).fit(X, y)
    f, std = model.predict(T, return_std=True)
    inside = np.abs(f - target) <= 1.96 * std
    some = absent.any(1)
    # About 2,460 rows have missing values and 600 that of a column: ±.013 and ±.027 are three
    # standard errors at 95%. Mixtures of slopes are not Gaussian; they were at 20 to 75% before.
    assert inside[~some].mean() == pytest.approx(0.95, abs=0.02)
    assert inside[some].mean() == pytest.approx(0.95, abs=0.025)
    assert all(inside[absent[:, j]].mean() > 0.9 for j in range(D))
    assert model.noise_ == pytest.approx(1.0, rel=0.15)  # drawn with 1


def test_complete_rows_have_the_intervals_of_a_fit_without_missing_values(fitted):
    X, y, _ = rows(3000, np.random.default_rng(0), missing=0.0)
    T = rows(100, np.random.default_rng(5), missing=0.0)[0]
    whole = SecondOrderRegressor(missing="mean", uncertainty=True).fit(X, y)
    assert whole.fitted_.law.gaps is None
    # Of 3,000 rows 59% are complete: their noise is known to 1.7%, that of all rows to 1.3%.
    ratio = fitted.predict(T, return_std=True)[1] / whole.predict(T, return_std=True)[1]
    assert np.abs(ratio - 1).max() < 0.15


def test_where_hardly_a_row_is_complete_the_noise_is_what_missing_values_leave_over():
    X, y, absent = rows(2000, np.random.default_rng(6), missing=0.5)
    X[~absent.any(1), 4] = np.nan
    model = SecondOrderRegressor(missing="mean", uncertainty=True, rank=3, pairs=None).fit(X, y)
    law = model.fitted_.law
    assert 0.5 * law.noise <= law.gaps.noise < 0.9 * law.noise
    T, target, _ = rows(4000, np.random.default_rng(7), missing=0.5)
    f, std = model.predict(T, return_std=True)
    assert np.mean(np.abs(f - target) <= 1.96 * std) > 0.93


def test_all_kinds_of_rows_have_the_same_intervals(fitted, tmp_path):
    X, _, _ = rows(60, np.random.default_rng(8), missing=0.3)
    std = fitted.predict(X, return_std=True)[1]
    save(fitted, tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(again.predict(X, return_std=True)[1], std)
    np.testing.assert_allclose(fitted.predict(csr_array(X), return_std=True)[1], std, rtol=1e-12)
    source = open_source(X, fill=fitted.fill_, missing="mean")
    chunks = fitted.predict_chunks(source, return_std=True)
    np.testing.assert_allclose(np.concatenate([s for _, _, s in chunks]), std, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("make", [np.asarray, csr_array])
def test_a_value_that_happens_to_be_the_mean_is_not_missing(dtype, make):
    rng = np.random.default_rng(9)
    X = np.tile([[-1, 0], [0, 1], [1, 2], [-1, 2], [0, 0], [1, 1]], (50, 1)).astype(dtype)
    y = (X @ [3.0, 1.0] + 0.1 * rng.normal(size=300)).astype(dtype)
    X[0, 0] = X[1, 0] = X[2, 0] = np.nan  # the mean of the others is exactly 0
    model = SecondOrderRegressor(missing="mean", uncertainty=True, rank=0).fit(make(X), y)
    there = np.array([[0, 1], [1, 1], [0, 0]], dtype)
    std = model.predict(make(there), return_std=True)[1]
    assert std.max() < 0.12
    gap = np.array([[np.nan, 1]], dtype)
    spread = model.predict(make(gap), return_std=True)[1]
    assert spread[0] == pytest.approx(3 * np.sqrt(2 / 3), rel=0.05)


def test_a_model_told_later_to_fill_knows_what_that_costs():
    rng = np.random.default_rng(10)
    X = rng.normal(size=(500, 2))
    y = X @ [2.0, 1.0] + 0.1 * rng.normal(size=500)
    model = SecondOrderRegressor(rank=0, uncertainty=True).fit(X, y)
    model.set_params(missing="mean")
    std = model.predict([[np.nan, 0.5], [0.3, 0.5]], return_std=True)[1]
    assert std[0] == pytest.approx(2 * X[:, 0].std(), rel=0.02)
    assert std[1] < 0.12


def test_counts_vary_more_where_a_value_is_missing():
    rng = np.random.default_rng(11)
    X = rng.normal(size=(2000, 2))
    y = rng.poisson(np.exp(2 + 0.5 * X[:, 0] + 0.1 * X[:, 1]))
    X[::10, 0] = np.nan
    model = SecondOrderRegressor(loss="poisson", rank=0, missing="mean", uncertainty=True)
    mean, std = model.fit(X, y).predict([[np.nan, 0.0], [0.0, 0.0]], return_std=True)
    assert std[1] == pytest.approx(np.sqrt(mean[1]), rel=0.02)
    slope = float(model.coef_[0]) * mean[0]  # √(mean + slope²) about the mean
    assert std[0] == pytest.approx(np.sqrt(mean[0] + slope**2), rel=0.05)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mean", [0.0, 3.0, -2.5, 1234567.0, 0.1, 1e9])
def test_a_fill_is_no_number_that_people_write_and_as_good_as_the_mean(mean, dtype):
    fill = fill_for(float(dtype(mean)), True, dtype)
    assert float(dtype(fill)) == fill != dtype(mean)
    assert abs(fill - mean) <= 1e-6 * abs(mean) + 1e-30
    assert fill_for(mean, False, dtype) == mean
