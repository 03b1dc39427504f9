"""Factorisations of small matrices, whichever way they are computed."""

import numpy as np
import pytest

from quadlin.core.arrays import qr


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["tall", "square", "graded", "nearly dependent", "with zeros"])
def test_qr_is_orthonormal_and_reproduces_its_matrix(kind, dtype):
    rng = np.random.default_rng(0)
    A = rng.standard_normal((12 if kind == "square" else 200, 12))
    if kind == "graded":
        A *= 10.0 ** -np.arange(12)
    if kind == "nearly dependent":  # a Gram matrix does not see the difference in float64
        A[:, 1] = A[:, 0] + 1e-9 * A[:, 1]
    if kind == "with zeros":
        A[:, 3] = 0
    A = A.astype(dtype)
    Q, R = qr(A)
    eps = np.finfo(dtype).eps
    assert Q.dtype == R.dtype == dtype
    np.testing.assert_allclose(Q.T @ Q, np.eye(12), atol=20 * eps)
    np.testing.assert_allclose(Q @ R, A, atol=20 * eps * np.abs(A).max(axis=0).max())
    np.testing.assert_array_equal(np.tril(R, -1), 0)
