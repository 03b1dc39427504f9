"""Problems for the measurements: features of exactly known moments, and fits watched step by step.

Features come standardised by their law (mean 0, variance 1), as the theorems have them, so that M
has the same size on every law and the moments κ, φ, τ are numbers, not estimates.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning

from quadlin.core.chunks import MemorySource
from quadlin.core.model import Model, to_raw
from quadlin.core.rows import Rows
from quadlin.core.standardise import UnitsMaker
from quadlin.core.survey import moments_of
from quadlin.core.units import Units
from quadlin.estimators.regressor import SecondOrderRegressor
from quadlin.solve.polish import fit_rows
from quadlin.solve.types import Options, Solution

Draw = Callable[[np.random.Generator, int, int], np.ndarray]
Q_NEAR = 0.2  # of the two-valued law that the "near" family approaches
TEST_ROWS = 2000


@dataclass(frozen=True)
class Law:
    """A distribution of independent features with mean 0 and variance 1."""

    draw: Draw  # (rng, n, d) → (n, d)
    kappa: float  # E z³
    phi: float  # E z⁴

    @property
    def tau(self) -> float:
        """Return τ = φ − 1 − κ²."""
        return self.phi - 1 - self.kappa**2


def law(name: str, parameter: float | None = None) -> Law:
    """Return a law by name: gaussian, truncated (min(x, a)), bernoulli (q) or near (τ)."""
    if name == "gaussian":
        return Law(lambda rng, n, d: rng.standard_normal((n, d)), 0.0, 3.0)
    if name == "truncated":
        return _truncated(0.0 if parameter is None else parameter)
    if name == "bernoulli":
        return _bernoulli(0.1 if parameter is None else parameter)
    if name == "near":
        return _near(2.0 if parameter is None else parameter)
    raise ValueError(f"{name!r} is not a law: gaussian, truncated, bernoulli or near.")


def _truncated(a: float) -> Law:
    below, density = float(norm.cdf(a)), float(norm.pdf(a))
    partial = [below, -density]  # ∫ gᵖ over g < a, by parts
    for p in (2, 3, 4):
        partial.append(-(a ** (p - 1)) * density + (p - 1) * partial[p - 2])
    raw = [partial[p] + a**p * (1 - below) for p in range(5)]
    mean = raw[1]
    var = raw[2] - mean**2
    third = raw[3] - 3 * mean * raw[2] + 2 * mean**3
    fourth = raw[4] - 4 * mean * raw[3] + 6 * mean**2 * raw[2] - 3 * mean**4

    def draw(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
        return np.asarray((np.minimum(rng.standard_normal((n, d)), a) - mean) / var**0.5)

    return Law(draw, third / var**1.5, fourth / var**2)


def _bernoulli(q: float) -> Law:
    sd = (q * (1 - q)) ** 0.5
    kappa = (1 - 2 * q) / sd

    def draw(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
        return np.asarray(((rng.uniform(size=(n, d)) < q) - q) / sd)

    return Law(draw, kappa, kappa**2 + 1)


def _near(tau: float) -> Law:
    """√(1−ε)·(two values) + √ε·(Gaussian) with ε such that τ is as asked: 0 two-valued, 2 Gaussian.

    Skewed, so that a small τ mixes up w and the diagonal of M, and not only blurs the diagonal.
    """
    two = _bernoulli(Q_NEAR)

    def moments(share: float) -> tuple[float, float]:
        rest = 1 - share
        return rest**1.5 * two.kappa, rest**2 * two.phi + 6 * share * rest + 3 * share**2

    def excess(share: float) -> float:
        kappa, phi = moments(share)
        return phi - 1 - kappa**2 - tau

    share = 1.0 if tau >= 2 else float(brentq(excess, 0.0, 1.0))

    def draw(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
        gaussian = rng.standard_normal((n, d))
        return np.asarray((1 - share) ** 0.5 * two.draw(rng, n, d) + share**0.5 * gaussian)

    return Law(draw, *moments(share))


def coefficients(kappa: np.ndarray, phi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Solve the paper's 2×2 systems: G = (2κ/τ, 1 − 2/τ), H = ((φ−1)/τ, −κ/τ)."""
    tau = phi - 1 - kappa**2
    return np.array([2 * kappa / tau, 1 - 2 / tau]), np.array([(phi - 1) / tau, -kappa / tau])


