"""The estimators as a user of scikit-learn meets them."""

import pickle
import warnings

import array_api_strict
import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from problems import AfterSteps
from quadlin import (
    FactorizationMachineRegressor,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    Status,
    open_source,
)
from quadlin.datasets import make_second_order

DATA = make_second_order(2000, 8, rank=2, distribution="mixed", noise=0.2, random_state=0)


@parametrize_with_checks([SecondOrderRegressor(), FactorizationMachineRegressor()])
def test_the_contract_of_scikit_learn(estimator, check):
    check(estimator)


def fitted(X=DATA.X, y=DATA.y, **options):
    return SecondOrderRegressor(**{"rank": 2, "alpha": 0.0, "random_state": 0, **options}).fit(X, y)


@pytest.mark.parametrize(
    "form", [sparse.csr_array, sparse.csc_matrix, np.asfortranarray, pd.DataFrame, sparse.coo_array]
)
def test_every_form_of_the_rows_gives_the_same_model(form):
    np.testing.assert_allclose(
        fitted(form(DATA.X)).predict(form(DATA.X)), fitted().predict(DATA.X), rtol=1e-7, atol=1e-7
    )


def in_pieces(X):
    """Return rows whose every entry is stored as two, in no order."""
    X = sparse.csr_array(X)
    row = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
    order = np.lexsort((np.random.default_rng(0).uniform(size=2 * X.nnz), np.tile(row, 2)))
    data = np.concatenate([3 * X.data, -2 * X.data])[order]
    return sparse.csr_array((data, np.tile(X.indices, 2)[order], 2 * X.indptr), shape=X.shape)


@pytest.mark.parametrize("streamed", [False, True])
def test_entries_of_a_sparse_row_at_one_place_add(streamed):
    X = in_pieces(DATA.X)
    before = [a.copy() for a in (X.data, X.indices, X.indptr)]
    models = [
        SecondOrderRegressor(rank=2, uncertainty=not streamed, random_state=0, alpha=0.0)
        for _ in "ab"
    ]
    for model, rows in zip(models, (X, sparse.csr_array(DATA.X)), strict=True):
        (model.partial_fit if streamed else model.fit)(rows, DATA.y)
    a, b = models
    np.testing.assert_allclose(a.coef_, b.coef_, atol=1e-7)
    np.testing.assert_allclose(a.moments_.phi, b.moments_.phi)
    expected = b.predict(DATA.X, return_std=not streamed)
    np.testing.assert_allclose(a.predict(X, return_std=not streamed), expected, atol=1e-7)
    for now, then in zip((X.data, X.indices, X.indptr), before, strict=True):
        np.testing.assert_array_equal(now, then)  # the caller's


def test_what_scipy_remembers_of_a_matrix_is_not_believed():
    X = sparse.csr_array(np.abs(DATA.X) + 1)
    assert X.has_canonical_format
    X.indices[1] = X.indices[0]
    np.testing.assert_allclose(fitted(X).predict(X), fitted(X).predict(X.toarray()), atol=1e-7)
    np.testing.assert_allclose(fitted(X).coef_, fitted(X.toarray()).coef_, atol=1e-7)


@pytest.mark.parametrize("asarray", [torch.asarray, array_api_strict.asarray])
def test_torch_and_strict_arrays_go_through_the_same_lines(asarray):
    X, y = asarray(DATA.X), asarray(DATA.y)
    with sklearn.config_context(array_api_dispatch=True):
        model = fitted(X, y)
        predicted = model.predict(X)
        model.partial_fit(X, y)
    assert type(predicted) is type(X)
    np.testing.assert_allclose(np.asarray(predicted), fitted().predict(DATA.X), atol=1e-8)
    assert model.interactions_.top(3)[0].first == fitted().interactions_.top(3)[0].first


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_float32_in_float32_through(form):
    model = fitted(form(DATA.X.astype(np.float32)), DATA.y)
    for part in (model.coef_, model.components_, model.predict(form(DATA.X.astype("f4")))):
        assert part.dtype == np.float32
    np.testing.assert_allclose(model.coef_, fitted().coef_, atol=1e-3)


