"""Rows far outside the training rows get a bounded answer, and everybody is told."""

import warnings

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

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


def test_words_that_only_new_texts_have_are_no_reason_for_a_warning(recwarn):
    X = np.random.default_rng(0).poisson(0.5, (300, 6)).astype(float)
    X[:, 4] = 0
    for rows in (X, csr_array(X)):
        model = SecondOrderRegressor(rank=1, alpha=1.0, random_state=0).fit(rows, DATA.y[:300])
        new = X[:3].copy()
        new[1, 4] = 2.0
        np.testing.assert_allclose(model.predict(csr_array(new)), model.predict(X[:3]))
        assert model.extrapolates(new).tolist() == [False, True, False]  # it is new nevertheless
    assert not recwarn.list


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


@pytest.mark.parametrize("rank", [0, 2])
def test_a_model_without_any_error_predicts_far_rows_as_they_are(rank, recwarn):
    data = make_second_order(400, 4, rank=2, random_state=0)
    w = np.array([1.0, 2.0, 0.0, -1.0])
    y = data.X @ w + 3.0 if rank == 0 else data.y
    model, free = (
        SecondOrderRegressor(rank, alpha=0.0, random_state=0, extrapolation=word).fit(data.X, y)
        for word in ("clip", "free")
    )
    rows = far_rows()
    np.testing.assert_array_equal(model.predict(rows), free.predict(rows))
    assert model.extrapolates(rows).sum() == 2
    assert not recwarn.list


def test_as_many_rows_as_parameters_are_no_proof_of_an_exact_model():
    model = SecondOrderRegressor(4, alpha=0.0, random_state=0).fit(DATA.X[:15], DATA.y[:15])
    assert model.score(DATA.X[:15], DATA.y[:15]) > 1 - 1e-10  # fifteen parameters
    assert not model.fitted_.trust.is_exact
    assert fitted().fitted_.trust.is_exact is False


def test_a_linear_model_is_held_ten_training_ranges_beyond_the_training_range():
    model, free = (
        SecondOrderRegressor(0, alpha=1.0, extrapolation=word).fit(DATA.X, DATA.y)
        for word in ("clip", "free")
    )
    near, far, held = (np.repeat(DATA.X[:1], 2, axis=0) for _ in range(3))
    near[0], near[1] = HIGH + 9.9 * WIDTH, LOW - 9.9 * WIDTH
    far[0], far[1] = HIGH + 1e3 * WIDTH, LOW - 1e3 * WIDTH
    held[0], held[1] = HIGH + 10 * WIDTH, LOW - 10 * WIDTH
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(model.predict(near), free.predict(near), rtol=1e-12)
    with pytest.warns(UserWarning, match="2 rows lie far outside"):
        np.testing.assert_allclose(model.predict(far), free.predict(held), rtol=1e-12)
    assert model.extrapolates(near).tolist() == [False, False]
    assert model.extrapolates(far).tolist() == [True, True]


def test_a_line_of_log_normal_features_is_predicted_as_by_ridge_regression():
    # One training range beyond 60 rows is where a fiftieth of new rows lie, and half of their
    # variance: held there, a true line had R² of .63 on new rows where ridge regression has .73.
    rng = np.random.default_rng(2)
    X = np.exp(rng.standard_normal((3060, 6)))
    y = X @ rng.standard_normal(6)
    y = y + y.std() / 2 * rng.standard_normal(len(y))
    model = SecondOrderRegressor(0).fit(X[:60], y[:60])
    ridge = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-4, 4, 17))).fit(X[:60], y[:60])
    assert model.score(X[60:], y[60:]) > ridge.score(X[60:], y[60:]) - 0.02


