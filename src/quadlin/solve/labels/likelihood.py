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
from math import log, sqrt

import numpy as np

from quadlin.core.arrays import Array, moved, namespace, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.losses import (
    FLATTEST,
    LOSSES,
    curvature,
    probability,
    softplus,
    value_and_slope,
)
from quadlin.core.model import Model, constant_model, in_units, predict, tied
from quadlin.core.moments import Moments, Survey, survey
from quadlin.core.rows import Rows
from quadlin.core.units import Target, Units, UnitsMaker
from quadlin.solve.choose.penalties import Diagonal
from quadlin.solve.choose.search import (
    CLEARLY,
    MARGIN,
    NEAR,
    Candidate,
    Search,
    rough,
    surely_less,
)
from quadlin.solve.fits.fit_state import FitState, OnState, fit_state, fit_table, warm_start
from quadlin.solve.labels.score_table import ScoreTable, floored, repeated
from quadlin.solve.lowrank.design import EXACT_COLUMNS, Alpha, Design
from quadlin.solve.lowrank.driver import follow, loss_unit
from quadlin.solve.lowrank.gauss_newton import usual_curvature
from quadlin.solve.lowrank.linear_model import Evidence, Gram, LinearModel
from quadlin.solve.lowrank.observations import LEAST_FREEDOM
from quadlin.solve.lowrank.polish import polish
from quadlin.solve.lowrank.types import (
    FIXED,
    Automatic,
    Options,
    Plan,
    Problem,
    Record,
    Solution,
    Status,
    finished,
)
from quadlin.solve.lowrank.whitening import Full, Identity, Whitener, sharpened, whitener

START_TOL = 1e-3  # of the least-squares fit with which the logistic one starts
SPREADS, RIDGE_SPREADS = 3, 1  # estimates of φ, and those of them without products
SAME_SPREAD = 1.3  # the ratio of two estimates that ends them
LEAST_FREE = 0.2  # of the rows: the fewest degrees of freedom of the noise
LEAST_SPREAD = 1e-6  # the smallest φ


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


