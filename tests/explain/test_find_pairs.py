"""find_pairs: names and numbers in the user's units, tests, errors, and what is printed."""

import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.sparse import csr_array
from scipy.stats import f as fisher
from scipy.stats import kstest
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import PredefinedSplit, cross_val_predict

from quadlin import SecondOrderRegressor, find_pairs, open_source
from quadlin.datasets import make_second_order
from quadlin.explain.page import model_page
from quadlin.explain.pair_setting import first_half
from quadlin.explain.pictures import pictures_of
from quadlin.explain.report import describe, report_page
from quadlin.solve.lowrank.row_hash import row_hash


def houses(n=800, seed=0):
    """Columns of very different units, two pairs of which interact."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "area": rng.uniform(30, 200, n),
            "age": rng.exponential(40, n),
            "income": 1e4 * np.exp(0.4 * rng.standard_normal(n)),
            "rooms": rng.integers(1, 7, n).astype(float),
            "garden": (rng.uniform(size=n) < 0.4).astype(float),
        }
    )
    price = 3e5 + 2000 * frame.area - 30 * frame.age * frame.area + 3 * frame.income * frame.garden
    return frame, price + 1e4 * rng.standard_normal(n)


def dense_least_squares(X, y, pairs):
    """Coefficients of products, their HC3 standard errors and R² lost without each."""
    products = [X[:, i] * X[:, j] for i, j in pairs]
    A = np.column_stack([np.ones(len(X)), X, *products])
    A = A / (size := np.linalg.norm(A, axis=0))

    def fitted(A):
        inverse = np.linalg.inv(A.T @ A)
        return inverse @ (A.T @ y), inverse

    beta, inverse = fitted(A)
    r = y - A @ beta
    influence = A @ inverse
    leverage = (influence * A).sum(axis=1)
    std = np.sqrt(((influence * (r / (1 - leverage))[:, None]) ** 2).sum(axis=0))
    total = ((y - y.mean()) ** 2).sum()
    lost = []
    for m in range(len(pairs)):
        rest = np.delete(A, A.shape[1] - len(pairs) + m, axis=1)
        lost.append((((y - rest @ fitted(rest)[0]) ** 2).sum() - r @ r) / total)
    part = slice(A.shape[1] - len(pairs), None)
    return (beta / size)[part], (std / size)[part], lost, 1 - r @ r / total


def test_coefficients_errors_and_shares_are_those_of_dense_least_squares_in_the_users_units():
    frame, price = houses()
    report = find_pairs(frame, price)
    names = list(frame.columns)
    assert {(p.first, p.second) for p in report.pairs} == {("area", "age"), ("income", "garden")}
    at = [(names.index(p.first), names.index(p.second)) for p in report.pairs]
    coef, std, lost, r2 = dense_least_squares(frame.to_numpy(), price.to_numpy(), at)
    columns = list(zip(*report.pairs, strict=True))
    np.testing.assert_allclose(columns[2], coef, rtol=1e-7)
    np.testing.assert_allclose(columns[3], std, rtol=1e-7)
    np.testing.assert_allclose(columns[4], coef / std, rtol=1e-7)
    np.testing.assert_allclose(columns[6], lost, rtol=1e-6)
    assert columns[7] == (1, 2)
    assert report.path[-1].r2 == pytest.approx(r2)
    assert [step.n_steps for step in report.path] == [0, 1, 2]
    assert [s.criterion for s in report.path] == sorted(s.criterion for s in report.path)[::-1]
    assert not report.low_rank
    assert not report.at_limit


def test_arrays_sparse_rows_frames_files_and_sources_give_the_same_pairs(tmp_path):
    frame, price = houses(400)
    expected = find_pairs(frame, price).pairs
    frame.assign(price=price).to_csv(tmp_path / "houses.csv", index=False)
    others = [
        find_pairs(pl.from_pandas(frame), price.to_numpy()),
        find_pairs(tmp_path / "houses.csv", "price"),
        find_pairs(open_source(frame.assign(price=price), target="price")),
        find_pairs(csr_array(frame.to_numpy()), price),
        find_pairs(frame.to_numpy(), price.tolist()),
    ]
    for other in others:
        np.testing.assert_allclose(
            [p[2:7] for p in other.pairs], [p[2:7] for p in expected], rtol=1e-6, atol=1e-12
        )
    for other in others[:3]:
        assert [p[:2] for p in other.pairs] == [p[:2] for p in expected]
    assert {p[:2] for p in others[-1].pairs} == {("x0", "x1"), ("x2", "x4")}


def test_weights_are_repetitions():
    frame, price = houses(300)
    weight = np.random.default_rng(1).integers(0, 4, 300)
    again = np.repeat(np.arange(300), weight)
    weighted = find_pairs(frame, price, weight)
    repeated = find_pairs(frame.iloc[again], price.iloc[again])
    assert [p[:2] for p in weighted.pairs] == [p[:2] for p in repeated.pairs]
    for a, b in zip(weighted.pairs, repeated.pairs, strict=True):
        assert a[2:7] == pytest.approx(b[2:7], rel=1e-6)
    assert weighted.path[-1] == pytest.approx(repeated.path[-1], rel=1e-6)


def test_text_columns_take_part_by_their_levels():
    rng = np.random.default_rng(2)
    frame = pd.DataFrame(
        {
            "city": rng.choice(["Bern", "Oslo", "Rome"], 900),
            "age": rng.uniform(0, 50, 900),
            "rooms": rng.integers(1, 6, 900),
        }
    )
    y = frame.rooms - 0.3 * frame.age * (frame.city == "Oslo") + rng.standard_normal(900)
    report = find_pairs(frame, y)
    assert [p[:2] for p in report.pairs] == [("city=Oslo", "age")]
    # The standard error of a slope in 300 rows of noise 1 and sd 14 is about .004; ±5 of them.
    assert report.pairs[0].coefficient == pytest.approx(-0.3, abs=0.02)


def test_levels_of_two_text_columns_enter_together():
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({n: rng.choice(list("abcd"), 1500) for n in ("first", "second")})
    table = rng.standard_normal((4, 4))
    codes = frame.map(list("abcd").index).to_numpy()
    y = table[codes[:, 0], codes[:, 1]] + 0.3 * rng.standard_normal(1500)
    report = find_pairs(frame, y)
    assert {p.order for p in report.pairs} == {1}
    assert len(report.path) == 2
    assert str(report).startswith("16 pairs in 1 step among")
    # What is determined is a difference of differences: each cell has 94 rows, sd .03; 6 of them.
    a = {(p.first[-1], p.second[-1]): p.coefficient for p in report.pairs}
    value = a["a", "a"] - a["a", "b"] - a["b", "a"] + a["b", "b"]
    truth = table[0, 0] - table[0, 1] - table[1, 0] + table[1, 1]
    assert value == pytest.approx(truth, abs=0.36)
    assert report.plot().labels[1] == "+ first=a × second=a and 15 more"


def test_nothing_is_found_where_nothing_interacts():
    # No pair in 40 draws of skewed features; the bar is 5%, and more than one draw is unlikely
    # (P = .01) at the 1% measured. A low-rank part is seen by chance at most once in 20 draws.
    wrong = low_rank = 0
    for seed in range(40):
        rng = np.random.default_rng([seed, 7])
        X = np.exp(rng.standard_normal((200, 12)) + 0.5 * rng.standard_normal((200, 1)))
        report = find_pairs(X, X[:, 0] + 2 * rng.standard_normal(200))
        wrong += bool(report.pairs)
        low_rank += report.low_rank
    assert wrong <= 1
    assert low_rank <= 4


def test_a_dense_low_rank_truth_is_reported_as_such():
    data = make_second_order(1500, 15, rank=2, noise=0.5, random_state=0)
    report = find_pairs(data.X, data.y, max_pairs=4)
    assert report.low_rank
    assert report.at_limit
    assert "limit of 4 pairs" in str(report)
    assert "SecondOrderRegressor learns" in str(report)


def test_tests_on_the_other_half_are_least_squares_of_those_rows():
    frame, price = houses()
    report = find_pairs(frame, price, test_on="half")
    searched = first_half(len(price))
    assert searched.sum() == report.n_rows == 400
    in_one_half = find_pairs(frame[searched], price[searched])
    assert [p[:2] for p in report.pairs] == [p[:2] for p in in_one_half.pairs]
    names = list(frame.columns)
    at = [(names.index(p.first), names.index(p.second)) for p in report.pairs]
    rest = frame.to_numpy()[~searched], price.to_numpy()[~searched]
    coef, std, lost, _ = dense_least_squares(*rest, at)
    np.testing.assert_allclose([p.coefficient for p in report.pairs], coef, rtol=1e-6)
    np.testing.assert_allclose([p.std_error for p in report.pairs], std, rtol=1e-6)
    np.testing.assert_allclose([p.share for p in report.pairs], lost, rtol=1e-5)


def test_p_values_of_the_other_half_are_uniform_for_pairs_that_are_not_there(monkeypatch):
    # A criterion that takes the best product whatever it is worth finds a false pair in every draw.
    monkeypatch.setattr("quadlin.solve.pairs.pair_choice.Criterion.entry", lambda self, taken: 1.0)
    monkeypatch.setattr("quadlin.solve.pairs.pair_choice.log_choices", lambda p, k: 0.0)
    monkeypatch.setattr("quadlin.solve.pairs.pair_search.PairSearch._doubtful", lambda *_: [])
    values = {None: [], "half": []}
    for seed in range(60):
        rng = np.random.default_rng([seed, 8])
        X, y = rng.standard_normal((160, 8)), rng.standard_normal(160)
        for test_on, p in values.items():
            p += [pair.p for pair in find_pairs(X, y, max_pairs=1, test_on=test_on).pairs]
    assert len(values["half"]) > 30
    # By Kolmogorov and Smirnov at 1%; those of the search's own rows are the least of 36.
    assert kstest(values["half"], "uniform").pvalue > 0.01
    assert kstest(values[None], "uniform").pvalue < 1e-6


def test_pairs_of_thousands_of_sparse_features_are_found():
    rng = np.random.default_rng(4)
    n, d = 3500, 3100
    share = np.where(np.arange(d) < 5, 0.2, 0.004)
    X = csr_array((rng.uniform(size=(n, d)) < share).astype(float))
    y = 3 * (X[:, [1]] * X[:, [3]]).toarray().ravel() + 0.5 * rng.standard_normal(n)
    assert [p[:2] for p in find_pairs(X, y).pairs] == [("x1", "x3")]
    with pytest.raises(ValueError, match=r"3,100 features.*at most 3,000"):
        find_pairs(X.toarray(), y)


def test_options_limit_what_is_searched():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((600, 6))
    y = X[:, 0] + X[:, 1] + X[:, 0] * X[:, 1] + X[:, 2] * X[:, 3] + 2 * X[:, 4] ** 2
    y = y + 0.5 * rng.standard_normal(600)

    def pairs(**options):
        return {p[:2] for p in find_pairs(X, y, **options).pairs}

    assert pairs() == {("x0", "x1"), ("x2", "x3"), ("x4", "x4")}
    assert pairs(squares=False) == {("x0", "x1"), ("x2", "x3")}
    assert pairs(max_pairs=1) == {("x4", "x4")}
    assert pairs(max_pairs=0) == set()
    assert pairs(hierarchy="strong") >= {("x0", "x1")}
    assert ("x2", "x3") not in pairs(hierarchy="strong")
    missing = np.where(rng.uniform(size=X.shape) < 0.01, np.nan, X)
    assert {p[:2] for p in find_pairs(missing, y, missing="drop").pairs} == pairs()


def test_columns_that_are_one_hot_are_fields_by_themselves_or_by_name():
    rng = np.random.default_rng(6)
    codes = rng.integers(0, 3, 600)
    X = np.column_stack([rng.standard_normal((600, 2)), codes[:, None] == np.arange(3)])
    y = rng.standard_normal(600)
    # Three products of two features and squares of them, six with levels, two blocks.
    assert find_pairs(X, y).n_candidates == 3 + 6 + 2
    assert find_pairs(X, y, fields=[["x2", "x3", "x4"]]).n_candidates == 3 + 6 + 2
    with pytest.raises(ValueError, match="not one-hot"):
        find_pairs(X, y, fields=[["x0", "x1"]])


def test_exchangeable_pairs_are_named():
    rng = np.random.default_rng(9)
    X = rng.standard_normal((400, 6))
    X[:, 5] = X[:, 4] + 0.05 * rng.standard_normal(400)
    frame = pl.DataFrame(X, schema=list("abcdef"))
    report = find_pairs(frame, X[:, 2] * X[:, 4] + rng.standard_normal(400))
    names = {report.exchangeable[0].taken, report.exchangeable[0].other}
    assert names == {("c", "e"), ("c", "f")}
    assert "would do about as well as" in str(report)


def test_the_report_is_a_table_a_frame_and_a_picture(monkeypatch):
    frame, price = houses(400)
    report = find_pairs(frame, price)
    lines = str(report).splitlines()
    assert lines[0] == "2 pairs among 14 products of 5 features, 400 rows"
    assert lines[2].split()[:4] == ["1", report.pairs[0].first, "×", report.pairs[0].second]
    table = report.to_frame()
    assert table["coefficient"].tolist() == [p.coefficient for p in report.pairs]
    display = report.plot()
    assert [t.get_text() for t in display.ax_.get_yticklabels()] == display.labels
    assert display.ax_.lines[0].get_xdata().tolist() == [s.criterion for s in report.path]
    nothing = find_pairs(frame, np.random.default_rng(0).standard_normal(400))
    assert str(nothing).startswith("No pair among 14 products")
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert report.to_frame()["order"] == [1, 2]


def test_errors_say_what_came_and_what_is_needed():
    frame, price = houses(60)
    X, y = frame.to_numpy(), price.to_numpy()
    hole = X.copy()
    hole[7, 2] = np.nan
    wrong = [
        ((hole, y), "Column 'x2' contains NaN .*row 7.*missing="),
        ((X, np.where(np.arange(60) == 3, np.nan, y)), "target is missing in row 3"),
        ((X, y[:-1]), r"target has shape \(59,\), but there are 60 rows"),
        ((X[0], y), r"shape \(5,\), but rows × features"),
        ((X, np.ones(60)), "target is constant in X"),
        ((X[:, :1], y), r"X has one feature \(x0\), but a pair needs two"),
        ((X[:6], y[:6]), "6 rows .*5 features.* at least 7 rows"),
        ((X, y, -np.ones(60)), "weight is -1 in row 0"),
        ((X, y, np.zeros(60)), "0 rows .of weight above 0"),
        ((X,), "There is no target"),
        ((open_source(X, target=y), y), "Open the source with target="),
        ((iter([(X, y)]),), "can be read only once"),
    ]
    for given, message in wrong:
        with pytest.raises(ValueError, match=message):
            find_pairs(*given)
    options = [
        ({"hierarchy": "both"}, 'hierarchy="both" is not one of None'),
        ({"max_pairs": -1}, "max_pairs=-1 must be a whole number"),
        ({"test_on": "rest"}, 'test_on="rest" is not one of'),
        ({"fields": "some"}, 'fields="some" is not "auto"'),
        ({"missing": "guess"}, 'missing="guess" is not one of'),
    ]
    for option, message in options:
        with pytest.raises(ValueError, match=message):
            find_pairs(X, y, **option)
    with pytest.raises(ValueError, match=r"half of X .*at least 7 rows"):
        find_pairs(X[:12], y[:12], test_on="half")


def three_pairs(n=400):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 6))
    y = X[:, 0] + 1.5 * X[:, 1] * X[:, 2] - X[:, 3] * X[:, 4] + X[:, 5] ** 2
    return X, y + rng.standard_normal(n)


def test_what_is_excluded_is_not_taken():
    X, y = three_pairs()
    report = find_pairs(X, y, exclude=["x5", (2, "x1")])
    assert [(p.first, p.second) for p in report.pairs] == [("x3", "x4")]
    assert report.n_candidates == 14  # of 5 features 15, less one
    with pytest.raises(ValueError, match="features and pairs of features"):
        find_pairs(X, y, exclude=[("x1", "x2", "x3")])


def test_rows_left_out_validate_the_way_to_the_pairs():
    X, y = three_pairs()
    report = find_pairs(X, y, cv=4, engine=2)
    assert len(report.validated) == len(report.path) == 4
    # The oracle: least squares on the same parts of the rows, all of which find the three pairs.
    part = np.argsort(np.argsort(row_hash(np.arange(len(y))))) % 4
    products = np.column_stack([X[:, 1] * X[:, 2], X[:, 3] * X[:, 4], X[:, 5] ** 2])
    for A, value in ((X, report.validated[0]), (np.hstack([X, products]), report.validated[3])):
        predicted = cross_val_predict(LinearRegression(), A, y, cv=PredefinedSplit(part))
        assert value == pytest.approx(r2_score(y, predicted), abs=1e-8)
    display = report.plot()  # the criterion, and R² of both kinds of rows beside it
    beside = display.figure_.axes[1]
    assert [line.get_label() for line in beside.lines] == ["rows of the search", "rows left out"]
    assert beside.lines[1].get_xdata().tolist() == report.validated
    assert "on rows left out" in report.plot(plt.subplots()[1]).ax_.texts[0].get_text()
    assert "On rows left out: R²" in str(report)
    with pytest.raises(ValueError, match="whole number ≥ 2"):
        find_pairs(X, y, cv=1)


def test_summaries_and_pages_tell_pairs_from_products_as_wholes():
    X, y = three_pairs(600)
    y = y + 0.4 * X.sum(axis=1) ** 2
    model = SecondOrderRegressor(rank=1, alpha=0, pairs=[(1, 2)]).fit(X, y)
    text = str(model.summary())
    assert "'x1 × x2' is that of the product as a whole" in text
    alone = SecondOrderRegressor(rank=0, alpha=0, pairs=[(1, 2)]).fit(X, y)
    text = str(alone.summary())
    assert "Standard errors of named pairs are robust ones (HC3)" in text
    assert "as a whole" not in text
    assert "selected because they fit" not in text  # nobody has searched for them
    assert alone.summary().to_frame()["kind"].tolist()[-1] == "named pair"
    page = report_page(alone, X, y, None, 5)
    assert "were added to the model by name" in page
    assert "a search added" not in page
    searched = SecondOrderRegressor(rank=0, alpha=0, pairs=3).fit(X, y)
    assert "selected because they fit" in str(searched.summary())
    assert "a search added" in report_page(searched, X, y, None, 5)
    assert searched.summary().to_frame()["kind"].tolist()[-1] == "found pair"
    frame = pd.DataFrame({"x": X[:, 0], "city": np.where(X[:, 1] > 0, "Oslo", "Rome")})
    y = X[:, 0] * (X[:, 1] > 0) + X[:, 2]
    levels = SecondOrderRegressor(rank=0, alpha=0, pairs=[("city=Oslo", "x")]).fit(frame, y)
    assert "is the difference of a level from the mean" in str(levels.summary())
    assert "low-rank part adds" not in str(levels.summary())
    content = describe(model, 3)
    content["diagnosis"] = []
    page = model_page("a model", content, pictures_of(model))
    assert "Pairs of features" in page
    table = page[page.index("<h2>Pairs of features") :]  # on a telephone a name has its own line
    assert table[table.index("<table") :].startswith('<table class="terms">')
    assert "The path to the pairs" in page
    assert "coefficient of the pair alone" in page


def test_products_of_whole_text_columns_are_tested_as_one():
    rng = np.random.default_rng(0)
    n = 800
    city, kind = rng.integers(4, size=n), rng.integers(3, size=n)
    table = 0.5 * rng.standard_normal((4, 3))
    x = rng.standard_normal(n)
    y = x + table[city, kind] + 0.5 * rng.standard_normal(n)
    frame = pd.DataFrame({"x": x, "city": city.astype(str), "kind": kind.astype(str)})
    report = find_pairs(frame, y)
    (block,) = report.blocks
    assert {block.first, block.second} == {"city", "kind"}
    assert f"{block.n_products} products together: F = {block.F:.1f}" in str(report)

    # The F test of the six contrasts of the table, by two dense regressions.
    base = np.column_stack([x, *(city == a for a in range(4)), *(kind == b for b in range(1, 3))])
    cells = [(city == a) & (kind == b) for a in range(4) for b in range(3)]
    fits = (np.linalg.lstsq(A, y, rcond=None) for A in (base, np.column_stack([x, *cells])))
    without, within = (float(fit[1][0]) for fit in fits)
    expected = (without - within) / 6 / (within / (n - 13))
    np.testing.assert_allclose(block.F, expected, rtol=1e-6)
    np.testing.assert_allclose(block.p, fisher.sf(expected, 6, n - 13), rtol=1e-4)
