"""The tables of textbooks: truth tables, factorials, lines, parabolas, and next to no rows."""

import itertools
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from contract.tables import nmse, quadratic_columns
from quadlin import FactorizationMachineRegressor, SecondOrderRegressor, find_pairs


def factorial(k, levels=(-1.0, 1.0), replicates=1):
    return np.array(list(itertools.product(levels, repeat=k)) * replicates)


def quietly(model, X, y):
    """Fit as many parameters as there are rows, of which a warning tells."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, y)


GATES = {
    "and": lambda a, b: a * b,
    "or": lambda a, b: np.maximum(a, b),
    "xor": lambda a, b: np.abs(a - b),
    "first": lambda a, b: a,
}


@pytest.mark.smoke
@pytest.mark.parametrize("gate", GATES)
def test_a_truth_table_is_fitted_exactly_by_all_products(gate):
    X = factorial(2, (0.0, 1.0))
    y = GATES[gate](*X.T)
    model = quietly(SecondOrderRegressor(rank=2, alpha=0.0), X, y)
    np.testing.assert_allclose(model.predict(X), y, atol=1e-10)


@pytest.mark.parametrize("gate", GATES)
def test_given_products_are_those_of_the_truth_table(gate):
    X = factorial(2, (0.0, 1.0), replicates=5)
    y = GATES[gate](*X.T)
    model = SecondOrderRegressor(rank=0, alpha=0.0, pairs=[(0, 1)]).fit(X, y)
    expected = np.linalg.lstsq(np.column_stack([np.ones(20), X, X[:, 0] * X[:, 1]]), y)[0]
    told = [model.intercept_, *model.coef_, model.interaction(0, 1)]
    np.testing.assert_allclose(told, expected, atol=1e-10)


def test_the_product_of_two_columns_of_0_and_1_is_found():
    X = np.random.default_rng(0).integers(0, 2, (1000, 2)).astype(float)
    y = X[:, 0] * X[:, 1]
    assert nmse(y, SecondOrderRegressor().fit(X, y).predict(X)) < 1e-18


def test_the_product_of_two_columns_of_plus_and_minus_1_is_exact():
    X = np.random.default_rng(0).choice([-1.0, 1.0], (1000, 2))
    y = X[:, 0] * X[:, 1]
    # The smallest penalty, 1.6e-8 of the weight of the rows, leaves about 1e-9 of each coefficient.
    assert nmse(y, SecondOrderRegressor().fit(X, y).predict(X)) < 1e-17


def test_the_square_of_three_values_is_found():
    X = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], (300, 1))
    assert nmse(X[:, 0] ** 2, SecondOrderRegressor().fit(X, X[:, 0] ** 2).predict(X)) < 1e-18


def test_the_square_of_three_values_is_exact_if_it_is_given():
    X = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], (300, 1))
    model = SecondOrderRegressor(rank=1, alpha=0.0).fit(X, X[:, 0] ** 2)
    assert model.interaction(0, 0) == pytest.approx(1)
    np.testing.assert_allclose([model.intercept_, *model.coef_], 0, atol=1e-10)


@pytest.mark.filterwarnings("ignore:.*extreme:UserWarning")
def test_one_extreme_row_does_not_hide_that_the_others_differ():
    # Without noise y = x0 holds in all rows, so that the extreme one is no contradiction.
    X = np.random.default_rng(0).standard_normal((300, 3))
    X[0] = 1e8
    model = SecondOrderRegressor().fit(X, X[:, 0])
    # The extreme row has 1e13 times the squares of the others, so sums keep three digits of these.
    np.testing.assert_allclose(model.predict(X[1:]), X[1:, 0], atol=1e-2)


@pytest.mark.parametrize(
    ("k", "replicates"),
    list(itertools.product((2, 3, 4), (1, 2, 5))),
)
def test_the_effects_of_a_factorial_are_contrasts_of_means(k, replicates):
    X = factorial(k, replicates=replicates)
    y = 3 + X[:, 0] - 2 * X[:, 0] * X[:, 1] + np.random.default_rng(0).normal(0, 0.1, len(X))
    pairs = list(itertools.combinations(range(k), 2))
    model = quietly(SecondOrderRegressor(rank=0, alpha=0.0, pairs=pairs), X, y)
    np.testing.assert_allclose(model.coef_, X.T @ y / len(y), atol=1e-10)
    for i, j in pairs:
        assert model.interaction(i, j) == pytest.approx(np.mean(X[:, i] * X[:, j] * y), abs=1e-9)


@pytest.mark.parametrize("replicates", [2, 3, 10])
def test_the_default_finds_the_interaction_of_a_replicated_factorial(replicates):
    X = factorial(2, replicates=replicates)
    truth = 1 + 2 * X[:, 0] * X[:, 1]
    y = truth + np.random.default_rng(1).normal(0, 0.2, len(X))
    predicted = SecondOrderRegressor().fit(X, y).predict(X)
    # Four means of the replicates have errors of 0.2²/replicates; nine times that is their square.
    assert np.mean((predicted - truth) ** 2) < 9 * 0.2**2 / replicates


@pytest.mark.parametrize("replicates", [2, 3, 5, 10])
def test_a_search_finds_the_interaction_of_a_replicated_factorial(replicates):
    X = factorial(2, replicates=replicates)
    for seed in range(3):
        noise = np.random.default_rng(seed).normal(0, 0.2, len(X))
        report = find_pairs(X, 1 + 2 * X[:, 0] * X[:, 1] + noise)
        assert [(p.first, p.second) for p in report.pairs] == [("x0", "x1")]


@pytest.mark.smoke
@pytest.mark.parametrize("options", [{}, {"rank": 0, "alpha": 0.0}, {"rank": 1}], ids=str)
def test_a_straight_line_is_a_straight_line(options):
    x = np.linspace(-3, 7, 30)[:, None]
    model = SecondOrderRegressor(**options).fit(x, 2 - 5 * x[:, 0])
    assert model.coef_ == pytest.approx([-5])
    assert model.intercept_ == pytest.approx(2)
    np.testing.assert_allclose(model.predict([[16.0]]), [-78.0], rtol=1e-6)  # within one range


@pytest.mark.parametrize("options", [{}, {"rank": 1, "alpha": 0.0}, {"rank": 3}], ids=str)
def test_a_parabola_is_a_parabola(options):
    x = np.linspace(-3, 7, 30)[:, None]
    model = SecondOrderRegressor(**options).fit(x, 1 + x[:, 0] - 3 * x[:, 0] ** 2)
    assert model.interaction(0, 0) == pytest.approx(-3)
    assert model.coef_ == pytest.approx([1])
    assert model.intercept_ == pytest.approx(1)
    assert model.eigenvalues_[0] == pytest.approx(-3)


def test_one_feature_with_noise_is_polynomial_regression():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((80, 1))
    y = 1 + x[:, 0] + 2 * x[:, 0] ** 2 + rng.standard_normal(80)
    model = SecondOrderRegressor(rank=1, alpha=0.0).fit(x, y)
    A = quadratic_columns(x)
    expected = A @ np.linalg.lstsq(A, y)[0]
    np.testing.assert_allclose(model.predict(x), expected, atol=1e-6)


@pytest.mark.parametrize("kind", [SecondOrderRegressor, FactorizationMachineRegressor])
def test_one_row_is_too_few(kind):
    with pytest.raises(ValueError, match="1 sample"):
        kind().fit([[1.0, 2.0]], [3.0])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", [SecondOrderRegressor, FactorizationMachineRegressor])
def test_two_rows_give_finite_predictions_between_them(kind):
    X, y = np.array([[0.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0])
    with pytest.warns(UserWarning, match="2 rows"):
        model = kind().fit(X, y)
    predicted = model.predict(np.vstack([X, X.mean(axis=0)]))
    assert np.all((predicted > 1 - 1e-6) & (predicted < 2 + 1e-6))


@pytest.mark.parametrize("rank", [0, 1, "auto"])
def test_rows_that_are_all_the_same_are_predicted_by_their_mean(rank):
    y = np.arange(7.0)
    model = SecondOrderRegressor(rank).fit(np.full((7, 1), 3.0), y)
    np.testing.assert_allclose(model.predict([[3.0]]), 3.0)


@pytest.mark.parametrize("kind", [SecondOrderRegressor, FactorizationMachineRegressor])
def test_a_constant_target_is_predicted_with_a_warning(kind):
    X = np.random.default_rng(0).standard_normal((50, 3))
    with pytest.warns(UserWarning, match="5"):
        model = kind().fit(X, np.full(50, 5.0))
    np.testing.assert_allclose(model.predict(X), 5.0)


def test_a_rank_above_the_number_of_features_is_no_restriction():
    X = np.random.default_rng(0).standard_normal((60, 2))
    y = X[:, 0] * X[:, 1] + np.random.default_rng(1).standard_normal(60)
    two, many = (SecondOrderRegressor(rank, alpha=0.5).fit(X, y) for rank in (2, 9))
    np.testing.assert_allclose(many.predict(X), two.predict(X), atol=1e-9)
    assert many.rank_ <= 2


def test_fewer_rows_than_parameters_are_a_warning():
    X = np.random.default_rng(0).standard_normal((20, 10))
    with pytest.warns(ConvergenceWarning, match="rows"):
        model = SecondOrderRegressor(rank=3, alpha=0.0).fit(X, X[:, 0])
    assert model.status_.name == "too_few_rows"


def test_a_model_without_intercept_passes_through_the_origin():
    X = np.random.default_rng(0).standard_normal((100, 3))
    y = X[:, 0] * X[:, 1] + X[:, 2]
    model = SecondOrderRegressor(rank=2, alpha=0.0, fit_intercept=False).fit(X, y)
    assert model.intercept_ == 0
    np.testing.assert_allclose(model.predict(np.zeros((1, 3))), 0, atol=1e-12)
    np.testing.assert_allclose(model.predict(X), y, atol=1e-6)


def test_a_warm_start_ends_at_the_same_optimum():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 4))
    y = X[:, 0] * X[:, 1] + 0.3 * rng.standard_normal(200)
    cold = SecondOrderRegressor(rank=2, alpha=0.1, tol=1e-12).fit(X, y)
    warm = SecondOrderRegressor(rank=2, alpha=0.1, tol=1e-12, warm_start=True).fit(X, 2 * y)
    np.testing.assert_allclose(warm.fit(X, y).predict(X), cold.predict(X), atol=1e-5)
