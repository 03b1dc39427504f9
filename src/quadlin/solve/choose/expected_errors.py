r"""An estimate of the errors of left-out rows, without a pass over them.

They are :math:`e_i = r_i/(1 - h_i)`, and :math:`e_i^2` is about :math:`\sigma^2/(1 - h_i)`, whose
mean is smallest if all leverages h are equal. So, except by chance, the errors of left-out rows are
at least those with the mean leverage (generalised cross-validation),

.. math:: \frac{1}{n} \sum_i \omega_i r_i^2 \Big/ \Big(1 - \frac{1}{n} \sum_i h_i\Big)^2

which follow from the products of columns. Multiples f of the ridge need the eigenvalues of
:math:`B = R^{-1/2} \Phi^\top \Omega \Phi R^{-1/2}`, and only the products of its eigenvectors with
:math:`b = R^{-1/2} \Phi^\top \Omega y`. A tridiagonal T that is similar to B, with b as its first
axis, gives both, for a quarter of the work that eigenvectors take.
"""

from collections.abc import Sequence

import numpy as np
from scipy.linalg import eigvalsh_tridiagonal, solveh_banded
from scipy.linalg.lapack import dsytrd, dsytrd_lwork

from quadlin.core.engine import one_blas_thread
from quadlin.solve.lowrank.evidence import Evidence, RowKernel, Value
from quadlin.solve.lowrank.exact import Alpha
from quadlin.solve.lowrank.tangent_gram import TangentGram

LARGEST_LEVERAGE = 1 - 1e-9  # a row that alone determines a parameter has an unbounded error
SMALLEST_RIDGE = 1e-12  # of the weight: a smaller ridge does not matter, but rounding of A / R does


def ridge_of(gram: TangentGram, alpha: Alpha, weight: float) -> np.ndarray:
    """Return the ridge of each parameter except the intercept."""
    ridge = gram.penalty(alpha)[int(gram.options.fit_intercept) :]
    return np.asarray(np.maximum(ridge, SMALLEST_RIDGE * weight))


def expected_error(at: Evidence | Value, weight: float, intercept: bool | int) -> float | None:
    """Return the expected e² at some penalties; None if it cannot be computed."""
    if at.squares is None:
        return None
    return float(_expected(at.squares, float(at.determined.sum()) + intercept, weight))


def expected_errors(
    gram: TangentGram | RowKernel, alpha: Alpha, weight: float, factors: Sequence[float]
) -> np.ndarray:
    """Return the expected e² for each multiple of the penalties: no pass, O(p³) or O(n³)."""
    times = np.asarray(factors, dtype=float)
    intercept = isinstance(gram, RowKernel) or gram.options.fit_intercept
    linear = gram if isinstance(gram, RowKernel) else gram.centred(weight)
    if len(factors) == 1 and linear.sizes[0]:  # one inverse takes less
        with one_blas_thread():
            at = linear.at(np.log(np.asarray(alpha[-len(linear.sizes) :]) * factors[0]))
        if at.squares is not None:
            return np.array([expected_error(at, weight, intercept)])
    if isinstance(linear, RowKernel):
        values, solved = _resolved(linear.summed(alpha), linear.y, times)
        residual = np.array([f * f * (x @ x) for f, x in zip(times, solved, strict=True)])
    else:
        assert isinstance(gram, TangentGram)
        root = 1 / np.sqrt(ridge_of(gram, alpha, weight))
        b = root * linear.right
        values, solved = _resolved(root[:, None] * linear.products * root, b, times)
        gain = np.linalg.norm(b) * np.array([x[:1].sum() for x in solved])  # bᵀ(B + f)⁻¹b
        residual = linear.power - gain - times * np.array([x @ x for x in solved])
    determined = np.sum(values[:, None] / (values[:, None] + times), axis=0) + intercept
    return np.asarray(_expected(residual, determined, weight))


def _resolved(
    B: np.ndarray, b: np.ndarray, factors: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the eigenvalues of B, and (B + f)⁻¹b for each f, in axes whose first is b."""
    if not len(b):
        return b, [b for _ in factors]
    with one_blas_thread():
        diagonal, off_diagonal = _tridiagonal(B, b)
        values = eigvalsh_tridiagonal(diagonal, off_diagonal)
    diagonal = diagonal + 2 * max(0.0, -float(values.min()))  # rounding leaves none below zero
    values = np.maximum(values, 0.0)
    band, first = np.zeros((2, len(b))), np.linalg.norm(b) * np.eye(len(b), 1)[:, 0]
    band[1, :-1], solved = off_diagonal, []
    for factor in factors:
        band[0] = diagonal + factor
        solved.append(solveh_banded(band, first, lower=True, check_finite=False))
    return values, solved


def _expected(
    squares: np.ndarray | float, determined: np.ndarray | float, weight: float
) -> np.ndarray:
    freedom = np.maximum(1 - determined / weight, 1 - LARGEST_LEVERAGE)
    return np.asarray(np.maximum(squares, 0.0) / weight / freedom**2)


def _tridiagonal(B: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the diagonal of QᵀBQ and its subdiagonal, with b along the first column of Q."""
    sign = 1.0 if b[0] >= 0 else -1.0
    mirror = b.copy()
    mirror[0] += sign * float(np.linalg.norm(b))  # Householder: b becomes −sign|b|e₁
    length = float(mirror @ mirror)
    if length > 0:
        along = B @ mirror * (2 / length)
        along -= mirror * (float(mirror @ along) / length)
        B = B - np.outer(along, mirror) - np.outer(mirror, along)
    if len(b) == 1:
        return np.diag(B).copy(), np.zeros(0)
    work = int(dsytrd_lwork(len(b), lower=1)[0])
    _, diagonal, off_diagonal, *_ = dsytrd(B, lower=1, lwork=work)
    return diagonal, off_diagonal
