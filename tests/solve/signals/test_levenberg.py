"""Searches by products alone, against derivatives and dense least squares."""

import numpy as np
import pytest

from quadlin.core.rows import Walks
from quadlin.solve.signals.matrices import PairsProblem
from quadlin.solve.signals.phase import PhaseProblem
from quadlin.solve.signals.search import (
    Effort,
    LinearisedResidual,
    Majority,
    Problem,
    adjoint,
    conditioned,
    inner,
    least_squares,
)

RNG = np.random.default_rng(0)
REAL, COMPLEX = RNG.standard_normal((40, 6)), RNG.standard_normal((40, 6, 2)) @ [1, 1j]


def phases(A, real, loss="squared"):
    measure = conditioned(A, np.ones(40), real, np.random.default_rng(0))
    y = np.abs(A @ A[0].conj()) ** 2
    problem = PhaseProblem(y, np.ones(40), measure.walks, Majority(), measure, loss)
    return problem, measure.random(RNG)


def pairs(A, B):
    left, right = (conditioned(X, np.ones(40), True, np.random.default_rng(0)) for X in (A, B))
    Z = np.vstack([left.random(RNG, 2), right.random(RNG, 2)])
    y = A[:, 0] * B[:, 0]
    return PairsProblem(y, np.ones(40), left.walks, Majority(), left, right), Z


PROBLEMS = {
    "real phases": phases(REAL, True),
    "complex phases": phases(COMPLEX, False),
    "a real signal by complex vectors": phases(COMPLEX, True),
    "amplitudes": phases(COMPLEX, False, "amplitude"),
    "counts": phases(REAL, True, "poisson"),
    "pairs": pairs(REAL, RNG.standard_normal((40, 4))),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_derivatives_are_those_of_the_residual_and_adjoint_to_each_other(name):
    problem, z = PROBLEMS[name]
    h, u = RNG.permutation(z), RNG.standard_normal(40)
    near, step = problem.linearise(z), 1e-6
    ahead, behind = (problem.linearise(z + sign * step * h).residual for sign in (1, -1))
    np.testing.assert_allclose(near.forward(h), (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-7)
    assert near.forward(h) @ u == pytest.approx(inner(h, near.adjoint(u)))


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_loss_never_rises(name):
    problem, z = PROBLEMS[name]
    losses = [record.loss for record in least_squares(problem, z, Effort(1, 30, 1e-6)).history]
    assert len(losses) > 3
    assert all(np.diff(losses) < 0)


def test_a_linear_problem_is_solved_as_by_dense_least_squares():
    A, y, weight = COMPLEX, RNG.standard_normal(40), RNG.uniform(size=40)

    class Linear(Problem):  # the residual Re(Az) − y
        def linearise(self, z):
            return LinearisedResidual(
                (A @ z).real - y, lambda h: (A @ h).real, lambda u: np.asarray(adjoint(A, u))
            )

    problem = Linear(y, weight, Walks(), Majority())
    last = least_squares(problem, np.zeros(6, complex), Effort(1, 100, 1e-14))
    X = np.hstack([A.real, -A.imag]) * np.sqrt(weight)[:, None]
    dense = np.linalg.lstsq(X, y * np.sqrt(weight), rcond=None)[0]
    np.testing.assert_allclose(np.concatenate([last.z.real, last.z.imag]), dense, atol=1e-5)


def test_conditioned_columns_are_orthonormal_in_the_weights():
    weight = RNG.uniform(size=40)
    correlated = COMPLEX @ (np.eye(6) + np.ones((6, 6)))  # random rows are only scaled
    measure = conditioned(correlated, weight, False, RNG)
    AB = measure.forward(np.eye(6))
    np.testing.assert_allclose((AB.conj().T * weight) @ AB, np.eye(6), atol=1e-12)


def test_complex_rows_say_what_both_of_their_real_rows_say():
    # [Re a, −Im a] and [Im a, Re a] of the signal [Re z, Im z], with the same y.
    y = RNG.exponential(size=40)
    v = COMPLEX[1] + 0.5j * COMPLEX[2]
    rows = np.block([[COMPLEX.real, -COMPLEX.imag], [COMPLEX.imag, COMPLEX.real]])
    real = rows.T @ (np.tile(y, 2) * (rows @ np.concatenate([v.real, v.imag])))
    once = adjoint(COMPLEX, y * (COMPLEX @ v))
    np.testing.assert_allclose(np.concatenate([once.real, once.imag]), real)
