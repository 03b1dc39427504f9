"""What a fitted model says about itself is what it predicts: coefficients, contributions, tests."""

import sys
from functools import cache
from itertools import combinations

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse, stats
from sklearn.exceptions import NotFittedError

from contract.tables import low_rank, quadratic_columns
from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    Moments,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    mip_report,
    open_source,
)

N, CITIES, KINDS = 400, ["Bonn", "Oslo", "Rome"], ["flat", "house"]
COLUMNS = ["area", "age", "garden", "city", "kind"]
FEATURES = [*COLUMNS[:3], *(f"city={c}" for c in CITIES), *(f"kind={k}" for k in KINDS)]


def draw_flats():
    """Return flats, their rents, two classes, three classes and counts."""
    rng = np.random.default_rng(0)
    flats = pd.DataFrame(
        {
            "area": rng.normal(70, 20, N),
            "age": rng.exponential(10, N),
            "garden": (rng.random(N) < 0.4) * 1.0,
            "city": rng.choice(CITIES, N, p=[0.2, 0.3, 0.5]),
            "kind": rng.choice(KINDS, N),
        }
    )
    f = 5 + 0.1 * flats.area - 0.3 * flats.age * (flats.city == "Rome")
    f += 2 * (flats.kind == "house") + 0.02 * flats.area * flats.garden
    f = (f + 0.002 * (flats.area - 70) * (flats.age - 10)).to_numpy()
    z = (f - f.mean()) / f.std()
    likes = np.where(rng.random(N) < 1 / (1 + np.exp(-2 * z)), "yes", "no")
    classes = np.array(["low", "middle", "top"])[np.digitize(z, [-0.5, 0.5])]
    return flats, f + rng.standard_normal(N), likes, classes, rng.poisson(np.exp(z / 2)) * 1.0


FLATS, RENT, LIKES, CLASSES, COUNTS = draw_flats()
PLAIN = {"alpha": 1.0, "random_state": 0}
FITS = {
    "default": lambda: SecondOrderRegressor(random_state=0).fit(FLATS, RENT),
    "rank 2": lambda: SecondOrderRegressor(2, alpha=0.0, random_state=0).fit(FLATS, RENT),
    "linear": lambda: SecondOrderRegressor(0, pairs=None, alpha=1.0).fit(FLATS, RENT),
    "named pair": lambda: SecondOrderRegressor(0, pairs=[("area", "age")], **PLAIN).fit(
        FLATS, RENT
    ),
    "no intercept": lambda: SecondOrderRegressor(2, fit_intercept=False, **PLAIN).fit(FLATS, RENT),
    "huber": lambda: SecondOrderRegressor(2, loss="huber", **PLAIN).fit(FLATS, RENT),
    "counts": lambda: SecondOrderRegressor(1, loss="poisson", **PLAIN).fit(FLATS, COUNTS),
    "stream": lambda: SecondOrderRegressor(1, random_state=0).partial_fit(FLATS, RENT),
    "cross-validated": lambda: SecondOrderRegressorCV([0, 2], [1.0], cv=3, random_state=0).fit(
        FLATS, RENT
    ),
    "classifier": lambda: SecondOrderClassifier(random_state=0).fit(FLATS, LIKES),
    "one of three classes": lambda: (
        SecondOrderClassifier(1, **PLAIN).fit(FLATS, CLASSES).one_vs_rest("middle")
    ),
    "machine": lambda: FactorizationMachineRegressor(random_state=0).fit(FLATS, RENT),
    "machine of classes": lambda: FactorizationMachineClassifier(random_state=0).fit(FLATS, LIKES),
}
ANY = pytest.mark.parametrize("kind", FITS)
SOME = pytest.mark.parametrize("kind", ["default", "counts", "classifier"])


@cache
def fitted(kind):
    return FITS[kind]()


def linear_predictor(model, X):
    """Return what the coefficients describe: predictions, log-odds, or logarithms of means."""
    if hasattr(model, "classes_"):
        return model.decision_function(X)
    prediction = model.predict(X)
    return np.log(prediction) if getattr(model, "loss", "") == "poisson" else prediction


def encoded(frame, names):
    """Return the columns that names such as area and city=Oslo stand for."""
    parts = (name.partition("=") for name in names)
    columns = [frame[a] if not eq else frame[a] == level for a, eq, level in parts]
    return np.column_stack(columns).astype(float)


# Coefficients.


