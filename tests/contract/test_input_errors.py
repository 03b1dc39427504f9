"""Never a silent wrong answer: what cannot be used is refused by name, and the rest is fitted."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression

from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    MatrixSensing,
    PhaseRetriever,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    find_pairs,
)

N = 60
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, 3))
Y = X[:, 0] * X[:, 1] + X[:, 2] + 0.1 * RNG.standard_normal(N)
LABELS = (Y > 0).astype(int)
X.flags.writeable = Y.flags.writeable = LABELS.flags.writeable = False

TABLE_MODELS = [
    SecondOrderRegressor(),
    SecondOrderRegressorCV(cv=2),
    FactorizationMachineRegressor(),
    SecondOrderClassifier(),
    FactorizationMachineClassifier(),
]
SIGNAL_MODELS = [PhaseRetriever(), MatrixSensing()]
ALL = [*TABLE_MODELS, *SIGNAL_MODELS]
MODEL = SecondOrderRegressor(1, alpha=0.1, random_state=0)


def title(value):
    return type(value).__name__ if hasattr(value, "fit") else None


def target_of(estimator):
    if hasattr(estimator, "predict_proba"):
        return LABELS
    return Y**2 if isinstance(estimator, PhaseRetriever) else Y


def altered(values, place, value):
    values = np.array(values, dtype=float)
    values[place] = value
    return values


every_estimator = pytest.mark.parametrize("estimator", ALL, ids=title)


# Rows and targets that no estimator can use.

ROWS = {
    "a missing value": (lambda: altered(X, (4, 1), np.nan), "NaN"),
    "infinity": (lambda: altered(X, (4, 1), np.inf), "infinity"),
    "minus infinity in sparse rows": (
        lambda: sparse.csr_array(altered(X, (4, 1), -np.inf)),
        "infinity",
    ),
    "one dimension": (lambda: X[:, 0], "dim|1D"),
    "three dimensions": (lambda: X[:, :, None], "dim|3"),
    "no rows": (lambda: X[:0], "0 sample|0 rows"),
    "no columns": (lambda: X[:, :0], "0 feature"),
    "fewer rows than targets": (lambda: X[:-1], "59.*60"),
    "masked entries": (lambda: np.ma.array(X, mask=X > 2), "masked"),
    "a query": (lambda: pl.LazyFrame({"a": X[:, 0], "b": X[:, 1]}), "query|table"),
    "the name of a file": (lambda: "rows.csv", "."),
    "nothing": (lambda: None, "."),
}


@pytest.mark.parametrize("what", ROWS)
def test_rows_that_cannot_be_used_are_refused_by_every_estimator(what):
    make, mentioned = ROWS[what]
    for estimator in ALL:
        with pytest.raises((ValueError, TypeError), match=mentioned):
            clone(estimator).fit(make(), target_of(estimator))


@pytest.mark.parametrize("estimator", TABLE_MODELS, ids=title)
def test_complex_rows_are_refused(estimator):
    with pytest.raises(ValueError, match=r"[Cc]omplex"):
        clone(estimator).fit(X * 1j, target_of(estimator))


def weights(place, value):
    return altered(np.ones(N), place, value)


WEIGHTS = {
    "below zero": (lambda: weights(7, -1.0), "weight"),
    "missing": (lambda: weights(7, np.nan), "weight|NaN"),
    "infinite": (lambda: weights(7, np.inf), "weight|infinity"),
    "all zero": (lambda: np.zeros(N), "weight|zero"),
    "too few": (lambda: np.ones(N - 1), "59"),
    "text": (lambda: ["one"] * N, "weight|one|float"),
}


@pytest.mark.parametrize("what", WEIGHTS)
def test_weights_that_cannot_be_used_are_refused_by_every_estimator(what):
    make, mentioned = WEIGHTS[what]
    for estimator in ALL:
        with pytest.raises((ValueError, TypeError), match=mentioned):
            clone(estimator).fit(X, target_of(estimator), sample_weight=make())


@every_estimator
def test_targets_that_cannot_be_used_are_refused(estimator):
    y = target_of(estimator)
    days = np.datetime64("2020-01-01") + np.arange(N)
    cases = {
        "NaN|missing": altered(y, 7, np.nan),
        "infinity|inf": altered(y, 9, np.inf),
        "60.*59": y[:-1],
        "date": days,
        "masked": np.ma.array(y, mask=np.arange(N) == 4),
        ".": None,
    }
    for mentioned, target in cases.items():
        with pytest.raises((ValueError, TypeError), match=mentioned):
            clone(estimator).fit(X, target)


@pytest.mark.parametrize(
    "estimator", [SecondOrderRegressor(), FactorizationMachineRegressor()], ids=title
)
def test_text_targets_of_a_regressor_point_to_the_classifier(estimator):
    for y in (np.where(LABELS, "yes", "no"), pd.Series(np.where(LABELS, "yes", "no"))):
        with pytest.raises(ValueError, match=r"yes.*Classifier|no.*Classifier"):
            clone(estimator).fit(X, y)
    with pytest.raises((ValueError, TypeError), match=r"complex|Complex"):
        clone(estimator).fit(X, Y * 1j)


@pytest.mark.parametrize("estimator", TABLE_MODELS[3:], ids=title)
def test_labels_that_cannot_be_classes_are_refused(estimator):
    with pytest.raises(ValueError, match="class"):
        clone(estimator).fit(X, np.ones(N))
    with pytest.raises((ValueError, TypeError), match=r"text|number|mix"):
        clone(estimator).fit(X, np.array(["a", 1] * (N // 2), dtype=object))
    with pytest.raises(ValueError, match=r"continuous|regress|label"):
        clone(estimator).fit(X, Y)


@pytest.mark.smoke
@pytest.mark.parametrize(
    "form",
    [np.asarray, sparse.csr_array, lambda A: pd.DataFrame(A, columns=["x0", "x1", "x2"])],
    ids=["dense", "CSR", "frame"],
)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_column_and_row_of_a_bad_value_are_named(value, form):
    with pytest.raises(ValueError, match=r"row 4\b.*'x1'|'x1'.*row 4\b"):
        clone(MODEL).fit(form(altered(X, (4, 1), value)), Y)
    model = clone(MODEL).fit(form(np.array(X)), Y)
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        model.predict(form(altered(X, (4, 1), value)))


def test_the_row_of_a_bad_target_is_named():
    with pytest.raises(ValueError, match=r"row 7\b"):
        clone(MODEL).fit(X, altered(Y, 7, np.nan))


@every_estimator
def test_an_estimator_that_was_not_fitted_does_not_predict(estimator):
    with pytest.raises(NotFittedError):
        clone(estimator).predict(X)


@pytest.mark.parametrize("estimator", TABLE_MODELS, ids=title)
def test_another_number_of_features_is_refused(estimator):
    rank = {} if isinstance(estimator, SecondOrderRegressorCV) else {"rank": 1, "alpha": 1.0}
    model = clone(estimator).set_params(**rank).fit(X, target_of(estimator))
    for rows in (X[:, :2], np.hstack([X, X]), sparse.csr_array(X[:, :2])):
        with pytest.raises(ValueError, match=f"{rows.shape[1]}.*3"):
            model.predict(rows)
    with pytest.raises(ValueError):
        model.predict(X[0])
    with pytest.raises(ValueError):
        model.score(X, target_of(estimator)[:-1])


def test_a_failed_fit_leaves_the_estimator_as_it_was():
    model = clone(MODEL).fit(X, Y)
    before = model.predict(X)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(altered(X, (4, 1), np.nan)[:, :2], Y)
    np.testing.assert_array_equal(model.predict(X), before)


def test_sparse_rows_that_point_outside_of_themselves_are_refused():
    # Compiled code would read memory that is not theirs.
    for place, value in (("indices", 10**8), ("indices", -5), ("indptr", 10**8)):
        broken = sparse.csr_matrix(X)
        getattr(broken, place)[5] = value
        for call in (lambda rows: clone(MODEL).fit(rows, Y), clone(MODEL).fit(X, Y).predict):
            with pytest.raises(ValueError, match="sparse"):
                call(broken)


def test_a_search_for_pairs_refuses_what_a_fit_refuses():
    for rows, y in ((altered(X, (4, 1), np.nan), Y), (X, Y[:-1]), (X[:, 0], Y), (X, [None] * N)):
        with pytest.raises((ValueError, TypeError)):
            find_pairs(rows, y)


# Numbers of unusual size: a sane model or an error, never nonsense.


@pytest.mark.smoke
@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e8, 1e30])
def test_the_units_of_features_and_targets_do_not_matter(scale):
    wanted = clone(MODEL).fit(X, Y).predict(X)
    np.testing.assert_allclose(clone(MODEL).fit(X * scale, Y).predict(X * scale), wanted, atol=1e-4)
    scaled = clone(MODEL).fit(X, Y * scale).predict(X)
    np.testing.assert_allclose(scaled / scale, wanted, atol=1e-4)


@pytest.mark.filterwarnings("ignore::UserWarning")  # an error follows
@pytest.mark.parametrize("size", [1e-200, 1e-300, 1e200, 1e300])
def test_numbers_whose_squares_are_lost_are_named_or_fitted(size):
    wanted = clone(MODEL).fit(X, Y).predict(X)
    for rows, y, unit in ((X * [1, size, 1], Y, 1.0), (X, Y * size, size)):
        try:
            predicted = clone(MODEL).fit(rows, y).predict(rows)
        except ValueError:
            with pytest.raises(ValueError, match=r"x1|\by\b|target"):
                clone(MODEL).fit(rows, y)
        else:
            np.testing.assert_allclose(predicted / unit, wanted, atol=1e-4)


@pytest.mark.filterwarnings("ignore::UserWarning")  # it may be warned of
@pytest.mark.parametrize("value", [-1e30, 1e30])
def test_one_absurd_value_costs_no_more_than_its_column(value):
    rows = altered(X, (4, 2), value)
    others = np.arange(N) != 4
    model = clone(MODEL).fit(rows, Y)
    without = clone(MODEL).fit(X[:, :2], Y)
    assert np.isfinite(model.coef_).all()
    wanted = without.score(X[others, :2], Y[others])
    assert model.score(rows[others], Y[others]) > wanted - 0.1


def test_rows_far_outside_the_training_rows_are_warned_of():
    model = clone(MODEL).fit(X, Y)
    with pytest.warns(UserWarning, match="1"):
        predicted = model.predict(np.full((1, 3), 1e30))
    assert np.isfinite(predicted).all()


def test_whole_numbers_that_float64_merges_are_refused():
    close = np.array([2**53 + i for i in range(N)], dtype=object)
    with pytest.raises(ValueError, match=r"x0|float64"):
        clone(MODEL).fit(np.column_stack([close, X[:, 1]]), Y)
    with pytest.raises(ValueError, match=r"target|float64"):
        clone(MODEL).fit(X, close)
    apart = np.array([2**53 + 10**6 * i for i in range(N)], dtype=object)
    far = clone(MODEL).fit(np.column_stack([apart, X[:, 1]]), Y)
    near = clone(MODEL).fit(np.column_stack([np.arange(float(N)), X[:, 1]]), Y)
    np.testing.assert_allclose(
        far.predict(np.column_stack([apart, X[:, 1]])),
        near.predict(np.column_stack([np.arange(float(N)), X[:, 1]])),
        atol=1e-3,
    )


def test_constant_and_repeated_columns_are_fitted():
    wanted = SecondOrderRegressor(0, alpha=0.0, pairs=None).fit(X, Y).predict(X)
    linear = LinearRegression().fit(X, Y).predict(X)
    np.testing.assert_allclose(wanted, linear, atol=1e-6)
    constant = np.column_stack([X, np.full(N, 3.0)])
    model = SecondOrderRegressor(0, alpha=0.0, pairs=None).fit(constant, Y)
    np.testing.assert_allclose(model.predict(constant), linear, atol=1e-6)
    twice = np.column_stack([X, X[:, 0]])
    model = clone(MODEL).set_params(rank=2).fit(twice, Y)
    assert np.isfinite(model.predict(twice)).all()
    assert model.score(twice, Y) > 0.9  # the noise is 0.1, and y varies by 1.4


def test_a_constant_target_is_warned_of_and_predicted():
    with pytest.warns(UserWarning, match="3"):
        model = clone(MODEL).fit(X, np.full(N, 3.0))
    np.testing.assert_allclose(model.predict(X), 3.0)


@pytest.mark.parametrize("estimator", [TABLE_MODELS[0], TABLE_MODELS[2]], ids=title)
def test_one_row_is_refused_and_two_are_warned_of(estimator):
    with pytest.raises(ValueError, match="1"):
        clone(estimator).fit(X[:1], Y[:1])
    with pytest.warns(UserWarning, match="2 rows"):
        model = clone(estimator).fit(X[:2], Y[:2])
    assert np.isfinite(model.predict(X[:2])).all()


def test_rows_without_weight_do_not_count():
    weight = (np.arange(N) % 3 > 0).astype(float)
    spoiled = np.where(weight > 0, Y, 1e3)
    some = weight > 0
    np.testing.assert_allclose(
        clone(MODEL).fit(X, spoiled, weight).predict(X),
        clone(MODEL).fit(X[some], Y[some]).predict(X),
        atol=1e-5,
    )


# Parameters, by type and by range.

PARAMETERS = {
    "rank": [-1, 1.5, "two", None, True],
    "alpha": [-1.0, "some", None, (1.0, 2.0, 3.0), (1.0, -1.0), float("nan")],
    "loss": ["absolute", None, 3],
    "missing": ["guess", None, True],
    "pairs": ["all", -1, 1.5, [(0,)], [("a", "b", "c")], [(0, 17)], [("nobody", "x0")]],
    "max_iter": [0, -5, 2.5, "many"],
    "tol": [-1e-3, 2.0, "small", None],
    "max_memory": [0, -1, "little", 1.5],
    "uncertainty": ["sandwich", None, 0.5],
    "extrapolation": ["forbid", None],
    "categorical_features": ["x0", 3, [0.5], [17], ["nobody"], [[0, 17]], [["nobody"]]],
    "squares": ["free", None, [True]],
    "solver": ["plain", None, 3],
}


@pytest.mark.smoke
@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_of_the_wrong_type_or_range_are_named(name):
    for value in PARAMETERS[name]:
        estimator = SecondOrderRegressor(**{name: value})
        with pytest.raises((ValueError, TypeError, LookupError), match=rf"{name}|nobody|17"):
            estimator.fit(X, Y)


@pytest.mark.parametrize(
    ("estimator", "mentioned"),
    [
        (FactorizationMachineRegressor(draws=0), "draws"),
        (FactorizationMachineRegressor(draws=1.5), "draws"),
        (SecondOrderRegressorCV(ranks=[]), "ranks"),
        (SecondOrderRegressorCV(ranks=[-1]), "rank"),
        (SecondOrderRegressorCV(alphas=[-1.0]), "alpha"),
        (SecondOrderRegressorCV(cv=1), "cv|n_splits|folds"),
        (SecondOrderClassifier(rank=-1), "rank"),
        (FactorizationMachineClassifier(draws=-3), "draws"),
        (PhaseRetriever(tol="small"), "tol"),
        (MatrixSensing(rank=-1), "rank"),
    ],
    ids=lambda value: title(value) or value,
)
def test_parameters_of_the_other_estimators_are_checked(estimator, mentioned):
    with pytest.raises((ValueError, TypeError), match=mentioned):
        estimator.fit(X, target_of(estimator))


def test_penalties_and_weights_next_to_nothing_are_fitted():
    X, y = np.array([[0.3, -1.0], [1.2, 0.4], [-0.7, 0.9]]), np.array([1.0, 2.0, 0.5])
    model = FactorizationMachineRegressor(alpha=1e-300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # three rows are too few
        model.fit(X, y, sample_weight=[1e-30, 2e-30, 1e-30])
    assert np.isfinite(model.predict(X)).all()
