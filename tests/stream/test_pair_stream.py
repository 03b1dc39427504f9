"""Streams with pairs: searched in the first batch, then the least squares of all rows."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

import quadlin.estimators.regression.fitting as fitting
import quadlin.storage.stream_checkpoint as checkpoints
from quadlin import SecondOrderRegressor, load, save
from quadlin.data import open_source
from quadlin.stream.restore import state_of, stream_of
from quadlin.stream.state import InvalidContentError

PAIRS = [(0, 1), (2, 3), (4, 4)]
STRENGTHS = (1.0, -2.0, 0.5)


def drawn(n=1500, d=8, seed=0, noise=0.5):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + 0.5 * rng.standard_normal((n, 1))
    X[:, 3] = X[:, 3] > 1
    y = 1 + X @ rng.standard_normal(d) / 3
    for (i, j), a in zip(PAIRS, STRENGTHS, strict=True):
        y = y + a * X[:, i] * X[:, j]
    return X, y + noise * rng.standard_normal(n)


def least_squares(X, y, pairs, weight=None):
    """Return coefficients of products and their standard errors, by the dense matrix."""
    A = np.column_stack([np.ones(len(X)), X, *(X[:, i] * X[:, j] for i, j in pairs)])
    root = np.sqrt(np.ones(len(y)) if weight is None else weight)
    b, left = np.linalg.lstsq(A * root[:, None], y * root, rcond=None)[:2]
    noise = left[0] / (root @ root - A.shape[1])
    std = np.sqrt(noise * np.diag(np.linalg.inv((A * root[:, None] ** 2).T @ A)))
    return A @ b, b[-len(pairs) :], std[-len(pairs) :]


def streamed(X, y, cuts, **options):
    model = SecondOrderRegressor(random_state=0, **options)
    for rows, targets in zip(np.split(X, cuts), np.split(y, cuts), strict=True):
        model.partial_fit(rows, targets)
    return model


GIVEN = {"rank": 0, "alpha": 0.0, "pairs": PAIRS}


def test_given_pairs_end_in_the_least_squares_of_all_rows_however_the_stream_is_cut():
    X, y = drawn()
    expected, coef, std = least_squares(X, y, PAIRS)
    for cuts in ([700, 701, 702, 1400], list(range(30, 1500, 97))):
        model = streamed(X, y, cuts, **GIVEN)
        np.testing.assert_allclose(model.predict(X), expected, atol=1e-8)
        pairs = model.pairs_.pairs
        np.testing.assert_allclose([p.coefficient for p in pairs], coef, atol=1e-8)
        np.testing.assert_allclose([p.std_error for p in pairs], std, rtol=1e-8)
        assert model.pairs_.n_rows_fitted == 1500
        assert "coefficients and tests use 1,500" in str(model.pairs_)
        assert model.rank_ == 0


def test_the_default_finds_pairs_in_its_first_batch_and_learns_them_from_all_rows():
    X, y = drawn(3000)
    model = streamed(X, y, [1000, 2000])
    report = model.pairs_
    assert {(p.first, p.second) for p in report.pairs} == {("x0", "x1"), ("x2", "x3"), ("x4", "x4")}
    assert model.rank_ == 0
    assert report.n_rows < 3000 == report.n_rows_fitted
    pairs = [(int(p.first[1:]), int(p.second[1:])) for p in report.pairs]
    expected = least_squares(X, y, pairs)[0]
    # The penalty of w, chosen on the first batch, moves predictions by less than 1% of the noise.
    np.testing.assert_allclose(model.predict(X), expected, atol=0.02)
    assert len(report.path) == 4


def test_pairs_beside_a_low_rank_part_are_as_good_as_those_of_a_fit_to_all_rows():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((4000, 10))
    u = rng.standard_normal(10) / np.sqrt(10)
    truth = X[:, 4] + 1.5 * (X @ u) ** 2 + 2 * X[:, 0] * X[:, 1]
    y = truth + 0.5 * rng.standard_normal(4000)
    stream = streamed(X[:3000], y[:3000], [1000, 2000], rank=1, pairs=[(0, 1)])
    fit = SecondOrderRegressor(1, pairs=[(0, 1)], random_state=0).fit(X[:3000], y[:3000])
    errors = [np.mean((m.predict(X[3000:]) - truth[3000:]) ** 2) for m in (stream, fit)]
    # One step of all rows from a first batch of 200 rows: second order in its error.
    assert errors[0] < 1.2 * errors[1] < 0.01
    assert stream.rank_ == 1
    assert abs(stream.pairs_.pairs[0].coefficient - fit.pairs_.pairs[0].coefficient) < 0.01


def test_where_no_pair_is_found_the_report_says_what_was_searched():
    X, _ = drawn(600)
    y = X[:, 0] + np.random.default_rng(1).standard_normal(600)
    report = streamed(X, y, [500]).pairs_
    assert report.pairs == []
    assert report.n_candidates == 35  # all products but the square of the two-valued feature
    assert 0 < report.n_rows <= 600


def test_weights_are_repetitions_and_sparse_rows_are_the_same():
    X, y = drawn(600)
    weight = 1.0 + (np.arange(600) % 2)
    model = SecondOrderRegressor(**GIVEN, random_state=0)
    for part in (slice(0, 300), slice(300, 600)):
        model.partial_fit(X[part], y[part], weight[part])
    np.testing.assert_allclose(model.predict(X), least_squares(X, y, PAIRS, weight)[0], atol=1e-8)
    other = SecondOrderRegressor(**GIVEN, random_state=0)
    for part in (slice(0, 300), slice(300, 600)):
        other.partial_fit(sparse.csr_array(X[part]), y[part], weight[part])
    np.testing.assert_allclose(other.predict(sparse.csr_array(X)), model.predict(X), atol=1e-8)


def test_a_feature_that_is_constant_in_the_first_batch_is_learned_once_it_varies():
    X, y = drawn()
    late = X.copy()
    late[:200, 1] = 3.0
    y = y + (late[:, 1] - X[:, 1]) * X[:, 0]
    model = streamed(late, y, [200, 900], **GIVEN)
    expected, coef, _ = least_squares(late, y, PAIRS)
    np.testing.assert_allclose(model.predict(late), expected, atol=1e-7)
    np.testing.assert_allclose([p.coefficient for p in model.pairs_.pairs], coef, atol=1e-7)


def test_saved_in_the_middle_of_a_batch_it_goes_on_as_if_it_had_never_been(tmp_path):
    X, y = drawn(900)
    for cut in (60, 600):  # in the first batch, and in a later one
        model = streamed(X[:cut], y[:cut], [], pairs=3, batch_size=250)
        save(model, tmp_path / "model.safetensors")
        again = load(tmp_path / "model.safetensors")
        assert str(again.pairs_) == str(model.pairs_)
        for each in (model, again):
            each.partial_fit(X[cut:], y[cut:])
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
        assert again.pairs_ == model.pairs_
        assert len(again.pairs_.pairs) == 3


def test_a_stream_after_a_fit_is_saved_where_pairs_share_a_feature(tmp_path):
    """Three pairs of one feature make an M of rank 2, and up to 3 in the steps of a stream."""
    X, y = (a[:, :4] if a.ndim == 2 else a for a in drawn(900))
    pairs = [(0, 1), (0, 0), (0, 2)]
    model = SecondOrderRegressor(0, alpha=1.0, pairs=pairs, batch_size=50, random_state=0)
    model.fit(X[:300], y[:300]).partial_fit(X[300:620], y[300:620])  # 20 rows wait
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    for each in (model, again):
        each.partial_fit(X[620:], y[620:])
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_a_killed_stream_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "WRITE_SECONDS", -1)
    X, y = drawn(900)
    path = tmp_path / "stream"

    def source(n):
        return open_source(X[:n], target=y[:n], chunk_rows=100)

    def stopping(rows):
        for number, chunk in enumerate(rows):
            if number == 6:
                raise InterruptedError
            yield chunk

    whole = SecondOrderRegressor(**GIVEN, random_state=0).partial_fit(source(900))
    np.testing.assert_allclose(whole.predict(X), least_squares(X, y, PAIRS)[0], atol=1e-8)
    killed = SecondOrderRegressor(**GIVEN, random_state=0)
    rest = checkpoints.StreamCheckpoint.rest
    monkeypatch.setattr(
        checkpoints.StreamCheckpoint, "rest", lambda self, rows: stopping(rest(self, rows))
    )
    with pytest.raises(InterruptedError):
        killed.partial_fit(source(900), checkpoint=path)
    monkeypatch.setattr(checkpoints.StreamCheckpoint, "rest", rest)
    again = SecondOrderRegressor(**GIVEN, random_state=0).partial_fit(source(900), checkpoint=path)
    np.testing.assert_array_equal(again.predict(X), whole.predict(X))


def test_a_stream_that_keeps_no_row_does_not_search_and_refuses_pairs_in_words():
    X, y = drawn(300)
    assert streamed(X, y, [], rank=1, max_memory="minimal").pairs_ is None
    assert streamed(X, y, [], max_memory="minimal").pairs_ is None
    with pytest.raises(ValueError, match="needs more memory than"):
        streamed(X, y, [], pairs=2, max_memory="minimal")


def test_after_a_fit_the_stream_ends_in_the_least_squares_of_all_rows(tmp_path):
    X, y = drawn()
    model = SecondOrderRegressor(**GIVEN, random_state=0).fit(X[:600], y[:600])
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    expected, coef, std = least_squares(X, y, PAIRS)
    for each in (model, again):
        for part in (slice(600, 610), slice(610, 1500)):
            each.partial_fit(X[part], y[part])
        np.testing.assert_allclose(each.predict(X), expected, atol=1e-8)
        np.testing.assert_allclose([p.coefficient for p in each.pairs_.pairs], coef, atol=1e-8)
        np.testing.assert_allclose([p.std_error for p in each.pairs_.pairs], std, rtol=1e-8)
        assert (each.rank_, each.pairs_.n_rows, each.pairs_.n_rows_fitted) == (0, 600, 1500)


def test_after_a_fit_with_a_low_rank_part_both_are_learned_from_all_rows():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((3000, 6))
    f = X[:, 4] + (X @ rng.standard_normal(6)) ** 2 / 3 + 2 * X[:, 0] * X[:, 1]
    y = f + 0.5 * rng.standard_normal(3000)
    options = {"rank": 1, "alpha": 0.0, "pairs": [(0, 1)], "random_state": 0}
    model = SecondOrderRegressor(**options).fit(X[:1000], y[:1000])
    model.partial_fit(X[1000:], y[1000:])
    whole = SecondOrderRegressor(**options).fit(X, y)
    assert model.rank_ == 1
    # One step of all rows from a fit to a third of them: second order in its error of 1%.
    np.testing.assert_allclose(model.predict(X), whole.predict(X), atol=0.02)
    a, b = model.pairs_.pairs[0], whole.pairs_.pairs[0]
    assert abs(a.coefficient - b.coefficient) < 0.1 * b.std_error


def test_a_regression_that_is_too_large_to_be_kept_goes_on_with_m_as_a_whole(monkeypatch):
    monkeypatch.setattr(fitting, "MOST_KEPT", 11)
    X, y = drawn()
    model = SecondOrderRegressor(**GIVEN, random_state=0).fit(X[:900], y[:900])
    assert len(model.pairs_.pairs) == 3
    before = model.score(X, y)
    model.partial_fit(X[900:], y[900:])
    assert model.pairs_ is None
    assert model.rank_ == 5  # two for each pair, one for the square
    assert model.score(X, y) > before - 0.01


@pytest.mark.parametrize("learn", ["fit", "partial_fit"])
def test_other_pairs_than_it_began_with_are_refused(learn):
    X, y = drawn(300)
    model = SecondOrderRegressor(**GIVEN, random_state=0)
    getattr(model, learn)(X, y).set_params(pairs=[(0, 2)])
    with pytest.raises(ValueError, match="pairs changed"):
        model.partial_fit(X, y)


def test_products_that_are_linear_terms_are_refused():
    X, y = drawn(300)
    with pytest.raises(ValueError, match="The square of 'x3' is not modelled"):
        streamed(X, y, [], rank=0, pairs=[(3, 3)]).predict(X)


@pytest.mark.parametrize(
    "forged",
    [
        {"i": np.array([0, 2, 9])},
        {"order": np.array([0, 1, 2])},
        {"gram": np.eye(5)},
        {"alpha": (-1.0, 0.0, 0.0)},
    ],
)
def test_states_that_no_stream_can_have_are_refused(forged):
    X, y = drawn(300)
    state = state_of(streamed(X, y, [], **GIVEN, batch_size=300).fitted_.stream)
    assert state.state is not None
    running = replace(state.state.running, **forged)
    with pytest.raises(InvalidContentError, match="pairs"):
        stream_of(replace(state, state=replace(state.state, running=running)), ["x"] * 8)
