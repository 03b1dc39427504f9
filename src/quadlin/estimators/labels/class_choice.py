"""Whether several classes are fitted together, or their fits against the rest are combined."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log

import numpy as np
from scipy.special import log_softmax

from quadlin.core.rows import Rows
from quadlin.estimators.labels.class_rows import ClassRows
from quadlin.estimators.labels.fitted_classes import COUPLINGS, log_probabilities
from quadlin.estimators.labels.joint_classes import ClassFit, JointFit
from quadlin.estimators.regression.fitted import Fitted
from quadlin.solve.choose.candidates import BEGIN, WORTH
from quadlin.solve.choose.choice import fits
from quadlin.solve.choose.penalty_posterior import Lattice
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

FEW = 30  # rows per parameter: with more, penalties hardly hold log-odds back
SIZES = 4  # of penalties that are tried, at most


def joint_or_apart(rows: ClassRows, parts: Sequence[Fitted]) -> tuple[float, tuple[Fitted, ...]]:
    """Return θ of `fitted_classes` and no scores, or scores of a joint fit: what predicts best.

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
    order = sorted(range(len(parts)), key=lambda k: (-weight[k], parts[k].state.history[-1].loss))
    rows, parts = rows.in_order(order), [parts[k] for k in order]
    classes = [ClassFit.of(part) for part in parts]
    chooses = rows.task.automatic.alpha
    pairs = sum(len(each.fit.terms.coef) for each in classes)
    dense = _on_table(rows, classes) if chooses else None

    def scores(joint: JointFit) -> tuple[Fitted, ...]:
        return tuple(joint.classes[order.index(k)].fitted() for k in range(len(parts)))

    if dense is not None and not pairs:
        return 0.0, scores(dense)
    joint = JointFit(rows, list(classes), chooses).descended()
    if not chooses:
        return 0.0, scores(joint)
    if dense is not None or not _is_judged(classes, parts[0].n_rows):
        best = _by_training_rows(rows, parts, joint, dense, pairs)
        return 0.0, () if best is None else scores(best)
    theta, best = _by_left_out_rows(rows, parts, classes, joint)
    return theta, () if best is None else scores(best)


def _by_training_rows(
    rows: ClassRows, parts: Sequence[Fitted], joint: JointFit, dense: JointFit | None, pairs: int
) -> JointFit | None:
    """Return the scores that fit the rows best, or None if the log-odds of each class do."""
    states = [part.state for part in parts]
    F = rows.scores([s.model for s in states], [s.units for s in states])
    apart = rows.total(log_probabilities(F))
    totals = [rows.total(log_softmax(each.F, axis=1)) for each in (joint, dense or joint)]
    # What rows would have to save for their pairs, by Schwarz's criterion.
    if dense is not None and totals[1] <= min(totals[0], apart) + pairs * log(len(F)) / 2:
        return dense
    return joint if totals[0] <= apart else None


def _by_left_out_rows(
    rows: ClassRows, parts: Sequence[Fitted], classes: Sequence[ClassFit], joint: JointFit
) -> tuple[float, JointFit | None]:
    """Return the coupling, and the scores that predict rows left out better than log-odds do."""
    judge = Judge.of(rows)
    F = judge.left_out(classes, [judge.against_rest(k, part) for k, part in enumerate(parts)])
    losses = {theta: judge.loss(log_probabilities(F, theta)) for theta in COUPLINGS}
    theta = min(COUPLINGS, key=lambda theta: losses[theta])
    joints = [judge.sized(joint)]
    if any(each.options.rank for each in classes) and rows.task.automatic.rank:
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
    wanted = ranks if not rows.task.automatic.rank else {0, d} if max(ranks) > 0 else {0}
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

    def against_rest(self, label: int, part: Fitted) -> Working:
        """Return the least squares about the log-odds of a class against all others."""
        target: Rows = self.rows.against_rest(label)
        return Working.about(part.state.model, target, part.state.units, part.options.fit_intercept)

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
