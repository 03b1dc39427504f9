"""Rows of the model give it back: exactly without noise, as well as statistics allow with it."""

import warnings
from itertools import product

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, Ridge, RidgeCV

from contract.tables import KINDS, low_rank, nmse, planted_pairs, quadratic_columns
from quadlin import FactorizationMachineRegressor, SecondOrderRegressor, SecondOrderRegressorCV

# What rounding leaves of a well-conditioned problem, with room: eps² is 5e-32 and 1e-14.
EXACT = {"float64": 1e-18, "float32": 1e-10}


def error_on_new_rows(estimator, table, new, dtype="float64"):
    """Return the relative error on new rows of a fit to the table without noise."""
    X, new = table.X.astype(dtype), new.astype(dtype)
    y = table.value(X.astype(float)).astype(dtype)
    return nmse(table.value(new.astype(float)), estimator.fit(X, y).predict(new))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"rank": 2, "alpha": 0.0}, {}], ids=["given", "chosen"])
def test_every_law_of_features_is_recovered(options, kind):
    table, new = (low_rank(500, 6, 2, kind=kind, seed=seed) for seed in (1, 2))
    for dtype, tolerance in EXACT.items():
        error = error_on_new_rows(SecondOrderRegressor(**options), table, new.X, dtype)
        assert error < tolerance


@pytest.mark.parametrize("rank", [0, 1, 3, 5])
@pytest.mark.parametrize("chosen", [False, True])
def test_every_rank_is_recovered(rank, chosen):
    table, new = (low_rank(300, 5, rank, seed=seed) for seed in (3, 4))
    options = {} if chosen else {"rank": rank, "alpha": 0.0}
    for dtype, tolerance in EXACT.items():
        error = error_on_new_rows(SecondOrderRegressor(**options), table, new.X, dtype)
        assert error < tolerance


@pytest.mark.smoke
def test_the_parameters_come_back_in_the_units_of_the_table():
    table = low_rank(400, 6, 2, seed=5)
    scale, shift = 10.0 ** np.arange(-3, 3), np.arange(6.0)
    model = SecondOrderRegressor().fit(table.X * scale + shift, table.y)
    M = table.M / np.outer(scale, scale)
    w = table.w / scale - 2 * M @ shift
    np.testing.assert_allclose(model.interactions_.matrix(), M, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(model.coef_, w, rtol=1e-6, atol=1e-9)
    assert model.intercept_ == pytest.approx(
        table.intercept - (table.w / scale) @ shift + shift @ M @ shift, rel=1e-6
    )
    assert model.rank_ == 2
    assert model.alpha_ == (0.0, 0.0)


@pytest.mark.smoke
def test_eigenvalues_have_either_sign_and_components_are_orthonormal():
    table = low_rank(400, 6, 3, seed=6)
    model = SecondOrderRegressor(rank=3, alpha=0.0).fit(table.X, table.y)
    np.testing.assert_allclose(np.sort(model.eigenvalues_), [-1, 1, 1], atol=1e-9)
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(3), atol=1e-9)
    L = model.components_.T @ np.diag(model.eigenvalues_) @ model.components_
    np.testing.assert_allclose(L, table.M, atol=1e-9)


@pytest.mark.parametrize("signs", [(1, 1), (-1, -1), (1, -1)])
def test_m_of_any_signs_is_recovered(signs):
    rng = np.random.default_rng(0)
    X, U = rng.standard_normal((300, 5)), np.linalg.qr(rng.standard_normal((5, 2)))[0]
    M = (U * signs) @ U.T
    model = SecondOrderRegressor().fit(X, np.einsum("ni,ij,nj->n", X, M, X))
    np.testing.assert_allclose(model.interactions_.matrix(), M, atol=1e-9)
    np.testing.assert_allclose(model.coef_, 0, atol=1e-9)


