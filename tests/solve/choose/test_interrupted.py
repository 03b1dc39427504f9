"""Ctrl-C while rank and penalties are being chosen leaves the best candidate so far."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from quadlin import SecondOrderRegressor, Status, open_source
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.choose.automatic import RankSearch
from quadlin.solve.lowrank.types import Options

D = 40  # too many features for all products in one walk


def rows(n=1500):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, D)) + 1.0
    u, v = rng.standard_normal((2, D)) / np.sqrt(D)
    y = 2 * X[:, 0] + (X @ u) ** 2 - (X @ v) ** 2 + 0.3 * rng.standard_normal(n)
    return X, y


def interrupted_after(chunks):
    """Fit rows whose walks are interrupted for good after so many chunks, as a terminal does."""
    X, y = rows()
    seen = 0

    def watch(n):
        nonlocal seen
        seen += 1
        if seen > chunks:
            raise KeyboardInterrupt

    source = replace(open_source(X, target=y, chunk_rows=len(y)), watch=watch)
    model = SecondOrderRegressor(pairs=None, random_state=0)
    with suppress(KeyboardInterrupt):
        model.fit(source)
    return model, X, y, seen


def test_an_interrupted_choice_keeps_its_best_candidate():
    *_, total = interrupted_after(10**9)
    scores = {}
    for share in (0.2, 0.8):
        model, X, y, _ = interrupted_after(int(share * total))
        assert model.status_ is Status.interrupted
        scores[share] = model.score(X, y)
    assert scores[0.2] > 0.3  # a linear model explains so much
    assert scores[0.8] > 0.95  # the low rank was tried by then
    early, *_ = interrupted_after(2)
    assert not hasattr(early, "fitted_")  # there is no candidate yet


def test_ridge_regression_so_far_is_that_of_its_penalty():
    X, y = rows(300)
    all_rows = Rows.of(open_source(X, target=y))
    surveyed = all_rows.reduce(survey)
    units = UnitsMaker("auto", True, np.dtype(float), [f"x{j}" for j in range(D)], (), True)(
        surveyed.features, surveyed.target
    )
    search = RankSearch(all_rows, units, Options(rank=0), 300, 300.0, 0)
    assert search.best_so_far() is None
    ridge = search.ridge()
    choice = search.best_so_far()
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    t = (y - y.mean()) / y.std()
    oracle = Ridge(choice.options.alpha[0]).fit(Z, t)
    np.testing.assert_allclose(choice.solution.model.w, oracle.coef_, rtol=1e-6)
    assert choice.solution.status is Status.interrupted
    left = np.std(t - oracle.predict(Z))
    assert np.sqrt(ridge.noise) == pytest.approx(left, rel=0.2)  # by degrees of freedom


def test_an_interrupt_while_standard_errors_are_computed_says_so(monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("quadlin.estimators.regression.fitting.law_of", interrupted)
    X, y = rows(200)
    model = SecondOrderRegressor(1, alpha=0.1, uncertainty=True, random_state=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert model.status_ is Status.interrupted
    assert np.isfinite(model.predict(X)).all()
    with pytest.raises(AttributeError, match="interrupted before its standard errors"):
        _ = model.coef_std_
