"""Labels of rows made of one-hot fields: their log-odds by a posterior, linearised twice."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.chunks import MemorySource
from quadlin.core.losses import log_odds
from quadlin.core.model import in_units
from quadlin.core.rows import Rows
from quadlin.core.survey import Survey, survey
from quadlin.data import Source
from quadlin.estimators.field_fit import fit_fields, gathered
from quadlin.estimators.fitted import Fitted
from quadlin.estimators.fitting import Task
from quadlin.solve.logistic import Working
from quadlin.solve.types import Problem, Record, Status, loss_unit

OnStep = Callable[[Callable[[], dict[str, Any]]], bool]


def fit_field_labels(
    task: Task, rows: Rows, source: Any, draws: int | None, on_step: OnStep | None
) -> Fitted | None:
    """Fit log-odds to labels 0 and 1 of one-hot fields by their posterior; None for other rows.

    About a constant the log-odds are those of a fit to the labels as numbers; about these, the loss
    is least squares with weights p(1 − p) once more, and its posterior the one that is kept.
    """
    plain = replace(task.options, loss="squared")
    if isinstance(source, Source):
        source = gathered(rows, source, task.make_units.fields)
        if source is None:
            return None
    numbers = replace(task, options=plain, make_units=replace(task.make_units, labels=False))
    first = fit_fields(numbers, rows, source, None, None)
    if first is None:
        return None
    surveyed = survey(rows)

    def as_log_odds(fitted: Fitted, linearised: bool = False) -> Fitted:
        return fitted_log_odds(task, rows, surveyed, fitted, linearised)

    first = as_log_odds(first, linearised=True)
    if first.state.status is Status.interrupted:
        return first
    working = Working.about(first.state.model, rows, first.state.units, fit_intercept=True)
    assert working.rows.values is not None
    h, z = (to_numpy(a) for a in (working.rows.values.weight, working.rows.values.y))
    # The posterior learns a noise per weight: only as many as there are rows leave it its say.
    h = h * (surveyed.tally.weight / working.weight)
    about = MemorySource(source.X, z, h if source.weight is None else h * source.weight)
    hook = None
    if on_step is not None:

        def hook(attributes: Callable[[], dict[str, Any]]) -> bool:
            return on_step(lambda: as_log_odds(attributes()["fitted_"]).attributes())

    fitted = fit_fields(numbers, Rows.of(about), about, draws, hook)
    return first if fitted is None else as_log_odds(fitted)


def fitted_log_odds(
    task: Task, rows: Rows, surveyed: Survey, fitted: Fitted, linearised: bool
) -> Fitted:
    """Return a fit of working targets, or of labels as numbers, as one of log-odds: one pass."""
    state = fitted.state
    old, units = state.units, task.make_units(surveyed.features, surveyed.target)
    if linearised:  # y = p + h(f − f₀) about the share p of label 1
        share = old.target.mean
        scale = old.target.scale / (share * (1 - share))
        old = replace(old, target=old.target._replace(mean=log_odds(share), scale=scale))
    options = replace(fitted.options, loss="logistic")
    model = in_units(state.model, old, units)
    sums = Problem(rows, units, options, np.random.default_rng(0)).sums(model, squares=False)
    unit, last = loss_unit("logistic", units), state.history[-1]
    history = (
        Record(0, 1, units.target.power * unit),
        replace(last, passes=rows.walks + last.passes, loss=sums.loss / sums.weight * unit),
    )
    features, target = surveyed.features, surveyed.target
    new = replace(
        state, model=model, units=units, history=history, features=features, target=target
    )
    return replace(fitted, stream=task.stream(options, new).counted(surveyed.tally))
