"""Matrices from measurements with gross errors, and from repeated ones."""

import warnings

import numpy as np
import pandas as pd
import pytest

from quadlin import MatrixSensing, PhaseRetriever, Status


def symmetric(n, d, k, seed=0):
    rng = np.random.default_rng(seed)
    U, s = rng.standard_normal((d, k)), np.where(np.arange(k) % 2, -1.0, 1.0)
    A = rng.standard_normal((n, d))
    return A, ((A @ U) ** 2) @ s, (U * s) @ U.T, rng


def pairs(n, d, k, seed=0):
    rng = np.random.default_rng(seed)
    M = rng.standard_normal((d, k)) @ rng.standard_normal((k, d))
    A, B = rng.standard_normal((2, n, d))
    return (A, B), np.sum((A @ M) * B, axis=1), M, rng


def relative_error(model, M):
    return np.linalg.norm(model.matrix_ - M) / np.linalg.norm(M)


def silently(rows, y, rank="auto", **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return MatrixSensing(rank, random_state=0, **options).fit(rows, y)


@pytest.mark.parametrize("rank", [2, "auto"])
@pytest.mark.parametrize(("every", "size"), [(40, 100.0), (10, 100.0), (10, 3.0), (5, 1.0)])
def test_gross_errors_change_neither_a_symmetric_matrix_nor_its_rank(rank, every, size):
    A, y, M, _ = symmetric(200, 30, 2)
    y[::every] = size * y.std()
    model = silently(A, y, rank, loss="huber")
    assert model.rank_ == 2
    assert relative_error(model, M) < 1e-7


@pytest.mark.parametrize("share", [0.02, 0.05, 0.1])
@pytest.mark.parametrize("seed", range(3))
def test_gross_errors_change_neither_a_matrix_of_pairs_nor_its_rank(share, seed):
    rows, y, M, rng = pairs(304, 20, 2, seed)
    wrong = rng.choice(304, int(share * 304), replace=False)
    y[wrong] = 100 * y.std() * rng.choice([-1, 1], size=len(wrong))
    model = silently(rows, y, loss="huber")
    assert model.rank_ == 2
    assert relative_error(model, M) < 1e-9


@pytest.mark.parametrize("draw", [symmetric, pairs])
def test_measurements_without_a_consistent_majority_are_told(draw):
    rows, y, M, rng = draw(300, 20, 2)
    wrong = rng.choice(300, 180, replace=False)
    y[wrong] = rng.permutation(y[wrong])
    with pytest.warns(UserWarning, match="unexplained") as told:
        model = MatrixSensing(2, loss="huber", random_state=0).fit(rows, y)
    assert relative_error(model, M) > 0.1
    assert not any('loss="huber"' in str(warning.message) for warning in told)


def test_repeated_measurements_count_once():
    A, y, _, _ = symmetric(45, 20, 2, seed=2)
    rows = np.vstack([A, -2 * A] * 10)  # multiples measure the same
    with pytest.warns(UserWarning, match="The 900 rows hold 45 different vectors: 45 measurements"):
        model = MatrixSensing(2, random_state=0).fit(rows, np.tile(np.concatenate([y, 4 * y]), 10))
    assert model.status_ is Status.undetermined
    (A, B), y, _, _ = pairs(45, 12, 2)
    rows = np.vstack([A, A]), np.vstack([B, -B])
    with pytest.warns(UserWarning, match="The 90 rows hold 45 different vectors"):
        model = MatrixSensing(2, random_state=0).fit(rows, np.concatenate([y, -y]))
    assert model.status_ is Status.undetermined


@pytest.mark.parametrize("unit", [1e-14, 1e12])
def test_units_do_not_matter_in_single_precision(unit):
    (A, B), y, M, _ = pairs(200, 15, 2)
    rows = A.astype(np.float32), B.astype(np.float32)
    model = silently(rows, (y * unit).astype(np.float32), 2)
    assert relative_error(model, M * unit) < 1e-5  # rounding is 6e-8


def test_bad_rows_are_refused_in_words_for_measurements():
    A, y, _, _ = symmetric(45, 20, 2)
    with pytest.raises(ValueError, match="minimum of 2 is required by MatrixSensing"):
        MatrixSensing().fit(A[:1], y[:1])
    with pytest.raises(ValueError, match=r"use y.ravel\(\)"):
        MatrixSensing().fit(A, y.reshape(3, 3, 5))
    with pytest.raises(ValueError, match="leave those rows out of A and y") as refused:
        MatrixSensing().fit(np.where(A > 2, np.nan, A), y)
    assert "HistGradientBoosting" not in str(refused.value)


def test_what_holds_no_vectors_is_refused_with_what_to_give(tmp_path):
    A, y, _, _ = symmetric(45, 20, 2)
    for estimator in (MatrixSensing(), PhaseRetriever()):
        for path in ("rows.csv", tmp_path / "rows.csv"):
            with pytest.raises(TypeError, match=r"rows.csv.* is the name of a file.*np.load"):
                estimator.fit(path, y)
        with pytest.raises(ValueError, match="A has 20 rows, but y has 45 entries"):
            estimator.fit(A.T, y**2)
    with pytest.raises(ValueError, match=r"shape \(45, 20, 20\).*a tuple \(A, B\)"):
        MatrixSensing().fit(A[:, :, None] * A[:, None, :], y)


def test_causes_of_what_is_left_are_named_in_one_sentence():
    A, y, _, _ = symmetric(300, 10, 1)
    with pytest.warns(UserWarning, match=r"not positive \(psd=True\), an offset \(fit_intercept="):
        MatrixSensing(1, psd=True, random_state=0).fit(A, -y)
    with pytest.warns(UserWarning, match=r"psd=True\), or a linear part of y \(SecondOrderReg"):
        MatrixSensing(1, psd=True, fit_intercept=True, random_state=0).fit(A, -y)


@pytest.mark.parametrize("change", ["far", "extreme"])
def test_advice_for_tables_is_not_given_for_vectors_that_measure(change):
    A, _, _, rng = symmetric(200, 4, 1)
    u = rng.standard_normal(4)
    if change == "far":
        A[:, 0] += 6e5
    else:
        A[:2] *= 1e3
    assert relative_error(silently(A, (A @ u) ** 2), np.outer(u, u)) < 1e-4


@pytest.mark.parametrize("scale", [1e-320, 1e-100, 1e300])
@pytest.mark.parametrize("loss", ["squared", "huber"])
@pytest.mark.parametrize("draw", [symmetric, pairs])
def test_the_scale_of_weights_of_measurements_does_not_matter(draw, loss, scale):
    rows, y, _, rng = draw(300, 6, 2)
    y += 0.1 * rng.standard_normal(300)
    weight = rng.integers(1, 4, size=300).astype(float)
    model = MatrixSensing(2, loss=loss, random_state=0)
    expected = model.fit(rows, y, sample_weight=weight).matrix_
    # The smallest numbers of float64 have three digits.
    rtol = 1e-2 if scale < 1e-300 else 1e-6
    actual = model.fit(rows, y, sample_weight=scale * weight).matrix_
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_numbers_that_cannot_be_squared_are_refused(size):
    A, y, _, _ = symmetric(60, 4, 1)
    kind = "small" if size < 1 else "large"
    for rows in (A * size, (A * size, A), (A, A * size)):
        with pytest.raises(ValueError, match=f"The largest number in . is .*too {kind} to be sq"):
            MatrixSensing(1).fit(rows, y)
    with pytest.raises(ValueError, match=f"The largest number in A is .*too {kind} to be sq"):
        PhaseRetriever().fit(A * size, y)


@pytest.mark.parametrize("Estimator", [MatrixSensing, PhaseRetriever])
def test_measurements_that_are_text_or_too_large_are_refused(Estimator):
    A, y, _, _ = symmetric(60, 4, 1)
    with pytest.raises(ValueError, match="The targets are text"):
        Estimator().fit(A, y.astype(str))
    with pytest.raises(ValueError, match=r"The largest number in y is .*too large to be squared"):
        Estimator().fit(A, y * 1e200)


@pytest.mark.parametrize("Estimator", [MatrixSensing, PhaseRetriever])
def test_vectors_that_are_no_table_are_refused(Estimator):
    A, y, _, _ = symmetric(60, 4, 1)
    for rows in ({"a": A[:, 0]}, iter(A), np.rec.fromarrays(list(A.T))):
        with pytest.raises(TypeError, match=r"not a table|structured array"):
            Estimator().fit(rows, y)


@pytest.mark.parametrize("Estimator", [MatrixSensing, PhaseRetriever])
def test_frames_whose_columns_are_no_vectors_are_refused(Estimator):
    A, y, _, _ = symmetric(60, 4, 1)
    with pytest.raises(ValueError, match="Two columns are called 'a'"):
        Estimator().fit(pd.DataFrame(A, columns=list("abac")), y)
    with pytest.raises(ValueError, match="Column 'city' holds text"):
        Estimator().fit(pd.DataFrame(A, columns=list("abcd")).assign(city="Oslo"), y)
