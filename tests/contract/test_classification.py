"""Labels in, probabilities out: against logistic regression, known log-odds and laws."""

import functools
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from contract.tables import CLASSIFIERS, KINDS, labels_of, low_rank, planted_pairs
from quadlin import FactorizationMachineClassifier, SecondOrderClassifier

TIGHT = {"tol": 1e-13, "random_state": 0}
GIVEN = {"rank": 1, "alpha": 2.0, "tol": 1e-10, "max_iter": 1000, "random_state": 0}


def odds_table(n=600, d=4, seed=0, scale=1.0):
    """Return rows, 0/1 labels and their true log-odds, 2 x0 x1 + x2."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    odds = scale * (2 * X[:, 0] * X[:, 1] + X[:, 2])
    return X, (rng.uniform(size=n) < expit(odds)).astype(int), odds


def softmax_table(n=600, d=4, seed=0):
    """Return rows, labels 0, 1, 2 and the true scores, with a square in each."""
    rng = np.random.default_rng(seed)
    W, X = rng.standard_normal((d, 3)), rng.standard_normal((n, d))
    F = X @ W + X[:, :3] ** 2 * [0.7, -0.7, 0.7]
    return X, np.argmax(F + rng.gumbel(size=F.shape), axis=1), F


X, Y, ODDS = odds_table()
X3, Y3, _ = softmax_table()
Z = StandardScaler().fit_transform(X)
LABELS = {2: (X, Y), 3: (X3, Y3)}


def products(Z, ratio=1.0):
    """Return the features and all products, scaled so that a plain ridge is α₁|w|² + 2α₂‖M‖²."""
    i, j = np.triu_indices(Z.shape[1])
    scale = np.where(i == j, 2**-0.5, 1.0) / np.sqrt(ratio)
    return np.hstack([Z, Z[:, i] * Z[:, j] * scale])


def maximum_likelihood(features, y, penalty=0.0):
    """Return logistic regression at its optimum."""
    C = 1 / penalty if penalty else np.inf
    model = LogisticRegression(C=C, solver="newton-cholesky", tol=1e-12, max_iter=1000)
    return model.fit(features, y)


def prior_loss(y):
    """Return the log-loss of the shares of the labels."""
    share = np.unique(y, return_counts=True)[1] / len(y)
    return -np.sum(share * np.log(share))


@functools.cache
def default_fit(count=2):
    return SecondOrderClassifier(random_state=0).fit(*LABELS[count])


# Oracles: logistic regression


@pytest.mark.smoke
@pytest.mark.parametrize("alpha", [0.0, 0.3, 30.0])
def test_rank_zero_is_logistic_regression_on_standardised_columns(alpha):
    model = SecondOrderClassifier(0, alpha=alpha, pairs=None, **TIGHT).fit(X, Y)
    expected = maximum_likelihood(Z, Y, alpha).decision_function(Z)
    np.testing.assert_allclose(model.decision_function(X), expected, atol=1e-5)
    np.testing.assert_allclose(model.intercept_ + X @ model.coef_, expected, atol=1e-5)


@pytest.mark.smoke
@pytest.mark.parametrize("alpha", [0.0, 2.0, (2.0, 20.0)])
def test_full_rank_is_logistic_regression_on_all_products(alpha):
    first, second = alpha if isinstance(alpha, tuple) else (alpha, alpha)
    features = products(Z, second / first if first else 1.0)
    model = SecondOrderClassifier(4, alpha=alpha, pairs=None, **TIGHT).fit(X, Y)
    expected = maximum_likelihood(features, Y, first).decision_function(features)
    np.testing.assert_allclose(model.decision_function(X), expected, atol=1e-4)


@pytest.mark.parametrize("weights", [None, "balanced"])
@pytest.mark.parametrize("alpha", [0.5, 20.0])
def test_rank_zero_of_three_classes_is_multinomial_logistic_regression(alpha, weights):
    model = SecondOrderClassifier(0, alpha=alpha, class_weight=weights, pairs=None, **TIGHT)
    factor = np.ones(3) if weights is None else 1 / np.bincount(Y3)
    features = StandardScaler().fit(X3, sample_weight=factor[Y3]).transform(X3)
    peer = LogisticRegression(C=1 / alpha, tol=1e-10, max_iter=10_000, class_weight=weights)
    expected = peer.fit(features, Y3).predict_proba(features)
    np.testing.assert_allclose(model.fit(X3, Y3).predict_proba(X3), expected, atol=1e-3)


@pytest.mark.parametrize("label", [0, 1, 2])
def test_each_of_three_classes_has_the_model_of_that_class_against_the_rest(label):
    one = SecondOrderClassifier(**GIVEN).fit(X3, Y3).one_vs_rest(label)
    alone = SecondOrderClassifier(**GIVEN).fit(X3, np.equal(Y3, label))
    np.testing.assert_allclose(one.coef_, alone.coef_, rtol=1e-6)
    np.testing.assert_allclose(one.predict_proba(X3), alone.predict_proba(X3), atol=1e-6)


def objective(theta, signs, alpha):
    """Return 2 Σ log-loss + α|w|² + 2α‖M‖² of log-odds c + zᵀw + Σ s(zᵀv)², and its gradient."""
    c, w, V = theta[0], theta[1:5], theta[5:].reshape(len(signs), 4)
    ZV, label = Z @ V.T, 2 * Y - 1
    odds = c + Z @ w + ZV**2 @ signs
    M = V.T * signs @ V
    value = 2 * np.sum(np.logaddexp(0, -label * odds)) + alpha * (w @ w + 2 * np.sum(M**2))
    slope = -2 * label * expit(-label * odds)
    of_V = 2 * signs[:, None] * (ZV * slope[:, None]).T @ Z + 8 * alpha * (signs[:, None] * V) @ M
    return value, np.concatenate([[slope.sum()], Z.T @ slope + 2 * alpha * w, of_V.ravel()])


@pytest.mark.parametrize("signs", [[1.0], [1.0, -1.0]])
def test_no_model_of_the_same_rank_has_a_smaller_objective(signs):
    signs, alpha = np.array(signs), 2.0
    model = SecondOrderClassifier(len(signs), alpha=alpha, pairs=None, **TIGHT | {"max_iter": 500})
    model.fit(Z, Y)
    found = np.sqrt(np.abs(model.eigenvalues_))[:, None] * model.components_
    reached = np.concatenate([[model.intercept_], model.coef_, found.ravel()])
    value = objective(reached, np.sign(model.eigenvalues_), alpha)[0]
    starts = np.random.default_rng(0).standard_normal((8, len(reached)))
    others = [minimize(objective, t, (signs, alpha), "L-BFGS-B", jac=True).fun for t in starts]
    assert value <= min(others) * (1 + 1e-4)


# Probabilities


@pytest.mark.parametrize("Estimator", CLASSIFIERS)
@pytest.mark.parametrize("count", [2, 3])
def test_probabilities_labels_and_log_odds_agree(Estimator, count):
    rows, y = LABELS[count]
    model = Estimator(**GIVEN).fit(rows, y)
    p = model.predict_proba(rows)
    assert p.shape == (len(y), count)
    assert ((p > 0) & (p < 1)).all()
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-9)
    np.testing.assert_array_equal(model.predict(rows), model.classes_[p.argmax(axis=1)])
    np.testing.assert_allclose(model.predict_log_proba(rows), np.log(p), atol=1e-9)
    odds = model.decision_function(rows)
    against_rest = p[:, 1] if count == 2 else p
    np.testing.assert_allclose(expit(odds), against_rest, atol=1e-9)
    assert model.score(rows, y) == accuracy_score(y, model.predict(rows))


@pytest.mark.parametrize("count", [2, 3])
def test_probabilities_of_new_rows_are_calibrated(count):
    draw = odds_table if count == 2 else softmax_table
    rows, y, _ = draw(20_600)
    model = SecondOrderClassifier(random_state=0).fit(rows[:600], y[:600])
    p = model.predict_proba(rows[600:])
    for label in range(count):
        bins = np.digitize(p[:, label], np.arange(0.1, 1, 0.1))
        for k in np.unique(bins):
            some = bins == k
            # A bin of m rows has a sampling error of ½/√m; 600 training rows move a log-odds by
            # about √(10/(600·¼)) = 0.26, which is 0.06 in probability at most.
            margin = 0.06 + 4 * 0.5 / np.sqrt(some.sum())
            assert abs(np.mean(y[600:][some] == label) - p[some, label].mean()) < margin


@pytest.mark.parametrize("kind", KINDS)
def test_no_fit_is_worse_than_the_shares_of_the_labels_on_its_own_rows(kind):
    table = low_rank(150, 4, 2, kind=kind, seed=1)
    for y in (labels_of(table), np.random.default_rng(2).integers(0, 2, 150)):
        p = SecondOrderClassifier(random_state=0).fit(table.X, y).predict_proba(table.X)
        assert log_loss(y, p) <= prior_loss(y) * (1 + 1e-6)


def test_noise_is_predicted_by_the_shares_of_the_labels():
    rng = np.random.default_rng(0)
    rows, y = rng.standard_normal((5300, 8)), rng.uniform(size=5300) < 0.3
    p = SecondOrderClassifier(random_state=0).fit(rows[:300], y[:300]).predict_proba(rows[300:])
    truth = log_loss(y[300:], np.full(5000, 0.3))
    # Logistic regression with its nine parameters costs 9/(2·300) = 0.015 beyond the truth.
    assert log_loss(y[300:], p) < truth + 0.02


# Laws


@pytest.mark.parametrize("Estimator", CLASSIFIERS)
@pytest.mark.parametrize("count", [2, 3])
def test_weights_equal_repetition(Estimator, count):
    rows, y = LABELS[count]
    weight = np.random.default_rng(0).integers(0, 3, len(y))
    spoiled = np.where(weight[:, None] > 0, rows, 1e3)  # rows of weight 0 are absent
    weighted = Estimator(**GIVEN).fit(spoiled, y, sample_weight=weight)
    repeated = Estimator(**GIVEN).fit(np.repeat(rows, weight, axis=0), np.repeat(y, weight))
    p = repeated.predict_proba(rows)
    np.testing.assert_allclose(weighted.predict_proba(rows), p, atol=1e-4)


@pytest.mark.parametrize("Estimator", CLASSIFIERS)
@pytest.mark.parametrize("count", [2, 3])
def test_class_weights_are_weights_of_rows(Estimator, count):
    rows, y = LABELS[count]
    by_class = Estimator(class_weight={1: 3.0}, **GIVEN).fit(rows, y)
    by_row = Estimator(**GIVEN).fit(rows, y, sample_weight=np.where(y == 1, 3.0, 1.0))
    np.testing.assert_allclose(by_class.predict_proba(rows), by_row.predict_proba(rows), atol=1e-6)


TEXT = np.array(["no", "so", "yes"])
FORMS = {
    "text": lambda y: TEXT[y],
    "whole numbers": lambda y: np.array([-4, 7, 9])[y],
    "floats": lambda y: y.astype(float),
    "truth values": lambda y: y == 2,
    "a list": lambda y: TEXT[y].tolist(),
    "categories": lambda y: pd.Series(pd.Categorical(TEXT[y])),
}


@pytest.mark.parametrize("form", FORMS)
def test_labels_may_have_any_form(form):
    rows, y = LABELS[3]
    given = FORMS[form](y)
    model = SecondOrderClassifier(0, alpha=1.0, **TIGHT).fit(rows, given)
    plain = SecondOrderClassifier(0, alpha=1.0, **TIGHT)
    plain.fit(rows, y if form != "truth values" else (y == 2).astype(int))
    np.testing.assert_allclose(model.predict_proba(rows), plain.predict_proba(rows), atol=1e-9)
    assert model.classes_.tolist() == sorted(set(given))
    assert set(model.predict(rows).tolist()) <= set(given)
    assert model.score(rows, given) > max(np.mean(np.asarray(given) == c) for c in set(given))


CHANGES = {
    "names of classes": lambda X, y, rng: (X, np.array([2, 0, 1])[y]),
    "order of rows": lambda X, y, rng: (X[(order := rng.permutation(len(y)))], y[order]),
    "order of columns": lambda X, y, rng: (X[:, [2, 0, 3, 1]], y),
    "units": lambda X, y, rng: (X * [1e-3, 5.0, -2.0, 1e4] + [0.0, 30.0, -7.0, 1e3], y),
}


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("change", CHANGES)
def test_names_order_and_units_do_not_matter(change, count):
    rows, y = LABELS[count]
    moved, labels = CHANGES[change](rows, y, np.random.default_rng(0))
    model = SecondOrderClassifier(random_state=0).fit(moved, labels)
    loss = log_loss(labels, model.predict_proba(moved))
    assert loss == pytest.approx(log_loss(y, default_fit(count).predict_proba(rows)), rel=2e-3)


# What is found


@pytest.mark.smoke
def test_a_planted_interaction_is_found_in_the_log_odds():
    model = default_fit()
    best = model.interactions_.top(1)[0]
    assert {best.first, best.second} == {"x0", "x1"}
    assert [{pair.first, pair.second} for pair in model.pairs_.pairs] == [{"x0", "x1"}]
    pair = model.pairs_.pairs[0]
    assert abs(pair.coefficient - 2) < 4 * pair.std_error


@pytest.mark.parametrize("seed", range(2))
def test_planted_interactions_are_learned_to_the_statistical_error(seed):
    table, _ = planted_pairs(4000, 6, 2, seed=seed)
    odds = 2 * (table.truth - np.median(table.truth))
    y = (np.random.default_rng(seed).uniform(size=4000) < expit(odds)).astype(int)
    model = SecondOrderClassifier(random_state=0).fit(table.X[:1000], y[:1000])
    loss = log_loss(y[1000:], model.predict_proba(table.X[1000:]))
    # Nine parameters cost 9/(2·1,000) = 0.0045 on average, with as much by chance; all 27
    # products would cost 0.014, and no products at all 0.15.
    assert loss < log_loss(y[1000:], expit(odds[1000:])) + 0.02


@pytest.mark.parametrize("rank", [2, "auto"])
def test_a_quadratic_form_of_low_rank_is_learned_to_the_statistical_error(rank):
    table = low_rank(9000, 10, 2, seed=3)
    odds = 1.5 * (table.truth - np.median(table.truth))
    y = (np.random.default_rng(0).uniform(size=9000) < expit(odds)).astype(int)
    model = SecondOrderClassifier(rank, random_state=0).fit(table.X[:2000], y[:2000])
    loss = log_loss(y[2000:], model.predict_proba(table.X[2000:]))
    # 30 parameters cost 30/(2·2,000) = 0.0075; twice that leaves room for chance, and a model
    # without products is 0.2 worse.
    assert loss < log_loss(y[2000:], expit(odds[2000:])) + 0.015


# Labels without noise


@pytest.mark.parametrize("Estimator", CLASSIFIERS)
@pytest.mark.parametrize("function", [np.logical_and, np.logical_or, np.logical_xor])
def test_truth_tables_are_learned_with_certainty(Estimator, function):
    rows = np.random.default_rng(0).integers(0, 2, (1000, 2)).astype(float)
    y = function(rows[:, 0], rows[:, 1]).astype(int)
    model = Estimator(random_state=0).fit(rows, y)
    assert model.score(rows, y) == 1
    # 250 rows of each cell without an exception: the next one is an exception in at most 1 of 50.
    assert np.abs(model.predict_proba(rows)[:, 1] - y).max() < 0.02


SEPARABLE = {
    "a line": lambda X: X[:, 0] > 0,
    "a circle": lambda X: np.sum(X**2, axis=1) > 2,
    "a product": lambda X: X[:, 0] * X[:, 1] > 0,
    "three stripes": lambda X: np.digitize(X[:, 0], [-0.5, 0.5]),
}


@pytest.mark.parametrize("kind", SEPARABLE)
def test_rows_that_can_be_separated_have_finite_log_odds(kind):
    rows = np.random.default_rng(0).standard_normal((400, 3))
    y = SEPARABLE[kind](rows)
    model = SecondOrderClassifier(random_state=0).fit(rows[:200], y[:200])
    assert np.isfinite(model.decision_function(rows)).all()
    # No penalty at all would be sure of the few new rows beyond the border, and wrong.
    assert log_loss(y[200:], model.predict_proba(rows[200:])) < 0.35


def test_rows_that_can_be_separated_are_named_without_a_penalty():
    with pytest.warns(ConvergenceWarning, match="separat"):
        model = SecondOrderClassifier(0, alpha=0, pairs=None).fit(X, X[:, 0] > 0)
    assert np.isfinite(model.decision_function(X)).all()
    assert model.score(X, X[:, 0] > 0) > 0.99


# Standard errors


@functools.cache
def shifted_table(shift=0.0):
    """Return 1,000 rows around 3, and labels with a product in their log-odds."""
    rng = np.random.default_rng(0)
    rows = rng.normal(3, 1, (1000, 3))
    odds = 0.5 * (rows[:, 0] - 3) * (rows[:, 1] - 3) + 0.7 * (rows[:, 2] - 3)
    y = (rng.uniform(size=1000) < expit(odds)).astype(int)
    return rows + shift, y


def information(features, y, robust=False):
    """Return the covariance of maximum likelihood, of Fisher's information or the sandwich HC3."""
    p = maximum_likelihood(features[:, 1:], y).predict_proba(features[:, 1:])[:, 1]
    inverse = np.linalg.inv(features.T @ (features * (p * (1 - p))[:, None]))
    if not robust:
        return inverse
    leverage = p * (1 - p) * np.sum(features @ inverse * features, axis=1)
    residual = (y - p) / (1 - leverage)
    return inverse @ (features.T @ (features * residual[:, None] ** 2)) @ inverse


