"""Pairs that interact are found, no others, and their numbers are those of least squares."""

import re

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.linear_model import LassoCV, LinearRegression, LogisticRegression

from contract.tables import labels_of, low_rank, planted_pairs
from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    MatrixSensing,
    PhaseRetriever,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    find_pairs,
    load,
    open_source,
    save,
)


def names(report):
    return {(p.first, p.second) for p in report.pairs}


def named(pairs):
    return {(f"x{i}", f"x{j}") for i, j in pairs}


def regression(A, y):
    """Return coefficients with classical and HC3 standard errors."""
    inverse = np.linalg.inv(A.T @ A)
    coefficients = inverse @ A.T @ y
    residual = y - A @ coefficients
    classical = np.sqrt(np.diag(inverse) * (residual @ residual) / (len(y) - A.shape[1]))
    leverage = np.einsum("ni,ij,nj->n", A, inverse, A)
    meat = (A * (residual / (1 - leverage))[:, None] ** 2).T @ A
    return coefficients, classical, np.sqrt(np.diag(inverse @ meat @ inverse))


SETTINGS = [
    (300, 6, 1, 0.5, "gaussian"),
    (400, 10, 3, 0.5, "gaussian"),
    (600, 20, 5, 0.5, "gaussian"),
    (600, 10, 3, 1.0, "gaussian"),
    (600, 8, 2, 0.5, "uniform"),
    (800, 8, 2, 0.5, "exponential"),
    (800, 8, 2, 0.2, "binary"),
    (800, 9, 3, 0.3, "mixed"),
    (800, 8, 2, 0.5, "correlated"),
]


@pytest.mark.parametrize(("n", "d", "count", "sigma", "kind"), SETTINGS)
@pytest.mark.parametrize("how", ["search", "model"])
def test_planted_pairs_are_found_and_hardly_any_other(how, n, d, count, sigma, kind):
    # Each t is above ten, so that none is missed; the search corrects for all products it looks at,
    # and takes about one false pair in 20 tables.
    false = 0
    for seed in range(3):
        table, pairs = planted_pairs(n, d, count, sigma=sigma, kind=kind, seed=seed)
        report = (
            find_pairs(table.X, table.y)
            if how == "search"
            else SecondOrderRegressor().fit(table.X, table.y).pairs_
        )
        assert named(pairs) <= names(report)
        false += len(names(report) - named(pairs))
    assert false <= 1


@pytest.mark.smoke
def test_the_example_of_a_search():
    table, pairs = planted_pairs(300, 8, 2, seed=4)
    report = find_pairs(table.X, table.y)
    assert names(report) == named(pairs)
    for p in report.pairs:
        i, j = int(p.first[1:]), int(p.second[1:])
        assert abs(p.coefficient - 2 * table.M[i, j]) < 4 * p.std_error
        assert p.t == pytest.approx(p.coefficient / p.std_error)
        assert p.p < 1e-6


def test_hardly_a_pair_is_found_where_nothing_interacts():
    found = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((200, 10))
        found += len(find_pairs(X, X[:, 0] + rng.standard_normal(200)).pairs)
    assert found <= 1  # the criterion admits about one false pair in 20 tables


def test_pairs_predict_better_than_the_lasso_on_all_products():
    table, _ = planted_pairs(300, 12, 4, seed=1)
    new = np.random.default_rng(0).standard_normal((400, 12))
    i, j = np.triu_indices(12)
    wide = lambda X: np.column_stack([X, X[:, i] * X[:, j]])  # noqa: E731
    ours = SecondOrderRegressor().fit(table.X, table.y).predict(new)
    lasso = LassoCV(cv=3, alphas=20, random_state=0).fit(wide(table.X), table.y).predict(wide(new))
    truth = table.value(new)
    assert np.mean((ours - truth) ** 2) < np.mean((lasso - truth) ** 2)


GIVEN = planted_pairs(300, 5, 2, seed=6)[0]
LISTED = [(0, 1), (2, 4), (3, 3)]
COLUMNS = np.column_stack(
    [np.ones(300), GIVEN.X, *(GIVEN.X[:, i] * GIVEN.X[:, j] for i, j in LISTED)]
)


