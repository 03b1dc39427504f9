r"""Labels 0 and 1: their log-odds as a second order linear model, by the logistic loss.

.. math:: \min\; 2 \sum_i \omega_i \left(\log(1 + e^{f_i}) - y_i f_i\right)
          + \alpha_1 |\rho \circ w|^2 + 2 \alpha_2 \|\rho\rho^\top \circ \bar M\|_F^2

which is scikit-learn's `LogisticRegression` with C = 1/α. To second order about log-odds g it is
least squares, with weights h = p(1 − p) and targets g + (y − p)/h. About a constant these weights
are all the same: so a least-squares fit of the labels, in other units, is the start. From there
Gauss–Newton goes down with the curvature of the loss itself (`change_sums`), never up.

Rank and penalties: the least-squares fit chooses first, as for any target. Then the choice is made
again by the evidence of the least squares about the fit (Laplace's approximation), where the noise
is known to be 1. Its approximation knows no bound where rows can be separated; so no penalty is
chosen below what keeps the log-odds of a prior draw within ±`WIDEST` on average.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from quadlin.core.arrays import moved, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.losses import curvature, probability
from quadlin.core.model import Model, in_units, positive, predict, with_rank
from quadlin.core.moments import Moments
from quadlin.core.rows import Rows
from quadlin.core.standardise import UnitsMaker
from quadlin.core.survey import Survey, survey
from quadlin.core.units import Target, Units
from quadlin.metrics import degrees_of_freedom
from quadlin.solve.automatic import NEAR, Candidate, Search
from quadlin.solve.choice import Automatic, fit_choosing
from quadlin.solve.distinct import distinct_rows
from quadlin.solve.driver import Method, follow
from quadlin.solve.exact import EXACT_COLUMNS
from quadlin.solve.fit_state import FitState, fit_state
from quadlin.solve.polish import polish
from quadlin.solve.types import Options, Problem, Solution, Status
from quadlin.solve.whitening import Full, Identity, Whitener, sharpened, whitener

OnStep = Callable[[FitState], bool] | None
START_TOL = 1e-3  # of the least-squares fit that the logistic one starts from
CHOICE_TOL = 1e-4  # of a fit about which the choice is made again
ROUNDS = 3  # of choices after the first one
SETTLED = 0.3  # the change of log α that ends them
WIDEST = 10.0  # standard deviation of log-odds that a prior may have
FLATTEST = 1e-6  # the smallest p(1 − p) of a working target: beyond, a row says nothing


def fit_logistic(
    rows: Rows,
    options: Options,
    make_units: UnitsMaker,
    seed: int,
    automatic: Automatic,
    warm: FitState | None = None,
    on_step: OnStep = None,
    surveyed: Survey | None = None,
) -> tuple[FitState, Options]:
    """Fit log-odds to rows with labels 0 and 1; also return the options with what was chosen."""
    surveyed = survey(rows) if surveyed is None else surveyed
    units = make_units(surveyed.features, surveyed.target)
    fit = LogisticFit(rows, units, make_units, surveyed, seed)
    start = None
    if warm is not None and warm.model.w.shape == units.scale.shape:
        start = in_units(warm.model, warm.units, units)
        start = with_rank(positive(start) if options.psd else start, options.rank)
    if automatic and units.target.power:
        options, start = fit.chosen(options, automatic)
        if start is None:
            return fit.interrupted(options), options
    elif start is None:
        first, _ = fit.least_squares(options, Automatic())
        if first.status is Status.interrupted:
            return fit.interrupted(options), options
        start = fit.as_log_odds(first)
    solution, white = fit.polished(options, start, on_step)
    white = sharpened(white) if isinstance(white, Full) else white
    return fit.state(solution, options, white), options


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


@dataclass(frozen=True)
class Working:
    """The least squares that the loss is, to second order, about some log-odds."""

    rows: Rows  # with weights h and targets g + (y − p)/h
    units: Units
    weight: float  # Σωh
    offset: float  # that targets were shifted by

    @classmethod
    def about(cls, model: Model, rows: Rows, units: Units, fit_intercept: bool) -> "Working":
        """Linearise about a model: one pass, two numbers per row."""
        h, z, omega = (np.concatenate(a) for a in zip(*rows.collect(_working, model, units)))
        weight = float(omega @ h)
        mean = float((omega * h) @ z) / weight
        power = float((omega * h) @ z**2) / weight
        offset = mean if fit_intercept else 0.0
        target = Target(offset, 1.0, mean - offset, power - offset**2)
        weighted = rows.reweighted(moved(h, units.scale), moved(z, units.scale))
        return cls(weighted, replace(units, target=target), weight, offset)


def _working(chunk: Chunk, model: Model, units: Units) -> tuple[np.ndarray, ...]:
    f = to_numpy(predict(model, Block(chunk.X, units))).astype(np.float64)
    y = to_numpy(chunk.y).astype(np.float64)
    omega = np.ones_like(f) if chunk.weight is None else to_numpy(chunk.weight)
    h = np.clip(curvature(f), FLATTEST, None)
    return h, f + (y - probability(f)) / h, omega.astype(np.float64)


@dataclass
class LogisticFit:
    """The steps of one fit: a least-squares start, the choice of rank and penalties, the descent."""

    rows: Rows
    units: Units
    make_units: UnitsMaker
    surveyed: Survey
    seed: int
    white: Whitener | None = None
    white_ridge: float = 0.0  # that the whitener was made for

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
        alpha = (chosen.alpha[0] * self.unit, chosen.alpha[1] * self.unit)
        return state, replace(options, rank=chosen.rank, alpha=alpha)

    def as_log_odds(self, state: FitState) -> Model:
        """Return a least-squares fit of the labels as log-odds, to first order."""
        model, root = state.model, sqrt(self.unit)
        c = self.units.target.centre + model.c / root
        return replace(model, s=model.s / root, w=model.w / root, c=c)

    def chosen(self, options: Options, automatic: Automatic) -> tuple[Options, Model | None]:
        """Choose rank and penalties; also return a model to start from, None if interrupted."""
        first, choice = self.least_squares(options, automatic)
        if first.status is Status.interrupted:
            return choice, None
        model = self.as_log_odds(first)
        if not automatic.alpha:
            return choice, model
        choice = self.floored(choice)
        d, n_rows = int(self.units.scale.shape[0]), self.surveyed.tally.counting
        if degrees_of_freedom(d, choice.rank, **options.parts) > min(EXACT_COLUMNS, n_rows):
            return choice, model
        n_rows = distinct_rows(self.rows, self.units, n_rows)
        for i in range(ROUNDS):
            loose = replace(choice, tol=max(CHOICE_TOL, options.tol))
            solution, _ = self.polished(loose, model)
            if solution.status is Status.interrupted:
                return choice, None
            model = solution.model
            working = Working.about(model, self.rows, self.units, options.fit_intercept)
            before, rank = choice, None if automatic.rank and i == 0 else choice.rank
            best = self.candidate(working, options, n_rows, rank)
            if best is None:
                break
            choice = self.floored(replace(choice, rank=best.rank, alpha=best.alpha))
            change = np.abs(np.log(choice.alpha) - np.log(before.alpha))
            if best.rank == before.rank and np.max(change[: 1 + (best.rank > 0)]) <= SETTLED:
                break
            if best.rank != before.rank:
                model = with_rank(model, best.rank)
                if best.model is not None:
                    model = replace(best.model, c=best.model.c + working.offset)
        return choice, model

    def candidate(
        self, working: Working, options: Options, n_rows: int, rank: int | None
    ) -> Candidate | None:
        """Return the rank and penalties of largest evidence about a fit."""
        args = (working.rows, working.units, options, n_rows, working.weight, self.seed)
        search = Search(*args, noise=1.0)
        return search.best() if rank is None else search.candidate(min(rank, search.d))

    def floored(self, options: Options) -> Options:
        """Return the options with penalties that keep log-odds within reason."""
        d, k = int(self.units.scale.shape[0]), options.rank
        first, second = options.alpha
        least = (d / WIDEST**2, (d * k - k * (k - 1) / 2) / WIDEST**2)
        return replace(options, alpha=(max(first, least[0]), max(second, least[1])))

    def polished(
        self, options: Options, start: Model, on_step: OnStep = None
    ) -> tuple[Solution, Whitener]:
        """Go down from a model to the optimum."""
        rng = np.random.default_rng(self.seed)
        ridge = options.alpha[0] / (self.unit * self.surveyed.features.weight)
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

    def interrupted(self, options: Options) -> FitState:
        """Return the constant, where the fit ended before there was a better model."""
        problem = Problem(self.rows, self.units, options, np.random.default_rng(self.seed))
        solution = follow(problem, _nothing())
        return self.state(replace(solution, status=Status.interrupted), options, Identity())

    def state(self, solution: Solution, options: Options, white: Whitener) -> FitState:
        """Return what a fit leaves behind."""
        return fit_state(solution, self.surveyed, options, self.make_units, white)


def _nothing() -> Method:
    """Yield no model."""
    return Status.interrupted
    yield
