"""Distributions of independent features: as they are sampled, and standardised.

A distribution is one function, ``draw(rng, n, d)``, that returns n rows of d features. The theorems
are about features of mean 0 and variance 1, so a `Law` knows its moments as numbers.
"""

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

Draw = Callable[[np.random.Generator, int, int], np.ndarray]
Q_NEAR = 0.2  # of the two-valued law that the "near" family approaches
TWO_VALUED = 0.05  # a law with a smaller τ has an M without diagonal
BLOCK = 20_000  # rows at a time
MEASURED_ROWS = 200_000  # from which the moments of a user's distribution are measured


@dataclass(frozen=True)
class Law:
    """A distribution of independent, identically distributed features."""

    sample: Draw  # (rng, n, d) → (n, d), as sampled
    mean: float
    sd: float
    kappa: float  # E z³ of the standardised feature z
    phi: float  # E z⁴
    words: str  # what x is, for titles

    @property
    def tau(self) -> float:
        """Return τ = φ − 1 − κ²."""
        return self.phi - 1 - self.kappa**2

    @property
    def p(self) -> float:
        """Return the p of Theorem 2, max(1, |κ|, |φ − 3|, |φ − 1|)."""
        return max(1.0, abs(self.kappa), abs(self.phi - 3), abs(self.phi - 1))

    @property
    def is_invertible(self) -> bool:
        """Tell whether the law has the moment invertible property (MIP)."""
        return self.tau >= TWO_VALUED

    def draw(self, rng: np.random.Generator, n: int, d: int) -> np.ndarray:
        """Return standardised rows."""
        return np.asarray((self.sample(rng, n, d) - self.mean) / self.sd)

    def blocks(self, rng: np.random.Generator, n: int, d: int) -> Iterator[np.ndarray]:
        """Yield standardised rows, some thousands at a time."""
        for start in range(0, n, BLOCK):
            yield self.draw(rng, min(BLOCK, n - start), d)


def law(name: str, parameter: float | None = None) -> Law:
    """Return a law by name, with its parameter if it has one.

    Examples
    --------
    >>> round(law("truncated", 0.1).kappa, 2)
    -1.5
    >>> law("bernoulli", 0.01).is_invertible
    False
    """
    if name not in LAWS:
        raise ValueError(f"There is no distribution {name!r}. Choose from: {', '.join(LAWS)}.")
    make, default = LAWS[name]
    if default is None:
        if parameter is not None:
            raise ValueError(f"The distribution {name!r} has no parameter.")
        return make()
    return make(default if parameter is None else parameter)


def law_name(name: str) -> str:
    """Return the name of a law as it is written in sentences.

    Examples
    --------
    >>> law_name("gaussian"), law_name("truncated")
    ('Gaussian', 'truncated')
    """
    return name.capitalize() if name in ("gaussian", "bernoulli") else name


def law_of(text: str) -> Law:
    """Return the law that a text names: ``gaussian``, ``truncated:0.1`` or a file, ``mine.py``.

    The file defines ``draw(rng, n, d)``; its moments are measured.
    """
    if text.endswith(".py"):
        return _measured(Path(text))
    name, _, parameter = text.partition(":")
    try:
        return law(name, float(parameter) if parameter else None)
    except ValueError as error:
        if "could not convert" not in str(error):
            raise
        raise ValueError(f"{parameter!r} in {text!r} is not a number.") from None


def load(path: Path, function: str) -> Any:
    """Return a user's file as a module, which must define `function`; explain errors."""
    if not path.is_file():
        raise ValueError(f"There is no file {str(path)!r}.")
    spec = importlib.util.spec_from_file_location(f"quadlin_laboratory_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{str(path)!r} cannot be imported: {error!r}.") from error
    if not callable(getattr(module, function, None)):
        raise ValueError(f"{str(path)!r} must define a function named {function!r}.")
    return module