@pytest.mark.smoke
@pytest.mark.parametrize("uncertainty", [True, "robust"])
def test_given_pairs_are_dense_least_squares_with_its_standard_errors(uncertainty):
    options = {"rank": 0, "alpha": 0.0, "pairs": LISTED, "uncertainty": uncertainty}
    model = SecondOrderRegressor(**options).fit(GIVEN.X, GIVEN.y)
    coefficients, classical, hc3 = regression(COLUMNS, GIVEN.y)
    told = [model.intercept_, *model.coef_, *(model.interaction(i, j) for i, j in LISTED)]
    np.testing.assert_allclose(told, coefficients, atol=1e-8)
    errors = [model.intercept_std_, *model.coef_std_]
    errors += [model.interaction_std(i, j) for i, j in LISTED]
    np.testing.assert_allclose(errors, hc3 if uncertainty == "robust" else classical, rtol=1e-6)


def test_the_report_of_given_pairs_has_hc3_errors_and_shares_of_the_variance():
    model = SecondOrderRegressor(rank=0, alpha=0.0, pairs=LISTED).fit(GIVEN.X, GIVEN.y)
    frame = model.pairs_.to_frame()
    coefficients, _, hc3 = regression(COLUMNS, GIVEN.y)
    assert list(zip(frame["first"], frame["second"], strict=True)) == [
        ("x0", "x1"), ("x2", "x4"), ("x3", "x3")]  # fmt: skip
    np.testing.assert_allclose(frame["coefficient"], coefficients[6:], atol=1e-8)
    np.testing.assert_allclose(frame["std_error"], hc3[6:], rtol=1e-6)
    whole = LinearRegression().fit(COLUMNS, GIVEN.y).score(COLUMNS, GIVEN.y)
    for k, share in enumerate(frame["share"]):
        A = np.delete(COLUMNS, 6 + k, axis=1)
        assert share == pytest.approx(whole - LinearRegression().fit(A, GIVEN.y).score(A, GIVEN.y))


@pytest.mark.parametrize("kind", [SecondOrderRegressor, FactorizationMachineRegressor])
@pytest.mark.parametrize("way", ["rows", "weights", "source", "stream"])
def test_every_way_to_given_pairs_is_least_squares(kind, way):
    pairs, weight = LISTED[:2], np.random.default_rng(0).uniform(0.5, 2, 300)
    model = kind(rank=0, alpha=0.0, pairs=pairs)
    if way == "source":
        model.fit(open_source(GIVEN.X, target=GIVEN.y, chunk_rows=90))
    elif way == "stream":
        for part in np.array_split(np.arange(300), 3):
            model.partial_fit(GIVEN.X[part], GIVEN.y[part])
    else:
        model.fit(GIVEN.X, GIVEN.y, sample_weight=weight if way == "weights" else None)
    A = COLUMNS[:, :-1]
    oracle = LinearRegression().fit(A, GIVEN.y, weight if way == "weights" else None)
    np.testing.assert_allclose(model.predict(GIVEN.X), oracle.predict(A), atol=1e-6)


def test_a_number_is_a_limit_and_none_is_no_pair():
    table, pairs = planted_pairs(400, 8, 3, seed=8)
    for limit in (1, 2, 5):
        model = SecondOrderRegressor(rank=0, pairs=limit).fit(table.X, table.y)
        assert len(model.pairs_.pairs) == min(limit, 3)
        assert names(model.pairs_) <= named(pairs)
    assert len(find_pairs(table.X, table.y, max_pairs=1).pairs) == 1
    model = SecondOrderRegressor(rank=0, pairs=None).fit(table.X, table.y)
    np.testing.assert_array_equal(model.interactions_.matrix(), 0)


def test_a_search_that_is_asked_for_happens_at_rank_zero():
    table, pairs = planted_pairs(300, 6, 2)
    model = SecondOrderRegressor(rank=0, pairs="auto").fit(table.X, table.y)
    assert names(model.pairs_) == named(pairs)


def test_squares_are_pairs_of_a_feature_with_itself():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 5))
    y = X[:, 0] + 2 * X[:, 3] ** 2 + 0.5 * rng.standard_normal(300)
    assert names(find_pairs(X, y)) == {("x3", "x3")}
    assert ("x3", "x3") not in names(find_pairs(X, y, squares=False))
    with pytest.raises(ValueError, match="x3"):
        FactorizationMachineRegressor(rank=0, pairs=[(3, 3)]).fit(X, y)


