"""Signals and matrices from quadratic measurements: phase retrieval, rank-one matrix sensing."""

from numbers import Integral
from os import PathLike
from typing import Any, ClassVar, Self
from warnings import catch_warnings, simplefilter

import numpy as np
from scipy.sparse import issparse
from scipy.sparse.linalg import LinearOperator
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_array, check_is_fitted

from quadlin.core.arrays import refuse_broken_sparse, unflagged
from quadlin.core.messages import warn
from quadlin.data.columns import check_frame
from quadlin.estimators.checks import (
    check_parameters,
    check_targets,
    checked_weight,
    float_types,
    is_auto,
    refuse_masked,
    validated,
)
from quadlin.estimators.fitted import seed_of
from quadlin.estimators.learning import no_model_yet, raise_or_warn
from quadlin.solve.lowrank.types import Record, Status
from quadlin.solve.signals.matrices import Factors, Sensing, constant_columns
from quadlin.solve.signals.phase import intercept, retrieve, squared
from quadlin.solve.signals.search import Effort, End, Majority, Rest, distinct_rows, in_double

LARGEST = 1e140  # number whose square, and sums of it, are numbers too
OFTEN, POOR = 0.25, 0.2  # of the rows left out, of the variance left: more deserves a word
NOTABLE = 0.01  # of the variance of y: more may be a matrix of higher rank, less has a decimal
FEW = 2  # measurements per unknown: from fewer, a wrong matrix may fit as well as the right one
MOST_NEGATIVE = 0.1  # of the sum of squares of y: below this, noise need not explain it
POSITIVE = 3.0  # standard errors: the mean of intensities is above 0, whatever the noise


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
    for name in ("n_features_in_", "feature_names_in_"):
        if hasattr(draft, name):
            setattr(estimator, name, getattr(draft, name))
        elif hasattr(estimator, name):
            delattr(estimator, name)


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
    products are used; its columns should be about orthogonal and of about the same size, as with
    Fourier masks.

    A complex vector a and i·a measure the same, so one complex row is two real ones. Complex
    arithmetic uses both of them without a copy: see :doc:`/guide/signals`.

    Intensities that are negative because of noise are accepted, as long as their mean is positive.
    `fit` warns if y does not vanish with the intensities of the signal, as where it holds
    amplitudes or contains a background.

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
        draft = clone(self)  # scikit-learn notes the columns there, so that Ctrl-C changes nothing
        with no_model_yet():
            A = draft._checked(A, reset=True)
            y = checked_measurements(self, A, y)
            refuse_negative(y)
            weight = weights_of(sample_weight, y)
            real = bool(self.real) or not np.issubdtype(A.dtype, np.complexfloating)
            n = distinct_rows(weight, A)
            end, rank = retrieve(A, y, weight, n, real, effort, seed_of(self))
        adopt_columns(self, draft)
        self.signal_, self.status_, self.history_ = end.z, end.status, end.history
        if end.status is not Status.interrupted:
            if is_determined(A.shape[1], rank, n, real):
                unknowns = rank if real else 2 * rank
                majority = Majority.of(n, unknowns) if effort.robust else None
                fitted = squared(in_double(A @ self.signal_))
                rest = Rest.of(y, fitted, weight, unknowns, majority)
                warn_of_intensities(rest, fitted, y, effort.robust)
            else:
                self.status_ = Status.undetermined
        raise_or_warn(self.status_, Status.undetermined)  # `is_determined` warned
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
            return validated(self, A, skip_check_array=True, reset=reset)
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