@pytest.mark.parametrize("uncertainty", [True, "robust"])
@pytest.mark.parametrize("rank", [0, 3])
def test_standard_errors_are_those_of_the_dense_model(uncertainty, rank):
    rows, y = shifted_table()
    i, j = np.triu_indices(3)
    dense = np.column_stack([np.ones(len(y)), rows, rows[:, i] * rows[:, j]])
    dense = dense[:, : 4 if rank == 0 else None]
    C = information(dense, y, uncertainty == "robust")
    model = SecondOrderClassifier(rank, alpha=0, pairs=None, uncertainty=uncertainty, **TIGHT)
    model.fit(rows, y)
    expected = np.sqrt(np.diag(C))
    np.testing.assert_allclose([model.intercept_std_, *model.coef_std_], expected[:4], rtol=1e-3)
    if rank:
        assert model.interaction_std(0, 1) == pytest.approx(expected[5], rel=1e-3)
    _, std = model.decision_function(rows, return_std=True)
    np.testing.assert_allclose(std, np.sqrt(np.sum(dense @ C * dense, axis=1)), rtol=1e-3)


def pair_fit(shift=0.0, pairs=((0, 1),)):
    options = {"rank": 0, "alpha": 0, "uncertainty": True, **TIGHT}
    return SecondOrderClassifier(pairs=list(pairs), **options).fit(*shifted_table(shift))


