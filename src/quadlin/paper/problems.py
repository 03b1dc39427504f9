"""Problems for the measurements: a known model, and rows from it, standardised or as sampled."""

import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from quadlin.estimators.regression.regressor import SecondOrderRegressor
from quadlin.paper.laws import Law, law


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

    def error(self, fit: Any) -> float:
        """Return the paper's error ‖ŵ − w‖ + ‖M̂ − M‖₂ of a model of a step."""
        return float(np.linalg.norm(fit.coef - self.w) + np.linalg.norm(fit.M - self.M, 2))


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
    eigenvalues: Sequence[float] | None = None,
) -> Truth:
    """Draw a model as the paper does: Q orthonormal, w ~ N(0, I/d), eigenvalues 1.

    If signed, the signs of the eigenvalues alternate.
    """
    Q = np.linalg.qr(rng.standard_normal((d, k)))[0]
    s = np.ones(k) if eigenvalues is None else np.asarray(eigenvalues, dtype=float)
    if signed:
        s = s * np.where(np.arange(k) % 2, -1.0, 1.0)
    return Truth(Q, s, rng.standard_normal(d) / d**0.5, has_diagonal, b)


TEST_ROWS = 2000
INTERCEPT = 1.0
PIECES = 20  # that a stream is cut into
BLOCKS = 64  # of a table, drawn at the same time


@dataclass(frozen=True)
class Sample:
    """Rows to learn from, and rows without noise to evaluate a fit."""

    truth: Truth
    X: np.ndarray
    y: np.ndarray  # with noise
    X_test: np.ndarray
    y_test: np.ndarray

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
    signed: bool = True,
    noise: float = 0.0,
    parameter: float | None = None,
    n_test: int = TEST_ROWS,
    eigenvalues: Sequence[float] | None = None,
    has_diagonal: bool | None = None,
) -> Sample:
    """Draw a problem; by default M has no diagonal for two-valued features."""
    rng = np.random.default_rng(seed)
    features = law(name, parameter)
    if has_diagonal is None:
        has_diagonal = name == "near" or features.is_invertible  # "near" studies small τ
    truth = random_truth(rng, d, k, signed, has_diagonal, INTERCEPT, eigenvalues)
    return of_truth(truth, features.draw(rng, n + n_test, d), n, noise, rng)


def of_truth(truth: Truth, Z: np.ndarray, n: int, noise: float, rng: np.random.Generator) -> Sample:
    """Return the problem of a model on some rows; the first n are the training rows."""
    f = truth(Z)
    y = f[:n] + noise * rng.standard_normal(n)
    return Sample(truth, Z[:n], y, Z[n:], f[n:])


@dataclass(frozen=True)
class Table:
    """Some rows, their noiseless targets, and one standard normal number of noise per row."""

    X: np.ndarray  # (n, d), float32
    f: np.ndarray  # (n,), float64
    noise: np.ndarray  # (n,), float64


def tables(law: Law, sizes: tuple[int, ...], d: int, k: int, seed: int) -> list[Table]:
    """Draw a model of the paper's Section 5, and one table for each number of rows.

    The blocks of a table are fixed, so the rows are the same for any number of cores.
    M = QQᵀ with Q orthonormal and w ~ N(0, I/d), as in the paper. Where the law is not moment
    invertible, the diagonal is left out of M.
    """
    truth_seed, *seeds = np.random.SeedSequence(seed).spawn(1 + len(sizes))
    truth = random_truth(np.random.default_rng(truth_seed), d, k, has_diagonal=law.is_invertible)
    return [_table(law, truth, n, d, s) for n, s in zip(sizes, seeds, strict=True)]


def _table(law: Law, truth: Truth, n: int, d: int, seed: np.random.SeedSequence) -> Table:
    X, f, noise = np.empty((n, d), np.float32), np.empty(n), np.empty(n)
    edges = np.linspace(0, n, BLOCKS + 1).astype(int)

    def fill(number: int, block_seed: np.random.SeedSequence) -> None:
        part = slice(edges[number], edges[number + 1])
        rng = np.random.default_rng(block_seed)
        X[part] = law.sample(rng, edges[number + 1] - edges[number], d)
        f[part] = truth(X[part])
        rng.standard_normal(out=noise[part])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, range(BLOCKS), seed.spawn(BLOCKS)))
    return Table(X, f, noise)


def fitted(X: np.ndarray, y: np.ndarray, rank: int, **options: Any) -> SecondOrderRegressor:
    """Fit least squares without warnings, since convergence itself is measured.

    Predictions are those of the model, with no limits: clipped ones would hide an exact fit.
    """
    free: dict[str, Any] = {"alpha": 0.0, "extrapolation": "free", "random_state": 0}
    model = SecondOrderRegressor(rank=rank, **free, **options)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    return model


def streamed(X: np.ndarray, y: np.ndarray, rank: int) -> SecondOrderRegressor:
    """Fit in one pass of partial_fit, in twenty pieces, without warnings."""
    model = SecondOrderRegressor(rank=rank, alpha=0.0, extrapolation="free", random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in np.array_split(np.arange(len(y)), PIECES):
            model.partial_fit(X[part], y[part])
    return model
