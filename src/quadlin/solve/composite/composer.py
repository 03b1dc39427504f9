r"""More rank, more pairs, or neither: y = b + xᵀw + xᵀ(L + S)x, chosen by one criterion.

The value of a model with pairs T and a low-rank part L is its log evidence, by the chain rule:

.. math:: \log p(y, T \mid L) = \log p(y - S \mid L) - \tfrac12 |T| \log N - \log \binom{p}{|T|}

The first term is the evidence by which ``rank="auto"`` chooses ranks, for y without the pairs. The
others are half the penalty of the extended BIC: the cost of coefficients under a prior worth one
row, and the cost of having chosen them from all p products.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, log, nan, sqrt
from typing import Any

import numpy as np

from quadlin.core.arrays import lead, to_numpy
from quadlin.core.model import Model, degrees_of_freedom, in_units
from quadlin.core.moments import Survey, survey
from quadlin.core.rows import Rows
from quadlin.core.units import Units, UnitsMaker
from quadlin.solve.choose.choice import LeastSquares, fit_choosing, search_of
from quadlin.solve.choose.residual_spectrum import spectrum_beside
from quadlin.solve.choose.search import SETTLED, Candidate, Search
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.fits.uncertainty import Uncertainty
from quadlin.solve.lowrank.design import Alpha
from quadlin.solve.lowrank.levels import Fields, settled, settled_steps
from quadlin.solve.lowrank.types import (
    FIXED,
    NO_NOISE,
    Options,
    Plan,
    Record,
    Status,
    finished,
)
from quadlin.solve.pairs.products import (
    MOST_FEATURES,
    PairTerms,
    Parts,
    ProductMoments,
    less,
    product_moments,
    residual_moments,
    whole,
)
from quadlin.solve.pairs.regression import Criterion, PairNotes, RunningPairs
from quadlin.solve.pairs.search import (
    WORTH_A_LOOK,
    PairFit,
    PairSearch,
    Screen,
    sparse_search,
)

FEWEST_ROWS = 12  # for which a search makes sense
FIRST_LOOK = 0.8  # of the t² for entry, by the residual's moments: noise is below in 19 of 20 cases
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16)  # of entries that L may have absorbed
TURNS = 30  # of entries and eigenvectors that are taken apart
ROUNDS = 3  # of pairs and the low-rank part fitted with them


@dataclass(frozen=True)
class PairRequest:
    """Which pairs are requested."""

    most: int | None = None  # a maximum; None is the limit of the search
    given: tuple[tuple[int, int], ...] | None = None  # exactly these
    asked: bool = True  # by the user; otherwise a quick check of the rows comes first
    entry: tuple[int, ...] | None = None  # the step in which each given pair enters; None: in turn

    @classmethod
    def of(cls, terms: PairTerms, entry: np.ndarray) -> "PairRequest":
        """Return a request for products that were chosen, with the steps in which they entered."""
        given = tuple(zip(terms.i.tolist(), terms.j.tolist(), strict=True))
        return cls(given=given, entry=tuple(entry.tolist()))

    @property
    def products(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the given products, and the step in which each enters, from 1."""
        i, j = np.array(self.given or (), dtype=np.int64).reshape(-1, 2).T
        entry = range(1, len(i) + 1) if self.entry is None else self.entry
        return i, j, np.array(entry, dtype=np.int64)


@dataclass(frozen=True)
class ProductPrior:
    """The prior of products, and the noise of a row of weight 1."""

    like_low_rank: bool  # whether they have the penalty of L, which was given
    least: float = 0.0  # the smallest penalty
    noise: float | None = None  # its variance, if known

    def penalty(self, alpha: Alpha) -> float:
        """Return the penalty of a product, given those of w and L."""
        return max(alpha[1] if self.like_low_rank else 0.0, self.least)

    def weighing(self, share: float) -> "ProductPrior":
        """Return the same for rows whose weights are multiplied."""
        noise = None if self.noise is None else self.noise * share
        return replace(self, least=self.least * share, noise=noise)


