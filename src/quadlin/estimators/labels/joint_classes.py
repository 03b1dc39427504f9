r"""Several classes at once: scores whose softmax is the probability of each class.

.. math:: \min\; -2 \sum_i \omega_i \log \frac{e^{f_{y_i}(x_i)}}{\sum_j e^{f_j(x_i)}}
          + \sum_k \alpha_{1k} |w_k|^2 + 2 \alpha_{2k} \|L_k\|_F^2

Given the other scores, to second order about its own, a class is least squares with weights
h = p_k(1 − p_k) and targets f_k + (y_k − p_k)/h. The classes take turns, one step each within its
rank and its pairs, from where the fits of each class against all others end; no step raises the
objective.
"""

from dataclasses import dataclass, replace
from math import exp, inf, log

import numpy as np
from scipy.special import log_softmax

from quadlin.core.arrays import lead, namespace
from quadlin.core.losses import FLATTEST
from quadlin.core.model import Model, constant_model
from quadlin.core.units import Units
from quadlin.estimators.labels.class_rows import ClassRows
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.regression.tasks import FitResult
from quadlin.solve.choose.choice import fits
from quadlin.solve.choose.penalties import maximised
from quadlin.solve.composite.pair_composite import PairRequest
from quadlin.solve.composite.pair_labels import stage_about
from quadlin.solve.composite.pair_log_odds import SHORTEST, LogOdds, Objective, moved
from quadlin.solve.labels.logistic import Working
from quadlin.solve.labels.logistic_search import floored
from quadlin.solve.lowrank.design import Alpha, Design
from quadlin.solve.lowrank.driver import follow
from quadlin.solve.lowrank.linear_model import Gram, linear_model
from quadlin.solve.lowrank.polish import polish
from quadlin.solve.lowrank.types import FIXED, Options, Problem, finished
from quadlin.solve.lowrank.whitening import whitener
from quadlin.solve.pairs.pair_terms import PairTerms, Parts

CYCLES, TOL = 40, 1e-5  # turns of all classes; the relative fall of the objective that ends them
SMALL = 1e8  # multiplications of a step that is solved outright
CHOICES = 2  # cycles that begin with a choice of penalties
STEP_TOL, LOOSE = 1e-6, (1e-4, 10)  # of the least squares of a turn; where penalties are chosen
NO_PAIRS = PairTerms(np.empty(0, int), np.empty(0, int), np.empty(0))


@dataclass(frozen=True)
class ClassFit:
    """The score of one class, and what it may be."""

    part: Fitted  # the fit of the class against all others
    fit: LogOdds
    options: Options  # of L, which products may stand beside

    @classmethod
    def of(cls, part: Fitted) -> "ClassFit":
        """Return the log-odds against all others as a score."""
        state = part.state
        terms = NO_PAIRS if state.parts is None else state.parts.terms
        squares = float(terms.coef[terms.i == terms.j].sum())  # that c, the mean of f, holds
        fit = LogOdds(moved(state.low_rank, -squares), terms)
        return cls(part, fit, replace(part.options, rank=fit.rank, loss="squared"))

    @property
    def units(self) -> Units:
        """Return the units of the features."""
        return self.part.state.units

    def penalised(self, alpha: Alpha) -> "ClassFit":
        """Return the same with other penalties."""
        return replace(self, options=replace(self.options, alpha=alpha))

    def resized(self, factor: float) -> "ClassFit":
        """Return the same with penalties multiplied, which a prior must still allow."""
        first, second = self.options.alpha
        d, k = int(self.units.scale.shape[0]), self.options.rank
        return self.penalised(floored((factor * first, factor * second), d, k))

    def linear(self) -> "ClassFit":
        """Return a linear score to start from."""
        low_rank = self.fit.low_rank
        model = replace(low_rank, U=low_rank.U[:, :0], s=low_rank.s[:0])
        return self.scored(model, self.options.alpha)

    def scored(self, model: Model, alpha: Alpha) -> "ClassFit":
        """Return the class with another score, without pairs."""
        k = int(model.s.shape[0])
        state = replace(self.part.state, model=model, parts=None, running=None, notes=None)
        assert isinstance(self.part.learned, FitResult)
        chosen = replace(self.part.options, rank=k)
        learned = replace(self.part.learned, current=state, chosen=chosen)
        part = replace(self.part, learned=learned, train_score=None)
        options = replace(self.options, rank=k, alpha=alpha)
        return ClassFit(part, LogOdds(model, NO_PAIRS), options)

    def fitted(self) -> Fitted:
        """Return the fit of the class with the score in place of its log-odds."""
        state, low_rank = self.part.state, self.fit.low_rank
        parts = None if state.parts is None else Parts(low_rank.U, low_rank.s, self.fit.terms)
        state = replace(state, model=self.fit.model, parts=parts, running=None, notes=None)
        return replace(self.part.with_state(state), law=None, pairs=None)


