"""Counts: loss="poisson" of the regressors, against oracles and laws of logarithms of means."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import d2_tweedie_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from quadlin import (
    FactorizationMachineRegressor,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    load,
    open_source,
    save,
    to_onnx,
)

COUNTS = {"loss": "poisson", "random_state": 0}
EXACT = {**COUNTS, "alpha": 0.0, "tol": 1e-14}


def table(n=1500, d=4, seed=0, level=0.5):
    """Return rows, counts, and the logarithms of their means: signed M of rank 2."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    f = 0.5 * X[:, 0] * X[:, 1] + 0.4 * X[:, 2] + level
    return X, rng.poisson(np.exp(f)).astype(float), f


X, Y, F = table()


def products(X):
    i, j = np.triu_indices(X.shape[1])
    return np.hstack([X, X[:, i] * X[:, j]])


@parametrize_with_checks([SecondOrderRegressor(rank=0, loss="poisson")])
def test_the_contract_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize(("rank", "features"), [(0, lambda X: X), (4, products)])
def test_without_a_penalty_it_is_poisson_regression(rank, features):
    oracle = PoissonRegressor(alpha=0, solver="newton-cholesky", tol=1e-12, max_iter=100)
    expected = oracle.fit(features(X), Y).predict(features(X))
    model = SecondOrderRegressor(rank=rank, **EXACT).fit(X, Y)
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-6)
    assert model.score(X, Y) == pytest.approx(d2_tweedie_score(Y, expected, power=1), rel=1e-9)


@pytest.mark.parametrize(("rank", "features"), [(0, lambda X: X), (4, products)])
def test_the_default_tolerance_ends_within_a_millionth_of_poisson_regression(rank, features):
    oracle = PoissonRegressor(alpha=0, solver="newton-cholesky", tol=1e-12, max_iter=100)
    expected = np.log(oracle.fit(features(X), Y).predict(features(X)))
    error = (
        np.log(SecondOrderRegressor(rank=rank, alpha=0, **COUNTS).fit(X, Y).predict(X)) - expected
    )
    assert np.linalg.norm(error) < 1e-6 * np.linalg.norm(expected - expected.mean())


def test_a_low_rank_has_a_gradient_of_zero_and_its_history_is_the_deviance():
    model = SecondOrderRegressor(rank=2, **EXACT).fit(X, Y)
    losses = np.array([record.loss for record in model.history_])
    assert (np.diff(losses) < 0).all()
    mean, constant = model.predict(X), np.full(len(Y), Y.mean())
    log_y = np.log(np.where(Y > 0, Y, 1))
    for loss, m in ((losses[0], constant), (losses[-1], mean)):
        assert loss == pytest.approx(np.mean(m - Y - Y * (np.log(m) - log_y)))
    # On the tangent space of rank-2 matrices the slope is Xᵀ(m − y), and E[(m − y) x xᵀ] U.
    r = (mean - Y) / len(Y)
    U = model.components_.T
    slopes = [r.sum(), *(X.T @ r), *((X * r[:, None]).T @ (X @ U)).ravel()]
    np.testing.assert_allclose(slopes, 0, atol=1e-5)


def test_rank_and_penalties_are_chosen_and_the_means_come_near_the_truth():
    model = SecondOrderRegressor(**COUNTS).fit(X, Y)
    assert model.rank_ == 2
    new, _, f = table(seed=1)
    # 13 parameters from 1,500 counts of mean 2: an error of √(13/3,000) = .07 on average.
    assert np.sqrt(np.mean((np.log(model.predict(new)) - f) ** 2)) < 0.12
    assert model.interactions_.top(1)[0][:2] == ("x0", "x1")


def test_large_and_skewed_means_are_reached():
    rng = np.random.default_rng(0)
    f = 3 * X[:, 0] * X[:, 1] + 2
    model = SecondOrderRegressor(rank=2, **COUNTS).fit(X, rng.poisson(np.exp(f)))
    np.testing.assert_allclose(model.interaction(0, 1), 3, atol=0.02)
    assert model.status_.name == "converged"


def test_weights_are_repetitions():
    weight = np.random.default_rng(1).integers(0, 3, len(Y))
    weighted = SecondOrderRegressor(rank=1, **EXACT).fit(X, Y, weight)
    repeated = SecondOrderRegressor(rank=1, **EXACT).fit(np.repeat(X, weight, 0), Y.repeat(weight))
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), rtol=1e-5)
    assert weighted.score(X, Y, weight) == pytest.approx(
        d2_tweedie_score(Y, weighted.predict(X), power=1, sample_weight=weight)
    )


def test_every_form_of_the_rows_gives_the_same_means(tmp_path):
    frame = pd.DataFrame(X, columns=list("abcd")).assign(y=Y)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    source = open_source(tmp_path / "rows.csv", target="y")
    forms = [(X, Y), (sparse.csr_matrix(X), Y), (frame.drop(columns="y"), frame["y"]), (source,)]
    models = [SecondOrderRegressor(rank=2, **COUNTS).fit(*form) for form in forms]
    for model in models[1:]:
        np.testing.assert_allclose(model.coef_, models[0].coef_, atol=1e-4)
    assert models[-1].score(source) == pytest.approx(models[-1].score(frame[list("abcd")], Y))