def test_a_rank_above_the_true_one_is_as_exact():
    table, new = low_rank(400, 6, 1, seed=7), low_rank(200, 6, 1, seed=8)
    error = error_on_new_rows(SecondOrderRegressor(rank=4, alpha=0.0), table, new.X)
    assert error < EXACT["float64"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_factorization_machine_recovers_products_without_squares(kind):
    # M = vvᵀ without its diagonal: what a factorization machine of rank 1 is.
    table, new = (low_rank(400, 5, 1, kind=kind, seed=seed) for seed in (9, 10))
    M = table.M - np.diag(np.diag(table.M))
    table = table._replace(M=M)
    error = error_on_new_rows(FactorizationMachineRegressor(random_state=0), table, new.X)
    assert error < EXACT["float64"]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_separate_pairs_are_recovered_though_they_are_not_of_low_rank(seed):
    table, pairs = planted_pairs(400, 12, 4, sigma=0.0, seed=seed)
    new = planted_pairs(300, 12, 4, seed=seed + 10)[0].X
    model = SecondOrderRegressor()
    assert error_on_new_rows(model, table, new) < EXACT["float64"]
    for i, j in pairs:
        assert model.interaction(i, j) == pytest.approx(2 * table.M[i, j], abs=1e-8)


def test_cross_validation_recovers_with_the_penalties_it_may_choose():
    table, new = low_rank(300, 5, 2, seed=11), low_rank(200, 5, 2, seed=12)
    free = SecondOrderRegressorCV(ranks=[1, 2, 3], alphas=[0.0, 1.0], random_state=0)
    assert error_on_new_rows(free, table, new.X) < EXACT["float64"]
    assert free.rank_ >= 2
    # The grid of the default has no 0; its least penalties move a prediction by a millionth.
    assert error_on_new_rows(SecondOrderRegressorCV(random_state=0), table, new.X) < 1e-9


@pytest.mark.parametrize("kind", ["gaussian", "correlated"])
def test_two_rows_per_parameter_are_enough_without_noise(kind):
    table, new = (low_rank(200, 32, 2, kind=kind, seed=seed) for seed in (13, 14))
    model = SecondOrderRegressor(rank=2, alpha=0.0)  # 97 parameters, 96 of them free
    assert error_on_new_rows(model, table, new.X) < 1e-10


@pytest.mark.parametrize("binary", [False, True])
def test_few_rows_are_enough_for_unequal_eigenvalues(binary):
    # 1.5 rows per parameter, eigenvalues 1 to 0.1 of either sign: all of ten draws of either law
    # were exact; from the start by moments alone, five of ten normal and seven of ten binary ones.
    d, k = 40, 3
    exact = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        U = np.linalg.qr(rng.standard_normal((d, k)))[0]
        M = U * [1, -0.3, 0.1] @ U.T
        n = int(1.5 * (1 + d + d * k - k * (k - 1) // 2))
        X = rng.standard_normal((n + 200, d))
        X = np.sign(X) if binary else X
        y = 1 + X @ rng.standard_normal(d) / np.sqrt(d) + np.sum((X @ M) * X, axis=1)
        model = SecondOrderRegressor(rank=k, alpha=0, pairs=None).fit(X[:n], y[:n])
        exact += nmse(y[n:], model.predict(X[n:])) < 1e-12
    assert exact == 4


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_a_choice_with_either_loss_is_exact_without_noise(loss):
    table, new = low_rank(300, 5, 2, seed=15), low_rank(200, 5, 2, seed=16)
    assert error_on_new_rows(SecondOrderRegressor(loss=loss), table, new.X) < EXACT["float64"]


@pytest.mark.parametrize("dtype", EXACT)
def test_a_given_rank_of_many_parameters_is_exact(dtype):
    table, new = low_rank(3000, 260, 5, seed=5), low_rank(200, 260, 5, seed=6)
    error = error_on_new_rows(SecondOrderRegressor(rank=5, alpha=0.0), table, new.X, dtype)
    assert error < EXACT[dtype]


def test_a_chosen_rank_of_many_parameters_is_exact():
    table, new = low_rank(3000, 260, 5, seed=5), low_rank(200, 260, 5, seed=6)
    assert error_on_new_rows(SecondOrderRegressor(), table, new.X) < EXACT["float64"]


# --- with noise ---------------------------------------------------------------------------------


def excess_risk(estimator, n, d, k, sigma, kind, seed):
    table = low_rank(n, d, k, kind=kind, sigma=sigma, seed=seed)
    new = low_rank(500, d, k, kind=kind, seed=seed + 1000).X
    model = estimator.fit(table.X, table.y)
    return np.mean((model.predict(new) - table.value(new)) ** 2)


@pytest.mark.parametrize("kind", KINDS)
def test_the_error_of_a_given_rank_is_that_of_statistics(kind):
    # The mean of σ²·χ²(18)/600 over eight draws is known to 12%, and skewed new rows have more
    # leverage than σ²·dof/N; 60% is both.
    n, d, k, sigma = 600, 6, 2, 0.5
    dof = 1 + d + k * d - k * (k - 1) // 2
    risks = [
        excess_risk(
            SecondOrderRegressor(k, alpha=0.0, extrapolation="free"), n, d, k, sigma, kind, seed
        )
        for seed in range(8)
    ]
    assert np.mean(risks) < 1.6 * sigma**2 * dof / n


@pytest.mark.parametrize("kind", KINDS)
def test_the_error_of_a_choice_is_near_that_of_the_truth_given(kind):
    risks = {"chosen": [], "given": []}
    for seed in range(8):
        for name, options in (("chosen", {}), ("given", {"rank": 2, "alpha": 0.0})):
            model = SecondOrderRegressor(**options, extrapolation="free")
            risks[name].append(excess_risk(model, 300, 6, 2, 0.5, kind, seed))
    # Choosing costs at most a rank of six parameters more in some draws, and saves by penalties.
    assert np.mean(risks["chosen"]) < 1.4 * np.mean(risks["given"])


def test_a_penalty_is_worth_more_than_its_error_where_rows_are_few():
    risks = {"chosen": [], "given": []}
    for seed in range(5):
        for name, options in (("chosen", {}), ("given", {"rank": 3, "alpha": 0.0})):
            model = SecondOrderRegressor(**options)
            risks[name].append(excess_risk(model, 200, 15, 3, 2.0, "gaussian", seed))
    assert np.mean(risks["chosen"]) < np.mean(risks["given"])


def test_the_default_is_not_much_worse_than_ridge_regression_on_a_line():
    # A quadratic part can only do harm here; a component too many in a few draws costs 5%.
    ratios = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        X, new, w = (rng.standard_normal(size) for size in ((60, 12), (500, 12), 12))
        y = X @ w + 3 * rng.standard_normal(60)
        ours, ridge = (
            model.fit(X, y).predict(new)
            for model in (SecondOrderRegressor(), RidgeCV(np.logspace(-3, 4, 30)))
        )
        ratios.append((np.mean((ours - new @ w) ** 2) + 9) / (np.mean((ridge - new @ w) ** 2) + 9))
    assert np.mean(ratios) < 1.05


def test_a_weak_line_is_predicted_about_as_well_as_by_ridge_regression():
    risks = {"ours": [], "ridge": []}
    for seed in range(60):
        rng = np.random.default_rng(seed)
        x, noise = rng.standard_normal((100, 1)), rng.standard_normal(100)
        y = 0.2 * x[:, 0] + np.sqrt(1 - 0.2**2) * noise
        grid = np.linspace(-2, 2, 41)[:, None]
        for name, model in (
            ("ours", SecondOrderRegressor()),
            ("ridge", RidgeCV(np.logspace(-3, 4, 30))),
        ):
            error = model.fit(x, y).predict(grid) - 0.2 * grid[:, 0]
            risks[name].append(np.average(error**2, weights=np.exp(-(grid[:, 0] ** 2) / 2)))
    assert np.mean(risks["ours"]) < 1.15 * np.mean(risks["ridge"])


def test_a_weak_line_of_many_rows_is_kept():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 5))
    y = 0.15 * X[:, 0] + rng.standard_normal(2000)
    assert SecondOrderRegressor().fit(X, y).coef_[0] == pytest.approx(
        0.15, abs=0.07
    )  # three errors


@pytest.mark.parametrize(
    "options", [{"rank": 2, "alpha": 0.0}, {"rank": 1, "alpha": 5.0}, {}], ids=str
)
@pytest.mark.parametrize("loss", ["squared", "poisson"])
def test_the_objective_never_rises(options, loss):
    table = low_rank(300, 5, 2, sigma=0.5, seed=21)
    y = np.round(np.exp(np.clip(table.y, -2, 4) / 2)) if loss == "poisson" else table.y
    history = SecondOrderRegressor(loss=loss, **options).fit(table.X, y).history_
    losses = np.array([record.loss for record in history])
    assert np.isfinite(losses).all()
    assert np.all(np.diff(losses) <= 1e-12 * losses[0])


# --- the optimum --------------------------------------------------------------------------------

NOISY = low_rank(200, 4, 2, sigma=0.5, seed=20)
Z = (NOISY.X - NOISY.X.mean(0)) / NOISY.X.std(0)


@pytest.mark.parametrize("rank", [4, 9])
@pytest.mark.parametrize("weighted", [False, True])
def test_full_rank_is_dense_least_squares(rank, weighted):
    weight = np.random.default_rng(0).uniform(0.5, 2, 200) if weighted else None
    model = SecondOrderRegressor(rank, alpha=0.0, tol=1e-12)
    model.fit(NOISY.X, NOISY.y, sample_weight=weight)
    A = quadratic_columns(NOISY.X)
    oracle = LinearRegression(fit_intercept=False).fit(A, NOISY.y, sample_weight=weight)
    np.testing.assert_allclose(model.predict(NOISY.X), oracle.predict(A), atol=1e-8)
    i, j = np.triu_indices(4)
    told = [model.interaction(a, b) for a, b in zip(i.tolist(), j.tolist(), strict=True)]
    np.testing.assert_allclose(told, oracle.coef_[5:], atol=1e-8)
    np.testing.assert_allclose(model.coef_, oracle.coef_[1:5], atol=1e-8)
    assert model.rank_ <= 4


def test_full_rank_of_a_factorization_machine_is_least_squares_on_products_of_two_features():
    i, j = np.triu_indices(4, 1)
    A = np.column_stack([NOISY.X, NOISY.X[:, i] * NOISY.X[:, j]])
    model = FactorizationMachineRegressor(4, alpha=0.0, tol=1e-12).fit(NOISY.X, NOISY.y)
    expected = LinearRegression().fit(A, NOISY.y).predict(A)
    np.testing.assert_allclose(model.predict(NOISY.X), expected, atol=1e-6)


@pytest.mark.smoke
@pytest.mark.parametrize("alpha", [0.1, 10.0, 1000.0])
def test_rank_zero_is_ridge_regression_on_standardised_features(alpha):
    model = SecondOrderRegressor(rank=0, alpha=alpha).fit(NOISY.X, NOISY.y)
    oracle = Ridge(alpha).fit(Z, NOISY.y)
    np.testing.assert_allclose(model.predict(NOISY.X), oracle.predict(Z), atol=1e-8)
    np.testing.assert_allclose(model.coef_ * NOISY.X.std(0), oracle.coef_, atol=1e-8)


@pytest.mark.parametrize("alpha", [0.5, (2.0, 50.0)])
def test_full_rank_with_a_penalty_is_ridge_regression_on_products(alpha):
    # α₁|w|² + 2α₂‖M‖², where 2M_ij is the coefficient of z_i z_j: a ridge on z_i z_j and z_i²/√2.
    first, second = alpha if isinstance(alpha, tuple) else (alpha, alpha)
    i, j = np.triu_indices(4)
    products = Z[:, i] * Z[:, j] * np.where(i == j, 0.5**0.5, 1.0)
    A = np.column_stack([Z / np.sqrt(first), products / np.sqrt(second)])
    expected = Ridge(1.0, tol=1e-12).fit(A, NOISY.y).predict(A)
    model = SecondOrderRegressor(4, alpha=alpha, tol=1e-14).fit(NOISY.X, NOISY.y)
    np.testing.assert_allclose(model.predict(NOISY.X), expected, atol=1e-6)


def test_given_numbers_are_kept_and_larger_penalties_shrink_more():
    sizes = []
    for alpha in (0.0, 10.0, 1e3, 1e6):
        model = SecondOrderRegressor(rank=2, alpha=alpha).fit(NOISY.X, NOISY.y)
        assert model.rank_ == 2
        assert model.alpha_ == (alpha, alpha)
        sizes.append(np.var(model.predict(NOISY.X)))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 1e-3 * sizes[0]
    assert SecondOrderRegressor(2, alpha=(2.0, 5.0)).fit(NOISY.X, NOISY.y).alpha_ == (2.0, 5.0)


def test_no_other_parameters_of_low_rank_have_smaller_squared_errors():
    # Directions in the tangent space of the fit change the error to second order only.
    model = SecondOrderRegressor(rank=2, alpha=0.0, tol=1e-14).fit(NOISY.X, NOISY.y)
    residual = NOISY.y - model.predict(NOISY.X)
    U = model.components_.T
    slopes = [residual.sum(), *(NOISY.X.T @ residual)]
    slopes += [*((NOISY.X * residual[:, None]).T @ (NOISY.X @ U)).ravel()]
    np.testing.assert_allclose(np.array(slopes) / 200, 0, atol=1e-5)


@pytest.mark.parametrize("kind", [SecondOrderRegressor, FactorizationMachineRegressor])
@pytest.mark.parametrize(
    "law", ["gaussian", "binary", "constant", "twins", "cauchy", "huge", "tiny"]
)
def test_no_fit_predicts_its_training_rows_worse_than_the_mean(kind, law):
    sizes = product(
        [(3, 1), (5, 6), (20, 2), (60, 8)], [{}, {"rank": 1, "alpha": 0.0}, {"rank": 3}]
    )
    for seed, ((n, d), options) in enumerate(sizes):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((n, d))
        X = {
            "gaussian": X,
            "binary": (X > 0).astype(float),
            "constant": np.full((n, d), 3.0),
            "twins": np.repeat(X[:, :1], d, axis=1),
            "cauchy": rng.standard_cauchy((n, d)),
            "huge": 1e30 * X,
            "tiny": 1e-30 * X,
        }[law]
        y = rng.standard_normal(n)
        with warnings.catch_warnings():  # on too few rows, and on extreme ones
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", UserWarning)
            predicted = kind(random_state=0, **options).fit(X, y).predict(X)
        assert np.mean((predicted - y) ** 2) <= np.var(y) * (1 + 1e-6)