@ANY
def test_coefficients_reproduce_the_prediction_in_the_users_units(kind):
    model = fitted(kind)
    names, M = list(model.interactions_.names), model.interactions_.matrix()
    assert names == FEATURES
    X = encoded(FLATS, names)
    f = model.intercept_ + X @ model.coef_ + np.einsum("ni,ij,nj->n", X, M, X)
    np.testing.assert_allclose(f, linear_predictor(model, FLATS), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(M, M.T, rtol=1e-12, atol=1e-14)


@SOME
def test_the_coefficient_of_two_numbers_is_the_mixed_difference_of_predictions(kind):
    model = fitted(kind)
    row = pd.DataFrame(
        {"area": 70.0, "age": 10.0, "garden": 1.0, "city": "Rome", "kind": "flat"}, [0]
    )
    steps = {"area": 5.0, "age": 2.0, "garden": -1.0}

    def at(**changes):
        return linear_predictor(model, row.assign(**changes))[0]

    for a, b in combinations(steps, 2):
        here = {a: row[a] + steps[a], b: row[b] + steps[b]}
        mixed = at(**here) - at(**{a: here[a]}) - at(**{b: here[b]}) + at()
        expected = mixed / (steps[a] * steps[b])
        assert model.interaction(a, b) == pytest.approx(expected, rel=1e-6, abs=1e-9)
        assert model.interaction(b, a) == pytest.approx(model.interaction(a, b), abs=1e-14)
    for a in ("area", "age"):
        twice = at(**{a: row[a] + steps[a]}) - 2 * at() + at(**{a: row[a] - steps[a]})
        expected = twice / (2 * steps[a] ** 2)
        assert model.interaction(a, a) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@SOME
def test_coefficients_of_levels_differ_as_predictions_do(kind):
    model = fitted(kind)
    young = pd.DataFrame({"area": 70.0, "age": 5.0, "garden": 0.0, "city": CITIES, "kind": "flat"})
    slopes = linear_predictor(model, young.assign(age=9.0)) - linear_predictor(model, young)
    coefficients = np.array([model.interaction("age", f"city={city}") for city in CITIES])
    np.testing.assert_allclose(np.diff(coefficients), np.diff(slopes) / 4, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", ["rank 2", "machine"])
def test_the_slope_at_a_row_is_the_derivative_of_the_prediction(kind):
    model, row = fitted(kind), FLATS.iloc[[7]]
    x = encoded(row, FEATURES)[0]
    M = model.interactions_.matrix()
    gradient = model.coef_ + 2 * M @ x
    for j, name in enumerate(("area", "age")):
        ends = (row.assign(**{name: row[name] + h}) for h in (1e-2, -1e-2))
        up, down = (linear_predictor(model, end)[0] for end in ends)
        assert (up - down) / 2e-2 == pytest.approx(gradient[j], rel=1e-6, abs=1e-8)


@pytest.mark.parametrize(("rank", "sign"), [(1, 1), (1, -1), (4, 1)])
def test_components_and_eigenvalues_are_the_eigenpairs_of_m(rank, sign):
    table = low_rank(300, 5, rank, sigma=0.1, seed=rank)
    model = SecondOrderRegressor(rank, alpha=0.0, random_state=0).fit(table.X, sign * table.y)
    V, values = model.components_, model.eigenvalues_
    np.testing.assert_allclose(V @ V.T, np.eye(rank), atol=1e-10)
    assert np.all(np.diff(np.abs(values)) <= 0)
    M = model.interactions_.matrix()
    np.testing.assert_allclose((V.T * values) @ V, M, atol=1e-10)
    # Entries of M have errors of about 0.1/√300; the truth is within 10 of these.
    np.testing.assert_allclose(M, sign * table.M, atol=0.06)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_every_entry_of_m_survives_units_far_apart(dtype):
    rng = np.random.default_rng(3)
    unit = np.array([1e12, 1.0, 1e-12, 1e6, 1e-6])
    Z = rng.standard_normal((300, 5))
    y = (Z[:, 0] + Z[:, 2]) ** 2 - Z[:, 1] * Z[:, 3] + Z[:, 4]
    truth = np.zeros((5, 5))
    truth[0, 0] = truth[2, 2] = truth[0, 2] = truth[2, 0] = 1.0
    truth[1, 3] = truth[3, 1] = -0.5
    X = (Z * unit).astype(dtype)
    model = SecondOrderRegressor(3, alpha=0.0, random_state=0).fit(X, y.astype(dtype))
    atol = 1e-7 if dtype == np.float64 else 1e-3
    M = model.interactions_.matrix()
    np.testing.assert_allclose(M * np.outer(unit, unit), truth, atol=atol)


@pytest.mark.smoke
def test_squares_are_modelled_where_they_differ_from_linear_terms():
    model = fitted("rank 2")
    assert model.has_diagonal_.tolist() == [name in ("area", "age") for name in FEATURES]
    assert model.interaction("garden", "garden") == 0
    assert model.interaction("city=Oslo", "city=Rome") == 0  # no row has both


# The view of interactions.


@SOME
def test_the_strongest_interactions_are_those_of_the_matrix(kind):
    model = fitted(kind)
    view, M = model.interactions_, model.interactions_.matrix()
    sd = encoded(FLATS, FEATURES).std(axis=0)
    strength = np.abs(M * np.outer(sd, sd)) * (2 - np.eye(len(M)))
    for squares in (True, False):
        i, j = np.triu_indices(len(M), 0 if squares else 1)
        expected = np.sort(strength[i, j])[::-1]
        for count in (1, 3, 100):
            top = view.top(count, squares=squares)
            assert len(top) <= count
            found = [abs(pair.strength) for pair in top]
            np.testing.assert_allclose(found, expected[: len(top)], rtol=1e-6)
            # Only what rounding leaves of a zero may be missing.
            assert np.all(expected[len(top) : count] <= 1e-5 * (expected[0] or 1.0))
    assert view.top(0) == []


@SOME
def test_every_way_to_ask_for_a_coefficient_gives_the_same_number(kind):
    model = fitted(kind)
    view, M = model.interactions_, model.interactions_.matrix()
    twice = M * (2 - np.eye(len(M)))  # M_ij and M_ji both count
    for i, name in enumerate(FEATURES):
        np.testing.assert_allclose(view.row(name), twice[i], rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(view.row(i), twice[i], rtol=1e-12, atol=1e-15)
        for j, other in enumerate(FEATURES):
            for pair in ((name, other), (i, j), (i, j - len(M))):
                assert view[pair] == pytest.approx(twice[i, j], rel=1e-9, abs=1e-15)
            assert model.interaction(name, other) == view[name, other]
    for pair in view.top(5, squares=True):
        assert pair.coefficient == view[pair.first, pair.second]


@pytest.mark.parametrize("uncertainty", [False, True, "robust"])
def test_a_pair_has_one_coefficient_and_one_standard_error_wherever_it_is_listed(uncertainty):
    model = SecondOrderRegressor(uncertainty=uncertainty, random_state=0).fit(FLATS, RENT)
    assert len(model.pairs_) > 0
    summary = model.summary().to_frame().set_index(["first", "second"])
    view = model.interactions_.to_frame().set_index(["first", "second"])
    for pair in model.pairs_:
        names = pair.first, pair.second
        assert pair.coefficient == view.loc[names, "coefficient"] == model.interaction(*names)
        assert summary.loc[names, "estimate"] == pair.coefficient
        errors = [summary.loc[names, "std_error"], view.loc[names, "std_error"]]
        assert [*errors, model.interaction_std(*names)] == pytest.approx([pair.std_error] * 3)


@pytest.mark.smoke
def test_a_frame_of_interactions_has_every_product():
    model = fitted("rank 2")
    frame = model.interactions_.to_frame()
    X = dict(zip(FEATURES, encoded(FLATS, FEATURES).T, strict=True))
    rows = zip(frame["first"], frame["second"], frame["coefficient"], strict=True)
    f = model.intercept_ + encoded(FLATS, FEATURES) @ model.coef_
    f += sum(c * X[a] * X[b] for a, b, c in rows)
    np.testing.assert_allclose(f, model.predict(FLATS), atol=1e-4)
    assert frame["std_error"].isna().all()
    assert len(model.interactions_.to_frame(3)) == 3
    assert not (frame["first"] == frame["second"]).all()
    without = model.interactions_.to_frame(squares=False)
    assert not (without["first"] == without["second"]).any()


def test_a_linear_model_has_no_interactions():
    model = fitted("linear")
    assert model.interactions_.top(5, squares=True) == []
    assert len(model.interactions_.to_frame()) == 0
    assert model.effects(FLATS).pairs == []
    assert model.eigenvalues_.shape == (0,)


# Standard errors and the summary: rank d is a linear model of all products, known in closed form.


@cache
def regression():
    """Return a fit of all products, with coefficients and errors by dense least squares."""
    table = low_rank(200, 3, 2, sigma=1.0, seed=4)
    A = quadratic_columns(table.X)
    beta = np.linalg.lstsq(A, table.y)[0]
    left = len(A) - A.shape[1]
    noise = np.sum((table.y - A @ beta) ** 2) / left
    errors = np.sqrt(noise * np.diag(np.linalg.inv(A.T @ A)))
    model = SecondOrderRegressor(3, alpha=0.0, tol=1e-12, uncertainty=True, random_state=0)
    return model.fit(table.X, table.y), table, beta, errors, left


TERMS = ["intercept", "x0", "x1", "x2", "x0²", "x0 × x1", "x0 × x2", "x1²", "x1 × x2", "x2²"]


@pytest.mark.smoke
def test_the_summary_is_that_of_least_squares():
    model, _, beta, errors, left = regression()
    frame = model.summary(top=6, level=0.9).to_frame().set_index("term").loc[TERMS]
    t = beta / errors
    np.testing.assert_allclose(frame["estimate"], beta, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(frame["std_error"], errors, rtol=1e-3)
    np.testing.assert_allclose(frame["t"], t, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(frame["p"], 2 * stats.t.sf(abs(t), left), rtol=1e-2, atol=1e-4)
    reach = stats.t.ppf(0.95, left) * errors
    np.testing.assert_allclose(frame["low"], beta - reach, rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(frame["high"], beta + reach, rtol=1e-2, atol=1e-3)


def test_slopes_at_the_mean_are_coefficients_of_centred_features():
    model, table, _, _, left = regression()
    A = quadratic_columns(table.X - table.X.mean(axis=0))
    beta, (square,) = np.linalg.lstsq(A, table.y)[:2]
    errors = np.sqrt(square / left * np.diag(np.linalg.inv(A.T @ A)))
    frame = model.summary().to_frame().set_index("term")
    np.testing.assert_allclose(frame.loc[TERMS[1:4], "slope"], beta[1:4], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(frame.loc[TERMS[1:4], "slope_std"], errors[1:4], rtol=1e-3)
    frame = fitted("rank 2").summary().to_frame().set_index("term")
    assert frame["slope"].notna().to_numpy().tolist() == [t in COLUMNS[:3] for t in frame.index]


def test_standard_errors_of_coefficients_are_those_of_least_squares():
    model, table, beta, errors, left = regression()
    assert model.intercept_std_ == pytest.approx(errors[0], rel=1e-3)
    np.testing.assert_allclose(model.coef_std_, errors[1:4], rtol=1e-3)
    i, j = np.triu_indices(3)
    found = [model.interaction_std(a, b) for a, b in zip(i.tolist(), j.tolist(), strict=True)]
    np.testing.assert_allclose(found, errors[4:], rtol=1e-3)
    residual = table.y - quadratic_columns(table.X) @ beta
    assert model.noise_ == pytest.approx(np.sqrt(residual @ residual / left), rel=1e-3)
    frame = model.interactions_.to_frame()
    listed = [
        model.interaction_std(a, b) for a, b in zip(frame["first"], frame["second"], strict=True)
    ]
    np.testing.assert_allclose(frame["std_error"], listed)


def test_standard_errors_that_were_not_computed_name_the_option():
    model = fitted("rank 2")
    with pytest.raises(AttributeError, match="uncertainty=True"):
        model.interaction_std(0, 1)
    for attribute in ("noise_", "coef_std_", "intercept_std_"):
        with pytest.raises(AttributeError, match="uncertainty=True"):
            getattr(model, attribute)


@SOME
def test_the_summary_lists_the_coefficients_of_the_model(kind):
    model = fitted(kind)
    summary = model.summary(top=10)
    frame, text = summary.to_frame(), str(summary)
    for words in (type(model).__name__, "400", *FEATURES):
        assert words in text
    linear = frame[frame["kind"] == "linear"].set_index("first")["estimate"]
    assert set(linear.index) == set(FEATURES)
    np.testing.assert_allclose(linear[FEATURES], model.coef_)
    pairs = frame[frame["second"] != ""]
    for row in pairs.itertuples():
        assert row.estimate == pytest.approx(model.interaction(row.first, row.second))
    assert frame["estimate"][frame["term"] == "intercept"].tolist() == [model.intercept_]


@SOME
def test_the_strength_of_a_term_is_the_change_per_standard_deviation_at_the_mean(kind):
    model = fitted(kind)
    frame = model.summary(top=50).to_frame().set_index(["first", "second"])
    mean = FLATS.iloc[[0]].assign(**{c: FLATS[c].mean() for c in ("area", "age", "garden")})
    share = {c: FLATS[c].value_counts(normalize=True) for c in ("city", "kind")}
    for name in ("area", "age", "garden"):
        ends = (mean.assign(**{name: mean[name] + h}) for h in (0.5, -0.5))
        up, down = (
            sum(
                share["city"][c]
                * share["kind"][k]
                * linear_predictor(model, end.assign(city=c, kind=k))[0]
                for c in CITIES
                for k in KINDS
            )
            for end in ends
        )
        expected = (up - down) * FLATS[name].std(ddof=0)
        assert frame.loc[(name, ""), "strength"] == pytest.approx(expected, rel=1e-6, abs=1e-9)
    for pair in model.interactions_.top(3):
        assert frame.loc[(pair.first, pair.second), "strength"] == pytest.approx(pair.strength)


@pytest.mark.parametrize(
    ("kind", "target"), [("rank 2", RENT), ("cross-validated", RENT), ("machine", RENT)]
)
def test_the_summary_has_the_score_of_the_rows_given(kind, target):
    model = fitted(kind)
    rows = slice(50, 170)
    score = model.score(FLATS[rows], target[rows])
    summary = model.summary(FLATS[rows], target[rows])
    assert summary.quality.value == pytest.approx(score)
    assert f"{score:.6f}"[:4] in str(summary)
    assert "120" in str(summary)


def test_the_summary_without_rows_has_the_score_of_the_fitted_rows():
    model = fitted("rank 2")
    assert model.summary().quality.value == pytest.approx(model.score(FLATS, RENT), rel=1e-6)
    weight = np.random.default_rng(0).uniform(size=N)
    again = SecondOrderRegressor(1, alpha=0.0, random_state=0).fit(FLATS, RENT, weight)
    expected = again.score(FLATS, RENT, weight)
    assert again.summary(FLATS, RENT, weight).quality.value == pytest.approx(expected)


def test_summaries_say_how_to_get_standard_errors_and_what_levels_are_measured_from():
    text = str(fitted("rank 2").summary())
    assert "uncertainty=True" in text
    assert "mean" in text
    assert fitted("rank 2").summary().to_frame()["p"].isna().all()


def test_many_linear_terms_are_in_the_frame_and_the_strongest_are_printed():
    X = np.random.default_rng(0).standard_normal((200, 40))
    model = SecondOrderRegressor(0, alpha=1.0, pairs=None).fit(X, X @ np.arange(40.0))
    summary = model.summary(top=5)
    shown = {line.split()[0] for line in str(summary).splitlines() if line.startswith("x")}
    strongest = np.argsort(-np.abs(model.coef_) * X.std(axis=0))[:5]
    assert shown == {f"x{j}" for j in strongest}
    assert (summary.to_frame()["kind"] == "linear").sum() == 40


def test_columns_that_do_not_vary_are_named_and_not_shown_as_estimates():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(300, 3)), columns=list("abc")).assign(always=1.0)
    y = X.a + rng.normal(size=300)
    model = SecondOrderRegressor(0, alpha=0.0, pairs=None, uncertainty=True).fit(X, y)
    lines = str(model.summary()).splitlines()
    assert any("'always'" in line for line in lines)
    assert not any(line.startswith("always") for line in lines)
    frame = model.summary().to_frame().set_index("term")
    assert "always" in str(model.diagnose())
    assert frame.loc["always", "estimate"] == 0
    assert np.isnan(frame.loc["always", "std_error"])


def test_a_summary_is_a_sequence_of_its_terms():
    summary = fitted("rank 2").summary()
    assert len(summary) == len(summary.terms) == len(summary.to_frame())
    assert list(summary) == summary.terms
    assert summary[0] is summary.terms[0]


def test_the_pairs_of_a_model_are_listed_with_their_standard_errors():
    model = fitted("named pair")
    (pair,) = model.pairs_.pairs
    assert {pair.first, pair.second} == {"area", "age"}
    assert pair.coefficient == pytest.approx(model.interaction("area", "age"))
    assert pair.std_error > 0
    assert "area" in str(model.pairs_)
    assert fitted("rank 2").pairs_ is None


def test_the_pairs_of_a_model_of_all_products_say_where_its_interactions_are_listed():
    rng = np.random.default_rng(0)
    X, A = rng.standard_normal((400, 7)), rng.standard_normal((7, 7))
    y = np.einsum("ni,ij,nj->n", X, A, X) + 0.5 * rng.standard_normal(400)
    model = SecondOrderRegressor(random_state=0).fit(X, y)
    assert len(model.interactions_.to_frame()) == 28  # every product is in the model
    assert "interactions_" in str(model.pairs_)


# Contributions.


@ANY
def test_contributions_sum_to_the_prediction(kind):
    model = fitted(kind)
    expected = linear_predictor(model, FLATS)
    for reference in ("mean", "zero", {"city": "Oslo"}, {"age": 2.5, "kind": "flat"}):
        for pairs in (True, False, 0, 2):
            parts = model.contributions(FLATS, pairs=pairs, reference=reference)
            assert parts.column_names == COLUMNS
            np.testing.assert_allclose(parts.prediction, expected, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(parts.values.sum(axis=1), expected, rtol=1e-9, atol=1e-9)
            assert parts.values.shape == (len(parts), len(parts.names))


@pytest.mark.smoke
@pytest.mark.parametrize("area", [-1e3, 2e3])
def test_contributions_of_a_row_far_outside_sum_to_what_is_predicted_there(area):
    # `extrapolation="clip"` limits such a row, and its explanation must be that of the limit.
    model = fitted("rank 2")
    far = FLATS.iloc[:5].assign(area=area)
    with pytest.warns(UserWarning, match="outside"):
        prediction = model.predict(far)
    np.testing.assert_allclose(model.contributions(far).prediction, prediction, rtol=1e-9)
    free = SecondOrderRegressor(2, alpha=0.0, extrapolation="free", random_state=0)
    free.fit(FLATS, RENT)
    expected = free.predict(far)
    np.testing.assert_allclose(free.contributions(far).prediction, expected, rtol=1e-9)
    assert np.abs(expected - prediction).min() > 1


@pytest.mark.parametrize("kind", ["rank 2", "machine"])
def test_a_pair_of_numbers_adds_its_coefficient_times_the_distances_from_the_mean(kind):
    model = fitted(kind)
    parts = model.contributions(FLATS).to_frame()
    a, b = (FLATS[name] - FLATS[name].mean() for name in ("area", "age"))
    expected = model.interaction("area", "age") * a * b
    np.testing.assert_allclose(parts["area × age"], expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", ["rank 2", "machine"])
def test_the_baseline_is_the_prediction_for_mean_numbers_and_average_levels(kind):
    model = fitted(kind)
    row = FLATS.iloc[[0]].assign(**{c: FLATS[c].mean() for c in ("area", "age", "garden")})
    share = {c: FLATS[c].value_counts(normalize=True) for c in ("city", "kind")}
    mean = sum(
        share["city"][c] * share["kind"][k] * linear_predictor(model, row.assign(city=c, kind=k))[0]
        for c in CITIES
        for k in KINDS
    )
    parts = model.contributions(FLATS)
    assert parts.baseline == pytest.approx(mean)
    zero = model.contributions(FLATS, reference="zero")
    assert zero.baseline == pytest.approx(model.intercept_)


def test_a_reference_is_where_contributions_are_zero():
    parts = fitted("rank 2").contributions(FLATS, reference={"city": "Oslo", "age": 1.0})
    frame, oslo = parts.to_frame(), (FLATS["city"] == "Oslo").to_numpy()
    assert np.abs(frame.loc[oslo, ["city", "age × city"]]).to_numpy().max() < 1e-9
    assert np.abs(frame.loc[~oslo, "city"]).min() > 1e-3
    assert "Oslo" in parts.reference
    young = fitted("rank 2").contributions(FLATS.assign(age=1.0), reference={"age": 1.0})
    assert np.abs(young.to_frame()["age"]).max() < 1e-9


def test_without_pairs_each_column_has_half_of_its_pairs():
    model = fitted("rank 2")
    whole, halves = model.contributions(FLATS), model.contributions(FLATS, pairs=False)
    expected = whole.columns.copy()
    for j, name in enumerate(whole.column_names):
        mine = [name in pair.split(" × ") for pair in whole.pair_names]
        expected[:, j] += whole.pairs[:, mine].sum(axis=1) / 2
    np.testing.assert_allclose(halves.columns, expected, atol=1e-9)
    assert halves.pairs.shape == (N, 0)


def test_contributions_of_every_container_are_the_same():
    model = fitted("rank 2")
    expected = model.contributions(FLATS).values
    for rows in (pl.from_pandas(FLATS), open_source(FLATS, encoder=model.encoder_)):
        np.testing.assert_allclose(model.contributions(rows).values, expected, atol=1e-9)
    table = low_rank(200, 4, 2, sigma=0.1)
    plain = SecondOrderRegressor(2, random_state=0).fit(table.X, table.y)
    parts = plain.contributions(table.X)
    for rows in (sparse.csr_array(table.X), sparse.csc_matrix(table.X), table.X.tolist()):
        np.testing.assert_allclose(plain.contributions(rows).values, parts.values, atol=1e-9)


def test_the_index_of_a_frame_is_kept():
    frame = fitted("rank 2").contributions(FLATS.iloc[[7, 3]]).to_frame()
    assert frame.index.tolist() == [7, 3]


@pytest.mark.smoke
def test_a_level_that_was_never_seen_adds_nothing():
    model, rows = fitted("rank 2"), FLATS.iloc[:5].assign(city="Bergen")
    with pytest.warns(UserWarning, match="city"):
        parts, expected = model.contributions(rows), model.predict(rows)
    np.testing.assert_allclose(parts.prediction, expected)
    assert np.abs(parts.columns[:, COLUMNS.index("city")]).max() < 1e-9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pairs": -1}, "pairs=-1"),
        ({"pairs": "all"}, "pairs=.*all"),
        ({"reference": "median"}, "reference=.*median"),
        ({"reference": {"city": "Rom"}}, "Rom.*city"),
        ({"reference": {"age": "old"}}, "age"),
        ({"reference": {"town": "Rome"}}, "town"),
    ],
)
def test_what_makes_no_sense_raises_an_error_that_names_it(options, words):
    with pytest.raises((ValueError, KeyError), match=words):
        fitted("rank 2").contributions(FLATS, **options)


# Effects.


@SOME
def test_effects_are_the_standard_deviations_of_contributions(kind):
    model = fitted(kind)
    effects, parts = model.effects(FLATS), model.contributions(FLATS).to_frame()
    assert {e.first for e in effects.columns} == set(COLUMNS)
    size = max(e.strength for e in effects.columns)
    for effect in (*effects.columns, *effects.pairs):
        name = " × ".join(filter(None, (effect.first, effect.second)))
        deviation = parts[name].std(ddof=0)
        assert effect.strength == pytest.approx(deviation, rel=1e-6, abs=1e-9 * size)
    for listed in (effects.columns, effects.pairs):
        strengths = [e.strength for e in listed]
        assert strengths == sorted(strengths, reverse=True)
    text = str(effects)
    for words in (*COLUMNS, "city=Rome", "400 rows given"):
        assert words in text


def test_without_rows_effects_are_those_of_independent_columns():
    # All combinations of some values: the columns of these rows are independent.
    rng = np.random.default_rng(0)
    values = [rng.exponential(size=12), rng.normal(5, 2, 12), np.arange(3), np.arange(2)]
    grid = np.stack([v.ravel() for v in np.meshgrid(*values)], axis=1)
    names, kinds = (np.array(list("abc"))[grid[:, j].astype(int)] for j in (2, 3))
    frame = pd.DataFrame({"x": grid[:, 0], "z": grid[:, 1], "name": names, "kind": kinds})
    y = grid[:, 0] * grid[:, 1] + (names == "a") * grid[:, 0] + rng.standard_normal(len(grid))
    y += (names == "b") * (kinds == "a") + grid[:, 0] ** 2
    model = SecondOrderRegressor(3, alpha=0.0, random_state=0).fit(frame, y)
    given, without = model.effects(frame), model.effects()
    expected = {(e.first, e.second): e.strength for e in (*given.columns, *given.pairs)}
    for effect in (*without.columns, *without.pairs):
        assert effect.strength == pytest.approx(expected[effect.first, effect.second], rel=1e-6)
    assert "independent" in without.rows


@pytest.mark.parametrize("kind", ["rank 2", "machine"])
def test_effects_of_levels_are_differences_of_predictions(kind):
    model = fitted(kind)
    effects = {(e.column, e.level): e for e in model.effects().levels}
    assert set(effects) == {("city", c) for c in CITIES} | {("kind", k) for k in KINDS}
    assert sum(
        effects["city", c].share * effects["city", c].effect for c in CITIES
    ) == pytest.approx(0, abs=1e-9)
    for c in CITIES:
        assert effects["city", c].share == pytest.approx((FLATS.city == c).mean())
    row = FLATS.iloc[[0]].assign(area=70.0, age=10.0, garden=0.0)
    place = {"area": 70.0, "age": 10.0, "garden": 0.0, "city": "Oslo", "kind": "flat"}
    there = {e.level: e.effect for e in model.effects(reference=place).levels}
    f = {c: linear_predictor(model, row.assign(city=c, kind="flat"))[0] for c in CITIES}
    assert there["Oslo"] == pytest.approx(0, abs=1e-9)
    assert there["Rome"] == pytest.approx(f["Rome"] - f["Oslo"], abs=1e-9)


# Several classes, estimators before `fit`, and names.


@pytest.mark.smoke
def test_an_estimator_before_fit_has_nothing_to_say():
    model = SecondOrderRegressor()
    for method in ("summary", "effects", "diagnose"):
        with pytest.raises(NotFittedError, match="SecondOrderRegressor"):
            getattr(model, method)()
    for method in ("contributions", "extrapolates"):
        with pytest.raises(NotFittedError, match="SecondOrderRegressor"):
            getattr(model, method)(FLATS)
    for name in ("interactions_", "coef_", "intercept_", "eigenvalues_", "components_", "pairs_"):
        assert not hasattr(model, name)


@pytest.mark.smoke
def test_an_unknown_feature_is_named():
    view = fitted("rank 2").interactions_
    for ask in (lambda x: view[x, 0], lambda x: view.row(x)):
        with pytest.raises(KeyError, match="income"):
            ask("income")
        with pytest.raises(IndexError, match="8"):  # so many there are
            ask(8)


def test_tables_without_pandas_are_dicts(monkeypatch):
    (model, table, *_) = regression()
    monkeypatch.setitem(sys.modules, "pandas", None)
    parts = model.summary(), model.effects(table.X), model.contributions(table.X)
    for part in (*parts, model.interactions_):
        columns = part.to_frame()
        assert isinstance(columns, dict)
        assert len({len(column) for column in columns.values()}) == 1


def test_a_classifier_of_several_classes_names_the_way_to_one_of_them(tmp_path):
    model = SecondOrderClassifier(0, pairs=None, **PLAIN).fit(FLATS, CLASSES)
    given = {"summary": [], "effects": [], "contributions": [FLATS], "report": [tmp_path / "page"]}
    for method, arguments in given.items():
        with pytest.raises(ValueError, match="one_vs_rest"):
            getattr(model, method)(*arguments)
    for label in model.classes_:
        assert label in str(model.one_vs_rest(label).summary())


def test_names_with_control_characters_are_not_printed_raw():
    frame = pd.DataFrame({"a\x1b[31m": FLATS.area, "b": FLATS.age, "c\n": FLATS.city + "\x07"})
    model = SecondOrderRegressor(2, random_state=0, alpha=0.1).fit(frame, RENT)
    texts = [str(model.summary()), str(model.effects(frame)), str(model.diagnose(frame, RENT))]
    assert r"a\x1b[31m" in texts[0]
    assert not [text for text in texts if "\x1b" in text or "\x07" in text]
    pairs = SecondOrderRegressor(0, pairs=[("a\x1b[31m", "b")], alpha=0.0).fit(frame, RENT).pairs_
    assert "\x1b" not in str(pairs)


# Diagnosis.


@SOME
def test_every_model_is_diagnosed(kind):
    model = fitted(kind)
    text = str(model.diagnose())
    assert model.status_.name in text
    assert "400" in text


def test_rows_that_account_for_most_of_the_error_are_named_with_a_remedy():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3))
    y = X[:, 0] + X[:, 1] * X[:, 2] + 0.5 * rng.standard_normal(300)
    y[43] += 1e4
    with pytest.warns(UserWarning, match="huber"):
        model = SecondOrderRegressor(2, alpha=0.0, random_state=0).fit(X, y)
    text = str(model.diagnose(X, y))
    assert "43" in text
    assert 'loss="huber"' in text
    good = np.arange(300) != 43
    robust = SecondOrderRegressor(2, alpha=0.0, loss="huber", random_state=0).fit(X, y)
    assert robust.score(X[good], y[good]) > 0.7 > model.score(X[good], y[good])
    assert "huber" not in str(robust.diagnose(X, y))


def test_the_diagnosis_has_the_error_of_rows_and_of_rows_left_out():
    table = low_rank(25, 3, 3, sigma=1.0)
    model = SecondOrderRegressor(3, alpha=5.0, random_state=0).fit(table.X, table.y)
    text = str(model.diagnose(table.X, table.y))
    line = next(line for line in text.splitlines() if line.startswith("error"))
    numbers = [float(word) for word in line.replace(",", " ").split() if word[0].isdigit()]
    here = np.sqrt(np.mean((model.predict(table.X) - table.y) ** 2))
    assert numbers[0] == pytest.approx(here, rel=1e-2)
    squares = []
    for i in range(25):
        rest = np.arange(25) != i
        one = SecondOrderRegressor(3, alpha=5.0, extrapolation="free", random_state=0)
        one.fit(table.X[rest], table.y[rest])
        squares.append((one.predict(table.X[[i]])[0] - table.y[i]) ** 2)
    # The penalty is in units of standard deviations, which vary a little with the rows.
    assert numbers[1] == pytest.approx(np.sqrt(np.mean(squares)), rel=0.05)


def test_a_rank_that_is_too_low_and_rows_that_are_too_few_are_named():
    table = low_rank(1000, 8, 3, sigma=0.1)
    low = SecondOrderRegressor(1, alpha=0.0, random_state=0).fit(table.X, table.y)
    assert "rank=2" in str(low.diagnose(table.X, table.y))
    with pytest.warns(UserWarning, match="rows"):
        few = SecondOrderRegressor(3, alpha=0.0, random_state=0).fit(table.X[:20], table.y[:20])
    assert "20 for" in str(few.diagnose())
    right = SecondOrderRegressor(3, alpha=0.0, random_state=0).fit(table.X, table.y)
    assert "rank=" not in str(right.diagnose(table.X, table.y))


# Rows far outside.


@SOME
def test_fitted_rows_do_not_extrapolate_and_rows_far_outside_do(kind):
    model = fitted(kind)
    rows = pd.concat([FLATS.iloc[:3], FLATS.iloc[:3].assign(area=1e6)])
    far = np.asarray(model.extrapolates(rows))
    assert far.dtype == bool
    assert far.tolist() == [False] * 3 + [True] * 3
    assert not np.any(model.extrapolates(FLATS))


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array, np.ndarray.tolist])
def test_every_container_extrapolates_alike(form):
    table = low_rank(300, 3, 1, sigma=0.5)
    model = SecondOrderRegressor(1, random_state=0).fit(table.X, table.y)
    rows = table.X[:4].copy()
    rows[2, 1] = -300.0
    assert np.asarray(model.extrapolates(form(rows))).tolist() == [False, False, True, False]


# Moments of features, and which of them have a square.


@given(seed=st.integers(0, 500), cut=st.integers(1, 59), as_sparse=st.booleans())
def test_moments_of_two_halves_add_to_those_of_the_whole(seed, cut, as_sparse):
    rng = np.random.default_rng(seed)
    X = (rng.standard_normal((60, 3)) ** 3 + [0, 10, -1e3]) * (rng.random((60, 3)) < 0.8)
    weight = rng.integers(0, 3, 60)
    weight[[0, -1]] = 1
    form = sparse.csr_array if as_sparse else np.asarray
    halves = [Moments.of(form(X[part]), weight[part]) for part in (slice(cut), slice(cut, None))]
    whole = Moments.of(np.repeat(X, weight, axis=0))
    for m in (halves[0] + halves[1], halves[1] + halves[0]):
        assert m.weight == weight.sum()
        for name in ("mean", "var", "kappa", "phi"):
            expected = getattr(whole, name)
            np.testing.assert_allclose(getattr(m, name), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_moments_are_those_of_scipy(form, dtype):
    X = np.random.default_rng(0).gamma(2.0, size=(500, 3)).astype(dtype)
    m, exact = Moments.of(form(X)), X.astype(float)
    np.testing.assert_allclose(m.mean, exact.mean(0))
    np.testing.assert_allclose(m.var, exact.var(0))
    np.testing.assert_allclose(m.kappa, stats.skew(exact))
    np.testing.assert_allclose(m.phi, stats.kurtosis(exact, fisher=False))
    np.testing.assert_allclose(m.tau, m.phi - 1 - m.kappa**2)


@pytest.mark.smoke
@pytest.mark.parametrize("form", [np.asarray, np.ndarray.tolist, sparse.csr_array, Moments.of])
def test_features_whose_square_is_no_linear_term_are_reported(form):
    X = np.column_stack([np.arange(8.0), np.arange(8) % 2, np.ones(8)])
    report = mip_report(form(X))
    assert list(report.kind) == ["free", "two-valued", "constant"]
    assert list(report.names) == ["x0", "x1", "x2"]
    named = mip_report(form(X), ["age", "member", "unit"])
    for word in ("age", "member", "unit", "two-valued", "constant"):
        assert word in str(named)


@pytest.mark.parametrize("q", [0.5, 0.1, 0.001])
def test_two_values_are_recognised_however_rare_one_of_them_is(q):
    two = (np.random.default_rng(0).uniform(size=20_000) < q) * 7.0 - 3.0
    three = two + 3.0 * (np.arange(20_000) % 1000 == 0)
    kinds = mip_report(np.column_stack([two, three])).kind
    assert kinds[0] == "two-valued"
    assert kinds[1] != "two-valued"


@pytest.mark.parametrize("rows", [pd.DataFrame({"a": ["x", "y"]}), np.arange(3.0), "X", None])
def test_what_has_no_moments_raises_an_error(rows):
    with pytest.raises(TypeError, match=type(rows).__name__):
        mip_report(rows)
