r"""The regression of features, a low-rank part that moves, and products, with robust errors.

It is a linear model (`Gram`) whose design has chosen products. A row's influence on a product is
its part of φᵀA⁻¹, and its residual that of a fit without the row, r/(1 − h), with h = φᵀA⁻¹φ (HC3).
Which products belong in it is decided stepwise, on its Gram matrix, by the extended BIC

.. math:: \mathrm{EBIC}(T) = N \log \mathrm{RSS}(T) + \mathrm{df}(T) \log N + 2 \log \binom{p}{|T|}

N is the weight of the rows less the parameters that are always fitted, p the number of candidates
that were tried: the last term is the price of trying them.

A stream continues the regression with new rows, since Gram matrices add. For labels they are those
of the least squares that approximate the deviance of each batch around the model before it:
Newton's method with the information of all rows so far, each row seen once. With a low-rank part
its columns are those of L's tangent space where the regression began, so one solution is a
Gauss–Newton step from there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, lgamma, log
from typing import Any

import numpy as np
from scipy.special import stdtr

from quadlin.core.arrays import Array, moved, namespace, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive, folded
from quadlin.core.losses import FLATTEST, LOSSES
from quadlin.core.model import Model, with_rank
from quadlin.core.rows import Rows
from quadlin.core.units import Units, watchful_scale
from quadlin.solve.lowrank.design import EXACT_COLUMNS, Basis, Design
from quadlin.solve.lowrank.levels import Fields, settled
from quadlin.solve.lowrank.linear_model import Gram, inverse_root, with_ridge
from quadlin.solve.lowrank.observations import LEAST_FREEDOM
from quadlin.solve.lowrank.types import NO_NOISE, Options
from quadlin.solve.pairs.products import MOST_FEATURES, Pair, PairTerms, Parts, whole

COLLINEAR = 1e-7  # of a column's own power: if less remains, others explain it
Penalties = tuple[float, float, float]  # on w, on L and on the products


@dataclass(frozen=True)
class Regression:
    """The optimum of a linear model with products, in float64: A⁻¹ = T Tᵀ, θ = A⁻¹ φᵀΩy."""

    gram: Gram
    alpha: Penalties

    @classmethod
    def of(cls, G: np.ndarray, design: Design, alpha: Penalties) -> "Regression":
        """Return the regression of the products of (1, φ, y)."""
        return cls(Gram.from_products(G, design), alpha)

    @cached_property
    def ridge(self) -> np.ndarray:
        """Return the ridge of each parameter, (p,)."""
        return self.gram.ridge(self.gram.of_groups(self.alpha))

    @cached_property
    def root(self) -> np.ndarray:
        """Return T, (p, r), without directions that rows and ridge do not determine."""
        return inverse_root(with_ridge(self.gram.products, self.ridge))

    @cached_property
    def theta(self) -> np.ndarray:
        """Return the coefficients of all columns."""
        return np.asarray(self.root @ (self.root.T @ self.gram.right))

    @property
    def constant(self) -> float:
        """Return the intercept."""
        return float(self.gram.mean[-1] - self.gram.mean[:-1] @ self.theta)

    @property
    def dof(self) -> float:
        """Return the effective number of parameters."""
        return float(1 + self.root.shape[1] - self.ridge @ np.sum(self.root**2, axis=1))

    @property
    def objective(self) -> float:
        """Return Σω r² and the penalties."""
        return self.loss + float(self.ridge @ self.theta**2)

    @property
    def loss(self) -> float:
        """Return Σω r²; rounding would make that of an exact fit negative."""
        gram, theta = self.gram, self.theta
        return max(gram.power + float(theta @ (gram.products @ theta - 2 * gram.right)), 0.0)

    @cached_property
    def products(self) -> np.ndarray:
        """Return the rows of T of the products, for z_i z_j, (m, r)."""
        assert self.gram.design is not None
        i, j = self.gram.design.i, self.gram.design.j
        rho = to_numpy(self.gram.design.units.penalty_scale).astype(np.float64)
        return np.asarray(self.root[len(self.root) - len(i) :] / (rho[i] * rho[j])[:, None])

    @property
    def coef(self) -> np.ndarray:
        """Return the coefficients of the products z_i z_j."""
        return np.asarray(self.products @ (self.root.T @ self.gram.right))

    @property
    def variance(self) -> np.ndarray:
        """Return their variances for noise of variance 1."""
        return np.asarray(np.sum(self.products**2, axis=1))

    def rest(self, base: "Regression") -> np.ndarray:
        """Return the Gram matrix of products and response, all of the base projected out of them.

        The base has the same columns without the products.
        """
        gram, b = self.gram, len(base.theta)
        A = with_ridge(gram.products, self.ridge)
        whole = np.block([[A, gram.right[:, None]], [gram.right, gram.power]])
        onto = base.root.T @ whole[:b, b:]
        return np.asarray(whole[b:, b:] - onto.T @ onto)

    def still(self, fixed: np.ndarray) -> "Regression":
        """Return the regression with the tangent directions at some coefficients."""
        gram, d = self.gram, self.gram.sizes[0]
        at = np.arange(d, d + len(fixed))
        kept = np.setdiff1d(np.arange(len(gram.right)), at)
        along, mean = gram.products[:, at] @ fixed, gram.mean.copy()
        mean[-1] -= mean[at] @ fixed
        left = Gram(
            gram.products[np.ix_(kept, kept)],
            (gram.right - along)[kept],
            gram.power - 2 * float(gram.right[at] @ fixed) + float(along[at] @ fixed),
            gram.weight,
            [len(kept)],
            self.ridge[kept],
            mean=mean[[*kept, -1]],
        )
        return replace(self, gram=left, alpha=(1.0, 0.0, 0.0))

    def errors(
        self, rows: Rows, contrast: np.ndarray | None = None, noise: float | None = None
    ) -> "Errors":
        """Return the standard errors of the products: one pass.

        Or of the rows of `contrast` times their coefficients; not robust if `noise` is known. With
        a the influence of the rows on a coefficient, (Σa²)²/Σa⁴ is the number of rows that
        determine it: all of them if their influences are equal, one if the others have none.
        """
        gram = self.gram
        assert gram.design is not None
        ends = self.products if contrast is None else contrast @ self.products
        arrays = (self.root, self.theta, gram.mean, ends.T)
        args = (moved(a, gram.design.units.scale) for a in arrays)
        sums = to_numpy(rows.reduce(error_sums, gram.design, *args, gram.share))
        spread, squares, fourths = np.maximum(sums, 1e-300)
        spread = spread if noise is None else noise * squares
        return Errors(np.sqrt(spread), np.maximum(squares**2 / fourths - 1, LEAST_FREEDOM))


def error_sums(chunk: Chunk, design: Design, *numbers: Any) -> Array:
    """Return Σω (a_m r / (1 − h))², Σω a_m² and Σω a_m⁴ of products, (3, m).

    a_m is the influence of a row on β_m, and h its leverage.
    """
    return folded(_error_sums, design.parts(chunk), (design, *numbers))[0]


def _error_sums(
    chunk: Chunk, design: Design, root: Array, theta: Array, mean: Array, ends: Array, share: float
) -> Array:
    A = design.columns(chunk)[:, 1:] - mean
    A, y, xp = A[:, :-1], A[:, -1], namespace(A)
    omega = xp.asarray(chunk.weights, device=A.device)
    along = A @ root
    squared = (along @ ends) ** 2
    # Of a fit without the row, or without one of the observations that it stands for.
    leverage = xp.clip(omega, max=1.0) * (xp.sum(along * along, axis=1) + share)
    left_out = (y - A @ theta) / (1 - xp.clip(leverage, max=1 - LEAST_FREEDOM))
    return xp.stack([(omega * left_out**2) @ squared, omega @ squared, omega @ squared**2])


@dataclass(frozen=True)
class Errors:
    """Standard errors of coefficients, and how sure these are."""

    std: np.ndarray  # (m,)
    freedom: np.ndarray  # (m,), the number of rows that determine the standard error, less one

    def log_tail(self, coef: np.ndarray) -> np.ndarray:
        """Return log P(T > |t|) of each coefficient, T of Student's distribution."""
        with np.errstate(divide="ignore"):
            tail: np.ndarray = np.log(stdtr(self.freedom, -np.abs(coef) / self.std))
        return tail


