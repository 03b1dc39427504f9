"""Pairs are tested and validated on rows that did not select them."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import PredefinedSplit, cross_val_predict

from quadlin import find_pairs
from quadlin.explain.pairs import folds


def houses(n=800, seed=0):
    """Columns of very different units, two pairs of which interact."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "area": rng.uniform(30, 200, n),
            "age": rng.exponential(40, n),
            "income": 1e4 * np.exp(0.4 * rng.standard_normal(n)),
            "rooms": rng.integers(1, 7, n).astype(float),
            "garden": (rng.uniform(size=n) < 0.4).astype(float),
        }
    )
    price = 3e5 + 2000 * frame.area - 30 * frame.age * frame.area + 3 * frame.income * frame.garden
    return frame, price + 1e4 * rng.standard_normal(n)


def dense_least_squares(X, y, pairs):
    """Coefficients of products, their HC3 standard errors and R² lost without each."""
    products = [X[:, i] * X[:, j] for i, j in pairs]
    A = np.column_stack([np.ones(len(X)), X, *products])
    A = A / (size := np.linalg.norm(A, axis=0))

    def fitted(A):
        inverse = np.linalg.inv(A.T @ A)
        return inverse @ (A.T @ y), inverse

    beta, inverse = fitted(A)
    r = y - A @ beta
    influence = A @ inverse
    leverage = (influence * A).sum(axis=1)
    std = np.sqrt(((influence * (r / (1 - leverage))[:, None]) ** 2).sum(axis=0))
    total = ((y - y.mean()) ** 2).sum()
    lost = []
    for m in range(len(pairs)):
        rest = np.delete(A, A.shape[1] - len(pairs) + m, axis=1)
        lost.append((((y - rest @ fitted(rest)[0]) ** 2).sum() - r @ r) / total)
    part = slice(A.shape[1] - len(pairs), None)
    return (beta / size)[part], (std / size)[part], lost, 1 - r @ r / total


def test_tests_on_the_other_half_are_least_squares_of_those_rows():
    frame, price = houses()
    report = find_pairs(frame, price, test_on="half")
    searched = folds(len(price), 2) == 1
    assert searched.sum() == report.n_rows == 400
    in_one_half = find_pairs(frame[searched], price[searched])
    assert [p[:2] for p in report.pairs] == [p[:2] for p in in_one_half.pairs]
    names = list(frame.columns)
    at = [(names.index(p.first), names.index(p.second)) for p in report.pairs]
    rest = frame.to_numpy()[~searched], price.to_numpy()[~searched]
    coef, std, lost, _ = dense_least_squares(*rest, at)
    np.testing.assert_allclose([p.coefficient for p in report.pairs], coef, rtol=1e-6)
    np.testing.assert_allclose([p.std_error for p in report.pairs], std, rtol=1e-6)
    np.testing.assert_allclose([p.share for p in report.pairs], lost, rtol=1e-5)


def three_pairs(n=400):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 6))
    y = X[:, 0] + 1.5 * X[:, 1] * X[:, 2] - X[:, 3] * X[:, 4] + X[:, 5] ** 2
    return X, y + rng.standard_normal(n)


def test_rows_left_out_validate_the_way_to_the_pairs():
    X, y = three_pairs()
    report = find_pairs(X, y, cv=4, engine=2)
    assert len(report.validated) == len(report.path) == 4
    # The oracle: least squares on the same parts of the rows, all of which find the three pairs.
    part = folds(len(y), 4)
    products = np.column_stack([X[:, 1] * X[:, 2], X[:, 3] * X[:, 4], X[:, 5] ** 2])
    for A, value in ((X, report.validated[0]), (np.hstack([X, products]), report.validated[3])):
        predicted = cross_val_predict(LinearRegression(), A, y, cv=PredefinedSplit(part))
        assert value == pytest.approx(r2_score(y, predicted), abs=1e-8)
