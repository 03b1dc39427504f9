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

from dataclasses import dataclass, field, replace
from math import inf, log

import numpy as np

from quadlin.core.arrays import moved, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.losses import LOSSES, value_and_slope
from quadlin.core.model import Model, constant_model, predict, with_rank
from quadlin.core.moments import Survey, survey
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.choose.candidates import BEGIN, FIRST, Candidate
from quadlin.solve.choose.choice import at_limit, fits
from quadlin.solve.choose.penalties import maximised
from quadlin.solve.choose.rank import FOLDS, folds_by
from quadlin.solve.choose.rank_search import RankSearch
from quadlin.solve.fits.fit_state import FitState, OnState, warm_start
from quadlin.solve.labels.logistic import LogisticFit
from quadlin.solve.labels.score_table import ScoreTable, floored, repeated
from quadlin.solve.lowrank.design import EXACT_COLUMNS, Alpha, Design
from quadlin.solve.lowrank.linear_model import Evidence, Gram
from quadlin.solve.lowrank.observations import LEAST_FREEDOM, content_keys
from quadlin.solve.lowrank.types import FIXED, Automatic, Options, Plan, Status, finished
from quadlin.solve.lowrank.whitening import Full, sharpened

TURNS, SETTLED = 6, 0.3  # of fit and penalties, and the change of log α that ends them
SPREADS, RIDGE_SPREADS = 3, 1  # estimates of φ, and those of them without products
SAME_SPREAD = 1.3  # the ratio of two estimates that ends them
CERTAIN = 0.5  # deviance of all left-out rows together; with less, nothing is left to explain
LEAST_FREE = 0.2  # of the rows: the fewest degrees of freedom of the noise
LEAST_SPREAD = 1e-6  # the smallest φ
SMALLER = 10**-0.5  # ratio of penalties that held-out rows compare
FEWEST = 50  # rows; fewer are not held out
WORTH = 5e-3  # of the loss of held-out rows: what smaller penalties must gain


