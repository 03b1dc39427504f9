"""Labels of a stream that keeps no row: numbers until there is a first model, log-odds from then.

About the constant that fits them best, log-odds are to first order a least-squares fit of the
labels. So the stages before the first model are those of any target. What they leave is refined by
a walk (`walk`), which needs to know the curvature of the loss only roughly.
"""

from dataclasses import replace
from math import sqrt

from quadlin.core.model import Model
from quadlin.core.units import Units, UnitsMaker
from quadlin.solve.fit_state import FitState
from quadlin.solve.logistic import Linearised
from quadlin.solve.types import Options, Record, loss_unit, usual_curvature


def as_numbers(options: Options, make_units: UnitsMaker) -> tuple[Options, UnitsMaker]:
    """Return the options and units of the stages before the first model."""
    if options.loss == "squared":
        return options, make_units
    return replace(options, loss="squared"), Linearised(**vars(make_units))


def as_log_odds(state: FitState, options: Options, make_units: UnitsMaker) -> FitState:
    """Return the state of log-odds that a fit of labels as numbers is, to first order."""
    units = make_units(state.features, state.target)
    root = sqrt(usual_curvature(options.loss, units))

    def scaled(model: Model) -> Model:
        c = units.target.centre + model.c / root
        return replace(model, s=model.s / root, w=model.w / root, c=c)

    before = None if state.before is None else scaled(state.before)
    last, constant = state.history[-1], constant_loss(options, units)
    history = (Record(0, 1, constant), Record(last.step, last.passes, constant))[: last.step + 1]
    model = scaled(state.model)
    return replace(state, model=model, units=units, history=history, before=before)


def constant_loss(options: Options, units: Units) -> float:
    """Return the log-loss of the best constant."""
    return units.target.power * loss_unit(options.loss, units)
