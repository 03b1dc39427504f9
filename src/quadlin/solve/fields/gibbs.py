r"""Posterior draws of a factorization machine on one-hot fields, by Gibbs sampling.

.. math:: y = b + x^\top w + \sum_{i < j} \langle v_i, v_j \rangle_s\, x_i x_j + \text{noise},
          \qquad \langle v_i, v_j \rangle_s = \sum_a s_a v_{ia} v_{ja},

where the sum is over pairs of columns across entities (see `field_rows`).

All levels of a field are independent given the rest, so a sweep is one pass per field of
(k + 1)×(k + 1) systems. Predictions are means over draws. The levels of the largest field of an
entity are drawn with a correlation of −0.7 to their last deviation from the mean, as in Adler's
overrelaxation, so that the errors of consecutive draws cancel (`Levels.draw`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logsumexp

from quadlin.solve.fields.field_machine import FieldMachine, Sweep
from quadlin.solve.fields.field_predict import PREDICTIONS, Layout, predict_all

BYTES = 2**28  # most memory that the kept draws may take
BURN_IN = 30  # sweeps before the draws that are kept


@dataclass(frozen=True)
class Draws:
    """Draws of a factorization machine after burn-in, and the history of the sampler."""

    intercepts: np.ndarray  # (S,)
    tables: np.ndarray  # (S, d + fields, k + 1), float32: (w, v) of each column; see `predict_all`
    centred: np.ndarray  # the same, with some levels at their conditional means: less variable
    signs: np.ndarray  # (k,)
    noises: np.ndarray  # (S,), standard deviations
    layout: Layout
    history: tuple[Sweep, ...] = ()
    labels: bool = False  # whether they are log-odds, averaged as probabilities

    @property
    def noise(self) -> float:
        """The standard deviation of the noise."""
        return float(np.sqrt(np.mean(self.noises**2)))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the posterior mean of new rows and, if `return_std`, the predictive deviation.

        For labels it is the log-odds of their posterior mean probability.

        A row without a level of a field is treated as one with a level that was never seen.
        """
        mean, std = np.empty(X.shape[0]), np.empty(X.shape[0])
        step = max(1, PREDICTIONS // len(self.tables))
        for start in range(0, X.shape[0], step):
            at = slice(start, start + step)
            table = self.tables if self.labels else self.centred
            f = self.intercepts + predict_all(X[at], self.layout, table, self.signs)
            mean[at] = mean_log_odds(f) if self.labels else np.mean(f, axis=1)
            if return_std:
                f = predict_all(X[at], self.layout, self.tables, self.signs)
                std[at] = np.sqrt(np.var(self.intercepts + f, axis=1) + self.noise**2)
        return (mean, std) if return_std else mean


def mean_log_odds(f: np.ndarray) -> np.ndarray:
    """Return the log-odds of the mean probability over draws of log-odds (n, S)."""
    yes, no = (logsumexp(-np.logaddexp(0.0, sign * f), axis=1) for sign in (-1, 1))
    return np.asarray(yes - no)


def draw(
    chain: FieldMachine,
    fields: Sequence[np.ndarray],
    draws: int,
    burn_in: int = BURN_IN,
    max_bytes: int = BYTES,
    labels: bool = False,
) -> Draws:
    """Continue from variational inference as a sampler.

    Parameters
    ----------
    chain : FieldMachine
        The machine after some sweeps of variational inference.
    fields : sequence of int array
        The columns of each one-hot field; every row has exactly one level of each.
    draws, burn_in : int
        Sweeps that are kept and sweeps before them. Of the kept sweeps, only as many evenly spaced
        ones as fit in `max_bytes` are stored.
    max_bytes : int
        Most memory of the stored draws, 8·(d + fields)·(rank + 1) bytes each.
    labels : bool
        Whether they are draws of log-odds.
    """
    rows = chain.rows
    chain.start_sampling()
    size = 8 * (rows.n_columns + len(fields)) * (len(chain.signs) + 1)
    stride = -(-draws // max(1, min(draws, max_bytes // size)))
    kept, history = [], []
    for t in range(burn_in + draws):
        chain.sweep()
        history.append(chain.line(t + 1))
        if t >= burn_in and (t - burn_in) % stride == stride - 1:
            b, table = chain.table(fields)
            kept.append(
                (b, chain.with_unseen(table, fields), chain.centred(table), history[-1].noise)
            )
    intercepts, tables, centred, noises = zip(*kept, strict=True)
    layout = Layout(tuple(np.asarray(field) for field in fields), rows.parts)
    return Draws(
        np.array(intercepts), np.array(tables, dtype=np.float32),
        np.array(centred, dtype=np.float32), chain.signs, np.array(noises), layout, tuple(history),
        labels,
    )  # fmt: skip
