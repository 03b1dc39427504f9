"""Deviances of rows left out against fits without them, and what they decide for labels."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.metrics import log_loss, mean_poisson_deviance
from sklearn.preprocessing import StandardScaler

from quadlin import SecondOrderClassifier, SecondOrderRegressor
from quadlin.core.chunks import MemorySource
from quadlin.core.model import constant_model
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.labels.label_table import LabelTable
from quadlin.solve.labels.left_out_deviance import Repeated, linear_model
from quadlin.solve.labels.logistic import LogisticFit
from quadlin.solve.lowrank.types import Options


def left_out(X, y, alpha, weight=None):
    """Return the deviance of each row of logistic regression when it is left out."""
    rows = Rows.of(MemorySource(X, y, weight))
    surveyed = rows.reduce(survey)
    make_units = UnitsMaker("auto", True, np.float64, None, labels=True)
    units = make_units(surveyed.features, surveyed.target)
    options = Options(rank=0, alpha=(alpha, alpha), loss="logistic")
    fit = LogisticFit(rows, units, make_units, surveyed, 0)
    table = LabelTable.of(rows, units, options, "logistic")
    at = table.fitted(constant_model(units, 0, units.target.centre), options.alpha)
    working = fit.working(at.model, options)
    gram = linear_model(working, np.zeros((X.shape[1], 0)), options, len(y))
    repeated = Repeated.of(rows)
    by_walks = repeated.predictions(working, gram, options.alpha)
    by_table = table.left_out(at, options.alpha, repeated.times)
    np.testing.assert_allclose(by_table, by_walks, rtol=1e-6)
    return repeated.deviance(rows, by_table, "logistic")


def labelled(n=60, d=3):
    rng = np.random.default_rng(3)
    X = StandardScaler().fit_transform(rng.standard_normal((n, d)))
    return X, (rng.uniform(size=n) < 1 / (1 + np.exp(-X[:, 0] - X[:, 1]))).astype(float)


def test_rows_left_out_have_the_deviance_of_fits_without_them():
    X, y = labelled()
    errors = left_out(X, y, alpha=2.0)
    refitted = []
    for i in range(len(y)):
        others = np.arange(len(y)) != i
        model = LogisticRegression(C=0.5, tol=1e-10).fit(X[others], y[others])
        p = model.predict_proba(X[[i]])[0, int(y[i])]
        refitted.append(-2 * np.log(p))
    # One Newton step instead of a fit: the error is of the order of the leverage squared, (4/60)².
    assert errors == pytest.approx(np.array(refitted), rel=0.02, abs=0.005)


def test_weights_are_repetitions_of_which_one_is_left_out():
    X, y = labelled()
    times = np.random.default_rng(0).integers(1, 4, len(y))
    weighted = left_out(X, y, 2.0, times.astype(float))
    repeated = left_out(np.repeat(X, times, axis=0), np.repeat(y, times), 2.0)
    assert weighted == pytest.approx(repeated, rel=1e-6)


def test_weights_that_are_no_whole_numbers_leave_out_all_of_a_row():
    X, y = labelled()
    rows = Rows.of(MemorySource(X, y, np.linspace(0.5, 2, len(y))))
    assert np.all(Repeated.of(rows).times == 1)


def test_rows_that_a_feature_separates_are_predicted_almost_without_doubt():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 6))
    X = X[np.abs(X[:, 0]) > 0.3]
    y = (X[:, 0] > 0).astype(int)
    model = SecondOrderClassifier().fit(X[:120], y[:120])
    # The evidence alone takes a penalty that leaves a log-loss of .04 here.
    assert log_loss(y[120:], model.predict_proba(X[120:])) < 0.015


def test_labels_that_no_feature_tells_of_have_the_shares_of_the_classes():
    # The evidence of one table in a few prefers a model of noise; rows left out do not.
    for seed in range(2):
        rng = np.random.default_rng(seed)
        X, y = rng.standard_normal((80, 8)), rng.integers(0, 2, 80)
        p = SecondOrderClassifier().fit(X, y).predict_proba(rng.standard_normal((500, 8)))
        assert np.abs(p[:, 1] - y.mean()).max() < 0.25


def overdispersed(n=160, d=6, size=400.0):
    """Return counts whose variance is about 40 times their mean of log-linear truth."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((2 * n, d))
    mean = size * np.exp(0.4 * X[:, 0] - 0.3 * X[:, 1])
    return X, rng.poisson(mean * rng.gamma(10, 1 / 10, 2 * n)).astype(float)


def test_counts_that_vary_more_than_poissons_law_do_not_ask_for_more_than_they_know():
    X, y = overdispersed()
    model = SecondOrderRegressor(loss="poisson").fit(X[:160], y[:160])
    linear = PoissonRegressor(alpha=0.0, max_iter=1000).fit(X[:160], y[:160])
    ours, theirs = (mean_poisson_deviance(y[160:], m.predict(X[160:])) for m in (model, linear))
    # A likelihood that takes the counts at their word fits all 21 products, at 1.2 × the deviance.
    assert model.rank_ == 0
    assert ours < 1.03 * theirs


def test_counts_that_vary_less_than_poissons_law_are_known_better():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 3))
    y = np.round(1900 * np.exp(0.01 * X[:, 0] + 0.005 * X[:, 1] * X[:, 2]))
    model = SecondOrderRegressor(loss="poisson").fit(X[:100], y[:100])
    # The variation is a tenth of √1900: by Poisson's law there would be nothing but the mean.
    assert model.score(X[100:], y[100:]) > 0.99