class MatrixSensing(MeasurementEstimator):
    r"""Recover a matrix of low rank from rank-one measurements.

    .. math:: y_i = a_i^\top M a_i + c + \text{noise} \quad (M = M^\top)
              \qquad\text{or}\qquad y_i = a_i^\top M b_i + c + \text{noise}

    fitted by least squares over matrices of rank k; c is 0 by default. ``fit(A, y)`` recovers a
    symmetric matrix of either sign, ``fit((A, B), y)`` any matrix, also a rectangular one
    (inductive matrix completion, where a and b are features of a row and of a column).

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Rank k of M. For a symmetric matrix "auto" chooses the rank of largest evidence, as
        :class:`SecondOrderRegressor` does, or the lowest rank that explains y exactly; for pairs of
        rows the rank with the lowest criterion of Akaike, corrected for few rows.
    psd : bool, default=False
        Whether M is positive semi-definite. Not for pairs of rows.
    fit_intercept : bool, default=False
        Whether y contains a background c, the same for each measurement, which is then estimated
        together with M. Without it, `fit` warns if there is one.
    loss : {"squared", "huber"}, default="squared"
        "huber" is for gross errors in y: residuals beyond 1.345 standard deviations count
        linearly, not quadratically, and beyond 10 not at all.
    n_starts : int, default=10
        Maximum number of starts. The search ends as soon as M explains y exactly, or a second start
        leads to the best M so far. For a symmetric matrix one is enough if there are six
        measurements per unknown.
    max_iter : int, default=100
        Maximum number of Gauss–Newton steps (per start).
    tol : float, default=1e-6
        The fit stops when a step lowers the objective by less than this fraction of it.
    random_state : int, RandomState or None, default=None
        Seed of the starts. With None it is fixed, so the same rows give the same matrix.

    Attributes
    ----------
    matrix_ : array (n_features, n_features), or (n_left, n_right) for pairs
        M, formed when accessed: ``left_ * values_ @ right_.T``.
    left_, right_ : arrays (n_features, rank)
        Orthonormal columns; the same for a symmetric matrix.
    values_ : array (rank,)
        Signed eigenvalues, in order of decreasing size; singular values for pairs of rows.
    intercept_ : float
        c; 0 without `fit_intercept`.
    rank_ : int
        The rank fitted.
    status_ : Status
        How the fit ended; its value is advice.
    history_ : tuple of Record
        The objective after each step, and the passes (for pairs: products with A and B) so far.
    n_iter_ : int
        Steps taken.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn; for pairs of rows the features of both together, without
        names.

    Notes
    -----
    What the measurements reveal about the diagonal depends on the vectors. For 0/1
    vectors :math:`a_j^2 = a_j` differs from all products, so the diagonal is measured. For
    ±1 vectors :math:`a_j^2 = 1`, so only its sum is measured; the individual entries follow from
    the off-diagonal entries if the rank k is low, :math:`(d - k)^2 \ge d + k`, and otherwise `fit`
    warns.

    A matrix of rank k has dk − k(k−1)/2 unknowns if it is symmetric and k(d + e − k) otherwise. Two
    to three measurements for each are enough: see `benchmarks/signals.py`. With ``rank="auto"`` a
    symmetric matrix also has a ridge penalty, the one of largest evidence: 0 without
    noise.

    Time: O(nnz·k) per pass. Memory in addition to the rows: O(kd), and d×d up to 2,000 columns.
    `matrix_` is formed when it is asked for.

    Examples
    --------
    >>> import numpy as np
    >>> from quadlin import MatrixSensing
    >>> rng = np.random.default_rng(0)
    >>> u, v = rng.normal(size=(2, 10))
    >>> A, B = rng.choice([-1.0, 1.0], size=(2, 80, 10))
    >>> symmetric = MatrixSensing(rank=2, random_state=0).fit(A, (A @ u) ** 2 - (A @ v) ** 2)
    >>> np.allclose(symmetric.matrix_, np.outer(u, u) - np.outer(v, v))
    True
    >>> general = MatrixSensing(random_state=0).fit((A, B), (A @ u) * (B @ v))
    >>> np.allclose(general.matrix_, np.outer(u, v)), general.rank_
    (True, 1)
    """

    left_: np.ndarray
    values_: np.ndarray
    right_: np.ndarray
    intercept_: float
    is_pair_: bool

    def __init__(
        self,
        rank: int | str = "auto",
        *,
        psd: bool = False,
        fit_intercept: bool = False,
        loss: str = "squared",
        n_starts: int = 10,
        max_iter: int = 100,
        tol: float = 1e-6,
        random_state: Any = None,
    ) -> None:
        self.rank = rank
        self.psd = psd
        self.fit_intercept = fit_intercept
        self.loss = loss
        self.n_starts = n_starts
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    @unflagged
    def fit(self, A: Any, y: Any, sample_weight: Any = None) -> Self:
        """Recover the matrix.

        Parameters
        ----------
        A : array, sparse matrix or frame (n_samples, n_features), or a tuple (A, B) of two
            The vectors a as rows; with a tuple also the vectors b, of any length.
        y : array (n_samples,)
            Measurements.
        sample_weight : array (n_samples,) or None
            A weight of 2 is the same as the row given twice, 0 as the row left out.

        Returns
        -------
        self
        """
        effort, draft = search_effort(self), clone(self)  # Ctrl-C must not change the names
        is_pair = holds_pair(A)
        with no_model_yet():
            rank = rank_of(self, is_pair)
            if is_pair:
                rows: tuple[Any, Any] = pair_of_rows(A)
                draft.n_features_in_ = rows[0].shape[1] + rows[1].shape[1]
            else:
                rows = checked_vectors(draft, A, reset=True), None
            y = checked_measurements(self, rows[0], y)
            weight = weights_of(sample_weight, y)
            n = distinct_rows(weight, *rows[: 1 + is_pair])
            constant, psd = bool(self.fit_intercept), bool(self.psd)
            task = Sensing(*rows, y, weight, n, effort, seed_of(self), constant, psd)
            end = task.sense(rank)
        adopt_columns(self, draft)
        self.left_, self.values_, self.right_, self.intercept_ = end.z
        self.history_, self.is_pair_, self.status_ = end.history, is_pair, end.status
        if end.status is not Status.interrupted and not is_sensed(task, end, rank):
            self.status_ = Status.undetermined
        raise_or_warn(self.status_, Status.undetermined)
        return self

    @unflagged
    def predict(self, A: Any) -> np.ndarray:
        """Return the measurements of other vectors.

        Parameters
        ----------
        A : array, sparse matrix or frame (n_samples, n_features), or a tuple (A, B) of two
            The vectors a as rows; with a tuple also the vectors b.

        Returns
        -------
        array (n_samples,)
        """
        check_is_fitted(self)
        if holds_pair(A) != self.is_pair_:
            form = "(A, B)" if self.is_pair_ else "A"
            raise ValueError(f"The matrix was fitted to rows {form}: give rows of the same form.")
        if not self.is_pair_:
            rows = (checked_vectors(self, A, reset=False),) * 2
        else:
            rows = pair_of_rows(A)
            widths, expected = tuple(X.shape[1] for X in rows), (len(self.left_), len(self.right_))
            if widths != expected:
                raise ValueError(
                    f"A and B have {widths[0]} and {widths[1]} features, but MatrixSensing is "
                    f"expecting {expected[0]} and {expected[1]}."
                )
        return Factors(self.left_, self.values_, self.right_, self.intercept_).predict(*rows)

    @property
    def matrix_(self) -> np.ndarray:
        """M."""
        check_is_fitted(self)
        return np.asarray(self.left_ * self.values_ @ self.right_.T)

    @property
    def rank_(self) -> int:
        """Return the rank that was fitted."""
        check_is_fitted(self)
        return len(self.values_)


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


