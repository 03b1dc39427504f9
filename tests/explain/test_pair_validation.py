"""The picture of a model's pairs: criterion, and errors of rows that no search has seen."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import KFold, cross_val_predict

from quadlin import SecondOrderClassifier, SecondOrderRegressor
from quadlin.plot import PairPathDisplay

FOLDS = KFold(3)
PAIRS = [(3, 4), (1, 2)]  # by strength


def drawn(n=300):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 6))
    f = X[:, 0] + X[:, 1] * X[:, 2] - 2 * X[:, 3] * X[:, 4]
    return X, f, f + 0.5 * rng.standard_normal(n)


def columns(X, count):
    return np.column_stack([X, *(X[:, i] * X[:, j] for i, j in PAIRS[:count])])


def test_errors_of_rows_left_out_are_those_of_least_squares_in_every_fold():
    X, _, y = drawn()
    options = {"rank": 0, "alpha": 0.0, "pairs": 4, "extrapolation": "free", "tol": 1e-12}
    model = SecondOrderRegressor(**options).fit(X, y)
    display = PairPathDisplay.from_estimator(model, X, y, cv=FOLDS)
    assert display.labels == ["no pair", "+ x3 × x4", "+ x1 × x2"]
    constant = sum(np.sum((y[test] - y[train].mean()) ** 2) for train, test in FOLDS.split(X))
    for count, value in enumerate(display.validated):
        predicted = cross_val_predict(LinearRegression(), columns(X, count), y, cv=FOLDS)
        assert value == pytest.approx(1 - np.sum((y - predicted) ** 2) / constant, abs=1e-6)
    drawn_lines = display.plot().figure_.axes[1].lines
    assert drawn_lines[1].get_xdata().tolist() == display.validated


def test_errors_of_labels_are_shares_of_the_deviance():
    X, f, _ = drawn(400)
    y = np.where(np.random.default_rng(1).random(400) < 1 / (1 + np.exp(-f)), "yes", "no")
    model = SecondOrderClassifier(rank=0, alpha=0.0, pairs=PAIRS, random_state=0).fit(X, y)
    display = PairPathDisplay.from_estimator(model, X, y, cv=FOLDS)
    assert display.measure == "D²"
    loss, constant = np.zeros(3), 0.0
    for train, test in FOLDS.split(X):
        labels = (y[test] == "yes").astype(float)
        for count in range(3):
            exact = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000)
            g = exact.fit(columns(X[train], count), y[train]).decision_function(
                columns(X[test], count)
            )
            loss[count] += np.sum(np.logaddexp(0, g) - labels * g)
        share = (y[train] == "yes").mean()
        constant -= np.sum(labels * np.log(share) + (1 - labels) * np.log(1 - share))
    # The prior on products moves log-odds by less than 1%.
    np.testing.assert_allclose(display.validated, 1 - loss / constant, atol=5e-3)


def test_a_model_without_a_search_has_no_way_to_show():
    X, _, y = drawn(60)
    model = SecondOrderRegressor(pairs=None).fit(X, y)
    with pytest.raises(ValueError, match="has not searched for pairs"):
        PairPathDisplay.from_estimator(model, X, y)