@dataclass
class JointFit:
    """The descent of all classes together."""

    rows: ClassRows
    classes: list[ClassFit]
    chooses: bool  # whether penalties are chosen on the way, by the evidence

    def __post_init__(self) -> None:
        units = [each.units for each in self.classes]
        self.F = self.rows.scores([each.fit.model for each in self.classes], units)

    def descended(self) -> "JointFit":
        """Take turns until the objective hardly falls."""
        before = inf
        for cycle in range(CYCLES):
            choose = self.chooses and cycle < CHOICES
            for label in range(len(self.classes)):
                self._turn(label, choose)
            self._centre()
            value = self.objective()
            if not choose and before - value <= TOL * value:
                break
            before = value
        return self

    def objective(self) -> float:
        """Return twice the log-loss and all penalties."""
        log_p = log_softmax(self.F, axis=1)
        return 2 * self.rows.total(log_p) + sum(map(self._penalty, self.classes))

    def _objective_of(self, label: int) -> float:
        """Return the objective without the penalties of the other classes, which stay the same."""
        log_p = log_softmax(self.F, axis=1)
        return 2 * self.rows.total(log_p) + self._penalty(self.classes[label])

    def _penalty(self, each: ClassFit) -> float:
        penalise = not self.rows.task.automatic.alpha
        return Objective(self.rows.rows, each.units, each.options, penalise).penalty(each.fit)

    def _turn(self, label: int, choose: bool) -> None:
        """Take a step of one class, halved until it does not raise the objective."""
        at = self.classes[label]
        working = self.working(label, at)
        if choose and not len(at.fit.terms.coef) and fits(at.units, at.options, at.options.rank):
            at = at.penalised(self._chosen(at, working))
        self.classes[label], f = at, self.F[:, label].copy()
        value, size, new = self._objective_of(label), 1.0, self._step(at, working)
        while size > SHORTEST:
            self.classes[label] = replace(at, fit=new)
            self.F[:, label] = self.rows.scores([new.model], [at.units])[:, 0]
            if self._objective_of(label) <= value:
                return
            new, size = at.fit.halfway(new), size / 2
        self.classes[label], self.F[:, label] = at, f

    def working(self, label: int, at: ClassFit) -> Working:
        """Return the least squares that approximate the loss about the score of a class."""
        p = np.exp(log_softmax(self.F, axis=1)[:, label])
        h = np.clip(p * (1 - p), FLATTEST, None)
        z = self.F[:, label] + ((self.rows.codes == label) - p) / h
        rows, intercept = self.rows.rows, at.options.fit_intercept
        return Working.of(h, z, self.rows.omega, rows, at.units, intercept)

    def _chosen(self, at: ClassFit, working: Working) -> Alpha:
        """Return the penalties of largest evidence, as far as it can be seen from one class.

        The rows do not see what all scores have in common: of K scores they determine K − 1.
        """
        U, k, d = at.fit.low_rank.U, at.options.rank, int(at.units.scale.shape[0])
        xp = namespace(U)
        U = U if 0 < k < d else xp.eye(d, k, dtype=U.dtype, device=U.device)
        linear = Gram.of(working.rows, Design.at(U, working.units, at.options), noise=1.0)
        before = linear.of_groups(at.options.alpha)
        start = [log(alpha) - log(working.weight) for alpha in before]
        peak = maximised(linear, [start]).log_alpha
        seen = 1 - 1 / len(self.classes)
        return floored((seen * exp(peak[0]), seen * exp(peak[-1])), d, k)

    def _step(self, at: ClassFit, working: Working) -> LogOdds:
        """Return the least squares of a class, beside its pairs."""
        task, options = self.rows.task, at.options
        start = moved(at.fit.low_rank, -working.offset)
        if len(at.fit.terms.coef):
            terms = at.fit.terms
            pairs = tuple(zip(terms.i.tolist(), terms.j.tolist(), strict=True))
            request = PairRequest(given=pairs)
            stage = stage_about(working, task, request, FIXED, options.rank)
            state = replace(at.part.state, model=start, units=working.units, parts=None)
            joint = stage.beside(state, options).joint
            assert joint is not None
            return LogOdds(moved(joint.model, working.offset), joint.terms)
        model = self._solved(options, working)
        if model is None:
            rng = np.random.default_rng(task.seed)
            loose = task.automatic.alpha
            tol, steps = LOOSE if loose else (STEP_TOL, options.max_iter)
            some = replace(options, tol=tol, max_iter=steps)
            problem = Problem(working.rows, working.units, some, rng)
            ridge = options.alpha[0] / working.weight
            white = whitener(working.rows, working.units, options.whiten, ridge, rng)
            model = finished(follow(problem, polish(problem, white, start))).model
        return LogOdds(moved(model, working.offset), NO_PAIRS)

    @property
    def is_small(self) -> bool:
        """Tell whether all scores are linear in few parameters."""
        return all(self._is_small(each.options) for each in self.classes)

    def _is_small(self, options: Options) -> bool:
        n, d, k = len(self.rows.codes), int(self.classes[0].units.scale.shape[0]), options.rank
        p = d if k == 0 else d * (d + 3) // 2
        return k in (0, d) and n * min(p, n) ** 2 <= SMALL and all(options.alpha)

    def _solved(self, options: Options, working: Working) -> Model | None:
        """Return the least squares outright, where it is linear in few parameters."""
        n, k = len(self.rows.codes), options.rank
        if not self._is_small(options):
            return None
        linear = linear_model(working.rows, working.units, options, n, k)
        return None if linear is None else linear.model(options.alpha)

    def _centre(self) -> None:
        """Take from all scores what they have in common, which only the penalties see: one pass.

        That is a share of w and, where M is not restricted, of M.
        """
        penalties = np.array([each.options.alpha for each in self.classes])
        options, units = self.classes[0].options, self.classes[0].units
        if not np.all(penalties) or not (options.fit_linear and options.fit_intercept):
            return
        first, second = (penalties / penalties.sum(axis=0)).T.tolist()
        models, d = [each.fit.low_rank for each in self.classes], int(units.scale.shape[0])
        w = sum(share * m.w for share, m in zip(first, models, strict=True))
        shared = replace(constant_model(units, 0), w=w)
        if all(each.fit.rank == d for each in self.classes) and not options.psd:
            M = sum(a * (m.U * m.s) @ m.U.T for a, m in zip(second, models, strict=True))
            s, U = lead(M, d)
            shared = replace(shared, U=U, s=s)
        self.F -= self.rows.scores([shared], [units])
        for label, each in enumerate(self.classes):
            less = less_of(each.fit.low_rank, shared)
            self.classes[label] = replace(each, fit=replace(each.fit, low_rank=less))


def less_of(model: Model, other: Model) -> Model:
    """Return the difference of two models, of the rank of the first, which must be enough."""
    c, w = model.c - other.c, model.w - other.w
    if not other.s.shape[0]:
        return replace(model, c=c, w=w)
    M = (model.U * model.s) @ model.U.T - (other.U * other.s) @ other.U.T
    s, U = lead(M, model.s.shape[0])
    return replace(model, U=U, s=s, c=c, w=w)
