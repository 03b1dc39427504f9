"""The search for pairs in some rows, before a rank is tried and after a fit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np

from quadlin.core.moments import Survey
from quadlin.core.rows import Rows
from quadlin.core.units import Units, UnitsMaker
from quadlin.solve.choose.choice import fit_choosing, search_of
from quadlin.solve.choose.rank_search import RankSearch
from quadlin.solve.composite.composer import Composer
from quadlin.solve.composite.pair_composite import (
    Composite,
    LowRankPart,
    PairRequest,
    ProductPrior,
    pair_uncertainty,
)
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.fits.uncertainty import Uncertainty
from quadlin.solve.lowrank.levels import settled
from quadlin.solve.lowrank.types import Options, Plan, Record, Status
from quadlin.solve.pairs.pair_joint import Joint
from quadlin.solve.pairs.pair_regression import MOST_FEATURES
from quadlin.solve.pairs.pair_running import PairNotes, RunningPairs
from quadlin.solve.pairs.pair_terms import Parts, whole

FEWEST_ROWS = 12  # for which a search makes sense


@dataclass(frozen=True)
class PairOutcome:
    """A fit with pairs, or without if none are worth it."""

    state: FitState
    options: Options
    rows: Rows  # with the final weights of the fit
    searched: PairNotes | None = None  # the notes without pairs; None if there was no search
    joint: Joint | None = None  # the regression with the pairs
    share: float = 1.0  # by which that regression multiplies the weights of rows

    @property
    def notes(self) -> PairNotes | None:
        """Return what the search tried and its path; None if there was no search."""
        searched, joint = self.searched, self.joint
        if searched is None or joint is None:
            return searched
        fit, power, candidates = joint.fit, joint.search.power, joint.search.criterion.candidates
        path = tuple((c.value - fit.path[0].value, 1 - c.loss / power) for c in fit.path)
        return PairNotes(searched.n_rows, candidates, path, fit.exchangeable, fit.at_limit)

    def for_stream(self, most: float = inf) -> FitState:
        """Return the state from which a stream can continue.

        With pairs, it has their regression if it has at most `most` parameters; without it, a
        stream continues with M as a whole.
        """
        joint, running = self.joint, None
        if joint is not None and joint.search.columns.base + len(joint.fit.i) <= most:
            running = RunningPairs.of(joint, self.share)
        return replace(self.state, notes=self.notes, running=running)

    def law(self, fields: Sequence[np.ndarray]) -> Uncertainty | None:
        """Return the uncertainty of the fit with pairs; None if its matrix is not enough."""
        return None if self.joint is None else pair_uncertainty(self.joint, fields, self.share)


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
        self.surveyed, self.looked = surveyed, False
        self.prior = prior or ProductPrior(like_low_rank=not plan.automatic.alpha)

    @property
    def possible(self) -> bool:
        """Return whether there are pairs to fit, or enough rows to search for them."""
        enough = self.request.given is not None or self.tally.counting >= FEWEST_ROWS
        return bool(self.units.target.power) and enough

    @cached_property
    def search(self) -> RankSearch:
        """Return the search for a rank, with which pairs are compared."""
        return search_of(self.rows, self.units, self.plan, self.surveyed)

    @property
    def share(self) -> float:
        """Return the weight of a row of weight 1 in the search."""
        return self.search.weight / self.weight

    @cached_property
    def composer(self) -> Composer:
        """Return the composer, which does the search."""
        return Composer(self.plan, self.request, self.search, self.prior.weighing(self.share))

    def alone(self, linear: FitState, options: Options) -> PairOutcome | None:
        """Return pairs with a linear model if they leave nothing of low rank, otherwise None."""
        composite = self.composer.alone(self._part(linear, options))
        self.looked = True
        return None if composite is None else self._outcome(composite, linear, options)

    def beside(self, state: FitState, options: Options) -> PairOutcome:
        """Return a fit with pairs, or the fit as it was."""
        composer, composite, rank = self.composer, None, state.model.s.shape[0]
        # The result of an earlier search after ridge regression also holds here.
        nothing = self.looked and composer.clean and not rank
        refused = composer.refused and rank in (0, composer.d)
        if not (nothing or refused):
            composite = composer.composed(self._part(state, options))
        if composite is not None:
            return self._outcome(composite, state, options)
        return PairOutcome(state, options, self.rows, self._searched())

    def _searched(self) -> PairNotes:
        composer = self.composer
        r2 = 1 - composer.start_loss / (composer.weight * self.units.target.power)
        return PairNotes(self.tally.counting, composer.candidates, ((0.0, r2),))

    def _part(self, state: FitState, options: Options) -> LowRankPart:
        first, second = options.alpha
        return LowRankPart(state.model, (first * self.share, second * self.share))

    def _outcome(self, composite: Composite, state: FitState, options: Options) -> PairOutcome:
        """Return the state with L + S for M."""
        joint, fields = composite.joint, self.plan.make_units.fields
        model = settled(whole(joint.model, joint.terms), self.units, fields)
        low_rank = settled(joint.model, self.units, fields)
        loss = joint.loss / joint.search.weight * self.units.target.scale**2
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
        return PairOutcome(state, options, self.rows, self._searched(), joint, self.share)


def first_stage(
    plan: Plan, request: PairRequest, rows: Rows, surveyed: Survey, search: bool = True
) -> tuple[PairStage, PairOutcome | None]:
    """Search for pairs with a linear model before any rank is tried, unless `search` is false."""
    units = plan.make_units(surveyed.features, surveyed.target)
    stage = PairStage(plan, request, rows, surveyed, units)
    searches = search and plan.automatic.rank and request.given is None
    if not (searches and stage.possible and len(plan.make_units.names) <= MOST_FEATURES):
        return stage, None
    ridge = plan.of_rank(0)
    linear, options = fit_choosing(rows, ridge, surveyed=surveyed, search=stage.search)
    if linear.status is Status.interrupted:
        return stage, PairOutcome(linear, options, rows)
    try:
        return stage, stage.alone(linear, options)
    except KeyboardInterrupt:
        return stage, PairOutcome(replace(linear, status=Status.interrupted), options, rows)


def ended(state: FitState) -> bool:
    """Return whether a fit ended early, so that no search follows."""
    return state.status in (Status.interrupted, Status.stopped, Status.diverged)


def refuse_uninformative(
    request: PairRequest, state: FitState, maker: UnitsMaker, constant: bool = True
) -> None:
    """Refuse given pairs whose products add nothing to the linear part.

    Pairs of constant features are refused as well, unless these may vary in later rows.
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