def test_cross_validation_scores_each_rank_as_its_own_predictions():
    # A test row of every fold lies three training ranges beyond the others.
    X = DATA.X.copy()
    X[::100, 0] = HIGH[0] + 3 * WIDTH[0] * np.arange(1, 5)
    folds = [(np.flatnonzero(np.arange(400) % 100 != 0), np.arange(0, 400, 100))]
    grid = {"ranks": [0, 2], "alphas": [(1.0, 1.0)], "cv": folds}
    model = SecondOrderRegressorCV(**grid, random_state=0).fit(X, DATA.y)
    train, test = folds[0]
    for rank, scores in zip((0, 2), model.cv_results_["mean_test_score"], strict=True):
        alone = SecondOrderRegressor(rank, alpha=1.0, random_state=0).fit(X[train], DATA.y[train])
        error = np.mean((alone.predict(X[test]) - DATA.y[test]) ** 2)
        assert -scores == pytest.approx(error, rel=0.01)


def test_rows_just_outside_of_few_training_rows_are_held_without_a_warning():
    # With two rows per parameter features are trusted for a tenth of their range beyond it, where
    # a twentieth of new rows lie: they are held, and nobody needs to be told.
    data = make_second_order(100, 10, rank=4, noise=1.0, n_test=500, random_state=0)
    model = SecondOrderRegressor(4, alpha=10.0, random_state=0).fit(data.X, data.y)
    high = data.X.max(axis=0)
    near = np.repeat(data.X[:1], 2, axis=0)
    near[0], near[1] = high + 0.5 * np.ptp(data.X, axis=0), high + 0.9 * np.ptp(data.X, axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one, other = model.predict(near)
    assert one == pytest.approx(other, rel=1e-12)
    assert model.extrapolates(near).all()
    with pytest.warns(UserWarning, match="1 row lies far outside"):
        model.predict(high[None, :] + 1.1 * np.ptp(data.X, axis=0))


def nearly_equal_columns():
    rng = np.random.default_rng(0)
    size = rng.uniform(1, 3, 400)
    X = size[:, None] + 0.02 * rng.standard_normal((400, 2))
    y = size + 30 * (X[:, 0] - X[:, 1]) * size + 0.1 * rng.standard_normal(400)
    return X, y, np.array([[2.0, 2.0], [3.0, 0.5]])  # the second: no column is far, the pair is


@pytest.mark.parametrize("kind", [SecondOrderRegressor, SecondOrderRegressorCV])
def test_an_absurd_prediction_at_an_odd_combination_of_values_is_limited(kind, tmp_path):
    X, y, rows = nearly_equal_columns()
    model = kind(random_state=0).fit(X, y)
    reach = np.ptp(y) * np.ptp(y) / y.std() / 4
    assert kind(random_state=0, extrapolation="free").fit(X, y).predict(rows)[1] > 2 * y.max() * 4
    with pytest.warns(UserWarning, match=r"1 prediction lies far outside the training targets"):
        predictions = model.predict(rows)
    assert predictions[1] == pytest.approx(y.max() + reach)
    assert model.extrapolates(rows).tolist() == [False, True]
    assert model.contributions(rows).prediction == pytest.approx(predictions, rel=1e-9)
    with pytest.warns(UserWarning, match="far outside the training targets"):
        chunks = [y for _, y, _ in model.predict_chunks(quadlin.open_source(rows))]
    np.testing.assert_array_equal(np.concatenate(chunks), predictions)
    onnxruntime = pytest.importorskip("onnxruntime")
    graph = quadlin.to_onnx(model).SerializeToString()
    (run,) = onnxruntime.InferenceSession(graph).run(None, {"X": rows})
    np.testing.assert_allclose(run, predictions, rtol=1e-12)


def test_heavy_tailed_targets_are_trusted_further(recwarn):
    # Where a true quadratic has features with heavy tails, new rows go well beyond the old targets.
    rng = np.random.default_rng(3)
    X = rng.standard_t(3, size=(2000, 2))
    y = X[:, 0] * X[:, 1] + X[:, 1] ** 2 + 0.5 * rng.standard_normal(2000)
    model = SecondOrderRegressor(random_state=0).fit(X[:1000], y[:1000])
    assert model.score(X[1000:], y[1000:]) > 0.98
    assert not [w for w in recwarn if "training targets" in str(w.message)]