@functools.cache
def pair_oracle():
    rows, y = shifted_table()
    dense = np.column_stack([np.ones(len(y)), rows, rows[:, 0] * rows[:, 1]])
    return dense, maximum_likelihood(dense[:, 1:], y), information(dense, y)


def test_a_given_pair_is_that_of_maximum_likelihood_with_its_standard_error():
    _, peer, C = pair_oracle()
    model = pair_fit()
    assert model.interaction(0, 1) == pytest.approx(peer.coef_[0, -1], rel=1e-3)
    assert model.interaction_std(0, 1) == pytest.approx(np.sqrt(C[-1, -1]), rel=0.01)
    np.testing.assert_allclose(model.coef_, peer.coef_[0, :3], rtol=1e-3)


def test_standard_errors_of_linear_terms_beside_a_pair_are_those_of_the_dense_model():
    _, _, C = pair_oracle()
    np.testing.assert_allclose(pair_fit().coef_std_, np.sqrt(np.diag(C))[1:4], rtol=0.01)


def test_standard_errors_of_a_column_in_no_pair_do_not_depend_on_the_origin():
    here, there = pair_fit(), pair_fit(-3.0)
    assert here.coef_std_[2] == pytest.approx(there.coef_std_[2], rel=0.01)


def test_standard_errors_of_log_odds_beside_a_pair_are_those_of_the_dense_model():
    dense, _, C = pair_oracle()
    _, std = pair_fit().decision_function(dense[:, 1:4], return_std=True)
    np.testing.assert_allclose(std, np.sqrt(np.sum(dense @ C * dense, axis=1)), rtol=0.01)


