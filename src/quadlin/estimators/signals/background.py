"""Whether y contains a background, the same for each measurement, which M took up in part.

The test is that of one more unknown c, aᵀMa + c. At the matrix that was fitted, whose unknowns are
linearised, a notable c only leads to a second fit, of M and c together. A background is claimed if
c is more than four standard errors there, which noise alone is in 6 of 100,000 fits, and if M and c
explain y better than any M without c, for the number of their unknowns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator, lsqr
from sklearn.utils.extmath import row_norms

from quadlin.core.messages import warn
from quadlin.estimators.checks import is_auto
from quadlin.estimators.signals.sensing_rows import constant_columns, share_of, unexplained
from quadlin.solve.signals.measurements import adjoint

SUSPECTED, CLAIMED = 2.0, 4.0  # standard errors of c: noise alone is beyond them in 5%, .006%
STEPS, STEP_TOL = 60, 1e-4  # of the projection on the changes of M
ROUNDING = 1e-6  # of the size of y: residuals are not compared below it
WORSE = 1.1  # of the variance of the noise, which is not known better
MOST = 0.5  # of the variance of y, left unexplained: more says little of M, and less of c
SPARE = 5  # rows beyond the unknowns, at least
SPIKE = 0.5  # of a unit vector, squared, in the span of M: a diagonal entry by itself
EQUAL = 1e-6  # relative differences of lengths that are rounding


@dataclass(frozen=True)
class Explanation:
    """A fitted M = U diag(s) Vᵀ and c, and what they leave of y."""

    rows: tuple[Any, ...]  # A, or A and B
    y: np.ndarray
    weight: np.ndarray
    model: Any
    unknowns: int

    @cached_property
    def rest(self) -> np.ndarray:
        """Return what M and c leave of y."""
        left, right = self.rows[0] @ self.model.left_, self.rows[-1] @ self.model.right_
        return np.asarray(self.y - left * right @ self.model.values_ - self.model.intercept_)

    @cached_property
    def lengths(self) -> np.ndarray | None:
        """Return |a|², which the identity measures; None for pairs."""
        return row_norms(self.rows[0], squared=True) if len(self.rows) == 1 else None

    @property
    def is_level(self) -> bool:
        """Tell whether the identity measures a constant."""
        lengths = self.lengths
        return lengths is not None and bool(np.ptp(lengths) <= EQUAL * np.max(lengths))

    @property
    def n(self) -> int:
        """Return the number of rows that count."""
        return int(np.count_nonzero(self.weight))

    @property
    def loss(self) -> float:
        """Return the mean square of the residuals, at least that of rounding."""
        least = ROUNDING**2 * np.average(self.y**2, weights=self.weight)
        return float(max(np.average(self.rest**2, weights=self.weight), least))

    @property
    def left(self) -> float:
        """Return what is left of the variance of y."""
        return unexplained(self.y, self.loss, self.weight)

    @property
    def noise(self) -> float:
        """Return the variance of the noise."""
        return self.loss * self.n / max(self.n - self.unknowns, 1)

    @property
    def criterion(self) -> float:
        """Return Schwarz's criterion: the lower, the better."""
        return self.n * float(np.log(self.loss)) + self.unknowns * float(np.log(self.n))

    def is_better_than(self, other: "Explanation") -> bool:
        """Tell whether y is explained better, for the number of unknowns, and no worse as such."""
        return self.criterion < other.criterion and self.noise <= WORSE * other.noise

    @property
    def needs_its_background(self) -> bool:
        """Tell whether c is significant, and all that is missing: what is left is noise."""
        if self.left > MOST or abs(self.errors_of_constant()) <= CLAIMED:
            return False
        others = [(self.y - self.rest) ** 2]
        if self.lengths is not None and not self.is_level:
            others.append(self.lengths)
        return all(abs(self.standard_errors(column)) <= CLAIMED for column in others)

    def errors_of_constant(self) -> float:
        """Return c over its standard error."""
        return self.standard_errors(np.ones(len(self.y)), self.model.intercept_)

    def standard_errors(self, column: np.ndarray, present: float = 0.0) -> float:
        """Return the coefficient of a column beside M, over its standard error."""
        root, spare = np.sqrt(self.weight), self.n - self.unknowns
        beside = root * column - self.explained(root * column)
        size = float(beside @ beside)
        if spare < SPARE or not size > 0:
            return 0.0
        change = float(beside @ (root * self.rest)) / size
        squares = self.loss * float(np.sum(self.weight)) - change**2 * size
        variance = max(squares, np.finfo(float).tiny) / spare / size
        return (present + change) / float(np.sqrt(variance))

    def explained(self, target: np.ndarray) -> np.ndarray:
        """Return about the part of a vector that changes of M explain: its projection."""
        factors = (self.model.right_, self.model.left_)[: len(self.rows)]
        parts = [  # A dU has B V beside it, and B dV has A U
            _scaled_change(X, np.sqrt(self.weight)[:, None] * (other @ V))
            for X, other, V in zip(self.rows, self.rows[::-1], factors, strict=True)
        ]
        ends = np.cumsum([scale.size for _, _, scale in parts])

        def forward(x: np.ndarray) -> np.ndarray:
            total = np.zeros(len(target))
            for piece, (X, beside, scale) in zip(np.split(x, ends[:-1]), parts, strict=True):
                change = (scale * piece.reshape(scale.shape)).astype(X.dtype)
                total += np.sum((X @ change) * beside, axis=1)
            return total

        def back(u: np.ndarray) -> np.ndarray:
            u = u.reshape(-1, 1)
            pieces = [scale * adjoint(X, u * beside) for X, beside, scale in parts]
            return np.concatenate([piece.ravel() for piece in pieces])

        shape = (len(target), int(ends[-1]))
        changes = LinearOperator(shape, matvec=forward, rmatvec=back, dtype=np.float64)
        best = lsqr(changes, target, atol=STEP_TOL, btol=STEP_TOL, iter_lim=STEPS)[0]
        return forward(best)


