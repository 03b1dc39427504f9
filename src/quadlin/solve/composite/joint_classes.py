r"""Several classes at once: scores whose softmax is the probability of each class.

.. math:: \min\; -2 \sum_i \omega_i \log \frac{e^{f_{y_i}(x_i)}}{\sum_j e^{f_j(x_i)}}
          + \sum_k \alpha_{1k} |w_k|^2 + 2 \alpha_{2k} \|L_k\|_F^2

Of few rows, all scores are linear, or of all products, with one prior (`ScoreTable`). Otherwise
they have the ranks, penalties and pairs of the fits of each class against all others. Given the
other scores, to second order about its own, a class is least squares with weights h = p_k(1 − p_k)
and targets f_k + (y_k − p_k)/h. The classes take turns, one step each, from where the fits of each
class end; no step raises the objective.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, log

import numpy as np
from scipy.special import log_softmax

from quadlin.core.arrays import to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.losses import FLATTEST
from quadlin.core.model import Model, predict
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.composite.composer import PairRequest
from quadlin.solve.composite.label_pairs import LogOdds, Objective, descended, moved, stage_in
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.labels.logistic import Working
from quadlin.solve.labels.score_table import ScoreTable
from quadlin.solve.lowrank.design import Alpha
from quadlin.solve.lowrank.driver import follow
from quadlin.solve.lowrank.polish import polish
from quadlin.solve.lowrank.types import Options, Plan, Problem, finished
from quadlin.solve.lowrank.whitening import whitener
from quadlin.solve.pairs.products import PairTerms, Parts

CYCLES, TOL = 40, 1e-3  # turns of all classes; the relative fall of the objective that ends them
STEP_TOL, STEPS = 1e-4, 10  # of the least squares of a turn
NO_PAIRS = PairTerms(np.empty(0, int), np.empty(0, int), np.empty(0))


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
            if before - value <= TOL * value:
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
        some = replace(options, tol=STEP_TOL, max_iter=STEPS)
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
