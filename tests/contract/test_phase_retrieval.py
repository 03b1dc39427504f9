"""Signals from intensities: recovered exactly without noise, and honestly reported otherwise."""

import warnings

import numpy as np
import pytest
from scipy import fft, sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from quadlin import PhaseRetriever, Status
from quadlin.metrics import align_phase, signal_error

KINDS = ("real", "complex")


def measurements(kind, n, d, seed=0):
    """Return Gaussian vectors whose entries have variance 1, and a signal of norm 1."""
    rng = np.random.default_rng(seed)
    A, z = rng.standard_normal((n, d)), rng.standard_normal(d)
    if kind == "complex":
        A = (A + 1j * rng.standard_normal((n, d))) / np.sqrt(2)
        z = z + 1j * rng.standard_normal(d)
    return A, z / np.linalg.norm(z)


def recover(A, y, weight=None, **options):
    return PhaseRetriever(**{"random_state": 0, **options}).fit(A, y, weight)


@pytest.mark.smoke
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_four_measurements_per_entry_recover_the_signal(kind, seed):
    A, z = measurements(kind, 120, 30, seed)
    model = recover(A, np.abs(A @ z) ** 2)
    assert signal_error(z, model.signal_) < 1e-8
    assert model.status_ is Status.converged
    assert np.iscomplexobj(model.signal_) == (kind == "complex")
    new, _ = measurements(kind, 50, 30, 100 + seed)
    np.testing.assert_allclose(model.predict(new), np.abs(new @ z) ** 2, atol=1e-8)


