"""Evidence against brute force: densities, finite differences and exact integrals."""

from math import log, pi

import numpy as np
import pytest
from scipy.special import gammaln, multigammaln
from scipy.stats import multivariate_normal

from quadlin.core.chunks import MemorySource
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.choose.penalties import maximised
from quadlin.solve.lowrank.design import Basis, Design
from quadlin.solve.lowrank.linear_model import (
    Gram,
    Kernel,
    _half_betas,
    _log_determinant,
    log_volume,
)
from quadlin.solve.lowrank.types import Options


def small_problem(n=12, sizes=(3, 4), seed=0):
    """Return centred columns in two groups, their unit penalties, and a target."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, sum(sizes)))
    y = A @ rng.standard_normal(sum(sizes)) + 0.5 * rng.standard_normal(n)
    unit = rng.uniform(0.5, 2, sum(sizes))
    return A - A.mean(axis=0), y - y.mean(), unit


def gram_of(A, y, unit, sizes=(3, 4)):
    return Gram(A.T @ A, A.T @ y, float(y @ y), len(y) - 1, sizes, unit)


def kernel_of(A, y, unit, sizes=(3, 4)):
    p = sizes[0]
    groups = [(A[:, :p], unit[:p]), (A[:, p:], unit[p:])]
    return Kernel(
        [(G / r) @ G.T for G, r in groups], y, np.full(len(y), 1 / len(y)), len(y) - 1, sizes
    )


@pytest.mark.parametrize("log_alpha", [(0.0, 0.0), (-2.0, 3.0), (4.0, -1.0)])
@pytest.mark.parametrize("form", [gram_of, kernel_of])
def test_the_evidence_is_the_density_of_the_contrasts_of_the_target(form, log_alpha):
    A, y, unit = small_problem()
    value = form(A, y, unit).at(np.array(log_alpha))
    prior = np.repeat(np.exp(log_alpha), (3, 4)) * unit  # σ² over the prior variance
    # Without the intercept n − 1 orthonormal contrasts of y remain, N(0, σ²(I + A R⁻¹ Aᵀ)).
    Q = np.linalg.svd(np.eye(12) - 1 / 12)[0][:, :-1]
    covariance = value.noise * (np.eye(11) + Q.T @ (A / prior) @ A.T @ Q)
    expected = multivariate_normal(np.zeros(11), covariance).logpdf(Q.T @ y)
    assert value.log_evidence == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("form", [gram_of, kernel_of])
def test_the_gradient_of_the_evidence_is_that_of_finite_differences(form):
    model, at, h = form(*small_problem()), np.array([0.3, -0.4]), 1e-5
    for g, gradient in enumerate(model.at(at).gradient):
        step = h * np.eye(2)[g]
        rise = model.at(at + step).log_evidence - model.at(at - step).log_evidence
        assert gradient == pytest.approx(rise / (2 * h), abs=1e-6)


@pytest.mark.parametrize("log_alpha", [(-8.0, -8.0), (-8.0, -11.0)])
def test_fewer_rows_than_parameters_do_not_tell_the_size_of_small_penalties(log_alpha):
    # S = αyᵀK⁻¹y and |A| = |K|α^(p − n).
    model = kernel_of(*small_problem(n=6))
    small, smaller = (model.at(np.array(log_alpha) - shift) for shift in (0.0, 6.0))
    assert small.log_evidence == pytest.approx(smaller.log_evidence, abs=0.01)
    assert small.noise > 100 * smaller.noise


def test_the_best_penalties_are_mackays_fixed_point():
    A, y, unit = small_problem(n=60)
    gram = gram_of(A, y, unit)
    best = maximised(gram, [(-3.0, -3.0), (0.0, 0.0)])
    alphas = np.exp(best.log_alpha)
    theta = gram.solved(alphas)[0]
    for part, alpha, determined in zip(
        (slice(3), slice(3, 7)), alphas, best.determined, strict=True
    ):
        size = float(unit[part] @ theta[part] ** 2)
        # The search ends at a slope of 0.2 in log α, of some 3 determined parameters.
        assert alpha == pytest.approx(best.noise * determined / size, rel=0.2)


def log_volume_of_draws(d, k, draws=200_000):
    """Return log c(d, k) from random eigenvalues: s² is gamma distributed."""
    rng = np.random.default_rng(0)
    s = np.sqrt(rng.gamma((d - k + 1) / 2, size=(draws, k))) * rng.choice([-1.0, 1.0], (draws, k))
    i, j = np.triu_indices(k, 1)
    over_s = np.log(np.mean(np.prod(np.abs(s[:, i] - s[:, j]), axis=1)))
    over_s += k * gammaln((d - k + 1) / 2) - gammaln(k + 1)
    p = d * k - k * (k - 1) / 2
    over_U = d * k / 2 * log(pi) - multigammaln(d / 2, k)
    return over_s + over_U + (p - k) / 2 * log(2) - p / 2 * log(pi)


@pytest.mark.parametrize(("d", "k"), [(2, 1), (7, 2), (10, 3), (30, 4), (31, 4)])
def test_the_volume_is_that_of_random_eigenvalues(d, k):
    # The products of at most six gaps vary by a factor of 3 or so: 0.7% for 200,000 draws.
    assert log_volume(d, k) == pytest.approx(log_volume_of_draws(d, k), abs=0.03)


@pytest.mark.parametrize("d", [4, 9, 24, 41])
def test_the_determinant_of_full_rank_is_exact(d):
    # All matrices are of rank d, whose volume is that of the one tangent space.
    a = (np.arange(d) + 1) / 2
    over_s = gammaln(a).sum() + _log_determinant(_half_betas(a[0], (d + 1) // 2, d // 2))
    over_U = d * d / 2 * log(pi) - multigammaln(d / 2, d)
    p = d * (d + 1) / 2
    assert over_s + over_U == pytest.approx(p / 2 * log(pi) - (p - d) / 2 * log(2), abs=1e-9)


def test_the_directions_of_a_basis_are_orthonormal_matrices():
    _, units = rows_and_units(np.random.default_rng(0).standard_normal((50, 5)), np.arange(50.0))
    basis = Basis.at(np.linalg.qr(np.random.default_rng(1).standard_normal((5, 2)))[0], units)
    # zᵀBz is linear in zzᵀ: its coefficients are read off at e_i and e_i + e_j.
    none = np.zeros(5, dtype=bool)
    diagonal = basis.quadratic(np.eye(5), none).T
    B = np.zeros((basis.size, 5, 5))
    for i in range(5):
        for j in range(5):
            pair = basis.quadratic((np.eye(5)[i] + np.eye(5)[j])[None, :], none)[:, 0]
            B[:, i, j] = diagonal[i] if i == j else (pair - diagonal[i] - diagonal[j]) / 2
    assert np.einsum("aij,bij->ab", B, B) == pytest.approx(np.eye(basis.size), abs=1e-12)


def rows_and_units(X, y, weight=None, **parts):
    rows = Rows.of(MemorySource(X, y, weight))
    moments = rows.reduce(survey)
    intercept, linear = parts.get("fit_intercept", True), parts.get("fit_linear", True)
    names = [str(j) for j in range(X.shape[1])]
    maker = UnitsMaker("auto", intercept, X.dtype, names, (), linear)
    return rows, maker(moments.features, moments.target)


PARTS = [(True, False), (False, True), (False, False)]


def evidence_by_singular_values(A, y, weight):
    """Return the evidence but for a constant, from the columns themselves: no sum of products."""
    left, values, _ = np.linalg.svd(A, full_matrices=False)
    t = left.T @ y
    S = y @ y - t @ t + np.sum(t**2 / (1 + values**2))
    return -weight / 2 * np.log(S) - np.log1p(values**2).sum() / 2


@pytest.mark.parametrize(("fit_linear", "fit_intercept"), PARTS)
def test_the_evidence_of_tied_parts_is_that_of_their_columns(fit_linear, fit_intercept):
    rng = np.random.default_rng(0)
    parts = {"fit_linear": fit_linear, "fit_intercept": fit_intercept}
    X = rng.standard_normal((40, 4)) + np.array([0, 1e2, 0, -1e2])
    y = X[:, 0] * X[:, 2] + rng.standard_normal(40)
    rows, units = rows_and_units(X, y, **parts)
    U, fixed = np.linalg.qr(rng.standard_normal((4, 2)))[0], np.zeros(4, dtype=bool)
    linear = Gram.of(rows, Design.at(U, units, Options(rank=2, **parts)))
    Z, nu, basis = (X - units.mean) * units.scale, units.nu, Basis.at(U, units)
    at_zero = basis.quadratic(nu[None, :], fixed)
    A = np.hstack([Z + nu, (basis.quadratic(Z, fixed) - at_zero).T])
    if not fit_linear:
        A = basis.quadratic(Z + nu, fixed).T
    target = (y - units.target.mean) * units.target.scale
    if fit_intercept:
        A, target = A - A.mean(axis=0), target - target.mean()
    differences = []
    for penalties in ([1.0, 2.0], [4.0, 9.0]):
        log_alpha = np.array(penalties[-len(linear.sizes) :])
        root = np.sqrt(np.repeat(np.exp(log_alpha), linear.sizes) * linear.unit)
        expected = evidence_by_singular_values(A / root, target, linear.weight)
        differences.append(linear.at(log_alpha).log_evidence - expected)
    assert differences[0] == pytest.approx(differences[1], abs=1e-3)
