"""Matrices of low rank from rank-one measurements: recovered, or reported as undetermined."""

import functools
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from quadlin import MatrixSensing, Status

VECTORS = {
    "gaussian": lambda rng, shape: rng.standard_normal(shape),
    "signs": lambda rng, shape: rng.choice([-1.0, 1.0], size=shape),
    "zeros and ones": lambda rng, shape: np.where(rng.uniform(size=shape) < 0.3, 1.0, 0.0),
}
FORMS = ("symmetric", "pairs")


@functools.cache
def measurements(form="symmetric", kind="gaussian", n=150, d=12, k=2, seed=0):
    """Return the vectors, y = aᵀMa or aᵀMb without noise, and M of both signs or rectangular."""
    rng = np.random.default_rng(seed)
    A, U = VECTORS[kind](rng, (n, d)), rng.standard_normal((d, k))
    if form == "pairs":
        B = VECTORS[kind](rng, (n, d - 4))
        M = U @ rng.standard_normal((k, d - 4))
        return (A, B), np.sum((A @ M) * B, axis=1), M
    M = (U * np.where(np.arange(k) % 2, -1.0, 1.0)) @ U.T
    return A, np.sum((A @ M) * A, axis=1), M


def sense(rows, y, weight=None, rank="auto", **options):
    return MatrixSensing(rank, random_state=0, **options).fit(rows, y, weight)


def relative_error(model, M):
    return np.linalg.norm(model.matrix_ - M) / np.linalg.norm(M)


def change_rows(rows, change):
    return tuple(map(change, rows)) if isinstance(rows, tuple) else change(rows)


