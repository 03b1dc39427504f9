r"""Labels and counts: log-odds, or logarithms of means, as a second order linear model.

.. math:: \min\; 2 \sum_i \omega_i \left(\log(1 + e^{f_i}) - y_i f_i\right)
          + \alpha_1 |\rho \circ w|^2 + 2 \alpha_2 \|\rho\rho^\top \circ \bar M\|_F^2

which is scikit-learn's `LogisticRegression` with C = 1/α. To second order around log-odds g it is
least squares, with weights h = p(1 − p) and targets g + (y − p)/h. Around a constant these weights
are all equal, so the start is a least-squares fit of the labels, in other units. From there
Gauss–Newton descends with the curvature of the loss itself (`change_sums`).

Counts have Poisson's deviance (`losses`), with h = eᶠ and targets g + (y − h)/h. A constant is too
far from them for a start, so the start is the least squares around the means (y + ȳ)/2.
"""

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from quadlin.core.arrays import moved, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.losses import (
    FLATTEST,
    LOSSES,
    curvature,
    probability,
    value_and_slope,
)
from quadlin.core.model import Model, constant_model, in_units, predict, tied
from quadlin.core.moments import Moments, Survey, survey
from quadlin.core.rows import Rows
from quadlin.core.units import Target, Units, UnitsMaker
from quadlin.solve.choose.search import NEAR
from quadlin.solve.fits.fit_state import FitState, OnState, fit_state, fit_table
from quadlin.solve.lowrank.driver import follow, loss_unit
from quadlin.solve.lowrank.gauss_newton import usual_curvature
from quadlin.solve.lowrank.polish import polish
from quadlin.solve.lowrank.types import (
    Options,
    Plan,
    Problem,
    Record,
    Solution,
    Status,
    finished,
)
from quadlin.solve.lowrank.whitening import Identity, Whitener, whitener

START_TOL = 1e-3  # of the least-squares fit with which the logistic one starts


