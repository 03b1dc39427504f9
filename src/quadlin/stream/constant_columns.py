"""A column of ones in place of an intercept that is not fitted, in a stream that keeps no rows.

Its steps know the moments of features, which say nothing of a column that does not vary. So they
are those of a model with an intercept, which then becomes a coefficient of the column.
"""

from dataclasses import replace
from typing import Any

from quadlin.core.arrays import Array, namespace
from quadlin.core.model import Model, tied
from quadlin.core.moments import Moments
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank.types import Options


def with_intercept(options: Options, features: Moments, dtype: Any) -> Options:
    """Return the options of the steps: with an intercept where a column can stand for it."""
    if options.fit_intercept or not options.fit_linear:
        return options
    xp = namespace(features.mean)
    stands = bool(xp.any(_constant(features, dtype)))
    return replace(options, fit_intercept=True) if stands else options


def without_intercept(state: FitState, options: Options) -> FitState:
    """Return the state of steps with an intercept as one of a model without."""
    units = state.units
    if with_intercept(options, state.features, units.scale.dtype) is options:
        return state
    xp = namespace(units.nu)
    constant = xp.astype(_constant(state.features, units.scale.dtype), units.nu.dtype)
    nu = constant * units.nu

    def settled(model: Model) -> Model:
        rest = model.c - tied(model, units, fit_linear=True, fit_intercept=False).c
        model = replace(model, w=model.w + rest * nu / (nu @ nu))
        return tied(model, units, fit_linear=True, fit_intercept=False)

    before = None if state.before is None else settled(state.before)
    walker = None if state.walker is None else settled(state.walker)
    return replace(state, model=settled(state.model), before=before, walker=walker)


def _constant(features: Moments, dtype: Any) -> Array:
    """Tell which columns do not vary, and are not zero (d,)."""
    return ~features.varies(dtype) & (features.mean != 0)