@dataclass(frozen=True)
class LowRankPart:
    """The parts that are fitted together with pairs: w and L, with their penalties."""

    model: Model
    alpha: Alpha

    @classmethod
    def of(cls, rows: Rows, plan: Plan, units: Units) -> "LowRankPart":
        """Fit rows, and return the model in the given units."""
        search, surveyed = None, rows.reduce(survey)
        if plan.automatic.alpha and surveyed.target.var[0] > 0:
            of_rows = plan.make_units(surveyed.features, surveyed.target)
            search = search_of(rows, of_rows, plan, surveyed)
        state, chosen = fit_choosing(rows, plan, surveyed=surveyed, search=search)
        return cls(in_units(finished(state).model, state.units, units), chosen.alpha)

    @property
    def rank(self) -> int:
        """Return the rank of L."""
        return int(self.model.s.shape[0])

    def is_like(self, other: "LowRankPart") -> bool:
        """Return whether two fits have the same rank and about the same penalties."""
        return self.rank == other.rank and bool(np.allclose(self.alpha, other.alpha, rtol=SETTLED))


@dataclass(frozen=True)
class Composite:
    """Pairs and the low-rank part that was fitted with them."""

    joint: PairFit
    alpha: Alpha  # of w and of L
    value: float  # log evidence


@dataclass(frozen=True)
class PairOutcome:
    """A fit with pairs, or without if none are worth it."""

    state: FitState
    options: Options
    rows: Rows  # with the final weights of the fit
    searched: PairNotes | None = None  # the notes without pairs; None if there was no search
    joint: PairFit | None = None  # the regression with the pairs
    share: float = 1.0  # by which that regression multiplies the weights of rows

    @property
    def notes(self) -> PairNotes | None:
        """Return what the search tried and its path; None if there was no search."""
        searched, joint = self.searched, self.joint
        if searched is None or joint is None:
            return searched
        return joint.notes(searched.n_rows)

    def for_stream(self, most: float = inf) -> FitState:
        """Return the state from which a stream can continue.

        With pairs, it has their regression if it has at most `most` parameters; without it, a
        stream continues with M as a whole.
        """
        joint, running = self.joint, None
        if joint is not None and joint.size <= most:
            first, second, third = joint.search.alpha
            running = RunningPairs.begun(
                joint.model,
                joint.terms,
                joint.search.units,
                joint.entry,
                (first / self.share, second / self.share, third / self.share),
                self.rows,
                "squared",
            )
        return replace(self.state, notes=self.notes, running=running)

    def law(self, fields: Sequence[np.ndarray]) -> Uncertainty | None:
        """Return the uncertainty of the fit with pairs; None if its matrix is not enough."""
        return None if self.joint is None else pair_uncertainty(self.joint, fields, self.share)


@dataclass(frozen=True)
class TableFit:
    """What was learned from the rows of a table."""

    state: FitState
    options: Options  # rank and penalties as given or chosen
    rows: Rows  # with the weights at the end of the fit
    searched: PairOutcome | None = None  # the search for pairs; None if there was none
    last: PairOutcome | None = None  # its pairs as they were fitted last
    deviances: tuple[float, ...] = ()  # of labels: D² with the first 0, 1, … pairs
    factor: float = 1.0  # of labels: from shares of a sum of squares to those of the deviance
    law: Uncertainty | None = None

    @classmethod
    def of(cls, outcome: PairOutcome) -> "TableFit":
        """Return a fit by least squares, with pairs or without."""
        searched = None if outcome.searched is None else outcome
        return cls(outcome.state, outcome.options, outcome.rows, searched, searched)

    def kept(self, most: float = inf) -> FitState:
        """Return the state with a regression of its pairs for a stream.

        If that has more parameters than `most`, a stream continues with M as a whole.
        """
        state, last = self.state, self.last
        if last is not None and not self.deviances:
            state = replace(last, state=state).for_stream(most)
        if state.running is not None and state.running.size > most:
            state = replace(state, running=None)
        return state