def far_from_zero():
    """Return float32 rows whose first columns have some 60 values about 10⁷, and what y they make.

    They are rounded to whole numbers, and so is their mean in float32.
    """
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((2000, 4))
    X = (Z * [9.0, 2.0, 1.0, 1.0] + [1.6e7 + 0.4, 1e7 + 0.3, 0.0, 3.0]).astype(np.float32)
    Z = (X.astype(float) - X.astype(float).mean(0)) / X.astype(float).std(0)
    return X, Z[:, 0] * Z[:, 1] + Z[:, 1] ** 2 + Z[:, 0] + 0.1 * rng.standard_normal(2000)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array, torch.asarray])
@pytest.mark.parametrize("streamed", [False, True])
def test_columns_of_float32_far_from_zero_keep_what_they_say(form, streamed):
    X, y = far_from_zero()
    options = {"rank": 2, "uncertainty": not streamed, "batch_size": 500, "random_state": 0}
    fitted, exact = (
        SecondOrderRegressor(**{"rank": 5, "alpha": 0.0, **options}),
        SecondOrderRegressor(**{"rank": 5, "alpha": 0.0, **options}),
    )
    with sklearn.config_context(array_api_dispatch=True):
        (fitted.partial_fit if streamed else fitted.fit)(
            form(X), y if form is sparse.csr_array else form(y)
        )
        predicted = fitted.predict(form(X), return_std=not streamed)
    (exact.partial_fit if streamed else exact.fit)(X.astype(float), y)
    expected = exact.predict(X.astype(float), return_std=not streamed)
    np.testing.assert_allclose(predicted, expected, rtol=2e-3, atol=2e-3)
    assert "constant" not in fitted.diagnose()
    assert np.max(np.abs(np.asarray(fitted.fitted_.state.units.rest))) > 0.05  # as the test means


def test_what_fit_leaves_out_diagnose_calls_constant():
    X = np.column_stack([X0, np.full(60, 1e7), 1e-39 * X0[:, 0]]).astype(np.float32)
    model = fitted(X, Y0)
    left_out = np.flatnonzero(np.asarray(model.fitted_.state.units.scale) == 0)
    assert left_out.tolist() == [4, 5]
    assert "2 constant (x4, x5)" in model.diagnose()


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_bring_their_names(frame):
    names = [f"f{j}" for j in range(8)]
    table = frame(dict(zip(names, DATA.X.T, strict=True)))
    model = fitted(table)
    assert model.feature_names_in_.tolist() == names
    assert model.interaction("f1", "f2") == model.interaction(1, 2)
    assert model.interactions_.top(1)[0].first.startswith("f")
    # Frames are in column order, whose sums round differently; targets are of size 1.
    np.testing.assert_allclose(model.predict(table), fitted().predict(DATA.X), atol=1e-8)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table[names[::-1]])


@settings(max_examples=10)
@given(seed=st.integers(0, 100))
def test_weights_equal_repetition(seed):
    weight = np.random.default_rng(seed).integers(0, 3, 2000)
    repeated = np.repeat(np.arange(2000), weight)
    a = SecondOrderRegressor(rank=2, random_state=0, alpha=0.0).fit(
        DATA.X, DATA.y, sample_weight=weight
    )
    b = fitted(DATA.X[repeated], DATA.y[repeated])
    np.testing.assert_allclose(a.predict(DATA.X), b.predict(DATA.X), rtol=1e-6, atol=1e-6)


@settings(max_examples=10)
@given(seed=st.integers(0, 100))
def test_permuting_and_rescaling_features_permutes_and_rescales_the_answer(seed):
    rng = np.random.default_rng(seed)
    order = rng.permutation(8)
    scale, shift = 10.0 ** rng.integers(-6, 7, 8), rng.standard_normal(8)
    a = fitted(tol=1e-12, max_iter=200)
    b = fitted((DATA.X * scale + shift)[:, order], tol=1e-12, max_iter=200)
    # Both end at the least-squares optimum; they get there from different random starts.
    np.testing.assert_allclose(
        a.predict(DATA.X), b.predict((DATA.X * scale + shift)[:, order]), atol=1e-3
    )
    i, j = int(np.argwhere(order == 1)[0, 0]), int(np.argwhere(order == 3)[0, 0])
    assert b.interaction(i, j) * scale[1] * scale[3] == pytest.approx(a.interaction(1, 3), abs=1e-3)


def test_the_units_of_the_target_do_not_matter():
    a, b = fitted(), fitted(y=1e6 * DATA.y - 3e9)
    np.testing.assert_allclose(b.predict(DATA.X), 1e6 * a.predict(DATA.X) - 3e9, rtol=1e-9)


