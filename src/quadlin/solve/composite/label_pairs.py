r"""Pairs for log-odds: searched for and fitted in the quadratic approximation of the loss.

Around log-odds g the deviance is, to second order, a sum of squares with weights h = p(1 − p) and
targets g + (y − p)/h. In this approximation pairs are searched for as with any target. With the
chosen pairs, least squares are solved around each new solution until it no longer changes, which is
Newton's method for the deviance. A weak prior keeps log-odds finite if pairs separate the rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, log

import numpy as np
from scipy.special import log_softmax

from quadlin.core.arrays import lead, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.losses import FLATTEST, constant_deviance, log_odds
from quadlin.core.model import Model, predict, with_rank
from quadlin.core.moments import Survey, survey
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.choose.search import MARGIN
from quadlin.solve.composite.composer import (
    PairOutcome,
    PairRequest,
    PairStage,
    ProductPrior,
    TableFit,
)
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.labels.likelihood import Working
from quadlin.solve.labels.score_table import WIDEST, ScoreTable
from quadlin.solve.lowrank.design import Alpha
from quadlin.solve.lowrank.driver import follow
from quadlin.solve.lowrank.levels import settled
from quadlin.solve.lowrank.polish import polish
from quadlin.solve.lowrank.tangent import Coordinates
from quadlin.solve.lowrank.types import FIXED, Options, Plan, Problem, Record, Status, finished
from quadlin.solve.lowrank.whitening import Identity, whitener
from quadlin.solve.pairs.products import PairTerms, Parts, whole, with_arrays
from quadlin.solve.pairs.regression import PairNotes, RunningPairs

SHORTEST = 1 / 4096  # of a Newton step: log-odds of extreme rows overshoot by as much
PRIOR = 1 / (WIDEST * WIDEST)  # penalty of a product: a standard deviation of 10 in log-odds
CYCLES, FALL = 40, 1e-3  # turns of all classes; the relative fall of the objective that ends them
TURN_TOL, TURN_STEPS = 1e-4, 10  # of the least squares of a turn
NO_PAIRS = PairTerms(np.empty(0, int), np.empty(0, int), np.empty(0))


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


@dataclass(frozen=True)
class ClassRows:
    """Rows with the weights of their classes, and the number of the class of each row."""

    plan: Plan
    rows: Rows
    codes: np.ndarray  # (n,)

    @cached_property
    def omega(self) -> np.ndarray:
        """Return the weights of the rows: one pass."""
        return np.concatenate(self.rows.collect(_weights))

    def scores(self, classes: Sequence["ClassFit"]) -> np.ndarray:
        """Return the scores of classes, (n, number of classes): one pass."""
        models = tuple(each.fit.model for each in classes)
        return np.concatenate(self.rows.collect(_scores, models, classes[0].state.units))

    def loss(self, F: np.ndarray) -> float:
        """Return the log-loss of scores, summed by weight."""
        return -float(self.omega @ log_softmax(F, axis=1)[np.arange(len(F)), self.codes])


@dataclass(frozen=True)
class ClassFit:
    """The score of one class, and what it may be."""

    state: FitState  # of the class against all others
    fit: LogOdds
    options: Options  # of L, which products may be added to

    @classmethod
    def of(cls, state: FitState, options: Options) -> "ClassFit":
        """Return the log-odds against all others as a score."""
        terms = NO_PAIRS if state.parts is None else state.parts.terms
        squares = float(terms.coef[terms.i == terms.j].sum())  # that c, the mean of f, holds
        fit = LogOdds(moved(state.low_rank, -squares), terms)
        return cls(state, fit, replace(options, rank=fit.rank, loss="squared"))

    def scored(self, model: Model, alpha: Alpha) -> "ClassFit":
        """Return the class with another score, without pairs."""
        options = replace(self.options, rank=int(model.s.shape[0]), alpha=alpha)
        return ClassFit(replace(self.state, parts=None), LogOdds(model, NO_PAIRS), options)

    def ended(self) -> FitState:
        """Return the state of the class with the score in place of its log-odds."""
        state, low_rank = self.state, self.fit.low_rank
        parts = None if state.parts is None else Parts(low_rank.U, low_rank.s, self.fit.terms)
        return replace(state, model=self.fit.model, parts=parts, running=None, notes=None)


@dataclass
class JointFit:
    """The descent of all classes together."""

    rows: ClassRows
    classes: list[ClassFit]
    F: np.ndarray = field(init=False)  # (n, K), the scores

    def __post_init__(self) -> None:
        self.F = self.rows.scores(self.classes)

    def descend(self) -> None:
        """Take turns until the objective hardly falls."""
        before = inf
        for _ in range(CYCLES):
            for label in range(len(self.classes)):
                self._turn(label)
            value = 2 * self.rows.loss(self.F) + sum(map(self._penalty, self.classes))
            if before - value <= FALL * value:
                break
            before = value

    def _penalty(self, each: ClassFit) -> float:
        penalise = not self.rows.plan.automatic.alpha
        return Objective(self.rows.rows, each.state.units, each.options, penalise).penalty(each.fit)

    def _turn(self, label: int) -> None:
        """Take a step of one class, halved until it does not raise the objective."""
        at, f = self.classes[label], self.F[:, label].copy()

        def objective(fit: LogOdds) -> float:
            each = replace(at, fit=fit)
            self.F[:, label] = self.rows.scores([each])[:, 0]
            return 2 * self.rows.loss(self.F) + self._penalty(each)

        value = 2 * self.rows.loss(self.F) + self._penalty(at)
        new, _ = descended(objective, at.fit, value, self._step(at, self._working(label, at)))
        self.classes[label] = replace(at, fit=new)
        if new is at.fit:
            self.F[:, label] = f

    def _working(self, label: int, at: ClassFit) -> Working:
        """Return the least squares that approximate the loss about the score of a class."""
        p = np.exp(log_softmax(self.F, axis=1)[:, label])
        h = np.clip(p * (1 - p), FLATTEST, None)
        z = self.F[:, label] + ((self.rows.codes == label) - p) / h
        rows, intercept = self.rows.rows, at.options.fit_intercept
        return Working.of(h, z, self.rows.omega, rows, at.state.units, intercept)

    def _step(self, at: ClassFit, working: Working) -> LogOdds:
        """Return the least squares of a class, given its pairs."""
        plan, options, terms = self.rows.plan, at.options, at.fit.terms
        start = moved(at.fit.low_rank, -working.offset)
        if len(terms.coef):
            pairs = tuple(zip(terms.i.tolist(), terms.j.tolist(), strict=True))
            request = PairRequest(given=pairs)
            stage = stage_in(working, plan, request, options.rank)
            state = replace(at.state, model=start, units=working.units, parts=None)
            joint = stage.beside(state, options).joint
            assert joint is not None
            return LogOdds(moved(joint.model, working.offset), joint.terms)
        rng = np.random.default_rng(plan.seed)
        some = replace(options, tol=TURN_TOL, max_iter=TURN_STEPS)
        problem = Problem(working.rows, working.units, some, rng)
        white = whitener(working.rows, working.units, options.alpha[0] / working.weight, rng)
        model = finished(follow(problem, polish(problem, white, start))).model
        return LogOdds(moved(model, working.offset), NO_PAIRS)


def fit_jointly(rows: ClassRows, parts: Sequence[tuple[FitState, Options]]) -> list[FitState]:
    """Return scores that are fitted together, from the fits of each class against all others.

    Of few rows they are on a table, unless pairs are worth more than their number by Schwarz's
    criterion.
    """
    # The names of the classes are not to matter: the largest takes its turn first.
    weight = np.bincount(rows.codes, rows.omega, minlength=len(parts))
    order = sorted(range(len(parts)), key=lambda k: (-weight[k], parts[k][0].history[-1].loss))
    rows = replace(rows, codes=np.argsort(order)[rows.codes])
    classes = [ClassFit.of(*parts[k]) for k in order]
    pairs = sum(len(each.fit.terms.coef) for each in classes)
    best = on_table(rows, classes)
    if best is None or pairs:
        joint = JointFit(rows, list(classes))
        joint.descend()
        least = rows.loss(joint.F) + pairs * log(len(rows.codes)) / 2
        if best is None or rows.loss(rows.scores(best)) > least:
            best = joint.classes
    return [best[order.index(k)].ended() for k in range(len(parts))]


def on_table(rows: ClassRows, classes: Sequence[ClassFit]) -> list[ClassFit] | None:
    """Return scores of few rows, linear or of all products, whichever has the larger evidence.

    None if the rows are many, if the classes have low ranks and a table of all products does not
    fit, or if such ranks or pairs were given.
    """
    automatic, first = rows.plan.automatic, classes[0]
    options, units, d = first.options, first.state.units, len(first.state.units.scale)
    ranks = {each.options.rank for each in classes}
    # Products are tried where a class has asked for a quadratic part that is not a few pairs.
    wanted = ranks if not automatic.rank else {0, d} if max(ranks) > 0 else {0}
    if len(wanted) > 1 and not (automatic.rank and automatic.alpha):
        return None
    n, least, best = len(rows.codes), -inf, None
    alpha = np.exp(np.mean(np.log([each.options.alpha for each in classes]), axis=0))
    for k in sorted(wanted):
        table = ScoreTable.of(rows.rows, units, options, k, n, rows.codes)
        if table is None:
            return None
        chosen = float(alpha[0]), float(alpha[1])
        if automatic.alpha:
            end = table.maximised()
            chosen = float(np.exp(end.log_alpha[0])), float(np.exp(end.log_alpha[-1]))
            value = end.log_evidence - float(table.deviances_left_out(chosen).sum()) / 2
            value -= MARGIN * (k > 0)
            if value <= least:
                continue
            least = value
        models = table.models(table.fitted(chosen))
        best = [each.scored(model, chosen) for each, model in zip(classes, models, strict=True)]
    return best


def _weights(chunk: Chunk) -> np.ndarray:
    return chunk.weights


def _scores(chunk: Chunk, models: tuple[Model, ...], units: Units) -> np.ndarray:
    columns = [predict(model, Block(chunk.X, units)) for model in models]
    return np.stack([to_numpy(f).astype(np.float64) for f in columns], axis=1)
