"""A background in the measurements of a matrix: it is estimated, or noticed and named."""

import warnings

import numpy as np
import pytest
from scipy import sparse

from quadlin import MatrixSensing

VECTORS = {
    "gaussian": lambda rng, shape: rng.standard_normal(shape),
    "signs": lambda rng, shape: rng.choice([-1.0, 1.0], size=shape),
    "zeros and ones": lambda rng, shape: np.where(rng.uniform(size=shape) < 0.3, 1.0, 0.0),
}
FORMS = ["either sign", "positive", "pairs"]


def measurements(kind, form, noise, background, n=150, d=12, seed=0):
    """Return rows, y, M and the background, in units of the measurements' standard deviation."""
    rng = np.random.default_rng(seed)
    A, U = VECTORS[kind](rng, (n, d)), rng.standard_normal((d, 2))
    B, M = A, U * [1.0, 1.0 if form == "positive" else -1.0] @ U.T
    if form == "pairs":
        B, M = VECTORS[kind](rng, (n, 8)), U @ rng.standard_normal((2, 8))
    y = np.sum((A @ M) * B, axis=1)
    unit = y.std()
    y = y + noise * unit * rng.standard_normal(n) + background * unit
    return (A, B) if form == "pairs" else A, y, M, background * unit


def warnings_of(rows, y, **options):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        MatrixSensing(random_state=0, **options).fit(rows, y)
    return [str(warning.message) for warning in told]


@pytest.mark.parametrize("loss", ["squared", "huber"])
@pytest.mark.parametrize("rank", [2, "auto"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", VECTORS)
def test_a_background_is_estimated_with_the_matrix(kind, form, rank, loss):
    rows, y, M, background = measurements(kind, form, 0.0, 0.3)
    if loss == "huber":
        y[::30] += 100 * y.std()
    psd = form == "positive"
    model = MatrixSensing(rank, psd=psd, fit_intercept=True, loss=loss, random_state=0).fit(rows, y)
    assert model.rank_ == 2
    np.testing.assert_allclose(model.matrix_, M, atol=1e-5 * np.abs(M).max())
    assert model.intercept_ == pytest.approx(background, rel=1e-5)
    kept = np.arange(len(y)) % 30 > 0
    np.testing.assert_allclose(model.predict(rows)[kept], y[kept], atol=1e-4 * y.std())


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", VECTORS)
def test_a_background_is_noticed_and_its_absence_is_not(kind, form, noise):
    # c is some 30 standard errors with noise, and noise alone is beyond 4 in 6 of 100,000 fits.
    psd = form == "positive"
    rows, y, _, background = measurements(kind, form, noise, 0.3)
    told = [text for text in warnings_of(rows, y, psd=psd) if "background" in text]
    assert len(told) == 1
    assert "Use fit_intercept=True" in told[0]
    size = float(told[0].split("background of about ")[1].split(",")[0])
    assert size == pytest.approx(background, rel=0.2 if noise else 0.005)
    assert ("same length" in told[0]) == (kind == "signs" and form != "pairs")
    rows, y, _, _ = measurements(kind, form, noise, 0.0)
    assert not warnings_of(rows, y, psd=psd)


def test_every_form_of_rows_notices_a_background():
    A, y, _, _ = measurements("zeros and ones", "either sign", 0.1, 0.3)
    for rows in (sparse.csr_array(A), A.astype(np.float32)):
        assert any("background" in text for text in warnings_of(rows, y))
    weight = np.random.default_rng(0).uniform(0.5, 2, size=len(y))
    with pytest.warns(UserWarning, match="background"):
        MatrixSensing(random_state=0).fit(A, y, weight)


def test_vectors_of_one_length_measure_a_background_and_the_identity_alike():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((150, 10))
    A /= np.linalg.norm(A, axis=1, keepdims=True)
    u = rng.standard_normal(10)
    (text,) = warnings_of(A, (A @ u) ** 2 + 0.5)
    assert "same as 0.5 on each diagonal entry of M" in text


@pytest.mark.parametrize("kind", ["gaussian", "zeros and ones"])
def test_a_rank_that_is_too_low_is_no_background(kind):
    rng = np.random.default_rng(1)
    A, U = VECTORS[kind](rng, (300, 12)), rng.standard_normal((12, 5))
    told = warnings_of(A, np.sum((A @ U) ** 2, axis=1), rank=2)
    assert not any("background" in text for text in told)


def test_a_response_that_is_bent_is_no_background():
    A, y, _, _ = measurements("gaussian", "positive", 0.0, 0.0)
    told = warnings_of(A, np.tanh(1.5 * y / y.max()))
    assert not any("background" in text for text in told)


@pytest.mark.parametrize("loss", ["squared", "huber"])
@pytest.mark.parametrize("rank", [2, "auto"])
def test_a_constant_column_is_measured_as_any_other(rank, loss):
    rng = np.random.default_rng(0)
    A, U = np.column_stack([np.ones(200), rng.standard_normal((200, 8))]), rng.normal(size=(9, 2))
    M = U * [1.0, -1.0] @ U.T
    for rows in (A, sparse.csr_array(A)):
        model = MatrixSensing(rank, loss=loss, random_state=0).fit(
            rows, np.sum((A @ M) * A, axis=1)
        )
        np.testing.assert_allclose(model.matrix_, M, atol=1e-6)


def test_a_constant_column_measures_a_background():
    A, y, _, background = measurements("gaussian", "either sign", 0.0, 0.3)
    A = np.column_stack([np.ones(len(A)), A])
    assert not warnings_of(A, y)
    model = MatrixSensing(random_state=0).fit(A, y)
    assert model.matrix_[0, 0] == pytest.approx(background)