@dataclass(frozen=True)
class Truth:
    """y = 1 + zᵀw + zᵀMz, M = Q diag(s) Qᵀ of unit eigenvalues, less its diagonal if asked."""

    Q: np.ndarray  # (d, k), orthonormal
    s: np.ndarray  # (k,), ±1
    w: np.ndarray  # (d,)
    free: bool  # whether M keeps its diagonal

    @property
    def M(self) -> np.ndarray:
        """Return M, d×d: the problems measured here are small."""
        return _matrix(self.Q, self.s, np.full(len(self.w), self.free))

    def __call__(self, Z: np.ndarray) -> np.ndarray:
        """Return the noiseless targets of some rows."""
        f = 1.0 + Z @ self.w + ((Z @ self.Q) ** 2) @ self.s
        return np.asarray(f if self.free else f - (Z * Z) @ ((self.Q * self.Q) @ self.s))

    def error(self, fit: Any) -> float:
        """Return the paper's error ‖ŵ − w‖ + ‖M̂ − M‖₂ of anything with a fit's attributes."""
        M = _matrix(fit.components_.T, fit.eigenvalues_, fit.has_diagonal_)
        return float(np.linalg.norm(fit.coef_ - self.w) + np.linalg.norm(M - self.M, 2))


def _matrix(Q: np.ndarray, s: np.ndarray, has_diagonal: np.ndarray) -> np.ndarray:
    """Return Q diag(s) Qᵀ without the diagonal entries that are not modelled."""
    M = (Q * s) @ Q.T
    return np.asarray(M - np.diag(np.where(has_diagonal, 0.0, np.diag(M))))


def truth(rng: np.random.Generator, d: int, k: int, signed: bool, free: bool = True) -> Truth:
    """Draw a model as the paper does: Q orthonormal, w ~ N(0, I/d); signs alternate if signed."""
    Q = np.linalg.qr(rng.standard_normal((d, k)))[0]
    s = np.where(np.arange(k) % 2, -1.0, 1.0) if signed else np.ones(k)
    return Truth(Q, s, rng.standard_normal(d) / d**0.5, free)


@dataclass(frozen=True)
class Sample:
    """Rows to learn from and rows to be judged by; the latter without noise."""

    truth: Truth
    X: np.ndarray
    y: np.ndarray  # with noise
    X_test: np.ndarray
    y_test: np.ndarray

    def nmse(self, fit: Any) -> float:
        """Return the test error over the variance of the target."""
        return self.risk(fit) / float(np.var(self.y_test))

    def risk(self, fit: Any) -> float:
        """Return the mean squared error on the test rows."""
        return float(np.mean((fit.predict(self.X_test) - self.y_test) ** 2))


def sample(
    name: str,
    n: int,
    d: int,
    k: int,
    seed: int,
    *,
    signed: bool = True,
    noise: float = 0.0,
    parameter: float | None = None,
    n_test: int = TEST_ROWS,
) -> Sample:
    """Draw a problem; two-valued features have an M without diagonal, as the paper asks."""
    rng = np.random.default_rng(seed)
    own = truth(rng, d, k, signed, free=name != "bernoulli")
    Z = law(name, parameter).draw(rng, n + n_test, d)
    f = own(Z)
    y = f[:n] + noise * rng.standard_normal(n)
    return Sample(own, Z[:n], y, Z[n:], f[n:])


def fitted(X: np.ndarray, y: np.ndarray, rank: int, **options: Any) -> SecondOrderRegressor:
    """Fit without warnings: that a fit did not converge is what is being measured."""
    model = SecondOrderRegressor(rank=rank, random_state=0, **options)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    return model


@dataclass(frozen=True)
class Seen:
    """What a fit had reached after a step; it predicts as an estimator does."""

    passes: int
    loss: float  # mean squared error on the training rows
    intercept_: float
    coef_: np.ndarray
    components_: np.ndarray
    eigenvalues_: np.ndarray
    has_diagonal_: np.ndarray

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return b + xᵀw + xᵀMx."""
        A, s = self.components_, self.eigenvalues_
        left_out = np.where(self.has_diagonal_, 0.0, s @ A**2)
        f = self.intercept_ + X @ self.coef_ + ((X @ A.T) ** 2) @ s - (X * X) @ left_out
        return np.asarray(f)


def seen(model: Model, units: Units, passes: int, loss: float) -> Seen:
    """Say a model in the units of its rows."""
    raw = to_raw(model, units)
    parts = (raw.intercept, raw.coef, raw.components, raw.eigenvalues)
    return Seen(passes, loss, *parts, units.free > 0)


def units_for(X: np.ndarray, y: np.ndarray) -> Units:
    """Return the units an estimator would work in."""
    names = [f"x{j}" for j in range(X.shape[1])]
    return UnitsMaker("auto", True, X.dtype, names)(*moments_of(Rows.of(MemorySource(X, y))))


def watched(X: np.ndarray, y: np.ndarray, options: Options) -> list[Seen]:
    """Fit as an estimator does, and return what each step reached."""
    units, steps = units_for(X, y), []

    def note(solution: Solution) -> bool:
        last = solution.history[-1]
        steps.append(seen(solution.model, units, last.passes, last.loss))
        return False

    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        fit_rows(Rows.of(MemorySource(X, y)), units, options, float(len(y)), rng, None, note)
    return steps
