"""What measurements say about a matrix: whether they determine it, and what it leaves of them."""

from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

import numpy as np
from scipy.sparse import issparse

from quadlin.core.messages import warn
from quadlin.estimators.checks import checked_weight, is_auto
from quadlin.solve.signals.search import FAR, Majority

FEW = 2.0  # measurements per unknown, below which a wrong optimum may fit as well as the right one
ENOUGH = 2  # measurements per unknown, with which a matrix is found or noise is told from rank
NOTABLE = 0.01  # of the variance of y: more than that may be a matrix of higher rank
LITTLE = 5e-4  # of the variance of y: hardly worth a number
EXACT = 1e-12  # of the variance of y: only rounding
OFTEN = 0.25  # of the rows: more gross errors than that deserve a word
POOR = 0.2  # of the variance of y: more than that deserves a word


def rank_of_pairs(rank: Any, psd: bool) -> int | None:
    """Return the rank that is asked for, None for the best one; refuse what pairs cannot have."""
    auto = is_auto(rank)
    if not auto and (not isinstance(rank, Integral) or rank < 1):
        option = f"rank={rank!r}"
        raise ValueError(f'{option} must be a whole number ≥ 1, or "auto".')
    if psd:
        text = "{psd} needs a symmetric matrix: give one array of rows A."
        raise ValueError(text.format(psd="psd=True"))
    return None if auto else int(rank)


@dataclass(frozen=True)
class Recovery:
    """Whether measurements determine the matrix that was found, and what to say if they do not."""

    n: int  # measurements that differ
    rows: int
    rank: int
    sizes: tuple[int, int] | None  # of a and b; None for a symmetric matrix of `d` rows
    d: int
    psd: bool = False  # whether M has to be positive
    intercept: bool = False  # whether there is a background among the unknowns
    left: float = 0.0  # what M leaves of the variance of y, without gross errors
    exact: bool = True  # whether that is only rounding
    robust: bool = False  # whether gross errors were left out
    left_out: float = 0.0  # their share
    kept: np.ndarray = field(default_factory=lambda: np.ones(0))  # weights without them

    def of(self, y: np.ndarray, fitted: np.ndarray, weight: np.ndarray, robust: bool) -> "Recovery":
        """Return the recovery with what the fitted values leave of y."""
        y, fitted = np.asarray(y, dtype=np.float64), np.asarray(fitted, dtype=np.float64)
        kept, size = weight, np.abs(fitted - y)
        if robust:
            majority = Majority.of(self.n, self.unknowns(self.rank))
            kept = weight * (size <= FAR * majority.sigma(size, weight))
        left = unexplained(y, float(np.average(size**2, weights=kept)), kept)
        share = 1 - float(kept.sum() / weight.sum())
        return replace(
            self, left=left, exact=left <= EXACT, robust=robust, left_out=share, kept=kept
        )

    def unknowns(self, rank: int) -> int:
        """Return how many numbers a matrix of some rank has, with the background."""
        if self.sizes is None:
            return symmetric_unknowns(self.d, rank) + self.intercept
        return rank * (sum(self.sizes) - rank) + self.intercept

    def is_determined(self, converged: bool = True, explained: bool = False) -> bool:
        """Tell whether the measurements determine the matrix, and warn where they do not.

        Also warn of much that is left of y, unless it is explained.
        """
        n, k, unknowns = self.n, self.rank, self.unknowns(self.rank)
        higher = self.unknowns(k + 1)
        if n < unknowns:
            text = (
                "{counted} {do} not determine a matrix of rank {k}, which has {unknowns} "
                "unknowns. Add measurements by other vectors, about two for each unknown, or lower "
                "{rank}."
            )
        elif not converged:
            text = (
                "{counted} hardly {determine} a matrix of rank {k}, which has {unknowns} unknowns, "
                "and the search did not converge. Add measurements by other vectors, or lower "
                "{rank}."
            )
        elif not self.exact and n < FEW * unknowns:
            text = (
                "{counted} hardly {determine} a matrix of rank {k}, which has {unknowns} unknowns "
                "and does not explain them exactly. Add measurements by other vectors, or lower "
                "{rank}."
            )
        elif self.left > NOTABLE and n < ENOUGH * higher:
            text = (
                "The matrix of rank {k} leaves {left} of the variance of y unexplained, and "
                "{n} measurements are too few to tell noise from a matrix of higher rank: one of "
                "rank {next} has {higher} unknowns. Add measurements by other vectors, about two "
                "for each unknown; but {part} would not be explained by any matrix."
            )
        else:
            if self.left > POOR and not explained:
                self._warn_of_rest()
            elif not self.exact:
                warn_of_left_out(self.left_out, "matrix")
            return True
        values = {"n": n, "k": k, "unknowns": unknowns, "rank": "`rank`"}
        values |= {"counted": counted(n, self.rows), "do": "does" if n == 1 else "do"}
        values |= {"determine": "determines" if n == 1 else "determine", "part": self._part}
        warn(text.format(left=share_of(self.left), next=k + 1, higher=higher, **values))
        return False

    @property
    def _part(self) -> str:
        """Return what y may hold beside the measurements of a matrix, and what fits that."""
        text = "a linear part of y (SecondOrderRegressor)"
        text = text if self.intercept else "an offset ({intercept}) or " + text
        return text.format(intercept="fit_intercept=True")

    def _warn_of_rest(self) -> None:
        warn(
            (
                "The matrix of rank {k} leaves {left} of the variance of y unexplained. "
                "The cause may be noise, a rank that is too low, {errors}, {also}{part}."
            ).format(
                k=self.rank,
                left=share_of(self.left),
                errors=gross_errors(self.robust),
                also=("an M that is not positive (psd=True), " if self.psd else ""),
                part=f"or {self._part}" if self.intercept else self._part,
            )
        )


