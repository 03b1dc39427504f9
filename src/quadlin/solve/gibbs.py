r"""Posterior draws of a factorization machine on one-hot fields, by Gibbs sampling.

.. math:: y = b + x^\top w + \sum_{i < j} \langle v_i, v_j \rangle_s\, x_i x_j + \text{noise},
          \qquad \langle v_i, v_j \rangle_s = \sum_a s_a v_{ia} v_{ja}.

All levels of a field are independent given the rest, so a sweep is one pass per field of
(k + 1)×(k + 1) systems. Predictions are means over draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quadlin.solve.field_machine import FieldMachine, Sweep, default_signs
from quadlin.solve.field_rows import field_rows, with_unseen

BYTES = 2**28  # most memory that the kept draws may take
START_SWEEPS = 20  # of variational inference, where the chain starts
PREDICTIONS = 2**22  # numbers of a block of predictions: rows × (rank + 1) × draws


@dataclass(frozen=True)
class Draws:
    """Draws of a factorization machine, after those of burn-in, and how they came about."""

    intercepts: np.ndarray  # (S,)
    coefs: np.ndarray  # (S, d + fields), float32; the last are of levels that were never seen
    factors: np.ndarray  # (S, d + fields, k), float32
    signs: np.ndarray  # (k,)
    noises: np.ndarray  # (S,), standard deviations
    fields: tuple[np.ndarray, ...]
    history: tuple[Sweep, ...]

    @property
    def noise(self) -> float:
        """The standard deviation of the noise."""
        return float(np.sqrt(np.mean(self.noises**2)))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the posterior mean of new rows, and if asked for the predictive deviation.

        A row that has no level of a field counts as one of a level that was never seen.
        """
        X = with_unseen(X, self.fields)
        mean, std = np.empty(X.shape[0]), np.empty(X.shape[0])
        S, d, k = self.factors.shape
        tables = np.concatenate([self.coefs[:, :, None], self.factors], axis=2)
        squares = ((self.factors**2) @ self.signs.astype(np.float32)).T  # (d, S)
        flat = np.ascontiguousarray(tables.transpose(1, 0, 2)).reshape(d, -1)
        step = max(1, PREDICTIONS // flat.shape[1])
        for start in range(0, X.shape[0], step):
            rows = X[start : start + step]
            products = (rows @ flat).reshape(-1, S, k + 1)
            quadratic = (products[:, :, 1:] ** 2) @ self.signs.astype(np.float32)
            f = products[:, :, 0] + (quadratic - rows.multiply(rows) @ squares) / 2
            f = f + self.intercepts
            mean[start : start + step] = f.mean(axis=1)
            std[start : start + step] = np.sqrt(f.var(axis=1) + self.noise**2)
        return (mean, std) if return_std else mean


def sample(
    X: Any,
    y: np.ndarray,
    fields: Sequence[np.ndarray],
    rank: int,
    *,
    weight: np.ndarray | None = None,
    signs: np.ndarray | None = None,
    draws: int = 100,
    burn_in: int = 20,
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
        Most memory of the stored draws, 4·(d + fields)·(rank + 1) bytes each.

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
    chain.start_sampling()
    size = 4 * (rows.n_columns + len(fields)) * (rank + 1)
    stride = -(-draws // max(1, min(draws, max_bytes // size)))
    kept, history = [], []
    for t in range(burn_in + draws):
        chain.sweep()
        noise = rows.scale / np.sqrt(float(chain.noise.mean))
        history.append(Sweep(t + 1, rows.scale**2 * chain.error / rows.n, noise))
        if t >= burn_in and (t - burn_in) % stride == stride - 1:
            b, w, V = chain.table(fields)
            kept.append((b, w.astype(np.float32), V.astype(np.float32), noise))
    intercepts, coefs, factors, noises = zip(*kept, strict=True)
    return Draws(
        np.array(intercepts), np.array(coefs), np.array(factors), chain.signs, np.array(noises),
        tuple(np.asarray(field) for field in fields), tuple(history),
    )  # fmt: skip
