"""How far out predictions follow a row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from quadlin import FactorizationMachineRegressor, SecondOrderRegressor, SecondOrderRegressorCV
from quadlin.core.moments import Moments
from quadlin.core.reach import Reach
from quadlin.datasets import make_second_order
from quadlin.export.model_file import load, save
from quadlin.export.onnx import to_onnx

DATA = make_second_order(400, 5, rank=2, random_state=0)


def fitted(**options):
    return SecondOrderRegressor(2, alpha=0.0, random_state=0, **options).fit(DATA.X, DATA.y)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 60), st.integers(0, 1000))
def test_no_row_of_the_fit_is_beyond_a_third_of_the_reach(n, seed):
    rng = np.random.default_rng(seed)
    X = np.column_stack(
        [rng.standard_cauchy(n), rng.uniform(size=n) < 0.1, rng.exponential(size=n)]
    )
    reach = Reach.of(Moments.of(X), Moments.of(X[:, :1]), n, X.dtype)
    middle = Moments.of(X).mean
    assert not reach.beyond(X).any()
    assert not reach.beyond(middle + 2.99 * (X - middle)).any()


def test_rows_moderately_out_of_range_are_predicted_exactly_and_far_ones_are_bounded():
    rng = np.random.default_rng(1)
    new = make_second_order(50, 5, rank=2, random_state=0).X
    direction = rng.standard_normal(5)
    free, clip = fitted(extrapolation="free"), fitted()
    moderate = 2.5 * np.abs(DATA.X).max() * np.sign(new)  # 2.5 times the range of the fit
    np.testing.assert_array_equal(clip.predict(moderate), free.predict(moderate))
    assert not clip.extrapolates(moderate).any()
    far = np.vstack([new[:2], 1e8 * direction, 1e80 * direction])
    np.testing.assert_array_equal(clip.extrapolates(far), [False, False, True, True])
    y = clip.predict(far)
    np.testing.assert_allclose(y[:2], free.predict(far[:2]))
    assert y[2] == y[3]  # it is the answer at the end of the reach
    assert abs(y[3]) < 30 * DATA.y.std()


@pytest.mark.parametrize("asarray", [sparse.csr_array, sparse.csc_array])
def test_sparse_rows_are_clipped_as_dense_ones(asarray):
    X = DATA.X * (np.random.default_rng(0).uniform(size=DATA.X.shape) < 0.5)
    model = SecondOrderRegressor(1, alpha=1.0, random_state=0).fit(asarray(X), DATA.y)
    new = X[:4].copy()
    new[1, 2], new[3] = -1e9, 1e9
    np.testing.assert_allclose(model.predict(asarray(new)), model.predict(new))
    np.testing.assert_array_equal(model.extrapolates(asarray(new)), [0, 1, 0, 1])


def test_a_saved_model_and_its_graph_clip_as_well(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    far = np.vstack([DATA.X[:3], 1e6 * DATA.X[:3]])
    for mode in ("clip", "free"):
        model = fitted(extrapolation=mode)
        save(model, tmp_path / "model.safetensors")
        again = load(tmp_path / "model.safetensors")
        assert again.extrapolation == mode
        np.testing.assert_array_equal(again.predict(far), model.predict(far))
        session = runtime.InferenceSession(to_onnx(model).SerializeToString())
        np.testing.assert_allclose(session.run(None, {"X": far})[0], model.predict(far), rtol=1e-9)


def test_every_estimator_has_the_choice_and_refuses_others():
    far = 1e9 * DATA.X[:2]
    for model in (
        FactorizationMachineRegressor(1, alpha=1.0, random_state=0),
        SecondOrderRegressorCV([1], [1.0], cv=2, random_state=0),
    ):
        bounded = np.abs(model.fit(DATA.X, DATA.y).predict(far)).max()
        unbounded = np.abs(model.set_params(extrapolation="free").predict(far)).max()
        assert bounded < 1e5 < unbounded
    with pytest.raises(ValueError, match=r"extrapolation=\"linear\" is not one of 'clip', 'free'"):
        SecondOrderRegressor(extrapolation="linear").fit(DATA.X, DATA.y)


def test_extreme_test_rows_do_not_ruin_a_saturating_target():
    # 20,000 new rows of t(3) features, whose largest are many times those of the fit: the target
    # saturates, and a polynomial that follows them anywhere is worse than the mean.
    rng = np.random.default_rng(2)
    X = rng.standard_t(3, (20_400, 8))
    Z = np.sign(X) * np.log1p(np.abs(X))
    w, U = rng.standard_normal(8) / np.sqrt(8), rng.standard_normal((8, 2)) / np.sqrt(8)
    f = Z @ w + (Z @ U) ** 2 @ [1.0, -1.0]
    y = f + 0.5 * f[:400].std() * rng.standard_normal(len(f))
    model = SecondOrderRegressor(random_state=0).fit(X[:400], y[:400])
    bounded = model.score(X[400:], f[400:])
    assert model.set_params(extrapolation="free").score(X[400:], f[400:]) < -20 < -0.5 < bounded
