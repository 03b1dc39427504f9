"""Conjugate gradients and block Krylov spaces, beside what numpy says."""

import numpy as np

from quadlin.solve.lowrank.krylov import conjugate_gradients


def test_equations_of_any_size_are_solved():
    A = np.diag([1.0, 2.0, 5.0]) + 0.1
    for size in (1e-150, 1.0, 1e120):  # the square of |b|² is beyond all numbers
        b = size * np.array([1.0, -2.0, 0.5])
        x, met = conjugate_gradients(
            lambda v: A @ v, b, lambda u, v: float(u @ v), tol=1e-12, cap=10
        )
        assert met
        np.testing.assert_allclose(x, np.linalg.solve(A, b), rtol=1e-9)
