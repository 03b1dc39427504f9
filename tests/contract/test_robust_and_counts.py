"""Gross errors, counts, and rows far outside: each has an option, and the option keeps its word."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.sparse import csr_array
from sklearn.linear_model import HuberRegressor, PoissonRegressor
from sklearn.metrics import d2_tweedie_score, mean_poisson_deviance

from contract.tables import low_rank, nmse, planted_pairs
from quadlin import FactorizationMachineRegressor, SecondOrderRegressor
from quadlin.exceptions import ExtrapolationWarning

# --- gross errors ---------------------------------------------------------------------------------


def spoiled(table, size, share=0.03):
    """Return the targets with gross errors in some rows."""
    y = table.y.copy()
    y[: int(share * len(y))] += size
    return y


@pytest.mark.parametrize("size", [10.0, 1e3, 1e8])
@pytest.mark.parametrize("options", [{"rank": 2, "alpha": 0.0}, {"rank": 2}, {}], ids=str)
def test_gross_errors_hardly_move_a_fit_with_hubers_loss(options, size):
    table, new = low_rank(400, 5, 2, sigma=0.5, seed=1), low_rank(300, 5, 2, seed=2).X
    model = SecondOrderRegressor(loss="huber", extrapolation="free", **options)
    model.fit(table.X, spoiled(table, size))
    error = np.mean((model.predict(new) - table.value(new)) ** 2)
    # σ²·dof/N with 15 parameters is 0.009; gross errors cost efficiency, chosen ranks parameters.
    assert error < 4 * 0.25 * 15 / 400


def test_gross_errors_ruin_least_squares_which_says_so():
    table = low_rank(400, 5, 2, sigma=0.5, seed=1)
    with pytest.warns(UserWarning, match="huber"):
        model = SecondOrderRegressor(2, alpha=0.0).fit(table.X, spoiled(table, 1e3, 0.01))
    assert nmse(table.truth, model.predict(table.X)) > 1


@pytest.mark.smoke
def test_without_noise_gross_errors_are_ignored_altogether():
    table = low_rank(300, 4, 2, seed=3)
    model = SecondOrderRegressor(2, alpha=0.0, loss="huber").fit(table.X, spoiled(table, 100.0))
    assert nmse(table.truth, model.predict(table.X)) < 1e-10


@pytest.mark.parametrize("kind", [SecondOrderRegressor, FactorizationMachineRegressor])
def test_pairs_are_found_beside_gross_errors(kind):
    table, pairs = planted_pairs(400, 6, 2, seed=4)
    model = kind(0, alpha=0.0, pairs=2, loss="huber").fit(table.X, spoiled(table, 100.0))
    assert {(p.first, p.second) for p in model.pairs_.pairs} == {
        (f"x{i}", f"x{j}") for i, j in pairs
    }
    # Nine parameters: σ²·dof/N is 0.0056.
    assert np.mean((model.predict(table.X) - table.truth) ** 2) < 0.0225


def test_normal_noise_costs_hubers_loss_little():
    errors = {"huber": [], "squared": []}
    for seed in range(10):
        table = low_rank(200, 4, 1, kind="uniform", sigma=0.5, seed=seed)
        for loss, all_errors in errors.items():
            model = SecondOrderRegressor(1, alpha=0.0, loss=loss).fit(table.X, table.y)
            all_errors.append(np.mean((model.predict(table.X) - table.truth) ** 2))
    assert np.mean(errors["huber"]) < 1.15 * np.mean(errors["squared"])  # 95% efficient


def test_rank_zero_with_hubers_loss_is_near_a_huber_regression():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 3))
    y = X @ [1.0, -2.0, 0.5] + rng.standard_t(2, 400)
    model = SecondOrderRegressor(0, alpha=0.0, loss="huber").fit(X, y)
    oracle = HuberRegressor(epsilon=1.345, alpha=0.0, tol=1e-8).fit(X, y)
    # The scales are estimated in two ways: a fraction of a standard error, which is 0.06.
    np.testing.assert_allclose(model.coef_, oracle.coef_, atol=0.03)


def test_the_fit_is_the_minimum_of_hubers_loss_at_its_scale():
    table = low_rank(150, 3, 3, sigma=0.5, seed=5)
    y = spoiled(table, 30.0)
    model = SecondOrderRegressor(3, alpha=0.0, loss="huber", uncertainty=True, tol=1e-10)
    residual = y - model.fit(table.X, y).predict(table.X)
    i, j = np.triu_indices(3)
    A = np.column_stack([np.ones(150), table.X, table.X[:, i] * table.X[:, j]])

    def slope(scale):
        return np.abs(A.T @ np.clip(residual / scale, -1.345, 1.345)).max()

    best = minimize(lambda s: slope(np.exp(s[0])), [np.log(0.5)], method="Nelder-Mead")
    assert best.fun < 0.05  # of 150 rows: the slope vanishes at one scale for all ten parameters
    assert 0.3 < np.exp(best.x[0]) < 0.8


def test_warnings_point_at_the_line_of_the_user():
    table = low_rank(400, 4, 1, sigma=0.5, seed=1)
    with pytest.warns(UserWarning, match="huber") as caught:
        SecondOrderRegressor(1, alpha=0.0).fit(table.X, spoiled(table, 1e3, 0.01))
    assert {warning.filename for warning in caught} == {__file__}


# --- counts ---------------------------------------------------------------------------------------


def counts(n=600, d=4, seed=0):
    """Return rows, counts and the logarithms of their means: signed M of rank 2."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    f = 0.5 + 0.5 * X[:, 0] * X[:, 1] + 0.4 * X[:, 2]
    return X, rng.poisson(np.exp(f)).astype(float), f