def test_clone_pickle_repr_pipeline_and_grid_search():
    model = fitted()
    assert clone(model).get_params() == model.get_params()
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(DATA.X), model.predict(DATA.X))
    streamed = SecondOrderRegressor(rank=2, random_state=0, alpha=0.0).partial_fit(DATA.X, DATA.y)
    pickle.loads(pickle.dumps(streamed)).partial_fit(DATA.X, DATA.y)
    assert "SecondOrderRegressor" in model._repr_html_()
    pipeline = make_pipeline(
        StandardScaler(), SecondOrderRegressor(random_state=0, rank=5, alpha=0.0)
    )
    search = GridSearchCV(pipeline, {"secondorderregressor__rank": [1, 2]}, cv=3)
    search.fit(DATA.X, DATA.y)
    assert search.best_params_["secondorderregressor__rank"] == 2


def test_progress_and_scores_are_one_line_each(capsys):
    callback = pytest.importorskip("sklearn.callback")  # since scikit-learn 1.9
    monitor = callback.ScoringMonitor(scoring="r2")
    model = SecondOrderRegressor(rank=2, random_state=0, alpha=0.0).set_callbacks(
        monitor, callback.ProgressBar()
    )
    model.fit(DATA.X, DATA.y)
    whole, *steps = monitor.get_logs().data_as_pandas["r2"]
    assert whole == steps[-1] == pytest.approx(model.score(DATA.X, DATA.y))
    assert np.all(np.diff(steps) > 0)
    assert "100%" in capsys.readouterr().out


def test_a_callback_can_stop_the_fit():
    pytest.importorskip("sklearn.callback")  # since scikit-learn 1.9

    data = make_second_order(2000, 30, rank=2, random_state=0)  # more features, more steps
    model = SecondOrderRegressor(rank=2, random_state=0, alpha=0.0).set_callbacks(
        AfterSteps(lambda context: context.task_id == 1)
    )
    assert model.fit(data.X, data.y).status_ is Status.stopped
    assert model.n_iter_ == 2


def test_nothing_is_printed_by_default(capsys):
    fitted()
    assert capsys.readouterr() == ("", "")


def test_before_fit_there_is_nothing_to_read():
    model = SecondOrderRegressor(rank=5, alpha=0.0)
    assert not hasattr(model, "coef_")
    with pytest.raises(NotFittedError, match="components_"):
        _ = model.components_
    with pytest.raises(NotFittedError):
        model.predict(DATA.X)


# --- bad input -------------------------------------------------------------------------------


def sane(model, X, y):
    """No NaN, and no worse on the training rows than the mean."""
    predicted = model.predict(X)
    assert np.all(np.isfinite(predicted))
    for part in (model.coef_, model.components_, model.eigenvalues_, [model.intercept_]):
        assert np.all(np.isfinite(part))
    y = np.asarray(y, dtype=float)
    assert np.mean((predicted - y) ** 2) <= np.var(y) * (1 + 1e-6)
    return model