@pytest.mark.smoke
@pytest.mark.parametrize("rank", [2, "auto"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", VECTORS)
def test_a_matrix_is_recovered_exactly_without_noise(kind, form, rank):
    rows, y, M = measurements(form, kind)
    model = sense(rows, y, rank=rank)
    assert relative_error(model, M) < 1e-6
    assert model.rank_ == 2
    assert model.status_ is Status.converged
    assert model.matrix_.shape == M.shape
    np.testing.assert_allclose(model.left_ * model.values_ @ model.right_.T, model.matrix_)
    np.testing.assert_allclose(model.left_.T @ model.left_, np.eye(2), atol=1e-8)


@pytest.mark.parametrize("form", FORMS)
def test_three_measurements_per_unknown_are_enough(form):
    for seed in range(4):
        unknowns = 2 * 15 - 1 if form == "symmetric" else 2 * (15 + 11 - 2)
        rows, y, M = measurements(form, n=3 * unknowns, d=15, seed=seed)
        assert relative_error(sense(rows, y), M) < 1e-6


@pytest.mark.parametrize("d", [20, 40])
def test_rank_one_is_recovered_from_three_measurements_per_unknown(d):
    for seed in range(6):
        rows, y, M = measurements(n=3 * d, d=d, k=1, seed=seed)
        assert relative_error(sense(rows, y, rank=1), M) < 1e-6


def test_few_measurements_are_enough_for_unequal_eigenvalues():
    # 1.3 measurements per unknown: 11 of 12 draws were exact; from the moments alone, one.
    exact = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        A, U = rng.normal(size=(152, 40)), np.linalg.qr(rng.normal(size=(40, 3)))[0]
        M = (U * [1.0, -0.3, 0.1]) @ U.T
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of few measurements
            model = sense(A, np.sum((A @ M) * A, axis=1), rank=3)
        exact += relative_error(model, M) < 1e-6
    assert exact >= 4


def test_a_matrix_that_is_not_found_is_reported():
    for seed in range(4):
        rng = np.random.default_rng(seed)
        A, u = rng.normal(size=(32, 20)), rng.normal(size=20)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = sense(A, (A @ u) ** 2, rank=1)
        assert relative_error(model, np.outer(u, u)) < 1e-6 or caught


@pytest.mark.parametrize("form", FORMS)
def test_too_few_measurements_are_reported(form):
    rows, y, _ = measurements(form, n=18, d=14)
    with pytest.warns(UserWarning, match="18"):
        model = sense(rows, y, rank=2)
    assert model.status_ is Status.undetermined


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_are_multiples_of_each_other_count_once(form):
    rows, y, _ = measurements(form, n=30, d=20)
    twice = change_rows(rows, lambda A: np.vstack([A, -2 * A]))
    with pytest.warns(UserWarning, match="30"):
        model = sense(twice, np.concatenate([y, 4 * y]), rank=2)
    assert model.status_ is Status.undetermined


@pytest.mark.parametrize("form", FORMS)
def test_noise_costs_what_it_must(form):
    rows, y, M = measurements(form, n=400)
    noise = 0.1 * np.random.default_rng(1).standard_normal(400)
    new, expected, _ = measurements(form, n=400)
    model = sense(rows, y + noise)
    unknowns = 2 * 12 - 1 if form == "symmetric" else 2 * (12 + 8 - 2)
    # The error of the fitted measurements is σ²·dof/n on average, with a spread of √(2/dof).
    error = np.mean((model.predict(new) - expected) ** 2)
    assert error < 0.01 * unknowns / 400 * 2
    assert relative_error(model, M) < 0.05


@pytest.mark.parametrize("form", FORMS)
def test_gross_errors_have_no_pull_with_hubers_loss(form):
    rows, y, M = measurements(form, n=250)
    spoiled = y.copy()
    spoiled[::20] = 100 * y.std()
    assert relative_error(sense(rows, spoiled, loss="huber"), M) < 1e-6


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", VECTORS)
def test_a_background_is_estimated_with_the_matrix(kind, form):
    rows, y, M = measurements(form, kind)
    model = sense(rows, y + 0.3 * y.std(), fit_intercept=True)
    assert relative_error(model, M) < 1e-4
    assert model.intercept_ == pytest.approx(0.3 * y.std(), rel=1e-3)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", VECTORS)
def test_a_background_that_is_not_asked_for_is_reported(kind, form):
    rows, y, _ = measurements(form, kind)
    noise = 0.1 * y.std() * np.random.default_rng(1).standard_normal(len(y))
    with pytest.warns(UserWarning, match="fit_intercept"):
        sense(rows, y + noise + 0.3 * y.std())
    sense(rows, y + noise)  # and without a background there is no warning


@pytest.mark.parametrize("form", FORMS)
def test_weights_equal_repetition(form):
    rows, y, _ = measurements(form, n=200, d=8)
    rng = np.random.default_rng(0)
    y = y + 0.1 * rng.standard_normal(200)
    weight = rng.integers(0, 3, size=200)
    chosen = np.repeat(np.arange(200), weight)
    one = sense(rows, y, weight, rank=2, tol=1e-10, max_iter=500)
    again = change_rows(rows, lambda A: A[chosen])
    other = sense(again, y[chosen], rank=2, tol=1e-10, max_iter=500)
    np.testing.assert_allclose(one.matrix_, other.matrix_, atol=1e-3)


@pytest.mark.parametrize("form", FORMS)
def test_units_do_not_matter(form):
    (rows, y, M), unit = measurements(form), 1e6
    assert relative_error(sense(rows, unit * y), unit * M) < 1e-6
    scaled = sense(change_rows(rows, lambda A: unit * A), y)
    assert relative_error(scaled, M / unit**2) < 1e-6


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", [sparse.csr_array, np.float32, pd.DataFrame])
def test_every_form_of_the_vectors_gives_the_same_matrix(form, make):
    rows, y, M = measurements(form, "zeros and ones")
    model = sense(change_rows(rows, make), y)
    assert relative_error(model, M) < (1e-3 if make is np.float32 else 1e-6)
    np.testing.assert_allclose(model.predict(change_rows(rows, make)), y, atol=1e-2)


BAD = {
    "lengths": (lambda A, y: (A, y[:-1]), ValueError, "149"),
    "not a number": (lambda A, y: (np.where(A > 2, np.nan, A), y), ValueError, "NaN"),
    "matrices": (lambda A, y: (A[:, :, None] * A[:, None], y), ValueError, r"\(150, 12, 12\)"),
    "a file": (lambda A, y: ("rows.csv", y), TypeError, "rows.csv"),
}


@pytest.mark.smoke
@pytest.mark.parametrize("case", BAD)
def test_bad_measurements_raise_an_error(case):
    change, error, words = BAD[case]
    A, y, _ = measurements()
    with pytest.raises(error, match=words):
        sense(*change(A, y))


@pytest.mark.parametrize(
    "options", [{"rank": -1}, {"n_starts": 0}, {"tol": -1}, {"loss": "absolute"}]
)
def test_bad_parameters_are_named(options):
    A, y, _ = measurements()
    with pytest.raises(ValueError, match=next(iter(options))):
        MatrixSensing(**options).fit(A, y)
