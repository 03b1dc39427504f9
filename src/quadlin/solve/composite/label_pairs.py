r"""Pairs for log-odds: searched for and fitted in the quadratic approximation of the loss.

Around log-odds g the deviance is, to second order, a sum of squares with weights h = p(1 − p) and
targets g + (y − p)/h. In this approximation pairs are searched for as with any target. With the
chosen pairs, least squares are solved around each new solution until it no longer changes, which is
Newton's method for the deviance. A weak prior keeps log-odds finite if pairs separate the rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from quadlin.core.arrays import lead, to_numpy
from quadlin.core.losses import constant_deviance, log_odds
from quadlin.core.model import Model, with_rank
from quadlin.core.moments import Survey, survey
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.composite.composer import (
    PairOutcome,
    PairRequest,
    PairStage,
    ProductPrior,
    TableFit,
)
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.labels.logistic import Working
from quadlin.solve.labels.score_table import WIDEST
from quadlin.solve.lowrank.levels import settled
from quadlin.solve.lowrank.tangent import Coordinates
from quadlin.solve.lowrank.types import FIXED, Options, Plan, Problem, Record, Status
from quadlin.solve.lowrank.whitening import Identity
from quadlin.solve.pairs.products import PairTerms, Parts, whole, with_arrays
from quadlin.solve.pairs.regression import PairNotes, RunningPairs

SHORTEST = 1 / 4096  # of a Newton step: log-odds of extreme rows overshoot by as much
PRIOR = 1 / (WIDEST * WIDEST)  # penalty of a product: a standard deviation of 10 in log-odds


@dataclass(frozen=True)
class LogOdds:
    """Log-odds with pairs: b, w and L, and products."""

    low_rank: Model
    terms: PairTerms

    @property
    def rank(self) -> int:
        """Return the rank of L."""
        return int(self.low_rank.s.shape[0])

    @property
    def model(self) -> Model:
        """Return the model of L + S."""
        return whole(self.low_rank, self.terms)

    def halfway(self, other: "LogOdds") -> "LogOdds":
        """Return the mean of two fits of the same rank and products."""
        a, b = self.low_rank, other.low_rank
        U = np.concatenate([to_numpy(m.U).astype(float) for m in (a, b)], axis=1)
        s = np.concatenate([to_numpy(m.s).astype(float) for m in (a, b)])
        basis = np.linalg.qr(U)[0]
        B = basis.T @ U
        values, vectors = lead((B * s / 2) @ B.T, self.rank)
        low_rank = with_arrays(a, (a.c + b.c) / 2, U=basis @ vectors, s=values)
        low_rank = replace(low_rank, w=(a.w + b.w) / 2)
        return LogOdds(low_rank, replace(self.terms, coef=(self.terms.coef + other.terms.coef) / 2))


@dataclass(frozen=True)
class Objective:
    """The deviance of log-odds with pairs, plus the penalties."""

    rows: Rows
    units: Units
    options: Options
    penalise: bool  # whether products have the penalty of L

    @property
    def on_products(self) -> float:
        """Return the penalty of a product."""
        return max(self.options.alpha[1] if self.penalise else 0.0, PRIOR)

    def __call__(self, fit: LogOdds) -> float:
        """Return the objective: one pass."""
        return self.loss(fit.model) + self.penalty(fit)

    def penalty(self, fit: LogOdds) -> float:
        """Return what the penalties add to the deviance."""
        i, j, coef = fit.terms.i, fit.terms.j, fit.terms.coef
        rho = to_numpy(self.units.penalty_scale).astype(float)
        squares = float(np.sum((1 + (i == j)) * (rho[i] * rho[j] * coef) ** 2))
        ridge = Coordinates(self.units, self.options, Identity()).ridge(fit.low_rank)
        return ridge + self.on_products * squares

    def loss(self, model: Model) -> float:
        """Return the deviance: one pass."""
        options = replace(self.options, loss="logistic")
        problem = Problem(self.rows, self.units, options, np.random.default_rng(0))
        return float(problem.sums(model, squares=False).loss)


def descended(
    objective: Callable[[LogOdds], float], start: LogOdds, value: float, goal: LogOdds
) -> tuple[LogOdds, float]:
    """Return the goal, or a point nearer to the start that is no worse, and its objective."""
    size = 1.0
    while (reached := objective(goal)) > value and size > SHORTEST:
        goal, size = start.halfway(goal), size / 2
    return (goal, reached) if reached <= value else (start, value)


def moved(model: Model, by: float) -> Model:
    """Return the model with a constant added to it."""
    return replace(model, c=model.c + by)


STEPS, TOL = 25, 1e-8  # of Newton's method, and the relative decrease that ends it


@dataclass(frozen=True)
class LabelPairs:
    """Rows with labels 0 and 1, and how they are fitted."""

    plan: Plan
    rows: Rows
    surveyed: Survey

    def converged(self, start: PairOutcome, without_pairs: TableFit, offset: float) -> TableFit:
        """Fit the pairs of a search, if any, together with w and L to the deviance.

        `offset` is the mean of the targets of the search.
        """
        before, joint = without_pairs.state, start.joint
        if joint is None:
            explained = (self._explained(before),)
            state = replace(before, notes=_notes(start, explained))
            return replace(without_pairs, state=state, searched=start, deviances=explained)
        units, weight = before.units, self.surveyed.features.weight
        options = replace(start.options, loss="logistic")
        at = LogOdds(moved(joint.model, offset), joint.terms)
        options = replace(options, rank=at.rank)
        request = PairRequest.of(at.terms, joint.entry)
        objective = Objective(self.rows, units, options, not self.plan.automatic.alpha)
        none = replace(at.terms, coef=0 * at.terms.coef)
        without = LogOdds(with_rank(before.low_rank, at.rank), none)
        at, value = descended(objective, without, objective(without), at)
        state, status, history = start.state, Status.out_of_steps, [before.history[0]]
        for step in range(1, STEPS + 1):
            history.append(Record(step, self.rows.walks, value / 2 / weight))
            about = replace(state, model=at.model, units=units, parts=None)
            stage, offset = stage_about(self.rows, self.plan, request, about, at.rank)
            beside = replace(about, model=moved(at.low_rank, -offset))
            last = stage.beside(beside, options)
            assert last.joint is not None
            new = LogOdds(moved(last.joint.model, offset), last.joint.terms)
            last_value = value
            at, value = descended(objective, at, value, new)
            if last_value - value <= TOL * last_value:
                status = Status.converged
                break
        fields = self.plan.make_units.fields
        low_rank = settled(at.low_rank, units, fields)
        alpha = (*options.alpha, objective.on_products)
        state = replace(
            state,
            model=settled(at.model, units, fields),
            units=units,
            features=self.surveyed.features,
            target=self.surveyed.target,
            history=tuple(history),
            status=status,
            parts=Parts(low_rank.U, low_rank.s, at.terms),
            running=RunningPairs.begun(
                at.low_rank, at.terms, units, joint.entry, alpha, self.rows, "logistic"
            ),
        )
        options = replace(options, rank=int(state.model.s.shape[0]))
        deviances = self._way(last, self._explained(before), self._explained(state))
        state = replace(state, notes=_notes(start, deviances))
        factor = stage.weight * stage.units.target.power / self._nothing
        return TableFit(state, options, self.rows, start, last, deviances, factor)

    @property
    def _nothing(self) -> float:
        """Return the deviance of the best constant."""
        share = float(self.surveyed.target.mean[0])
        return self.surveyed.features.weight * constant_deviance(share, log_odds(share))

    def _explained(self, state: FitState) -> float:
        """Return the share of the deviance that a model explains: a pass."""
        objective = Objective(self.rows, state.units, self.plan.options, False)
        return 1 - objective.loss(state.model) / self._nothing

    def _way(self, tested: PairOutcome, first: float, last: float) -> tuple[float, ...]:
        """Return D² with the first 0, 1, … pairs that entered; exact with none and with all.

        To second order, a pair lowers the deviance by as much as the sum of squares around a model.
        """
        assert tested.joint is not None
        losses = [choice.loss for choice in tested.joint.path]
        fall = max(losses[0] - losses[-1], 1e-300)
        return tuple(first + (last - first) * (losses[0] - loss) / fall for loss in losses)


def stage_about(
    rows: Rows, plan: Plan, request: PairRequest, state: FitState, rank: int
) -> tuple[PairStage, float]:
    """Return the search for pairs in the least squares around log-odds, and their mean target."""
    working = Working.about(state.model, rows, state.units, plan.options.fit_intercept)
    return stage_in(working, plan, request, rank), working.offset


def stage_in(working: Working, plan: Plan, request: PairRequest, rank: int) -> PairStage:
    """Return the search for pairs in some least squares; given pairs leave rank and penalties."""
    squared = replace(
        plan,
        automatic=plan.automatic if request.given is None else FIXED,
        make_units=replace(plan.make_units, loss="squared"),
        options=replace(plan.options, loss="squared", rank=rank),
    )
    prior = ProductPrior(not plan.automatic.alpha, PRIOR, noise=1.0)
    surveyed = working.rows.reduce(survey)
    return PairStage(squared, request, working.rows, surveyed, working.units, prior)


def _notes(search: PairOutcome, deviances: tuple[float, ...]) -> PairNotes | None:
    """Return the notes of a search, with D² instead of R²."""
    notes = search.notes
    if notes is None:
        return None
    path = tuple((value, d2) for (value, _), d2 in zip(notes.path, deviances, strict=True))
    return replace(notes, path=path, deviance=True)
