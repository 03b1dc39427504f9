"""The estimators keep scikit-learn's contract, and work inside its tools."""

import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import BaggingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict, cross_val_score
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils import estimator_html_repr
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.fixes import parse_version

from contract.tables import CLASSIFIERS, REGRESSORS, low_rank
from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    MatrixSensing,
    PhaseRetriever,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
)

FEWER_ROWS = "It has fewer rows than M has unknowns, so that more than one M fits them exactly."


def known_differences(estimator):
    """Return the checks whose rows have no unique answer, or which new versions have changed."""
    if isinstance(estimator, MatrixSensing):
        return {
            "check_sample_weight_equivalence_on_dense_data": FEWER_ROWS,
            "check_sample_weight_equivalence_on_sparse_data": FEWER_ROWS,
        }
    if is_classifier(estimator) and parse_version(sklearn.__version__) < parse_version("1.9"):
        return {"check_array_api_input": "classes_ are numpy's, whatever X is"}
    return {}


# The checks fit noise, of which our warnings rightly tell. They compare predictions to seven
# digits: a fit of low rank has these with a smaller `tol`, the last gain of its objective.
@pytest.mark.filterwarnings("ignore::UserWarning")
@parametrize_with_checks(
    [
        SecondOrderRegressor(),
        SecondOrderRegressorCV(ranks=[0], alphas=[0.1, 1.0], cv=2),
        FactorizationMachineRegressor(rank=1, alpha=1.0, tol=1e-18, max_iter=500),
        SecondOrderClassifier(rank=1, alpha=100.0),
        FactorizationMachineClassifier(rank=0, alpha=1.0, tol=1e-10),
        PhaseRetriever(n_starts=1, max_iter=20),
        MatrixSensing(rank=1, n_starts=1, max_iter=20),
    ],
    expected_failed_checks=known_differences,
)
def test_the_checks_of_scikit_learn_pass(estimator, check):
    check(estimator)


TABLE = low_rank(300, 4, 2, sigma=0.3, seed=3)
NAMES = ["age", "income", "rooms", "floor"]
FRAME = pd.DataFrame(TABLE.X, columns=NAMES)
GIVEN = {"rank": 2, "alpha": 0.1, "random_state": 0}


@pytest.fixture(scope="module")
def model():
    return SecondOrderRegressor(**GIVEN).fit(FRAME, TABLE.y)


@pytest.mark.parametrize("kind", [*REGRESSORS, *CLASSIFIERS, PhaseRetriever, MatrixSensing])
def test_a_clone_has_the_parameters_and_no_model(kind):
    estimator = kind(max_iter=7, random_state=3)
    copy = clone(estimator)
    assert copy.get_params() == estimator.get_params()
    assert copy.set_params(tol=0.1).tol == 0.1
    assert estimator.tol != 0.1
    assert is_classifier(estimator) == (kind in CLASSIFIERS)
    assert is_regressor(SecondOrderRegressor())


def test_the_text_and_the_page_of_an_estimator_name_it():
    for kind in (*REGRESSORS, *CLASSIFIERS):
        assert kind.__name__ in repr(kind())
        assert kind.__name__ in estimator_html_repr(kind())


@pytest.mark.smoke
def test_before_fit_there_is_nothing_to_read():
    for kind in (*REGRESSORS, *CLASSIFIERS):
        with pytest.raises(NotFittedError):
            kind().predict(TABLE.X)
        assert not hasattr(kind(), "coef_")


def test_a_fit_that_raises_an_error_leaves_the_last_model():
    fitted = SecondOrderRegressor(**GIVEN).fit(TABLE.X, TABLE.y)
    expected = fitted.predict(TABLE.X)
    bad = TABLE.X.copy()
    bad[5, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        fitted.fit(bad, TABLE.y)
    np.testing.assert_array_equal(fitted.predict(TABLE.X), expected)


def test_names_of_a_frame_are_kept_and_asked_for(model):
    assert model.feature_names_in_.tolist() == NAMES
    assert model.n_features_in_ == 4
    assert model.interaction("age", "rooms") == model.interaction(0, 2)
    assert set(model.interactions_.top(1)[0][:2]) <= set(NAMES)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(FRAME[NAMES[::-1]])
    with pytest.raises(ValueError, match="feature"):
        model.predict(FRAME.assign(lift=0.0))


def test_a_pickled_model_predicts_the_same(model):
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(FRAME), model.predict(FRAME))
    assert again.get_params() == model.get_params()


def test_nothing_is_printed_by_default(capsys):
    SecondOrderRegressor().fit(TABLE.X, TABLE.y).predict(TABLE.X)
    assert capsys.readouterr() == ("", "")


def test_a_pipeline_with_a_scaler_changes_no_prediction():
    plain = SecondOrderRegressor(**GIVEN, tol=1e-12).fit(TABLE.X, TABLE.y)
    scaled = make_pipeline(StandardScaler(), SecondOrderRegressor(**GIVEN, tol=1e-12))
    scaled.fit(TABLE.X, TABLE.y)
    np.testing.assert_allclose(scaled.predict(TABLE.X), plain.predict(TABLE.X), atol=1e-6)


def test_set_output_hands_names_to_the_model():
    pipeline = make_pipeline(StandardScaler(), SecondOrderRegressor(**GIVEN))
    pipeline.set_output(transform="pandas").fit(FRAME, TABLE.y)
    assert pipeline[-1].feature_names_in_.tolist() == NAMES


