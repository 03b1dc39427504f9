"""Standard errors by draws from the posterior: how far these are from a model."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.sparse import csr_matrix

from quadlin.core.arrays import to_numpy
from quadlin.core.block import Block
from quadlin.core.model import predict
from quadlin.core.rows import Rows
from quadlin.solve.fields.contexts import Learned, draws_of
from quadlin.solve.fields.draws import predict_all
from quadlin.solve.fits.error_steps import ErrorSteps
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.fits.uncertainty import Uncertainty

LAW_DRAWS = 100  # a standard error is then uncertain by 7%, a mean variance over rows by far less
COMPARED = 1000  # rows on which laws and draws are compared


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
        law = Uncertainty(units, spread, noise, 1.0, dof, n - dof, False, True, len(drawn))
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
