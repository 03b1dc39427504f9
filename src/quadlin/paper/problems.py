"""Known models and rows to learn them from: laws of features, truths and samples."""

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.signal import lfilter
from scipy.stats import norm

from quadlin.estimators.regressor import SecondOrderRegressor

Draw = Callable[[np.random.Generator, int, int], np.ndarray]
TWO_VALUED = 0.05  # a law with a smaller τ has an M without diagonal
BLOCK = 10_000  # rows drawn at a time
MEASURED_ROWS = 200_000  # from which the moments of a user's distribution are measured


@dataclass(frozen=True)
class Law:
    """A distribution of features, of which all have the same moments."""

    sample: Draw  # (rng, n, d) → (n, d), as sampled
    mean: float
    sd: float
    kappa: float  # E z³ of the standardised feature z
    phi: float  # E z⁴
    words: str  # what x is, for titles

    @classmethod
    def of(cls, sample: Draw, moments: Sequence[float], words: str) -> "Law":
        """Take E x, E x², E x³ and E x⁴ of the features as sampled."""
        m, m2, m3, m4 = moments
        var = m2 - m * m
        third = m3 - 3 * m * m2 + 2 * m**3
        fourth = m4 - 4 * m * m3 + 6 * m * m * m2 - 3 * m**4
        return cls(sample, m, var**0.5, third / var**1.5, fourth / var**2, words)

    @property
    def tau(self) -> float:
        """Return τ = φ − 1 − κ²."""
        return self.phi - 1 - self.kappa**2

    @property
    def is_invertible(self) -> bool:
        """Tell whether the law has the moment invertible property (MIP)."""
        return self.tau >= TWO_VALUED

    def draw(self, rng: np.random.Generator, n: int, d: int) -> np.ndarray:
        """Return standardised rows."""
        return np.asarray((self.sample(rng, n, d) - self.mean) / self.sd)


def law(text: str) -> Law:
    """Return the law that a text names: ``gaussian``, ``truncated:0.1``, or a file, ``mine.py``.

    The file defines ``draw(rng, n, d)``; its moments are measured.

    Examples
    --------
    >>> round(law("truncated:0.1").kappa, 2)
    -1.5
    >>> law("bernoulli:0.01").is_invertible
    False
    """
    if text.endswith(".py"):
        return _measured(Path(text))
    name, _, number = text.partition(":")
    if name not in LAWS:
        raise ValueError(f"There is no distribution {name!r}. Choose from: {', '.join(LAWS)}.")
    make, default = LAWS[name]
    if number and default is None:
        raise ValueError(f"The distribution {name!r} has no parameter.")
    try:
        return make(*([] if default is None else [float(number or default)]))
    except ValueError as error:
        raise ValueError(f"The distribution {text!r} is not valid: {error}.") from None


def load(path: Path, function: str) -> Any:
    """Return a user's file as a module, which must define `function`."""
    if not path.is_file():
        raise ValueError(f"There is no file {str(path)!r}.")
    spec = importlib.util.spec_from_file_location(f"quadlin_laboratory_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{str(path)!r} cannot be loaded: {error!r}.") from error
    if not callable(getattr(module, function, None)):
        raise ValueError(f"{str(path)!r} must define a function named {function!r}.")
    return module