def test_a_column_transformer_may_choose_the_columns():
    columns = ColumnTransformer([("kept", "passthrough", ["age", "rooms"])])
    pipeline = make_pipeline(columns, SecondOrderRegressor(rank=2, alpha=0.1)).fit(FRAME, TABLE.y)
    direct = SecondOrderRegressor(rank=2, alpha=0.1).fit(TABLE.X[:, [0, 2]], TABLE.y)
    np.testing.assert_allclose(pipeline.predict(FRAME), direct.predict(TABLE.X[:, [0, 2]]))


def test_text_goes_through_a_pipeline():
    frame = FRAME.assign(city=np.where(TABLE.X[:, 0] > 0, "Oslo", "Bern"))
    pipeline = make_pipeline(FunctionTransformer(), SecondOrderRegressor(rank=0, alpha=1.0))
    pipeline.fit(frame, TABLE.y)
    direct = SecondOrderRegressor(rank=0, alpha=1.0).fit(frame, TABLE.y)
    np.testing.assert_allclose(pipeline.predict(frame), direct.predict(frame))


@pytest.mark.parametrize("kind", [SecondOrderRegressor, FactorizationMachineRegressor])
def test_a_grid_search_finds_the_rank(kind):
    if kind is SecondOrderRegressor:
        table = TABLE
    else:  # two products without a square
        rng = np.random.default_rng(0)
        X = rng.standard_normal((300, 4))
        table = TABLE._replace(X=X, truth=X[:, 0] * X[:, 1] + X[:, 2] * X[:, 3])
    search = GridSearchCV(kind(alpha=0.1, random_state=0, pairs=None), {"rank": [0, 1, 4]}, cv=3)
    search.fit(table.X, table.truth + table.noise)
    assert search.best_params_["rank"] == 4
    assert search.best_score_ > 0.9


def test_cross_validation_scores_are_those_of_fits_by_hand():
    estimator, folds = SecondOrderRegressor(**GIVEN), KFold(3)
    scores = cross_val_score(estimator, TABLE.X, TABLE.y, cv=folds)
    for score, (train, test) in zip(scores, folds.split(TABLE.X), strict=True):
        fold = clone(estimator).fit(TABLE.X[train], TABLE.y[train])
        assert fold.score(TABLE.X[test], TABLE.y[test]) == pytest.approx(score)
    left_out = cross_val_predict(estimator, TABLE.X, TABLE.y, cv=folds)
    assert np.mean((left_out - TABLE.truth) ** 2) < np.var(TABLE.truth) / 10


def test_weights_are_routed_through_a_pipeline():
    weight = np.random.default_rng(0).integers(1, 4, 300).astype(float)
    direct = SecondOrderRegressor(**GIVEN).fit(TABLE.X, TABLE.y, sample_weight=weight)
    with sklearn.config_context(enable_metadata_routing=True):
        last = SecondOrderRegressor(**GIVEN).set_fit_request(sample_weight=True)
        pipeline = make_pipeline(FunctionTransformer(), last)
        pipeline.fit(TABLE.X, TABLE.y, sample_weight=weight)
        np.testing.assert_allclose(pipeline.predict(TABLE.X), direct.predict(TABLE.X))


@pytest.mark.parametrize(
    "wrapped",
    [
        TransformedTargetRegressor(SecondOrderRegressor(**GIVEN), transformer=StandardScaler()),
        BaggingRegressor(SecondOrderRegressor(**GIVEN), n_estimators=3, random_state=0),
    ],
    ids=["transformed target", "bagging"],
)
def test_a_regressor_works_inside_another_estimator(wrapped):
    wrapped.fit(TABLE.X, TABLE.y)
    assert wrapped.score(TABLE.X, TABLE.truth) > 0.95


def test_several_targets_are_several_models():
    Y = np.column_stack([TABLE.y, -2 * TABLE.y])
    many = MultiOutputRegressor(SecondOrderRegressor(**GIVEN)).fit(TABLE.X, Y)
    one = SecondOrderRegressor(**GIVEN).fit(TABLE.X, TABLE.y)
    np.testing.assert_allclose(many.predict(TABLE.X)[:, 0], one.predict(TABLE.X))
    with pytest.raises(ValueError, match="1d"):
        SecondOrderRegressor(**GIVEN).fit(TABLE.X, Y)


def test_permutation_importance_sees_what_interacts():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4))
    fitted = SecondOrderRegressor(random_state=0).fit(X, X[:, 1] * X[:, 2])
    found = permutation_importance(fitted, X, X[:, 1] * X[:, 2], n_repeats=3, random_state=0)
    assert set(np.argsort(found.importances_mean)[-2:]) == {1, 2}
    assert np.abs(found.importances_mean[[0, 3]]).max() < 1e-6


def test_callbacks_see_the_scores_of_the_steps():
    callback = pytest.importorskip("sklearn.callback")  # since scikit-learn 1.9
    monitor = callback.ScoringMonitor(scoring="r2")
    fitted = SecondOrderRegressor(**GIVEN).set_callbacks(monitor).fit(TABLE.X, TABLE.y)
    whole, *steps = monitor.get_logs().data_as_pandas["r2"]
    assert whole == steps[-1] == pytest.approx(fitted.score(TABLE.X, TABLE.y))
    assert np.all(np.diff(steps) >= 0)