def _scaled_change(X: Any, beside: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return X, what its changes are multiplied by, and units in which they are of similar size."""
    sizes = row_norms(X.T)[:, None] * np.linalg.norm(beside, axis=0) / np.sqrt(len(beside))
    return X, beside, np.divide(1.0, sizes, out=np.zeros_like(sizes), where=sizes > 0)


def warn_of_background(fitted: Callable[..., Explanation]) -> bool:
    """Warn, and tell, if y contains a background; `fitted` returns the fit with some options."""
    first = fitted()
    if not _is_suspected(first):
        return False
    second = fitted(fit_intercept=True)
    if not second.is_better_than(first) or not second.needs_its_background:
        return False
    if not is_auto(first.model.rank) and not second.is_better_than(fitted(rank="auto")):
        return False  # it is the rank that is too low
    text = (
        "y seems to contain a background of about {size:.3g}, the same for each measurement: with "
        "it, a matrix of rank {k} leaves {less} of the variance of y unexplained; without it, the "
        "matrix of rank {first_k} leaves {left}. Use {intercept} to estimate both.{same}"
    )
    left, less = share_of(first.left), share_of(second.left)
    ranks = {"k": second.model.rank_, "first_k": first.model.rank_}
    size = second.model.intercept_
    option, same = "fit_intercept=True", _same_measurements(first, size)
    warn(text.format(size=size, left=left, less=less, intercept=option, same=same, **ranks))
    return True


def _is_suspected(first: Explanation) -> bool:
    """Tell whether a constant would explain more, or M may hold one already.

    A constant column measures a constant as well, and what M says of it is part of M. Where a part
    of y is about a multiple of |a|², the cause is a diagonal of M, or many small components.
    """
    if all(constant_columns(X).any() for X in first.rows):
        return False
    errors = abs(first.errors_of_constant())
    if first.lengths is None:
        return errors > SUSPECTED
    A, U = first.rows[0], first.model.left_
    if errors <= SUSPECTED:
        spikes = np.sum(U[constant_columns(abs(A))] ** 2, axis=1)  # a_j² is a constant by itself
        return bool(np.any(spikes > SPIKE)) or (first.is_level and U.shape[0] == U.shape[1] > 1)
    return first.is_level or errors >= abs(first.standard_errors(first.lengths))


def _same_measurements(first: Explanation, size: float) -> str:
    """Return what measures the same as a background, if there is such a matrix."""
    if first.lengths is None or not first.is_level:
        return ""
    return (
        " All vectors have the same length, so the background measures the same as "
        f"{size / first.lengths[0]:.3g} on each diagonal entry of M: it is one or the other."
    )