def symmetric_unknowns(d: int, rank: int) -> int:
    """Return how many numbers a symmetric d×d matrix of some rank has."""
    return rank * d - rank * (rank - 1) // 2


def counted(n: int, rows: int) -> str:
    """Return how many measurements there are, as the subject of a sentence."""
    many = "1 measurement" if n == 1 else f"{n} measurements"
    return many if n == rows else f"The {rows} rows hold {n} different vectors: {many}"


def gross_errors(robust: bool) -> str:
    """Return gross errors as a cause, with the loss for them unless it was used."""
    if robust:
        return "gross errors in too many measurements"
    text = "gross errors in some measurements ({huber})"
    return text.format(huber='loss="huber"')


def warn_of_left_out(share: float, result: str) -> None:
    """Warn where many rows were left out as gross errors."""
    if share > OFTEN:
        text = (
            "{share} of the measurements do not fit the {result} and were left out as gross "
            "errors. Look at them before you rely on it: it is what the others agree on."
        )
        warn(text.format(share=share_of(share), result=result))


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
    if left < LITTLE:
        return "next to nothing"
    return f"{left:.{0 if left >= NOTABLE else 1}%}" if left < 1 else "all"


def unexplained(y: np.ndarray, loss: float, weight: np.ndarray | None) -> float:
    """Return the mean square of the residuals over the variance of y."""
    variance = variance_of(y, weight)
    return loss / variance if variance > 0 else float(loss > 0)


def variance_of(y: np.ndarray, weight: np.ndarray | None) -> float:
    """Return the weighted variance of y."""
    y = np.asarray(y, dtype=np.float64)
    return float(np.average((y - np.average(y, weights=weight)) ** 2, weights=weight))


def constant_columns(A: Any) -> np.ndarray:
    """Return a mask of the columns that are constant, and not 0."""
    least, most = A.min(axis=0), A.max(axis=0)
    if issparse(A):
        least, most = least.toarray().ravel(), most.toarray().ravel()
    return np.asarray((least == most) & (most != 0))