def is_determined(d: int, rank: int, n: int, real: bool) -> bool:
    """Tell whether the measurements can determine a signal; warn of what they leave open."""
    if rank < d:
        warn(
            f"The {d} columns of A are linearly dependent: their rank is {rank}. Of all signals "
            "with the same intensities, this is the smallest: entries that no measurement sees are "
            "0."
        )
    needed = 2 * d - 1 if real else 2 * d
    if n < needed:
        warn(
            f"The number of different measurements, {n}, does not determine every "
            f"{'real' if real else 'complex'} signal of length {d}: at least {needed} are needed, "
            f"and about {4 * d} for the search to succeed. Add measurements by other vectors."
        )
    return n >= needed


def warn_of_intensities(rest: Rest, fitted: np.ndarray, y: np.ndarray, robust: bool) -> None:
    """Warn where y is explained badly, and where it does not vanish with the intensities."""
    bent = None if rest.exact else intercept(fitted, y, rest.kept)
    if bent is None:
        warn_of_rest(rest, "signal", "or a y that does not hold intensities |A @ z|²", robust)
        return
    size, error = bent
    warn(
        "y does not vanish where the intensities of the signal do: the line of y over them meets 0 "
        f"at {size:.3g} ± {error:.1g}. If y holds amplitudes |A @ z|, square them; if it contains "
        "a background, the same for each measurement, subtract it."
    )


