r"""The regression with pairs of all rows so far, of a stream.

It is a sum of Gram matrices. For labels it sums the least squares that approximate the deviance of
each batch around the model before it: Newton's method with the information of all rows so far, each
row seen once. With a low-rank part its columns are those of L's tangent space where the regression
began, so one solution is a Gauss–Newton step from there.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from quadlin.core.arrays import Array, moved, namespace, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive, folded
from quadlin.core.losses import FLATTEST, LOSSES
from quadlin.core.model import Model, with_rank
from quadlin.core.rows import Rows
from quadlin.core.units import Units, watchful_scale
from quadlin.solve.lowrank.design import EXACT_COLUMNS, Basis, Design
from quadlin.solve.lowrank.levels import Fields, settled
from quadlin.solve.lowrank.types import Options
from quadlin.solve.pairs.products import PairTerms, Parts, whole
from quadlin.solve.pairs.regression import Penalties, Regression
from quadlin.solve.pairs.search import MOST_FEATURES, Pair


@dataclass(frozen=True)
class PairNotes:
    """What a search has tried, and its path to the chosen pairs."""

    n_rows: int
    candidates: int
    path: tuple[tuple[float, float], ...]  # the criterion and R², with the first 0, 1, … of them
    exchangeable: tuple[tuple[Pair, Pair, float], ...] = ()
    at_limit: bool = False
    deviance: bool = False  # whether R² is D², the share of the deviance of labels


@dataclass(frozen=True)
class JointGram(Additive):
    """The least squares that approximate a loss near f = φᵀθ, to second order.

    They have weights ωh and responses f − l′/2h; for squared errors they are exact.
    """

    gram: Array  # (1 + p + 1, …), of (1, φ) and the response
    loss: float  # Σω · loss at f


def joint_gram(chunk: Chunk, design: Design, beta: Array, loss: str) -> JointGram:
    """Sum over one chunk; β are the intercept and θ."""
    return folded(_joint_gram, design.parts(chunk), (design, beta, loss))[0]  # type: ignore[return-value]


def _joint_gram(chunk: Chunk, design: Design, beta: Array, loss: str) -> JointGram:
    A, of = design.columns(chunk), LOSSES[loss]
    xp, f = namespace(A), A[:, :-1] @ beta
    omega = xp.asarray(chunk.weights, device=A.device)
    value, slope = of.value_and_slope(f, A[:, -1])
    h = xp.clip(of.curvature(f), min=FLATTEST)
    A = xp.concat([A[:, :-1], (f - slope / h)[:, None]], axis=1)
    return JointGram(A.T @ ((omega * h)[:, None] * A), float(xp.sum(omega * value)))


@dataclass(frozen=True)
class RunningPairs:
    """The regression of all rows so far on features, a low-rank part that moves, and products."""

    units: Units  # which stay the same
    W: Array  # (d, d), the basis in which the regression began, the span of L first
    rank: int  # of L
    i: np.ndarray  # (m,), i ≤ j
    j: np.ndarray  # (m,)
    order: np.ndarray  # (m,), of entry, from 1
    gram: Array  # (1 + p + 1, 1 + p + 1), of all columns and the response
    alpha: Penalties
    loss: str = "squared"

    @classmethod
    def begun(
        cls,
        low_rank: Model,
        terms: PairTerms,
        units: Units,
        order: np.ndarray,
        alpha: Penalties,
        rows: Rows,
        loss: str,
    ) -> "RunningPairs | None":
        """Return the regression around a model that was fitted to rows: one pass.

        None if the parameters do not fit in a matrix.
        """
        d, k = low_rank.U.shape
        if d > MOST_FEATURES or d * k > EXACT_COLUMNS:
            return None
        # Features that are constant so far count as soon as they vary.
        units = replace(units, scale=watchful_scale(units))
        W, nothing = Basis.at(low_rank.U, units).W, np.zeros((0, 0))
        empty = cls(units, W, k, terms.i, terms.j, order, nothing, alpha, loss)
        design, (U, s, free) = empty.design, (low_rank.U, low_rank.s, low_rank.free)
        rho = to_numpy(units.penalty_scale).astype(np.float64)
        products = terms.coef * rho[terms.i] * rho[terms.j]
        constant = low_rank.c - float(free @ ((U * U) @ s))
        beta = np.concatenate([[constant], design.parameters(low_rank), products])
        return replace(empty, gram=empty._sums(rows, beta).gram)

    @property
    def design(self) -> Design:
        """Return the columns of the regression."""
        i, j = to_numpy(self.i), to_numpy(self.j)
        return Design(self.units, Options(self.rank), Basis(self.W, self.rank), i, j)

    def _sums(self, rows: Rows, beta: np.ndarray) -> JointGram:
        args = self.design, moved(beta, self.units.scale), self.loss
        sums: JointGram = rows.reduce(joint_gram, *args)
        return replace(sums, gram=to_numpy(sums.gram))

    def sums(self, rows: Rows) -> JointGram:
        """Return the Gram matrix of new rows, and their loss before they are learned: one pass."""
        return self._sums(rows, np.append(self.regression.constant, self.regression.theta))

    def with_sums(self, gram: Array) -> "RunningPairs":
        """Return the regression with the rows of another Gram matrix."""
        return replace(self, gram=to_numpy(self.gram) + gram)

    @property
    def size(self) -> int:
        """Return the number of parameters."""
        return int(self.gram.shape[0]) - 1

    @property
    def weight(self) -> float:
        """Return the weight of the rows; for labels, the sum of ωp(1 − p)."""
        return float(self.gram[0, 0])

    @cached_property
    def regression(self) -> Regression:
        """Return the solution."""
        return Regression.of(to_numpy(self.gram), self.design, self.alpha)

    @property
    def freedom(self) -> float:
        """Return the rows beyond the effective parameters."""
        return self.weight - self.regression.dof

    @property
    def noise(self) -> float:
        """Return the variance of the noise of a row of weight 1, which is known for labels."""
        if self.loss != "squared":
            return 1.0
        return self.regression.loss / self.freedom if self.freedom > 0 else np.nan

    def model(self, fields: Fields) -> tuple[Model, Parts]:
        """Return the model of all rows so far, always of the same rank, and its parts."""
        regression, i, j = self.regression, to_numpy(self.i), to_numpy(self.j)
        low_rank = self.design.model(regression.theta, regression.constant)
        terms = PairTerms(i, j, regression.coef)
        d, most = len(self.W), min(2 * len(i), len(np.union1d(i, j)))
        together = settled(whole(low_rank, terms), self.units, fields)
        low_rank = settled(low_rank, self.units, fields)
        parts = Parts(low_rank.U, low_rank.s, terms)
        return with_rank(together, min(d, self.rank + most)), parts