@pytest.mark.parametrize("count", [2, 3])
def test_standard_errors_of_probabilities_follow_from_those_of_log_odds(count):
    rows, y = LABELS[count]
    model = SecondOrderClassifier(uncertainty=True, **GIVEN).fit(rows, y)
    odds, error = model.decision_function(rows, return_std=True)
    p, std = model.predict_proba(rows, return_std=True)
    np.testing.assert_array_equal(p, model.predict_proba(rows))
    assert odds.shape == error.shape
    odds, error = (a.reshape(len(y), -1)[:, -1] for a in (odds, error))
    slope = expit(odds) * expit(-odds)
    np.testing.assert_allclose(std[:, -1], slope * error, rtol=1e-6, atol=1e-9)


# Given pairs


@functools.cache
def capital_gains():
    """Return a table with a column of incomes, half of them 0, from 50 to more than 100,000."""
    rng = np.random.default_rng(3)
    gain = np.where(rng.uniform(size=1000) < 0.5, np.exp(rng.normal(8, 2, 1000)), 0.0)
    age, hours = rng.normal(40, 12, 1000), np.clip(rng.normal(40, 12, 1000), 1, 99)
    odds = -1.5 + 0.05 * (age - 40) + 0.03 * (hours - 40) + 2 * (gain > 5000)
    y = (rng.uniform(size=1000) < expit(odds)).astype(int)
    return np.column_stack([gain, age, hours]), y


