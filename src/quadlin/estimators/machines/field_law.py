"""Standard errors of a machine that was fitted by its posterior."""

from dataclasses import replace

import numpy as np

from quadlin.core.block import Block
from quadlin.core.rows import Rows
from quadlin.estimators.machines.field_table import FieldTable
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.regression.fitting import Task, law_of
from quadlin.solve.fields.field_machine import FieldMachine
from quadlin.solve.fields.field_predict import predict_all
from quadlin.solve.fields.gibbs import Draws, draw
from quadlin.solve.fits.missing_values import with_gaps
from quadlin.solve.fits.uncertainty import Uncertainty
from quadlin.solve.fits.unknown_errors import warn_if_unknown

DRAWS = 50  # a variance is then uncertain by 20%, and its mean over rows by far less
ROWS = 1000  # that are compared


def with_law(
    task: Task, rows: Rows, fitted: Fitted, table: FieldTable, machine: FieldMachine
) -> Fitted:
    """Return a fit with its standard errors.

    They are those of least squares with the penalties that the precisions of fields come to. One
    penalty for all components is too stiff for those that stand out, so the errors are scaled: the
    mean variance of predictions, and the noise, are those of draws from the posterior.
    """
    try:
        law = law_of(fitted.state, rows, fitted.options, task)
        warn_if_unknown(law, fitted.stream.tally)
        law = _scaled(law, rows, fitted, table, draw(machine, table.fields, DRAWS))
        if task.columns.fill is not None:
            law = with_gaps(law, rows, fitted.state.model, fitted.fill_values, True)
    except KeyboardInterrupt:  # the model is there, its standard errors are not
        return fitted.interrupted()
    return replace(fitted, law=law).with_passes(rows)


def _scaled(
    law: Uncertainty, rows: Rows, fitted: Fitted, table: FieldTable, draws: Draws
) -> Uncertainty:
    """Return a law whose variances of predictions are those of draws, on average over rows."""
    units, X = fitted.state.units, next(iter(rows.walk())).X[:ROWS]
    f = predict_all(X, table.layout, table.raw(draws.tables), draws.signs) + draws.intercepts
    mean = float(np.mean(np.var(f, axis=1))) / units.target.scale**2
    now = float(np.mean(law.predict_std(Block(X, units)) ** 2))
    factor = np.sqrt(mean / now) if now > 0 else 1.0
    return replace(law, error=law.error * factor, noise=draws.noise / units.target.scale)