def log_choices(candidates: int, taken: int) -> float:
    """Return log(p choose k)."""
    if taken > candidates:
        return inf
    k, p = taken, candidates
    return lgamma(p + 1) - lgamma(k + 1) - lgamma(p - k + 1)


@dataclass(frozen=True)
class Criterion:
    """The extended BIC of a residual sum of squares; smaller is better.

    Examples
    --------
    >>> criterion = Criterion(rows=1000.0, candidates=820, power=1000.0)
    >>> criterion(loss=500.0, dof=1, taken=1) < criterion(loss=1000.0, dof=0, taken=0)
    True
    >>> criterion(loss=990.0, dof=1, taken=1) < criterion(loss=1000.0, dof=0, taken=0)
    False
    """

    rows: float  # N
    candidates: int  # p
    power: float  # Σω y², for what counts as zero
    noise: float | None = None  # its variance, if known: then RSS/σ² replaces N log RSS

    def __call__(self, loss: float, dof: float, taken: int) -> float:
        """Return the EBIC of a model with this loss, and `dof` parameters in `taken` candidates."""
        return float(self.values(np.float64(loss), dof, taken))

    def values(self, loss: np.ndarray | np.float64, dof: Any, taken: int) -> np.ndarray:
        """Return the EBIC of several models of `taken` candidates."""
        least = max(NO_NOISE * self.power, 1e-300)
        fit: Any = self.rows * np.log(np.maximum(loss, least))
        if self.noise is not None:
            fit = loss / self.noise
        # Given pairs may be none of the candidates.
        choices = log_choices(max(self.candidates, taken), taken)
        return np.asarray(fit + dof * log(self.rows) + 2 * choices)

    def entry(self, taken: int) -> float:
        """Return the t² that the next single column must exceed, for many rows."""
        rise = log_choices(self.candidates, taken + 1) - log_choices(self.candidates, taken)
        return log(self.rows) + 2 * max(rise, 0.0)


