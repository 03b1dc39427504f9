r"""The search for a few pairs, y = b + xᵀw + xᵀ(L + S)x with S of few entries.

The moments of the residual, :math:`\sum \omega r z_i z_j`, over their standard errors show which
products are worth trying. A pass gives the Gram matrix of those, of the features and of L's tangent
directions, on which `Stepwise` chooses. This is repeated until no further product is worth trying;
then a pass gives standard errors that do not trust a few rows, and products which rest on a few
rows only are left out. It takes three passes if nothing interacts, and two per round otherwise.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from functools import cached_property, partial
from math import log

import numpy as np
from scipy.sparse import csr_array, triu, vstack

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.engine import Additive
from quadlin.core.model import Model, constant_model, predict
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.design import EXACT_COLUMNS, EXACT_FEATURES, Design
from quadlin.solve.lowrank.gauss_newton import BACKTRACKS
from quadlin.solve.lowrank.linear_model import column_products
from quadlin.solve.lowrank.types import NO_NOISE, Options
from quadlin.solve.pairs.products import (
    MOST_FEATURES,
    PairTerms,
    ProductMoments,
    ResidualMoments,
    less,
    less_part,
    level_contrast,
    product_moments,
    residual_moments,
    whole,
)
from quadlin.solve.pairs.regression import (
    COLLINEAR,
    Criterion,
    Errors,
    PairChoice,
    PairNotes,
    Penalties,
    Regression,
    Stepwise,
)

Group = tuple[int, ...]  # products that are chosen together: positions i·d + j, i ≤ j
ROUNDS, MOST_PAIRS = 60, 32
STEPS, TOL = 20, 1e-9  # of the joint fit; the relative change of the objective that ends it
FALSE_ALARMS = 0.05  # of a table without interactions: the level of tests that use few rows
# Rows beyond the parameters: for one pair, and for each further one. Two sparse features must occur
# together in as many rows as the latter.
FEWEST, PER_PAIR = 2.0, 10.0
EXCHANGEABLE = 6.0  # a difference of the criterion, 2·log(20), that is not strong evidence
SHORTLIST, BLOCKS = 48, 4  # products, and blocks of them, that are tried in a round
WORTH_A_LOOK = 0.5  # of the t² for entry, since only two features are projected out here


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
            allowed = left > COLLINEAR * F
        np.fill_diagonal(allowed, np.diag(allowed) & (to_numpy(free) > 0))
        for field in fields:
            allowed[np.ix_(field, field)] = False
        if main is not None:
            allowed &= main
        self.allowed, self.left = allowed, np.where(allowed, left, 1.0)
        alone = np.setdiff1d(np.arange(len(var)), np.concatenate([[], *fields]))
        self.parts = [np.asarray(part) for part in fields] + [np.array([j]) for j in alone]
        which = np.repeat(np.arange(len(self.parts)), [len(part) for part in self.parts])
        ones = (np.ones(len(var)), (which, np.concatenate([np.zeros(0, int), *self.parts])))
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
        self, score: ResidualMoments, criterion: Criterion, taken: int, share: float = WORTH_A_LOOK
    ) -> list[Group]:
        """Return products, and blocks of products, with large moments of the residual."""
        t2 = self._t2(score, criterion)
        least = share * criterion.entry(taken)
        flat = np.flatnonzero(np.triu(t2).ravel() > least)
        flat = flat[np.argsort(-t2.ravel()[flat], kind="stable")[:SHORTLIST]]
        gains = self._by_parts(t2)[*self.blocks.T] - self.dofs * log(criterion.rows)
        best = [b for b in np.argsort(-gains, kind="stable")[:BLOCKS] if gains[b] > least]
        return [(int(p),) for p in flat] + [self._group(*self.blocks[b]) for b in best]

    def largest(self, score: ResidualMoments, criterion: Criterion) -> float:
        """Return the largest t² of a product."""
        return float(self._t2(score, criterion).max(initial=0.0))

    def _t2(self, score: ResidualMoments, criterion: Criterion) -> np.ndarray:
        noise = criterion.noise or max(score.loss / criterion.rows, 1e-300)
        return np.where(self.allowed, to_numpy(score.moments) ** 2 / (noise * self.left), 0.0)

    def _by_parts(self, matrix: np.ndarray) -> np.ndarray:
        """Return the sums over blocks of a number per product."""
        return np.asarray(self.sum_over @ (self.sum_over @ matrix).T)

    def _group(self, first: int, second: int) -> Group:
        grid = np.array([(i, j) for i in self.parts[first] for j in self.parts[second]])
        i, j = np.sort(grid[self.allowed[*grid.T]], axis=1).T
        return tuple(np.sort(i * len(self.allowed) + j).tolist())


class PairSearch:
    """The search among all products for a regression, and the regression with given products.

    Parameters
    ----------
    rows, units
        The rows and their units.
    model : Model or None
        The model so far; None is the constant. Its w is fitted again together with the pairs, and L
        may move a little if its tangent space fits in a matrix.
    alpha : (float, float, float)
        Ridge on w, on L and on the products.
    fields : sequence of arrays
        One-hot groups, which also compete as wholes.
    features : array or None
        Positions of the features of the search; None is all, at most 3,000. The rows are copied
        with only these, and the others stay as in `model`.
    candidates : int or None
        Number of products that were tried before these features were selected.
    moments : ProductMoments or None
        The moments of these features, if they were summed before; None takes a pass.
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
        alpha: Penalties = (0.0, 0.0, 0.0),
        fields: Sequence[np.ndarray] = (),
        features: np.ndarray | None = None,
        candidates: int | None = None,
        moments: ProductMoments | None = None,
        noise: float | None = None,
        excluded: np.ndarray | None = None,
    ) -> None:
        d = int(units.scale.shape[0])
        self.model = constant_model(units, 0, units.target.centre) if model is None else model
        self.all_units, self.fields, self.alpha = units, fields, alpha
        self.features = np.arange(d) if features is None else np.sort(features)
        self.d, k = len(self.features), self.rank
        if self.d > MOST_FEATURES:
            raise ValueError(
                f"There are {self.d:,} features. The search looks at all products of at most "
                f"{MOST_FEATURES:,} features, and in sparse rows at those that occur. Select "
                "features, or give a sparse matrix."
            )
        self.tangent = 0 < k < self.d == d and d * k <= EXACT_COLUMNS
        self.rows, self.units = rows, units
        if self.d < d:
            self.rows, self.units = narrowed(rows, units, self.features, self._stays)
        elif k and not self.tangent:
            self.rows = less(rows, partial(predict, self._stays), units)
        U = self.model.U if self.tangent else units.array(np.zeros((self.d, 0)))
        self.design = Design.at(U, self.units, Options(rank=U.shape[1]))
        self.moments = self.rows.reduce(product_moments, self.units) if moments is None else moments
        self.weight = self.moments.weight
        self.power = self.weight * units.target.power
        self.sums = to_numpy(self.rows.reduce(column_products, self.design).gram)
        self.products, self.with_products = np.zeros(0, np.int64), self.sums  # the last summed
        self.base = Regression.of(self.sums, self.design, alpha)
        self.base_loss, self.freedom = self.base.objective, max(self.weight - self.base.dof, 1.0)
        inside = [np.flatnonzero(np.isin(self.features, field)) for field in fields]
        inside = [field for field in inside if len(field)]
        allowed = None if excluded is None else ~excluded
        self.screen = Screen(self.moments, to_numpy(self.units.free), inside, allowed)
        count = self.screen.candidates if candidates is None else candidates
        self.criterion = Criterion(self.freedom, count, max(self.power, 1e-300), noise)

    @property
    def rank(self) -> int:
        """Return the rank of L."""
        return int(self.model.s.shape[0])

    @property
    def _stays(self) -> Model:
        """Return the part of the model that is not fitted again, with a constant of zero."""
        w = to_numpy(self.model.w).copy()
        w[self.features] = 0
        return replace(self.model, w=self.all_units.array(w), c=0.0)

    def run(self, most: int | None = None) -> "PairFit":
        """Search until a round changes nothing: screen, step, and leave out what few rows carry."""
        most = min(MOST_PAIRS, max(1, int(self.freedom // PER_PAIR))) if most is None else most
        fit, banned, screening = self._listed(()), set[Group](), True
        enough = self.freedom < FEWEST or fit.choice.loss <= NO_NOISE * self.power
        for _ in range(0 if enough else ROUNDS):
            listed, new, doubtful = fit, list[Group](), list[Group]()
            taken = [listed.groups[g] for g in fit.choice.taken]
            if screening and len(taken) < most:
                score = self.rows.reduce(residual_moments, fit.of_rows, self.units)
                shortlist = self.screen.shortlist(score, self.criterion, len(taken))
                new = [group for group in shortlist if group not in listed.groups]
            if new:
                listed = self._listed(sorted({*listed.groups, *new}))
            elif taken:
                doubtful = [listed.groups[g] for g in self._doubtful(fit)]
            banned.update(doubtful)
            if new or doubtful:
                start = [listed.groups.index(group) for group in taken if group not in banned]
                choice = listed.step.run(start, map(listed.groups.index, banned), most)
                fit = listed.taking(choice.taken, most)
            elif screening:
                break
            screening = not doubtful  # for others, once no chosen product is doubtful
        return fit

    def tested(self, i: np.ndarray, j: np.ndarray, entry: np.ndarray | None = None) -> "PairFit":
        """Return the regression with given products: a pass, unless they are those of the last.

        `entry` is the step in which each enters; None means one by one.
        """
        entry = np.arange(1, len(i) + 1) if entry is None else entry
        flat = self._positions(i, j)
        together = (flat[entry == step] for step in np.unique(entry))
        listed = self._listed([tuple(sorted(group.tolist())) for group in together])
        return listed.taking(range(len(listed.groups)))

    def moved(self, fit: "PairFit", size: float) -> "PairFit":
        """Return the regression with L moved by a share of its step, and the same products: a pass.

        The loss and the degrees of freedom without products stay those of the first L.
        """
        other, theta = copy(self), self.design.parameters(self.model)
        theta += size * (fit.regression.theta[: len(theta)] - theta)
        other.model = model = self.design.model(theta, fit.regression.constant)
        other.design = Design.at(model.U, self.units, self.design.options)
        other.products = np.unique(self._positions(fit.i, fit.j))
        design, b = other.design_with(other.products), len(self.sums) - 1
        other.with_products = to_numpy(self.rows.reduce(column_products, design).gram)
        other.sums = np.delete(np.delete(other.with_products, np.s_[b:-1], 0), np.s_[b:-1], 1)
        other.base = Regression.of(other.sums, other.design, self.alpha)
        return other.tested(fit.i, fit.j, fit.entry)

    def design_with(self, products: np.ndarray) -> Design:
        """Return the columns of the regression with products, at positions i·d + j."""
        i, j = np.divmod(products, max(self.d, 1))
        return replace(self.design, i=i, j=j)

    def regression(self, products: np.ndarray) -> Regression:
        """Return the regression with products: one pass, unless they were summed last."""
        if not len(products):
            return self.base
        design, b = self.design_with(products), len(self.sums) - 1
        if not np.isin(products, self.products).all():
            tall = to_numpy(self.rows.reduce(column_products, design, b).gram)
            blocks = [[self.sums[:b, :b], tall[:b]], [tall[:b].T, tall[b:]]]
            self.products, self.with_products = products, np.block(blocks)
        order = np.argsort(self.products)
        at = order[np.searchsorted(self.products, products, sorter=order)]
        kept = np.r_[:b, b + at, len(self.with_products) - 1]
        return Regression.of(self.with_products[np.ix_(kept, kept)], design, self.alpha)

    def _positions(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        first, second = np.searchsorted(self.features, [i, j])
        return np.asarray(first * self.d + second)

    def _listed(self, groups: Sequence[Group]) -> "PairFit":
        """Return a fit without products, to which groups of them may be added: at most one pass."""
        flat = np.array(sorted({p for group in groups for p in group}), dtype=np.int64)
        rest = self.regression(flat).rest(self.base)
        columns = [np.searchsorted(flat, group) for group in groups]
        step = Stepwise(rest, columns, self.criterion)
        return PairFit(self, groups, flat, step, step.judged(()), self.base)

    def _doubtful(self, fit: "PairFit") -> list[int]:
        """Return single products that rest on a few rows: one pass.

        These are the worst, and all that are about as bad. The standard error comes from residuals
        of fits without the row. It is itself less certain if fewer rows determine it, so Student's
        t is compared with its distribution, at a level that is shared by all products.
        """
        step = fit.step
        place = {c: m for m, c in enumerate(step.columns(fit.choice.taken))}
        single = {g: place[step.first[g]] for g in fit.choice.taken if step.single[g]}
        log_tail = fit.errors.log_tail(fit.regression.coef)
        level = log(FALSE_ALARMS / max(self.criterion.candidates, 1))
        doubtful = {g: m for g, m in single.items() if log_tail[m] > level}
        worst = max((log_tail[m] for m in doubtful.values()), default=0.0)
        least = min(worst, level / 4)  # Student's t at about half of the level's
        return [g for g, m in doubtful.items() if log_tail[m] >= least]


@dataclass(frozen=True)
class PairFit:
    """Pairs that were chosen or given for a model, and the regression that they are part of.

    The tangent of L in the regression gives the uncertainty of its parts. The model keeps L as it
    is: if features explain each other, a step along the tangent may have any length.
    """

    search: PairSearch
    groups: Sequence[Group]  # products and blocks of them that were tried
    products: np.ndarray  # theirs, in order
    step: Stepwise  # the choice among them
    choice: PairChoice  # those that were chosen
    regression: Regression
    at_limit: bool = False  # whether no more could be chosen

    def taking(self, taken: Iterable[int], most: int = 0) -> "PairFit":
        """Return the fit with some of the groups, of at most `most` that might be taken."""
        choice = self.step.judged(tuple(taken))
        regression = self.search.regression(self.products[self.step.columns(choice.taken)])
        at_limit = 0 < most <= len(choice.taken)
        return replace(self, choice=choice, regression=regression, at_limit=at_limit)

    @property
    def i(self) -> np.ndarray:
        """Return the first features of the products, in the order of entry, (m,)."""
        return np.asarray(self.search.features[self.design.i])

    @property
    def j(self) -> np.ndarray:
        """Return their second features, i ≤ j."""
        return np.asarray(self.search.features[self.design.j])

    @property
    def design(self) -> Design:
        """Return the columns of the regression."""
        assert self.regression.gram.design is not None
        return self.regression.gram.design

    @cached_property
    def entry(self) -> np.ndarray:
        """Return the step in which each product entered, from 1."""
        step, taken = self.step, self.choice.taken
        entry = {c: m for m, g in [*enumerate(taken, 1)][::-1] for c in step.groups[g]}
        return np.array([entry[c] for c in step.columns(taken)], dtype=np.int64)

    @property
    def size(self) -> int:
        """Return the number of parameters of the regression."""
        return len(self.regression.theta) + 1

    @cached_property
    def still(self) -> Regression:
        """Return the regression with L as it is."""
        return self.regression.still(self._low_rank) if self.search.tangent else self.regression

    @cached_property
    def _low_rank(self) -> np.ndarray:
        """Return the coefficients of L, if it may move."""
        search = self.search
        return search.design.parameters(search.model)[search.d :] if search.tangent else np.zeros(0)

    @property
    def objective(self) -> float:
        """Return Σω r² and the penalties, with L as it is."""
        at = np.arange(self.search.d, self.search.d + len(self._low_rank))
        return self.still.objective + float(self.regression.ridge[at] @ self._low_rank**2)

    @cached_property
    def model(self) -> Model:
        """Return the model without the products."""
        search, still = self.search, self.still
        start, rho = search.model, to_numpy(search.units.penalty_scale).astype(float)
        w, c = to_numpy(start.w).astype(float), still.constant
        w[search.features] = still.theta[: search.d] / rho
        if search.tangent:  # c is the mean of f, and the squares of the regression count as well
            U, s, free = (to_numpy(a).astype(float) for a in (start.U, start.s, start.free))
            c += float(free @ (U * U) @ s)
        return replace(start, w=search.all_units.array(w), c=c)

    @property
    def terms(self) -> PairTerms:
        """Return the products with their coefficients."""
        m, rho = len(self.i), to_numpy(self.search.units.penalty_scale).astype(float)
        coef = self.still.theta[len(self.still.theta) - m :]
        return PairTerms(self.i, self.j, coef / (rho[self.design.i] * rho[self.design.j]))

    @property
    def of_rows(self) -> Model:
        """Return the model of the rows of the search, which may lack features and L."""
        model, search, design = self.model, self.search, self.design
        if not search.tangent:
            w, free = (to_numpy(a)[search.features] for a in (model.w, model.free))
            none = constant_model(search.units, 0, model.c)
            model = replace(none, w=search.units.array(w), free=search.units.array(free))
        return whole(model, replace(self.terms, i=design.i, j=design.j))

    @property
    def cost(self) -> float:
        """Return the cost of the products in the criterion, whatever they explain."""
        choice, criterion = self.choice, self.search.criterion
        return criterion(1.0, choice.dof, len(choice.taken)) - criterion(1.0, 0, 0)

    @cached_property
    def path(self) -> tuple[PairChoice, ...]:
        """Return the choices of the first 0, 1, … chosen groups."""
        taken = self.choice.taken
        return tuple(self.step.judged(taken[:m]) for m in range(len(taken) + 1))

    def notes(self, n_rows: int) -> PairNotes:
        """Return what the search has tried in so many rows, and its path to the chosen pairs."""
        step, search, path = self.step, self.search, self.path
        steps = tuple((each.value - path[0].value, 1 - each.loss / search.power) for each in path)
        first = [divmod(group[0], search.d) for group in self.groups]
        named = [tuple(search.features[[i, j]].tolist()) for i, j in first]
        others = tuple(
            (named[g], named[other], cost)
            for g, others in step.exchanges(self.choice, EXCHANGEABLE).items()
            for other, cost in others
            if step.single[g] and step.single[other]
        )
        return PairNotes(n_rows, search.criterion.candidates, steps, others, self.at_limit)

    def left_out_squares(self) -> np.ndarray:
        """Return ωe² of each observation, left out of the regression: one pass."""
        return self.regression.gram.left_out(self.search.rows, self.search.alpha).squares

    @cached_property
    def errors(self) -> Errors:
        """Return the standard errors of the products: one pass."""
        return self.regression.errors(self.search.rows, noise=self.search.criterion.noise)

    def from_means(self) -> tuple[np.ndarray, Errors]:
        """Return the coefficients with levels measured from their field's mean, and their errors.

        That is the convention of models (`levels`); one pass, if a product has such a level.
        """
        search, coef = self.search, self.regression.coef
        contrast = level_contrast(self.i, self.j, search.all_units, search.fields)
        if contrast is None:
            return coef, self.errors
        noise = search.criterion.noise
        return contrast @ coef, self.regression.errors(search.rows, contrast, noise)

    def joined(self) -> "PairFit":
        """Move L and w together with the products to the joint optimum: one pass per step.

        Each step is a Gauss–Newton step along the tangent space of L, if that is in the regression.
        """
        at = self
        for _ in range(STEPS if self.search.tangent and len(self.i) else 0):
            before = at.objective
            if before - at.regression.objective <= TOL * before:
                break
            tried = (at.search.moved(at, size) for size in BACKTRACKS)
            reached = next((each for each in tried if each.objective < before), None)
            if reached is None:
                break
            at = reached
            if before - at.objective <= TOL * before:
                break
        return at


@dataclass(frozen=True)
class TogetherScores(Additive):
    """Sums over rows of products s_i·s_j, i < j, of features that occur together."""

    weight: float  # Σω
    loss: float  # Σω r²
    moments: csr_array  # (d, d), Σω r s_i s_j
    power: csr_array  # (d, d), Σω s_i² s_j²
    rows: csr_array  # (d, d), how many rows


def occurrences(chunk: Chunk) -> np.ndarray:
    """Return in how many rows of one chunk each feature is not zero, and the number of rows."""
    counts = np.bincount(chunk.X.indices, minlength=chunk.X.shape[1])
    return np.append(counts, chunk.X.shape[0])


def together(
    chunk: Chunk, model: Model, units: Units, often: np.ndarray, full: np.ndarray
) -> TogetherScores:
    """Sum products of features that occur often enough over one chunk."""
    r = units.standardised_target(chunk.y) - predict(model, Block(chunk.X, units))
    omega = chunk.weights
    X, scale, nu = (a[..., often].astype(np.float64) for a in (chunk.X, units.scale, units.nu))
    data = X.data * scale[X.indices] - np.where(full, nu, 0.0)[X.indices]

    def gram(data: np.ndarray, weight: np.ndarray) -> csr_array:
        A = csr_array((data, X.indices, X.indptr), shape=X.shape)
        weighted = csr_array(A.multiply(weight[:, None]))
        return csr_array(triu(A.T @ weighted, k=1))

    grams = (gram(data, omega * r), gram(data**2, omega), gram((data != 0) * 1.0, 1.0 + 0 * r))
    return TogetherScores(float(np.sum(omega)), float(omega @ r**2), *grams)


def sparse_search(
    rows: Rows,
    units: Units,
    *,
    model: Model,
    fields: Sequence[np.ndarray] = (),
    alpha: Penalties = (0.0, 0.0, 0.0),
    noise: float | None = None,
) -> PairSearch:
    """Return the search for pairs of any number of sparse features, after a fitted model.

    If two sparse features never occur together, s_i·s_j is zero in every row, and z_i·z_j, which is
    s_i·s_j up to linear terms, adds nothing to w. So it is enough to keep the sums of products that
    occur; columns without a zero are centred. Memory: three numbers for each two features that
    occur together in some row. The features with the largest scores, at most 500, are then searched
    in full; every product that occurred in ten rows counts as tried. The w of other features stays
    as in the model.
    """
    *occurs, n = np.asarray(sum(rows.collect(occurrences)))
    often = np.flatnonzero((np.array(occurs) >= PER_PAIR) & (np.asarray(units.scale) > 0))
    sums = rows.reduce(together, model, units, often, np.array(occurs)[often] == n)
    count = sums.rows.tocoo()
    enough = count.data >= PER_PAIR
    i, j = count.row[enough], count.col[enough]
    candidates = max(int(enough.sum()), 1)
    # scipy returns a sparse array for no positions
    power, moments = (
        np.asarray(a.tocsr()[i, j] if len(i) else i, dtype=np.float64).ravel()
        for a in (sums.power, sums.moments)
    )
    variance = noise or max(sums.loss / sums.weight, 1e-300)
    t2 = moments**2 / (variance * np.maximum(power, 1e-300))
    entry = Criterion(sums.weight, candidates, max(sums.loss, 1e-300)).entry(0)
    order = np.argsort(-t2, kind="stable")
    order = order[t2[order] > WORTH_A_LOOK * entry]
    both = np.stack([often[i[order]], often[j[order]]], axis=1).ravel()
    features = np.sort([*dict.fromkeys(both.tolist())][:EXACT_FEATURES]).astype(np.int64)
    return PairSearch(
        rows,
        units,
        model=model,
        alpha=alpha,
        fields=fields,
        features=features,
        candidates=candidates,
        noise=noise,
    )


def narrowed(rows: Rows, units: Units, features: np.ndarray, stays: Model) -> tuple[Rows, Units]:
    """Return the rows with some features, less a part of a model, and their units: one pass."""
    X, y, weight = zip(*rows.collect(_narrowed, features, stays, units), strict=True)
    source = MemorySource(vstack(X, format="csr"), np.concatenate(y), np.concatenate(weight))
    at = namespace(units.scale).asarray(features, device=units.scale.device)
    arrays = [f.name for f in dataclass_fields(units) if f.name != "target"]
    narrow = replace(units, **{name: getattr(units, name)[at] for name in arrays})
    return Rows(rows.engine.over(source), counter=rows.counter), narrow


def _narrowed(
    chunk: Chunk, features: np.ndarray, stays: Model, units: Units
) -> tuple[csr_array, np.ndarray, np.ndarray]:
    y = less_part(chunk, partial(predict, stays), units)
    return csr_array(chunk.X[:, features]), y, chunk.weights
