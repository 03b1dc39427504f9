"""Input that looks like numbers but is not what it seems is refused in words."""

import numpy as np
import pytest

from quadlin import SecondOrderClassifier, SecondOrderRegressor

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 3))
Y = X[:, 0] * X[:, 1] + 0.1 * RNG.standard_normal(60)


@pytest.mark.parametrize("size", [1e-150, 1e-200, 1e-300])
def test_numbers_whose_squares_are_rounded_to_zero_are_not_taken_for_constant(size):
    for model in (SecondOrderRegressor(), SecondOrderRegressor(rank=1, batch_size=10)):
        learn = model.fit if model.batch_size == "auto" else model.partial_fit
        with pytest.raises(ValueError, match="'y' varies by too little to be squared"):
            learn(X, size * Y)
        with pytest.raises(ValueError, match="'x1' varies by too little to be squared"):
            learn(X * [1, size, 1], Y)


@pytest.mark.parametrize("value", [0.0, 3.0, 1e-300])
def test_constants_of_any_size_are_fitted(value):
    model = SecondOrderRegressor(rank=1, random_state=0).fit(X * [1, 0, 1] + [0, value, 0], 0 * Y)
    assert np.isfinite(model.predict(X)).all()


def test_masked_entries_are_refused_with_what_to_do():
    masked = np.ma.masked_array(X, mask=X > 2)
    count = int((X > 2).sum())
    with pytest.raises(ValueError, match=rf"X is a masked array with {count} masked.*missing="):
        SecondOrderRegressor().fit(masked, Y)
    with pytest.raises(ValueError, match="X is a masked array"):
        SecondOrderClassifier().fit(masked, Y > 0)
    with pytest.raises(ValueError, match="y is a masked array with 1 masked"):
        SecondOrderRegressor().fit(X, np.ma.masked_array(Y, mask=np.arange(60) == 3))
    with pytest.raises(ValueError, match="sample_weight is a masked array"):
        SecondOrderRegressor().fit(X, Y, np.ma.masked_array(np.ones(60), mask=np.arange(60) == 3))
    model = SecondOrderRegressor(rank=1, random_state=0).fit(np.ma.masked_array(X), Y)
    with pytest.raises(ValueError, match="X is a masked array"):
        model.predict(masked)
    filled = SecondOrderRegressor(rank=1, missing="mean").fit(masked.filled(np.nan), Y)
    assert np.isfinite(filled.predict(X)).all()


def test_complex_targets_are_named():
    with pytest.raises(ValueError, match="y holds complex numbers"):
        SecondOrderRegressor().fit(X, Y + 1j)