def _measured(path: Path) -> Law:
    module = load(path, "draw")

    def sample(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
        try:
            X = np.asarray(module.draw(rng, n, d), dtype=float)
        except Exception as error:
            raise ValueError(f"draw() of {str(path)!r} failed: {error!r}.") from error
        if X.shape != (n, d) or not np.isfinite(X).all():
            raise ValueError(f"draw() of {str(path)!r} must return {n} × {d} finite numbers.")
        return X

    x = sample(np.random.default_rng(0), MEASURED_ROWS, 1)
    mean, sd = float(x.mean()), float(x.std())
    if sd == 0:
        raise ValueError(f"draw() of {str(path)!r} returns a constant.")
    z = (x - mean) / sd
    words = getattr(module, "NAME", path.stem)
    return Law(sample, mean, sd, float(np.mean(z**3)), float(np.mean(z**4)), f"x from {words}")


def _gaussian() -> Law:
    def sample(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
        return rng.standard_normal((n, d))

    return Law(sample, 0.0, 1.0, 0.0, 3.0, "x standard normal")


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

    def sample(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
        return np.minimum(rng.standard_normal((n, d)), a)

    words = f"x = min(x̂, {a:g}), x̂ standard normal"
    return Law(sample, mean, var**0.5, third / var**1.5, fourth / var**2, words)


def _bernoulli(q: float) -> Law:
    if not 0 < q < 1:
        raise ValueError(f"The probability of 'bernoulli' must be between 0 and 1, not {q:g}.")
    sd = (q * (1 - q)) ** 0.5
    kappa = (1 - 2 * q) / sd

    def sample(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
        return (rng.random((n, d)) < q).astype(float)

    words = f"x is 1 with probability {q:g}, else 0"
    return Law(sample, q, sd, kappa, kappa**2 + 1, words)


def _signs() -> Law:
    def sample(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
        return np.where(rng.random((n, d)) < 0.5, -1.0, 1.0)

    return Law(sample, 0.0, 1.0, 0.0, 1.0, "x is +1 or −1")


def _uniform() -> Law:
    def sample(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
        return rng.uniform(-1.0, 1.0, (n, d))

    return Law(sample, 0.0, 3**-0.5, 0.0, 1.8, "x uniform")


def _sparse(q: float) -> Law:
    """Gaussian with probability q, else 0: κ = 0 and φ = 3/q, which has no bound."""
    if not 0 < q <= 1:
        raise ValueError(f"The probability of 'sparse' must be in (0, 1], not {q:g}.")

    def sample(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
        gaussian = rng.standard_normal((n, d))
        return np.where(rng.random((n, d)) < q, gaussian, 0.0)

    words = f"x standard normal with probability {q:g}, else 0"
    return Law(sample, 0.0, q**0.5, 0.0, 3 / q, words)


def _near(tau: float) -> Law:
    """√(1−ε)·(two values) + √ε·(Gaussian), ε chosen for a given τ: 0 two-valued, 2 Gaussian.

    It is skewed, so a small τ confuses w with the diagonal of M instead of only blurring it.
    """
    two = _bernoulli(Q_NEAR)

    def moments(share: float) -> tuple[float, float]:
        rest = 1 - share
        return rest**1.5 * two.kappa, rest**2 * two.phi + 6 * share * rest + 3 * share**2

    def excess(share: float) -> float:
        kappa, phi = moments(share)
        return phi - 1 - kappa**2 - tau

    share = 1.0 if tau >= 2 else float(brentq(excess, 0.0, 1.0))

    def sample(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
        gaussian = rng.standard_normal((n, d))
        return np.asarray((1 - share) ** 0.5 * two.draw(rng, n, d) + share**0.5 * gaussian)

    return Law(sample, 0.0, 1.0, *moments(share), f"x nearly two-valued, τ = {tau:g}")


# By name: the function that makes the law, and the default of its parameter if it has one.
LAWS: dict[str, tuple[Callable[..., Law], float | None]] = {
    "gaussian": (_gaussian, None),
    "truncated": (_truncated, 0.0),
    "bernoulli": (_bernoulli, 0.1),
    "signs": (_signs, None),
    "uniform": (_uniform, None),
    "sparse": (_sparse, 0.2),
    "near": (_near, 2.0),
}


def coefficients(kappa: np.ndarray, phi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Solve the paper's 2×2 systems: G = (2κ/τ, 1 − 2/τ), H = ((φ−1)/τ, −κ/τ)."""
    tau = phi - 1 - kappa**2
    return np.array([2 * kappa / tau, 1 - 2 / tau]), np.array([(phi - 1) / tau, -kappa / tau])