def test_a_file_and_an_onnx_graph_predict_the_same_means(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = SecondOrderRegressor(rank=2, **COUNTS).fit(X, Y)
    save(model, tmp_path / "model.quadlin")
    np.testing.assert_array_equal(load(tmp_path / "model.quadlin").predict(X), model.predict(X))
    to_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    np.testing.assert_allclose(session.run(None, {"X": X})[0], model.predict(X), rtol=1e-12)


def test_contributions_sum_to_the_logarithm_of_the_mean():
    model = SecondOrderRegressor(rank=2, **COUNTS).fit(X, Y)
    parts = model.contributions(X)
    np.testing.assert_allclose(parts.prediction, np.log(model.predict(X)), atol=1e-9)
    text = str(model.summary())
    assert "log E[y] = b + xᵀw + xᵀMx" in text
    assert "D²" in text
    assert "noise" not in text


def test_standard_errors_are_those_of_fishers_information():
    model = SecondOrderRegressor(rank=0, uncertainty=True, **EXACT).fit(X, Y)
    A = np.hstack([np.ones((len(X), 1)), X])
    information = A.T @ (A * model.predict(X)[:, None])
    errors = np.sqrt(np.diag(np.linalg.inv(information)))
    np.testing.assert_allclose([model.intercept_std_, *model.coef_std_], errors, rtol=1e-6)
    mean, std = model.predict(X, return_std=True)
    f_error = np.sqrt(np.sum(A @ np.linalg.inv(information) * A, axis=1))
    np.testing.assert_allclose(std, np.sqrt(mean + (mean * f_error) ** 2), rtol=1e-6)


def test_counts_of_levels_are_fitted_by_a_factorization_machine():
    rng = np.random.default_rng(0)
    city, kind = rng.integers(3, size=900), rng.integers(4, size=900)
    f = np.array([[0, 1, 0, 2], [1, 0, 1, 0], [0, 0, 2, 1.0]])[city, kind]
    rows = pd.DataFrame({"city": city.astype(str), "kind": kind.astype(str)})
    model = FactorizationMachineRegressor(**COUNTS).fit(rows, rng.poisson(np.exp(f)))
    assert np.sqrt(np.mean((np.log(model.predict(rows)) - f) ** 2)) < 0.2


def test_counts_that_are_all_zero_have_a_small_constant_mean():
    with pytest.warns(UserWarning, match="in every row"):
        model = SecondOrderRegressor(**COUNTS).fit(X, np.zeros(len(X)))
    np.testing.assert_allclose(model.predict(X), 0.5 / (len(X) + 1))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"polish": False}, "needs polish=True"),
        ({"pairs": 3}, 'cannot be combined with loss="poisson"'),
    ],
)
def test_options_that_counts_cannot_be_combined_with(params, message):
    with pytest.raises(ValueError, match=message):
        SecondOrderRegressor(**COUNTS, **params).fit(X, Y)


def test_negative_counts_streams_and_cross_validation_are_refused():
    with pytest.raises(ValueError, match="targets go down to -1"):
        SecondOrderRegressor(**COUNTS).fit(X, Y - 1)
    assert not hasattr(SecondOrderRegressor(**COUNTS), "partial_fit")
    with pytest.raises(ValueError, match="needs several passes"):
        SecondOrderRegressor(**COUNTS).fit(open_source(iter([(X, Y)])))
    with pytest.raises(ValueError, match="cannot be combined with cross-validation"):
        SecondOrderRegressorCV(**COUNTS).fit(X, Y)


def test_no_mean_is_predicted_far_above_the_largest_count():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(400, 2))
    y = rng.poisson(np.exp(1 + 2 * X[:, 0]))
    far = np.array([[3.0, 0.0], [50.0, 0.0]])
    model = SecondOrderRegressor(loss="poisson", rank=0, random_state=0).fit(X, y)
    with pytest.warns(UserWarning, match="far outside"):
        held = model.predict(far)
    free = model.set_params(extrapolation="free").predict(far[:1])
    np.testing.assert_allclose(held, 2 * y.max())
    assert free[0] > 20 * y.max()  # in truth e⁷, and the largest count is about e³


def test_a_mean_too_small_for_float32_is_not_zero():
    # exp(−105) is zero in float32, where a count of 4 would be impossible: D² was −inf.
    rng = np.random.default_rng(0)
    X = np.linspace(-60, 60, 80)[:, None].astype(np.float32)
    y = np.where(X[:, 0] > 40, 1e9, 0.0)
    y[10] = 4.0
    model = SecondOrderRegressor(0, alpha=0.0, loss="poisson", random_state=0).fit(X, y)
    far = np.array([[-2000.0]], dtype=np.float32)
    model.set_params(extrapolation="free")
    assert model.predict(far)[0] > 0
    assert np.isfinite(model.score(np.vstack([X, far]), np.append(y, rng.integers(1, 5))))
