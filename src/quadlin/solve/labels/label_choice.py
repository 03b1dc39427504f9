r"""Rank and penalties of a fit to labels or counts, by Laplace's approximation to the evidence.

Around the predictions of a fit the loss is least squares to second order, with a known noise of 1.
So the evidence of its penalties is that of a linear model, and the evidence of a rank is

.. math:: \log p(y \mid k) \approx \log p(y \mid \hat f) - \tfrac12 \hat\theta^\top R\hat\theta
          + \tfrac12 \log |R| - \tfrac12 \log |A| - \tfrac12 \log \Sigma\omega h

less the cost of the volume, as for least squares. Fit and penalties alternate. With few rows, a
linear model and all products have the mean of their penalties over the evidence, and are compared
by their evidence over all penalties (`ScoreTable`). Rows that are left out one at a time must
confirm a low rank. If the parameters of a rank do not fit in a matrix, the least squares of the
labels choose, and rows held out the size of the penalties.

Counts may vary many times more, or less, than Poisson's law says, by the factor

.. math:: \phi = \frac{1}{n - \gamma} \sum_i \omega_i \frac{(y_i - \mu_i)^2}{\mu_i}

of n rows, where a fit has determined γ parameters. The weights of rows are divided by φ, which is
estimated during the search.
"""

from dataclasses import dataclass, replace
from math import log

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.losses import LOSSES, value_and_slope
from quadlin.core.model import Model, constant_model, predict
from quadlin.core.moments import Survey, survey
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.choose.penalties import Diagonal
from quadlin.solve.choose.search import Candidate, Search, rough
from quadlin.solve.fits.fit_state import FitState, OnState, warm_start
from quadlin.solve.labels.logistic import LogisticFit
from quadlin.solve.labels.score_table import ScoreTable, floored, repeated
from quadlin.solve.lowrank.design import EXACT_COLUMNS, Alpha, Design
from quadlin.solve.lowrank.linear_model import Evidence, Gram, LinearModel
from quadlin.solve.lowrank.observations import LEAST_FREEDOM
from quadlin.solve.lowrank.types import FIXED, Automatic, Options, Plan, Status, finished
from quadlin.solve.lowrank.whitening import Full, sharpened

SPREADS, RIDGE_SPREADS = 3, 1  # estimates of φ, and those of them without products
SAME_SPREAD = 1.3  # the ratio of two estimates that ends them
LEAST_FREE = 0.2  # of the rows: the fewest degrees of freedom of the noise
LEAST_SPREAD = 1e-6  # the smallest φ


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
        leverage = np.minimum(left.leverage[:, 0], 1 - LEAST_FREEDOM)
        f = _targets(working.rows)[0] - left.residual[:, 0] / (1 - leverage / times)
        value = value_and_slope(self.fit.loss, f, y)[0]
        return np.repeat(omega / times * value, times)

    def prefers_products(self, gain: float, losses: np.ndarray, others: np.ndarray) -> bool:
        """Return whether all products have a larger likelihood, if it is known also of all rows."""
        gain = 0.0 if LOSSES[self.fit.loss].dispersed else gain
        return gain + float((others - losses).sum()) / 2 > 0

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