def is_sensed(task: Sensing, end: End, rank: int | None) -> bool:
    """Tell whether the measurements determine the matrix; warn of that, and of what is left."""
    n, k, rest = task.n, len(end.z.s), task.rest(end)
    if task.B is None:
        warn_of_diagonal(task.A, k)
    other = None
    if not rest.exact and not task.constant:
        with catch_warnings():
            simplefilter("ignore")
            other = task.background(rank, rest)
    if other is not None:
        found, less = other
        warn(
            f"y seems to contain a background of about {found.z.intercept:.3g}, the same for each "
            f"measurement: with it, a matrix of rank {len(found.z.s)} leaves {share_of(less.left)} "
            "of the variance of y unexplained; without it, the matrix of rank "
            f"{k} leaves {share_of(rest.left)}. Use fit_intercept=True to estimate both; if all "
            "vectors have the same length, it measures the same as a number on the diagonal of M."
        )
    few = n < rest.unknowns or (not rest.exact and n < FEW * rest.unknowns)
    higher = task.unknowns(k + 1)
    if few or end.status in (Status.too_few_rows, Status.out_of_passes):
        warn(
            f"The number of different measurements, {n}, does not determine a matrix of rank {k}, "
            f"which has {rest.unknowns} unknowns"
            f"{'' if rest.exact else ' and does not explain them exactly'}. Add measurements by "
            "other vectors, about two for each unknown, or lower `rank`."
        )
        return False
    if rest.left > NOTABLE and n < FEW * higher:
        warn(
            f"The matrix of rank {k} leaves {share_of(rest.left)} of the variance of y "
            f"unexplained, and {n} measurements are too few to tell noise from a matrix of "
            f"rank {k + 1}, which has {higher} unknowns. Add measurements by other vectors."
        )
        return False
    if other is None:
        offset = "" if task.constant else "an offset (fit_intercept=True) "
        causes = f"a rank that is too low, {offset}or a linear part of y"
        warn_of_rest(rest, f"matrix of rank {k}", causes, task.effort.robust)
    return True


def holds_pair(rows: Any) -> bool:
    """Tell whether these are two tables, (A, B)."""
    shapes = [len(getattr(X, "shape", ())) for X in rows] if isinstance(rows, list) else []
    return isinstance(rows, tuple) or shapes == [2, 2]


def pair_of_rows(pair: Any) -> tuple[Any, Any]:
    """Return the rows a and b as numbers."""
    if len(pair) != 2:
        raise ValueError(f"Give two arrays of rows, (A, B); there are {len(pair)}.")
    # No names are kept: those of the columns of A and B may be the same.
    A, B = (checked_vectors(MatrixSensing(), X, reset=True) for X in pair)
    if A.shape[0] != B.shape[0]:
        raise ValueError(
            f"A has {A.shape[0]} rows but B has {B.shape[0]}: the i-th measurement is of the i-th "
            "row of each."
        )
    return A, B


def rank_of(sensing: MatrixSensing, is_pair: bool) -> int | None:
    """Return the rank that is asked for, None for the best one, if there can be such a rank."""
    rank = sensing.rank
    if not is_auto(rank) and (not isinstance(rank, Integral) or rank < 1):
        raise ValueError(f'rank={rank!r} must be a whole number ≥ 1, or "auto".')
    if sensing.psd and is_pair:
        raise ValueError("psd=True needs a symmetric matrix: give one array of rows A.")
    return None if is_auto(rank) else int(rank)