def test_what_is_excluded_is_not_taken():
    table, _ = planted_pairs(300, 6, 1, seed=3)
    (pair,) = find_pairs(table.X, table.y).pairs
    for exclude in ([pair.first], [(pair.first, pair.second)]):
        assert (pair.first, pair.second) not in names(find_pairs(table.X, table.y, exclude=exclude))


def test_pairs_beside_a_low_rank_part_are_told_from_it():
    table = low_rank(800, 8, 1, seed=2)
    rng = np.random.default_rng(0)
    y = table.truth + 3 * table.X[:, 1] * table.X[:, 6] + 0.3 * rng.standard_normal(800)
    model = SecondOrderRegressor().fit(table.X, y)
    assert ("x1", "x6") in names(model.pairs_)
    assert model.interaction(1, 6) == pytest.approx(3 + 2 * table.M[1, 6], abs=0.1)


def test_a_dense_low_rank_truth_is_not_told_as_pairs():
    table = low_rank(800, 15, 2, sigma=0.3, seed=4)
    model = SecondOrderRegressor().fit(table.X, table.y)
    assert not model.pairs_.pairs
    assert model.rank_ == 2


def test_cross_validation_searches_if_it_is_asked_to():
    table, pairs = planted_pairs(300, 5, 1, seed=5)
    options = {"ranks": [0], "alphas": [0.1], "cv": 2, "random_state": 0}
    plain = SecondOrderRegressorCV(**options).fit(table.X, table.y)
    np.testing.assert_array_equal(plain.interactions_.matrix(), 0)
    assert names(SecondOrderRegressorCV(pairs=2, **options).fit(table.X, table.y).pairs_) == named(
        pairs
    )


@pytest.mark.parametrize("kind", [MatrixSensing, PhaseRetriever])
def test_measurements_have_no_features_that_could_interact(kind):
    with pytest.raises(TypeError, match="pairs"):
        kind(pairs=2)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([(0, 9)], "9"),
        ([("x0", "age")], "age"),
        ([(0, 1, 2)], "pairs"),
        (1.5, "pairs"),
        ([0, 1], "pairs"),
    ],
)
def test_pairs_that_make_no_sense_are_named(pairs, words):
    with pytest.raises((ValueError, LookupError), match=words):
        SecondOrderRegressor(rank=0, pairs=pairs).fit(GIVEN.X, GIVEN.y)


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [
        (GIVEN.X, np.ones(300), "constant|1"),
        (GIVEN.X[:, :1], GIVEN.y, "two"),
        (GIVEN.X[:6], GIVEN.y[:6], "6"),
        (np.where(GIVEN.X > 2, np.nan, GIVEN.X), GIVEN.y, "missing|NaN"),
    ],
)
def test_rows_that_cannot_be_searched_are_an_error(X, y, words):
    with pytest.raises(ValueError, match=words):
        find_pairs(X, y)


@pytest.mark.parametrize("kind", [SecondOrderClassifier, FactorizationMachineClassifier])
def test_pairs_of_log_odds_are_those_of_logistic_regression_on_the_products(kind):
    table, pairs = planted_pairs(600, 6, 2, seed=11)
    labels = labels_of(table, scale=2.0)
    model = kind(rank=0, alpha=0.0, pairs=2).fit(table.X, labels)
    assert names(model.pairs_) == named(pairs)
    A = np.column_stack([table.X, *(table.X[:, i] * table.X[:, j] for i, j in sorted(pairs))])
    exact = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(A, labels)
    # A weak prior on products moves log-odds by less than 1%.
    expected = exact.predict_proba(A)[:, 1]
    np.testing.assert_allclose(model.predict_proba(table.X)[:, 1], expected, atol=5e-3)


# --- text columns ---------------------------------------------------------------------------------


def flats(n=600, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "rooms": rng.integers(1, 7, n).astype(float),
            "age": rng.exponential(40, n),
            "kind": rng.choice(["flat", "house", "room"], n),
        }
    )
    price = 100 + 20 * frame.rooms + 0.1 * frame.age
    return frame, price - 15 * frame.rooms * (frame.kind == "flat") + rng.normal(0, 10, n)


FLATS, PRICE = flats()


def test_a_level_that_interacts_is_found():
    report = find_pairs(FLATS, PRICE)
    assert names(report) == {("rooms", "kind=flat")}
    (pair,) = report.pairs
    from_mean = -15 * (1 - np.mean(FLATS.kind == "flat"))  # as in models
    assert abs(pair.coefficient - from_mean) < 4 * pair.std_error
    assert names(SecondOrderRegressor().fit(FLATS, PRICE).pairs_) == names(report)


