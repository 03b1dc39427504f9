"""Rows far outside the training rows get a bounded answer, and everybody is told."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.model_selection import KFold, cross_val_score

import quadlin
from quadlin import FactorizationMachineRegressor, SecondOrderRegressor, SecondOrderRegressorCV
from quadlin.datasets import make_second_order

DATA = make_second_order(400, 4, rank=2, noise=0.3, random_state=0)
LOW, HIGH = DATA.X.min(axis=0), DATA.X.max(axis=0)
WIDTH = HIGH - LOW


def fitted(**options):
    return SecondOrderRegressor(rank=2, alpha=1.0, random_state=0, **options).fit(DATA.X, DATA.y)


def far_rows():
    rows = DATA.X[:5].copy()
    rows[1, 2], rows[3, 0] = 1e6, -1e6
    return rows


def test_a_feature_is_held_one_training_range_beyond_the_training_range():
    model, rows = fitted(), far_rows()
    held = rows.copy()
    held[1, 2], held[3, 0] = (HIGH + WIDTH)[2], (LOW - WIDTH)[0]
    with pytest.warns(UserWarning, match=r"2 rows lie far outside .* extrapolation=.free."):
        predictions = model.predict(rows)
    np.testing.assert_array_equal(predictions, fitted(extrapolation="free").predict(held))
    assert model.extrapolates(rows).tolist() == [False, True, False, True, False]


def test_moderate_extrapolation_of_a_true_quadratic_stays_exact(recwarn):
    clean = make_second_order(400, 4, rank=2, n_test=1, random_state=0)
    model = SecondOrderRegressor(random_state=0).fit(clean.X, clean.y)
    inside = clean.X.min(axis=0) - 0.9 * (clean.X.max(axis=0) - clean.X.min(axis=0))
    free = SecondOrderRegressor(random_state=0, extrapolation="free").fit(clean.X, clean.y)
    np.testing.assert_array_equal(model.predict(inside[None]), free.predict(inside[None]))
    assert not recwarn.list


def test_free_predicts_rows_as_they_are(recwarn):
    model = fitted(extrapolation="free")
    assert np.abs(model.predict(far_rows())).max() > 1e9
    assert not recwarn.list


def test_stored_entries_of_sparse_rows_are_held_and_zeros_stay(recwarn):
    X = np.where(np.random.default_rng(0).random((300, 4)) < 0.5, 0, 1 + DATA.X[:300] ** 2)
    model = SecondOrderRegressor(rank=1, alpha=1.0, random_state=0).fit(csr_array(X), DATA.y[:300])
    rows = X[:3].copy()
    rows[1] = [0.0, 1e9, 0.0, 2.0]
    with pytest.warns(UserWarning, match="1 row lies far outside"):
        sparse = model.predict(csr_array(rows))
    with pytest.warns(UserWarning, match="1 row lies far outside"):
        np.testing.assert_allclose(sparse, model.predict(rows))
    assert model.extrapolates(csr_array(rows)).tolist() == [False, True, False]


def test_a_stream_widens_its_range_as_rows_come(recwarn):
    model = SecondOrderRegressor(rank=1, alpha=0.0, batch_size=50, random_state=0)
    model.partial_fit(DATA.X, DATA.y)
    assert model.extrapolates(10 * HIGH[None]).tolist() == [True]
    model.partial_fit(np.vstack([10 * HIGH, DATA.X]), np.append(0.0, DATA.y))
    assert model.extrapolates(10 * HIGH[None]).tolist() == [False]


def test_rows_without_weight_do_not_widen_the_range():
    X, y = np.vstack([DATA.X, 1e3 + DATA.X[:1]]), np.append(DATA.y, 0.0)
    weight = np.append(np.ones(400), 0.0)
    model = SecondOrderRegressor(rank=1, alpha=1.0, random_state=0).fit(X, y, sample_weight=weight)
    assert model.extrapolates(X[-1:]).tolist() == [True]


def test_files_and_onnx_keep_the_bounds(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model, rows = fitted(), far_rows()
    with pytest.warns(UserWarning, match="far outside"):
        expected = model.predict(rows)
    quadlin.save(model, tmp_path / "model.quadlin")
    with pytest.warns(UserWarning, match="far outside"):
        loaded = quadlin.load(tmp_path / "model.quadlin").predict(rows)
    np.testing.assert_array_equal(loaded, expected)
    graph = quadlin.to_onnx(model).SerializeToString()
    (run,) = onnxruntime.InferenceSession(graph).run(None, {"X": rows})
    np.testing.assert_allclose(run, expected, rtol=1e-12)


@pytest.mark.parametrize("kind", [FactorizationMachineRegressor, SecondOrderRegressorCV])
def test_other_estimators_have_bounds_too(kind):
    model = kind(random_state=0).fit(DATA.X, DATA.y)
    with pytest.warns(UserWarning, match="far outside"):
        assert np.abs(model.predict(far_rows())).max() < 1e4


def test_an_unknown_way_to_extrapolate_is_refused():
    with pytest.raises(ValueError, match=r"extrapolation=.linear. is not one of 'clip', 'free'"):
        fitted(extrapolation="linear")


def test_a_linear_model_predicts_far_rows_as_they_are(recwarn):
    rows = np.vstack([far_rows(), 1e3 * np.ones((1, 4))])
    y = DATA.X @ [1.0, 2.0, 0.0, -1.0] + 3.0
    model = SecondOrderRegressor(random_state=0).fit(DATA.X, y)
    assert model.rank_ == 0
    np.testing.assert_allclose(model.predict(rows), rows @ [1.0, 2.0, 0.0, -1.0] + 3.0, rtol=1e-4)
    assert model.extrapolates(rows).sum() == 3
    assert not recwarn.list


def test_a_linear_cell_of_cross_validation_scores_far_rows_as_it_predicts_them():
    X = DATA.X.copy()
    X[::40] *= 30
    y = X[:, 0] + np.random.default_rng(0).standard_normal(len(X))
    folds = KFold(4)
    search = SecondOrderRegressorCV(ranks=[0], alphas=[(1.0, 1.0)], cv=folds).fit(X, y)
    alone = SecondOrderRegressor(rank=0, alpha=(1.0, 1.0))
    scores = cross_val_score(alone, X, y, cv=folds, scoring="neg_mean_squared_error")
    assert search.best_score_ == pytest.approx(scores.mean(), rel=1e-3)