@pytest.mark.parametrize(
    ("kind", "n", "least"),
    [
        ("real", 3 * 96, 8),
        ("complex", 3 * 96, 8),
        ("real", 2 * 96, 6),
        ("real", 168, 5),  # 1.75 per entry
    ],
)
def test_fewer_measurements_recover_most_signals(kind, n, least):
    found = 0
    for seed in range(10):
        A, z = measurements(kind, n, 96, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it was not found, or is not sure
            found += signal_error(z, recover(A, np.abs(A @ z) ** 2).signal_) < 1e-6
    assert found >= least


def cramer_rao(A, z, noise):
    """Return the bound of the root mean square error: σ·√tr (JᵀJ)⁺, J the derivative of |Az|²."""
    J = 2 * (A @ z).conj()[:, None] * A
    J = np.hstack([J.real, -J.imag]) if np.iscomplexobj(A) else J
    return noise * np.sqrt(np.sum(1 / np.linalg.eigvalsh(J.T @ J)[np.iscomplexobj(A) :]))


@pytest.mark.parametrize("kind", KINDS)
def test_noise_costs_what_it_must(kind):
    ratios = []
    for seed in range(5):
        A, z = measurements(kind, 300, 15, seed)
        y = np.abs(A @ z) ** 2 + 0.1 * np.random.default_rng(seed).standard_normal(300)
        assert np.min(y) < 0  # by noise, and accepted
        ratios.append(signal_error(z, recover(A, y).signal_) / cramer_rao(A, z, 0.1))
    # The mean of five squared ratios of 15 directions is within 1 ± 3·√(2/75).
    assert np.sqrt(np.mean(np.square(ratios))) < 1.3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", ["amplitude", "poisson"])
def test_a_loss_for_the_noise_has_a_smaller_error(kind, loss):
    gains = []
    for seed in range(5):
        A, z = measurements(kind, 240, 30, seed)
        rng, size = np.random.default_rng(seed), np.abs(A @ (3 * z))
        noisy = (size * (1 + 0.1 * rng.standard_normal(240))) ** 2
        y = noisy if loss == "amplitude" else rng.poisson(size**2)
        errors = [
            signal_error(z, recover(A, y, loss=name).signal_ / 3) for name in ("squared", loss)
        ]
        gains.append(errors[1] / errors[0])
    assert np.median(gains) < 0.85


@pytest.mark.parametrize("loss", ["amplitude", "poisson"])
def test_without_noise_every_loss_has_the_same_optimum(loss):
    A, z = measurements("complex", 120, 30)
    model = recover(A, np.abs(A @ z) ** 2, loss=loss)
    assert signal_error(z, model.signal_) < 1e-8
    assert model.status_ is Status.converged


@pytest.mark.parametrize("kind", KINDS)
def test_gross_errors_have_no_pull_with_hubers_loss(kind):
    A, z = measurements(kind, 160, 20)
    y = np.abs(A @ z) ** 2
    y[::20] += 1000
    assert signal_error(z, recover(A, y, loss="huber").signal_) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_weights_equal_repetition(kind):
    A, z = measurements(kind, 100, 8)
    rng = np.random.default_rng(0)
    y = np.abs(A @ z) ** 2 + 0.05 * rng.standard_normal(100)
    weight = rng.integers(0, 3, size=100)
    chosen = np.repeat(np.arange(100), weight)
    one = recover(A, y, weight, tol=1e-12).signal_
    other = recover(A[chosen], y[chosen], tol=1e-12).signal_
    assert signal_error(one, other) < 1e-5


def test_correlated_columns_are_as_easy():
    A, z = measurements("complex", 80, 20)
    mix = np.random.default_rng(1).standard_normal((20, 20)) * np.logspace(0, 3, 20)
    model = recover(A @ mix, np.abs(A @ mix @ z) ** 2)
    assert signal_error(z, model.signal_) < 1e-6


@pytest.mark.parametrize("form", [sparse.csr_array, aslinearoperator, np.complex64])
def test_every_form_of_the_vectors_gives_the_same_signal(form):
    A, z = measurements("complex", 100, 12)
    model = recover(form(A), np.abs(A @ z) ** 2)
    single = form is np.complex64
    assert signal_error(z, model.signal_) < (1e-5 if single else 1e-8)
    assert model.signal_.dtype == (np.complex64 if single else np.complex128)


def masks(side, count, rng):
    """Return the Fourier transforms of a masked picture as an operator."""
    M = rng.choice([1, -1, 1j, -1j], size=(count, side, side))

    def forward(v):
        return fft.fft2(M * v.reshape(side, side), norm="ortho").ravel()

    def adjoint(u):
        return np.sum(M.conj() * fft.ifft2(u.reshape(M.shape), norm="ortho"), axis=0).ravel()

    return LinearOperator((M.size, side * side), matvec=forward, rmatvec=adjoint, dtype=complex)


@pytest.mark.parametrize(("count", "real"), [(6, False), (2, True)])
def test_a_picture_is_recovered_from_coded_diffraction(count, real):
    rng = np.random.default_rng(0)
    picture = rng.uniform(size=256)
    A = masks(16, count, rng)
    model = recover(A, np.abs(A @ picture) ** 2, real=real)
    assert signal_error(picture, model.signal_) < 1e-8
    assert np.iscomplexobj(model.signal_) != real


@pytest.mark.parametrize("kind", KINDS)
def test_too_few_measurements_are_reported(kind):
    A, z = measurements(kind, 15, 10)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = recover(A, np.abs(A @ z) ** 2, n_starts=1)
    assert any("15" in str(w.message) and "10" in str(w.message) for w in caught)
    assert model.status_ is Status.undetermined


def test_rows_that_are_multiples_of_each_other_count_once():
    A, z = measurements("real", 12, 10)
    rows = np.vstack([A, -A, 2 * A])
    with pytest.warns(UserWarning, match="12"):
        model = recover(rows, (rows @ z) ** 2)
    assert model.status_ is Status.undetermined


@pytest.mark.parametrize("fault", ["amplitude", "background"])
def test_amplitudes_and_a_background_are_reported(fault):
    A, z = measurements("complex", 160, 20)
    amplitude = np.abs(A @ z)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recover(A, amplitude if fault == "amplitude" else amplitude**2 + 3)
    assert any(fault in str(warning.message) for warning in caught)


BAD = {
    "negative": (lambda A, y: (A, -y), "negative"),
    "lengths": (lambda A, y: (A, y[:-1]), "79"),
    "not a number": (lambda A, y: (np.where(np.arange(10) == 3, np.nan, A), y), "NaN"),
}


@pytest.mark.smoke
@pytest.mark.parametrize("case", BAD)
def test_bad_measurements_raise_an_error(case):
    change, words = BAD[case]
    A, z = measurements("complex", 80, 10)
    with pytest.raises(ValueError, match=words):
        recover(*change(A, np.abs(A @ z) ** 2))


@pytest.mark.parametrize(
    "options", [{"n_starts": 0}, {"max_iter": 1.5}, {"tol": -1}, {"loss": "absolute"}]
)
def test_bad_parameters_are_named(options):
    A, z = measurements("real", 40, 5)
    with pytest.raises(ValueError, match=next(iter(options))):
        recover(A, (A @ z) ** 2, **options)


def test_operators_need_an_adjoint_that_is_theirs():
    A, z = measurements("complex", 80, 10)
    y = np.abs(A @ z) ** 2
    products = {"matvec": lambda v: A @ v, "rmatvec": lambda u: A.T @ u}  # not conjugated
    with pytest.raises(ValueError, match=r"rmatvec|transpose|adjoint"):
        recover(LinearOperator((80, 10), **products, dtype=complex), y)
    with pytest.raises(ValueError, match="rmatvec"):
        recover(LinearOperator((80, 10), matvec=lambda v: A @ v, dtype=complex), y)


def test_errors_ignore_sign_and_phase_and_nothing_else():
    z = np.array([1 + 1j, 2, -3j])
    assert signal_error(z, np.exp(0.7j) * z) < 1e-12
    assert signal_error(z, 2 * z) == pytest.approx(1)
    np.testing.assert_allclose(align_phase(1j * z, z), z)
    with pytest.raises(ValueError, match=r"\(3,\)"):
        signal_error(z, z[:2])
