"""A symmetric matrix from measurements aᵀMa: a second order model without w."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import log
from typing import Any
from warnings import catch_warnings, filterwarnings, simplefilter

import numpy as np
from scipy.sparse import diags_array, issparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from quadlin.core.messages import warn
from quadlin.estimators.checks import is_auto
from quadlin.estimators.regressor import SecondOrderRegressor
from quadlin.estimators.signals.sensing_rows import (
    FEW,
    NOTABLE,
    constant_columns,
    symmetric_unknowns,
    variance_of,
    weights_of,
)
from quadlin.estimators.tasks import seed_of
from quadlin.solve.lowrank.types import Status
from quadlin.solve.signals.measurements import distinct_rows
from quadlin.solve.signals.search import Majority, robust_factor, usual_limit

MANY = 6  # measurements per unknown, with which one start leads to the optimum
AGREED = 0.01  # of what is left: optima that differ by less count as one
ROUNDS = 10  # of a fit whose rows are weighted anew
BETTER = 0.85  # of σ: what a higher rank must bring to find gross errors that another does not
ROUNDED = 1e-9  # of a typical y: a residual of a fit that is exact
EXACT = 1e-12  # of the mean square of y: a loss that is only rounding
OF_TABLES = (  # how warnings begin whose advice is for the columns of a table
    "A handful of rows have extreme",
    "The means of ",
    "The target is .* in every row, so the model is constant",
    "There are only 2 rows",
)


def fitted_symmetric(
    sensing: Any, A: Any, y: np.ndarray, weight: Any
) -> tuple[SecondOrderRegressor, Status]:
    """Return the model, and how its fit and the search for its rank ended.

    A row and its negative measure the same. With random signs a constant column varies, as it has
    to in a second order model without w; and other signs are another start of the search.
    """
    rng = np.random.default_rng(seed_of(sensing))
    if np.any(constant_columns(A)):
        A = with_signs(A, rng)
    if sensing.loss == "huber":
        return fitted_robustly(sensing, A, y, weight)
    best, status = fitted_once(sensing, A, y, weight)
    doubts = Doubts.of(A, y, weight)
    for _ in range(sensing.n_starts - 1):
        if status is Status.interrupted or not doubts.about(best):
            break
        other = clone(sensing).set_params(random_state=int(rng.integers(2**31 - 1)))
        try:
            model, status = fitted_once(other, with_signs(A, rng), y, weight)
        except KeyboardInterrupt:
            return best, Status.interrupted
        agrees = abs(doubts.left(model) - doubts.left(best)) <= AGREED * doubts.left(best)
        if doubts.criterion(model) < doubts.criterion(best):
            best = model
        if agrees:
            break
    return best, status if status is Status.interrupted else best.status_


def fitted_once(
    sensing: Any, A: Any, y: np.ndarray, weight: Any
) -> tuple[SecondOrderRegressor, Status]:
    """Return the model of one start by least squares, and how its fit ended."""
    model = symmetric_model(sensing, sensing.rank)
    try:
        with in_words_for_measurements():
            model.fit(A, y, weight)
        if is_auto(sensing.rank):
            model = _lowest_exact(sensing, model, A, y, weight)
    except KeyboardInterrupt:
        if not hasattr(model, "fitted_"):
            raise
        return model, Status.interrupted
    return model, model.status_


@dataclass(frozen=True)
class Doubts:
    """Whether a search that began once may have ended at a poor optimum."""

    n: int  # rows that count
    d: int  # columns
    variance: float  # of y

    @classmethod
    def of(cls, A: Any, y: np.ndarray, sample_weight: Any) -> "Doubts":
        """Return the doubts about fits of some rows."""
        weight = weights_of(sample_weight, y)
        return cls(int(np.count_nonzero(weight)), A.shape[1], variance_of(y, weight))

    def left(self, model: SecondOrderRegressor) -> float:
        """Return what a model leaves of the variance of y."""
        return float(model.history_[-1].loss) / (self.variance or 1.0)

    def criterion(self, model: SecondOrderRegressor) -> float:
        """Return Schwarz's criterion: the lower, the better."""
        size = self.n * log(max(self.left(model), EXACT))
        return size + symmetric_unknowns(self.d, model.rank_) * log(self.n)

    def about(self, model: SecondOrderRegressor) -> bool:
        """Tell whether other starts may lead to a better optimum."""
        per_unknown = self.n / max(1, symmetric_unknowns(self.d, model.rank_))
        # From few measurements a wrong optimum may leave as little as noise does.
        return per_unknown < MANY and self.left(model) > (NOTABLE if per_unknown > FEW else EXACT)


def with_signs(A: Any, rng: np.random.Generator) -> Any:
    """Return a copy of the rows with random signs."""
    signs = rng.choice([-1.0, 1.0], size=A.shape[0]).astype(A.dtype)
    return diags_array(signs).tocsr() @ A if issparse(A) else A * signs[:, None]


@dataclass(frozen=True)
class RobustFit:
    """A model of some rank, and the noise and weights of its rows: gross errors have none."""

    model: SecondOrderRegressor
    sigma: float
    weight: np.ndarray


