r"""Posterior draws of a factorization machine on one-hot fields, by Gibbs sampling.

.. math:: y = b + x^\top w + \sum_{i < j} \langle v_i, v_j \rangle_s\, x_i x_j + \text{noise},
          \qquad \langle v_i, v_j \rangle_s = \sum_a s_a v_{ia} v_{ja},

where the sum is over pairs of columns across entities (see `field_rows`).

All levels of a field are independent given the rest, so a sweep is one pass per field of
(k + 1)×(k + 1) systems. Predictions are means over draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quadlin.solve.field_machine import FieldMachine, Sweep
from quadlin.solve.field_predict import PREDICTIONS, Layout, predict_all
from quadlin.solve.field_rows import default_signs, field_rows

BYTES = 2**28  # most memory that the kept draws may take
BURN_IN = 60  # sweeps before the draws that are kept
START_SWEEPS = 20  # of variational inference, where the chain starts


@dataclass(frozen=True)
class Draws:
    """Draws of a factorization machine, after those of burn-in, and how they came about."""

    intercepts: np.ndarray  # (S,)
    tables: np.ndarray  # (S, d + fields, k + 1), float32: (w, v) of each column; see `predict_all`
    centred: np.ndarray  # the same with some levels at their means given the rest: steadier means
    signs: np.ndarray  # (k,)
    noises: np.ndarray  # (S,), standard deviations
    layout: Layout
    history: tuple[Sweep, ...] = ()

    @property
    def noise(self) -> float:
        """The standard deviation of the noise."""
        return float(np.sqrt(np.mean(self.noises**2)))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the posterior mean of new rows, and if asked for the predictive deviation.

        A row that has no level of a field counts as one of a level that was never seen.
        """
        mean, std = np.empty(X.shape[0]), np.empty(X.shape[0])
        step = max(1, PREDICTIONS // len(self.tables))
        for start in range(0, X.shape[0], step):
            at = slice(start, start + step)
            f = predict_all(X[at], self.layout, self.centred, self.signs)
            mean[at] = np.mean(self.intercepts + f, axis=1)
            if return_std:
                f = predict_all(X[at], self.layout, self.tables, self.signs)
                std[at] = np.sqrt(np.var(self.intercepts + f, axis=1) + self.noise**2)
        return (mean, std) if return_std else mean


def sample(
    X: Any,
    y: np.ndarray,
    fields: Sequence[np.ndarray],
    rank: int,
    *,
    weight: np.ndarray | None = None,
    signs: np.ndarray | None = None,
    draws: int = 200,
    burn_in: int = BURN_IN,
    seed: Any = None,
    max_bytes: int = BYTES,
) -> Draws:
    """Draw factorization machines from their posterior, given the rows.

    Parameters
    ----------
    X : CSR matrix or array (n, d)
        Rows. Numeric columns should have a scale near one.
    y : array (n,)
        Targets.
    fields : sequence of int array
        The columns of each one-hot field; every row has exactly one level of each.
    rank : int
        Number of components.
    weight : array (n,) or None
        Repetitions of each row.
    signs : array (rank,) or None
        Sign of each component. By default +1 where they do not matter, else +1 and −1 in turn.
    draws, burn_in : int
        Sweeps that are kept and sweeps before them. Of the kept ones, only as many evenly spaced
        ones as fit into `max_bytes` are stored.
    seed : None, int or Generator
        Of the random numbers.
    max_bytes : int
        Most memory of the stored draws, 8·(d + fields)·(rank + 1) bytes each.

    Returns
    -------
    Draws

    Notes
    -----
    A sweep costs O((number of pairs of levels that meet)·k² + levels·k³) where all columns are
    functions of two fields, else O(n·k²) per field.
    """
    rows = field_rows(X, y, fields, weight)
    rng = np.random.default_rng(seed)
    chain = FieldMachine(
        rows, default_signs(rows, rank) if signs is None else signs, rng, sampled=False
    )
    for _ in range(START_SWEEPS):
        chain.sweep()
    return draw(chain, fields, draws, burn_in, max_bytes)


def draw(
    chain: FieldMachine,
    fields: Sequence[np.ndarray],
    draws: int,
    burn_in: int = BURN_IN,
    max_bytes: int = BYTES,
) -> Draws:
    """Go on from variational inference as a sampler; see `sample` for the parameters."""
    rows = chain.rows
    chain.start_sampling()
    size = 8 * (rows.n_columns + len(fields)) * (len(chain.signs) + 1)
    stride = -(-draws // max(1, min(draws, max_bytes // size)))
    kept, history = [], []
    for t in range(burn_in + draws):
        chain.sweep()
        noise = rows.scale / np.sqrt(float(chain.noise.mean))
        history.append(Sweep(t + 1, rows.scale**2 * chain.error / rows.n, noise))
        if t >= burn_in and (t - burn_in) % stride == stride - 1:
            b, table = chain.table(fields)
            kept.append((b, chain.with_unseen(table, fields), chain.centred(table), noise))
    intercepts, tables, centred, noises = zip(*kept, strict=True)
    layout = Layout(tuple(np.asarray(field) for field in fields), rows.parts)
    return Draws(
        np.array(intercepts), np.array(tables, dtype=np.float32),
        np.array(centred, dtype=np.float32), chain.signs, np.array(noises), layout, tuple(history),
    )  # fmt: skip
