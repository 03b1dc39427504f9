"""Matrices from rank-one measurements, against matrices that are known and dense least squares."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from quadlin import MatrixSensing, SecondOrderRegressor, Status

VECTORS = {
    "gaussian": lambda rng, shape: rng.standard_normal(shape),
    "signs": lambda rng, shape: rng.choice([-1.0, 1.0], size=shape),
    "zeros and ones": lambda rng, shape: np.where(rng.uniform(size=shape) < 0.3, 1.0, 0.0),
}


def orthonormal(rng, d, k):
    return np.linalg.qr(rng.standard_normal((d, k)))[0]


def symmetric(kind, n, d=16, k=2, psd=False, seed=0):
    rng = np.random.default_rng(seed)
    U, s = orthonormal(rng, d, k), np.where((np.arange(k) % 2 == 0) | psd, 1.0, -1.0)
    A = VECTORS[kind](rng, (n, d))
    return A, ((A @ U) ** 2) @ s, (U * s) @ U.T


def pairs(kind, n, d=12, e=8, k=2, seed=0):
    rng = np.random.default_rng(seed)
    M = orthonormal(rng, d, k) @ orthonormal(rng, e, k).T
    A, B = VECTORS[kind](rng, (n, d)), VECTORS[kind](rng, (n, e))
    return (A, B), np.sum((A @ M) * B, axis=1), M


def fitted(rows, y, weight=None, **options):
    return MatrixSensing(**{"rank": 2, "random_state": 0, **options}).fit(rows, y, weight)


FEWER_ROWS = "It has fewer rows than M has unknowns, so that more than one M fits them exactly."


@parametrize_with_checks(
    [MatrixSensing(rank=1)],
    expected_failed_checks=lambda _: {
        "check_sample_weight_equivalence_on_dense_data": FEWER_ROWS,
        "check_sample_weight_equivalence_on_sparse_data": FEWER_ROWS,
    },
)
def test_the_contract_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize("psd", [False, True])
@pytest.mark.parametrize("kind", VECTORS)
def test_a_symmetric_matrix_is_recovered_with_its_diagonal(kind, psd):
    A, y, M = symmetric(kind, 120, psd=psd)  # 31 unknowns
    model = fitted(A, y, psd=psd)
    np.testing.assert_allclose(model.matrix_, M, atol=1e-7)
    np.testing.assert_allclose(np.sort(model.values_), [1, 1] if psd else [-1, 1], atol=1e-7)
    np.testing.assert_allclose(model.predict(A), y, atol=1e-6)
    assert model.left_ is model.right_
    assert model.status_ is Status.converged


@pytest.mark.parametrize("kind", VECTORS)
def test_any_matrix_is_recovered_from_pairs_of_rows(kind):
    rows, y, M = pairs(kind, 90)  # 36 unknowns
    model = fitted(rows, y)
    np.testing.assert_allclose(model.matrix_, M, atol=1e-9)
    assert (model.left_.shape, model.right_.shape) == ((12, 2), (8, 2))
    np.testing.assert_allclose(model.predict(rows), y, atol=1e-9)
    assert model.score(rows, y) == pytest.approx(1)


def test_pairs_are_the_block_beside_the_diagonal_of_the_symmetric_problem():
    (A, B), y, M = pairs("gaussian", 400)
    options = {"fit_linear": False, "fit_intercept": False, "alpha": 0.0, "random_state": 0}
    joined = SecondOrderRegressor(rank=4, **options).fit(np.hstack([A, B]), y)
    whole = (joined.components_.T * joined.eigenvalues_) @ joined.components_
    np.testing.assert_allclose(2 * whole[:12, 12:], M, atol=1e-6)
    np.testing.assert_allclose(2 * whole[:12, 12:], fitted((A, B), y).matrix_, atol=1e-6)


def test_a_rank_without_restriction_is_dense_least_squares():
    (A, B), y, _ = pairs("gaussian", 150, d=6, e=4)
    y = y + np.random.default_rng(1).standard_normal(150)
    weight = np.random.default_rng(2).uniform(size=150)
    products = np.einsum("ni,nj->nij", A, B).reshape(150, -1) * np.sqrt(weight)[:, None]
    dense = np.linalg.lstsq(products, y * np.sqrt(weight), rcond=None)[0].reshape(6, 4)
    model = fitted((A, B), y, weight, rank=4, tol=1e-12)
    np.testing.assert_allclose(model.matrix_, dense, atol=1e-6)


@pytest.mark.parametrize("form", [sparse.csr_array, np.asfortranarray])
def test_every_form_of_pairs_gives_the_same_matrix(form):
    (A, B), y, M = pairs("zeros and ones", 120)
    model = fitted((form(A), form(B)), y)
    np.testing.assert_allclose(model.matrix_, M, atol=1e-9)
    np.testing.assert_allclose(model.predict((form(A), form(B))), y, atol=1e-9)


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("draw", [symmetric, pairs])
def test_the_rank_is_found_from_the_measurements(draw, noise):
    rows, y, _ = draw("signs", 100, d=7)
    y = y + noise * np.random.default_rng(5).standard_normal(100)
    assert fitted(rows, y, rank="auto").rank_ == 2


def test_of_ranks_that_explain_all_measurements_the_lowest_is_found():
    rng = np.random.default_rng(3)  # the evidence alone takes rank 4 here
    u, v = rng.normal(size=(2, 10))
    A = rng.choice([-1.0, 1.0], size=(60, 10))
    model = fitted(A, (A @ u) ** 2 - (A @ v) ** 2, 2.0, rank="auto")
    np.testing.assert_allclose(model.matrix_, np.outer(u, u) - np.outer(v, v), atol=1e-7)


@pytest.mark.parametrize("psd", [False, True])
@pytest.mark.parametrize("d", [1, 3])
def test_the_rank_that_is_found_may_be_the_full_one(d, psd):
    A, y, M = symmetric("gaussian", 60, d=d, k=d, psd=psd)
    y = y + 0.01 * np.random.default_rng(1).standard_normal(60)
    model = fitted(A, y, rank="auto", psd=psd)
    assert model.rank_ == d
    np.testing.assert_allclose(model.matrix_, M, atol=0.01)  # some seven standard errors


def test_noise_costs_what_it_must():
    ratios = []
    for seed in range(4):
        rows, y, M = pairs("gaussian", 360, seed=seed)  # ten measurements for each of 36 unknowns
        y = y + 0.1 * np.random.default_rng(seed).standard_normal(360)
        error = np.linalg.norm(fitted(rows, y).matrix_ - M)
        ratios.append(error**2 / (0.1**2 * 36 / 360))
    # Each is a mean over 36 directions (sd √(2/36)), some 10% above 1 as n is finite.
    assert 0.7 < np.mean(ratios) < 1.5


@pytest.mark.parametrize("draw", [symmetric, pairs])
def test_gross_errors_have_no_pull_with_the_loss_of_huber(draw):
    rows, y, M = draw("gaussian", 90, d=7)
    y[::30] += 1000
    np.testing.assert_allclose(fitted(rows, y, loss="huber").matrix_, M, atol=1e-5)


@pytest.mark.parametrize("draw", [symmetric, pairs])
def test_weights_are_repetitions(draw):
    rows, y, _ = draw("gaussian", 100)
    rng = np.random.default_rng(0)
    y, weight = y + 0.1 * rng.standard_normal(100), rng.integers(0, 3, size=100)
    again = np.repeat(np.arange(100), weight)
    repeated = tuple(X[again] for X in rows) if isinstance(rows, tuple) else rows[again]
    one, other = fitted(rows, y, weight, tol=1e-12), fitted(repeated, y[again], tol=1e-12)
    np.testing.assert_allclose(one.matrix_, other.matrix_, atol=1e-6)


def test_constant_squares_and_a_high_rank_leave_the_diagonal_open():
    A, y, M = symmetric("signs", 60, d=5)
    with pytest.warns(UserWarning, match="squares of 5 columns are constant.*Lower `rank`"):
        model = fitted(A, y, rank=4)
    beside = ~np.eye(5, dtype=bool)
    np.testing.assert_allclose(model.matrix_[beside], M[beside], atol=1e-6)  # as is promised
    assert np.trace(model.matrix_) == pytest.approx(np.trace(M), abs=1e-6)
    A, y, M = symmetric("zeros and ones", 60, d=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(fitted(A, y, rank=4).matrix_, M, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ((np.ones((9, 2)),) * 3, {}, "two arrays of rows.*there are 3"),
        ((np.ones((9, 2)), np.ones((8, 2))), {}, "A has 9 rows but B has 8"),
        ((np.ones((8, 2)), np.ones((8, 2))), {}, "A and B have 8 rows, but y has 9 entries"),
        ((np.ones((9, 2)), np.ones((9, 2))), {"psd": True}, "needs a symmetric matrix"),
        ((np.ones((9, 2)), np.ones((9, 2))), {"rank": 0}, "rank=0 must be a whole number ≥ 1"),
        ((np.ones((9, 2)), np.ones((9, 2))), {"loss": "l1"}, 'loss="l1" is not one of'),
        ((np.ones((9, 2)), np.full((9, 2), np.nan)), {}, "Input B contains NaN"),
        (np.ones((9, 2)) * 1j, {}, "Complex data not supported.*use PhaseRetriever"),
    ],
)
def test_bad_measurements_are_refused_in_a_sentence(rows, options, words):
    with pytest.raises(ValueError, match=words):
        fitted(rows, np.arange(9.0), **options)


def test_rows_to_predict_have_the_form_of_those_that_were_fitted():
    rows, y, _ = pairs("gaussian", 90)
    model = fitted(rows, y)
    with pytest.raises(ValueError, match=r"fitted to rows \(A, B\)"):
        model.predict(rows[0])
    with pytest.raises(ValueError, match=r"8 and 12 features.*expecting 12 and 8"):
        model.predict(rows[::-1])


def test_too_few_measurements_are_counted_in_a_warning():
    rows, y, _ = pairs("gaussian", 30)
    words = "30 measurements do not determine a matrix of rank 2, which has 36 unknowns"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        with pytest.warns(UserWarning, match=words):
            assert fitted(rows, y).status_ is Status.undetermined
    A, y, _ = symmetric("gaussian", 25)
    with pytest.warns(UserWarning, match="25 measurements do not determine") as told:
        assert fitted(A, y).status_ is Status.undetermined
    assert not any("alpha" in str(warning.message) for warning in told)


def test_a_list_of_two_tables_is_a_pair():
    rows, y, M = pairs("gaussian", 120)
    model = fitted(list(rows), y)
    np.testing.assert_allclose(model.matrix_, M, atol=1e-6)
    np.testing.assert_allclose(model.predict(list(rows)), y, atol=1e-6)


def few_measurements(n, seed, noise=0.0):
    rng = np.random.default_rng(seed)
    U = rng.normal(size=(15, 2))
    M = np.outer(U[:, 0], U[:, 0]) - np.outer(U[:, 1], U[:, 1])  # 29 unknowns
    A = rng.normal(size=(n, 15))
    y = np.einsum("ni,ij,nj->n", A, M, A)
    return A, y + noise * y.std() * rng.normal(size=n), M


@pytest.mark.parametrize("n", [25, 29, 35])
def test_too_few_measurements_are_said_to_be_too_few_whatever_rank_was_found(n):
    A, y, M = few_measurements(n, seed=0)
    with pytest.warns(UserWarning, match="Add measurements"):
        model = MatrixSensing(random_state=0).fit(A, y)
    assert model.status_.name == "undetermined"
    assert np.linalg.norm(model.matrix_ - M) > 0.3 * np.linalg.norm(M)


def test_too_few_pairs_of_vectors_are_said_to_be_too_few():
    rng = np.random.default_rng(0)
    M = rng.normal(size=(12, 2)) @ rng.normal(size=(2, 8))  # 36 unknowns
    A, B = rng.normal(size=(30, 12)), rng.normal(size=(30, 8))
    with pytest.warns(UserWarning, match="Add measurements"):
        model = MatrixSensing(random_state=0).fit((A, B), np.einsum("ni,ij,nj->n", A, M, B))
    assert model.status_.name == "undetermined"


def test_enough_measurements_are_not_warned_of():
    A, y, M = few_measurements(60, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model = MatrixSensing(random_state=0).fit(A, y)
    np.testing.assert_allclose(model.matrix_, M, atol=1e-6)


def test_an_offset_that_no_matrix_explains_is_named():
    A, y, _ = few_measurements(300, seed=0)
    with pytest.warns(UserWarning, match=f"background of about {5 * y.std():.3g}") as told:
        MatrixSensing(rank=2, random_state=0).fit(A, y + 5 * y.std())
    assert len(told) == 1


@pytest.mark.parametrize("seed", [7, 10, 17, 18])  # one start ends at a poor optimum
def test_a_poor_optimum_is_left_by_another_start(seed):
    rng = np.random.default_rng(seed)
    u = orthonormal(rng, 30, 1)
    A = VECTORS["zeros and ones"](rng, (75, 30))
    y = (A @ u)[:, 0] ** 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        once = MatrixSensing(1, n_starts=1, random_state=seed).fit(A, y)
        assert np.linalg.norm(once.matrix_ - u @ u.T) > 0.1
    model = MatrixSensing(1, random_state=seed).fit(A, y)
    np.testing.assert_allclose(model.matrix_, u @ u.T, atol=1e-6)
    assert model.status_ is Status.converged
