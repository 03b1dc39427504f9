r"""The search for a few pairs, y = b + xᵀw + xᵀ(L + S)x with S of few entries.

The moments of the residual, :math:`\sum \omega r z_i z_j`, over their standard errors show which
products are worth trying. A pass gives the Gram matrix of those, of the features and of L's tangent
directions, on which `Stepwise` chooses. Another pass gives the moments of the new residual, and
standard errors that do not trust a few rows. This is repeated until nothing changes. It takes three
or four passes if nothing interacts; otherwise two per round, one for the leverages of rows, and one
for each choice that leaves out products which rest on a few rows only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Any

import numpy as np
from scipy.sparse import csr_array, triu

from quadlin.core.arrays import Array, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive
from quadlin.core.model import Model, predict
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.observations import observed_squares
from quadlin.solve.pairs.products import ProductMoments, level_contrast
from quadlin.solve.pairs.regression import (
    PairRegression,
    Projected,
    RobustErrors,
    Scores,
    Solution,
    residual_moments,
    scores,
    weighted_residuals,
)
from quadlin.solve.pairs.stepwise import SMALLEST, Criterion, PairChoice, Stepwise

Pair = tuple[int, int]
Group = tuple[int, ...]  # products that are chosen together: positions i·d + j, i ≤ j
ROUNDS, MOST_PAIRS = 60, 32
FALSE_ALARMS = 0.05  # of a table without interactions: the level of tests that use few rows
FEWEST, PER_PAIR = 2.0, 10.0  # rows beyond the parameters: for one pair, and for each further one
EXCHANGEABLE = 6.0  # a difference of the criterion, 2·log(20), that is not strong evidence
SHORTLIST, BLOCKS = 48, 4  # products, and blocks of them, that are tried in a round
WORTH_A_LOOK = 0.5  # of the t² for entry, since only two features are projected out here
NEW = 1e-6  # of a product's power: the least that its features must leave of it
FEWEST_TOGETHER = 10  # rows in which two sparse features must occur together
DENSE = 100.0  # σ: columns whose mean is further from zero have next to no zeros
SEARCHED_IN_FULL = 400  # features with the largest scores, of more than fit in a matrix


class Screen:
    """The products that may be chosen, and what 1, z_i and z_j leave of each.

    With fields, the products of a field with another one, or with a feature of none, also compete
    as a block.
    """

    def __init__(
        self, moments: ProductMoments, free: Array, fields: Sequence[np.ndarray], main: Array | None
    ) -> None:
        C, K, F = (to_numpy(a) for a in (moments.second, moments.third, moments.fourth))
        var = np.diag(C)
        with np.errstate(all="ignore"):
            # |q|² less its projection onto 1 and onto (z_i, z_j), whose Gram matrix is 2×2
            det = np.outer(var, var) - C**2
            pull = (K**2 * var[None, :] + K.T**2 * var[:, None] - 2 * C * K * K.T) / det
            np.fill_diagonal(pull, np.diag(K) ** 2 / var)
            left = F - C**2 / moments.weight - pull
            allowed = left > NEW * F
        np.fill_diagonal(allowed, np.diag(allowed) & (to_numpy(free) > 0))
        for field in fields:
            allowed[np.ix_(field, field)] = False
        if main is not None:
            allowed &= main
        self.allowed, self.left = allowed, np.where(allowed, left, 1.0)
        alone = np.setdiff1d(np.arange(len(var)), np.concatenate([[], *fields]))
        self.parts = [np.asarray(part) for part in fields] + [np.array([j]) for j in alone]
        which = np.repeat(np.arange(len(self.parts)), [len(part) for part in self.parts])
        ones = (np.ones(len(var)), (which, np.concatenate(self.parts)))
        self.sum_over = csr_array(ones) if fields else csr_array((0, len(var)))
        counts = np.triu(self._by_parts(allowed.astype(float)) > 1, 1)
        self.blocks = np.argwhere(counts[: len(fields)])  # (b, 2), of a field and another part
        free_levels = np.maximum([len(part) - 1 for part in self.parts], 1)  # they add up to one
        self.dofs = free_levels[self.blocks].prod(axis=1)

    @property
    def candidates(self) -> int:
        """Return the number of products and of blocks of them."""
        return int(np.triu(self.allowed).sum()) + len(self.blocks)

    def shortlist(
        self, score: Scores, criterion: Criterion, taken: int, share: float = WORTH_A_LOOK
    ) -> list[Group]:
        """Return products, and blocks of products, with large moments of the residual."""
        t2 = self._t2(score, criterion)
        least = share * criterion.entry(taken)
        flat = np.flatnonzero(np.triu(t2).ravel() > least)
        flat = flat[np.argsort(-t2.ravel()[flat], kind="stable")[:SHORTLIST]]
        gains = self._by_parts(t2)[*self.blocks.T] - self.dofs * log(criterion.rows)
        best = [b for b in np.argsort(-gains, kind="stable")[:BLOCKS] if gains[b] > least]
        return [(int(p),) for p in flat] + [self._group(*self.blocks[b]) for b in best]

    def largest(self, score: Scores, criterion: Criterion) -> float:
        """Return the largest t² of a product."""
        return float(self._t2(score, criterion).max(initial=0.0))

    def _t2(self, score: Scores, criterion: Criterion) -> np.ndarray:
        noise = criterion.noise or max(score.loss / criterion.rows, 1e-300)
        return np.where(self.allowed, to_numpy(score.moments) ** 2 / (noise * self.left), 0.0)

    def _by_parts(self, matrix: np.ndarray) -> np.ndarray:
        """Return the sums over blocks of a number per product."""
        return np.asarray(self.sum_over @ (self.sum_over @ matrix).T)

    def _group(self, first: int, second: int) -> Group:
        grid = np.array([(i, j) for i in self.parts[first] for j in self.parts[second]])
        i, j = np.sort(grid[self.allowed[*grid.T]], axis=1).T
        return tuple(np.sort(i * len(self.allowed) + j).tolist())


@dataclass(frozen=True)
class PairFit:
    """The chosen pairs, in the order of entry, and their regression."""

    i: np.ndarray  # (m,), i ≤ j
    j: np.ndarray  # (m,)
    entry: np.ndarray  # (m,), the step in which each entered, from 1
    errors: RobustErrors  # as if the pairs had been given
    solution: Solution
    noise: float  # the variance of the noise of a row of weight 1
    left: float  # rows beyond the parameters
    step: Stepwise
    choice: PairChoice  # the pairs and blocks that were chosen from those that were tried
    tried: Sequence[Pair]  # the first product of each group that was tried
    at_limit: bool  # whether no more could be chosen

    @cached_property
    def path(self) -> tuple[PairChoice, ...]:
        """Return the choices of the first 0, 1, … chosen groups."""
        taken = self.choice.taken
        return tuple(self.step.judged(taken[:m]) for m in range(len(taken) + 1))

    @cached_property
    def exchangeable(self) -> tuple[tuple[Pair, Pair, float], ...]:
        """Return chosen pairs with others that are about as good, and the cost of the others."""
        single = self.step.single
        return tuple(
            (self.tried[g], self.tried[other], cost)
            for g, others in self.step.exchanges(self.choice, EXCHANGEABLE).items()
            for other, cost in others
            if single[g] and single[other]
        )


class PairSearch(PairRegression):
    """The search among all products for a regression.

    Parameters
    ----------
    rows, units, model, alpha, features, moments
        As for `PairRegression`.
    fields : sequence of arrays
        One-hot groups, which also compete as wholes.
    candidates : int or None
        Number of products that were tried before these features were selected.
    noise : float or None
        The variance of the noise of a row of weight 1, if known.
    excluded : array of bool (d, d) or None
        Products that may not be chosen.
    """

    def __init__(
        self,
        rows: Rows,
        units: Units,
        *,
        model: Model | None = None,
        alpha: tuple[float, float, float] = (0.0, 0.0, 0.0),
        fields: Sequence[np.ndarray] = (),
        features: np.ndarray | None = None,
        candidates: int | None = None,
        moments: ProductMoments | None = None,
        noise: float | None = None,
        excluded: np.ndarray | None = None,
    ) -> None:
        super().__init__(rows, units, model, alpha, features, moments)
        at = self.columns.features
        allowed = None if excluded is None else ~excluded
        inside = [np.flatnonzero(np.isin(at, field)) for field in fields]
        inside = [field for field in inside if len(field)]
        self.fields = fields
        self.screen = Screen(self.moments, to_numpy(units.free)[at], inside, allowed)
        count = self.screen.candidates if candidates is None else candidates
        self.criterion = Criterion(self.freedom, count, max(self.power, 1e-300), noise)

    def run(self, most: int | None = None) -> PairFit:
        """Search until a round changes nothing: screen, step, and leave out what few rows carry."""
        most = min(MOST_PAIRS, max(1, int(self.freedom // PER_PAIR))) if most is None else most
        listed, banned, screening = Listed(self, ()), set[Group](), True
        choice = listed.step.judged(())
        enough = self.freedom < FEWEST or choice.loss <= SMALLEST * self.power
        self.solution = listed.solution(choice)
        self.score = self._scored(self.solution)
        for _ in range(0 if enough else ROUNDS):
            taken, new = [listed.groups[g] for g in choice.taken], list[Group]()
            if screening and len(taken) < most:
                shortlist = self.screen.shortlist(self.score, self.criterion, len(taken))
                new = [group for group in shortlist if group not in listed.groups]
            doubtful = [] if new else self._doubtful(listed.step, choice)
            if screening and not (new or doubtful):
                break
            if new:
                listed = Listed(self, sorted({*listed.groups, *new}))
            banned |= {listed.groups[g] for g in doubtful}
            if new or doubtful:
                start = [listed.groups.index(group) for group in taken if group not in banned]
                choice = listed.step.run(start, map(listed.groups.index, banned), most)
            self.solution = listed.solution(choice)
            screening = not doubtful  # for others, once no chosen product is doubtful
            self.score = self._scored(self.solution, screening)
        if not screening:
            self.score = self._scored(self.solution)
        errors = RobustErrors.of(self.score, self.criterion.noise)
        return self._fit(self.solution, errors, listed, choice, most)

    def left_out_squares(self) -> np.ndarray:
        """Return ωe² of each observation, left out of the last regression: one pass."""
        chunks = self.rows.collect_beside(weighted_residuals, self.leverages, self.solution)
        return observed_squares(*np.concatenate([p for pieces in chunks for p in pieces], axis=1))

    def from_means(self, fit: PairFit) -> tuple[np.ndarray, RobustErrors]:
        """Return the coefficients with levels measured from their field's mean, and their errors.

        That is the convention of models (`levels`); one pass, if a product has such a level.
        """
        coef, contrast = fit.solution.coef, level_contrast(fit.i, fit.j, self.units, self.fields)
        if contrast is None:
            return coef, fit.errors
        sums = self.rows.reduce_beside(scores, self.leverages, fit.solution, False, contrast)
        return contrast @ coef, RobustErrors.of(sums, self.criterion.noise)

    def tested(
        self,
        i: np.ndarray,
        j: np.ndarray,
        entry: np.ndarray | None = None,
        errors: RobustErrors | None = None,
    ) -> PairFit:
        """Return the regression with given products and its errors: two passes, or one with errors.

        `entry` is the step in which each enters; None means one by one.
        """
        entry = np.arange(1, len(i) + 1) if entry is None else entry
        first, second = self.among(i, j)
        flat = first * self.d + second
        together = (flat[entry == step] for step in np.unique(entry))
        listed = Listed(self, [tuple(sorted(group.tolist())) for group in together])
        choice = listed.step.judged(tuple(range(len(listed.groups))))
        self.solution = listed.solution(choice)
        if errors is None:
            errors = RobustErrors.of(self._scored(self.solution, False), self.criterion.noise)
        return self._fit(self.solution, errors, listed, choice)

    def _scored(self, fit: Solution, look: bool = True) -> Scores:
        """Return the errors of products and, if `look`, the moments of all others: one pass."""
        if len(fit.inverse):
            score: Scores = self.rows.reduce_beside(scores, self.leverages, fit, look)
            return score
        return self.rows.reduce(residual_moments, fit.columns, fit.beta)

    def _doubtful(self, step: Stepwise, choice: PairChoice) -> list[int]:
        """Return single products that rest on a few rows.

        These are the worst, and all that are about as bad. The standard error comes from residuals
        of fits without the row. It is itself less certain if fewer rows determine it, so Student's
        t is compared with its distribution, at a level that is shared by all products.
        """
        place = {c: m for m, c in enumerate(step.columns(choice.taken))}
        single = {g: place[step.first[g]] for g in choice.taken if step.single[g]}
        errors = RobustErrors.of(self.score, self.criterion.noise)
        log_tail = errors.log_tail(self.solution.coef)
        level = log(FALSE_ALARMS / max(self.criterion.candidates, 1))
        doubtful = {g: m for g, m in single.items() if log_tail[m] > level}
        worst = max((log_tail[m] for m in doubtful.values()), default=0.0)
        least = min(worst, level / 4)  # Student's t at about half of the level's
        return [g for g, m in doubtful.items() if log_tail[m] >= least]

    def _fit(
        self,
        solution: Solution,
        errors: RobustErrors,
        listed: "Listed",
        choice: PairChoice,
        most: int = 0,
    ) -> PairFit:
        """Return the result of a search for at most `most` pairs."""
        at, step, columns = self.columns.features, listed.step, solution.columns
        entry = {c: m for m, g in [*enumerate(choice.taken, 1)][::-1] for c in step.groups[g]}
        freedom = self.freedom - choice.dof
        return PairFit(
            at[columns.i],
            at[columns.j],
            np.array([entry[c] for c in step.columns(choice.taken)], dtype=np.int64),
            errors,
            solution,
            self.criterion.noise or choice.loss / max(freedom, 1.0),
            freedom,
            step,
            choice,
            [tuple(at[[*divmod(group[0], self.d)]].tolist()) for group in listed.groups],
            at_limit=0 < most <= len(choice.taken),
        )


class Listed:
    """Groups of products that may be chosen, and the stepwise choice among them.

    One pass, if there are any.
    """

    def __init__(self, search: PairSearch, groups: Sequence[Group]) -> None:
        flat = np.array(sorted({p for group in groups for p in group}), dtype=np.int64)
        self.i, self.j = np.divmod(flat, search.d)
        self.groups, self.columns = [*groups], search.columns
        self.projected: Projected = search.projected(self.i, self.j)
        columns = [np.searchsorted(flat, group) for group in groups]
        self.step = Stepwise(self.projected.rest, columns, search.criterion)

    def solution(self, choice: PairChoice) -> Solution:
        """Return the regression with a choice."""
        index = self.step.columns(choice.taken)
        columns = self.columns.with_pairs(self.i[index], self.j[index])
        return self.projected.solved(columns, index)


@dataclass(frozen=True)
class TogetherScores(Additive):
    """Sums over rows of products s_i·s_j, i < j, of features that occur together."""

    weight: float  # Σω
    loss: float  # Σω r²
    moments: csr_array  # (d, d), Σω r s_i s_j
    power: csr_array  # (d, d), Σω s_i² s_j²
    rows: csr_array  # (d, d), how many rows


def occurrences(chunk: Chunk) -> np.ndarray:
    """Return in how many rows of one chunk each feature is not zero."""
    return np.bincount(chunk.X.indices, minlength=chunk.X.shape[1])


def together(chunk: Chunk, model: Model, units: Units, often: np.ndarray) -> TogetherScores:
    """Sum products of features that occur often enough over one chunk."""
    r = units.standardised_target(chunk.y) - predict(model, Block(chunk.X, units))
    omega = chunk.weights
    X, scale = chunk.X[:, often], units.scale[often].astype(np.float64)
    # Columns with next to no zeros are also centred.
    nu = units.nu[often].astype(np.float64)
    dense = (np.bincount(X.indices, minlength=X.shape[1]) == X.shape[0]) | (np.abs(nu) > DENSE)
    data = X.data * scale[X.indices] - np.where(dense, nu, 0.0)[X.indices]

    def gram(data: np.ndarray, weight: np.ndarray) -> csr_array:
        A = csr_array((data, X.indices, X.indptr), shape=X.shape)
        weighted = csr_array(A.multiply(weight[:, None]))
        return csr_array(triu(A.T @ weighted, k=1))

    grams = (gram(data, omega * r), gram(data**2, omega), gram((data != 0) * 1.0, 1.0 + 0 * r))
    return TogetherScores(float(np.sum(omega)), float(omega @ r**2), *grams)


def sparse_search(
    rows: Rows,
    units: Units,
    model: Model,
    fields: Sequence[np.ndarray] = (),
    alpha: tuple[float, float, float] = (0.0, 0.0, 0.0),
    noise: float | None = None,
) -> PairSearch:
    """Return the search for pairs of any number of sparse features, after a fitted model.

    If two sparse features never occur together, s_i·s_j is zero in every row, and z_i·z_j, which is
    s_i·s_j up to linear terms, adds nothing to w. So it is enough to keep the sums of products that
    occur. Memory: three numbers for each two features that occur together in some row. The features
    with the largest scores, at most 400, are then searched in full; every product that occurred in
    ten rows counts as tried. The w of other features stays as in the model.
    """
    occurs = sum(rows.collect(occurrences))
    often = np.flatnonzero((occurs >= FEWEST_TOGETHER) & (np.asarray(units.scale) > 0))
    sums = rows.reduce(together, model, units, often)
    count = sums.rows.tocoo()
    enough = count.data >= FEWEST_TOGETHER
    i, j = count.row[enough], count.col[enough]
    candidates = max(int(enough.sum()), 1)
    power, moments = (np.asarray(a.tocsr()[i, j]).ravel() for a in (sums.power, sums.moments))
    variance = noise or max(sums.loss / sums.weight, 1e-300)
    t2 = moments**2 / (variance * np.maximum(power, 1e-300))
    entry = Criterion(sums.weight, candidates, max(sums.loss, 1e-300)).entry(0)
    order = np.argsort(-t2, kind="stable")
    order = order[t2[order] > WORTH_A_LOOK * entry]
    both = np.stack([often[i[order]], often[j[order]]], axis=1).ravel()
    features = np.sort([*dict.fromkeys(both.tolist())][:SEARCHED_IN_FULL]).astype(np.int64)
    settings: dict[str, Any] = {"model": model, "alpha": alpha, "fields": fields, "noise": noise}
    return PairSearch(rows, units, features=features, candidates=candidates, **settings)
