"""Intervals of few rows are wider than 1.96 standard errors, as Student's distribution says."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import poisson
from scipy.stats import t as student

from quadlin import FactorizationMachineRegressor, SecondOrderRegressor, load, save


def line(n, d, rng):
    X = rng.standard_normal((n, d))
    return X, 3 + X[:, 0] - X[:, 1] + 0.7 * rng.standard_normal(n)


def least_squares(X, y, new, level):
    """Return the intervals of ordinary least squares for new rows and for the coefficients."""
    A, B = (np.column_stack([np.ones(len(a)), a]) for a in (X, new))
    beta, inverse = np.linalg.lstsq(A, y)[0], np.linalg.inv(A.T @ A)
    left = len(y) - A.shape[1]
    noise = np.sum((y - A @ beta) ** 2) / left
    reach = student.ppf((1 + level) / 2, left)
    far = reach * np.sqrt(noise * (1 + np.einsum("ij,jk,ik->i", B, inverse, B)))
    width = reach * np.sqrt(noise * np.diag(inverse))
    return (B @ beta - far, B @ beta + far), (beta - width, beta + width)


@pytest.mark.parametrize(("n", "d"), [(5, 3), (8, 4), (30, 4)])
def test_intervals_of_few_rows_are_those_of_least_squares(n, d, tmp_path):
    rng = np.random.default_rng(0)
    (X, y), (new, _) = line(n, d, rng), line(20, d, rng)
    model = SecondOrderRegressor(
        0, alpha=0.0, pairs=None, uncertainty=True, tol=1e-12, extrapolation="free"
    ).fit(X, y)
    save(model, tmp_path / "m.safetensors")
    for level in (0.5, 0.95):
        rows, coefficients = least_squares(X, y, new, level)
        for each in (model, load(tmp_path / "m.safetensors")):
            np.testing.assert_allclose(each.predict_interval(new, level), rows, atol=1e-6)
        frame = model.summary(level=level).to_frame()
        np.testing.assert_allclose([frame["low"], frame["high"]], coefficients, atol=1e-6)


def test_intervals_of_few_rows_cover_new_observations():
    rng = np.random.default_rng(0)
    covered = {True: [], False: []}
    for _ in range(300):
        X, y = line(56, 3, rng)
        for chosen in covered:
            options = {} if chosen else {"alpha": 0.0}
            model = SecondOrderRegressor(0, pairs=None, uncertainty=True, **options).fit(
                X[:6], y[:6]
            )
            low, high = model.predict_interval(X[6:])
            covered[chosen].append(np.mean((low < y[6:]) & (y[6:] < high)))
    # The standard error of a mean of 300 shares, each with a standard deviation of .11, is .6%;
    # ±1.96 standard deviations cover 80%. A penalty that was chosen from six rows is not certain.
    assert abs(np.mean(covered[False]) - 0.95) < 0.02
    assert np.mean(covered[True]) > 0.88


def test_coefficients_that_the_choice_leaves_out_may_be_small_effects():
    rng, covered, means = np.random.default_rng(0), [], 0
    for _ in range(60):
        X, w = rng.standard_normal((20, 5)), 0.3 * rng.standard_normal(5)
        y = X @ w + rng.standard_normal(20)
        model = SecondOrderRegressor(0, uncertainty=True, random_state=0).fit(X, y)
        frame = model.summary().to_frame()[1:]
        covered.append((frame["low"] < w) & (w < frame["high"]))
        if np.allclose(model.coef_, 0, atol=1e-6):
            means += 1
            assert "shrinks all linear terms to zero" in str(model.summary())
    assert means > 10
    # The share of 300 coefficients is 95% ± 2.6%; with standard errors of zero it was 37%.
    assert np.mean(covered) > 0.9


def test_unknown_standard_errors_have_their_cause():
    rng = np.random.default_rng(0)
    X, y = line(30, 40, rng)
    few = SecondOrderRegressor(0, alpha=0.0, pairs=None, uncertainty=True)
    with pytest.warns(UserWarning, match="as many effective parameters as there are rows, 30"):
        few.fit(X, y)
    with pytest.warns(UserWarning, match="weights.*sum to only 0.3 for 30 rows"):
        few.fit(X[:, :2], y, sample_weight=np.full(30, 0.01))


def test_intervals_of_counts_are_counts_that_cover():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 2))
    y = rng.poisson(np.exp(-0.5 + 0.5 * X[:, 0]))
    model = SecondOrderRegressor(0, loss="poisson", uncertainty=True).fit(X[:1000], y[:1000])
    low, high = model.predict_interval(X[1000:], 0.8)
    assert low.min() == 0
    assert (high == high.round()).all()
    # Counts are discrete, so that intervals cover more than 80%: as those of the true means do.
    truth = poisson(np.exp(-0.5 + 0.5 * X[1000:, 0]))
    shares = [
        np.mean((a <= y[1000:]) & (y[1000:] <= b))
        for a, b in ((low, high), (truth.ppf(0.1), truth.ppf(0.9)))
    ]
    assert abs(shares[0] - shares[1]) < 0.02  # three standard errors of a share of 2,000


def test_intervals_of_draws_are_normal():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"u": rng.choice(list("abcdef"), 400), "i": rng.choice(list("klm"), 400)})
    y = (frame.u == "a") + rng.standard_normal(400)
    machine = FactorizationMachineRegressor(2, draws=50, random_state=0).fit(frame, y)
    mean, std = machine.predict(frame, return_std=True)
    low, high = machine.predict_interval(frame)
    np.testing.assert_allclose([low, high], [mean - 1.959964 * std, mean + 1.959964 * std])


def test_intervals_need_standard_errors_and_a_probability():
    rng = np.random.default_rng(0)
    X, y = line(50, 2, rng)
    with pytest.raises(AttributeError, match="uncertainty=True"):
        SecondOrderRegressor().fit(X, y).predict_interval(X)
    with pytest.raises(ValueError, match="level=95 must lie between 0 and 1"):
        SecondOrderRegressor(uncertainty=True).fit(X, y).predict_interval(X, 95)


def test_linear_terms_beside_pairs_are_as_uncertain_as_the_rows_leave_them():
    excluded = []
    for seed in range(16):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(300, 6))
        y = X[:, 0] * X[:, 1] + 0.5 * rng.normal(size=300)
        model = SecondOrderRegressor(random_state=0, uncertainty=True).fit(X, y)
        rows = model.summary(top=10).to_frame().set_index("term")
        excluded.append((rows["t"].abs() > 1.97).loc[[f"x{i}" for i in range(6)]].to_numpy())
    # Of 96 intervals 5% exclude the truth, with a standard error of 2.2%. A third of those of x0
    # and x1 did where the penalty leaves nothing of the lines, with t up to 42.
    assert np.mean(excluded) < 0.14
    assert np.mean(excluded, axis=0).max() < 0.3
