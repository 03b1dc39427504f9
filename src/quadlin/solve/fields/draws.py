"""Draws of a factorization machine from its posterior, and their predictions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, hstack
from scipy.special import logsumexp

PREDICTIONS = 2**22  # numbers of a block of predictions: rows × (rank + 1) × machines


@dataclass(frozen=True)
class Draws:
    """Draws of a factorization machine, in the user's units."""

    intercepts: np.ndarray  # (S,)
    tables: np.ndarray  # (S, d + fields, k + 1), float32: (w, v) of each column; see `predict_all`
    signs: np.ndarray  # (k,)
    noises: np.ndarray  # (S,), standard deviations
    fields: tuple[np.ndarray, ...]  # the columns of each
    labels: bool = False  # whether they are log-odds, averaged as probabilities

    @property
    def noise(self) -> float:
        """The standard deviation of the noise."""
        return float(np.sqrt(np.mean(self.noises**2)))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the posterior mean of new rows and, if `return_std`, the predictive deviation.

        For labels it is the log-odds of their posterior mean probability.
        """
        mean, std = np.empty(X.shape[0]), np.empty(X.shape[0])
        step = max(1, PREDICTIONS // len(self.tables))
        for start in range(0, X.shape[0], step):
            at = slice(start, start + step)
            f = self.intercepts + predict_all(X[at], self.fields, self.tables, self.signs)
            mean[at] = mean_log_odds(f) if self.labels else np.mean(f, axis=1)
            std[at] = np.sqrt(np.var(f, axis=1) + self.noise**2)
        return (mean, std) if return_std else mean


def mean_log_odds(f: np.ndarray) -> np.ndarray:
    """Return the log-odds of the mean probability over draws of log-odds (n, S)."""
    yes, no = (logsumexp(-np.logaddexp(0.0, sign * f), axis=1) for sign in (-1, 1))
    return np.asarray(yes - no)


def predict_all(
    X: Any, fields: Sequence[np.ndarray], table: np.ndarray, signs: np.ndarray
) -> np.ndarray:
    """Return the predictions (n, S) of S machines, without their intercepts.

    Parameters
    ----------
    X : CSR matrix or array (n, d)
        Rows. A row without a level of a field is treated as one with a level never seen.
    fields : sequence of int array
        The columns of each field.
    table : array (S, d + fields, k + 1)
        The linear coefficient and the factor of each column, and of an unseen level of each field.
    signs : array (k,)
        Sign of each component.
    """
    S, d, K = table.shape
    rows, signs = _with_unseen(X, fields).astype(table.dtype), signs.astype(table.dtype)
    flat = np.ascontiguousarray(table.transpose(1, 0, 2)).reshape(d, -1)
    squares = (table[:, :, 1:] ** 2 @ signs).T
    f = np.empty((rows.shape[0], S))
    step = max(1, PREDICTIONS // flat.shape[1])
    for start in range(0, rows.shape[0], step):
        part = rows[start : start + step]
        total = np.asarray(part @ flat).reshape(-1, S, K)
        within = part.multiply(part).tocsr() @ squares
        f[start : start + step] = total[:, :, 0] + (total[:, :, 1:] ** 2 @ signs - within) / 2
    return f


def factor_sums(X: Any, fields: Sequence[np.ndarray], table: np.ndarray) -> np.ndarray:
    """Return the sums of the factors of the columns of each row, (n, S, k)."""
    S, d, K = table.shape
    flat = np.ascontiguousarray(table.transpose(1, 0, 2)).reshape(d, -1)
    rows = _with_unseen(X, fields).astype(table.dtype)
    return np.asarray(rows @ flat).reshape(-1, S, K)[:, :, 1:]


def _with_unseen(X: Any, fields: Sequence[np.ndarray]) -> csr_matrix:
    """Return the rows with an extra column per field, which is 1 if a row has no level of it."""
    X = csr_matrix(X)
    if not len(fields):
        return X
    missing = [1 - np.asarray(X[:, field].sum(axis=1)) for field in fields]
    return csr_matrix(hstack([X, csr_matrix(np.concatenate(missing, axis=1))]))
