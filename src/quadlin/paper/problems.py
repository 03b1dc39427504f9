"""Problems for the measurements: rows of standardised features from a known model."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from quadlin.estimators.regressor import SecondOrderRegressor
from quadlin.paper.laws import law
from quadlin.paper.truth import Truth, random_truth

TEST_ROWS = 2000
INTERCEPT = 1.0


@dataclass(frozen=True)
class Sample:
    """Rows to learn from, and rows without noise to judge a fit by."""

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
    eigenvalues: Sequence[float] | None = None,
    has_diagonal: bool | None = None,
) -> Sample:
    """Draw a problem; two-valued features have an M without diagonal unless it is asked for."""
    rng = np.random.default_rng(seed)
    features = law(name, parameter)
    if has_diagonal is None:
        has_diagonal = name == "near" or features.is_invertible  # "near" studies small τ
    truth = random_truth(rng, d, k, signed, has_diagonal, INTERCEPT, eigenvalues)
    return of_truth(truth, features.draw(rng, n + n_test, d), n, noise, rng)


def of_truth(truth: Truth, Z: np.ndarray, n: int, noise: float, rng: np.random.Generator) -> Sample:
    """Return the problem of a model on some rows, the first n of which are to learn from."""
    f = truth(Z)
    y = f[:n] + noise * rng.standard_normal(n)
    return Sample(truth, Z[:n], y, Z[n:], f[n:])


def fitted(X: np.ndarray, y: np.ndarray, rank: int, **options: Any) -> SecondOrderRegressor:
    """Fit least squares without warnings: whether a fit converges is what is being measured."""
    model = SecondOrderRegressor(rank=rank, alpha=0.0, random_state=0, **options)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    return model
