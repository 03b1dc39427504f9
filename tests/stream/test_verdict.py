"""Rows judge a stream's model before it learns them: it is no worse than a constant."""

import numpy as np
import pytest

from quadlin import SecondOrderRegressor, load, save
from quadlin.core.block import Block
from quadlin.core.model import predict
from quadlin.stream.verdict import TOO_LONG, StreamVerdict, trusted


def stream_of_noise(n, d, batch_size, seed, **options):
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((n, d)), rng.standard_normal(n)
    X[:, -1] = X[:, 0] > 0.3
    options = {"rank": 2, "alpha": 0.0, "batch_size": batch_size, "random_state": 0, **options}
    return SecondOrderRegressor(**options), X, y


@pytest.mark.parametrize("parts", [{}, {"fit_linear": False}, {"fit_intercept": False}])
def test_a_verdict_is_the_parabola_of_the_rows(parts):
    model, X, y = stream_of_noise(120, 4, 30, 0, **parts)
    first, new = 60, slice(60, 80)
    fitted = model.fit(X[:first], y[:first]).fitted_
    f = model.predict(X[new])
    model.partial_fit(X[new], y[new])
    stream = model.fitted_.stream
    learned = stream._learn_pending()
    verdict = stream._judged(learned)
    c = np.mean(y[: first + 20]) if model.fit_intercept else 0.0

    def loss(theta):
        return np.sum((c + theta * (f - c) - y[new]) ** 2)

    before = fitted.state.history[-1].loss * first
    constant = np.sum((y[:first] - (np.mean(y[:first]) if model.fit_intercept else 0.0)) ** 2)
    assert verdict.model - before == pytest.approx(loss(1), rel=1e-9)
    assert verdict.constant - constant == pytest.approx(loss(0), rel=1e-9)
    slope = (loss(1 + 1e-4) - loss(1 - 1e-4)) / 4e-4
    assert verdict.slope == pytest.approx(slope, rel=1e-6, abs=1e-9)


def test_theta_is_the_minimum_of_the_parabola_and_one_for_a_good_model():
    # l(θ) = 5 + 3(θ − 0.2)²: 6.92 at 1, 5.12 at 0, and half a slope of 2.4 at 1.
    assert StreamVerdict(6.92, 5.12, 2.4).theta == pytest.approx(0.2)
    assert StreamVerdict(1.0, 5.0, 0.0).theta == 1
    assert StreamVerdict(1.0, 5.0, 0.1).theta == 1  # above TOO_LONG
    assert TOO_LONG < 0.97
    assert StreamVerdict(9.0, 5.0, -1.0).theta == 0


def test_one_wild_batch_is_no_verdict():
    usual = StreamVerdict(10.0, 400.0, 0.0)
    wild = StreamVerdict(1e9, 10.0, 1e9).limited()
    assert (usual + wild).theta == 1
    assert (usual + wild + wild + wild + wild).theta < 0.7


def test_a_shortened_model_lies_between_it_and_the_constant():
    model, X, y = stream_of_noise(200, 4, 30, 3)
    state = model.partial_fit(X, y).fitted_.state
    f = model.predict(X)
    shorter = trusted(state, StreamVerdict(6.92, 5.12, 2.4), "squared")
    mean, scale = state.units.target.mean, state.units.target.scale
    shown = mean + scale * predict(shorter.model, Block(X, shorter.units))
    np.testing.assert_allclose(shown - mean, 0.2 * (f - mean), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("batch_size", [2, 5, 17, 40])
@pytest.mark.parametrize("seed", range(3))
def test_no_batch_size_ends_worse_than_a_constant(batch_size, seed):
    # Nothing but noise, features of which one follows another, and outliers in X and y. The
    # row of features beyond all others is left out: that one may be as it likes.
    model, X, y = stream_of_noise(160, 4, batch_size, seed)
    X[60] *= 30
    y[100] = 50
    for start in range(0, 160, 23):
        model.partial_fit(X[start : start + 23], y[start : start + 23])
    errors = np.delete((model.predict(X) - y) ** 2, 60)
    assert np.mean(errors) <= 1.05 * np.var(y)


def test_a_first_step_is_shown_once_new_rows_have_judged_it():
    model, X, y = stream_of_noise(400, 4, 30, 5)
    y = 0.3 * y + 3 * X[:, 0] * X[:, 1]
    model.set_params(extrapolation="free")  # how far features are trusted depends on all rows
    before = model.fit(X[:60], y[:60]).predict(X)
    model.partial_fit(X[60:90], y[60:90])
    np.testing.assert_allclose(model.predict(X), before, atol=1e-9)
    model.partial_fit(X[90:], y[90:])
    assert np.abs(model.predict(X) - before).max() > 0.1


def test_verdicts_survive_a_file(tmp_path):
    model, X, y = stream_of_noise(160, 4, 11, 1)
    model.partial_fit(X[:100], y[:100])
    save(model, tmp_path / "stream")
    loaded = load(tmp_path / "stream")
    assert loaded.fitted_.stream.verdict == model.fitted_.stream.verdict
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    for each in (model, loaded):
        each.partial_fit(X[100:], y[100:])
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