@pytest.mark.filterwarnings("ignore:.*extreme:UserWarning")
@pytest.mark.parametrize("options", [{}, {"rank": 0, "alpha": 0}])
def test_given_pairs_never_make_a_fit_to_its_own_rows_worse(options):
    rows, y = capital_gains()
    model = SecondOrderClassifier(pairs=[(0, 0), (0, 1), (0, 2)], random_state=0, **options)
    p = model.fit(rows, y).predict_proba(rows)
    features = StandardScaler().fit_transform(rows)
    peer = maximum_likelihood(features, y).predict_proba(features)
    assert log_loss(y, p) <= 1.005 * log_loss(y, peer)  # penalties may cost a little


# Errors


BAD = {
    "one class": (lambda y: np.ones(len(y)), "class"),
    "numbers that are no labels": (lambda y: y + np.linspace(0, 0.5, len(y)), "(?i)regress"),
    "missing labels": (lambda y: np.where(np.arange(len(y)) == 7, np.nan, y), "(?i)nan|missing"),
    "too few labels": (lambda y: y[:-1], "599"),
}


@pytest.mark.smoke
@pytest.mark.parametrize("case", BAD)
def test_labels_that_cannot_be_learned_raise_an_error(case):
    change, words = BAD[case]
    for Estimator in CLASSIFIERS:
        with pytest.raises(ValueError, match=words):
            Estimator().fit(X, change(Y))


