"""Streams with pairs: the least squares, or nearly the likelihood, of all rows seen once."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from quadlin import SecondOrderClassifier, SecondOrderRegressor

PAIRS = [(0, 1), (2, 3), (4, 4)]
GIVEN = {"rank": 0, "alpha": 0.0, "pairs": PAIRS, "random_state": 0}


def drawn(n=1500):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 8)) + 0.5 * rng.standard_normal((n, 1))
    X[:, 3] = X[:, 3] > 1
    f = 1 + X @ rng.standard_normal(8) / 3 + products(X) @ [1.0, -2.0, 0.5]
    return X, f, f + 0.5 * rng.standard_normal(n)


def products(X):
    return np.column_stack([X[:, i] * X[:, j] for i, j in PAIRS])


@pytest.mark.parametrize("begun", ["stream", "fit", "constant"])
@pytest.mark.parametrize("weighted", [False, True])
def test_given_pairs_end_in_the_least_squares_of_all_rows(begun, weighted):
    X, _, y = drawn()
    if begun == "constant":  # a column that begins to vary after the first batch
        X[:200, 1] = 3.0
    weight = 1.0 + (np.arange(1500) % 2) * weighted
    model = SecondOrderRegressor(**GIVEN)
    for number, part in enumerate(np.split(np.arange(1500), [200, 600, 601, 1400])):
        learn = model.fit if (number, begun) == (0, "fit") else model.partial_fit
        learn(X[part], y[part], sample_weight=weight[part])
    A, root = np.column_stack([np.ones(1500), X, products(X)]), np.sqrt(weight)
    beta, left = np.linalg.lstsq(A * root[:, None], y * root, rcond=None)[:2]
    noise = left[0] / (weight.sum() - A.shape[1])
    errors = np.sqrt(noise * np.diag(np.linalg.inv((A * weight[:, None]).T @ A)))
    np.testing.assert_allclose(model.predict(X), A @ beta, atol=1e-7)
    pairs = model.pairs_.pairs
    np.testing.assert_allclose([p.coefficient for p in pairs], beta[9:], atol=1e-7)
    np.testing.assert_allclose([p.std_error for p in pairs], errors[9:], rtol=1e-7)
    assert model.pairs_.n_rows_fitted == 1500


def test_pairs_of_labels_are_near_maximum_likelihood():
    X, f, _ = drawn(3000)
    y = (np.random.default_rng(1).random(3000) < 1 / (1 + np.exp(-f))).astype(int)
    A = np.column_stack([X, products(X)])
    peer = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(A, y)
    p, B = peer.predict_proba(A)[:, 1], np.column_stack([np.ones(len(A)), A])
    errors = np.sqrt(np.diag(np.linalg.inv(B.T @ ((p * (1 - p))[:, None] * B))))[9:]
    model = SecondOrderClassifier(**GIVEN).fit(X[:1500], y[:1500])
    pairs = model.partial_fit(X[1500:], y[1500:]).pairs_.pairs
    # A Newton step from a fit to half of the rows is off by the square of its error: by up to .34
    # standard errors over eight draws of the labels.
    assert (np.abs([p.coefficient for p in pairs] - peer.coef_[0, 8:]) < 0.5 * errors).all()
    np.testing.assert_allclose([p.std_error for p in pairs], errors, rtol=0.15)
