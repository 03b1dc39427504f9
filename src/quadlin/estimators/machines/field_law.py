"""Standard errors of a machine that was fitted by its posterior."""

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from quadlin.core.arrays import to_numpy
from quadlin.core.block import Block
from quadlin.core.rows import Rows
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.regression.fitting import law_of
from quadlin.estimators.regression.tasks import Task
from quadlin.solve.fields.field_machine import FieldMachine
from quadlin.solve.fields.field_predict import field_model, predict_all
from quadlin.solve.fields.field_table import FieldTable
from quadlin.solve.fields.gibbs import Draws, draw
from quadlin.solve.fits.error_steps import ErrorSteps
from quadlin.solve.fits.missing_values import with_gaps
from quadlin.solve.fits.status_advice import warn_if_unknown
from quadlin.solve.fits.uncertainty import Uncertainty

DRAWS = 100  # a standard error is then uncertain by 7%, and a mean variance over rows by far less
ROWS = 1000  # that are compared


def with_law(
    task: Task, rows: Rows, fitted: Fitted, table: FieldTable, machine: FieldMachine
) -> Fitted:
    """Return a fit with its standard errors: how far draws from the posterior are from the model.

    Robust ones, and those of columns beside the fields, are standard errors of least squares with
    the penalties that the precisions of fields come to. Either way the errors are scaled, since
    draws also differ from the model beyond its tangent space: the mean square of their predictions'
    distances from its own, and the noise, are those of the draws.
    """
    try:
        draws, law = draw(machine, table.fields, DRAWS), None
        if task.uncertainty == "robust" or table.beside is not None:
            law = law_of(fitted.state, rows, fitted.options, task, fitted.learned.tally)
            warn_if_unknown(law, fitted.learned.tally)
        law = _scaled(law, rows, fitted, table, draws)
        if task.columns.fill is not None:
            law = with_gaps(law, rows, fitted.state.model, fitted.fill_values, True)
    except KeyboardInterrupt:  # the model is there, its standard errors are not
        return fitted.interrupted()
    return replace(fitted, law=law).with_passes(rows)


def _scaled(
    law: Uncertainty | None, rows: Rows, fitted: Fitted, table: FieldTable, draws: Draws
) -> Uncertainty:
    """Return a law whose errors of predictions are those of draws, on average over new rows.

    Without one, its steps are the draws themselves.
    """
    units, X = fitted.state.units, next(iter(rows.walk())).X[:ROWS]
    tables, noise = table.raw(draws.tables), draws.noise / units.target.scale

    def drawn(X: Any) -> np.ndarray:
        f = predict_all(X, table.layout, tables, draws.signs) + draws.intercepts
        return np.asarray(f / units.target.scale)

    if law is None:
        n = float(fitted.n_rows)  # weights are relative
        leverage = float(np.mean(np.var(drawn(X), axis=1))) / noise**2
        dof = min(n * leverage, n - 1)
        spread, sweeps = _steps(fitted, table, draws), len(draws.history)
        law = Uncertainty(units, spread, noise, 1.0, dof, n - dof, False, True, sweeps)
    X = _new_pairs(X, table)
    f, model = drawn(X), np.asarray(fitted.predict(X, clip=False)) / units.target.scale
    mean = float(np.mean((f - model[:, None]) ** 2))
    now = float(np.mean(law.predict_std(Block(X, units)) ** 2))
    factor = np.sqrt(mean / now) if now > 0 else 1.0
    return replace(law, error=law.error * factor, noise=noise)


def _new_pairs(X: Any, table: FieldTable) -> Any:
    """Return rows whose entities come from different rows: where draws differ most."""
    total, n = 0, X.shape[0]
    for shift, part in enumerate(table.layout.parts):
        mask = np.zeros(X.shape[1], dtype=X.dtype)
        mask[part] = 1
        total = total + csr_matrix(X)[(np.arange(n) + 7 * shift) % n].multiply(mask)
    return csr_matrix(total)


def _steps(fitted: Fitted, table: FieldTable, draws: Draws) -> ErrorSteps:
    """Return the deviations of draws from their mean, each divided by the root of their number.

    Levels are measured from the mean of their field over the rows, not from that of the prior.
    M changes by D within the tangent space of the model: U Hᵀ + H Uᵀ with H = DU − ½UUᵀDU.
    """
    model, units, d = fitted.state.model, fitted.state.units, len(fitted.names)
    U = to_numpy(model.U).astype(np.float64)
    tables = table.raw(draws.tables.astype(np.float64))
    shares = to_numpy(fitted.state.features.mean)
    for at, field in enumerate(table.fields):
        tables[:, d + at] = np.average(tables[:, field], axis=1, weights=shares[field])
    parts = []
    for b, each in zip(draws.intercepts, tables, strict=True):
        drawn = field_model(float(b), each, table.layout, draws.signs, units)
        DU = (drawn.U * drawn.s) @ (drawn.U.T @ U)
        parts.append((DU - U @ (U.T @ DU) / 2, drawn.w, np.array(drawn.c)))
    steps = []
    for each in zip(*parts, strict=True):
        deviations = (np.stack(each) - np.mean(each, axis=0)) / np.sqrt(len(parts))
        steps.append(np.moveaxis(deviations, 0, min(1, each[0].ndim)).astype(model.U.dtype))
    return ErrorSteps(model.U, *steps)