class PairStage:
    """The search for pairs in some rows, before a rank is tried and after a fit.

    Parameters
    ----------
    plan : Plan
        How the rows are fitted.
    request : PairRequest
        Which pairs may be chosen.
    rows : Rows
        The rows; for Huber's loss, with the weights of a fit.
    surveyed : Survey
        The survey of these rows.
    units : Units
        The units of the models.
    prior : ProductPrior or None
        None is the penalty of L, if that was given.
    """

    def __init__(
        self,
        plan: Plan,
        request: PairRequest,
        rows: Rows,
        surveyed: Survey,
        units: Units,
        prior: ProductPrior | None = None,
    ) -> None:
        self.plan, self.request, self.rows, self.units = plan, request, rows, units
        self.tally, self.weight = surveyed.tally, surveyed.features.weight
        self.surveyed, self.chooses, self.d = surveyed, plan.automatic, len(plan.make_units.names)
        self.fields = plan.make_units.fields
        self.wide = self.d > MOST_FEATURES  # no matrix of all products is kept
        self.given_prior = prior or ProductPrior(like_low_rank=not plan.automatic.alpha)
        self.looked = False  # whether pairs were tried with a linear model
        self.first: Composite | None = None  # pairs with a linear model, if they are better
        self.spread = False  # whether so many products contribute that a rank is tried first
        self.candidates = 0  # products that were tried
        self.start_loss = 0.0  # Σω r² without pairs

    @cached_property
    def search(self) -> Search[LeastSquares]:
        """Return the search for a rank, with which pairs are compared.

        In its rows each distinct row counts once on average.
        """
        return search_of(self.rows, self.units, self.plan, self.surveyed)

    @property
    def share(self) -> float:
        """Return the weight of a row of weight 1 in the search."""
        return self.search.task.weight / self.weight

    @cached_property
    def prior(self) -> ProductPrior:
        """Return the prior for the rows of the search."""
        return self.given_prior.weighing(self.share)

    @cached_property
    def moments(self) -> ProductMoments:
        """Return the moments of all pairs of features: one pass."""
        moments: ProductMoments = self.search.task.rows.reduce(product_moments, self.units)
        return moments

    def alone(self, linear: FitState, options: Options) -> PairOutcome | None:
        """Return pairs with a linear model if these leave nothing to products, otherwise None.

        Ranks are tried first where that costs little.
        """
        if self.search.task.few_features and not self.request.asked:
            return None
        self.first = self._composed(self._part(linear, options), self.d // 2)
        self.looked = not self.spread
        if self.first is None:
            return None
        decided = self._unchecked(self.first) or not spectrum_beside(self.first.joint).is_clear
        return self._outcome(self.first, linear, options) if decided else None

    def beside(self, state: FitState, options: Options) -> PairOutcome:
        """Return a fit with pairs, or the fit as it was."""
        start, best = self._part(state, options), None
        if self.request.given is not None:
            best = self._with_given(start, self.request)
        elif self.wide:
            best = self._searched_wide(start)
        elif start.rank or not self.looked or self.first is not None:
            best = self._composed(start)
        if best is not None:
            return self._outcome(best, state, options)
        return PairOutcome(state, options, self.rows, self._notes())

    def _composed(self, start: LowRankPart, limit: int | None = None) -> Composite | None:
        """Return pairs with the best low-rank part that was tried; None if none are worth it.

        `start` is the fit without pairs. Pairs are searched for in its residual, and those that its
        L seems to have absorbed are tried as well. L is then fitted again to what the pairs leave,
        and pairs are searched for again, because pairs may have replaced a part of L, or L some
        pairs. At most half as many pairs as features, which have fewer parameters than an L of any
        rank, may replace all of L, unless many products contribute.
        """
        if start.rank and self.chooses.rank and not (self.looked or self.spread):
            ridge = LowRankPart.of(self.search.task.rows, self.plan.of_rank(0), self.units)
            self.looked, self.first = True, self._composed(ridge, self.d // 2)
        begin = list[tuple[PairTerms, int | None]]()
        worth = self._worth_a_search(start) and not self._redundant(start)
        if worth and not (limit and self.spread):
            joint = self._chosen(start, limit)
            rank = None if joint.search.rank else 0
            begin.append((joint.terms, rank if self.chooses.rank else start.rank))
        if self.chooses.rank and start.rank:
            begin.append(self._absorbed(start))
        found = [self._beside(*each, limit) for each in begin]
        candidates = [c for c in (self.first, *found) if c is not None]
        best = max(candidates, key=lambda c: c.value, default=None)
        if best is None or best.value <= self._evidence(self.search.task.rows, start):
            return None
        checked = start.rank in (0, self.d) and not self._unchecked(best)
        without = self.search.candidate(start.rank) if checked else None
        return best if without is None or self._confirmed(best, without) else None

    def _searched_wide(self, start: LowRankPart) -> Composite | None:
        """Return pairs of very many sparse features, fitted with the w of all of them."""
        joint = self._chosen(start)
        self.candidates, self.start_loss = joint.search.criterion.candidates, joint.search.base_loss
        if not joint.terms.pairs:
            return None
        return self._with_given(start, PairRequest.of(joint.terms, joint.entry), joint)

    def _beside(self, terms: PairTerms, rank: int | None, limit: int | None) -> Composite | None:
        """Return pairs and an L of a rank, or of the best one, that is fitted with them."""
        if not terms.pairs or len(terms.pairs) > (limit or inf):
            return None
        for _ in range(ROUNDS):  # pairs may have replaced a part of L, or L some pairs
            part = self._fitted_part(terms, rank)
            if self._redundant(part):
                return None
            before, joint = terms.pairs, self._chosen(part)
            terms = joint.terms
            if terms.pairs in (before, frozenset()):
                break
        if not terms.pairs:
            return None
        if self.chooses.alpha and self._no_error(joint.still.loss):  # nothing to shrink
            part = replace(part, alpha=(0.0, 0.0))
            search = self._search(part, self.request)
            joint = search.tested(joint.i, joint.j, joint.entry).joined()
            terms = joint.terms
        rows = less(self.search.task.rows, terms.of, self.units)
        evidence = self._evidence(rows, replace(part, model=joint.model))
        return Composite(joint, part.alpha, evidence - joint.cost / 2)

    def _with_given(
        self, start: LowRankPart, request: PairRequest, found: PairFit | None = None
    ) -> Composite:
        """Return exactly the given pairs, with a rank and penalties that suit them."""
        part, joint = start, found
        for attempt in range(ROUNDS):
            if joint is not None:
                rank = None if self.chooses.rank else start.rank
                refitted = self._fitted_part(joint.terms, rank)
                if attempt > 1 and refitted.is_like(part):
                    break
                part = refitted
            elif self.chooses.rank and start.rank > 0:
                part = LowRankPart.of(self.search.task.rows, self.plan.of_rank(0), self.units)
            search = self._search(part, request)
            joint = search.tested(*request.products).joined()
            alternates = self.wide or (search.rank and not search.tangent)
            if self.chooses == FIXED and not alternates:
                break
        assert joint is not None
        return Composite(joint, part.alpha, 0.0)

    def _unchecked(self, best: Composite) -> bool:
        """Return whether pairs need no confirmation: they were asked for, or leave no error."""
        asked = self.request.asked or not self.chooses.alpha
        return asked or self._no_error(best.joint.still.loss)

    def _confirmed(self, best: Composite, other: Candidate) -> bool:
        """Return whether left-out rows confirm that pairs are better than a model without them."""
        log_tried = log(max(1, best.joint.search.criterion.candidates))
        return self.search.confirmed(best.joint.left_out_squares(), other, log_tried)

    def _worth_a_search(self, start: LowRankPart) -> bool:
        """Return whether to search in the residual of a fit: one pass.

        Unless the user asks for pairs, most tables without interactions are not read again.
        """
        look = self.search.task.rows.reduce(residual_moments, start.model, self.units)
        weight = self.moments.weight
        screen = Screen(self.moments, to_numpy(self.units.free), self.fields, None)
        self.start_loss, self.candidates = look.loss, screen.candidates
        power = max(weight * self.units.target.power, 1e-300)
        criterion = Criterion(weight, screen.candidates, power, self.prior.noise)
        if self._no_error(look.loss) or not screen.candidates:
            return False
        spectrum = None if start.rank else self.search.task.spectrum
        if spectrum is not None and not self.request.asked:
            self.spread = spectrum.is_spread(screen.largest(look, criterion))
        share = WORTH_A_LOOK if self.request.asked else FIRST_LOOK
        return bool(screen.shortlist(look, criterion, 0, share))

    def _absorbed(self, start: LowRankPart) -> tuple[PairTerms, int | None]:
        """Return the pairs that the L of a fit seems to have absorbed, and the rank to fit."""
        noise = (NO_NOISE if self._no_error(self.start_loss) else 1.0) * self.start_loss
        variance = noise / self.moments.weight / self.search.task.weight
        C = to_numpy(self.moments.second) / self.moments.weight
        dof = degrees_of_freedom(self.d, start.rank, linear=False, intercept=False)
        terms, rank = split_entries(start.model, C, variance * dof)
        return terms, None if rank else 0

    def _no_error(self, loss: float) -> bool:
        return loss <= NO_NOISE * self.search.task.weight * self.units.target.power

    def _search(self, part: LowRankPart, request: PairRequest) -> PairSearch:
        alpha, noise = (*part.alpha, self.prior.penalty(part.alpha)), self.prior.noise
        settings: dict[str, Any] = {"model": part.model, "alpha": alpha, "fields": self.fields}
        settings["noise"], args = noise, (self.search.task.rows, self.units)
        if not self.wide:
            return PairSearch(*args, **settings, moments=self.moments)
        if request.given is None:
            return sparse_search(*args, **settings)
        return PairSearch(*args, **settings, features=np.unique(np.array(request.given)))

    def _fitted_part(self, terms: PairTerms, rank: int | None) -> LowRankPart:
        """Fit a low-rank part to what pairs leave, of a given rank or of the best one."""
        plan = self.plan if rank is None else self.plan.of_rank(rank)
        return LowRankPart.of(less(self.search.task.rows, terms.of, self.units), plan, self.units)

    def _chosen(self, part: LowRankPart, limit: int | None = None) -> PairFit:
        """Choose pairs for a fit, at most as many as requested, and just more than the limit."""
        more = None if limit is None else limit + 1
        most = min((m for m in (self.request.most, more) if m is not None), default=None)
        return self._search(part, self.request).run(most).joined()

    def _redundant(self, part: LowRankPart) -> bool:
        """Return whether L has full rank already, and the user did not ask for pairs."""
        return part.rank == self.d and not self.request.asked

    def _evidence(self, rows: Rows, part: LowRankPart) -> float:
        """Return the log evidence of the rank that is fitted to these rows."""
        search, task = self.search, self.search.task
        if rows is not task.rows:
            counts = task.n_rows, task.weight
            search = Search(
                LeastSquares(rows, self.units, self.plan.options, *counts, self.plan.seed)
            )
        return search.evaluate(part.model, part.alpha).merit

    def _notes(self) -> PairNotes:
        r2 = 1 - self.start_loss / (self.search.task.weight * self.units.target.power)
        return PairNotes(self.tally.counting, self.candidates, ((0.0, r2),))

    def _part(self, state: FitState, options: Options) -> LowRankPart:
        first, second = options.alpha
        return LowRankPart(state.model, (first * self.share, second * self.share))

    def _outcome(self, composite: Composite, state: FitState, options: Options) -> PairOutcome:
        """Return the state with L + S for M."""
        joint = composite.joint
        model = settled(whole(joint.model, joint.terms), self.units, self.fields)
        low_rank = settled(joint.model, self.units, self.fields)
        loss = joint.objective / joint.search.weight * self.units.target.scale**2
        # A closer fit with more parameters was rejected, so it does not belong to this history.
        history = [record for record in state.history if record.loss >= loss]
        last = Record(history[-1].step + 1 if history else 0, self.rows.walks, loss)
        state = replace(
            state,
            model=model,
            history=(*history, last),
            status=Status.converged,
            parts=Parts(low_rank.U, low_rank.s, joint.terms),
        )
        alpha = (composite.alpha[0] / self.share, composite.alpha[1] / self.share)
        options = replace(options, rank=int(model.s.shape[0]), alpha=alpha)
        return PairOutcome(state, options, self.rows, self._notes(), joint, self.share)


def ended(state: FitState) -> bool:
    """Return whether a fit ended early, so that no search follows."""
    return state.status in (Status.interrupted, Status.stopped, Status.diverged)


def refuse_uninformative(
    request: PairRequest, state: FitState, maker: UnitsMaker, constant: bool = True
) -> None:
    """Raise an error for given pairs whose products add nothing to the linear part.

    Pairs of constant features raise one as well, unless these may vary in later rows.
    """
    names, free, scale = maker.names, state.units.free, state.units.scale
    field = {int(j): number for number, members in enumerate(maker.fields) for j in members}
    for i, j in request.given or ():
        fixed = [n for n in (i, j) if not float(scale[n])]
        if fixed and constant:
            raise ValueError(
                f"The feature {names[fixed[0]]!r} of a pair is constant, so the product adds "
                "nothing to the linear part. Leave the pair out."
            )
        if i == j and not float(free[i]):
            raise ValueError(
                f"The square of {names[i]!r} is not modelled, because the feature takes two values "
                "or `squares` leaves it out. Leave the pair out."
            )
        if i != j and i in field and field[i] == field.get(j):
            raise ValueError(
                f"The product of {names[i]!r} and {names[j]!r} is always zero, because they are "
                "levels of the same field. Leave the pair out."
            )


def split_entries(model: Model, C: np.ndarray, most_lost: float) -> tuple[PairTerms, int]:
    r"""Return a few entries that, with a matrix of lower rank, are about the L of a model.

    C are the correlations of the features, and `most_lost` is the variance of :math:`z^\top R z`
    that may be lost, R the difference. There are no entries if no lower rank is as near.
    """
    U, s, free = (to_numpy(a).astype(float) for a in (model.U, model.s, model.free))
    M, (d, k) = (U * s) @ U.T, U.shape
    M[np.diag_indices(d)] *= free
    tail = 2 * np.cumsum(np.sort(np.linalg.eigvals(M @ C).real ** 2))[::-1]
    upper = np.triu_indices(d)
    # A pair takes two ranks, a square one.
    for rank, count in sorted({(max(0, k - each * m), m) for m in COUNTS for each in (1, 2)}):
        if count > len(upper[0]) or (k == d and 4 * rank > d):  # no rank is nearly as high
            continue
        if rank + 2 * count < d and tail[rank + 2 * count] > most_lost:
            continue
        S = np.zeros_like(M)
        for _ in range(TURNS if rank else 1):
            values, V = lead(M - S, rank)
            L, before, S = (V * values) @ V.T, S, np.zeros_like(M)
            largest = np.argsort(-np.abs((M - L)[upper]), kind="stable")[:count]
            i, j = upper[0][largest], upper[1][largest]
            S[i, j] = S[j, i] = (M - L)[i, j]
            if np.allclose(S, before, rtol=1e-3, atol=0):
                break
        R = (M - S - L) @ C
        if 2 * float(np.sum(R * R.T)) <= most_lost:
            i, j = np.nonzero(np.triu(S))
            return PairTerms(i, j, np.where(i == j, 1.0, 2.0) * S[i, j]), rank
    nothing = np.zeros(0, np.int64)
    return PairTerms(nothing, nothing, np.zeros(0)), k


def pair_uncertainty(fit: PairFit, fields: Fields, share: float) -> Uncertainty | None:
    r"""Return :math:`N(0, \sigma^2 A^{-1})` of the regression with pairs.

    The weights of the rows were multiplied by `share` for the search. None if some parameters are
    not in the regression.
    """
    search = fit.search
    if search.units is not search.all_units or (search.rank and not search.tangent):
        return None
    steps, dof = fit.regression.gram.error_steps(search.alpha)
    freedom = search.weight / share - dof
    noise = sqrt(fit.still.loss / share / freedom) if freedom >= 1 else nan
    steps = settled_steps(steps.scaled(sqrt(share)), search.units, fields)
    return Uncertainty(search.units, steps, noise, noise, dof, freedom, True)
