"""Phase retrieval: a real or complex signal from the squares of its measurements."""

from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from scipy.sparse import issparse
from scipy.sparse.linalg import LinearOperator
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_array, check_is_fitted

from quadlin.core.arrays import unflagged
from quadlin.core.messages import Message, Option, warn
from quadlin.estimators.regression.tasks import seed_of
from quadlin.estimators.regression.unfinished import no_model_yet
from quadlin.estimators.rows.input_errors import refuse_missing_targets
from quadlin.estimators.rows.parameters import checked_weight, float_types
from quadlin.estimators.rows.validation import validated
from quadlin.estimators.signals.sensing_rows import POOR, share_of, unexplained
from quadlin.solve.lowrank.types import Record, Status
from quadlin.solve.signals.phase import retrieve, squared
from quadlin.solve.signals.search import Effort

MOST_NEGATIVE = 0.1  # of the sum of squares of y: more than noise makes of intensities
ENOUGH = 4  # measurements per entry of the signal, for the search to succeed


class PhaseRetriever(RegressorMixin, BaseEstimator):
    r"""Recover a signal, up to its sign or phase, from intensities.

    .. math:: y_i = |a_i^\top z|^2 + \text{noise}, \qquad
              \min_z \sum_i \omega_i (|a_i^\top z|^2 - y_i)^2

    The vectors and the signal are real or complex. A spectral start and reweighted amplitude flow
    lead to the signal, Levenberg–Marquardt steps to the least-squares optimum.

    Parameters
    ----------
    real : bool, default=False
        Whether the signal is known to be real although the vectors are complex, as for a picture.
        With real vectors the signal is always real.
    loss : {"squared", "huber"}, default="squared"
        "huber" is for gross errors in y: residuals beyond 1.345 standard deviations count
        linearly, not quadratically.
    n_starts : int, default=10
        Maximum number of starts. The search ends as soon as the signal explains y exactly, or a
        second start leads to the best signal so far; otherwise the status is `ambiguous`.
    max_iter : int, default=100
        Maximum number of Levenberg–Marquardt steps per start.
    tol : float, default=1e-6
        A start is done when a step lowers the objective by less than this fraction of it.
    random_state : int, RandomState or None, default=None
        Seed of the starts. With None it is fixed, so the same rows give the same signal.

    Attributes
    ----------
    signal_ : array (n_features,)
        z, real or complex. Its sign or phase is arbitrary; :func:`quadlin.metrics.align_phase`
        aligns it with that of another signal.
    status_ : Status
        How the search ended; its value is advice.
    history_ : tuple of Record
        Mean squared error of the intensities after each step of the start that led to the signal,
        and the products with A and its adjoint so far.
    n_iter_ : int
        Steps of the start that led to the signal.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Notes
    -----
    About four Gaussian measurements per entry are enough, real or complex, and three
    usually are. Time: a few hundred products with A per start, O(nd) each, or whatever an operator
    takes. Memory beside A: O(n + d), and d×d up to 2,000 columns of an array, which makes
    correlated columns as easy as independent ones. A is never copied. A LinearOperator is used by
    its products alone; its columns should be about orthogonal, as those of Fourier masks are.

    A complex vector a and i·a measure the same, so one complex row is two real ones. Complex
    arithmetic uses both of them without a copy: see `docs/signals.md`.

    Intensities that are slightly negative because of noise are accepted. If they are more negative
    than noise can explain, `fit` raises an error.

    Examples
    --------
    >>> import numpy as np
    >>> from quadlin import PhaseRetriever
    >>> from quadlin.metrics import signal_error
    >>> rng = np.random.default_rng(0)
    >>> A = rng.normal(size=(80, 20)) + 1j * rng.normal(size=(80, 20))
    >>> z = rng.normal(size=20) + 1j * rng.normal(size=20)
    >>> model = PhaseRetriever(random_state=0).fit(A, np.abs(A @ z) ** 2)
    >>> round(signal_error(z, model.signal_), 9), model.status_.name
    (0.0, 'converged')
    """

    signal_: np.ndarray
    status_: Status
    history_: tuple[Record, ...]
    n_features_in_: int

    def __init__(
        self,
        *,
        real: bool = False,
        loss: str = "squared",
        n_starts: int = 10,
        max_iter: int = 100,
        tol: float = 1e-6,
        random_state: Any = None,
    ) -> None:
        self.real = real
        self.loss = loss
        self.n_starts = n_starts
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    @unflagged
    def fit(self, A: Any, y: Any, sample_weight: Any = None) -> Self:
        """Recover the signal.

        Ctrl-C leaves the best signal of the starts that are finished, once there is one: its
        `status_` is `interrupted`, and KeyboardInterrupt goes on to the caller.

        Parameters
        ----------
        A : array, sparse matrix, frame or LinearOperator (n_samples, n_features)
            The measurement vectors as rows, real or complex, such that y is the square of the size
            of A @ z. A `scipy.sparse.linalg.LinearOperator` needs `matvec` and `rmatvec`.
        y : array (n_samples,)
            Intensities.
        sample_weight : array (n_samples,) or None
            A weight of 2 is the same as the row given twice, 0 as the row left out.

        Returns
        -------
        self
        """
        effort = search_effort(self)
        with no_model_yet(self):
            A = self._checked(A, reset=True)
            y = _intensities(y, A.shape[0])
            weight = checked_weight(sample_weight, y)
            weight = np.ones(len(y)) if weight is None else weight
            real = bool(self.real) or not np.issubdtype(A.dtype, np.complexfloating)
            enough = _is_enough(int(np.count_nonzero(weight)), A.shape[1], real)
            result = retrieve(A, y, weight, real, effort, seed_of(self))
            self.signal_, self.status_, self.history_ = result.signal, result.status, result.history
        if result.rank < A.shape[1]:
            warn(
                f"The {A.shape[1]} columns of A are linearly dependent: they span {result.rank} "
                "dimensions. Of all signals with the same intensities, this is the smallest."
            )
        if not enough and self.status_ is not Status.interrupted:
            self.status_ = Status.undetermined
        raise_or_warn(self.status_)
        if self.status_ is Status.converged and self.loss == "squared":
            _warn_of_rest(unexplained(y, self.history_[-1].loss, weight))
        return self

    @unflagged
    def predict(self, A: Any) -> np.ndarray:
        """Return the intensities that other vectors would measure.

        Parameters
        ----------
        A : array, sparse matrix, frame or LinearOperator (n_samples, n_features)
            Measurement vectors as rows.

        Returns
        -------
        array (n_samples,)
        """
        check_is_fitted(self)
        return squared(np.asarray(self._checked(A, reset=False) @ self.signal_))

    @property
    def n_iter_(self) -> int:
        """Return the number of steps."""
        check_is_fitted(self)
        return max(1, self.history_[-1].step)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.positive_only = True
        tags.regressor_tags.poor_score = True  # y of scikit-learn's checks is no intensity
        return tags

    def _checked(self, A: Any, reset: bool) -> Any:
        """Return rows with finite entries, or an operator, of the right width."""
        if isinstance(A, LinearOperator):
            if reset:
                self.n_features_in_ = int(A.shape[1])
                forget_names(self)
            elif A.shape[1] != self.n_features_in_:
                raise ValueError(
                    f"X has {A.shape[1]} features, but {type(self).__name__} is expecting "
                    f"{self.n_features_in_} features as input."
                )
            return A
        rows: Any = A if issparse(A) else np.asarray(A)
        if not np.issubdtype(rows.dtype, np.complexfloating):
            return validated(self, A, accept_sparse="csr", dtype=float_types(A), reset=reset)
        # scikit-learn's check of entries refuses complex ones, so their two parts are checked.
        if rows.ndim != 2:
            raise ValueError(
                f"Expected 2D array, got {rows.ndim}D array instead: shape {rows.shape}."
            )
        validated(self, A, skip_check_array=True, reset=reset)
        rows = rows.tocsr() if issparse(A) else rows
        entries = rows.data[None, :] if issparse(A) else rows
        for part in (entries.real, entries.imag):
            check_array(part, ensure_min_features=0, estimator=self, input_name="A")
        return rows


