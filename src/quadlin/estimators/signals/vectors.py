"""What both estimators share: vectors and measurements that are checked, and words for results."""

from os import PathLike
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import issparse
from scipy.sparse.linalg import LinearOperator
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.validation import check_array, check_is_fitted

from quadlin.core.arrays import refuse_broken_sparse
from quadlin.core.messages import warn
from quadlin.data.columns import check_frame
from quadlin.estimators.checks import (
    check_parameters,
    check_targets,
    checked_weight,
    float_types,
    refuse_masked,
    validated,
)
from quadlin.solve.lowrank.types import Record, Status
from quadlin.solve.signals.results import Rest
from quadlin.solve.signals.search import Effort

LARGEST = 1e140  # number whose square, and sums of it, are numbers too
OFTEN, POOR = 0.25, 0.2  # of the rows left out, of the variance left: more deserves a word
NOTABLE = 0.01  # of the variance of y: more may be a matrix of higher rank, less has a decimal


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
    estimator.n_features_in_ = draft.n_features_in_
    if hasattr(draft, "feature_names_in_"):
        estimator.feature_names_in_ = draft.feature_names_in_
    else:
        forget_names(estimator)


def forget_names(estimator: Any) -> None:
    """Forget the names of columns of an earlier fit: these rows have none."""
    if hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_


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
    if np.iscomplexobj(np.asarray(y)):
        raise ValueError("Complex data not supported in y: measurements are real numbers.")
    check_targets(y)
    y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
    y = column_or_1d(y, warn=True)
    if not isinstance(A, LinearOperator):
        check_consistent_length(A, y)
    elif A.shape[0] != len(y):
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


def counted(n: int, rows: int) -> str:
    """Return how many measurements there are, as the subject of a sentence."""
    many = "1 measurement" if n == 1 else f"{n} measurements"
    return many if n == rows else f"The {rows} rows hold {n} different vectors: {many}"


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
