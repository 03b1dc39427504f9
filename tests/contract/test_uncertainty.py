"""Standard errors are those of the formulas of textbooks, and intervals cover what they promise."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.linear_model import PoissonRegressor

from contract.tables import low_rank, planted_pairs, quadratic_columns
from quadlin import FactorizationMachineRegressor, SecondOrderRegressor

TABLE = low_rank(200, 3, 3, sigma=0.5, seed=1)
X, Y = TABLE.X, TABLE.y
LINE = np.column_stack([np.ones(200), X])
NEW = np.random.default_rng(9).uniform(-1, 1, (20, 3))


def ordinary(A, y, weight=None):
    """Return the covariance of least squares, the residual variance and the coefficients."""
    W = np.ones(len(y)) if weight is None else weight
    inverse = np.linalg.inv((A * W[:, None]).T @ A)
    coefficients = inverse @ A.T @ (W * y)
    residual = y - A @ coefficients
    variance = np.sum(W * residual**2) / (np.sum(W) - A.shape[1])
    return inverse * variance, variance, coefficients


def hc3(A, y):
    inverse = np.linalg.inv(A.T @ A)
    residual = y - A @ (inverse @ A.T @ y)
    leverage = np.einsum("ni,ij,nj->n", A, inverse, A)
    return inverse @ ((A * (residual / (1 - leverage))[:, None] ** 2).T @ A) @ inverse


def errors_of(model, d):
    """Return the standard errors in the order of `quadratic_columns`."""
    i, j = np.triu_indices(d)
    pairs = zip(i.tolist(), j.tolist(), strict=True) if model.rank_ else ()
    return [model.intercept_std_, *model.coef_std_, *(model.interaction_std(*p) for p in pairs)]


MODELS = {"line": (0, LINE), "all products": (3, quadratic_columns(X))}


@pytest.mark.smoke
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("uncertainty", [True, "robust"])
def test_standard_errors_are_those_of_dense_least_squares(name, uncertainty):
    rank, A = MODELS[name]
    model = SecondOrderRegressor(rank, alpha=0.0, uncertainty=uncertainty, tol=1e-12).fit(X, Y)
    covariance, variance, _ = ordinary(A, Y)
    expected = hc3(A, Y) if uncertainty == "robust" else covariance
    np.testing.assert_allclose(errors_of(model, 3), np.sqrt(np.diag(expected)), rtol=1e-5)
    assert model.noise_ == pytest.approx(np.sqrt(variance), rel=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_predictions_have_the_spread_of_new_observations(name):
    rank, A = MODELS[name]
    model = SecondOrderRegressor(rank, alpha=0.0, uncertainty=True, tol=1e-12).fit(X, Y)
    covariance, variance, coefficients = ordinary(A, Y)
    B = quadratic_columns(NEW)[:, : A.shape[1]]
    mean, std = model.predict(NEW, return_std=True)
    np.testing.assert_allclose(mean, B @ coefficients, atol=1e-7)
    expected = np.sqrt(variance + np.einsum("ni,ij,nj->n", B, covariance, B))
    np.testing.assert_allclose(std, expected, rtol=1e-6)


def test_the_errors_of_a_machine_of_full_rank_are_those_of_least_squares():
    i, j = np.triu_indices(3, 1)
    A = np.column_stack([LINE, X[:, i] * X[:, j]])
    model = FactorizationMachineRegressor(3, alpha=0.0, uncertainty=True, tol=1e-12).fit(X, Y)
    told = [*model.coef_std_, *(model.interaction_std(a, b) for a, b in ((0, 1), (0, 2), (1, 2)))]
    expected = np.sqrt(np.diag(ordinary(A, Y)[0]))[1:]
    np.testing.assert_allclose(told, expected, rtol=1e-3)


def test_weights_count_as_rows_in_standard_errors():
    weight = np.random.default_rng(0).integers(1, 4, 200)
    options = {"rank": 0, "alpha": 0.0, "uncertainty": True}
    model = SecondOrderRegressor(**options).fit(X, Y, sample_weight=weight.astype(float))
    expected = np.sqrt(np.diag(ordinary(LINE, Y, weight.astype(float))[0]))
    np.testing.assert_allclose(errors_of(model, 3), expected, rtol=1e-6)


@pytest.mark.parametrize("n", [8, 30])
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_intervals_of_few_rows_are_those_of_students_distribution(n, level):
    rng = np.random.default_rng(n)
    rows, A = rng.standard_normal((n, 3)), np.ones((n, 4))
    A[:, 1:] = rows
    y = rows[:, 0] + rng.standard_normal(n)
    options = {"alpha": 0.0, "pairs": None, "uncertainty": True, "extrapolation": "free"}
    model = SecondOrderRegressor(0, **options).fit(rows, y)
    covariance, variance, coefficients = ordinary(A, y)
    B = np.column_stack([np.ones(20), NEW])
    half = stats.t.ppf((1 + level) / 2, n - 4)
    wide = half * np.sqrt(variance + np.einsum("ni,ij,nj->n", B, covariance, B))
    expected = B @ coefficients - wide, B @ coefficients + wide
    np.testing.assert_allclose(model.predict_interval(NEW, level), expected, atol=1e-6)
    frame = model.summary(level=level).to_frame()
    wide = half * np.sqrt(np.diag(covariance))
    order = ["intercept", "x0", "x1", "x2"]
    ends = frame.set_index("term").loc[order, ["low", "high"]].to_numpy().T
    np.testing.assert_allclose(ends, [coefficients - wide, coefficients + wide], atol=1e-6)


@pytest.mark.parametrize("uncertainty", [True, "robust"])
def test_the_summary_has_the_numbers_of_the_attributes(uncertainty):
    table, _ = planted_pairs(300, 4, 1, seed=2)
    model = SecondOrderRegressor(uncertainty=uncertainty).fit(table.X, table.y)
    frame = model.summary(top=20).to_frame().set_index("term")
    assert frame.loc["intercept", "estimate"] == pytest.approx(model.intercept_)
    assert frame.loc["intercept", "std_error"] == pytest.approx(model.intercept_std_)
    for j in range(4):
        assert frame.loc[f"x{j}", "estimate"] == pytest.approx(model.coef_[j], abs=1e-12)
        assert frame.loc[f"x{j}", "std_error"] == pytest.approx(model.coef_std_[j])
    for _, row in frame[frame["second"] != ""].iterrows():
        pair = row["first"], row["second"]
        assert row["estimate"] == pytest.approx(model.interaction(*pair))
        assert row["std_error"] == pytest.approx(model.interaction_std(*pair))
    np.testing.assert_allclose(frame["t"], frame["estimate"] / frame["std_error"])
    assert ((frame["low"] <= frame["estimate"]) & (frame["estimate"] <= frame["high"])).all()


@pytest.mark.filterwarnings("ignore:.*extreme:UserWarning")
def test_robust_errors_are_hc3_beside_a_row_of_high_leverage():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((60, 3))
    y = rows[:, 0] + rows[:, 1] * rows[:, 2] + 0.5 * rng.standard_normal(60)
    rows, y = np.vstack([rows, [[0.0, 20.0, 20.0]]]), np.append(y, 400.3)
    options = {"rank": 0, "alpha": 0.0, "pairs": [(1, 2)], "uncertainty": "robust"}
    model = SecondOrderRegressor(**options).fit(rows, y)
    A = np.column_stack([np.ones(61), rows, rows[:, 1] * rows[:, 2]])
    expected = np.sqrt(hc3(A, y)[-1, -1])
    assert model.interaction_std(1, 2) == pytest.approx(expected, rel=0.01)


# --- coverage -------------------------------------------------------------------------------------
# The share of m independent intervals has a standard error of √(0.95·0.05/m), a margin three.


def covers(low, value, high):
    return np.mean((low <= value) & (value <= high))


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {}], ids=["no penalty", "chosen penalty"])
def test_intervals_of_coefficients_and_observations_cover_at_a_given_rank(options):
    shares = {"coefficients": [], "products": [], "observations": []}
    for seed in range(40):
        table = low_rank(150, 5, 1, sigma=0.5, seed=seed)
        rng = np.random.default_rng(seed)
        model = SecondOrderRegressor(1, uncertainty=True, extrapolation="free", **options)
        model.fit(table.X, table.y)
        half = 1.98 * model.coef_std_
        shares["coefficients"].append(covers(model.coef_ - half, table.w, model.coef_ + half))
        i, j = np.triu_indices(5, 1)
        entries = list(zip(i.tolist(), j.tolist(), strict=True))
        told = np.array([[model.interaction(*p), model.interaction_std(*p)] for p in entries])
        half = 1.98 * told[:, 1]
        shares["products"].append(covers(told[:, 0] - half, 2 * table.M[i, j], told[:, 0] + half))
        new = rng.standard_normal((100, 5))
        low, high = model.predict_interval(new)
        shares["observations"].append(
            covers(low, table.value(new) + 0.5 * rng.standard_normal(100), high)
        )
    # 200 coefficients; 400 products of which five are free in each table; 4,000 observations.
    assert 0.90 < np.mean(shares["coefficients"]) < 0.99
    assert 0.89 < np.mean(shares["products"]) < 0.995
    assert 0.93 < np.mean(shares["observations"]) < 0.97


def test_intervals_of_few_rows_cover_new_observations():
    shares = []
    for seed in range(150):
        rng = np.random.default_rng(seed)
        rows = rng.standard_normal((46, 3))
        y = rows[:, 0] + rng.standard_normal(46)
        options = {"alpha": 0.0, "pairs": None, "uncertainty": True, "extrapolation": "free"}
        model = SecondOrderRegressor(0, **options).fit(rows[:6], y[:6])
        low, high = model.predict_interval(rows[6:])
        shares.append(covers(low, y[6:], high))
    # Shares of one fit have a standard deviation of 0.11; ±1.96 standard deviations cover 80% here.
    assert abs(np.mean(shares) - 0.95) < 0.03


def test_robust_intervals_cover_where_noise_is_unequal_and_others_do_not():
    shares = {True: [], "robust": []}
    for seed in range(60):
        rng = np.random.default_rng(seed)
        rows = rng.uniform(-1, 1, (150, 2))
        y = rows[:, 0] + rows[:, 0] ** 2 * rng.standard_normal(150)
        for uncertainty, share in shares.items():
            model = SecondOrderRegressor(0, alpha=0.0, uncertainty=uncertainty).fit(rows, y)
            half = 1.98 * model.coef_std_[0]
            share.append(covers(model.coef_[0] - half, 1.0, model.coef_[0] + half))
    assert np.mean(shares["robust"]) > 0.86
    assert np.mean(shares[True]) < np.mean(shares["robust"])


def test_linear_terms_beside_a_found_pair_are_as_uncertain_as_the_rows_leave_them():
    excluded = []
    for seed in range(16):
        rng = np.random.default_rng(seed)
        rows = rng.standard_normal((300, 6))
        y = rows[:, 0] * rows[:, 1] + 0.5 * rng.standard_normal(300)
        model = SecondOrderRegressor(uncertainty=True).fit(rows, y)
        frame = model.summary(top=10).to_frame().set_index("term")
        excluded.append(frame["t"].abs().loc[[f"x{i}" for i in range(6)]] > 1.97)
    assert np.mean(excluded) < 0.14  # 5% of 96, and four standard errors


# --- other losses ---------------------------------------------------------------------------------


def counted(n=500):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((n, 3))
    return rows, rng.poisson(np.exp(0.3 + 0.5 * rows[:, 0] - 0.3 * rows[:, 1])).astype(float)


def test_errors_of_counts_are_those_of_fishers_information():
    rows, y = counted()
    options = {"loss": "poisson", "alpha": 0.0, "uncertainty": True, "tol": 1e-12}
    model = SecondOrderRegressor(0, **options).fit(rows, y)
    A = np.column_stack([np.ones(500), rows])
    mean = PoissonRegressor(alpha=0, tol=1e-10, solver="newton-cholesky").fit(rows, y).predict(rows)
    inverse = np.linalg.inv(A.T @ (A * mean[:, None]))
    np.testing.assert_allclose(errors_of(model, 3), np.sqrt(np.diag(inverse)), rtol=1e-5)
    told, std = model.predict(rows, return_std=True)
    spread = np.sqrt(mean + mean**2 * np.einsum("ni,ij,nj->n", A, inverse, A))
    np.testing.assert_allclose(std, spread, rtol=1e-5)
    np.testing.assert_allclose(told, mean, rtol=1e-5)


def test_intervals_of_counts_are_counts_and_cover():
    rows, y = counted(2500)
    model = SecondOrderRegressor(0, loss="poisson", uncertainty=True, extrapolation="free")
    low, high = model.fit(rows[:500], y[:500]).predict_interval(rows[500:], 0.8)
    assert (low >= 0).all()
    assert (high == high.round()).all()
    truth = stats.poisson(np.exp(0.3 + 0.5 * rows[500:, 0] - 0.3 * rows[500:, 1]))
    ideal = covers(truth.ppf(0.1), y[500:], truth.ppf(0.9))
    assert abs(covers(low, y[500:], high) - ideal) < 0.03  # three standard errors of 2,000


def test_intervals_of_hubers_loss_cover_in_spite_of_gross_errors():
    shares = []
    for seed in range(20):
        table = low_rank(200, 3, 1, sigma=0.5, seed=seed)
        y = table.y.copy()
        y[:6] += 50
        options = {"loss": "huber", "alpha": 0.0, "uncertainty": True}
        model = SecondOrderRegressor(1, **options).fit(table.X, y)
        half = 1.98 * model.coef_std_
        shares.append(covers(model.coef_ - half, table.w, model.coef_ + half))
    assert np.mean(shares) > 0.85  # 60 coefficients


def test_standard_errors_must_be_asked_for():
    model = SecondOrderRegressor(0, pairs=None).fit(X, Y)
    for ask in (
        lambda: model.coef_std_,
        lambda: model.interaction_std(0, 1),
        lambda: model.predict_interval(X),
        lambda: model.predict(X, return_std=True),
    ):
        with pytest.raises(AttributeError, match="uncertainty"):
            ask()
    with pytest.raises(ValueError, match="level"):
        SecondOrderRegressor(0, uncertainty=True).fit(X, Y).predict_interval(X, 95)


def test_a_missing_value_adds_the_mean_square_of_what_it_could_change():
    model = SecondOrderRegressor(3, alpha=0.0, uncertainty=True, missing="mean").fit(X, Y)
    for column in range(3):
        gap, other = X[:20].copy(), np.repeat(X[:20], len(X), axis=0)
        gap[:, column], other[:, column] = np.nan, np.tile(X[:, column], 20)
        f, std = model.predict(gap, return_std=True)
        mean = np.nan_to_num(gap, nan=X[:, column].mean())
        change = (model.predict(other).reshape(20, -1) - f[:, None]) ** 2
        added = std**2 - model.predict(mean, return_std=True)[1] ** 2
        np.testing.assert_allclose(added, change.mean(axis=1), rtol=1e-6)


@pytest.mark.parametrize(("rate", "short"), [(0.02, 0.02), (0.1, 0.02), (0.25, 0.035)])
def test_intervals_cover_complete_and_incomplete_rows_of_a_fit_with_missing_values(rate, short):
    # A column that is filled with its mean loses variance, so the intervals of incomplete rows
    # are a little short where many values are missing.
    noise, shares = [], {"complete": [], "incomplete": []}
    for seed in range(12):
        rng = np.random.default_rng(seed)
        rows = rng.standard_normal((1400, 4))
        y = 2 * rows[:, 0] + rows[:, 1] * rows[:, 2] + rng.standard_normal(1400)
        rows[rng.random(rows.shape) < rate] = np.nan
        model = SecondOrderRegressor(missing="mean", uncertainty=True, extrapolation="free")
        model.fit(rows[:400], y[:400])
        low, high = model.predict_interval(rows[400:])
        inside, gaps = (low <= y[400:]) & (y[400:] <= high), np.isnan(rows[400:]).any(axis=1)
        shares["complete"].append(np.mean(inside[~gaps]))
        shares["incomplete"].append(np.mean(inside[gaps]))
        noise.append(model.noise_)
    # σ of 400 rows is itself uncertain by 3.5%, the mean of twelve by 1%.
    assert 0.97 < np.mean(noise) < 1.06
    assert abs(np.mean(shares["complete"]) - 0.95) < 0.02
    assert abs(np.mean(shares["incomplete"]) - 0.95) < short


def test_a_new_level_adds_the_mean_square_of_what_known_levels_change():
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(city=list("ABCDE") * 40)
    y = Y + frame.city.map(dict(zip("ABCDE", range(5), strict=True))) * (1 + frame.a)
    model = SecondOrderRegressor(2, alpha=0.1, uncertainty=True).fit(frame, y)
    new = frame.head(20)
    with pytest.warns(UserWarning, match="did not see"):
        f, std = model.predict(new.assign(city="Z"), return_std=True)
    changes = [(model.predict(new.assign(city=level)) - f) ** 2 for level in "ABCDE"]
    assert (std**2 >= 0.99 * np.mean(changes, axis=0)).all()
    np.testing.assert_allclose(std**2 - np.mean(changes, axis=0), model.noise_**2, rtol=0.5)
