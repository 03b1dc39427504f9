r"""Probabilities of several classes, from the log-odds of each against all others.

.. math:: p_k \propto \frac{\sigma(f_k)}{(1 - \sigma(f_k))^\theta}

With θ = 0 the probabilities are divided by their sum, which is exact where all log-odds are. With
θ = 1 it is a softmax of the log-odds, which is better where classes can be separated and penalties
hold the log-odds back. Rows that are left out choose, where there are few of them.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from quadlin.core.arrays import Array, moved, namespace, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.losses import probability, softplus
from quadlin.core.model import Model, predict
from quadlin.core.rows import Rows, Walks
from quadlin.core.units import Units
from quadlin.estimators.fitted import Fitted
from quadlin.estimators.fitting import Task
from quadlin.estimators.folds import row_keys
from quadlin.metrics import degrees_of_freedom
from quadlin.solve.logistic_choice import fit_logistic
from quadlin.solve.types import Status
from quadlin.stream.stream import FIXED

COUPLINGS = (0.0, 0.5, 1.0)  # θ; larger ones are too sure where few rows choose
FOLDS = 5
SURE = 3.0  # standard errors by which another θ than 0 must lower the log-loss of rows left out
FEW = 30  # rows per parameter: with more, log-odds are hardly held back
UNDERFLOW = -30.0  # of log-odds: below, a probability is the exponential


def probabilities(f: Array, coupling: float = 0.0) -> Array:
    """Return the probabilities of log-odds (n,), or of several classes (n, K) against the rest."""
    xp = namespace(f)
    if f.ndim == 1:
        return xp.stack([probability(-f), probability(f)], axis=1)
    if coupling:
        return xp.exp(log_probabilities(f, coupling))
    # Shares of log-odds far below zero, which all underflow, are those of their exponentials.
    low = xp.max(f, axis=1, keepdims=True) < UNDERFLOW
    p = probability(xp.where(low, f - xp.max(f, axis=1, keepdims=True), f))
    return p / xp.sum(p, axis=1, keepdims=True)


def log_probabilities(f: Array, coupling: float = 0.0) -> Array:
    """Return the logarithms of `probabilities`, which do not underflow for two classes."""
    xp = namespace(f)
    if f.ndim == 1:
        return xp.stack([-softplus(f), -softplus(-f)], axis=1)
    log_p = coupling * softplus(f) - softplus(-f)
    top = xp.max(log_p, axis=1, keepdims=True)
    return log_p - top - xp.log(xp.sum(xp.exp(log_p - top), axis=1, keepdims=True))


def chosen_coupling(
    task: Task, rows: Rows, parts: Sequence[Fitted], codes: np.ndarray, factors: np.ndarray | None
) -> float:
    """Return θ: the one that predicts rows left out clearly best, with rank and penalties given.

    Five fits for each class, where there are few rows; none elsewhere. Equal rows are left out
    together, so that weights are repetitions here too.
    """
    options = [part.options for part in parts]
    d = len(task.make_units.names)
    most = max(degrees_of_freedom(d, each.rank, **each.parts) for each in options)
    with_pairs = any(part.state.parts is not None for part in parts)  # these are searched anew
    if with_pairs or parts[0].stream.n_rows >= FEW * most:
        return 0.0
    keys = np.concatenate(rows.collect(row_keys, task.seed))
    fold = (keys >> np.uint64(32)).astype(np.int64) * FOLDS >> 32
    like = parts[0].state.units.scale
    omega = np.concatenate(rows.collect(_weights)) * (1.0 if factors is None else factors[codes])
    f = np.zeros((len(codes), len(parts)))
    for held in range(FOLDS):
        seen = np.where(fold == held, 0.0, 1.0 if factors is None else factors[codes])
        if not omega[fold != held].any() or not (fold == held).any():
            continue
        for label, each in enumerate(options):
            target = moved((codes == label).astype(np.float64), like)
            few = replace(rows.reweighted(moved(seen, like), target), counter=Walks())
            state, _ = fit_logistic(few, each, task.make_units, task.seed, FIXED)
            if state.status is Status.interrupted:
                raise KeyboardInterrupt(state.status.value)
            everywhere = np.concatenate(rows.collect(_predicted, state.model, state.units))
            f[fold == held, label] = everywhere[fold == held]
    row = np.arange(len(codes))
    losses = {theta: -log_probabilities(f, theta)[row, codes] for theta in COUPLINGS}
    best = min(COUPLINGS, key=lambda theta: float(omega @ losses[theta]))
    gain = losses[0.0] - losses[best]
    return best if float(omega @ gain) > SURE * float(omega @ gain**2) ** 0.5 else 0.0


def _weights(chunk: Chunk) -> np.ndarray:
    n = chunk.X.shape[0]
    return np.ones(n) if chunk.weight is None else to_numpy(chunk.weight).astype(np.float64)


def _predicted(chunk: Chunk, model: Model, units: Units) -> np.ndarray:
    return to_numpy(predict(model, Block(chunk.X, units))).astype(np.float64)