@dataclass
class LabelSearch(RankSearch):
    """The search for the rank of largest evidence, by fits of labels or counts."""

    fit_of: LogisticFit = field(kw_only=True)
    spread: float = 1.0  # φ, by which the weights were divided
    tables: dict[int, ScoreTable | None] = field(default_factory=dict)  # by rank
    over_all: dict[int, float] = field(default_factory=dict)  # their evidence over all penalties

    @classmethod
    def of(cls, fit: LogisticFit, options: Options, spread: float = 1.0) -> "LabelSearch":
        """Return the search on the rows of a fit."""
        counting = fit.surveyed.tally.counting
        args = (fit.rows, fit.units, options, counting, fit.weight, fit.seed)
        return cls(*args, fit_of=fit, spread=spread)

    def spread_by(self, factor: float) -> "LabelSearch":
        """Return the search on the same rows with weights divided by a factor: one pass."""
        search = LabelSearch.of(self.fit_of.spread_by(factor), self.options, factor * self.spread)
        search.tables = {k: t and t.reweighted(1 / factor) for k, t in self.tables.items()}
        return search

    @property
    def observations(self) -> float:
        """Return how many labels or counts there are, whatever their dispersion."""
        return self.fit_of.surveyed.tally.observations

    @property
    def products(self) -> None:
        """Return None: one pass is not enough for all fits, since each has other weights."""
        return None

    @property
    def spectrum(self) -> None:
        """Return None: the noise of labels is different, so it does not show ranks in advance."""
        return None

    @property
    def least(self) -> float:
        """Return the merit that a low rank must have; since the noise is known, without margin."""
        return max(c.merit for c in self.linear_candidates)

    def ridge(self) -> Candidate:
        """Return the model without products."""
        if 0 not in self.tried:
            first = float(np.exp(FIRST[2])) * self.weight
            self.tried[0] = self.without_rank(0, (first, first))
        ridge = self.tried[0]
        assert ridge is not None
        return ridge

    def all_products(self) -> Candidate | None:
        """Return the model of all products, if a matrix of them fits in memory."""
        if self.d * (self.d + 3) // 2 > EXACT_COLUMNS:
            return None
        return self.without_rank(self.d, (self.ridge().alpha[0], BEGIN * self.weight))

    def without_rank(self, k: int, alpha: Alpha) -> Candidate:
        """Return the model of rank 0 or d, which is linear in its parameters."""
        table = self.table(k)
        if table is None:
            return self.alternated(k, None, alpha)
        alpha, self.over_all[k] = table.posterior(alpha, self.over_all.get(0, -inf))
        at = table.fitted(alpha)
        model, factor = table.models(at)[0], table.factor(at, table.ridge(alpha))
        self.squares[k, alpha] = squares = table.left_out(at, factor)
        linear, excess = self.linear(model)
        start = np.log(linear.of_groups(alpha)) - log(max(linear.weight, 1.0))
        value = maximised(linear, [start.tolist()])  # ranks are compared at their best
        noise = 1.0 if squares.sum() > CERTAIN else 0.0
        value = value._replace(log_evidence=value.log_evidence + excess, noise=noise)
        return replace(self.noted(k, value, model, linear), alpha=alpha)

    def table(self, k: int) -> ScoreTable | None:
        """Return the rows as one matrix, if they are few and the rank is 0 or d."""
        if k not in self.tables:
            options = replace(self.options, loss=self.fit_of.loss)
            table = ScoreTable.of(self.rows, self.units, options, k, self.n_rows)
            self.tables[k] = table and replace(table, times=self.repeated(table.y, table.omega))
        return self.tables[k]

    def repeated(self, y: np.ndarray, omega: np.ndarray) -> np.ndarray:
        """Return the observations that rows stand for, whatever their dispersion."""
        return repeated(y, self.spread * omega)

    def low_rank(self, k: int) -> Candidate:
        """Fit a low rank and find its penalties, alternately."""
        model, alpha = self.start(k)
        products = self.tried.get(self.d)
        if model is None and products is not None and products.model is not None:
            model = with_rank(products.model, k)
        return self.alternated(k, model, alpha)

    def alternated(self, k: int, model: Model | None, alpha: Alpha) -> Candidate:
        """Fit a rank and find its penalties, alternately."""
        options, further = self.loose(k), (BEGIN, BEGIN / 50) if k else ()
        for _ in range(TURNS):
            model = self.near_optimum(replace(options, alpha=alpha), model)
            linear, excess = self.linear(model)
            before = np.log(linear.of_groups(alpha))
            begin = (before - log(max(linear.weight, 1.0))).tolist()
            starts = [begin, *([*begin[:-1], log(second)] for second in further)]
            peak, further = maximised(linear, starts).log_alpha, ()
            alpha = floored((float(np.exp(peak[0])), float(np.exp(peak[-1]))), self.d, k)
            log_alpha = np.log(linear.of_groups(alpha))
            if np.max(np.abs(log_alpha - before)) <= SETTLED:
                break
        value = linear.at(log_alpha)
        best = Evidence(value.log_evidence + excess, log_alpha, 1.0, value.determined)
        return self.noted(k, best, model, linear)

    def near_optimum(self, options: Options, warm: Model | None) -> Model:
        """Fit a rank well enough to compare its evidence."""
        warm = self.fit_of.start(options) if warm is None else warm
        return finished(self.fit_of.polished(options, warm)[0]).model

    def linear(self, model: Model) -> tuple[Gram, float]:
        """Return the linear model around a fit, and what to add to its evidence."""
        working = self.fit_of.working(model, self.options)
        design = Design.at(model.U, working.units, self.options)
        return Gram.of(working.rows, design, noise=1.0), working.excess - log(working.weight) / 2

    def sized(self, candidate: Candidate) -> Candidate:
        """Return the candidate: the size of its penalties was chosen with them."""
        return candidate

    def better_linear(self, ridge: Candidate, products: Candidate | None = None) -> Candidate:
        """Return the linear model or all products, by the evidence of all penalties together."""
        if products is None or self.d not in self.over_all or LOSSES[self.fit_of.loss].dispersed:
            return super().better_linear(ridge, products)
        return products if self.over_all[self.d] > self.over_all[0] else ridge

    def left_out_squares(self, candidate: Candidate) -> np.ndarray:
        """Return the deviance of each observation when it is left out.

        One Newton step leaves a row out: from targets z and leverages h of the least squares around
        the fit, its prediction becomes z − (z − f)/(1 − h).
        """
        if candidate.key not in self.squares:
            assert candidate.model is not None
            y, omega = _targets(self.rows)
            working, times = (
                self.fit_of.working(candidate.model, self.options),
                self.repeated(y, omega),
            )
            left = candidate.linear.left_out(working.rows, candidate.alpha)
            leverage = np.minimum(left.leverage[:, 0], 1 - LEAST_FREEDOM)
            f = _targets(working.rows)[0] - left.residual[:, 0] / (1 - leverage / times)
            value = value_and_slope(self.fit_of.loss, f, y)[0]
            self.squares[candidate.key] = np.repeat(omega / times * value, times)
        return self.squares[candidate.key]

    def dispersion(self, candidate: Candidate) -> float:
        """Return φ at the fit of a candidate, in these weights: one pass."""
        linear = candidate.linear
        determined = linear.at(np.log(linear.of_groups(candidate.alpha))).determined
        pearson = self.rows.collect(_pearson, candidate.model, self.units, self.fit_of.loss)
        freedom = max(self.observations - float(np.sum(determined)), LEAST_FREE * self.observations)
        return max(float(np.sum(pearson)) / freedom, LEAST_SPREAD)