def warn_of_diagonal(A: Any, rank: int) -> None:
    """Warn where squares are constant and the rank is too high to tell their weights apart."""
    d = int(np.count_nonzero(constant_columns(abs(A))))
    if d > 1 and (d - rank) ** 2 < d + rank:
        warn(
            f"The squares of {d} columns are constant, so only the sum of their diagonal entries "
            f"in M is measured, and a rank of {rank} is too high for the other entries to "
            "determine them. Entries off the diagonal are not affected. Lower `rank`."
        )


def checked_vectors(estimator: Any, A: Any, reset: bool) -> Any:
    """Return real vectors as rows, dense or sparse, whose columns the estimator notes."""
    refuse_other_vectors(A)
    try:
        checks = {"accept_sparse": "csr", "dtype": float_types(A), "reset": reset}
        A = validated(estimator, A, **checks)
    except ValueError as error:
        reason, *advice = str(error).split("\n")
        if not advice or "NaN" not in reason:
            raise
        raise ValueError(
            f"{reason.replace('Input X', 'Input A')} A measurement by an unknown vector tells "
            "nothing: leave those rows out of A and y."
        ) from error
    refuse_unsquarable(A, "A")
    return A


def refuse_other_vectors(A: Any) -> None:
    """Raise an error for names of files, queries, dates and masked entries, and say what to do."""
    if isinstance(A, str | PathLike):
        raise TypeError(
            f"{A!r} is the name of a file, and measurement vectors are taken from memory: give "
            "an array, for example np.load(path), or pandas.read_csv(path).to_numpy()."
        )
    check_frame(A)
    if len(shape := getattr(A, "shape", ())) == 3:
        raise ValueError(
            f"A has the shape {shape}. Give vectors as rows, (n, d), not matrices aaᵀ or abᵀ."
        )
    refuse_broken_sparse(A, "A")
    refuse_masked(A, "A")


def refuse_unsquarable(values: Any, name: str, least: float = 1 / LARGEST) -> None:
    """Raise an error for numbers whose squares overflow, or all underflow."""
    entries = values.data if issparse(values) else values
    size = float(np.max(np.abs(entries), initial=0.0))
    if size > LARGEST or 0 < size < least:
        what, remedy = ("large", "Divide") if size > 1 else ("small", "Multiply")
        raise ValueError(
            f"The largest number in {name} is {size:.0e}, too {what} to be squared. {remedy} "
            f"{name} by a constant."
        )


def checked_measurements(estimator: Any, A: Any, y: Any) -> np.ndarray:
    """Return y as numbers, one per row of A."""
    name = type(estimator).__name__
    if y is None:
        raise ValueError(f"{name} requires y to be passed, but the target y is None.")
    check_targets(y)
    y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
    y = column_or_1d(y, warn=True)
    if A.shape[0] != len(y):
        raise ValueError(f"A has {A.shape[0]} rows, but y has {len(y)} entries.")
    refuse_unsquarable(y, "y", least=0.0)
    return np.asarray(y)


def weights_of(sample_weight: Any, y: np.ndarray) -> np.ndarray:
    """Return weights that were checked, 1 where there are none.

    Without a penalty their scale says nothing: the largest is made about 1, by a power of two.
    """
    weight = checked_weight(sample_weight, y)
    if weight is None:
        return np.ones(len(y))
    return np.asarray(np.ldexp(weight, -int(np.frexp(weight.max())[1])))


def share_of(left: float) -> str:
    """Return a share of the variance in words."""
    return f"{left:.{0 if left >= NOTABLE else 1}%}" if left < 1 else "all"


def warn_of_rest(rest: Rest, result: str, causes: str, robust: bool) -> None:
    """Warn where a result leaves much of y, or where many rows were left out as gross errors."""
    if rest.left > POOR:
        gross = "too many measurements" if robust else 'some measurements (loss="huber")'
        warn(
            f"The {result} leaves {share_of(rest.left)} of the variance of y unexplained. The "
            f"cause may be noise, gross errors in {gross}, {causes}."
        )
    elif not rest.exact and rest.left_out > OFTEN:  # an exact fit of the others is proof
        warn(
            f"{share_of(rest.left_out)} of the measurements do not fit the {result} and were left "
            "out as gross errors. Look at them before you rely on it: it is what the others agree "
            "on."
        )
