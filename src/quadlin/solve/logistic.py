r"""Labels 0 and 1: their log-odds as a second order linear model, by the logistic loss.

.. math:: \min\; 2 \sum_i \omega_i \left(\log(1 + e^{f_i}) - y_i f_i\right)
          + \alpha_1 |\rho \circ w|^2 + 2 \alpha_2 \|\rho\rho^\top \circ \bar M\|_F^2

which is scikit-learn's `LogisticRegression` with C = 1/α. To second order about log-odds g it is
least squares, with weights h = p(1 − p) and targets g + (y − p)/h. About a constant these weights
are all the same: so a least-squares fit of the labels, in other units, is the start. From there
Gauss–Newton goes down with the curvature of the loss itself (`change_sums`), never up.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from quadlin.core.losses import curvature, probability
from quadlin.core.model import Model
from quadlin.core.moments import Moments
from quadlin.core.rows import Rows
from quadlin.core.standardise import UnitsMaker
from quadlin.core.survey import Survey
from quadlin.core.units import Target, Units
from quadlin.solve.automatic import NEAR
from quadlin.solve.choice import Automatic, fit_choosing
from quadlin.solve.driver import follow
from quadlin.solve.fit_state import FitState, fit_state
from quadlin.solve.polish import polish
from quadlin.solve.types import Options, Problem, Solution, Status
from quadlin.solve.whitening import Identity, Whitener, whitener

OnStep = Callable[[FitState], bool] | None
START_TOL = 1e-3  # of the least-squares fit that the logistic one starts from


@dataclass(frozen=True)
class Linearised(UnitsMaker):
    """Units of labels as numbers, about the constant that fits them best.

    y = p₀ + √h₀ g for log-odds f = f₀ + g/√h₀, with h₀ = p₀(1 − p₀).
    """

    def __call__(self, features: Moments, target: Moments) -> Units:
        """Return the units for rows of these moments."""
        units = super().__call__(features, target)
        f0 = np.float64(units.target.centre)
        p0, root = float(probability(f0)), sqrt(float(curvature(f0)))
        mean, var = float(target.mean[0]), float(target.var[0])
        power = (var + (mean - p0) ** 2) / root**2
        return replace(units, target=Target(p0, root, (mean - p0) / root, power))


@dataclass
class LogisticFit:
    """The steps of one fit: a start by least squares, and the descent from there."""

    rows: Rows
    units: Units
    make_units: UnitsMaker
    surveyed: Survey
    seed: int
    white: Whitener | None = None
    white_ridge: float = 0.0  # that the whitener was made for

    @property
    def weight(self) -> float:
        """Return Σωh about the best constant."""
        return self.unit * self.surveyed.features.weight

    @property
    def unit(self) -> float:
        """Return p(1 − p) of the best constant."""
        return float(curvature(np.float64(self.units.target.centre)))

    def least_squares(self, options: Options, automatic: Automatic) -> tuple[FitState, Options]:
        """Fit the labels as numbers; the options it returns are those of the logistic fit."""
        alpha = (options.alpha[0] / self.unit, options.alpha[1] / self.unit)
        tol = max(START_TOL, options.tol)
        linear = replace(options, alpha=alpha, tol=tol, loss="squared")
        make_units = Linearised(**vars(self.make_units))
        args = (linear, make_units, self.seed, automatic)
        state, chosen = fit_choosing(self.rows, *args, surveyed=self.surveyed)
        if state.status is Status.interrupted:
            raise KeyboardInterrupt
        alpha = (chosen.alpha[0] * self.unit, chosen.alpha[1] * self.unit)
        return state, replace(options, rank=chosen.rank, alpha=alpha)

    def start(self, options: Options) -> Model:
        """Return a model to start from: about that of smallest squared errors."""
        return self.as_log_odds(self.least_squares(options, Automatic())[0])

    def as_log_odds(self, state: FitState) -> Model:
        """Return a least-squares fit of the labels as log-odds, to first order."""
        model, root = state.model, sqrt(self.unit)
        c = self.units.target.centre + model.c / root
        return replace(model, s=model.s / root, w=model.w / root, c=c)

    def polished(
        self, options: Options, start: Model, on_step: OnStep = None
    ) -> tuple[Solution, Whitener]:
        """Go down from a model to the optimum."""
        rng = np.random.default_rng(self.seed)
        ridge = options.alpha[0] / self.weight
        near = self.white_ridge / NEAR <= ridge <= self.white_ridge * NEAR
        if self.white is None or not near:
            self.white = whitener(self.rows, self.units, options.whiten, ridge, rng)
            self.white_ridge = ridge
        hook = None
        if on_step is not None:

            def hook(solution: Solution) -> bool:
                return on_step(self.state(solution, options, Identity()))

        problem = Problem(self.rows, self.units, replace(options, loss="logistic"), rng)
        return follow(problem, polish(problem, self.white, start), hook), self.white

    def constant(self, options: Options, status: Status) -> FitState:
        """Return the constant, where the fit ended before there was a better model."""
        problem = Problem(self.rows, self.units, options, np.random.default_rng(self.seed))
        solution = follow(problem, (each for each in ()))
        return self.state(replace(solution, status=status), options, Identity())

    def state(self, solution: Solution, options: Options, white: Whitener) -> FitState:
        """Return what a fit leaves behind."""
        return fit_state(solution, self.surveyed, options, self.make_units, white)