def quietly(X, y, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return sane(
            SecondOrderRegressor(**{"rank": 5, "alpha": 0.0, "random_state": 0, **options}).fit(
                X, y
            ),
            X,
            y,
        )


RNG = np.random.default_rng(0)
X0 = RNG.standard_normal((60, 4))
Y0 = X0[:, 0] * X0[:, 1] + 0.1 * RNG.standard_normal(60)


@pytest.mark.parametrize("size", [1e-120, 1e-82, 1e80, 1e120])
def test_squares_of_tiny_and_of_huge_features_are_modelled(size):
    np.testing.assert_allclose(
        fitted(size * X0, X0[:, 0] ** 2).predict(size * X0), X0[:, 0] ** 2, atol=1e-6
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused(bad):
    X, y = X0.copy(), Y0.copy()
    X[3, 1] = bad
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        fitted(X, y)
    y[0] = bad
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        fitted(X0, y)


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [
        (np.empty((0, 3)), np.empty(0), "sample"),
        (np.ones((1, 3)), np.ones(1), "1 sample"),
        (np.ones((4, 0)), np.ones(4), "feature"),
        (X0, Y0[:-1], "inconsistent"),
        (X0, np.column_stack([Y0, Y0]), "y should be a 1d array"),
        (X0[0], Y0, "2D"),
        (pd.DataFrame({"a": [1.0, 2.0], "day": pd.to_datetime(["2020", "2021"])}), Y0[:2], "'day'"),
        (pl.DataFrame({"a": [1.0, 2.0], "b": [[1], [2]]}), Y0[:2], "'b'"),
        (pd.DataFrame({"a": [1.0, np.nan, 2.0], "city": ["x", "y", "y"]}), Y0[:3], "NaN"),
        (np.array([["a", "b"], ["c", "d"]]), [1.0, 2.0], "could not convert"),
        (X0 * 1e200, Y0, "overflow"),
        (X0, Y0 * 1e200, "overflow"),
        (X0 * 1e-150, Y0, "'x0' varies by too little"),
        (X0, Y0 * 1e-150, "'y' varies by too little"),
        (pd.DataFrame(X0, columns=["a", "b", "a", "c"]), Y0, "Two columns are called 'a'"),
    ],
)
def test_what_no_model_can_be_made_of_is_refused_with_words(X, y, words):
    with pytest.raises(ValueError, match=words):
        fitted(X, y)


@pytest.mark.parametrize(
    "options",
    [
        {"rank": "best"},
        {"rank": -1},
        {"rank": 2.5},
        {"rank": True},
        {"max_iter": 0},
        {"tol": -1},
        {"tol": "small"},
        {"step": "bold"},
        {"diagonal": "none"},
        {"diagonal": [True]},
        {"diagonal": None},
        {"diagonal": 3},
        {"batch_size": 1},
        {"batch_size": "huge"},
        {"max_memory": "much"},
        {"max_memory": 0},
        {"max_memory": 1.5},
        {"max_memory": True},
        {"max_memory": None},
    ],
)
def test_options_that_make_no_sense_are_named(options):
    with pytest.raises(ValueError, match=next(iter(options))) as caught:
        fitted(X0, Y0, **options)
    if next(iter(options)) in ("rank", "batch_size"):
        assert 'or "auto"' in str(caught.value)


@pytest.mark.parametrize(
    ("weight", "words"),
    [(-np.ones(60), "negative"), (np.zeros(60), "zero"), (np.ones(5), "inconsistent"),
     (np.full(60, np.nan), "NaN"), (np.ones((60, 2)), "one number per row")],
)  # fmt: skip
def test_bad_weights_are_refused(weight, words):
    with pytest.raises(ValueError, match=words):
        SecondOrderRegressor(rank=5, alpha=0.0).fit(X0, Y0, sample_weight=weight)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e-200, 1e-50, 1e50, 1e160, 1e300])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_weights_of_any_size_give_the_same_model_or_are_refused(dtype, size, method):
    plain, model = (
        SecondOrderRegressor(rank=2, batch_size=60, random_state=0, alpha=0.0) for _ in "ab"
    )
    getattr(plain, method)(X0.astype(dtype), Y0)
    if dtype == np.float32 or not 1e-60 < size < 1e60:
        words = "too small to sum" if size < 1 else "too large to sum"
        with pytest.raises(ValueError, match=words):
            getattr(model, method)(X0.astype(dtype), Y0, np.full(60, size))
        return
    getattr(model, method)(X0, Y0, np.full(60, size))
    np.testing.assert_allclose(model.predict(X0), plain.predict(X0), atol=1e-3)
    assert "rows: 60 for" in model.diagnose().replace(" (effectively 60, by their weights)", "")


def test_a_column_that_varies_only_beside_weights_of_next_to_nothing_is_no_large_one():
    """Rows that weigh 1e-200 of the others leave a variance whose square underflows."""
    X, light = X0.copy(), np.arange(60) >= 40
    X[~light, 0] = 0
    with pytest.raises(ValueError, match="weights are less than 1e-150 of the others'"):
        SecondOrderRegressor(rank=1, alpha=0.0).fit(
            X, Y0, sample_weight=np.where(light, 1e-200, 1.0)
        )


def test_weights_of_a_source_are_looked_at_too():
    source = open_source(X0.astype(np.float32), target=Y0, weight=np.full(60, 1e50))
    for method in ("fit", "partial_fit"):
        with pytest.raises(ValueError, match="too large to sum"):
            getattr(SecondOrderRegressor(rank=5, alpha=0.0), method)(source)