@pytest.mark.parametrize("levels", [1, 2])
def test_a_search_and_a_model_have_the_same_coefficients_and_standard_errors(levels):
    y = PRICE + (levels - 1) * 6 * FLATS.rooms * (FLATS.kind == "room")
    report = find_pairs(FLATS, y)
    given = [(pair.first, pair.second) for pair in report]
    options = {"rank": 0, "alpha": 0.0, "pairs": given, "uncertainty": "robust"}
    model = SecondOrderRegressor(**options).fit(FLATS, y)
    told = [(model.interaction(*pair), model.interaction_std(*pair)) for pair in given]
    found = [(pair.coefficient, pair.std_error) for pair in report]
    np.testing.assert_allclose(found, told, rtol=1e-6)


def test_a_text_column_in_a_list_stands_for_its_levels():
    model = SecondOrderRegressor(rank=0, alpha=0.0, pairs=[("rooms", "kind")]).fit(FLATS, PRICE)
    dummies = pd.get_dummies(FLATS.kind).to_numpy(float)
    A = np.column_stack(
        [FLATS.age, FLATS.rooms, dummies, dummies * FLATS.rooms.to_numpy()[:, None]]
    )
    expected = LinearRegression().fit(A, PRICE).predict(A)
    np.testing.assert_allclose(model.predict(FLATS), expected, atol=1e-4)
    difference = model.interaction("rooms", "kind=flat") - model.interaction("rooms", "kind=house")
    assert difference == pytest.approx(-15, abs=3)


def test_a_search_by_name_reads_a_file(tmp_path):
    FLATS.assign(price=PRICE).to_csv(tmp_path / "flats.csv", index=False)
    report = find_pairs(tmp_path / "flats.csv", "price")
    assert names(report) == {("rooms", "kind=flat")}


def test_honest_tests_use_rows_that_were_not_searched():
    table, pairs = planted_pairs(600, 6, 1, seed=3)
    whole, half = find_pairs(table.X, table.y), find_pairs(table.X, table.y, test_on="half")
    assert names(half) == named(pairs)
    # Half of the rows: standard errors √2 times as large, give or take a fifth.
    assert half.pairs[0].std_error / whole.pairs[0].std_error == pytest.approx(2**0.5, rel=0.25)
    validated = find_pairs(table.X, table.y, cv=3).validated
    assert validated[0] < validated[1] < 1


# --- one number for one pair ----------------------------------------------------------------------


def numbers_of(model, first, second, tmp_path):
    """Return coefficient and standard error of a pair by every way to them."""
    pair = next(p for p in model.pairs_.pairs if {p.first, p.second} == {first, second})
    summary = model.summary(top=50).to_frame()
    row = summary[(summary["first"] == first) & (summary["second"] == second)].iloc[0]
    frame = model.interactions_.to_frame()
    other = frame[(frame["first"] == first) & (frame["second"] == second)].iloc[0]
    page = model.report(tmp_path / "page.html", top=50).read_text()
    product = rf"<td>{first} × {second}</td>"
    term, listed = re.findall(
        product + r'\s*<td class="number">(.*?)</td>\s*<td class="number">(.*?)</td>', page
    )
    return {
        "page, pairs": tuple(map(float, listed)),
        "page, terms": tuple(map(float, term)),
        "pairs_": (pair.coefficient, pair.std_error),
        "interaction": (model.interaction(first, second), model.interaction_std(first, second)),
        "summary": (row["estimate"], row["std_error"]),
        "interactions_": (other["coefficient"], other["std_error"]),
    }


def models_with_pairs():
    table = low_rank(500, 6, 1, sigma=0.5, seed=3)
    y = table.y + 3 * table.X[:, 1] * table.X[:, 4]
    return {
        "given pairs": (table.X, y, {"rank": 0, "alpha": 0.0, "pairs": [(1, 4)]}, ("x1", "x4")),
        "low rank": (table.X, y, {"rank": 1, "alpha": 0.0, "pairs": [(1, 4)]}, ("x1", "x4")),
        "text": (FLATS, PRICE, {}, ("rooms", "kind=flat")),
    }