@dataclass
class Likelihood:
    """Labels or counts whose likelihood a search compares, with their dispersion."""

    fit: LogisticFit
    options: Options
    spread: float = 1.0  # φ, by which the weights were divided

    few_features = False
    margin = 0.0  # since the noise is known
    spectrum: None = None  # that of labels does not show ranks, since each row has other noise

    def __post_init__(self) -> None:
        self.units, self.weight, self.d = self.fit.units, self.fit.weight, len(self.fit.units.scale)
        tally = self.fit.surveyed.tally
        self.n_rows, self.observations = tally.counting, tally.observations

    def spread_by(self, factor: float) -> "Likelihood":
        """Return the task on the same rows with weights divided by a factor: one pass."""
        return Likelihood(self.fit.spread_by(factor), self.options, factor * self.spread)

    def linear(self, rank: int, ridge: Candidate | None) -> tuple[ScoreTable, Evidence] | None:
        """Return rank 0 or d as one matrix of the rows; None if it is too large."""
        options = replace(self.options, loss=self.fit.loss)
        table = ScoreTable.of(self.fit.rows, self.units, options, rank, self.n_rows)
        if table is None:
            return None
        table = replace(table, times=repeated(table.y, self.spread * table.omega))
        return table, table.maximised()

    def least_alpha(self, rank: int) -> Alpha:
        """Return the smallest penalties that may be chosen, those of the widest prior."""
        return floored((0.0, 0.0), self.d, rank)

    def fit_roughly(self, rank: int, alpha: Alpha, model: Model | None) -> Model:
        """Fit a rank well enough to compare its evidence."""
        options = rough(self.options, rank, alpha, self.d, self.observations)
        start = self.fit.start(options) if model is None else model
        return finished(self.fit.polished(options, start)[0]).model

    def around(self, model: Model, alpha: Alpha) -> tuple[LinearModel, float]:
        """Return the linear model around a fit, and what to add to its evidence."""
        working = self.fit.working(model, self.options)
        excess = working.excess - log(working.weight) / 2
        if self.options.dof(*model.U.shape) <= EXACT_COLUMNS:
            design = Design.at(model.U, working.units, self.options)
            return Gram.of(working.rows, design, noise=1.0), excess
        about = replace(model, c=model.c - working.offset)
        weight, units = working.weight, working.units
        loss = float(np.sum(np.concatenate(working.rows.collect(_squares, about, units))))
        linear = Diagonal.about(about, units, alpha, loss, None, weight, noise=1.0)
        return linear, excess

    def left_out(self, candidate: Candidate) -> np.ndarray:
        """Return the deviance of each observation when it is left out.

        One Newton step leaves a row out: from targets z and leverages h of the least squares around
        the fit, its prediction becomes z − (z − f)/(1 − h).
        """
        if isinstance(candidate.linear, ScoreTable):
            return candidate.linear.deviances_left_out(candidate.alpha)
        assert candidate.model is not None
        working, (y, omega) = (
            self.fit.working(candidate.model, self.options),
            _targets(self.fit.rows),
        )
        times = repeated(y, self.spread * omega)
        left = candidate.linear.left_out(working.rows, candidate.alpha)
        leverage = np.minimum(left.leverage, 1 - LEAST_FREEDOM)
        f = _targets(working.rows)[0] - left.residual / (1 - leverage / times)
        value = value_and_slope(self.fit.loss, f, y)[0]
        return np.repeat(omega / times * value, times)

    def prefers_products(self, gain: float, losses: np.ndarray, others: np.ndarray) -> bool:
        """Return whether all products have a larger likelihood, surely if targets are dispersed."""
        if LOSSES[self.fit.loss].dispersed:
            return surely_less(losses, others, MARGIN + CLEARLY * (gain < MARGIN))
        return gain + float((others - losses).sum()) / 2 > MARGIN

    def dispersion(self, candidate: Candidate) -> float:
        """Return φ at the fit of a candidate, in these weights: one pass."""
        linear = candidate.linear
        determined = linear.at(np.log(linear.of_groups(candidate.alpha))).determined
        model = model_of(candidate)
        pearson = self.fit.rows.collect(_pearson, model, self.units, self.fit.loss)
        freedom = max(self.observations - float(np.sum(determined)), LEAST_FREE * self.observations)
        return max(float(np.sum(pearson)) / freedom, LEAST_SPREAD)


def model_of(candidate: Candidate) -> Model:
    """Return the model of a candidate."""
    model = candidate.model or candidate.linear.model(candidate.alpha)
    assert model is not None
    return model


def fit_logistic(
    rows: Rows,
    plan: Plan,
    warm: FitState | None = None,
    on_step: OnState = None,
    surveyed: Survey | None = None,
    begun: list[Search[Likelihood]] | None = None,
) -> tuple[FitState, Options]:
    """Fit log-odds to labels 0 and 1, or logarithms of means to counts, by `options.loss`.

    Also return the options with the chosen values. `begun` keeps a search on these rows for the
    next fit.
    """
    surveyed = rows.reduce(survey) if surveyed is None else surveyed
    units = plan.make_units(surveyed.features, surveyed.target)
    begun = [] if begun is None else begun
    options, automatic = plan.options, plan.automatic
    fit = LogisticFit(rows, units, plan.make_units, surveyed, plan.seed, options.loss)
    if LOSSES[options.loss].dispersed and units.target.power:
        power = fit.mean_loss(constant_model(units, 1, units.target.centre))
        fit.units = replace(units, target=units.target._replace(power=power))
    if not units.target.power:  # one label only
        options = replace(options, rank=0) if automatic.rank else options
        return fit.constant(options, Status.converged), options
    try:
        if automatic != FIXED:
            options, start = choose(fit, options, automatic, begun)
        else:
            start = warm_start(warm, fit.units, options) or fit.start(options)
    except KeyboardInterrupt:
        for search in reversed(begun):
            best = max(search.candidates(), key=lambda c: c.merit, default=None)
            if best is not None:
                options = told(options, search, best)
                return fit.interrupted(model_of(best), options), options
        return fit.constant(options, Status.interrupted), options
    solution, white = fit.polished(options, start, on_step)
    white = sharpened(white) if isinstance(white, Full) else white
    return fit.state(solution, options, white), options


