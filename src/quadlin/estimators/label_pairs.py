r"""Pairs beside log-odds: sought and fitted on the least squares that the loss is about a model.

About log-odds g the deviance is, to second order, a sum of squares of weights h = p(1 − p) and
targets g + (y − p)/h. There pairs are searched as they are for any target; with the pairs that were
taken the least squares is solved again and again, which is Newton's method for the deviance, until
it stays the same. A weak prior keeps the log-odds of rows finite that pairs could separate.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from quadlin.core.arrays import lead, namespace, to_numpy
from quadlin.core.losses import constant_deviance, log_odds
from quadlin.core.model import Model
from quadlin.core.rows import Rows
from quadlin.core.survey import Survey, survey
from quadlin.core.units import Units
from quadlin.estimators.pairs import Reported
from quadlin.explain.pair_report import DEVIANCE, PairReport
from quadlin.solve.choice import Automatic
from quadlin.solve.fit_state import FitState
from quadlin.solve.levels import settled
from quadlin.solve.logistic import Working
from quadlin.solve.logistic_choice import WIDEST, fit_logistic
from quadlin.solve.pair_composite import PairRequest
from quadlin.solve.pair_part import PairTerms, Parts, whole
from quadlin.solve.pair_regression import MOST_FEATURES
from quadlin.solve.pair_stage import (
    FEWEST_ROWS,
    PairOutcome,
    PairStage,
    ended,
    refuse_uninformative,
)
from quadlin.solve.tangent import Coordinates
from quadlin.solve.types import Options, Problem, Record, Status
from quadlin.solve.whitening import Identity
from quadlin.stream.stream import FIXED

if TYPE_CHECKING:
    from quadlin.estimators.fitting import Task

PRIOR = 1 / (WIDEST * WIDEST)  # penalty of a product: its log-odds have a standard deviation of ten
STEPS, TOL = 25, 1e-8  # of Newton's method, and the relative fall of the objective that ends it
SHORTEST = 1 / 16  # of a step that would raise the objective
SEARCHES = 3  # beside a linear model, each about the pairs of the last one


@dataclass(frozen=True)
class LabelPairs:
    """Rows with labels 0 and 1, and what is to be learned from them."""

    task: "Task"
    rows: Rows
    surveyed: Survey

    def fitted(self, warm: FitState | None, on_step: Any) -> Reported:
        """Return log-odds with pairs, or without where none are worth it."""
        task, request = self.task, self.task.pairs
        assert request is not None
        searches = task.automatic.rank and request.given is None
        if searches and len(task.make_units.names) <= MOST_FEATURES and self._enough:
            outcome = self._alone(request)
            if outcome is not None:
                return outcome
        args = (task.options, task.make_units, task.seed, task.automatic, warm, on_step)
        state, options = fit_logistic(self.rows, *args, self.surveyed)
        without = Reported(state, options, self.rows)
        if ended(state) or not self._enough:
            return without
        refuse_uninformative(request, state, task.make_units)
        try:
            return self._beside(state, options, request)
        except KeyboardInterrupt:
            return replace(without, state=replace(state, status=Status.interrupted))

    @property
    def _enough(self) -> bool:
        target = self.surveyed.target
        varies = bool(target.varies(target.mean.dtype)[0])
        return varies and self.surveyed.tally.counting >= FEWEST_ROWS

    def _alone(self, request: PairRequest) -> Reported | None:
        """Return pairs beside a linear model if they leave nothing of low rank, else None."""
        task = self.task
        options, chooses = replace(task.options, rank=0), Automatic(False, task.automatic.alpha)
        args = (options, task.make_units, task.seed, chooses)
        linear, options = fit_logistic(self.rows, *args, surveyed=self.surveyed)
        if linear.status is Status.interrupted:
            return Reported(linear, options, self.rows)
        state, before, best = linear, frozenset[tuple[int, int]](), None
        try:
            for _ in range(SEARCHES):
                stage, offset = self._about(state, request, task.automatic)
                beside = replace(state, model=_moved(state.low_rank, -offset), parts=None)
                pairs = stage.alone(beside, options)
                if pairs is None:
                    return None
                assert pairs.state.parts is not None
                if pairs.state.parts.terms.pairs == before:
                    break
                before = pairs.state.parts.terms.pairs
                best = self._converged(pairs, linear, offset)
                state = best.state
            return best
        except KeyboardInterrupt:
            return Reported(replace(state, status=Status.interrupted), options, self.rows)

    def _beside(self, state: FitState, options: Options, request: PairRequest) -> Reported:
        """Return a fit with pairs beside it, or as it was with what the search says."""
        stage, offset = self._about(state, request, self.task.automatic, options.rank)
        pairs = stage.beside(replace(state, model=_moved(state.model, -offset)), options)
        if pairs.state.parts is None:
            report = self._told(Reported.of(pairs, self.task).report, state, stage)
            return Reported(state, options, self.rows, report=report)
        return self._converged(pairs, state, offset)

    def _about(
        self, state: FitState, request: PairRequest, automatic: Automatic, rank: int = 0
    ) -> tuple[PairStage, float]:
        """Return the search in the least squares about a model, and the mean of its targets."""
        task = self.task
        working = Working.about(state.model, self.rows, state.units, task.options.fit_intercept)
        squared = replace(
            task,
            automatic=automatic,
            make_units=replace(task.make_units, labels=False),
            options=replace(task.options, loss="squared", rank=rank),
        )
        stage = PairStage(squared.plan, request, working.rows, survey(working.rows), working.units)
        stage.penalise, stage.least_penalty, stage.noise = self._penalise, PRIOR, 1.0
        return stage, working.offset

    def _converged(self, start: PairOutcome, before: FitState, offset: float) -> Reported:
        """Fit the pairs that were taken, and all beside them, to the deviance.

        `before` is the fit without pairs, and `offset` the mean of the targets of the search.
        """
        units, weight = before.units, self.surveyed.features.weight
        options, joint = replace(start.options, loss="logistic"), start.joint
        assert joint is not None
        at = Fit(_moved(joint.model, offset), joint.terms)
        options = replace(options, rank=at.rank)
        request = PairRequest(
            given=tuple(zip(at.terms.i.tolist(), at.terms.j.tolist(), strict=True))
        )
        objective = Objective(self.rows, units, options, self._penalise)
        value, state, status = objective(at), start.state, Status.out_of_steps
        history = [before.history[0]]
        for step in range(1, STEPS + 1):
            history.append(Record(step, self.rows.walks, value / 2 / weight))
            about = replace(state, model=at.model, units=units, parts=None)
            stage, offset = self._about(about, request, FIXED, at.rank)
            beside = replace(about, model=_moved(at.low_rank, -offset))
            last = stage.beside(beside, options)
            assert last.joint is not None
            new = Fit(_moved(last.joint.model, offset), last.joint.terms)
            reached, size = objective(new), 1.0
            while reached > value and size > SHORTEST:
                new, size = at.halfway(new), size / 2
                reached = objective(new)
            if value - reached <= TOL * value:
                status = Status.converged
                break
            at, value = new, reached
        fields = self.task.make_units.fields
        low_rank = settled(at.low_rank, units, fields)
        state = replace(
            state,
            model=settled(at.model, units, fields),
            units=units,
            features=self.surveyed.features,
            target=self.surveyed.target,
            history=tuple(history),
            status=status,
            parts=Parts(low_rank.U, low_rank.s, at.terms),
        )
        options = replace(options, rank=int(state.model.s.shape[0]))
        reports = [Reported.of(each, self.task).report for each in (start, last)]
        report = self._told(reports[0], before, stage, state, reports[1])
        return Reported(state, options, self.rows, report=report)

    @property
    def _penalise(self) -> bool:
        return not self.task.automatic.alpha

    def _told(
        self,
        search: PairReport | None,
        before: FitState,
        stage: PairStage,
        state: FitState | None = None,
        tested: PairReport | None = None,
    ) -> PairReport | None:
        """Return what a search says, with shares of the deviance in place of those of a variance.

        To second order, what a pair takes off the sum of squares about a model it takes off the
        deviance. D² is exact without pairs, `before`, and with all of them, `state`.
        """
        if search is None:
            return None
        weight, share = self.surveyed.features.weight, float(self.surveyed.target.mean[0])
        nothing = weight * constant_deviance(share, log_odds(share))
        loss = Objective(self.rows, before.units, self.task.options, False).loss
        first = 1 - loss(before.model) / nothing
        last = first if state is None else 1 - loss(state.model) / nothing
        factor = stage.weight * stage.units.target.power / nothing
        about = search if tested is None else tested
        entered = [sum(p.order <= m for p in search.pairs) for m in range(len(search.path))]
        way = np.array([about.path[m].r2 for m in entered])
        way = (way - way[0]) / max(way[-1] - way[0], 1e-300)
        r2 = (first + (last - first) * way).tolist()
        path = [step._replace(r2=value) for step, value in zip(search.path, r2, strict=True)]
        order = {(p.first, p.second): p.order for p in search.pairs}
        pairs = [
            p._replace(share=p.share * factor, order=order[p.first, p.second]) for p in about.pairs
        ]
        return replace(search, pairs=pairs, path=path, measure=DEVIANCE)


@dataclass(frozen=True)
class Fit:
    """Log-odds with pairs: b, w and L, and products beside them."""

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

    def halfway(self, other: "Fit") -> "Fit":
        """Return the mean of two fits of the same rank and products."""
        a, b = self.low_rank, other.low_rank
        xp = namespace(a.U)
        U = np.concatenate([to_numpy(m.U).astype(float) for m in (a, b)], axis=1)
        s = np.concatenate([to_numpy(m.s).astype(float) for m in (a, b)])
        basis = np.linalg.qr(U)[0]
        B = basis.T @ U
        values, vectors = lead((B * s / 2) @ B.T, self.rank)
        like = {"dtype": a.U.dtype, "device": a.U.device}
        low_rank = replace(
            a,
            U=xp.asarray(basis @ vectors, **like),
            s=xp.asarray(values, **like),
            w=(a.w + b.w) / 2,
            c=(a.c + b.c) / 2,
        )
        return Fit(low_rank, replace(self.terms, coef=(self.terms.coef + other.terms.coef) / 2))


@dataclass(frozen=True)
class Objective:
    """The deviance of log-odds with pairs, and the penalties."""

    rows: Rows
    units: Units
    options: Options
    penalise: bool  # the products like L

    def __call__(self, fit: Fit) -> float:
        """Return the objective: a walk."""
        i, j, coef = fit.terms.i, fit.terms.j, fit.terms.coef
        rho = to_numpy(self.units.penalty_scale).astype(float)
        third = max(self.options.alpha[1] if self.penalise else 0.0, PRIOR)
        products = third * float(np.sum((1 + (i == j)) * (rho[i] * rho[j] * coef) ** 2))
        ridge = Coordinates(self.units, self.options, Identity()).ridge(fit.low_rank)
        return self.loss(fit.model) + ridge + products

    def loss(self, model: Model) -> float:
        """Return the deviance: a walk."""
        options = replace(self.options, loss="logistic")
        problem = Problem(self.rows, self.units, options, np.random.default_rng(0))
        return float(problem.sums(model, squares=False).loss)


def _moved(model: Model, by: float) -> Model:
    return replace(model, c=model.c + by)
