"""Pairs on every estimator and option: the same products as dense least squares on the truth."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression

from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    MatrixSensing,
    PhaseRetriever,
    SecondOrderClassifier,
    SecondOrderRegressor,
    open_source,
)

PAIRS = [(1, 2), (3, 4)]
GIVEN = {"rank": 0, "alpha": 0.0, "pairs": PAIRS, "random_state": 0}
SEARCHED = {"rank": 0, "alpha": 0.0, "pairs": 2, "random_state": 0}


def drawn(n=500, d=6):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    f = X[:, 0] + X[:, 1] * X[:, 2] - 2 * X[:, 3] * X[:, 4]
    return X, f, f + 0.5 * rng.standard_normal(n), rng.uniform(0.5, 2, n)


def columns(X):
    return np.column_stack([X, *(X[:, i] * X[:, j] for i, j in PAIRS)])


def least_squares(X, y, weight=None):
    A, root = np.column_stack([np.ones(len(X)), columns(X)]), np.ones(len(X))
    root = root if weight is None else np.sqrt(weight)
    return A @ np.linalg.lstsq(A * root[:, None], y * root, rcond=None)[0]


def in_pieces(model, X, y):
    for part in np.array_split(np.arange(len(y)), 4):
        model.partial_fit(X[part], y[part])
    return model


WAYS = {
    "rows": lambda model, X, y: model.fit(X, y),
    "sparse": lambda model, X, y: model.fit(csr_array(X), y),
    "source": lambda model, X, y: model.fit(open_source(X, target=y, chunk_rows=90)),
    "threads": lambda model, X, y: model.fit(X, y, engine=2),
    "stream": in_pieces,
}


@pytest.mark.parametrize("options", [GIVEN, SEARCHED], ids=["given", "searched"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [SecondOrderRegressor, FactorizationMachineRegressor])
def test_pairs_are_those_of_dense_least_squares(kind, way, options):
    X, _, y, _ = drawn()
    model = WAYS[way](kind(**options), X, y)
    assert {(p.first, p.second) for p in model.pairs_.pairs} == {("x1", "x2"), ("x3", "x4")}
    np.testing.assert_allclose(model.predict(X), least_squares(X, y), atol=1e-6)


@pytest.mark.parametrize("kind", [SecondOrderRegressor, FactorizationMachineRegressor])
def test_pairs_with_weights_are_those_of_weighted_least_squares(kind):
    X, _, y, weight = drawn()
    model = kind(**GIVEN).fit(X, y, weight)
    np.testing.assert_allclose(model.predict(X), least_squares(X, y, weight), atol=1e-6)


@pytest.mark.parametrize("kind", [SecondOrderRegressor, FactorizationMachineRegressor])
def test_pairs_with_hubers_loss_are_near_the_truth_in_spite_of_gross_errors(kind):
    X, f, y, _ = drawn()
    y = y.copy()
    y[:8] += 100
    model = kind(**SEARCHED, loss="huber").fit(X, y)
    assert {(p.first, p.second) for p in model.pairs_.pairs} == {("x1", "x2"), ("x3", "x4")}
    # Nine coefficients from 500 rows with noise ½: errors of .5·√(9/500) = .07, twice that at most.
    assert np.sqrt(np.mean((model.predict(X) - f) ** 2)) < 0.14


@pytest.mark.parametrize("kind", [SecondOrderClassifier, FactorizationMachineClassifier])
def test_pairs_of_log_odds_are_those_of_logistic_regression_on_the_products(kind):
    X, f, _, _ = drawn()
    labels = np.random.default_rng(1).uniform(size=len(f)) < 1 / (1 + np.exp(-f))
    model = kind(**SEARCHED).fit(X, labels)
    assert {(p.first, p.second) for p in model.pairs_.pairs} == {("x1", "x2"), ("x3", "x4")}
    exact = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(columns(X), labels)
    # The prior on products, a standard deviation of ten, moves log-odds by less than 1%.
    np.testing.assert_allclose(
        model.predict_proba(X)[:, 1], exact.predict_proba(columns(X))[:, 1], atol=5e-3
    )


@pytest.mark.parametrize("kind", [MatrixSensing, PhaseRetriever])
def test_measurements_have_no_features_that_could_interact(kind):
    with pytest.raises(TypeError, match="pairs"):
        kind(pairs=2)