def choose(
    fit: LogisticFit, options: Options, automatic: Automatic, begun: list[Search[Likelihood]]
) -> tuple[Options, Model]:
    """Choose rank and penalties; also return a start."""
    given = None if automatic.rank else options.rank
    if not begun:
        begun.append(Search(Likelihood(fit, options)))
        if LOSSES[fit.loss].dispersed:
            target = fit.surveyed.target
            spread = target.var[0] / LOSSES[fit.loss].variance(target.mean[0])
            begun.append(Search(begun[0].task.spread_by(max(float(spread), LEAST_SPREAD))))
    best = search_best(begun, given)
    chosen = told(options, begun[-1], best)
    return chosen if automatic.alpha else replace(chosen, alpha=options.alpha), model_of(best)


def told(options: Options, search: Search[Likelihood], best: Candidate) -> Options:
    """Return the options of a candidate, for the rows with the weights that were given."""
    first, second = best.alpha
    spread = search.task.spread
    return replace(options, rank=best.rank, alpha=(spread * first, spread * second))


def search_best(begun: list[Search[Likelihood]], given: int | None) -> Candidate:
    """Return the best candidate of the last search; for counts, after estimating φ."""
    dispersed = LOSSES[begun[0].task.fit.loss].dispersed
    best = begun[-1].ridge() if dispersed else best_of(begun[-1], given)
    for turn in range(1, SPREADS if dispersed else 0):
        factor = begun[-1].task.dispersion(best)
        if turn > RIDGE_SPREADS and max(factor, 1 / factor) <= SAME_SPREAD:
            break
        begun.append(Search(begun[-1].task.spread_by(factor)))
        best = best_of(begun[-1], given)
    return best


def best_of(search: Search[Likelihood], given: int | None) -> Candidate:
    """Return the best candidate, or that of a given rank."""
    given = None if given is None else min(given, search.d)
    return search.best(given) or replace(search.ridge(), rank=given or 0)


def _targets(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return targets and weights of the rows of positive weight: one pass."""
    y, weight = zip(*rows.collect(_target), strict=True)
    return np.concatenate(y), np.concatenate(weight)


def _target(chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
    chunk = chunk.counting()
    return to_numpy(chunk.y).astype(np.float64), chunk.weights


def _squares(chunk: Chunk, model: Model, units: Units) -> np.ndarray:
    """Return ωr² of each row of a chunk."""
    r = units.standardised_target(chunk.y) - predict(model, Block(chunk.X, units))
    return chunk.weights * to_numpy(r).astype(np.float64) ** 2


def _pearson(chunk: Chunk, model: Model, units: Units, loss: str) -> float:
    """Return Pearson's statistic of one chunk."""
    f = to_numpy(predict(model, Block(chunk.X, units))).astype(np.float64)
    y, mean = to_numpy(chunk.y).astype(np.float64), LOSSES[loss].mean(f)
    variance = np.maximum(LOSSES[loss].variance(mean), 1e-300)
    return float(np.sum(chunk.weights * (y - mean) ** 2 / variance))


def probabilities(f: Array) -> Array:
    """Return the probabilities of log-odds (n,), or of several classes (n, K) against the rest."""
    return namespace(f).exp(log_probabilities(f))


def log_probabilities(f: Array) -> Array:
    """Return the logarithms of `probabilities`, which do not underflow for two classes."""
    xp = namespace(f)
    if f.ndim == 1:
        return xp.stack([-softplus(f), -softplus(-f)], axis=1)
    log_p = -softplus(-f)
    top = xp.max(log_p, axis=1, keepdims=True)
    return log_p - top - xp.log(xp.sum(xp.exp(log_p - top), axis=1, keepdims=True))


def log_odds_of(scores: Array) -> Array:
    """Return the log-odds of each class against all others whose scores (n, K) have a softmax.

    log p/(1 − p) is the score less the logarithm of the sum of the exponentials of all others.
    """
    xp = namespace(scores)
    f = [scores[:, k] for k in range(scores.shape[1])]
    columns = []
    for k, score in enumerate(f):
        rest = xp.stack(f[:k] + f[k + 1 :], axis=1)
        top = xp.max(rest, axis=1)
        columns.append(score - top - xp.log(xp.sum(xp.exp(rest - top[:, None]), axis=1)))
    return xp.stack(columns, axis=1)
