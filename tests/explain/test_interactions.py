import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    found = interactions.top(count, squares=squares)
    np.testing.assert_allclose([abs(p.strength) for p in found], expected[expected > 0], rtol=1e-9)


def test_entries_rows_and_names_agree():
    interactions, M, _ = view(0)
    np.testing.assert_allclose(interactions.row("f3"), M[3])
    assert interactions["f3", "f5"] == pytest.approx(M[3, 5])
    assert interactions[3, -1] == pytest.approx(M[3, 11])
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


def test_the_strongest_are_listed_by_what_their_product_adds_to_y():
    interactions, _, _ = view(0)
    pairs = interactions.top(40, squares=True)
    assert {a == b for a, b, _, _ in pairs} == {True, False}
    for first, second, coefficient, _ in pairs:
        times = 1 if first == second else 2
        assert coefficient == pytest.approx(times * interactions[first, second])
