"""Phase retrieval: a real or complex signal from the squares of its measurements."""

from copy import copy
from typing import Any, ClassVar, Self

import numpy as np
from scipy.sparse import issparse
from scipy.sparse.linalg import LinearOperator
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_array, check_is_fitted

from quadlin.core.arrays import unflagged
from quadlin.estimators.checks import check_parameters, float_types, validated
from quadlin.estimators.learning import no_model_yet, raise_or_warn
from quadlin.estimators.signals.intensities import (
    checked_intensities,
    is_enough,
    refuse_other_operators,
    warn_of_columns,
    warn_of_rest,
)
from quadlin.estimators.signals.sensing_rows import weights_of
from quadlin.estimators.signals.vectors import measurement_rows, refuse_unsquarable
from quadlin.estimators.tasks import seed_of
from quadlin.solve.lowrank.types import Record, Status
from quadlin.solve.signals.phase import retrieve, squared
from quadlin.solve.signals.search import Effort
from quadlin.solve.signals.second_look import second_look


class MeasurementEstimator(RegressorMixin, BaseEstimator):
    """What estimators that recover something from measurements share."""

    status_: Status
    history_: tuple[Record, ...]
    n_features_in_: int
    losses: ClassVar[tuple[str, ...]] = ("squared", "huber")

    @property
    def n_iter_(self) -> int:
        """Return the number of steps."""
        check_is_fitted(self)
        return max(1, self.history_[-1].step)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.regressor_tags.poor_score = True  # y of scikit-learn's checks is no measurement
        return tags


class PhaseRetriever(MeasurementEstimator):
    r"""Recover a signal, up to its sign or phase, from intensities.

    .. math:: y_i = |a_i^\top z|^2 + \text{noise}, \qquad
              \min_z \sum_i \omega_i (|a_i^\top z|^2 - y_i)^2

    The vectors and the signal are real or complex. A spectral start and reweighted amplitude flow
    lead to the signal, Levenberg–Marquardt steps to the least-squares optimum.

    Parameters
    ----------
    real : bool, default=False
        Whether the signal is known to be real although the vectors are complex, as for a picture.
        With real vectors the signal is always real; pass ``A.astype(complex)`` for a complex one,
        which they determine up to its phase and conjugation.
    loss : {"squared", "huber", "amplitude", "poisson"}, default="squared"
        By the noise: "squared" where it was added to intensities, "amplitude" where it was added to
        amplitudes before they were squared, "poisson" for counts. "huber" is for gross errors in
        y: residuals beyond 1.345 standard deviations count linearly, beyond 10 not at all.
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
        aligns it with another signal.
    status_ : Status
        How the search ended; its value is advice.
    history_ : tuple of Record
        Mean loss after each step of the start that led to the signal (of "squared" the mean
        squared error of the intensities), and the products with A and its adjoint so far.
    n_iter_ : int
        Steps of the start that led to the signal.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Notes
    -----
    About four Gaussian measurements per entry are enough, real or complex, and three
    usually are. Time: a few hundred products with A per start, O(nd) each, or whatever an operator
    takes. Memory in addition to A: O(n + d), and d×d up to 2,000 columns of an array, so that
    correlated columns are as easy as independent ones. A is never copied. Of a LinearOperator only
    products are used; its columns should be about orthogonal, as with Fourier masks.

    A complex vector a and i·a measure the same, so one complex row is two real ones. Complex
    arithmetic uses both of them without a copy: see :doc:`/guide/signals`.

    Intensities that are negative because of noise are accepted, as long as their mean is positive.
    `fit` warns if another fit shows that y holds amplitudes or contains a background.

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
    losses = ("squared", "huber", "amplitude", "poisson")

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
        draft = copy(self)  # scikit-learn notes the columns there, so that Ctrl-C changes nothing
        with no_model_yet():
            A = draft._checked(A, reset=True)
            refuse_unsquarable(A, "A")
            y = checked_intensities(y, A.shape[0])
            weight = weights_of(sample_weight, y)
            real = bool(self.real) or not np.issubdtype(A.dtype, np.complexfloating)
            result = retrieve(A, y, weight, real, effort, seed_of(self))
        adopt_columns(self, draft)
        self.signal_, self.status_, self.history_ = result.signal, result.status, result.history
        warn_of_columns(result, A.shape[1])
        rows = int(np.count_nonzero(weight))
        interrupted = self.status_ is Status.interrupted
        if not interrupted and not is_enough(result.n_distinct, rows, A.shape[1], real):
            self.status_ = Status.undetermined
        raise_or_warn(self, self.status_, Status.undetermined)  # `is_enough` warned
        if self.status_ in (Status.converged, Status.ambiguous):
            warn_of_rest(second_look(A, y, weight, real, effort, result), effort.robust)
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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
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
        refuse_other_operators(A)
        rows: Any = A if issparse(A) else np.asarray(A)
        if not np.issubdtype(rows.dtype, np.complexfloating):
            checks = {"accept_sparse": "csr", "dtype": float_types(A), "reset": reset}
            return measurement_rows(self, A, **checks)
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
    check_parameters(estimator, ["n_starts", "max_iter", "tol"])
    if estimator.loss not in estimator.losses:
        names = ", ".join(map(repr, estimator.losses))
        raise ValueError(f"loss={estimator.loss!r} is not one of {names}.")
    n_starts, max_iter = int(estimator.n_starts), int(estimator.max_iter)
    return Effort(n_starts, max_iter, float(estimator.tol), estimator.loss)


def adopt_columns(estimator: Any, draft: Any) -> None:
    """Take over the number and the names of the columns that were noted on a draft."""
    estimator.n_features_in_ = draft.n_features_in_
    if hasattr(draft, "feature_names_in_"):
        estimator.feature_names_in_ = draft.feature_names_in_
    else:
        forget_names(estimator)


def forget_names(estimator: Any) -> None:
    """Forget the names of columns of an earlier fit: these rows have none."""
    if hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_