@pytest.mark.parametrize("case", ["given pairs", "low rank", "text"])
def test_a_pair_has_one_coefficient_and_one_standard_error(case, tmp_path):
    X, y, options, (first, second) = models_with_pairs()[case]
    model = SecondOrderRegressor(uncertainty="robust", **options).fit(X, y)
    told = numbers_of(model, first, second, tmp_path)
    for value in told.values():
        np.testing.assert_allclose(value, told["interaction"], rtol=1e-3)


def with_copies(copies, leverage):
    """Return rows that stand several times and one far out."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3))
    y = X[:, 0] + X[:, 1] * X[:, 2] + 0.5 * rng.standard_normal(60)
    X, y = np.repeat(X, copies, axis=0), np.repeat(y, copies)
    return np.vstack([X, [[0.0, leverage, leverage]]]), np.append(y, leverage**2 + 0.3)


@pytest.mark.parametrize("leverage", [5.0, 20.0])
@pytest.mark.filterwarnings("ignore:.*extreme:UserWarning")
def test_the_errors_of_the_report_are_hc3_beside_copies_of_rows_and_a_row_of_high_leverage(
    leverage,
):
    X, y = with_copies(2, leverage)
    model = SecondOrderRegressor(0, alpha=0.0, pairs=[(1, 2)]).fit(X, y)
    A = np.column_stack([np.ones(len(X)), X, X[:, 1] * X[:, 2]])
    # Copies may count as one row, which makes errors √2 times as large.
    assert model.pairs_.pairs[0].std_error < 2 * regression(A, y)[2][-1]


def test_a_coefficient_of_duplicated_rows_has_one_standard_error():
    table, ((i, j),) = planted_pairs(60, 3, 1, seed=1)
    X, y = np.repeat(table.X, 2, axis=0), np.repeat(table.y, 2)
    model = SecondOrderRegressor(0, alpha=0.0, pairs=[(i, j)], uncertainty="robust").fit(X, y)
    (found,) = find_pairs(X, y).pairs
    told = [model.interaction_std(i, j), model.pairs_.pairs[0].std_error, found.std_error]
    np.testing.assert_allclose(told, told[0], rtol=1e-6)


# --- what find_pairs lacks ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels",
    [
        lambda f: (f > np.median(f)).astype(int),
        lambda f: np.where(f > np.median(f), "yes", "no"),
    ],
    ids=["0/1", "text"],
)
def test_labels_can_be_searched(labels):
    table, pairs = planted_pairs(600, 6, 2)
    assert named(pairs) <= names(find_pairs(table.X, labels(table.truth)))


def test_a_search_of_sparse_features_of_which_no_two_occur_in_ten_rows_finds_no_pair():
    rng = np.random.default_rng(0)
    X = sparse.random(3100, 3001, density=0.002, format="csr", random_state=0)
    assert not len(find_pairs(X, rng.standard_normal(3100)))


def test_the_stability_of_a_pair_is_the_share_of_resamples_in_which_it_was_chosen():
    table, _ = planted_pairs(300, 6, 2)
    frame = find_pairs(table.X, table.y, stability=20).to_frame()
    assert frame["stability"].between(0.9, 1).all()  # t is above 20 here


@pytest.mark.parametrize("of_model", [False, True])
def test_a_report_is_a_sequence_of_pairs(of_model):
    table, _ = planted_pairs(300, 6, 2)
    report = (
        SecondOrderRegressor().fit(table.X, table.y).pairs_
        if of_model
        else find_pairs(table.X, table.y)
    )
    assert len(report) == 2
    assert [pair.order for pair in report] == [1, 2]
    assert report[0] == report.pairs[0]


def test_a_given_pair_that_never_occurs_can_be_saved(tmp_path):
    rng = np.random.default_rng(0)
    X = np.repeat([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [13, 10, 2], axis=0)
    y = X @ [1.0, 2.0] + rng.standard_normal(25)
    model = SecondOrderRegressor(rank=1, pairs=[(0, 1)], random_state=0).fit(X, y)
    save(model, tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict(X), model.predict(X))


def test_a_report_without_pairs_says_that_the_model_has_all_products():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 5))
    i, j = np.triu_indices(5, 1)
    y = (X[:, i] * X[:, j]) @ rng.standard_normal(10) + 0.1 * rng.standard_normal(400)
    model = SecondOrderRegressor(rank=5, alpha=1.0, pairs=1, random_state=0).fit(X, y)
    first = str(model.pairs_).splitlines()[0]
    assert not len(model.pairs_)
    assert "all products" in first
    assert "interactions_" in first
    assert len(model.interactions_.top(10)) == 10
