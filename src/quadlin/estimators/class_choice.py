"""Whether several classes are fitted together, or their fits against the rest are combined."""

from collections.abc import Sequence

import numpy as np
from scipy.special import log_softmax

from quadlin.estimators.class_rows import ClassRows
from quadlin.estimators.coupling import COUPLINGS, log_probabilities
from quadlin.estimators.fitted import Fitted
from quadlin.estimators.folds import row_keys
from quadlin.estimators.joint_classes import ClassFit, JointFit
from quadlin.metrics import degrees_of_freedom
from quadlin.solve.logistic_choice import fit_logistic
from quadlin.solve.types import Status
from quadlin.stream.stream import FIXED

FOLDS = 5
FEW = 30  # rows per parameter: with more, penalties hardly hold log-odds back


def together(rows: ClassRows, parts: Sequence[Fitted]) -> tuple[float, tuple[Fitted, ...]]:
    """Return θ of `coupling` and no scores, or scores of a joint fit: what predicts best.

    Where penalties were given, the scores that minimise the objective. Else with few rows, what
    rows left out prefer, in five more fits per class with rank and penalties given; with many, or
    where pairs would have to be searched anew, what the rows themselves prefer.
    """
    # The names of the classes are not to matter: the largest takes its turn first.
    weight = np.bincount(rows.codes, rows.omega, minlength=len(parts))
    order = sorted(range(len(parts)), key=lambda k: (-weight[k], parts[k].state.history[-1].loss))
    rows, parts = rows.in_order(order), [parts[k] for k in order]
    fits = [ClassFit.of(part) for part in parts]
    chooses = rows.task.automatic.alpha
    joint = JointFit(rows, list(fits), chooses).descended()
    scores = tuple(joint.classes[order.index(k)].fitted() for k in range(len(parts)))
    if not chooses:
        return 0.0, scores
    d, with_pairs = len(rows.task.make_units.names), any(len(each.fit.terms.i) for each in fits)
    most = max(degrees_of_freedom(d, f.options.rank, **f.options.parts) for f in fits)
    if with_pairs or parts[0].stream.n_rows >= FEW * most:
        states = [part.state for part in parts]
        F = rows.scores([s.model for s in states], [s.units for s in states])
        apart = rows.total(log_probabilities(F))
        return 0.0, scores if rows.total(log_softmax(joint.F, axis=1)) <= apart else ()
    losses = left_out(rows, parts, joint)
    theta = min(COUPLINGS, key=lambda theta: losses[theta])
    return (0.0, scores) if losses[None] <= losses[theta] else (theta, ())


def left_out(
    rows: ClassRows, parts: Sequence[Fitted], joint: JointFit
) -> dict[float | None, float]:
    """Return the log-loss of rows left out with each θ, and with scores of a joint fit for None.

    Equal rows are left out together, so that weights are repetitions here too.
    """
    task = rows.task
    keys = np.concatenate(rows.rows.collect(row_keys, task.seed))
    fold = (keys >> np.uint64(32)).astype(np.int64) * FOLDS >> 32
    losses: dict[float | None, float] = dict.fromkeys((*COUPLINGS, None), 0.0)
    for number in range(FOLDS):
        held = fold == number
        seen = rows.weighted(np.where(held, 0.0, 1.0))
        if not seen.omega.any() or not held.any():
            continue
        again = []
        for label, part in enumerate(parts):
            target = seen.against_rest(label)
            state, _ = fit_logistic(target, part.options, task.make_units, task.seed, FIXED)
            if state.status is Status.interrupted:
                raise KeyboardInterrupt(state.status.value)
            again.append(part.with_state(state))
        states = [part.state for part in again]
        F = seen.scores([s.model for s in states], [s.units for s in states])
        for theta in COUPLINGS:
            losses[theta] += _total(rows, log_probabilities(F, theta), held)
        fits = zip(map(ClassFit.of, again), joint.classes, strict=True)
        start = [each.penalised(full.options.alpha) for each, full in fits]
        scores = JointFit(seen, start, chooses=False).descended().F
        losses[None] += _total(rows, log_softmax(scores, axis=1), held)
    return losses


def _total(rows: ClassRows, log_p: np.ndarray, held: np.ndarray) -> float:
    return float((rows.omega * rows.losses(log_p))[held].sum())
