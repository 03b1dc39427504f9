"""Rank-one matrix sensing: a matrix of low rank from measurements aᵀMa or aᵀMb."""

from copy import copy
from dataclasses import replace
from typing import Any, Self
from warnings import catch_warnings, simplefilter

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from quadlin.core.arrays import unflagged
from quadlin.estimators.checks import check_targets, float_types
from quadlin.estimators.learning import no_model_yet, raise_or_warn
from quadlin.estimators.signals.background import Explanation, warn_of_background
from quadlin.estimators.signals.intensities import (
    checked_targets,
    refuse_other_lengths,
)
from quadlin.estimators.signals.phase import (
    MeasurementEstimator,
    adopt_columns,
    forget_names,
    search_effort,
)
from quadlin.estimators.signals.sensing_rows import Recovery, rank_of_pairs, weights_of
from quadlin.estimators.signals.symmetric_sensing import fitted_symmetric, warn_of_diagonal
from quadlin.estimators.signals.vectors import (
    as_pair,
    measurement_rows,
    pair_of_rows,
    refuse_complex,
    refuse_unsquarable,
)
from quadlin.estimators.tasks import seed_of
from quadlin.solve.lowrank.types import Status
from quadlin.solve.signals.bilinear import sense
from quadlin.solve.signals.measurements import distinct_rows
from quadlin.solve.signals.search import Effort

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
        leads to the best M so far. For a symmetric matrix one is enough where M explains 99% of the
        variance of y, or there are six measurements per unknown, or at most 25 columns.
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
        rows, y, weight = self._recover(A, y, sample_weight)
        if self.status_ is not Status.interrupted:
            if not self.is_pair_:
                warn_of_diagonal(rows[0], self.rank_)
            self._judge(rows, y, weight)
        raise_or_warn(self, self.status_, Status.undetermined)
        return self

    def _recover(
        self, A: Any, y: Any, sample_weight: Any
    ) -> tuple[tuple[Any, ...], np.ndarray, np.ndarray]:
        """Recover the matrix from what the user gave, and return that in order."""
        effort = search_effort(self)
        A = as_pair(A)
        refuse_complex(A)
        check_targets(y)
        if isinstance(A, tuple):
            return self._recover_pairs(A, y, sample_weight, effort)
        types = float_types(A)
        if hasattr(A, "shape"):
            refuse_other_lengths(y, A.shape[0], "A has")
        draft = copy(self)  # scikit-learn notes the columns there, so that Ctrl-C changes nothing
        with no_model_yet():
            checks = {"accept_sparse": "csr", "dtype": types, "ensure_min_samples": 2}
            A, y = measurement_rows(draft, A, y, y_numeric=True, **checks)
            refuse_unsquarable(A, "A")
            refuse_unsquarable(y, "y", least=0.0)
            weight = weights_of(sample_weight, y)
            given = None if sample_weight is None else weight
            model, status = fitted_symmetric(self, A, y, given)
            factor, values = np.asarray(model.components_).T, np.asarray(model.eigenvalues_)
            intercept, history = float(model.intercept_), model.history_
        adopt_columns(self, draft)
        self.left_, self.values_, self.right_ = factor, values, factor
        self.intercept_, self.history_, self.is_pair_ = intercept, history, False
        self.status_ = Status.undetermined if status in WEAK else status
        return (A,), np.asarray(y, dtype=np.float64), weight

    def _judge(self, rows: tuple[Any, ...], y: np.ndarray, weight: np.ndarray) -> None:
        """Say where rows do not determine M, or M does not explain y."""
        n = distinct_rows(rows[0], weight, *rows[1:])
        sizes = (len(self.left_), len(self.right_)) if self.is_pair_ else None
        counts = (n, int(np.count_nonzero(weight)), self.rank_)
        flags = (bool(self.psd), bool(self.fit_intercept))
        recovery = Recovery(*counts, sizes, len(self.left_), *flags)
        given = rows if self.is_pair_ else rows[0]
        measured = self._measure(rows[0], rows[-1])  # rows without the names that a frame had
        recovery = recovery.of(y, measured, weight, self.loss == "huber")

        def again(**options: Any) -> Explanation:
            other = clone(self).set_params(**options) if options else self
            if options:
                with catch_warnings():
                    simplefilter("ignore")
                    other._recover(given, y, weight)
                    raise_or_warn(other, other.status_)
            counted = replace(recovery, intercept=bool(other.fit_intercept))
            return Explanation(rows, y, recovery.kept, other, counted.unknowns(other.rank_))

        told = not self.fit_intercept and warn_of_background(again)
        if not recovery.is_determined(self.status_ is not Status.undetermined, told):
            self.status_ = Status.undetermined

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
        A = as_pair(A)
        if isinstance(A, tuple) != self.is_pair_:
            form = "(A, B)" if self.is_pair_ else "A"
            raise ValueError(f"The matrix was fitted to rows {form}: give rows of the same form.")
        if self.is_pair_:
            left, right = pair_of_rows(A)
            widths, expected = (left.shape[1], right.shape[1]), (len(self.left_), len(self.right_))
            if widths != expected:
                raise ValueError(
                    f"A and B have {widths[0]} and {widths[1]} features, but MatrixSensing is "
                    f"expecting {expected[0]} and {expected[1]}."
                )
        else:
            types = float_types(A)
            left = right = measurement_rows(self, A, accept_sparse="csr", dtype=types, reset=False)
        return self._measure(left, right)

    def _measure(self, left: Any, right: Any) -> np.ndarray:
        """Return aᵀMb + c of the rows a and b."""
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

    @unflagged
    def _recover_pairs(
        self, pair: tuple[Any, ...], y: Any, sample_weight: Any, effort: Effort
    ) -> tuple[tuple[Any, ...], np.ndarray, np.ndarray]:
        A, B = pair_of_rows(pair)
        rank = rank_of_pairs(self.rank, self.psd)
        y = checked_targets(y, A.shape[0], "A and B have")
        weight = weights_of(sample_weight, y)
        with no_model_yet():
            constant = bool(self.fit_intercept)
            result = sense(A, B, y, weight, rank, effort, seed_of(self), constant)
        self.left_, self.values_, self.right_ = result.U, result.s, result.V
        self.intercept_ = result.intercept
        self.status_, self.history_ = result.status, result.history
        self.is_pair_, self.n_features_in_ = True, A.shape[1] + B.shape[1]
        forget_names(self)
        return (A, B), y, weight
