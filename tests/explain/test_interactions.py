import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadlin import SecondOrderRegressor
from quadlin.datasets import make_second_order
from quadlin.explain.interactions import Interactions


def view(seed, d=12, k=3):
    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((d, k)) * rng.exponential(size=(d, 1)) ** 3
    has_diagonal = rng.uniform(size=d) < 0.5
    sd = rng.exponential(size=d)
    signs = rng.standard_normal(k)
    M = (factor * signs) @ factor.T
    M[~has_diagonal, ~has_diagonal] = 0
    field = rng.integers(-1, 3, d)
    together = (field[:, None] == field) & (field >= 0) & ~np.eye(d, dtype=bool)
    M[together] = 0
    return Interactions(factor, signs, has_diagonal, field, sd, [f"f{j}" for j in range(d)]), M, sd


@given(seed=st.integers(0, 500), count=st.integers(1, 20), squares=st.booleans())
def test_the_strongest_pairs_are_those_of_the_whole_matrix(seed, count, squares):
    interactions, M, sd = view(seed)
    strength = np.abs(M * np.outer(sd, sd)) * (2 - np.eye(12))
    i, j = np.triu_indices(12, 0 if squares else 1)
    expected = np.sort(strength[i, j])[::-1][:count]
    pairs = interactions.top(count, squares=squares)
    np.testing.assert_allclose([abs(p.strength) for p in pairs], expected[expected > 0], rtol=1e-9)


def test_rounding_of_eigenvectors_is_no_interaction():
    factor = np.array([[1.0, 1.0], [1.0, -1.0], [3e-17, 1e-16]])  # x0·x1, and what eigh leaves
    some = Interactions(
        factor, np.array([0.5, -0.5]), np.ones(3, bool), -np.ones(3, int), np.ones(3), list("abc")
    )
    assert [(p.first, p.second) for p in some.top(5, squares=True)] == [("a", "b")]


def test_entries_rows_and_names_agree():
    interactions, M, _ = view(0)
    twice = M * (2 - np.eye(12))  # M_ij and M_ji are both in xᵀMx
    np.testing.assert_allclose(interactions.matrix(), M)
    np.testing.assert_allclose(interactions.row("f3"), twice[3])
    assert interactions["f3", "f5"] == pytest.approx(twice[3, 5])
    assert interactions[3, -1] == pytest.approx(twice[3, 11])
    np.testing.assert_allclose([interactions[j, j] for j in range(12)], np.diag(M))


def test_an_unknown_feature_is_named():
    interactions, _, _ = view(0)
    with pytest.raises(KeyError, match="'income'"):
        interactions["income", "f1"]
    with pytest.raises(IndexError, match="12 features"):
        interactions[0, 12]


def test_a_model_without_interactions_has_no_strongest():
    empty = Interactions(
        np.zeros((3, 1)), np.zeros(1), np.ones(3, bool), np.full(3, -1), np.ones(3), list("abc")
    )
    assert empty.top(5) == []
    assert repr(empty) == "<Interactions of 3 features, rank 1: none>"


def test_a_view_shows_the_strongest_in_a_line():
    interactions, _, _ = view(0)
    first = interactions.top(1)[0]
    text = repr(interactions)
    assert f"{first.first} × {first.second} {first.coefficient:+.4g}, " in text
    assert text.endswith(", …>")
    assert text.count("×") == 3


def test_everything_that_names_a_pair_speaks_of_the_coefficient_of_the_product():
    interactions, M, _ = view(0)
    pairs = interactions.top(40, squares=True)
    assert {a == b for a, b, *_ in pairs} == {True, False}
    x = np.random.default_rng(1).standard_normal(12)
    names, by_pair = interactions.names, 0.0
    for pair in interactions.top(200, squares=True):
        i, j = names.index(pair.first), names.index(pair.second)
        by_pair += pair.coefficient * x[i] * x[j]
        assert pair.coefficient == interactions[i, j]
        assert pair.coefficient == pytest.approx(interactions.row(i)[j])
    assert by_pair == pytest.approx(x @ M @ x)


def test_a_frame_has_every_pair_and_its_error():
    data = make_second_order(400, 4, rank=1, noise=0.5, random_state=0)
    model = SecondOrderRegressor(1, random_state=0, alpha=0.0)
    frame = model.fit(data.X, data.y).interactions_.to_frame()
    assert len(frame) == 10
    assert frame["std_error"].isna().all()
    frame = model.set_params(uncertainty=True).fit(data.X, data.y).interactions_.to_frame(3)
    assert list(frame) == ["first", "second", "coefficient", "strength", "std_error"]
    assert len(frame) == 3
    assert (frame["std_error"] > 0).all()


@pytest.mark.parametrize("pair", [(0, 1), (2, 2)])
def test_coefficient_and_error_of_a_pair_are_of_the_same_thing(pair):
    # Rank d is a linear model of all products: its errors are those of least squares.
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 3))
    y = X[:, 0] * X[:, 1] - X[:, 2] ** 2 + rng.standard_normal(200)
    model = SecondOrderRegressor(3, alpha=0.0, tol=1e-12, uncertainty=True, random_state=0)
    model.fit(X, y)
    i, j = np.triu_indices(3)
    design = np.column_stack([np.ones(200), X, X[:, i] * X[:, j]])
    beta, loss = np.linalg.lstsq(design, y, rcond=None)[:2]
    errors = np.sqrt(np.diag(np.linalg.inv(design.T @ design)) * loss[0] / (200 - 10))
    at = 4 + list(zip(i.tolist(), j.tolist(), strict=True)).index(pair)
    top = {(p.first, p.second): p for p in model.interactions_.top(6, squares=True)}
    told = top[f"x{pair[0]}", f"x{pair[1]}"]
    for coefficient, error in (
        (model.interaction(*pair), model.interaction_std(*pair)),
        (told.coefficient, told.std_error),
    ):
        assert coefficient == pytest.approx(beta[at], rel=1e-5)
        assert error == pytest.approx(errors[at], rel=1e-4)