def test_a_source_is_scored_as_its_rows_are():
    weight = np.arange(60) % 3
    model = fitted(X0, Y0 + 1e6)
    for omega in (None, weight):
        source = open_source(X0, target=Y0 + 1e6, weight=omega, chunk_rows=7)
        r2 = model.score(X0, Y0 + 1e6, omega)
        assert model.score(source) == pytest.approx(r2, rel=1e-9)
    same = open_source(X0, target=np.full(60, 5.0))
    assert model.score(same) == model.score(X0, np.full(60, 5.0)) == 0.0
    with pytest.raises(ValueError, match="weights"):
        model.score(open_source(X0, target=Y0, weight=np.zeros(60)))
    with pytest.raises(ValueError, match="no target"):
        model.score(open_source(X0))
    with pytest.raises(ValueError, match="needs targets"):
        model.score(X0)


def test_a_source_brings_its_own_targets_and_weights():
    source = open_source(X0, target=Y0)
    with pytest.raises(ValueError, match=r"own targets: open_source\(\.\.\., target="):
        SecondOrderRegressor(rank=5, alpha=0.0).fit(source, Y0)
    with pytest.raises(ValueError, match=r"own weights: open_source\(\.\.\., weight="):
        SecondOrderRegressor(rank=5, alpha=0.0).fit(source, sample_weight=np.ones(60))
    with pytest.raises(TypeError, match="holds its rows in memory"):
        SecondOrderRegressorCV().fit(source)


def test_a_stream_says_that_it_learns_by_squares():
    with pytest.warns(UserWarning, match="minimises squared errors"):
        SecondOrderRegressor(rank=1, loss="huber", alpha=0.0).partial_fit(X0, Y0)


def cities(names, n, seed):
    rng = np.random.default_rng(seed)
    city, x = rng.choice(names, n), rng.normal(size=n)
    effect = {"Oslo": 0.0, "Rome": 1.0, "Bonn": 5.0}
    y = np.array([effect[name] for name in city]) + x + 0.3 * rng.normal(size=n)
    return pl.DataFrame({"city": city, "x": x}), y


@pytest.mark.parametrize("as_source", [False, True])
def test_a_stream_says_how_new_levels_are_learned_and_then_learns_them(as_source):
    (first, y), (second, later) = cities(["Oslo", "Rome"], 600, 0), cities(["Rome", "Bonn"], 600, 1)
    model = SecondOrderRegressor(rank=1, random_state=0, alpha=0.0).partial_fit(first, y)
    source = open_source(second, target=later, encoder=model.encoder_)
    with pytest.warns(UserWarning, match="levels="):
        model.partial_fit(*([source] if as_source else [second, later]))
    model = SecondOrderRegressor(rank=1, random_state=0, alpha=0.0)
    levels = {"city": ["Bonn", "Oslo", "Rome"]}
    model.partial_fit(open_source(first, target=y, levels=levels))
    every = list(levels["city"])
    for seed in (2, 3):
        second, later = cities(every, 600, seed)
        model.partial_fit(open_source(second, target=later, encoder=model.encoder_))
    assert model.score(*cities(every, 2000, 4)) > 0.97  # of the variance, 1.6% is noise


@pytest.mark.parametrize("linear", [False, True])
def test_what_is_not_fitted_is_exactly_zero(linear):
    X, y = X0 + 3.0, (X0 @ [1.0, 2.0, 0.0, -1.0] + 0.3) ** 2
    model = fitted(X, y, rank=1, fit_linear=linear, fit_intercept=not linear)
    assert np.any(model.coef_ != 0) == linear
    assert (model.intercept_ != 0) == (not linear)


def test_lazy_frames_are_refused_with_what_to_do():
    frame = pl.DataFrame(X0, schema=list("abcd"))
    with pytest.raises(TypeError, match="open_source"):
        SecondOrderRegressor(rank=5, alpha=0.0).fit(frame.lazy(), Y0)
    with pytest.raises(TypeError, match="Collect it"):
        fitted(frame, Y0).predict(frame.lazy())


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_no_rows_are_no_rows_with_text_columns_too(frame):
    table = frame({"city": ["a", "b"] * 30, "size": X0[:, 0]})
    with pytest.raises(ValueError, match=r"Found array with 0 sample\(s\)"):
        fitted(table, Y0).predict(table[:0])


@pytest.mark.parametrize("whiten", ["auto", "full", "lowrank", "none"])
def test_features_that_are_all_constant_can_be_diagnosed(whiten):
    model = fitted(np.ones((60, 3)), Y0, whiten=whiten)
    assert "3 constant" in model.diagnose()
    assert "no feature varies" in model.diagnose() or whiten in ("auto", "none")


