"""Signals that cannot be trusted are said to be so, and gross errors and units do no harm."""

import warnings

import numpy as np
import pytest
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from quadlin import PhaseRetriever, Status
from quadlin.metrics import signal_error


def drawn(kind, n, d, seed=0):
    rng = np.random.default_rng(seed)
    A, z = rng.standard_normal((n, d)), rng.standard_normal(d)
    if kind == "complex":
        A, z = A + 1j * rng.standard_normal((n, d)), z + 1j * rng.standard_normal(d)
    return A, z, np.abs(A @ z) ** 2, rng


def fitted(A, y, weight=None, **options):
    return PhaseRetriever(**{"random_state": 0, **options}).fit(A, y, weight)


def silently(A, y, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return fitted(A, y, **options)


@pytest.mark.parametrize("kind", ["real", "complex"])
@pytest.mark.parametrize("unit", [1e-14, 1e-5, 1e4, 1e12])  # of the signal
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])  # of A
def test_units_do_not_matter_in_single_precision(kind, unit, size):
    A, z, y, _ = drawn(kind, 128, 32)
    single = (A * size).astype(np.complex64 if kind == "complex" else np.float32)
    y = (y * unit**2).astype(np.float32)
    for rows in (single, aslinearoperator(single)):
        model = silently(rows, y)
        # Rounding of y, 6e-8 each, and of products: a hundredfold margin.
        assert signal_error(z * (unit / size), model.signal_) < 1e-5
        assert model.signal_.dtype == single.dtype


def spoiled(y, share, value, rng):
    """Return y with some entries replaced, and which."""
    y, wrong = y.copy(), rng.choice(len(y), int(share * len(y)), replace=False)
    y[wrong] = value(y, wrong, rng)
    return y


GROSS_ERRORS = {
    "20% hot": ("real", 6, 0.2, lambda y, wrong, rng: 1000 * y.mean()),
    "20% a little hot": ("real", 6, 0.2, lambda y, wrong, rng: 3 * y.mean()),
    "5% hot": ("complex", 4, 0.05, lambda y, wrong, rng: 100 * y.mean()),
    "30% dead": ("real", 6, 0.3, lambda y, wrong, rng: 0.0),
    "20% dead": ("complex", 6, 0.2, lambda y, wrong, rng: 0.0),
    "20% exchanged": ("real", 6, 0.2, lambda y, wrong, rng: rng.permutation(y[wrong])),
}


@pytest.mark.parametrize("name", GROSS_ERRORS)
@pytest.mark.parametrize("seed", range(3))
def test_many_gross_errors_of_any_kind_are_left_out(name, seed):
    kind, multiple, share, value = GROSS_ERRORS[name]
    A, z, y, rng = drawn(kind, multiple * 48, 48, seed)
    model = silently(A, spoiled(y, share, value, rng), loss="huber")
    assert signal_error(z, model.signal_) < 1e-9
    assert model.history_[-1].passes < 3000  # it took 92,000 where it failed


def test_measurements_without_a_consistent_majority_are_told():
    for seed in range(4):
        A, _, y, rng = drawn("real", 240, 40, seed)
        y = spoiled(y, 0.7, lambda y, wrong, rng: rng.permutation(y[wrong]), rng)
        with pytest.warns(UserWarning, match="gross errors in too many measurements"):
            fitted(A, y, loss="huber", n_starts=3)


def test_many_rows_left_out_by_a_noisy_fit_are_told():
    A, z, y, rng = drawn("real", 400, 40)
    y = spoiled(
        y + 0.05 * y.mean() * rng.standard_normal(400), 0.35, lambda y, *_: 50.0 * y.mean(), rng
    )
    with pytest.warns(UserWarning, match="35% of the measurements do not fit the signal"):
        model = fitted(A, y, loss="huber")
    assert signal_error(z, model.signal_) < 0.05