def fit_logistic(
    rows: Rows,
    plan: Plan,
    warm: FitState | None = None,
    on_step: OnState = None,
    surveyed: Survey | None = None,
    begun: list[LabelSearch] | None = None,
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
            if best is not None and best.model is not None:
                options = told(options, search, best)
                return fit.interrupted(best.model, options), options
        return fit.constant(options, Status.interrupted), options
    solution, white = fit.polished(options, start, on_step)
    white = sharpened(white) if isinstance(white, Full) else white
    return fit.state(solution, options, white), options


def choose(
    fit: LogisticFit, options: Options, automatic: Automatic, begun: list[LabelSearch]
) -> tuple[Options, Model]:
    """Choose rank and penalties; also return a start."""
    given, units, d = None if automatic.rank else options.rank, fit.units, len(fit.units.scale)
    if automatic.alpha and fits(units, options, given):
        if not begun:
            begun.append(LabelSearch.of(fit, options))
            if LOSSES[fit.loss].dispersed:
                target = fit.surveyed.target
                spread = target.var[0] / LOSSES[fit.loss].variance(target.mean[0])
                begun.append(begun[0].spread_by(max(float(spread), LEAST_SPREAD)))
        best = search_best(begun, given)
        if best is not None and best.model is not None:
            n_rows = begun[0].n_rows
            if given is not None or not at_limit(best.rank, units, options, n_rows):
                return told(options, begun[-1], best), best.model
    start, choice = fit.least_squares(options, automatic)
    if automatic.alpha:
        choice = replace(choice, alpha=floored(choice.alpha, d, choice.rank))
        choice = with_smaller_penalties(fit, choice, start)
    return choice, with_rank(start, min(choice.rank, start.s.shape[0]))


def told(options: Options, search: LabelSearch, best: Candidate) -> Options:
    """Return the options of a candidate, for the rows with the weights that were given."""
    first, second = best.alpha
    return replace(options, rank=best.rank, alpha=(search.spread * first, search.spread * second))


def search_best(begun: list[LabelSearch], given: int | None) -> Candidate | None:
    """Return the best candidate of the last search; for counts, after estimating φ."""
    for turn in range(SPREADS):
        search = begun[-1]
        dispersed = LOSSES[search.fit_of.loss].dispersed
        if dispersed and turn < RIDGE_SPREADS:
            best: Candidate | None = search.ridge()
        else:
            best = search.best() if given is None else search.given(min(given, search.d))
        if not dispersed or best is None or turn == SPREADS - 1:
            break
        factor = search.dispersion(best)
        if turn >= RIDGE_SPREADS and max(factor, 1 / factor) <= SAME_SPREAD:
            break
        begun.append(search.spread_by(factor))
    return best


def with_smaller_penalties(fit: LogisticFit, options: Options, start: Model) -> Options:
    """Return the options with penalties divided as long as a held-out fifth gets more likely.

    Log-odds of classes that are easily told apart are larger than squared errors of 0 and 1
    suggest, so penalties that were chosen by these are too large. Passes: some ten for each size.
    """
    if fit.surveyed.tally.counting < FEWEST:
        return options
    folds = folds_by(content_keys(fit.rows, fit.units), np.random.default_rng(fit.seed))
    kept, test = (
        fit.rows.reweighted(moved(mask.astype(float), fit.units.scale))
        for mask in (folds < FOLDS - 1, folds == FOLDS - 1)
    )
    part, best, least = replace(fit, rows=kept, white=None), options, inf
    while True:
        start = finished(part.polished(options, start)[0]).model
        loss = replace(fit, rows=test).mean_loss(start)
        if loss > (1 - WORTH) * least:
            return best
        best, least = options, loss
        alpha = (SMALLER * options.alpha[0], SMALLER * options.alpha[1])
        options = replace(options, alpha=floored(alpha, len(fit.units.scale), options.rank))


def _targets(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return targets and weights of the rows of positive weight: one pass."""
    y, weight = zip(*rows.collect(_target), strict=True)
    return np.concatenate(y), np.concatenate(weight)


def _target(chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
    chunk = chunk.counting()
    return to_numpy(chunk.y).astype(np.float64), chunk.weights


def _pearson(chunk: Chunk, model: Model, units: Units, loss: str) -> float:
    """Return Pearson's statistic of one chunk."""
    f = to_numpy(predict(model, Block(chunk.X, units))).astype(np.float64)
    y, mean = to_numpy(chunk.y).astype(np.float64), LOSSES[loss].mean(f)
    variance = np.maximum(LOSSES[loss].variance(mean), 1e-300)
    return float(np.sum(chunk.weights * (y - mean) ** 2 / variance))