def _measured(path: Path) -> Law:
    module = load(path, "draw")

    def sample(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
        X = np.asarray(module.draw(rng, n, d), dtype=float)
        if X.shape != (n, d) or not np.isfinite(X).all():
            raise ValueError(f"draw() of {str(path)!r} must return {n} × {d} finite numbers.")
        return X

    x = sample(np.random.default_rng(0), MEASURED_ROWS, 1)
    if x.std() == 0:
        raise ValueError(f"draw() of {str(path)!r} returns a constant.")
    moments = [float(np.mean(x**p)) for p in (1, 2, 3, 4)]
    return Law.of(sample, moments, f"x from {getattr(module, 'NAME', path.stem)}")


def _normal(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    return rng.standard_normal((n, d))


def _truncated(a: float) -> Law:
    below, density = float(norm.cdf(a)), float(norm.pdf(a))
    partial = [below, -density]  # ∫ gᵖ over g < a, by parts
    for p in (2, 3, 4):
        partial.append(-(a ** (p - 1)) * density + (p - 1) * partial[p - 2])
    moments = [partial[p] + a**p * (1 - below) for p in range(1, 5)]
    return Law.of(lambda *size: np.minimum(_normal(*size), a), moments, f"x = min(x̂, {a:g})")


def _two_valued(q: float) -> Law:
    if not 0 < q < 1:
        raise ValueError("the probability must be between 0 and 1")

    def sample(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
        return (rng.random((n, d)) < q).astype(float)

    return Law.of(sample, (q, q, q, q), f"x is 1 with probability {q:g}, else 0")


def _signs(zeros: float = 0.0) -> Law:
    def sample(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
        u = rng.random((n, d))
        return np.sign(np.where(u < zeros, 0.0, 2 * u - 1 - zeros))

    return Law.of(
        sample, (0, 1 - zeros, 0, 1 - zeros), "x is +1 or −1" + ", rarely 0" * (zeros > 0)
    )


def _sparse(q: float) -> Law:
    if not 0 < q <= 1:
        raise ValueError("the probability must be in (0, 1]")

    def sample(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
        return np.where(rng.random((n, d)) < q, _normal(rng, n, d), 0.0)

    return Law.of(sample, (0, q, 0, 3 * q), f"x standard normal with probability {q:g}, else 0")


def _near(tau: float) -> Law:
    """√(1−ε)·(two values) + √ε·(Gaussian), ε chosen for a given τ: 0 two-valued, 2 Gaussian.

    It is skewed, so a small τ confuses w with the diagonal of M instead of only blurring it.
    """
    two = _two_valued(0.2)

    def moments(share: float) -> tuple[float, float]:
        rest = 1 - share
        return rest**1.5 * two.kappa, rest**2 * two.phi + 6 * share * rest + 3 * share**2

    def excess(share: float) -> float:
        kappa, phi = moments(share)
        return phi - 1 - kappa**2 - tau

    share = 1.0 if tau >= 2 else float(brentq(excess, 0.0, 1.0))

    def sample(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
        mixed = (1 - share) ** 0.5 * two.draw(rng, n, d) + share**0.5 * _normal(rng, n, d)
        return np.asarray(mixed)

    return Law(sample, 0.0, 1.0, *moments(share), f"x nearly two-valued, τ = {tau:g}")


def _ar1(rho: float) -> Law:
    if not -1 < rho < 1:
        raise ValueError("the correlation must be between −1 and 1")

    def sample(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
        e = (1 - rho**2) ** 0.5 * _normal(rng, n, d)
        e[:, 0] /= (1 - rho**2) ** 0.5
        return np.asarray(lfilter([1.0], [1.0, -rho], e, axis=1))

    return Law.of(sample, (0, 1, 0, 3), f"x normal, correlation {rho:g} between neighbours")


# By name: the function that makes the law, and the default of its parameter if it has one.
LAWS: dict[str, tuple[Callable[..., Law], float | None]] = {
    "gaussian": (lambda: Law.of(_normal, (0, 1, 0, 3), "x standard normal"), None),
    "truncated": (_truncated, 0.0),
    "bernoulli": (_two_valued, 0.1),
    "signs": (_signs, None),
    "uniform": (
        lambda: Law.of(lambda r, n, d: r.uniform(-1, 1, (n, d)), (0, 1 / 3, 0, 1 / 5), "x uniform"),
        None,
    ),
    "exponential": (
        lambda: Law.of(lambda r, n, d: r.exponential(size=(n, d)), (1, 2, 6, 24), "x exponential"),
        None,
    ),
    "sparse": (_sparse, 0.2),
    "ar1": (_ar1, 0.9),
    "near": (_near, 2.0),
    "zeros": (lambda tau: _signs(tau / (1 + tau)), 0.1),  # φ = 1/(1 − share), so τ as given
}


def law_name(text: str) -> str:
    """Return the name of a law as it is written in sentences.

    Examples
    --------
    >>> law_name("bernoulli:0.1"), law_name("truncated:0")
    ('Bernoulli', 'truncated')
    """
    name = text.partition(":")[0]
    return name.capitalize() if name in ("gaussian", "bernoulli") else name


@dataclass(frozen=True)
class Truth:
    r""":math:`y = b + x^\top w + x^\top M x`, :math:`M = Q\,\mathrm{diag}(s)\,Q^\top + T`.

    If the diagonal is not modelled, it is left out of M. T is a small tail that no rank-k model
    explains; it is zero in most studies.
    """

    Q: np.ndarray  # (d, k), orthonormal columns
    s: np.ndarray  # (k,)
    w: np.ndarray  # (d,)
    has_diagonal: bool = True
    b: float = 0.0
    tail: np.ndarray | None = field(default=None, repr=False)  # (d, d), symmetric

    @property
    def M(self) -> np.ndarray:
        """Return M, d×d."""
        M = matrix(self.Q, self.s, np.full(len(self.w), self.has_diagonal))
        return M if self.tail is None else M + self.tail

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Return the noiseless targets of some rows in float64."""
        products = (X @ np.column_stack([self.Q, self.w]).astype(X.dtype)).astype(np.float64)
        f = self.b + products[:, -1] + (products[:, :-1] ** 2) @ self.s
        if not self.has_diagonal:
            f -= (X * X) @ ((self.Q * self.Q) @ self.s).astype(X.dtype)
        if self.tail is not None:
            f += np.sum((X @ self.tail) * X, axis=1)
        return np.asarray(f)


def matrix(Q: np.ndarray, s: np.ndarray, has_diagonal: np.ndarray) -> np.ndarray:
    """Return Q diag(s) Qᵀ without the diagonal entries that are not modelled."""
    M = (Q * s) @ Q.T
    return np.asarray(M - np.diag(np.where(has_diagonal, 0.0, np.diag(M))))


def random_truth(
    rng: np.random.Generator,
    d: int,
    k: int,
    signed: bool = False,
    has_diagonal: bool = True,
    b: float = 0.0,
    ratio: float = 1.0,
    coherent: bool = False,
) -> Truth:
    """Draw a model as the paper does: Q orthonormal, w ~ N(0, I/d), eigenvalues 1.

    With a `ratio` of σ₁/σ_k the eigenvalues fall geometrically from 1; if `signed`, their signs
    alternate. If `coherent`, Q is the first k unit vectors.
    """
    Q = np.linalg.qr(rng.standard_normal((d, k)))[0]
    s = np.geomspace(1.0, 1 / ratio, k)
    if signed:
        s = s * np.where(np.arange(k) % 2, -1.0, 1.0)
    Q = np.eye(d)[:, :k] if coherent else Q
    return Truth(Q, s, rng.standard_normal(d) / d**0.5, has_diagonal, b)


TEST_ROWS = 5000


@dataclass(frozen=True)
class Sample:
    """Rows to learn from, and new rows without noise to evaluate a fit."""

    truth: Truth
    X: np.ndarray
    y: np.ndarray  # with noise
    X_test: np.ndarray
    y_test: np.ndarray  # without noise

    def nmse(self, fit: Any) -> float:
        """Return the test error divided by the variance of the target."""
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
    noise: float = 0.0,
    n_test: int = TEST_ROWS,
    tail: float = 0.0,
    standardised: bool = True,
    dtype: type = np.float64,
    b: float = 1.0,
    **truth: Any,
) -> Sample:
    """Draw a problem; by default M has no diagonal for two-valued features.

    A `tail` is the spectral norm of a symmetric matrix that is added, orthogonal to the low rank.
    """
    features = law(name)
    first, *seeds = np.random.SeedSequence(seed).spawn(1 + -(-(n + n_test) // BLOCK))
    rng = np.random.default_rng(first)
    # Laws near the two-valued one study small τ.
    truth.setdefault("has_diagonal", name.startswith(("near", "zeros")) or features.is_invertible)
    model = random_truth(rng, d, k, b=b, **truth)
    if tail:
        away = np.eye(d) - model.Q @ model.Q.T
        T = rng.standard_normal((d, d))
        T = away @ (T + T.T) @ away
        model = replace(model, tail=tail * T / np.linalg.norm(T, 2))
    X: np.ndarray = np.empty((n + n_test, d), dtype)
    f = np.empty(n + n_test)
    e = rng.standard_normal(n)
    draw = features.draw if standardised else features.sample
    for number, block_seed in enumerate(seeds):
        part = slice(number * BLOCK, min((number + 1) * BLOCK, n + n_test))
        X[part] = draw(np.random.default_rng(block_seed), part.stop - part.start, d)
        f[part] = model(X[part])
    return Sample(model, X[:n], f[:n] + noise * e, X[n:], f[n:])


def fitted(
    X: np.ndarray, y: np.ndarray, rank: int, stream: bool = False, **options: Any
) -> SecondOrderRegressor:
    """Fit least squares, or one pass of `partial_fit`, without warnings: convergence is measured.

    Predictions are those of the model, with no limits: clipped ones would hide an exact fit.
    """
    free: dict[str, Any] = {"alpha": 0.0, "extrapolation": "free", "random_state": 0}
    model = SecondOrderRegressor(rank=rank, **free, **options)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return model.partial_fit(X, y) if stream else model.fit(X, y)