def search_effort(estimator: Any) -> Effort:
    """Return the options of a search from several starts, or say which makes no sense."""
    for name in ("n_starts", "max_iter"):
        value = getattr(estimator, name)
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            option = Option(name, value)
            raise ValueError(Message("{option} must be a whole number ≥ 1.", option=option))
    if not isinstance(estimator.tol, Real) or not 0 <= float(estimator.tol) < 1:
        tol = Option("tol", estimator.tol)
        raise ValueError(Message("{tol} must be a number in [0, 1).", tol=tol))
    if estimator.loss not in ("squared", "huber"):
        loss = Option("loss", estimator.loss)
        raise ValueError(Message("{loss} is not one of 'squared', 'huber'.", loss=loss))
    robust = estimator.loss == "huber"
    return Effort(int(estimator.n_starts), int(estimator.max_iter), float(estimator.tol), robust)


def raise_or_warn(status: Status) -> None:
    """Pass Ctrl-C on, and warn where a search did not converge, unless a warning was given."""
    if status is Status.interrupted:
        raise KeyboardInterrupt(status.value)
    if status not in (Status.converged, Status.undetermined):
        text = Message("{status}: {advice}", status=status.name, advice=status.value)
        warn(text, ConvergenceWarning)


def _intensities(y: Any, n: int) -> np.ndarray:
    """Return y as numbers, or say why they are not intensities."""
    if y is None:
        raise ValueError("PhaseRetriever requires y to be passed, but the target y is None.")
    if np.iscomplexobj(np.asarray(y)):
        raise ValueError(
            "Complex data not supported in y: give the intensities |A @ z|², real numbers."
        )
    refuse_missing_targets(y)
    y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
    y = column_or_1d(y, warn=True)
    if len(y) != n:
        raise ValueError(f"A has {n} rows, but y has {len(y)} entries. Give one per row.")
    negative = y < 0
    if np.sum(y[negative] ** 2) > MOST_NEGATIVE * np.sum(y**2):
        raise ValueError(
            f"{np.count_nonzero(negative)} of the {n} intensities in y are negative, by more than "
            "noise explains. Intensities are squares, |A @ z|²: square amplitudes first, and do "
            "not subtract a background or mean."
        )
    return np.asarray(y)


def _warn_of_rest(left: float) -> None:
    """Warn where a signal explains little of the intensities."""
    if left > POOR:
        warn(
            Message(
                "The signal leaves {left} of the variance of y unexplained. The cause may be "
                "noise, outliers ({huber}), or a y that does not hold intensities |A @ z|²: square "
                "amplitudes first.",
                left=share_of(left),
                huber=Option("loss", "huber"),
            )
        )


def _is_enough(n: int, d: int, real: bool) -> bool:
    """Tell whether measurements can determine a signal, and warn where they cannot."""
    needed = 2 * d - 1 if real else 2 * d
    if n < needed:
        kind = "real" if real else "complex"
        warn(
            f"{n} measurements do not determine a {kind} signal of {d} entries: at least {needed} "
            f"are needed, and about {ENOUGH * d} for the search to succeed. Add measurements."
        )
    return n >= needed


def forget_names(estimator: Any) -> None:
    """Forget the names of columns of an earlier fit: these rows have none."""
    if hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_