def test_two_valued_features_have_no_free_diagonal():
    X = X0.copy()
    X[:, 2] = X[:, 2] > 0
    table = pd.DataFrame(X, columns=["age", "income", "is_member", "height"])
    with pytest.raises(ValueError, match="'is_member' takes two values"):
        fitted(table, Y0, diagonal="free")
    with pytest.raises(ValueError, match="'is_member'"):
        fitted(table, Y0, diagonal=[True] * 4)
    model = fitted(table, Y0, diagonal=[True, True, False, False])
    assert model.has_diagonal_.tolist() == [True, True, False, False]
    assert fitted(table, Y0).has_diagonal_.tolist() == [True, True, False, True]


@pytest.mark.parametrize(
    ("X", "y"),
    [
        (X0[:, :1], X0[:, 0] ** 2),  # one feature
        (X0[:2], Y0[:2]),  # two rows
        (X0[:3], Y0[:3]),
        (RNG.standard_normal((20, 50)), RNG.standard_normal(20)),  # fewer rows than features
        (np.column_stack([X0, np.full(60, 7.0)]), Y0),  # a constant column
        (np.full((60, 3), 2.0), Y0),  # nothing but
        (np.column_stack([X0, X0]), Y0),  # every column twice
        (np.column_stack([X0, X0 * (1 + 1e-9)]), Y0),
        (X0, np.full(60, 3.0)),  # a constant target
        (X0, np.zeros(60)),
        (X0 * 1e30, Y0),
        (X0 * 1e-30, Y0),
        (X0, Y0 * 1e30),
        (X0, Y0 * 1e-30),
        (X0 * [1e30, 1e-30, 1, 1e6], Y0),
        (np.where(RNG.uniform(size=(60, 4)) < 0.02, 1e30, X0), Y0),  # wild outliers
        (X0, np.where(np.arange(60) == 3, 1e30, Y0)),
        (1e6 + 1e-3 * X0, Y0),
        (X0.astype(np.float16), Y0),
        ((10 * X0).astype(int), (10 * Y0).astype(int)),
        (X0 > 0, Y0),
        (np.round(X0).astype(object), Y0),
        (RNG.standard_cauchy((60, 4)), RNG.standard_cauchy(60)),
        (np.eye(60), Y0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [None, np.float32])
def test_odd_but_legal_rows_give_a_sane_model(X, y, dtype):
    if dtype is not None:
        X = np.asarray(X).astype(dtype)
    model = quietly(X, y)
    assert isinstance(model.status_, Status)


def test_rank_above_the_features_is_no_restriction():
    assert quietly(X0, Y0, rank=50).components_.shape == (4, 4)


def test_too_few_rows_are_said():
    with pytest.warns(ConvergenceWarning, match="fewer rows than the model has parameters"):
        model = fitted(X0[:12], Y0[:12], rank=4)
    assert model.status_ is Status.too_few_rows
    assert '"auto"' not in model.status_.value  # it may be set already


def test_a_stream_of_other_width_or_dtype():
    model = SecondOrderRegressor(random_state=0, rank=5, alpha=0.0).partial_fit(X0, Y0)
    with pytest.raises(ValueError, match="4 features"):
        model.partial_fit(X0[:, :3], Y0)
    model.partial_fit(X0.astype(np.float32), Y0)
    assert model.coef_.dtype == np.float64


@settings(max_examples=25)
@given(
    n=st.integers(2, 40),
    d=st.integers(1, 12),
    rank=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(["normal", "cauchy", "binary", "integers", "constant", "twins"]),
    linear=st.booleans(),
    intercept=st.booleans(),
)
def test_random_tables_never_raise_the_loss(n, d, rank, seed, kind, linear, intercept):
    rng = np.random.default_rng(seed)
    X = {
        "normal": lambda: rng.standard_normal((n, d)),
        "cauchy": lambda: rng.standard_cauchy((n, d)),
        "binary": lambda: rng.integers(0, 2, (n, d)).astype(float),
        "integers": lambda: rng.integers(-3, 4, (n, d)).astype(float),
        "constant": lambda: np.ones((n, d)),
        "twins": lambda: np.repeat(rng.standard_normal((n, 1)), d, axis=1),
    }[kind]()
    y = rng.standard_cauchy(n)
    model = SecondOrderRegressor(
        rank, fit_linear=linear, fit_intercept=intercept, random_state=0, alpha=0.0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    loss = np.array([record.loss for record in model.history_])
    assert np.all(np.isfinite(loss))
    assert np.all(np.diff(loss) <= 0)
    assert np.all(np.isfinite(model.predict(X)))
    if intercept:
        sane(model, X, y)


def flagging(function):
    """Return the function, as on a processor whose linear algebra sets flags for nothing."""

    def flagged(*args, **kwargs):
        np.sqrt(np.float32(-1.0)), np.float32(1e30) * np.float32(1e30), np.ones(1) / 0
        return function(*args, **kwargs)

    return flagged


@pytest.mark.parametrize("engine", [None, "threads"])
def test_false_alarms_of_the_linear_algebra_reach_nobody(monkeypatch, engine):
    from quadlin.core import model
    from quadlin.solve.lowrank.gauss_newton import GaussNewton

    monkeypatch.setattr(GaussNewton, "moved", flagging(GaussNewton.moved))
    monkeypatch.setattr(model, "evaluate", flagging(model.evaluate))
    monkeypatch.setattr(model, "lead", flagging(model.lead))  # of what is told in raw units
    X, y = DATA.X[:400], DATA.y[:400]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = SecondOrderRegressor(2, uncertainty=True, alpha=0.0).fit(X, y, engine=engine)
        fitted.predict(X, return_std=True), fitted.diagnose(X, y), fitted.interactions_.top(3)
        fitted.partial_fit(X, y)
        with pytest.raises(RuntimeWarning):  # elsewhere the alarm is one
            model.evaluate()


@pytest.mark.parametrize(("dtype", "size"), [("float32", 1e30), ("float64", 1e200)])
def test_predictions_that_no_number_can_hold_are_refused(dtype, size):
    model = SecondOrderRegressor(2, alpha=0.0, extrapolation="free")
    model.fit(DATA.X.astype(dtype), DATA.y.astype(dtype))
    X = DATA.X[:3].astype(dtype)
    X[1] = size
    with pytest.raises(ValueError, match=f"predictions of 1 rows are too large for {dtype}"):
        model.predict(X)
    assert np.isfinite(model.predict(X[[0, 2]])).all()


def test_warnings_point_at_the_line_of_the_user():
    X, y = DATA.X[:60], DATA.y[:60]
    frame = pd.DataFrame({"a": X[:, 0], "b": [*"pqr"] * 20})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # narwhals 2.0 renames series as pandas 3 would rather not have it.
        warnings.filterwarnings("ignore", "The inplace keyword", DeprecationWarning)
        SecondOrderRegressor(8, uncertainty=True, alpha=0.0).fit(X[:20], y[:20])
        ids = [f"id{i // 2}" for i in range(58)] + ["one", "two"]
        SecondOrderRegressor(1, alpha=0.0).fit(frame.assign(b=ids), y)
        model = SecondOrderRegressor(1, alpha=1.0).fit(frame, y)
        model.predict(frame.assign(b="new"))
        model.partial_fit(frame.assign(b="new"), y)
    assert len(caught) == 6
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.parametrize(
    ("values", "polish"),
    [((0.0, 1.0), True), ((-1.0, 1.0), True), ((2.0, 5.0), True), ((-1.0, 1.0), False)],
)
def test_signals_are_retrieved_through_masks_of_two_values(values, polish):
    # Without a linear part the square of a two-valued feature is nobody else's.
    rng = np.random.default_rng(0)
    masks, signal = rng.choice(values, (600, 12)), rng.standard_normal(12)
    y = (masks @ signal) ** 2
    model = SecondOrderRegressor(
        1, fit_linear=False, fit_intercept=False, polish=polish, random_state=0, alpha=0.0
    ).fit(masks, y)
    direction = model.components_[0] * np.sqrt(model.eigenvalues_[0])
    np.testing.assert_allclose(direction * np.sign(direction @ signal), signal, atol=1e-6)
    assert model.has_diagonal_.all()


def test_parameters_that_are_not_fitted_do_not_count():
    rng = np.random.default_rng(0)
    X, signal = rng.standard_normal((90, 30)), rng.standard_normal(30)
    model = SecondOrderRegressor(
        1, fit_linear=False, fit_intercept=False, random_state=0, alpha=0.0
    )
    model.fit(X[:50], (X[:50] @ signal) ** 2)  # 50 rows, 30 parameters, not 61
    assert model.status_ is Status.converged
    assert "30 parameters" in model.diagnose()