@pytest.mark.parametrize("loss", ["squared", "huber"])
@pytest.mark.parametrize("kind", ["real", "complex"])
@pytest.mark.parametrize("seed", range(3))
def test_amplitudes_are_told_from_intensities_by_a_fit_of_their_squares(kind, loss, seed):
    A, z, y, _ = drawn(kind, 256, 64, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="y seems to hold amplitudes.*Square y first")
        with pytest.raises(UserWarning, match="seems to hold amplitudes"):
            fitted(A, np.sqrt(y), loss=loss)
    assert signal_error(z, silently(A, np.sqrt(y) ** 2, loss=loss).signal_) < 1e-9  # as advised


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_a_background_is_noticed_and_its_size_given(loss):
    A, z, y, _ = drawn("real", 256, 64)
    level = 0.5 * y.mean()
    with pytest.warns(UserWarning, match="a background of about.*Subtract") as told:
        biased = fitted(A, y + level, loss=loss)
    size = float(str(told[0].message).split("of about ")[1].split(", ")[0])
    assert size == pytest.approx(level, rel=0.05)
    # As advised, with the size that is given.
    assert signal_error(z, biased.signal_) > 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert signal_error(z, fitted(A, y + level - size, loss=loss).signal_) < 0.01


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_noise_alone_is_no_background_and_no_amplitudes(loss):
    for seed in range(4):
        A, _, y, rng = drawn("complex", 320, 40, seed)
        # A fifth of the mean intensity: 4% of their variance.
        silently(A, y + 0.2 * y.mean() * rng.standard_normal(320), loss=loss)


def test_noise_as_strong_as_the_intensities_is_accepted():
    A, z, y, rng = drawn("real", 3200, 32)
    y = y + np.sqrt(np.mean(y**2)) * rng.standard_normal(3200)  # 0 dB
    assert np.sum(y < 0) > 900
    with pytest.warns(UserWarning, match="The signal leaves 6.% of the variance of y unexplained"):
        model = fitted(A, y)
    # The bound is about σ·√(d/n)/(2·√3·|z|²) = 0.05; three times that.
    assert signal_error(z, model.signal_) < 0.15


def test_repeated_measurements_count_once():
    A, _, y, _ = drawn("complex", 15, 10)
    A = np.vstack([A, 2j * A, -A])  # multiples measure the same
    words = "The 45 rows hold 15 different vectors: 15 measurements do not determine"
    with pytest.warns(UserWarning, match=words):
        model = fitted(A, np.concatenate([y, 4 * y, y]))
    assert model.status_ is Status.undetermined


def test_entries_that_no_measurement_sees_are_told_of_an_operator_too():
    A, z, _, _ = drawn("complex", 80, 10)
    A[:, 3] = 0
    for rows in (A, aslinearoperator(A)):
        with pytest.warns(UserWarning, match="10 columns of A.*they span 9 dimensions"):
            model = fitted(rows, np.abs(A @ z) ** 2)
        assert abs(model.signal_[3]) < 1e-12


def test_functions_and_other_objects_are_refused_with_the_operator_to_use():
    class Masks:
        shape, dtype = (80, 10), complex

        def matvec(self, z):
            return z

    for rows in (Masks(), (np.fft.fft, np.fft.ifft), np.fft.fft):
        with pytest.raises(TypeError, match=r"scipy.sparse.linalg.LinearOperator\(shape"):
            fitted(rows, np.ones(80))


def test_an_operator_of_a_real_signal_may_have_any_phase_in_its_adjoint():
    A, _, _, _ = drawn("complex", 80, 10)
    z = np.arange(10.0)
    # The real part of Aᴴu is that of its conjugate: nothing is wrong for a real signal.
    rows = LinearOperator(
        A.shape, lambda v: A @ v, rmatvec=lambda u: (A.conj().T @ u).conj(), dtype=complex
    )
    assert signal_error(z, silently(rows, np.abs(A @ z) ** 2, real=True).signal_) < 1e-9


@pytest.mark.parametrize("loss", ["squared", "huber"])
@pytest.mark.parametrize("scale", [1e-320, 1e-100, 1e300])
def test_the_scale_of_weights_does_not_matter(scale, loss):
    A, _, y, rng = drawn("real", 120, 8)
    y = y + 0.1 * rng.standard_normal(120)
    weight = rng.integers(1, 4, size=120).astype(float)
    expected = fitted(A, y, weight, loss=loss).signal_
    actual = fitted(A, y, scale * weight, loss=loss).signal_
    # The smallest numbers of float64 have three digits.
    assert signal_error(expected, actual) < (1e-3 if scale < 1e-300 else 1e-6)
