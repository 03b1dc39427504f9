"""Gross errors in y, heavy tails in x, text columns and the diagnosis, as a user meets them."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import OneHotEncoder

from problems import AfterSteps
from quadlin import SecondOrderRegressor, open_source
from quadlin.datasets import make_second_order
from quadlin.metrics import nmse


def with_outliers(y, share=0.01, size=1e4, seed=0):
    rng = np.random.default_rng(seed)
    bad = rng.uniform(size=len(y)) < share
    return np.where(bad, y + size * rng.standard_normal(len(y)), y)


@pytest.mark.parametrize("kind", ["gaussian", "mixed"])
def test_gross_errors_in_y_hardly_move_a_huber_fit(kind):
    data = make_second_order(
        4000, 20, rank=2, distribution=kind, noise=0.3, n_test=2000, random_state=0
    )
    dirty = with_outliers(data.y)
    clean = SecondOrderRegressor(rank=2, random_state=0, alpha=0.0).fit(data.X, data.y)
    huber = SecondOrderRegressor(rank=2, loss="huber", random_state=0, alpha=0.0).fit(data.X, dirty)
    squares = SecondOrderRegressor(rank=2, random_state=0, alpha=0.0).fit(data.X, dirty)
    error = [nmse(data.y_test, m.predict(data.X_test)) for m in (clean, huber, squares)]
    assert error[1] < 1.5 * error[0]
    assert error[2] > 100 * error[0]


def dense_huber(F, y):
    """Return the predictions of a Huber fit with columns F, iterated to its end."""
    f = np.full(len(y), np.median(y))
    for _ in range(500):
        size = np.abs(y - f)
        sigma = 1.4826 * np.sort(size)[(len(y) - 1) // 2]
        # What is far away counts linearly, however far: for the sake of rounding it comes nearer.
        near = f + np.clip(y - f, -50 * sigma, 50 * sigma)
        root = np.sqrt(np.minimum(1, 1.345 * sigma / np.abs(near - f)))
        f = F @ np.linalg.lstsq(F * root[:, None], root * near, rcond=None)[0]
    return f


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("polish", [True, False])
@pytest.mark.parametrize(
    ("size", "count"), [(0.0, 20), (1e2, 20), (1e6, 20), (1e12, 20), (1e14, 1), (1e20, 1)]
)
def test_gross_errors_of_any_size_leave_the_optimum_of_hubers_loss(size, count, polish, dtype):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 4)).astype(dtype)
    i, j = np.triu_indices(4)
    F = np.column_stack([np.ones(400), X, X[:, i] * X[:, j]]).astype(float)
    y = F @ rng.standard_normal(F.shape[1]) + rng.standard_normal(400)  # noise of size 1
    y[:count] += size * rng.choice([-1, 1], count) * rng.uniform(0.5, 1.5, count)
    model = SecondOrderRegressor(
        rank=4, loss="huber", polish=polish, random_state=0, alpha=0.0
    ).fit(X, y)
    assert np.max(np.abs(model.predict(X) - dense_huber(F, y))) < 2e-3


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_signal_with_heavy_tails_is_no_gross_error(noise):
    # The largest y is 18,000 times the median size.
    rng = np.random.default_rng(0)
    X = rng.lognormal(0, 1.5, size=(3000, 10))
    Q = np.linalg.qr(rng.standard_normal((10, 2)))[0]
    f = 1 + X @ rng.standard_normal(10) + ((X @ Q) ** 2) @ [1.0, -1.0]
    y = f + noise * rng.standard_normal(3000)
    y[:50] += 1e4
    # New rows lie far outside the training rows, and the truth is a quadratic there too.
    options = {"rank": 2, "alpha": 0.0, "loss": "huber", "extrapolation": "free"}
    model = SecondOrderRegressor(random_state=0, **options).fit(X[:2000], y[:2000])
    assert nmse(f[2000:], model.predict(X[2000:])) < 1e-6


def test_without_noise_outliers_are_ignored_altogether():
    data = make_second_order(3000, 15, rank=2, n_test=500, random_state=0)
    model = SecondOrderRegressor(rank=2, loss="huber", random_state=0, alpha=0.0)
    model.fit(data.X, with_outliers(data.y))
    assert nmse(data.y_test, model.predict(data.X_test)) < 1e-6


def test_the_penalty_of_a_stream_is_that_of_all_its_rows():
    # The first batch is shrunk by α/n₁, and has a share n₁/N in the running mean: α/N in all, up
    # to the second order and the shape of the steps, which is why the margin is wide.
    data = make_second_order(12000, 20, rank=2, noise=1.0, random_state=0)

    def moved(alpha, streamed):
        model = SecondOrderRegressor(2, alpha=alpha, batch_size=2000, tol=1e-8, random_state=0)
        if streamed:
            for part in np.split(np.arange(12000), 24):
                model.partial_fit(data.X[part], data.y[part])
        else:
            model.fit(data.X, data.y)
        M = model.components_.T * model.eigenvalues_ @ model.components_
        return np.concatenate([M[np.triu_indices(20)], model.coef_])

    table, stream = (moved(200.0, s) - moved(0.0, s) for s in (False, True))
    assert np.linalg.norm(stream) == pytest.approx(np.linalg.norm(table), rel=0.3)
    assert table @ stream > 0.8 * np.linalg.norm(stream) * np.linalg.norm(table)


def test_huber_is_least_squares_for_weights_that_repeat():
    data = make_second_order(400, 5, rank=1, noise=0.5, random_state=0)
    weight = np.random.default_rng(0).integers(0, 3, 400)
    again = np.repeat(np.arange(400), weight)
    a = SecondOrderRegressor(rank=1, loss="huber", random_state=0, alpha=0.0)
    b = SecondOrderRegressor(rank=1, loss="huber", random_state=0, alpha=0.0)
    a.fit(data.X, data.y, sample_weight=weight)
    b.fit(data.X[again], data.y[again])
    np.testing.assert_allclose(a.predict(data.X), b.predict(data.X), atol=1e-4)


@pytest.mark.parametrize("tail", ["lognormal", "student"])
def test_heavy_tails_in_x_are_no_obstacle(tail):
    rng = np.random.default_rng(0)
    X = rng.lognormal(size=(6000, 20)) if tail == "lognormal" else rng.standard_t(5, (6000, 20))
    Q = np.linalg.qr(rng.standard_normal((20, 2)))[0]
    f = 1 + X @ rng.standard_normal(20) + ((X @ Q) ** 2) @ [1.0, -1.0]
    y = f + 0.1 * np.std(f) * rng.standard_normal(6000)
    model = SecondOrderRegressor(rank=2, random_state=0, alpha=0.0).fit(X[:4000], y[:4000])
    assert nmse(f[4000:], model.predict(X[4000:])) < 0.01


def table(n, frame, seed=0):
    rng = np.random.default_rng(seed)
    city, colour = rng.choice(list("abcde"), n), rng.choice(["red", "blue", "green"], n)
    size = rng.standard_normal(n)
    y = np.where(city == "a", 2.0, 0.0) * np.where(colour == "red", 1.0, -1.0) + size**2
    return frame({"city": city, "size": size, "colour": colour}), y


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_text_columns_become_fields(frame):
    X, y = table(1500, frame)
    model = SecondOrderRegressor(rank=4, random_state=0, alpha=0.0).fit(X, y)
    assert model.score(*table(500, frame, 1)) > 1 - 1e-8
    assert model.n_features_in_ == 3
    assert list(model.feature_names_in_) == ["city", "size", "colour"]
    assert model.interaction("city=a", "city=b") == 0  # never both
    pairs = {(p.first, p.second) for p in model.interactions_.top(30)}
    assert all(a.split("=")[0] != b.split("=")[0] for a, b in pairs)


def test_text_columns_are_what_one_hot_encoding_makes_of_them():
    X, y = table(800, pd.DataFrame)
    encoded = np.column_stack(
        [OneHotEncoder(sparse_output=False).fit_transform(X[["city"]]), X["size"],
         OneHotEncoder(sparse_output=False).fit_transform(X[["colour"]])]
    )  # fmt: skip
    a = SecondOrderRegressor(rank=2, random_state=0, alpha=0.0).fit(X, y)
    b = SecondOrderRegressor(rank=2, random_state=0, alpha=0.0).fit(encoded, y)
    np.testing.assert_allclose(a.predict(X), b.predict(encoded), atol=1e-8)
    assert b.interaction(0, 1) == 0  # found without being told


def test_levels_never_seen_are_counted():
    X, y = table(800, pd.DataFrame)
    model = SecondOrderRegressor(rank=2, random_state=0, alpha=0.0).fit(X, y)
    new = X.head(10).copy()
    new.loc[:3, "city"] = "nowhere"
    with pytest.warns(UserWarning, match="4 in 'city'"):
        assert np.all(np.isfinite(model.predict(new)))
    with pytest.raises(ValueError, match="frame"):
        model.predict(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="colour"):
        model.predict(X[["city", "size"]])


def test_a_stream_of_frames_with_text():
    X, y = table(3000, pl.DataFrame)
    model = SecondOrderRegressor(rank=3, random_state=0, batch_size=1000, alpha=0.0)
    for start in range(0, 3000, 500):
        model.partial_fit(X[start : start + 500], y[start : start + 500])
    assert model.score(X, y) > 0.99


def test_fields_can_be_named():
    X, y = table(600, pd.DataFrame)
    dummies = pd.get_dummies(X, dtype=float)
    groups = [[c for c in dummies if c.startswith(f)] for f in ("city", "colour")]
    model = SecondOrderRegressor(rank=2, fields=groups, random_state=0, alpha=0.0).fit(dummies, y)
    assert model.interaction("city_a", "city_c") == 0
    free = SecondOrderRegressor(rank=2, fields=None, random_state=0, alpha=0.0).fit(dummies, y)
    assert free.interaction("city_a", "city_c") != 0
    with pytest.raises(KeyError, match="town"):
        SecondOrderRegressor(fields=[["town"]], rank=5, alpha=0.0).fit(dummies, y)


def test_the_diagnosis_says_what_to_change():
    rng = np.random.default_rng(0)
    data = make_second_order(3000, 12, rank=3, noise=0.5, random_state=0)
    X = np.column_stack([data.X, data.X[:, 0] + data.X[:, 1], np.ones(3000), data.X[:, 0] > 0])
    names = [f"f{j}" for j in range(12)] + ["sum", "unit", "flag"]
    X = pd.DataFrame(X, columns=names)
    low = SecondOrderRegressor(rank=2, random_state=0, alpha=0.0).fit(X, data.y)
    text = low.diagnose(X, data.y)
    assert "constant (unit)" in text
    assert "two-valued (flag)" in text
    assert "linear dependence" in text
    assert "sum" in text
    assert "may be too low" in text
    right = SecondOrderRegressor(rank=3, random_state=0, alpha=0.0).fit(data.X, data.y)
    assert "all 3 components stand out" in right.diagnose(data.X, data.y)
    high = SecondOrderRegressor(rank=6, random_state=0, alpha=0.0).fit(data.X, data.y)
    assert "3 of 6 components" in high.diagnose()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        few = SecondOrderRegressor(rank=3, random_state=0, alpha=0.0)
        few.fit(rng.standard_normal((20, 12)), rng.standard_normal(20))
    assert "Too few" in few.diagnose()
    weight = np.where(np.arange(3000) < 30, 1.0, 1e-6)
    right.fit(data.X, data.y, sample_weight=weight)
    assert "effectively 30" in right.diagnose()


def test_standard_errors_are_there_when_asked_for():
    data = make_second_order(3000, 8, rank=2, noise=0.5, n_test=3000, random_state=0)
    model = SecondOrderRegressor(rank=2, uncertainty=True, random_state=0, alpha=0.0).fit(
        data.X, data.y
    )
    # 3,000 rows: the noise level is known to 1/√(2·3000) = 1.3%.
    assert model.noise_ == pytest.approx(0.5, rel=0.05)
    predicted, std = model.predict(data.X_test, return_std=True)
    new = data.y_test + 0.5 * np.random.default_rng(1).standard_normal(3000)
    assert 0.93 < np.mean(np.abs(new - predicted) < 1.96 * std) < 0.97
    assert np.all(np.abs(model.coef_ - data.coef) < 5 * model.coef_std_)
    truth = 2 * float(data.components[:, 0] * data.eigenvalues @ data.components[:, 1])
    assert abs(model.interaction(0, 1) - truth) < 5 * model.interaction_std(0, 1)
    assert model.intercept_std_ > 0
    model.partial_fit(data.X, data.y)
    with pytest.raises(AttributeError, match="uncertainty=True"):
        model.predict(data.X, return_std=True)


@pytest.mark.parametrize("seed", range(3))
def test_directions_that_hardly_vary_are_fitted_all_the_same(seed):
    # The target lives in the direction of least variance, 1e-10 of the largest.
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    X = rng.standard_normal((1000, 6)) * np.logspace(0, -5, 6) @ V
    y = X @ V[-1] * 1e5 + 0.1 * rng.standard_normal(1000)
    expected = LinearRegression().fit(X, y).score(X, y)
    assert SecondOrderRegressor(rank=0, alpha=0.0).fit(X, y).score(X, y) == pytest.approx(
        expected, abs=1e-6
    )


def test_near_twins_reach_the_dense_optimum():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 5))
    X[:, 1] = X[:, 0] + 1e-4 * rng.standard_normal(500)
    y = 1e4 * (X[:, 1] - X[:, 0]) + X[:, 2] * X[:, 3] + 0.1 * rng.standard_normal(500)
    i, j = np.triu_indices(5)
    Z = (X - X.mean(0)) / X.std(0)
    Z[:, 1] = (Z[:, 1] - Z[:, 0]) / np.std(Z[:, 1] - Z[:, 0])  # the same span, well conditioned
    F = np.column_stack([np.ones(500), Z, Z[:, i] * Z[:, j]])
    best = np.mean((F @ np.linalg.lstsq(F, y, rcond=None)[0] - y) ** 2)
    model = SecondOrderRegressor(rank=5, tol=1e-10, max_iter=200, random_state=0, alpha=0.0).fit(
        X, y
    )
    assert model.history_[-1].loss == pytest.approx(best, rel=1e-4)


def test_standard_errors_with_gross_errors_are_those_of_refits():
    # An error from 120 refits is itself uncertain by 1/√240 = 6.5%, so 30% is more than four of
    # its sigmas; the mean over the seven is steadier.
    data = make_second_order(400, 5, rank=1, random_state=0, n_test=1)
    rng = np.random.default_rng(1)
    coefs, errors, noises, covered = [], [], [], []
    for seed in range(120):
        y = data.y + 0.5 * rng.standard_normal(400)
        dirty = with_outliers(y, share=0.05, size=50.0, seed=seed)
        model = SecondOrderRegressor(1, loss="huber", uncertainty=True, random_state=0, alpha=0.0)
        model.fit(data.X, dirty)
        coefs.append([*model.coef_, model.intercept_, model.interaction(0, 1)])
        errors.append([*model.coef_std_, model.intercept_std_, model.interaction_std(0, 1)])
        noises.append(model.noise_)
        f, std = model.predict(data.X[:50], return_std=True)
        fresh = data.y[:50] + 0.5 * rng.standard_normal(50)
        covered.append(np.mean(np.abs(fresh - f) < 1.96 * std))
    ratio = np.mean(errors, axis=0) / np.std(coefs, axis=0)
    np.testing.assert_allclose(ratio, 1, atol=0.3)
    assert np.mean(ratio) == pytest.approx(1, abs=0.1)
    # The median of |r| counts the 5% of gross errors as well, which widens σ by about 6%.
    assert np.mean(noises) == pytest.approx(0.53, abs=0.03)
    assert 0.93 < np.mean(covered) < 0.98


def test_huber_finds_a_scale_when_most_of_y_is_one_value():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 5))
    y = np.where(rng.uniform(size=400) < 0.6, 0.0, 3 * X[:, 0])
    y[:10] = 1000
    squares = SecondOrderRegressor(rank=1, random_state=0, alpha=0.0).fit(X, y)
    huber = SecondOrderRegressor(rank=1, loss="huber", random_state=0, alpha=0.0).fit(X, y)
    clean = np.arange(400) >= 10
    errors = [np.mean((m.predict(X) - y)[clean] ** 2) for m in (huber, squares)]
    assert errors[0] < 0.1 * errors[1]


def test_the_first_rows_of_a_stream_prove_no_field():
    rng = np.random.default_rng(0)
    B = (rng.uniform(size=(4000, 4)) < 0.5) * 1.0
    B[:2, :2] = [[1, 0], [0, 1]]
    y = 5 * B[:, 0] * B[:, 1] + B[:, 2]
    model = SecondOrderRegressor(rank=2, random_state=0, alpha=0.0)
    model.partial_fit(B[:2], y[:2]).partial_fit(B[2:], y[2:])
    assert model.interaction(0, 1) == pytest.approx(5, abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "words"),
    [([[0, 1]], "not one-hot"), ([[0.5, 1]], "list of groups"), (5, "list of groups"),
     ([[3, 4], [4]], "twice")],
)  # fmt: skip
def test_fields_that_are_none_are_refused(fields, words):
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.standard_normal((50, 3)), np.eye(2)[rng.integers(0, 2, 50)]])
    with pytest.raises(ValueError, match=words):
        SecondOrderRegressor(fields=fields, rank=5, alpha=0.0).fit(X, X[:, 0])


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_rows_without_weight_break_no_field(form):
    rng = np.random.default_rng(0)
    X, weight = np.eye(3)[rng.integers(0, 3, 50)], np.ones(50)
    X[7], weight[7] = [1, 1, 0.5], 0
    y = X @ [1.0, 2.0, 3.0]
    model = SecondOrderRegressor(rank=1, fields=[[0, 1, 2]], random_state=0, alpha=0.0)
    model.fit(form(X), y, sample_weight=weight)
    np.testing.assert_allclose(model.predict(X[:7]), y[:7], atol=1e-6)
    with pytest.raises(ValueError, match="not one-hot"):
        model.fit(form(X), y)


def test_a_linear_model_of_rank_zero_does_all_that_others_do():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4))
    y = X @ [1.0, 2.0, 0.0, -1.0] + 0.1 * rng.standard_normal(300)
    model = SecondOrderRegressor(rank=0, tol=1e-14, uncertainty=True, alpha=0.0).fit(X, y)
    F = np.column_stack([np.ones(300), X])
    coef, rss = np.linalg.lstsq(F, y, rcond=None)[:2]
    np.testing.assert_allclose(model.coef_, coef[1:], atol=1e-8)
    errors = np.sqrt(rss[0] / 295 * np.diag(np.linalg.inv(F.T @ F)))
    np.testing.assert_allclose(model.coef_std_, errors[1:], rtol=1e-6)
    assert model.interactions_.top(3) == []
    assert "status" in model.diagnose(X, y)
    stream = SecondOrderRegressor(rank=0, batch_size=100, alpha=0.0).partial_fit(X, y)
    assert stream.score(X, y) > 0.99


def test_an_interrupted_huber_fit_stops():
    pytest.importorskip("sklearn.callback")  # since scikit-learn 1.9

    def impatient(context):
        if context.task_id == 1:
            raise KeyboardInterrupt

    data = make_second_order(1000, 8, rank=2, noise=0.3, random_state=0)
    model = SecondOrderRegressor(rank=2, loss="huber", random_state=0, alpha=0.0).set_callbacks(
        AfterSteps(impatient)
    )
    with pytest.raises(KeyboardInterrupt):
        model.fit(data.X, data.y)
    assert model.status_.name == "interrupted"


def test_a_strongly_correlated_stream_is_as_good_as_a_fit():
    # Condition number 5e3 of the covariance; the spread of the ratio is √(2/dof) ≈ 16%.
    data = make_second_order(60_000, 20, rank=3, noise=3.0, n_test=5000, random_state=0)
    R = np.linalg.qr(np.random.default_rng(0).standard_normal((20, 20)))[0]
    R = R * np.logspace(0, -1.8, 20) @ R.T
    model = SecondOrderRegressor(rank=3, random_state=0, alpha=0.0)
    for part in np.array_split(np.arange(60_000), 20):
        model.partial_fit(data.X[part] @ R, data.y[part])
    excess = np.mean((model.predict(data.X_test @ R) - data.y_test) ** 2)
    assert excess < 2 * 9 * 78 / 60_000


@pytest.mark.parametrize("alpha", [np.int64(1), np.float32(1), (1, 2), np.array([1.0, 2.0])])
def test_penalties_may_be_numbers_of_any_kind(alpha):
    data = make_second_order(200, 4, rank=1, random_state=0)
    assert SecondOrderRegressor(rank=1, alpha=alpha).fit(data.X, data.y).score(data.X, data.y) > 0.5


@pytest.mark.parametrize("alpha", [None, -1, "much", (1, 2, 3), np.nan])
def test_penalties_that_make_no_sense_are_named(alpha):
    with pytest.raises(ValueError, match="alpha"):
        SecondOrderRegressor(alpha=alpha, rank=5).fit(np.eye(4), np.arange(4.0))


def test_the_rank_by_itself():
    data = make_second_order(1500, 12, rank=3, noise=0.5, random_state=0)
    model = SecondOrderRegressor(rank="auto", random_state=0, alpha=0.0).fit(data.X, data.y)
    assert model.rank_ == 3
    robust = SecondOrderRegressor(rank="auto", loss="huber", alpha=0.0, random_state=0)
    assert robust.fit(data.X, data.y).rank_ == 3
    stream = SecondOrderRegressor(rank="auto", alpha=0.0, random_state=0)
    assert stream.partial_fit(data.X, data.y).rank_ == 3


def test_a_refused_fit_leaves_the_last_model():
    data = make_second_order(300, 5, rank=1, random_state=0)
    model = SecondOrderRegressor(rank=1, random_state=0, alpha=0.0).fit(data.X, data.y)
    with pytest.raises(ValueError, match="alpha"):
        model.set_params(alpha=-1).fit(data.X[:, :3], data.y)
    assert model.predict(data.X).shape == (300,)


def test_levels_that_are_hardly_seen_are_named_and_shrinking_them_helps():
    # Without noise the common levels are learnt exactly; what is wrong is what is said of the rare.
    # Their unpenalised coefficients are any of many, so that the draws are compared by the median.
    errors = []
    for seed in range(7):
        rng = np.random.default_rng(seed)
        level = np.concatenate([np.repeat(np.arange(6), 100), [6, 6, 7, 7, 7]])
        X = np.column_stack([np.eye(8)[level], rng.standard_normal((605, 6))])
        Q = rng.standard_normal((14, 2))

        def target(X, Q=Q):
            return X @ Q[:, 0] + (X @ Q) ** 2 @ [1.0, -1.0]

        new = np.column_stack([np.eye(8)[rng.integers(6, 8, 500)], rng.standard_normal((500, 6))])
        plain = SecondOrderRegressor(2, random_state=0, alpha=0.0).fit(X, target(X))
        shrunk = SecondOrderRegressor(2, alpha=0.01, random_state=0).fit(X, target(X))
        assert "levels: 2 of 8 (x6, x7) are seen in no more rows" in plain.diagnose()
        errors.append([np.mean((m.predict(new) - target(new)) ** 2) for m in (plain, shrunk)])
    plain_error, shrunk_error = np.median(errors, axis=0)
    assert shrunk_error < 0.7 * plain_error, errors


def test_a_fit_that_fails_changes_nothing():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"c": rng.choice(list("abc"), 300), "x": rng.standard_normal(300)})
    y = (frame["c"] == "a") * frame["x"] + frame["x"]
    model = SecondOrderRegressor(1, random_state=0, alpha=0.0).fit(frame, y)
    expected = model.predict(frame)
    other = frame.assign(c=rng.choice(list("zab"), 300))
    with pytest.raises(ValueError, match="NaN"):
        model.fit(other, np.where(np.arange(300) == 7, np.nan, y))
    np.testing.assert_array_equal(model.predict(frame), expected)
    model.diagonal = [True, False]
    with pytest.raises(ValueError, match="diagonal has 2 entries"):
        model.fit(rng.standard_normal((50, 5)), np.ones(50))
    np.testing.assert_array_equal(model.predict(frame), expected)
    fresh = SecondOrderRegressor(1, diagonal=[True], alpha=0.0)
    with pytest.raises(ValueError, match="diagonal has 1 entries"):
        fresh.fit(rng.standard_normal((50, 5)), np.ones(50))
    assert not hasattr(fresh, "n_features_in_")


def test_rows_that_cannot_be_learned_from_do_not_spoil_a_stream():
    data = make_second_order(900, 4, rank=1, noise=0.1, random_state=0)
    whole = SecondOrderRegressor(1, batch_size=300, random_state=0, alpha=0.0)
    spoiled = SecondOrderRegressor(1, batch_size=300, random_state=0, alpha=0.0)
    for part in np.split(np.arange(900), 3):
        with pytest.raises(ValueError, match="too large to square"):
            spoiled.partial_fit(1e200 * data.X[:300], data.y[:300])
        for model in (whole, spoiled):
            model.partial_fit(data.X[part], data.y[part])
    np.testing.assert_array_equal(whole.coef_, spoiled.coef_)


def test_an_interrupt_while_a_first_batch_is_fitted_is_no_model(monkeypatch):
    from quadlin.solve.lowrank import polish

    data = make_second_order(300, 4, rank=1, random_state=0)
    model = SecondOrderRegressor(1, batch_size=1000, random_state=0, alpha=0.0).partial_fit(
        data.X, data.y
    )
    original = polish.best_start

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(polish, "best_start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.predict(data.X)
    monkeypatch.setattr(polish, "best_start", original)
    assert model.score(data.X, data.y) > 0.999


def test_missing_values_are_filled_as_in_the_fit():
    from quadlin import open_source

    data = make_second_order(300, 3, rank=1, random_state=0)
    X = np.where(np.arange(900).reshape(300, 3) % 50 == 0, np.nan, data.X)
    frame = pd.DataFrame(X, columns=list("abc"))
    source = open_source(frame, target=data.y, missing="mean")
    model = SecondOrderRegressor(1, random_state=0, alpha=0.0).fit(source)
    later = frame.iloc[:20] + 100.0
    with pytest.raises(ValueError, match=r"fill=model\.fill_"):
        model.predict(open_source(later, missing="mean"))
    filled = open_source(later, missing="mean", fill=model.fill_)
    expected = model.predict(later.fillna(model.fill_))
    np.testing.assert_allclose(model.predict(filled), expected)


def test_the_passes_of_all_rounds_are_counted():
    data = make_second_order(600, 5, rank=1, noise=0.3, random_state=0)
    source, rows = open_source(data.X, target=data.y), []
    model = SecondOrderRegressor(rank=1, loss="huber", fields=None, random_state=0, alpha=0.0)
    model.fit(replace(source, watch=rows.append))
    walks = sum(rows) / 600
    # Those that learn the moments and the weights of a round are not steps of a fit.
    assert 0.6 * walks < model.history_[-1].passes <= walks


def test_reweighting_takes_few_passes_where_rank_and_penalties_are_chosen():
    # Costs of illness: most are small, and a tenth of the rows pays for half of them.
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1500, 8))
    f = 4 + 0.3 * X[:, 0] + 0.2 * X[:, 1] * X[:, 2] + 0.1 * X[:, 3] ** 2
    y = np.exp(f + 1.2 * rng.standard_normal(1500))
    model = SecondOrderRegressor(loss="huber", pairs=None, random_state=0).fit(X, y)
    # 83 passes; 202 where weights settle twice from the median on, by fits more precise than they.
    assert model.history_[-1].passes <= 140
    # The weights have settled: bounded residuals have a mean of zero, but for a change of the
    # weights by 1e-4 that still counts as none. Their standard error is .026.
    r = y - model.predict(X)
    scale = 1.4826 * np.median(np.abs(r))
    psi = np.clip(r / scale, -1.345, 1.345)
    assert abs(psi.mean()) < 1e-3


def test_intervals_for_observations_with_heavy_tails_hold():
    # t(3): 1.96 standard deviations of the median would cover 88.7% of new observations.
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4000, 4))
    y = X[:, 0] * X[:, 1] + rng.standard_t(3, 4000)
    model = SecondOrderRegressor(1, alpha=0.0, loss="huber", uncertainty=True, random_state=0)
    f, std = model.fit(X[:2000], y[:2000]).predict(X[2000:], return_std=True)
    # The 95% quantile of 2,000 residuals and of as many new ones: ±4 of 0.7%.
    assert 0.92 < np.mean(np.abs(y[2000:] - f) < 1.96 * std) < 0.98


def test_robust_errors_of_hubers_loss_are_those_of_refits_with_unequal_noise():
    # An error from 40 refits is uncertain by 1/√80 = 11%: three of them.
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 2))
    size, coefs, errors = 0.2 + X[:, 0] ** 2, [], {"robust": [], True: []}
    for number in range(40):
        y = X[:, 1] + size * rng.standard_normal(200)
        for kind in errors if number < 5 else [False]:
            model = SecondOrderRegressor(0, alpha=0.0, loss="huber", uncertainty=kind)
            model.fit(X, y)
            if kind:
                errors[kind].append(model.coef_std_[0])
        coefs.append(model.coef_[0])
    assert np.mean(errors["robust"]) == pytest.approx(np.std(coefs), rel=0.35)
    assert np.mean(errors[True]) < 0.65 * np.std(coefs)