# Factorization machines for labels


@functools.cache
def likes(n=3000):
    """Return pairs of users and films, labels, and the true log-odds."""
    rng = np.random.default_rng(0)
    user, film = rng.integers(60, size=n), rng.integers(40, size=n)
    taste, kind = rng.normal(size=(60, 2)), rng.normal(size=(40, 2))
    odds = 0.5 * rng.normal(size=60)[user] + 1.5 * np.sum(taste[user] * kind[film], axis=1)
    rows = pd.DataFrame({"user": user.astype(str), "film": film.astype(str)})
    return rows, (rng.uniform(size=n) < expit(odds)).astype(int), odds


@pytest.mark.parametrize("draws", [None, 60])
def test_a_machine_learns_likes_of_users_and_films(draws):
    rows, y, odds = likes()
    machine = FactorizationMachineClassifier(draws=draws, random_state=0)
    p = machine.fit(rows[:2400], y[:2400]).predict_proba(rows[2400:])[:, 1]
    one_hot = pd.get_dummies(rows)
    biases = LogisticRegression(max_iter=1000).fit(one_hot[:2400], y[:2400])
    by_bias = roc_auc_score(y[2400:], biases.predict_proba(one_hot[2400:])[:, 1])
    truth = roc_auc_score(y[2400:], odds[2400:])
    # Three numbers of each of 100 levels from 2,400 labels: more than half of what is to be had.
    assert roc_auc_score(y[2400:], p) > by_bias + 0.5 * (truth - by_bias)
    for low in (0.0, 0.25, 0.5, 0.75):  # and they are calibrated
        some = (p >= low) & (p <= low + 0.25)
        # Some 150 rows in each bin: three standard errors of their share are 0.12 at most.
        assert abs(y[2400:][some].mean() - p[some].mean()) < 0.12


# Public tables


PUBLIC = {"wine": load_wine, "iris": load_iris, "breast cancer": load_breast_cancer}


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLIC)
def test_public_tables_are_predicted_as_well_as_by_tuned_logistic_regression(name):
    rows, y = PUBLIC[name](return_X_y=True)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    tuned = LogisticRegressionCV(Cs=7, scoring="neg_log_loss", cv=5, max_iter=5000)
    peers = [make_pipeline(StandardScaler(), tuned)]
    if rows.shape[1] < 20:
        squares = PolynomialFeatures(2, include_bias=False)
        peers.append(make_pipeline(StandardScaler(), squares, StandardScaler(), tuned))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of changed defaults of the peer
        models = [SecondOrderClassifier(random_state=0), *peers]
        scores = [cross_val_score(m, rows, y, cv=folds, scoring="neg_log_loss") for m in models]
    loss, *others = (-score.mean() for score in scores)
    assert loss < 1.1 * min(others)  # the standard error over five folds is larger
