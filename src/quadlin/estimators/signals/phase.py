"""Phase retrieval: a real or complex signal from the squares of its measurements."""

from copy import copy
from typing import Any, Self

import numpy as np
from scipy.sparse import issparse
from scipy.sparse.linalg import LinearOperator
from sklearn.utils.validation import check_array, check_is_fitted

from quadlin.core.arrays import unflagged
from quadlin.core.messages import warn
from quadlin.estimators.checks import validated
from quadlin.estimators.fitted import seed_of
from quadlin.estimators.learning import no_model_yet, raise_or_warn
from quadlin.estimators.signals.vectors import (
    MeasurementEstimator,
    adopt_columns,
    checked_measurements,
    checked_vectors,
    counted,
    forget_names,
    refuse_other_vectors,
    refuse_unsquarable,
    search_effort,
    share_of,
    warn_of_rest,
    weights_of,
)
from quadlin.solve.lowrank.types import Status
from quadlin.solve.signals.phase import Retrieval, retrieve, squared
from quadlin.solve.signals.results import Rest
from quadlin.solve.signals.second_look import OtherContent, other_intensities, rest_of_signal

MOST_NEGATIVE = 0.1  # of the sum of squares of y: below this, noise need not explain it
POSITIVE = 3.0  # standard errors: the mean of intensities is above 0, whatever the noise


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
            y = checked_measurements(self, A, y)
            refuse_negative(y)
            weight = weights_of(sample_weight, y)
            real = bool(self.real) or not np.issubdtype(A.dtype, np.complexfloating)
            result = retrieve(A, y, weight, real, effort, seed_of(self))
        adopt_columns(self, draft)
        self.signal_, self.status_, self.history_ = result.signal, result.status, result.history
        if self.status_ is not Status.interrupted:
            d = A.shape[1]
            if not is_determined(result, int(np.count_nonzero(weight)), d, real):
                self.status_ = Status.undetermined
        raise_or_warn(self, self.status_, Status.undetermined)  # `is_determined` warned
        if self.status_ is not Status.undetermined and result.fitted is not None:
            told = (A, y, weight, real, effort, result)
            rest = rest_of_signal(*told[1:])
            warn_of_intensities(rest, other_intensities(*told), effort.robust)
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
        refuse_other_vectors(A)
        rows: Any = A if issparse(A) else np.asarray(A)
        if not np.issubdtype(rows.dtype, np.complexfloating):
            return checked_vectors(self, A, reset)
        # scikit-learn's check of entries takes no complex ones, so their two parts are checked.
        if rows.ndim != 2:
            raise ValueError(
                f"Expected 2D array, got {rows.ndim}D array instead: shape {rows.shape}."
            )
        validated(self, A, skip_check_array=True, reset=reset)
        rows = rows.tocsr() if issparse(A) else rows
        entries = rows.data[None, :] if issparse(A) else rows
        for part in (entries.real, entries.imag):
            check_array(part, ensure_min_features=0, estimator=self, input_name="A")
        refuse_unsquarable(rows, "A")
        return rows


def refuse_negative(y: np.ndarray) -> None:
    """Raise an error for intensities that are negative on average, or by more than noise."""
    negative = y < 0
    mean, error = float(np.mean(y)), float(np.std(y)) / np.sqrt(len(y))
    if np.sum(y[negative] ** 2) > MOST_NEGATIVE * np.sum(y**2) and not mean > POSITIVE * error:
        raise ValueError(
            f"{np.count_nonzero(negative)} of the {len(y)} intensities in y are negative, and "
            f"their mean, {mean:.4g} with a standard error of {error:.2g}, is not above 0. "
            "Intensities are squares, |A @ z|²: square amplitudes first, and do not subtract the "
            "mean."
        )


def is_determined(result: Retrieval, rows: int, d: int, real: bool) -> bool:
    """Tell whether the measurements can determine a signal; warn of what they leave open."""
    if result.rank < d:
        warn(
            f"The {d} columns of A are linearly dependent: they span {result.rank} "
            f"{'dimension' if result.rank == 1 else 'dimensions'}. Of all signals with the same "
            "intensities, this is the smallest: entries that no measurement sees are 0."
        )
    n, needed = result.n_distinct, 2 * d - 1 if real else 2 * d
    if n < needed:
        warn(
            f"{counted(n, rows)} {'does' if n == 1 else 'do'} not determine a "
            f"{'real' if real else 'complex'} signal of {d} {'entry' if d == 1 else 'entries'}: "
            f"at least {needed} are needed, and about {4 * d} for the search to succeed. Add "
            "measurements by other vectors."
        )
    return n >= needed


def warn_of_intensities(rest: Rest, other: OtherContent | None, robust: bool) -> None:
    """Warn where y is explained badly, by what explains it well if that is clear."""
    if other is None:
        warn_of_rest(rest, "signal", "or a y that does not hold intensities |A @ z|²", robust)
        return
    left, less = share_of(rest.left), share_of(other.left)
    if other.background is None:
        warn(
            "y seems to hold amplitudes |A @ z|, not intensities |A @ z|²: the signal leaves "
            f"{left} of the variance of y unexplained, and one that was fitted to the squares of "
            f"y leaves {less}. Square y first."
        )
    else:
        warn(
            f"y seems to contain a background of about {other.background:.3g}, the same for each "
            f"measurement: without it, a signal leaves {less} of the variance of y unexplained "
            f"instead of {left}. Subtract the background from y first."
        )
