"""Standard deviations of rows whose level fit did not see, or that have none, beside all levels."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student

from quadlin import (
    FactorizationMachineRegressor,
    SecondOrderClassifier,
    SecondOrderRegressor,
    load,
    open_source,
    save,
)

pytestmark = pytest.mark.filterwarnings("ignore:Levels that fit did not see", "ignore:Missing val")


def random_levels(rng, levels, rows_each, spread, slopes=0.0, new=100):
    """Return rows of some levels with effects of their own, their targets, and rows of new ones."""
    effect, slope = rng.normal(size=(2, levels + new)) * [[spread], [slopes]]
    level = np.concatenate([np.repeat(np.arange(levels), rows_each), levels + np.arange(new)])
    x = rng.normal(size=len(level))
    y = 1 + (2 + slope[level]) * x + effect[level] + rng.normal(size=len(level))
    X, n = pd.DataFrame({"level": [f"L{i}" for i in level], "x": x}), levels * rows_each
    return X[:n], y[:n], X[n:], y[n:]


@pytest.mark.parametrize(("rows_each", "spread", "slopes"), [(20, 1.0, 0.0), (5, 1.0, 1.0)])
def test_intervals_of_new_levels_cover_if_there_were_many(rows_each, spread, slopes):
    # 8 tables of 100 new levels each: coverage is known to 0.8%, and to 2.5%/√8 for the spread of
    # the levels, which 40 of them tell to 11%. So 95% is to be met within 3%, 2.5 deviations.
    covered = []
    for seed in range(8):
        rows = random_levels(np.random.default_rng(seed), 40, rows_each, spread, slopes)
        X, y, X_new, y_new = rows
        model = SecondOrderRegressor(uncertainty=True, random_state=0).fit(X, y)
        f, std = model.predict(X_new, return_std=True)
        covered.append(np.abs(y_new - f) < 1.96 * std)
    assert 0.92 <= np.mean(covered) <= 0.98


@pytest.mark.parametrize("levels", [2, 3, 7])
def test_of_few_levels_the_mean_square_is_right_and_the_coverage_that_of_students_t(levels):
    # 300 tables whose noise is next to nothing beside the levels. The ratio of mean squares is one
    # of mean χ² with K − 1 and with 1 degrees of freedom: its deviation is √(2/(K−1) + 2)/√300, at
    # most 0.12, and that of the coverage below 0.03; both are met within three of them.
    squares, variances, covered = [], [], []
    for seed in range(300):
        rows = random_levels(np.random.default_rng(seed), levels, 6, 10.0, new=1)
        X, y, X_new, y_new = rows
        model = SecondOrderRegressor(0, alpha=0, pairs=None, uncertainty=True).fit(X, y)
        f, std = model.predict(X_new, return_std=True)
        squares.append((y_new - f) ** 2)
        variances.append(std**2)
        covered.append(np.abs(y_new - f) < 1.96 * std)
    assert abs(np.mean(squares) / np.mean(variances) - 1) < 0.36
    assert abs(np.mean(covered) - (2 * student(levels - 1).cdf(1.96) - 1)) < 0.09


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    n, a, b = 1500, np.array(["p", "q", "r", "s"]), np.array(["u", "v", "w"])
    i, j, x = rng.choice(4, n, p=[0.1, 0.2, 0.3, 0.4]), rng.choice(3, n), rng.normal(size=n) + 5
    A, B, AB = rng.normal(size=(4, 2)), rng.normal(size=(3, 2)), rng.normal(size=(4, 3))
    y = A[i, 0] + B[j, 0] + (A[i, 1] + B[j, 1]) * (x - 5) + AB[i, j] + 0.1 * rng.normal(size=n)
    return pd.DataFrame({"a": a[i], "b": b[j], "x": x}), y


@pytest.fixture(scope="module")
def model(table):
    X, y = table
    return SecondOrderRegressor(6, alpha=1e-3, missing="mean", uncertainty=True).fit(X, y)


def with_none(row, *columns):
    return row.assign(**dict.fromkeys(columns, None))


@pytest.mark.parametrize("columns", [("a",), ("b",), ("a", "b")])
def test_missing_levels_cost_what_they_could_be(model, table, columns):
    X, _ = table
    row = X.iloc[[7]]
    levels = [X[name].value_counts(normalize=True) for name in columns]
    f = model.predict(with_none(row, *columns))[0]
    cost = 0.0
    for each in product(*(shares.items() for shares in levels)):
        filled = row.assign(**dict(zip(columns, [level for level, _ in each], strict=True)))
        share = np.prod([share for _, share in each])
        cost += share * (model.predict(filled)[0] - f) ** 2
    # And what is not known of the levels themselves, whose effects are shrunk.
    errors = model.fitted_.law.slope_std(model.moments_.mean, model.fitted_.fields) ** 2
    for name, shares in zip(columns, levels, strict=True):
        cost += shares.sort_index() @ errors[model.encoder_.text[name]]
    variance = model.fitted_.missing_variance(
        model.encoder_.encode(with_none(row, *columns), model.fitted_.fill)[0], True
    )
    np.testing.assert_allclose(variance[0], cost, rtol=1e-6)


def test_a_missing_number_beside_a_missing_level_costs_their_product_too(model, table):
    X, _ = table
    row, shares = X.iloc[[7]], X["a"].value_counts(normalize=True)
    f, mean, sd = model.predict(with_none(row, "a", "x"))[0], X["x"].mean(), X["x"].std(ddof=0)
    # Squares of x are in the model: its values are those of the rows, as the mean square is.
    cost = 0.0
    for level, share in shares.items():
        filled = pd.concat([row.assign(a=level)] * 400, ignore_index=True)
        filled["x"] = mean + sd * np.sqrt(2) * np.sin(2 * np.pi * (np.arange(400) + 0.5) / 400)
        cost += share * np.mean((model.predict(filled) - f) ** 2)
    gone = model.encoder_.encode(with_none(row, "a", "x"), model.fitted_.fill)[0]
    # The fourth moments of this grid and of x differ, which matters only for its small square.
    np.testing.assert_allclose(model.fitted_.missing_variance(gone, True)[0], cost, rtol=0.05)


def test_a_new_level_is_less_certain_than_a_missing_one_and_that_less_than_any(model, table):
    row = table[0].iloc[[7]]
    f, std = model.predict(pd.concat([row, with_none(row, "a"), row.assign(a="new")]), True)
    assert f[1] == pytest.approx(f[2], rel=1e-12)
    assert std[0] < std[1] < std[2]


def test_files_and_saved_models_tell_missing_levels_from_new_ones(model, table, tmp_path):
    row = table[0].iloc[[7]]
    rows = pd.concat([row, with_none(row, "a", "b"), row.assign(a="new")])
    rows.to_csv(tmp_path / "rows.csv", index=False)
    _, std = model.predict(rows, True)
    save(model, tmp_path / "model")
    again = load(tmp_path / "model")
    source = open_source(
        tmp_path / "rows.csv", encoder=again.encoder_, fill=again.fitted_.fill, missing="mean"
    )
    np.testing.assert_allclose(again.predict(source, True)[1], std, rtol=1e-12)
    assert source.unseen == {"a": 1}
    assert source.unseen.missing == {"a": 1, "b": 1}


@pytest.mark.parametrize("nothing", [None, np.nan])
def test_a_column_without_any_value_is_missing_whatever_its_dtype(model, table, nothing):
    rows = table[0][:20]
    std = model.predict(rows.assign(a=[nothing] * 20), True)[1]
    expected = model.predict(pd.concat([with_none(rows, "a"), rows]), True)[1][:20]
    np.testing.assert_allclose(std, expected, rtol=1e-12)


def test_a_stream_goes_on_through_missing_levels(table):
    X, y = table
    stream = SecondOrderRegressor(2, missing="mean", random_state=0).partial_fit(X[:1000], y[:1000])
    with pytest.warns(UserWarning, match="Missing values of columns that had none in fit"):
        stream.partial_fit(X[1000:].assign(a=[None] * 250 + X["a"][1250:].tolist()), y[1000:])
    assert stream.score(X, y) > 0.5


def test_single_precision_has_the_same_spread(table):
    X, y = table
    options = {"missing": "mean", "uncertainty": True, "alpha": 1e-2}
    single = X.assign(x=X["x"].astype(np.float32))
    row = with_none(single.iloc[[7]], "a")
    fits = [SecondOrderRegressor(1, **options).fit(rows, y) for rows in (X, single)]
    std = [fit.predict(row, True)[1][0] for fit in fits]
    assert std[1].dtype == np.float32
    assert std[1] == pytest.approx(std[0], rel=0.02)


def test_a_machine_and_a_classifier_allow_for_new_levels(table):
    X, y = table
    new = X[:200].assign(a="new")
    machine = FactorizationMachineRegressor(uncertainty=True, random_state=0).fit(X, y)
    f, std = machine.predict(new, return_std=True)
    assert np.median(std) > 1.3 * np.median(machine.predict(X[:200], return_std=True)[1])
    assert np.mean(np.abs(f - y[:200]) < 1.96 * std) > 0.92
    classifier = SecondOrderClassifier(1, uncertainty=True, missing="mean").fit(X, y > 1)
    rows = pd.concat([X[:1], X[:1].assign(x=np.nan), X[:1].assign(a=None), X[:1].assign(a="new")])
    error = classifier.decision_function(rows, return_std=True)[1]
    assert error[0] < min(error[1:])
    assert error[2] < error[3]


def test_rows_without_any_of_a_one_hot_group_are_new_levels_and_of_a_coded_one_the_reference():
    rng = np.random.default_rng(0)
    level, x = rng.integers(0, 5, 800), rng.normal(size=(800, 1))
    one_hot = np.eye(5)[level]
    y = np.array([4.0, -4, 2, -2, 0])[level] + x[:, 0] + 0.1 * rng.normal(size=800)
    options = {"alpha": 1e-3, "pairs": None, "uncertainty": True}
    whole = SecondOrderRegressor(0, **options).fit(np.hstack([one_hot, x]), y)
    coded = SecondOrderRegressor(0, **options).fit(np.hstack([one_hot[:, :4], x]), y)
    assert whole.predict(np.zeros((1, 6)), return_std=True)[1][0] > 2
    assert coded.predict(np.zeros((1, 5)), return_std=True)[1][0] < 0.2


def test_missing_text_is_called_missing(model, table):
    row = table[0].iloc[[7]]
    with pytest.warns(UserWarning, match="average level") as warned:
        model.predict(with_none(row, "a"))
    words = [str(w.message) for w in warned]
    assert words == [
        "Missing values of columns that had none in fit count as an average level; rows: 1 in 'a'."
    ]