@dataclass(frozen=True)
class PairChoice:
    """The chosen groups, in the order of entry, and the remaining loss."""

    taken: tuple[int, ...]  # positions of groups
    loss: float  # Σω r²
    dof: int
    value: float  # of the criterion


class Stepwise:
    """Forward, backward and exchange steps over groups of columns, on their Gram matrix.

    The matrix, (m + 1)², is that of the columns and the response after everything that is always
    fitted was projected out of them. Each step lowers the criterion, so the steps end; ties go to
    the first candidate, so callers order candidates by their features.
    """

    def __init__(
        self, gram: np.ndarray, groups: Sequence[np.ndarray], criterion: Criterion
    ) -> None:
        size = np.sqrt(np.maximum(np.diag(gram), 1e-300))
        size[-1] = 1.0
        self.gram = gram / np.outer(size, size)  # of columns of power 1, and the response
        self.groups, self.criterion = groups, criterion
        self.single = np.array([len(group) == 1 for group in groups], bool)
        self.first = np.array([group[0] for group in groups], dtype=np.int64)

    def run(
        self, start: Iterable[int] = (), banned: Iterable[int] = (), most: int = 100
    ) -> PairChoice:
        """Return the choice at which no single step lowers the criterion."""
        refused, current = np.zeros(len(self.groups), bool), self.judged(tuple(start))
        refused[list(banned)] = True
        while True:
            better = self._backward(current)
            if better is None and len(current.taken) < most:
                better = self._replaced(current, current.taken, refused)
            for g in reversed(current.taken if better is None else ()):
                kept = tuple(t for t in current.taken if t != g)
                better = better or self._replaced(current, kept, refused)
            if better is None:
                return current
            current = better

    def judged(self, taken: tuple[int, ...]) -> PairChoice:
        """Return the choice of these groups."""
        basis = self._basis(taken)
        loss = max(float(self.gram[-1, -1] - basis[:, -1] @ basis[:, -1]), 0.0)
        dof = len(basis)
        return PairChoice(taken, loss, dof, self.criterion(loss, dof, len(taken)))

    def columns(self, taken: Iterable[int]) -> np.ndarray:
        """Return the columns of these groups, each once, in order of entry."""
        parts = [self.groups[g] for g in taken]
        return np.array(list(dict.fromkeys(c for part in parts for c in part)), dtype=np.int64)

    def exchanges(self, choice: PairChoice, within: float) -> dict[int, list[tuple[int, float]]]:
        """Return, for each chosen group, the groups that could replace it, and at what cost."""
        near: dict[int, list[tuple[int, float]]] = {}
        for group in choice.taken:
            gaps = self._additions(tuple(t for t in choice.taken if t != group)) - choice.value
            gaps[group] = inf
            others = np.flatnonzero(gaps <= within)
            near[group] = sorted(((int(g), float(gaps[g])) for g in others), key=lambda p: p[1])
        return near

    def _replaced(
        self, current: PairChoice, kept: tuple[int, ...], refused: np.ndarray
    ) -> PairChoice | None:
        """Return the kept groups with the best further one, if that lowers the criterion."""
        values = np.where(refused, inf, self._additions(kept))
        values[list(current.taken)] = inf
        if not values.size or not values.min() < current.value:
            return None
        best = int(np.argmin(np.round(values, 6)))  # the first of those equal to rounding
        return self._if_better((*kept, best), current)

    def _backward(self, current: PairChoice) -> PairChoice | None:
        """Leave out the group without which the criterion is the lowest, if that is better."""
        fewer = (tuple(t for t in current.taken if t != g) for g in current.taken)
        least = min(map(self.judged, fewer), key=lambda choice: choice.value, default=current)
        return self._if_better(least.taken, current)

    def _if_better(self, taken: tuple[int, ...], current: PairChoice) -> PairChoice | None:
        choice = self.judged(taken)
        return choice if choice.value < current.value - 1e-6 else None

    def _additions(self, taken: tuple[int, ...]) -> np.ndarray:
        """Return the criterion with each group added to those chosen; inf if it adds nothing."""
        basis, gram, count = self._basis(taken), self.gram, len(self.groups)
        power = np.diag(gram) - np.sum(basis**2, axis=0)
        cross = gram[:-1, -1] - basis[:, :-1].T @ basis[:, -1]
        alive = power[:-1] > COLLINEAR
        gain = np.where(alive, cross**2 / np.where(alive, power[:-1], 1.0), 0.0)[self.first]
        rank = alive[self.first].astype(np.int64)
        for g in np.flatnonzero(~self.single).tolist():
            c = self.groups[g]
            values, V = np.linalg.eigh(gram[np.ix_(c, c)] - basis[:, c].T @ basis[:, c])
            V = V[:, values > COLLINEAR] / np.sqrt(values[values > COLLINEAR])
            gain[g], rank[g] = np.sum((V.T @ cross[c]) ** 2), V.shape[1]
        loss = np.maximum(max(power[-1], 0.0) - gain, 0.0)
        values = self.criterion.values(loss, len(basis) + rank, len(taken) + 1)
        usable = rank > 0
        usable[list(taken)] = False
        return np.where(usable, values, inf) if count else np.zeros(0)

    def _basis(self, taken: tuple[int, ...]) -> np.ndarray:
        """Return the coordinates of all columns and the response on the chosen columns' span."""
        index = self.columns(taken)
        root = inverse_root(self.gram[np.ix_(index, index)], COLLINEAR)
        return np.asarray(root.T @ self.gram[index])


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
    W: Array  # (d, d), the basis in which the regression began, the span of L first; or (d, 0)
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
        W, nothing = Basis.at(low_rank.U, units).W if k else low_rank.U, np.zeros((0, 0))
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
        basis = Basis(self.W, self.rank) if self.rank else Basis.at(self.W, self.units)
        return Design(self.units, Options(self.rank), basis, i, j)

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
