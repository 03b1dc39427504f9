"""Signals from intensities, against signals that are known."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import fft, sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from quadlin import PhaseRetriever, SecondOrderRegressor, Status
from quadlin.metrics import align_phase, signal_error

KINDS = ("real", "complex")


def drawn(kind, n, d, seed=0):
    """Return Gaussian vectors whose entries have variance 1, and a signal of norm 1."""
    rng = np.random.default_rng(seed)
    A, z = rng.standard_normal((n, d)), rng.standard_normal(d)
    if kind == "complex":
        A = (A + 1j * rng.standard_normal((n, d))) / np.sqrt(2)
        z = z + 1j * rng.standard_normal(d)
    return A, z / np.linalg.norm(z)


def fitted(A, y, weight=None, **options):
    return PhaseRetriever(**{"random_state": 0, **options}).fit(A, y, weight)


@parametrize_with_checks([PhaseRetriever(n_starts=1, max_iter=20)])
def test_the_contract_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_four_measurements_per_entry_are_enough(kind, seed):
    A, z = drawn(kind, 120, 30, seed)
    model = fitted(A, np.abs(A @ z) ** 2)
    assert signal_error(z, model.signal_) < 1e-10
    assert model.status_ is Status.converged
    assert np.iscomplexobj(model.signal_) == (kind == "complex")
    new, _ = drawn(kind, 50, 30, 100 + seed)
    np.testing.assert_allclose(model.predict(new), np.abs(new @ z) ** 2, atol=1e-9)
    assert model.score(new, np.abs(new @ z) ** 2) == pytest.approx(1)


def test_the_rank_two_model_of_doubled_rows_finds_the_same_signal():
    # a and i·a measure the same: [Re a, −Im a] and [Im a, Re a], y twice (n = 6d).
    A, z = drawn("complex", 60, 10)
    y = np.abs(A @ z) ** 2
    X = np.block([[A.real, -A.imag], [A.imag, A.real]])
    options = {"rank": 2, "psd": True, "fit_linear": False, "fit_intercept": False}
    doubled = SecondOrderRegressor(**options, alpha=0.0, random_state=0).fit(X, np.tile(y, 2))
    u = np.sqrt(doubled.eigenvalues_[0]) * doubled.components_[0]
    assert signal_error(u[:10] + 1j * u[10:], fitted(A, y).signal_) < 1e-6


def test_other_starts_find_what_the_first_did_not():
    A, z = drawn("real", 50, 20, seed=6)  # 2.5 per entry, a hard case
    y = (A @ z) ** 2
    assert signal_error(z, fitted(A, y, n_starts=1).signal_) > 0.1
    model = fitted(A, y)
    assert signal_error(z, model.signal_) < 1e-10
    assert model.status_ is Status.converged


def cramer_rao(A, z, noise):
    """Return the bound of the root mean square error: σ·√tr (JᵀJ)⁺, J the derivative of |Az|²."""
    J = 2 * (A @ z).conj()[:, None] * A
    J = np.hstack([J.real, -J.imag]) if np.iscomplexobj(A) else J
    return noise * np.sqrt(np.sum(1 / np.linalg.eigvalsh(J.T @ J)[np.iscomplexobj(A) :]))


@pytest.mark.parametrize("kind", KINDS)
def test_noise_costs_what_it_must(kind):
    errors = []
    for seed in range(5):
        A, z = drawn(kind, 300, 15, seed)
        y = np.abs(A @ z) ** 2 + 0.1 * np.random.default_rng(seed).standard_normal(300)
        assert np.min(y) < 0  # by noise, and accepted
        errors.append(signal_error(z, fitted(A, y).signal_) / cramer_rao(A, z, 0.1))
    # Each squared ratio has mean 1 and is a mean over at least 15 directions: five of them are
    # within 1 ± 3·√(2/75), and the curvature of the model adds a little at this noise.
    assert 0.7 < np.sqrt(np.mean(np.square(errors))) < 1.3


@pytest.mark.parametrize("kind", KINDS)
def test_gross_errors_have_no_pull_with_the_loss_of_huber(kind):
    A, z = drawn(kind, 160, 20)
    y = np.abs(A @ z) ** 2
    y[::20] += 1000
    assert signal_error(z, fitted(A, y, loss="huber").signal_) < 1e-5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert signal_error(z, fitted(A, y, n_starts=1, max_iter=20).signal_) > 0.1


def test_gross_errors_and_noise_cost_little_more_than_noise():
    A, z = drawn("complex", 300, 15)
    rng = np.random.default_rng(1)
    y = np.abs(A @ z) ** 2 + 0.05 * rng.standard_normal(300)
    y[rng.choice(300, 15, replace=False)] += 100 * rng.exponential(size=15)
    # Twice the bound: one draw (sd 13%), Huber's loss (some 10%), 5% of rows lost (3%).
    assert signal_error(z, fitted(A, y, loss="huber").signal_) < 2 * cramer_rao(A, z, 0.05)


# The weights of Huber's loss settle to 1e-3, and move the signal by a fraction of that.
@pytest.mark.parametrize(("loss", "margin"), [("squared", 1e-6), ("huber", 1e-4)])
def test_weights_are_repetitions(loss, margin):
    A, z = drawn("complex", 100, 8)
    rng = np.random.default_rng(0)
    y = np.abs(A @ z) ** 2 + 0.05 * rng.standard_normal(100)
    weight = rng.integers(0, 3, size=100)
    repeated = np.repeat(np.arange(100), weight)
    one = fitted(A, y, weight, loss=loss, tol=1e-12).signal_
    other = fitted(A[repeated], y[repeated], loss=loss, tol=1e-12).signal_
    assert signal_error(one, other) < margin


def test_scaled_and_correlated_columns_are_as_easy():
    A, z = drawn("complex", 80, 20)
    mix = np.random.default_rng(1).standard_normal((20, 20)) * np.logspace(0, 3, 20)
    mixed = A @ mix
    model = fitted(mixed, np.abs(mixed @ z) ** 2)
    assert signal_error(z, model.signal_) < 1e-8


def masks(side, count, rng, amplitudes=(1.0,)):
    """Return the Fourier transform of a masked picture as an operator, which counts its calls."""
    M = rng.choice([1, -1, 1j, -1j], size=(count, side, side))
    M = M * rng.choice(amplitudes, size=M.shape)
    calls = []

    def forward(v):
        calls.append("A")
        return fft.fft2(M * v.reshape(side, side), norm="ortho").ravel()

    def adjoint(u):
        calls.append("Aᴴ")
        return np.sum(M.conj() * fft.ifft2(u.reshape(M.shape), norm="ortho"), axis=0).ravel()

    shape = (M.size, side * side)
    return LinearOperator(shape, matvec=forward, rmatvec=adjoint, dtype=complex), calls


@pytest.mark.parametrize("amplitudes", [(1.0,), (0.7, 1.7)])
def test_a_picture_is_recovered_from_coded_diffraction_by_products_alone(amplitudes):
    rng = np.random.default_rng(0)
    picture = rng.uniform(size=(16, 16))
    A, calls = masks(16, 6, rng, amplitudes)
    y = np.abs(A @ picture.ravel()) ** 2
    calls.clear()
    model = fitted(A, y)
    assert signal_error(picture.ravel(), model.signal_) < 1e-10
    assert model.history_[-1].passes == len(calls)  # every product is counted
    np.testing.assert_allclose(model.predict(A), y, atol=1e-9)


def test_a_signal_that_is_real_needs_fewer_complex_measurements():
    rng = np.random.default_rng(0)
    picture = rng.uniform(size=256)
    A, _ = masks(16, 2, rng)
    model = fitted(A, np.abs(A @ picture) ** 2, real=True)
    assert signal_error(picture, model.signal_) < 1e-10
    assert not np.iscomplexobj(model.signal_)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "form", [sparse.csr_array, sparse.coo_matrix, aslinearoperator, np.asfortranarray]
)
def test_every_form_of_the_rows_gives_the_same_signal(form, kind):
    A, z = drawn(kind, 100, 12)
    assert signal_error(z, fitted(form(A), np.abs(A @ z) ** 2).signal_) < 1e-10


def test_frames_keep_their_names_and_single_precision_stays():
    A, z = drawn("real", 60, 8)
    model = fitted(pd.DataFrame(A, columns=list("abcdefgh")), (A @ z) ** 2)
    assert list(model.feature_names_in_) == list("abcdefgh")
    A, z = drawn("complex", 60, 8)
    model = fitted(A.astype(np.complex64), np.abs(A @ z) ** 2)
    assert model.signal_.dtype == np.complex64
    assert signal_error(z, model.signal_) < 1e-5


def test_a_seed_makes_it_reproducible_and_folds_may_be_cut():
    A, z = drawn("complex", 80, 10)
    y = np.abs(A @ z) ** 2
    model = PhaseRetriever(random_state=3)
    np.testing.assert_array_equal(model.fit(A, y).signal_, clone(model).fit(A, y).signal_)
    assert min(cross_val_score(model, *drawn_real(90, 10), cv=3)) > 0.999


def drawn_real(n, d):
    A, z = drawn("real", n, d)
    return A, (A @ z) ** 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda A, y: (A, -y), "80 of the 80 intensities in y are negative"),
        (lambda A, y: (A, np.sqrt(y) * np.where(np.arange(80) % 2, 1, -1)), "square amplitudes"),
        (lambda A, y: (A, y + 0j), "Complex data not supported in y"),
        (lambda A, y: (A, y[:-1]), "A has 80 rows, but y has 79 entries"),
        (lambda A, y: (np.where(np.arange(10) == 3, np.nan, A), y), "NaN"),
        (lambda A, y: (A[0], y), "Expected 2D array"),
        (lambda A, y: (A, y.reshape(2, 8, 5)), r"shape \(2, 8, 5\).*use y.ravel\(\)"),
        (lambda A, y: (A, None), "requires y to be passed"),
    ],
)
def test_bad_measurements_are_refused_in_a_sentence(change, words):
    A, z = drawn("complex", 80, 10)
    with pytest.raises(ValueError, match=words):
        fitted(*change(A, np.abs(A @ z) ** 2))


@pytest.mark.parametrize(
    "options", [{"n_starts": 0}, {"max_iter": 1.5}, {"tol": -1}, {"loss": "absolute"}]
)
def test_bad_options_are_refused_by_name(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        fitted(*drawn_real(40, 5), **options)


def test_vectors_of_another_length_are_refused():
    A, _ = masks(8, 4, np.random.default_rng(0))
    model = fitted(A, np.abs(A @ np.ones(64)) ** 2)
    with pytest.raises(ValueError, match="X has 63 features, but PhaseRetriever is expecting 64"):
        model.predict(aslinearoperator(np.ones((5, 63))))


@pytest.mark.parametrize(("kind", "needed"), [("real", 19), ("complex", 20)])
def test_too_few_measurements_are_counted_in_a_warning(kind, needed):
    A, z = drawn(kind, 15, 10)
    words = f"15 measurements do not determine a {kind} signal of 10 entries: at least {needed} "
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        with pytest.warns(UserWarning, match=words):
            model = fitted(A, np.abs(A @ z) ** 2, n_starts=1)
    assert model.status_ is Status.undetermined


def test_starts_that_do_not_agree_are_told():
    A, _ = drawn("complex", 60, 15)
    y = np.random.default_rng(0).exponential(size=60)  # of no signal
    with pytest.warns(ConvergenceWarning, match="ambiguous: No two starts.*`n_starts`"):
        model = fitted(A, y, n_starts=3)
    assert model.status_ is Status.ambiguous


def test_dependent_columns_give_the_smallest_signal():
    A, z = drawn("complex", 60, 8)
    with pytest.warns(UserWarning, match="9 columns of A are linearly dependent: they span 8"):
        model = fitted(np.hstack([A, A[:, :1]]), np.abs(A @ z) ** 2)
    assert model.signal_[0] == pytest.approx(model.signal_[8])
    assert signal_error(z[1:], model.signal_[1:8]) < 1e-8


def test_no_intensity_at_all_is_the_zero_signal():
    A, _ = drawn("complex", 40, 8)
    np.testing.assert_array_equal(fitted(A, np.zeros(40)).signal_, 0)


def test_an_interrupt_leaves_the_best_signal_so_far():
    A, z = drawn("complex", 100, 12)
    y = np.abs(A @ z) ** 2 + 0.1 * np.random.default_rng(0).standard_normal(100)
    first = fitted(aslinearoperator(A), y, n_starts=1).history_[-1].passes
    calls = []

    def forward(v):
        calls.append(v)
        if len(calls) > first / 2 + 50:  # half of the products are with A: in the second start
            raise KeyboardInterrupt
        return A @ v

    operator = LinearOperator(A.shape, forward, rmatvec=lambda u: A.conj().T @ u, dtype=complex)
    model = PhaseRetriever(random_state=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(operator, y)
    assert model.status_ is Status.interrupted
    assert signal_error(z, model.signal_) < 0.3


def test_errors_ignore_sign_and_phase_and_nothing_else():
    z = np.array([1 + 1j, 2, -3j])
    assert signal_error(z, np.exp(0.7j) * z) < 1e-15
    assert signal_error(z, 2 * z) == pytest.approx(1)
    np.testing.assert_allclose(align_phase(1j * z, z), z)
    with pytest.raises(ValueError, match="shape"):
        signal_error(z, z[:2])


def operator(matvec, rmatvec=None):
    return LinearOperator((80, 10), matvec=matvec, rmatvec=rmatvec, dtype=complex)


def test_an_operator_without_adjoint_or_with_a_wrong_one_is_refused_in_words():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(80, 10)) + 1j * rng.normal(size=(80, 10))
    y = abs(A @ rng.normal(size=10)) ** 2
    with pytest.raises(ValueError, match="needs both products"):
        PhaseRetriever().fit(operator(lambda z: A @ z), y)
    for wrong in (lambda u: A.T @ u, lambda u: A.T @ u.conj(), lambda u: (A.conj().T @ u).real):
        with pytest.raises(ValueError, match="not the conjugate transpose"):
            PhaseRetriever().fit(operator(lambda z: A @ z, wrong), y)
    with pytest.raises(ValueError, match="matvec returned NaN or infinity in 80 of 80 entries"):
        PhaseRetriever().fit(operator(lambda z: np.nan * (A @ z), lambda u: A.conj().T @ u), y)
    with pytest.raises(ValueError, match="take a vector of 10 entries and return one of 80"):
        PhaseRetriever().fit(operator(lambda z: A[:79] @ z, lambda u: A.conj().T @ u), y)