@dataclass(frozen=True)
class Linearised(UnitsMaker):
    """Units of labels as numbers, around the constant that fits them best.

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


@dataclass(frozen=True)
class Working:
    """The least squares that approximate the loss, to second order, around some log-odds."""

    rows: Rows  # with weights h and targets g + (y − p)/h
    units: Units
    weight: float  # Σωh
    offset: float  # by which the targets were shifted
    excess: float = 0.0  # log-likelihood of the rows, less that of the working targets

    @classmethod
    def about(
        cls,
        model: Model | None,
        rows: Rows,
        units: Units,
        fit_intercept: bool,
        loss: str = "logistic",
    ) -> "Working":
        """Linearise around a model, or for None around means halfway to the targets: one pass.

        Two numbers per row are kept.
        """
        parts = zip(*rows.collect(_working, model, units, loss), strict=True)
        h, z, omega, excess = (np.concatenate(part) for part in parts)
        working = cls.of(h, z, omega, rows, units, fit_intercept)
        return replace(working, excess=float(omega @ excess))

    @classmethod
    def of(
        cls,
        h: np.ndarray,
        z: np.ndarray,
        omega: np.ndarray,
        rows: Rows,
        units: Units,
        fit_intercept: bool,
    ) -> "Working":
        """Return the least squares of targets z with weights h, for rows of weights ω."""
        weight = float(omega @ h)
        mean = float((omega * h) @ z) / weight
        power = float((omega * h) @ z**2) / weight
        offset = mean if fit_intercept else 0.0
        target = Target(offset, 1.0, mean - offset, power - offset**2)
        weighted = rows.reweighted(moved(h, units.scale), moved(z, units.scale))
        return cls(weighted, replace(units, target=target), weight, offset)


def _working(chunk: Chunk, model: Model | None, units: Units, loss: str) -> tuple[np.ndarray, ...]:
    y = to_numpy(chunk.y).astype(np.float64)
    if model is None:
        of = LOSSES[loss]
        f = of.link((y + of.mean(np.asarray(units.target.centre))) / 2)
    else:
        f = to_numpy(predict(model, Block(chunk.X, units))).astype(np.float64)
    h, (value, slope) = np.clip(curvature(f, loss), FLATTEST, None), value_and_slope(loss, f, y)
    return h, f - slope / h, chunk.weights, (slope**2 / h - value) / 2


@dataclass
class LogisticFit:
    """The steps of one fit: a start by least squares, and the descent from there."""

    rows: Rows
    units: Units
    make_units: UnitsMaker
    surveyed: Survey
    seed: int
    loss: str = "logistic"
    white: Whitener | None = None
    white_ridge: float = 0.0  # the ridge that the whitener was made for

    @property
    def weight(self) -> float:
        """Return Σωh at the best constant."""
        return self.unit * self.surveyed.features.weight

    @property
    def unit(self) -> float:
        """Return the curvature at the best constant: p(1 − p), or the mean of counts."""
        return usual_curvature(self.loss, self.units)

    def spread_by(self, factor: float) -> "LogisticFit":
        """Return the fit of the same rows with weights divided by a factor: one pass."""
        weights = np.full(self.surveyed.tally.rows, 1 / factor)
        rows = self.rows.reweighted(moved(weights, self.units.scale))
        surveyed = replace(rows.reduce(survey), tally=self.surveyed.tally)  # as many observations
        return replace(self, rows=rows, surveyed=surveyed, white=None)

    def working(self, model: Model | None, options: Options) -> Working:
        """Linearise around a model; None means a start."""
        if model is None and LOSSES[self.loss].near_constant:
            model = constant_model(self.units, options.rank, self.units.target.centre)
        return Working.about(model, self.rows, self.units, options.fit_intercept, self.loss)

    def start(self, options: Options) -> Model:
        """Return a start: approximately the model of smallest loss, by least squares."""
        working = self.working(None, options)
        linear = replace(options, tol=max(START_TOL, options.tol), loss="squared")
        plan = Plan(linear, replace(self.make_units, loss="squared"), self.seed)
        state = finished(fit_table(working.rows, plan))
        return in_units(state.model, state.units, self.units)

    def polished(
        self, options: Options, start: Model, on_step: OnState = None
    ) -> tuple[Solution, Whitener]:
        """Descend from a model to the optimum."""
        rng = np.random.default_rng(self.seed)
        ridge = options.alpha[0] / self.weight
        is_close = self.white_ridge / NEAR <= ridge <= self.white_ridge * NEAR
        if self.white is None or not is_close:
            self.white = whitener(self.rows, self.units, ridge, rng)
            self.white_ridge = ridge
        hook = None if on_step is None else lambda s: on_step(self.state(s, options, Identity()))
        problem = Problem(self.rows, self.units, replace(options, loss=self.loss), rng)
        return follow(problem, polish(problem, self.white, start), hook), self.white

    def constant(self, options: Options, status: Status) -> FitState:
        """Return the constant, for a fit that ended before there was a better model."""
        units = self.units
        model = constant_model(units, options.rank, units.target.centre)
        model = tied(model, units, options.fit_linear, options.fit_intercept)
        solution = Solution(model, units, status, (self._first_record,))
        return self.state(solution, options, Identity())

    def interrupted(self, model: Model, options: Options) -> FitState:
        """Return the state of a search that Ctrl-C ended, with its model so far: one pass."""
        loss = self.mean_loss(model) * loss_unit(self.loss, self.units)
        last = Record(1, self.rows.walks, loss)
        solution = Solution(model, self.units, Status.interrupted, (self._first_record, last))
        return self.state(solution, options, Identity())

    def mean_loss(self, model: Model) -> float:
        """Return the mean loss of a model: one pass."""
        options = Options(0, loss=self.loss)
        problem = Problem(self.rows, self.units, options, np.random.default_rng(0))
        sums = problem.sums(model, squares=False)
        return float(sums.loss / sums.weight)

    @property
    def _first_record(self) -> Record:
        power = self.units.target.power
        return Record(0, self.rows.walks, power * loss_unit(self.loss, self.units))

    def state(self, solution: Solution, options: Options, white: Whitener) -> FitState:
        """Return the state of a fit."""
        return fit_state(solution, self.surveyed, options, self.make_units, white)
