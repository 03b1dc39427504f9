"""Draws of a factorization machine from its posterior: their predictions and their spread."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, hstack
from scipy.special import logsumexp

from quadlin.core.arrays import to_numpy
from quadlin.core.block import Block
from quadlin.core.model import predict
from quadlin.core.rows import Rows
from quadlin.solve.fields.contexts import Learned
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.fits.uncertainty import ErrorSteps, Uncertainty

PREDICTIONS = 2**22  # numbers of a block of predictions: rows × (rank + 1) × machines
LAW_DRAWS = 100  # a standard error is then uncertain by 7%, a mean variance over rows by far less
COMPARED = 1000  # rows on which laws and draws are compared


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


def draws_of(
    kept: Sequence[Learned], fields: Sequence[np.ndarray], rng: np.random.Generator
) -> Draws:
    """Return draws in the user's units, with levels never seen drawn from their priors.

    Every second draw has the deviations of the one before it with the other sign, so that their
    mean is that of the prior.
    """
    z, raw = np.zeros(0), []
    for number, each in enumerate(kept):
        precisions = each.precisions[: len(fields)]
        z = -z if number % 2 else rng.standard_normal(precisions.shape)
        raw.append(each.raw(fields, each.means[: len(fields)] + z / np.sqrt(precisions)))
    first = kept[0]
    return Draws(
        np.array([b for b, _ in raw]),
        np.array([table for _, table in raw], dtype=np.float32),
        first.signs,
        np.array([each.deviation for each in kept]),
        tuple(np.asarray(field) for field in fields),
        first.labels,
    )


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


def law_of_draws(
    rows: Rows,
    state: FitState,
    n: float,
    drawn: Sequence[Learned],
    fields: Sequence[np.ndarray],
    rng: np.random.Generator,
    law: Uncertainty | None = None,
) -> Uncertainty:
    """Return a law whose errors of predictions are those of draws, on average over new rows.

    Without one, its steps are the draws themselves. Its errors are scaled, since draws also differ
    from the model beyond its tangent space: the mean square of their predictions' distances from
    its own, and the noise, are those of the draws. The rows are n observations.
    """
    units, X = state.units, next(iter(rows.walk())).X[:COMPARED]
    draws = draws_of(drawn, fields, rng)
    shift, scale = units.target.mean, units.target.scale
    noise = draws.noise / scale

    def predicted(X: csr_matrix) -> np.ndarray:
        f = predict_all(X, draws.fields, draws.tables, draws.signs) + draws.intercepts
        return np.asarray((f - shift) / scale)

    if law is None:
        leverage = float(np.mean(np.var(predicted(X), axis=1))) / noise**2
        dof = min(n * leverage, n - 1)
        spread = _steps(state, drawn, fields)
        law = Uncertainty(units, spread, noise, 1.0, dof, n - dof, False)
    X = _new_pairs(csr_matrix(X), fields)
    f, model = predicted(X), to_numpy(predict(state.model, Block(X, units)))
    mean = float(np.mean((f - model[:, None]) ** 2))
    now = float(np.mean(law.predict_std(Block(X, units)) ** 2))
    factor = np.sqrt(mean / now) if now > 0 else 1.0
    return replace(law, error=law.error * factor, noise=noise)


def _new_pairs(X: csr_matrix, fields: Sequence[np.ndarray]) -> csr_matrix:
    """Return rows whose fields come from different rows: where draws differ most."""
    n, d = X.shape
    group = np.full(d, len(fields))
    for g, field in enumerate(fields):
        group[field] = g
    parts = [
        X[(np.arange(n) + 7 * g) % n].multiply(csr_matrix(group == g).astype(X.dtype))
        for g in range(len(fields) + 1)
    ]
    return csr_matrix(sum(parts[1:], parts[0]))


def _steps(state: FitState, drawn: Sequence[Learned], fields: Sequence[np.ndarray]) -> ErrorSteps:
    """Return the deviations of draws from their mean, each divided by the root of their number.

    Levels are measured from the mean of their field over the rows, not from that of the prior.
    M changes by D within the tangent space of the model: U Hᵀ + H Uᵀ with H = DU − ½UUᵀDU.
    """
    model, units = state.model, state.units
    U, shares = to_numpy(model.U).astype(np.float64), to_numpy(state.features.mean)
    parts = []
    for each in drawn:
        draw = each.model(fields, units, shares)
        DU = (draw.U * draw.s) @ (draw.U.T @ U)
        parts.append((DU - U @ (U.T @ DU) / 2, draw.w, np.array(draw.c)))
    steps = []
    for part in zip(*parts, strict=True):
        deviations = (np.stack(part) - np.mean(part, axis=0)) / np.sqrt(len(parts))
        steps.append(np.moveaxis(deviations, 0, min(1, part[0].ndim)).astype(model.U.dtype))
    return ErrorSteps(model.U, *steps)