X, Y, F = counts()
Z = (X - X.mean(0)) / X.std(0)
TIGHT = {"loss": "poisson", "tol": 1e-14}


def products(X):
    i, j = np.triu_indices(X.shape[1])
    return np.column_stack([X, X[:, i] * X[:, j]])


@pytest.mark.parametrize(
    ("rank", "columns"), [(0, lambda X: X), (4, products)], ids=["line", "all products"]
)
@pytest.mark.parametrize("weighted", [False, True])
def test_counts_without_penalty_are_poisson_regression(rank, columns, weighted):
    weight = np.random.default_rng(1).uniform(0.5, 2, 600) if weighted else None
    oracle = PoissonRegressor(alpha=0, solver="newton-cholesky", tol=1e-12, max_iter=100)
    expected = oracle.fit(columns(X), Y, sample_weight=weight).predict(columns(X))
    model = SecondOrderRegressor(rank, alpha=0.0, **TIGHT).fit(X, Y, sample_weight=weight)
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-6)


@pytest.mark.smoke
@pytest.mark.parametrize("alpha", [1.0, 100.0])
def test_a_penalty_of_counts_is_that_of_poisson_regression_per_row(alpha):
    # Ours is relative to a sum over rows, scikit-learn's to a mean, of half deviances in both.
    oracle = PoissonRegressor(alpha=alpha / 600, solver="newton-cholesky", tol=1e-12)
    expected = oracle.fit(Z, Y).predict(Z)
    model = SecondOrderRegressor(0, alpha=alpha, **TIGHT).fit(X, Y)
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-6)


def test_the_score_of_counts_is_the_share_of_the_deviance():
    weight = np.random.default_rng(1).uniform(0.5, 2, 600)
    model = SecondOrderRegressor(2, loss="poisson").fit(X, Y)
    mean = model.predict(X)
    for each in (None, weight):
        expected = d2_tweedie_score(Y, mean, power=1, sample_weight=each)
        assert model.score(X, Y, sample_weight=each) == pytest.approx(expected)


def test_rank_and_penalties_of_counts_are_chosen_well():
    model = SecondOrderRegressor(loss="poisson", extrapolation="free").fit(X, Y)
    new, _, f = counts(seed=1)
    # 13 parameters and 600 counts of mean 2: an error of √(13/1,200) = 0.10, and 70% beside it.
    assert np.sqrt(np.mean((np.log(model.predict(new)) - f) ** 2)) < 0.18
    assert set(model.interactions_.top(1)[0][:2]) == {"x0", "x1"}


def test_a_low_rank_of_counts_is_at_an_optimum():
    model = SecondOrderRegressor(2, alpha=0.0, **TIGHT).fit(X, Y)
    r = (model.predict(X) - Y) / 600
    U = model.components_.T
    slopes = [r.sum(), *(X.T @ r), *((X * r[:, None]).T @ (X @ U)).ravel()]
    np.testing.assert_allclose(slopes, 0, atol=1e-5)


def test_a_rate_is_a_count_with_its_exposure_as_weight():
    rng = np.random.default_rng(2)
    exposure = rng.uniform(0.5, 5, 600)
    y = rng.poisson(exposure * np.exp(0.3 * X[:, 0]))
    model = SecondOrderRegressor(0, alpha=0.0, **TIGHT).fit(X, y / exposure, sample_weight=exposure)
    oracle = PoissonRegressor(alpha=0, solver="newton-cholesky", tol=1e-12)
    oracle.fit(X, y / exposure, sample_weight=exposure)
    np.testing.assert_allclose(model.coef_, oracle.coef_, atol=1e-6)
    assert model.coef_[0] == pytest.approx(0.3, abs=0.1)


@pytest.mark.parametrize("form", [csr_array, lambda X: pd.DataFrame(X, columns=list("abcd"))])
def test_every_form_of_the_rows_gives_the_same_counts(form):
    options = {"rank": 2, "alpha": 1.0, **TIGHT}
    plain, other = (SecondOrderRegressor(**options).fit(rows, Y) for rows in (X, form(X)))
    np.testing.assert_allclose(other.predict(form(X)), plain.predict(X), rtol=1e-6)


def test_contributions_of_counts_add_to_the_logarithm_of_the_mean():
    model = SecondOrderRegressor(2, loss="poisson").fit(X, Y)
    parts = model.contributions(X)
    np.testing.assert_allclose(parts.prediction, np.log(model.predict(X)), atol=1e-9)