def fitted_robustly(
    sensing: Any, A: Any, y: np.ndarray, weight: Any
) -> tuple[SecondOrderRegressor, Status]:
    """Return the model of Huber's loss without gross errors, and how its fit ended.

    A rank that is not given is chosen, by least squares, from rows weighted by a fit of each rank:
    the one beyond which the noise of a majority of the rows hardly falls.
    """
    y = np.asarray(y, dtype=np.float64)
    given = weights_of(weight, y)
    search = RobustSearch(sensing, A, y, given, distinct_rows(A, given))
    best: RobustFit | None = None
    try:
        if not is_auto(sensing.rank):
            best = search.fit(sensing.rank, None)
            return best.model, best.model.status_
        for rank in range(1, A.shape[1] + 1):
            if best is not None and search.n < FEW * symmetric_unknowns(A.shape[1], rank):
                break
            fit = search.fit(rank, best)
            if best is not None and not fit.sigma < BETTER * best.sigma:
                break
            best = fit
            if best.sigma <= search.rounding:
                break
        assert best is not None
        model = symmetric_model(sensing, "auto")
        with in_words_for_measurements():
            model.fit(A, y, best.weight)
        model = _lowest_exact(sensing, model, A, y, best.weight)
    except KeyboardInterrupt:
        if best is None:
            raise
        return best.model, Status.interrupted
    return model, model.status_


@dataclass(frozen=True)
class RobustSearch:
    """Measurements with gross errors, of which n are different."""

    sensing: Any
    A: Any
    y: np.ndarray
    given: np.ndarray
    n: int

    @property
    def rounding(self) -> float:
        """Return a residual that is none."""
        return float(ROUNDED * np.median(np.abs(self.y)))

    def fit(self, rank: int, before: RobustFit | None) -> RobustFit:
        """Fit, leave out the rows that do not fit, and fit again until they are the same."""
        size = np.abs(self.y)
        usual = size <= usual_limit(size, self.given) if np.any(size[self.given > 0]) else size == 0
        kept = np.where(usual, self.given, 0.0) if before is None else before.weight
        for _ in range(ROUNDS):
            model = symmetric_model(self.sensing, rank, "huber")
            with in_words_for_measurements():
                model.fit(self.A, self.y, self.given * (kept > 0))
            size = np.abs(model.predict(self.A) - self.y)
            majority = Majority.of(self.n, symmetric_unknowns(self.A.shape[1], rank))
            sigma = max(majority.sigma(size, self.given), self.rounding)
            last, kept = kept, self.given * robust_factor(size, sigma)
            if np.array_equal(kept > 0, last > 0):
                break
        return RobustFit(model, sigma, kept)


def symmetric_model(sensing: Any, rank: int | str, loss: str = "squared") -> SecondOrderRegressor:
    """Return the model of a rank, with the options of `MatrixSensing`."""
    model = SecondOrderRegressor(
        rank=rank,
        alpha="auto" if is_auto(rank) else 0.0,
        categorical_features=None,
        pairs=None,
        extrapolation="free",
        loss=loss,
        fit_intercept=sensing.fit_intercept,
        max_iter=sensing.max_iter,
        tol=sensing.tol,
        random_state=sensing.random_state,
    )
    model.fit_linear, model.psd = False, bool(sensing.psd)
    return model


def _lowest_exact(
    sensing: Any, model: SecondOrderRegressor, A: Any, y: np.ndarray, sample_weight: Any
) -> SecondOrderRegressor:
    """Return the model of the lowest rank that explains y exactly, if the model given does."""
    power = np.average(np.square(y, dtype=np.float64), weights=weights_of(sample_weight, y))

    def exact(model: SecondOrderRegressor) -> bool:
        return bool(model.history_[-1].loss <= EXACT * power)

    while exact(model) and model.rank_ > 1:
        lower = symmetric_model(sensing, model.rank_ - 1)
        with in_words_for_measurements():
            lower.fit(A, y, sample_weight)
        if not exact(lower):
            break
        model = lower
    return model


@contextmanager
def in_words_for_measurements() -> Iterator[None]:
    """Leave out warnings that `Recovery` gives in words for measurements, or that mislead here.

    A quadratic form of normal vectors has extreme values by nature, and vectors that measure can
    be neither transformed nor shifted.
    """
    with catch_warnings():
        simplefilter("ignore", ConvergenceWarning)
        for start in OF_TABLES:
            filterwarnings("ignore", message=start)
        yield


def warn_of_diagonal(A: Any, rank: int) -> None:
    """Warn where squares are constant and the rank is too high to tell their weights apart."""
    d = int(np.count_nonzero(constant_columns(abs(A))))
    if d > 1 and (d - rank) ** 2 < d + rank:
        warn(
            f"The squares of {d} columns are constant, so only the sum of their "
            f"diagonal entries in M is measured, and a rank of {rank} is too high for "
            "the other entries to determine them. Entries beside the diagonal are "
            "not affected. Lower `rank`."
        )
