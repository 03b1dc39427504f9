r"""Several classes at once: scores whose softmax is the probability of each class.

.. math:: \min\; -2 \sum_i \omega_i \log \frac{e^{f_{y_i}(x_i)}}{\sum_j e^{f_j(x_i)}}
          + \sum_k \alpha_{1k} |w_k|^2 + 2 \alpha_{2k} \|L_k\|_F^2

Given the other scores, to second order about its own, a class is least squares with weights
h = p_k(1 − p_k) and targets f_k + (y_k − p_k)/h. The classes take turns, one step each within its
rank and its pairs, from where the fits of each class against all others end; no step raises the
objective.

`joint_or_apart` decides whether such scores, or the fits of each class, predict better.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, inf, log

import numpy as np
from scipy.special import log_softmax

from quadlin.core.arrays import Array, lead, namespace, to_numpy
from quadlin.core.arrays import moved as moved_to_device
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.losses import FLATTEST
from quadlin.core.model import Model, constant_model, predict
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.choose.candidates import BEGIN, WORTH
from quadlin.solve.choose.choice import fits
from quadlin.solve.choose.penalties import maximised
from quadlin.solve.choose.penalty_posterior import Lattice
from quadlin.solve.composite.composer import PairRequest
from quadlin.solve.composite.label_pairs import SHORTEST, LogOdds, Objective, moved, stage_about
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.labels.class_probabilities import COUPLINGS, log_probabilities
from quadlin.solve.labels.class_table import ClassTable
from quadlin.solve.labels.label_table import LabelTable
from quadlin.solve.labels.left_out_deviance import Repeated, linear_model_of
from quadlin.solve.labels.logistic import Working
from quadlin.solve.labels.logistic_search import (
    CERTAIN_ROWS,
    COARSE_LATTICE,
    FINE,
    LATTICE,
    RESIZE,
    floored,
)
from quadlin.solve.lowrank.design import Alpha, Design
from quadlin.solve.lowrank.driver import follow
from quadlin.solve.lowrank.linear_model import Gram, linear_model
from quadlin.solve.lowrank.polish import polish
from quadlin.solve.lowrank.types import FIXED, Options, Plan, Problem, finished
from quadlin.solve.lowrank.whitening import whitener
from quadlin.solve.pairs.products import PairTerms, Parts

CYCLES, TOL = 40, 1e-5  # turns of all classes; the relative fall of the objective that ends them
SMALL = 1e8  # multiplications of a step that is solved outright
CHOICES = 2  # cycles that begin with a choice of penalties
STEP_TOL, LOOSE = 1e-6, (1e-4, 10)  # of the least squares of a turn; where penalties are chosen
NO_PAIRS = PairTerms(np.empty(0, int), np.empty(0, int), np.empty(0))
FEW = 30  # rows per parameter: with more, penalties hardly hold log-odds back
SIZES = 4  # of penalties that are tried, at most


@dataclass(frozen=True)
class ClassRows:
    """Rows with the weights of their classes, and the number of the class of each row."""

    plan: Plan
    rows: Rows
    codes: np.ndarray  # (n,)
    like: Array  # an array of the namespace and on the device of the targets

    @cached_property
    def omega(self) -> np.ndarray:
        """Return the weights of the rows: one pass."""
        return np.concatenate(self.rows.collect(_weights))

    def scores(self, models: Sequence[Model], units: Sequence[Units]) -> np.ndarray:
        """Return the predictions of models, (n, number of models): one pass."""
        return np.concatenate(self.rows.collect(_scores, tuple(models), tuple(units)))

    def losses(self, log_p: np.ndarray) -> np.ndarray:
        """Return the log-loss of each row with these logarithms of probabilities (n, K)."""
        return -np.asarray(log_p[np.arange(len(log_p)), self.codes])

    def total(self, log_p: np.ndarray) -> float:
        """Return the sum of `losses` by weight."""
        return float(self.omega @ self.losses(log_p))

    def in_order(self, order: Sequence[int]) -> "ClassRows":
        """Return the same with the classes numbered in another order."""
        return replace(self, codes=np.argsort(order)[self.codes])

    def against_rest(self, label: int) -> Rows:
        """Return the rows with the target 1 for a class, and 0 for all others."""
        target = moved_to_device((self.codes == label).astype(np.float64), self.like)
        ones = moved_to_device(np.ones(len(self.codes)), self.like)
        return self.rows.reweighted(ones, target)


@dataclass(frozen=True)
class ClassFit:
    """The score of one class, and what it may be."""

    state: FitState  # of the class against all others
    fit: LogOdds
    options: Options  # of L, which products may stand beside

    @classmethod
    def of(cls, state: FitState, options: Options) -> "ClassFit":
        """Return the log-odds against all others as a score."""
        terms = NO_PAIRS if state.parts is None else state.parts.terms
        squares = float(terms.coef[terms.i == terms.j].sum())  # that c, the mean of f, holds
        fit = LogOdds(moved(state.low_rank, -squares), terms)
        return cls(state, fit, replace(options, rank=fit.rank, loss="squared"))

    @property
    def units(self) -> Units:
        """Return the units of the features."""
        return self.state.units

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
        state = replace(self.state, model=model, parts=None, running=None, notes=None)
        options = replace(self.options, rank=int(model.s.shape[0]), alpha=alpha)
        return ClassFit(state, LogOdds(model, NO_PAIRS), options)

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
        penalise = not self.rows.plan.automatic.alpha
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
        plan, options = self.rows.plan, at.options
        start = moved(at.fit.low_rank, -working.offset)
        if len(at.fit.terms.coef):
            terms = at.fit.terms
            pairs = tuple(zip(terms.i.tolist(), terms.j.tolist(), strict=True))
            request = PairRequest(given=pairs)
            stage = stage_about(working, plan, request, FIXED, options.rank)
            state = replace(at.state, model=start, units=working.units, parts=None)
            joint = stage.beside(state, options).joint
            assert joint is not None
            return LogOdds(moved(joint.model, working.offset), joint.terms)
        model = self._solved(options, working)
        if model is None:
            rng = np.random.default_rng(plan.seed)
            loose = plan.automatic.alpha
            tol, steps = LOOSE if loose else (STEP_TOL, options.max_iter)
            some = replace(options, tol=tol, max_iter=steps)
            problem = Problem(working.rows, working.units, some, rng)
            ridge = options.alpha[0] / working.weight
            white = whitener(working.rows, working.units, ridge, rng)
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


@dataclass(frozen=True)
class Judge:
    """The log-loss of rows that are left out one at a time.

    To first order in what a row says of each class.
    """

    rows: ClassRows
    repeated: Repeated

    @classmethod
    def of(cls, rows: ClassRows) -> "Judge":
        """Return the judge of rows."""
        return cls(rows, Repeated.of(rows.against_rest(0)))

    def against_rest(self, label: int, each: ClassFit) -> Working:
        """Return the least squares about the log-odds of a class against all others."""
        target = self.rows.against_rest(label)
        return Working.about(each.state.model, target, each.units, each.options.fit_intercept)

    def left_out(self, classes: Sequence[ClassFit], working: Sequence[Working]) -> np.ndarray:
        """Return what each row is given by each class when it is left out, (n, K)."""
        columns = []
        for each, about in zip(classes, working, strict=True):
            U, n_rows = each.fit.low_rank.U, len(self.repeated.times)
            linear = linear_model_of(about, U, each.options, n_rows)
            columns.append(self.repeated.predictions(about, linear, each.options.alpha))
        return np.column_stack(columns)

    def loss(self, log_p: np.ndarray) -> float:
        """Return the log-loss of rows of positive weight, by weight."""
        counts = self.rows.omega > 0
        codes, omega = self.rows.codes[counts], self.rows.omega[counts]
        return -float(omega @ log_p[np.arange(len(codes)), codes])

    def of_scores(self, joint: JointFit) -> float:
        """Return the log-loss of scores that were fitted together."""
        again = JointFit(self.rows, joint.classes, chooses=False)
        working = [again.working(label, each) for label, each in enumerate(joint.classes)]
        return self.loss(log_softmax(self.left_out(joint.classes, working), axis=1))

    def sized(self, joint: JointFit) -> JointFit:
        """Return scores with penalties of the size that rows left out ask for, as `sized` does."""
        if not joint.is_small:
            return joint
        best, loss, rows = joint, self.of_scores(joint), joint.rows
        for factor in (1 / RESIZE, RESIZE):
            for _ in range(SIZES):
                if 2 * loss <= CERTAIN_ROWS:
                    return best
                other = [each.resized(factor) for each in best.classes]
                tried = JointFit(rows, other, chooses=False).descended()
                reached = self.of_scores(tried)
                if reached >= WORTH * loss:
                    break
                best, loss = tried, reached
            if best is not joint:
                break
        return best


def joint_or_apart(
    rows: ClassRows, parts: Sequence[tuple[FitState, Options]], n_rows: int
) -> tuple[float, list[FitState]]:
    """Return θ of `class_probabilities`, or scores of a joint fit: what predicts best.

    Where penalties were given, the scores that minimise the objective. Else of few rows scores with
    one prior for all classes, linear or of all products (`_on_table`), unless pairs are worth more.
    Where those do not fit into a matrix, what rows left out one at a time prefer: scores within the
    ranks of the classes, linear scores, or log-odds of each class. With many rows, or with pairs,
    what the rows themselves prefer.

    Scores on a table are not compared with fits of low rank. Left-out rows favour these by up to
    20%, since they do not see how the rank was chosen. Taken at their word on 36 tables of 150 and
    300 rows, they raised the log-loss of linear truths by 1 to 7% and changed that of others by −1
    to +4%.
    """
    # The names of the classes are not to matter: the largest takes its turn first.
    weight = np.bincount(rows.codes, rows.omega, minlength=len(parts))
    order = sorted(range(len(parts)), key=lambda k: (-weight[k], parts[k][0].history[-1].loss))
    rows, parts = rows.in_order(order), [parts[k] for k in order]
    classes = [ClassFit.of(*part) for part in parts]
    chooses = rows.plan.automatic.alpha
    pairs = sum(len(each.fit.terms.coef) for each in classes)
    dense = _on_table(rows, classes) if chooses else None

    def scores(joint: JointFit) -> list[FitState]:
        return [joint.classes[order.index(k)].ended() for k in range(len(parts))]

    if dense is not None and not pairs:
        return 0.0, scores(dense)
    joint = JointFit(rows, list(classes), chooses).descended()
    if not chooses:
        return 0.0, scores(joint)
    if dense is not None or not _is_judged(classes, n_rows):
        best = _by_training_rows(rows, classes, joint, dense, pairs)
        return 0.0, [] if best is None else scores(best)
    theta, best = _by_left_out_rows(rows, classes, joint)
    return theta, [] if best is None else scores(best)


def _by_training_rows(
    rows: ClassRows,
    classes: Sequence[ClassFit],
    joint: JointFit,
    dense: JointFit | None,
    pairs: int,
) -> JointFit | None:
    """Return the scores that fit the rows best, or None if the log-odds of each class do."""
    states = [each.state for each in classes]
    F = rows.scores([s.model for s in states], [s.units for s in states])
    apart = rows.total(log_probabilities(F))
    totals = [rows.total(log_softmax(each.F, axis=1)) for each in (joint, dense or joint)]
    # What rows would have to save for their pairs, by Schwarz's criterion.
    if dense is not None and totals[1] <= min(totals[0], apart) + pairs * log(len(F)) / 2:
        return dense
    return joint if totals[0] <= apart else None


def _by_left_out_rows(
    rows: ClassRows, classes: Sequence[ClassFit], joint: JointFit
) -> tuple[float, JointFit | None]:
    """Return the coupling, and the scores that predict rows left out better than log-odds do."""
    judge = Judge.of(rows)
    F = judge.left_out(classes, [judge.against_rest(k, each) for k, each in enumerate(classes)])
    losses = {theta: judge.loss(log_probabilities(F, theta)) for theta in COUPLINGS}
    theta = min(COUPLINGS, key=lambda theta: losses[theta])
    joints = [judge.sized(joint)]
    if any(each.options.rank for each in classes) and rows.plan.automatic.rank:
        linear = [each.linear() for each in classes]
        joints.append(judge.sized(JointFit(rows, linear, chooses=True).descended()))
    best = min(joints, key=judge.of_scores)
    return (0.0, best) if judge.of_scores(best) <= losses[theta] else (theta, None)


def _on_table(rows: ClassRows, classes: Sequence[ClassFit]) -> JointFit | None:
    """Return scores of few rows with one prior for all classes, linear or of all products.

    Whichever has the larger evidence; None where the rows are many, or the classes have low ranks
    and a table of all products does not fit.
    """
    first = classes[0]
    options, d, K = first.options, int(first.units.scale.shape[0]), len(classes)
    plain = options.fit_linear and options.fit_intercept and not options.psd
    if not plain or not LabelTable.holds(len(rows.codes), d):
        return None
    table = LabelTable.of(rows.rows, first.units, options, "logistic")
    times = Repeated.of(rows.against_rest(0)).times
    dense = ClassTable(table, rows.codes[rows.omega > 0], K, times)
    ranks = {each.options.rank for each in classes}
    # Products are tried where a class has asked for a quadratic part that is not a few pairs.
    wanted = ranks if not rows.plan.automatic.rank else {0, d} if max(ranks) > 0 else {0}
    if not all(k in (0, d) and dense.takes(k) for k in wanted):
        return None
    shares = np.bincount(dense.codes, table.omega, minlength=K) / table.weight
    weight = table.weight * float(np.mean(shares * (1 - shares)))
    alpha = np.exp(np.mean(np.log([each.options.alpha for each in classes]), axis=0))
    begin, least, best = (float(alpha[0]), float(alpha[0])), -inf, None
    for k in sorted(wanted):
        p = K * options.dof(d, k)
        points, widest = LATTICE if p <= FINE else COARSE_LATTICE, floored((0.0, 0.0), d, k)
        lattice = Lattice(weight, widest, *points, scores=K - 1)
        chosen, evidence = dense.chosen(k, begin, lattice, least)
        if evidence > least:
            best, least = (k, chosen), evidence
        begin = chosen[0], BEGIN * weight
    assert best is not None
    k, chosen = best
    models = dense.models(k, dense.fitted(k, chosen))
    scored = [each.scored(model, chosen) for each, model in zip(classes, models, strict=True)]
    return JointFit(rows, scored, chooses=False)


def _is_judged(classes: Sequence[ClassFit], n_rows: int) -> bool:
    """Tell whether rows are left out: they are few, and the fits are linear near by."""
    for each in classes:
        if len(each.fit.terms.i) or not fits(each.units, each.options, each.options.rank):
            return False
    d, options = int(classes[0].units.scale.shape[0]), classes[0].options
    most = max(options.dof(d, each.options.rank) for each in classes)
    return n_rows < FEW * most


def less_of(model: Model, other: Model) -> Model:
    """Return the difference of two models, of the rank of the first, which must be enough."""
    c, w = model.c - other.c, model.w - other.w
    if not other.s.shape[0]:
        return replace(model, c=c, w=w)
    M = (model.U * model.s) @ model.U.T - (other.U * other.s) @ other.U.T
    s, U = lead(M, model.s.shape[0])
    return replace(model, U=U, s=s, c=c, w=w)


def _weights(chunk: Chunk) -> np.ndarray:
    return chunk.weights


def _scores(chunk: Chunk, models: tuple[Model, ...], units: tuple[Units, ...]) -> np.ndarray:
    columns = [predict(m, Block(chunk.X, u)) for m, u in zip(models, units, strict=True)]
    return np.stack([to_numpy(f).astype(np.float64) for f in columns], axis=1)
