"""Rank-one matrix sensing: a matrix of low rank from measurements aᵀMa or aᵀMb."""

from copy import copy
from numbers import Integral
from typing import Any, NamedTuple, Self
from warnings import catch_warnings, simplefilter

import numpy as np
from sklearn.utils.validation import check_is_fitted

from quadlin.core.arrays import unflagged
from quadlin.core.messages import warn
from quadlin.estimators.checks import is_auto
from quadlin.estimators.fitted import seed_of
from quadlin.estimators.learning import no_model_yet, raise_or_warn
from quadlin.estimators.signals.vectors import (
    NOTABLE,
    MeasurementEstimator,
    adopt_columns,
    checked_measurements,
    checked_vectors,
    counted,
    forget_names,
    search_effort,
    share_of,
    warn_of_rest,
    weights_of,
)
from quadlin.solve.lowrank.types import Status, finished
from quadlin.solve.signals.bilinear import sense_pairs
from quadlin.solve.signals.measurements import distinct_rows
from quadlin.solve.signals.results import Rest, Sensed, pair_unknowns, symmetric_unknowns
from quadlin.solve.signals.search import Effort
from quadlin.solve.signals.second_look import background_of
from quadlin.solve.signals.symmetric import constant_columns, sense_symmetric

FEW = 2  # measurements per unknown: from fewer, a wrong matrix may fit as well as the right one
WEAK = (Status.too_few_rows, Status.out_of_passes)


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
        rows it chooses the rank that best predicts a held-out fifth of the rows.
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
        effort, draft = search_effort(self), copy(self)  # Ctrl-C must not change the names
        is_pair = holds_pair(A)
        with no_model_yet():
            rank = rank_of(self, is_pair)
            if is_pair:
                rows: tuple[Any, Any] = pair_of_rows(A)
                draft.n_features_in_ = rows[0].shape[1] + rows[1].shape[1]
                forget_names(draft)
            else:
                rows = checked_vectors(draft, A, reset=True), None
            y = checked_measurements(self, rows[0], y)
            weight = weights_of(sample_weight, y)
            task = MatrixTask(*rows, y, weight, rank, bool(self.psd), effort, seed_of(self))
            found = task.sensed(rank, bool(self.fit_intercept))
        adopt_columns(self, draft)
        self.left_, self.values_, self.right_ = found.U, found.s, found.V
        self.intercept_, self.history_, self.is_pair_ = found.intercept, found.history, is_pair
        self.status_ = found.status
        ended = found.status is not Status.interrupted
        if ended and not task.is_determined(found, bool(self.fit_intercept)):
            self.status_ = Status.undetermined
        raise_or_warn(self, self.status_, Status.undetermined)
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
        left, right = rows
        measured = (left @ self.left_) * (right @ self.right_) @ self.values_
        return np.asarray(measured + self.intercept_)

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


class MatrixTask(NamedTuple):
    """Measurements that were checked, and what is wanted of the matrix."""

    A: Any
    B: Any  # None for a symmetric matrix
    y: np.ndarray
    weight: np.ndarray
    rank: int | None  # None: the best one
    psd: bool
    effort: Effort
    seed: int

    def sensed(self, rank: int | None, constant: bool) -> Sensed:
        """Return the matrix of a rank, with a background or without."""
        A, B, y, weight, *_ = self
        if B is None:
            more = (self.effort, self.seed, constant, self.psd)
            return sense_symmetric(A, y, weight, rank, *more)
        return sense_pairs(A, B, y, weight, rank, self.effort, self.seed, constant)

    def unknowns(self, rank: int) -> int:
        """Return how many numbers a matrix of some rank has."""
        d = self.A.shape[1]
        if self.B is None:
            return symmetric_unknowns(d, rank)
        return pair_unknowns(d, self.B.shape[1], rank)

    def again(self, rank: int | None, constant: bool) -> tuple[Sensed, Rest]:
        """Return the matrix of a rank, and what it leaves; only the first fit warns."""
        with catch_warnings():
            simplefilter("ignore")
            sensed = finished(self.sensed(rank, constant))
        return sensed, self.rest(sensed, self.n_distinct, constant)

    @property
    def n_distinct(self) -> int:
        """Return how many measurements differ."""
        return distinct_rows(self.A, self.weight, *([] if self.B is None else [self.B]))

    def rest(self, sensed: Sensed, n: int, constant: bool) -> Rest:
        """Return what a matrix leaves of y."""
        fitted = sensed.predict(self.A, self.A if self.B is None else self.B)
        unknowns = self.unknowns(len(sensed.s)) + constant
        robust_of = n if self.effort.robust else None
        return Rest.of(self.y, fitted, self.weight, unknowns, robust_of)

    def is_determined(self, sensed: Sensed, constant: bool) -> bool:
        """Tell whether the measurements determine the matrix; warn of that, and of what is left."""
        n, k = self.n_distinct, len(sensed.s)
        rest = self.rest(sensed, n, constant)
        if self.B is None:
            warn_of_diagonal(self.A, k)
        other = None
        if not rest.exact and not constant:
            other = background_of(rest, self.again, self.rank)
        if other is not None:
            size, k_other = other[0].intercept, len(other[0].s)
            warn(
                f"y seems to contain a background of about {size:.3g}, the same for each "
                f"measurement: with it, a matrix of rank {k_other} leaves "
                f"{share_of(other[1].left)} of the variance of y unexplained; without it, the "
                f"matrix of rank {k} leaves {share_of(rest.left)}. Use fit_intercept=True to "
                "estimate both; if all vectors have the same length, it measures the same as a "
                "number on the diagonal of M."
            )
        few = n < rest.unknowns or (not rest.exact and n < FEW * rest.unknowns)
        higher = self.unknowns(k + 1) + constant
        many = int(np.count_nonzero(self.weight))
        if few or sensed.status in WEAK:
            warn(
                f"{counted(n, many)} {'does' if n == 1 else 'do'} not determine a matrix of rank "
                f"{k}, which has {rest.unknowns} unknowns"
                f"{'' if rest.exact else ' and does not explain them exactly'}. Add measurements "
                "by other vectors, about two for each unknown, or lower `rank`."
            )
        elif rest.left > NOTABLE and n < FEW * higher:
            warn(
                f"The matrix of rank {k} leaves {share_of(rest.left)} of the variance of y "
                f"unexplained, and {n} measurements are too few to tell noise from a matrix of "
                f"rank {k + 1}, which has {higher} unknowns. Add measurements by other vectors."
            )
        else:
            if other is None:
                offset = "" if constant else "an offset (fit_intercept=True) "
                causes = f"a rank that is too low, {offset}or a linear part of y"
                warn_of_rest(rest, f"matrix of rank {k}", causes, self.effort.robust)
            return True
        return False


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