def test_counts_of_levels_are_fitted_by_a_factorization_machine():
    rng = np.random.default_rng(0)
    city, kind = rng.integers(3, size=900), rng.integers(4, size=900)
    f = np.array([[0, 1, 0, 2], [1, 0, 1, 0], [0, 0, 2, 1.0]])[city, kind]
    rows = pd.DataFrame({"city": city.astype(str), "kind": kind.astype(str)})
    model = FactorizationMachineRegressor(loss="poisson").fit(rows, rng.poisson(np.exp(f)))
    # Twelve means of about 75 counts each: errors of 0.12 on the scale of logarithms, less 0.1.
    assert np.sqrt(np.mean((np.log(model.predict(rows)) - f) ** 2)) < 0.2


def test_counts_that_are_all_zero_have_a_small_mean():
    with pytest.warns(UserWarning, match="0"):
        model = SecondOrderRegressor(loss="poisson").fit(X, np.zeros(600))
    mean = model.predict(X)
    assert np.all((mean > 0) & (mean < 0.01))
    assert np.isfinite(mean_poisson_deviance(np.zeros(600), mean))


def test_negative_counts_are_an_error_and_streams_are_not_offered():
    with pytest.raises(ValueError, match="-1"):
        SecondOrderRegressor(loss="poisson").fit(X, Y - 1)
    assert not hasattr(SecondOrderRegressor(loss="poisson"), "partial_fit")


# --- rows far outside -----------------------------------------------------------------------------

INSIDE = low_rank(400, 4, 2, sigma=0.3, seed=7)


def far_rows():
    rows = INSIDE.X[:5].copy()
    rows[1, 2], rows[3, 0] = 1e6, -1e6
    return rows


@pytest.mark.parametrize("kind", [SecondOrderRegressor, FactorizationMachineRegressor])
@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_rows_beyond_a_training_range_have_a_warning_and_a_bounded_prediction(kind, loss):
    model = kind(2, alpha=1.0, loss=loss).fit(INSIDE.X, INSIDE.y)
    with pytest.warns(ExtrapolationWarning, match="2 rows"):
        predicted = model.predict(far_rows())
    assert np.abs(predicted).max() < 100 * np.abs(INSIDE.y).max()
    assert model.extrapolates(far_rows()).tolist() == [False, True, False, True, False]
    # A matrix product rounds a row in a way that depends on the number of rows, by a few ulp.
    inside = model.predict(far_rows()[[0, 2, 4]])
    np.testing.assert_allclose(predicted[[0, 2, 4]], inside, rtol=1e-13)


def test_counts_beyond_a_training_range_have_a_warning_and_a_bounded_mean():
    model = SecondOrderRegressor(0, loss="poisson").fit(X, Y)
    far = X[:2].copy()
    far[1, 2] = 1e4
    with pytest.warns(UserWarning, match="1 row"):
        mean = model.predict(far)
    assert np.isfinite(mean).all()
    assert mean.max() < 100 * Y.max()


@pytest.mark.smoke
def test_free_predicts_rows_as_they_are():
    model = SecondOrderRegressor(2, alpha=1.0, extrapolation="free").fit(INSIDE.X, INSIDE.y)
    rows = far_rows()
    M, w, b = model.interactions_.matrix(), model.coef_, model.intercept_
    expected = b + rows @ w + np.einsum("ni,ij,nj->n", rows, M, rows)
    np.testing.assert_allclose(model.predict(rows), expected, rtol=1e-6)


@pytest.mark.parametrize("form", [np.asarray, csr_array])
def test_rows_inside_are_never_limited(form):
    rows = INSIDE.X
    clip, free = (
        SecondOrderRegressor(2, alpha=1.0, extrapolation=word).fit(form(rows), INSIDE.y)
        for word in ("clip", "free")
    )
    np.testing.assert_array_equal(clip.predict(form(rows)), free.predict(form(rows)))
    assert not clip.extrapolates(form(rows)).any()


@pytest.mark.parametrize(("dtype", "size"), [("float32", 1e30), ("float64", 1e200)])
def test_predictions_that_no_number_can_hold_are_an_error(dtype, size):
    model = SecondOrderRegressor(2, alpha=0.0, extrapolation="free")
    model.fit(INSIDE.X.astype(dtype), INSIDE.y.astype(dtype))
    rows = INSIDE.X[:3].astype(dtype)
    rows[1] = size
    with pytest.raises(ValueError, match=f"1 row.*{dtype}"):
        model.predict(rows)
    assert np.isfinite(model.predict(rows[[0, 2]])).all()


def test_predicted_counts_are_at_most_twice_the_largest_of_training():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 2))
    y = rng.poisson(np.exp(1 + X[:, 0]))
    far = 2 * np.abs(X).max() * np.ones((1, 2)) * [1, 0]
    model = SecondOrderRegressor(0, alpha=0.1, loss="poisson").fit(X, y)
    assert model.predict(far) == pytest.approx([2 * y.max()])
    model.set_params(extrapolation="free")
    assert model.predict(far) > 3 * y.max()
