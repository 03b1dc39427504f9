"""Rows judge a stream's model before it learns them: it is no worse than a constant."""

import numpy as np
import pytest

from quadlin import SecondOrderRegressor
from quadlin.core.block import Block
from quadlin.core.model import predict
from quadlin.stream.verdict import StreamVerdict, trusted


def noise(n, **options):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((n, 4)), rng.standard_normal(n)
    options = {"extrapolation": "free", **options}
    return SecondOrderRegressor(2, alpha=0.0, random_state=0, **options), X, y


@pytest.mark.parametrize("parts", [{}, {"fit_intercept": False}])
def test_a_verdict_is_the_parabola_of_the_rows(parts):
    model, X, y = noise(120, **parts)
    first, new = 60, slice(60, 80)
    fitted = model.fit(X[:first], y[:first]).fitted_
    f = model.predict(X[new])
    stream = model.partial_fit(X[new], y[new]).fitted_.stream
    verdict = stream._judged(stream._learn_pending())
    c = np.mean(y[: first + 20]) if model.fit_intercept else 0.0

    def loss(theta):
        return np.sum((c + theta * (f - c) - y[new]) ** 2)

    before = fitted.state.history[-1].loss * first
    constant = np.sum((y[:first] - (np.mean(y[:first]) if model.fit_intercept else 0.0)) ** 2)
    assert verdict.model - before == pytest.approx(loss(1), rel=1e-9)
    assert verdict.constant - constant == pytest.approx(loss(0), rel=1e-9)
    slope = (loss(1 + 1e-4) - loss(1 - 1e-4)) / 4e-4
    assert verdict.slope == pytest.approx(slope, rel=1e-6, abs=1e-9)


def test_a_model_worse_than_the_constant_is_shortened_to_the_minimum_of_the_parabola():
    # l(θ) = 5 + 3(θ − 0.2)²: 6.92 at 1, 5.12 at 0, and half a slope of 2.4 at 1.
    verdict = StreamVerdict(6.92, 5.12, 2.4)
    assert verdict.theta == pytest.approx(0.2)
    assert StreamVerdict(1.0, 5.0, 0.0).theta == 1  # a good one is left alone
    model, X, y = noise(200)
    state = model.partial_fit(X, y).fitted_.state
    shorter, centre = trusted(state, verdict, "squared"), state.units.target.mean
    shown = state.units.target.scale * predict(shorter.model, Block(X, shorter.units))
    np.testing.assert_allclose(shown, 0.2 * (model.predict(X) - centre), rtol=1e-9, atol=1e-9)


def test_no_stream_is_shown_worse_than_the_constant():
    for seed in range(6):
        rng = np.random.default_rng(seed)
        X, weight = rng.lognormal(0, 1.5, (90, 3)), rng.integers(0, 4, 90).astype(float)
        y = 5 * rng.standard_normal(90) + rng.standard_t(2, 90)
        model = noise(0)[0]
        for stop in range(11, 91, 11):
            part, seen = slice(stop - 11, stop), slice(0, stop)
            model.partial_fit(X[part], y[part], sample_weight=weight[part])
            error = np.average((model.predict(X[seen]) - y[seen]) ** 2, weights=weight[seen])
            centre = np.average(y[seen], weights=weight[seen])
            assert error <= np.average((y[seen] - centre) ** 2, weights=weight[seen]) * (1 + 1e-9)
