r"""Rank and penalties of a logistic fit, by Laplace's approximation to the evidence.

Around the log-odds of a fit the loss is least squares to second order, with a known noise of 1. So
the evidence of its penalties is that of a linear model, and the evidence of a rank is

.. math:: \log p(y \mid k) \approx \log p(y \mid \hat f) - \tfrac12 \hat\theta^\top R\hat\theta
          + \tfrac12 \log |R| - \tfrac12 \log |A| - \tfrac12 \log \Sigma\omega h

less the cost of the volume, as for least squares (`evidence`). Fit and penalties alternate. With
few rows the evidence is a wide hill, which has no end if rows can be separated. So the penalties
are their mean over the hill (`penalty_posterior`), with a prior against standard deviations of
log-odds above `WIDEST`. Logistic regression and all products are compared by their evidence over
all penalties. Rows that are left out one at a time (`left_out_deviance`) must confirm a low rank,
and anything but a constant. Counts are chosen differently (`count_search`). If the parameters of a
rank do not fit in a matrix, the least squares of the labels choose.
"""

from dataclasses import replace

import numpy as np

from quadlin.core.losses import LOSSES
from quadlin.core.model import Model, constant_model, with_rank
from quadlin.core.moments import Survey, survey
from quadlin.core.rows import Rows
from quadlin.core.units import Target, Units
from quadlin.solve.choose.candidates import Candidate
from quadlin.solve.choose.choice import at_limit, fits
from quadlin.solve.fits.fit_state import FitState, OnState, warm_start
from quadlin.solve.labels.count_search import CountSearch
from quadlin.solve.labels.held_out_size import resized
from quadlin.solve.labels.logistic import LogisticFit
from quadlin.solve.labels.logistic_search import LabelSearch, LogisticSearch, floored
from quadlin.solve.lowrank.types import FIXED, Automatic, Options, Plan, Problem, Status
from quadlin.solve.lowrank.whitening import Full, sharpened

SPREADS, RIDGE_SPREADS = 5, 2  # estimates of φ, and those of them by a ridge
SAME_SPREAD = 1.3  # the ratio of two estimates that ends them


def fit_logistic(
    rows: Rows,
    plan: Plan,
    warm: FitState | None = None,
    on_step: OnState = None,
    surveyed: Survey | None = None,
    begun: list[LogisticSearch] | None = None,
) -> tuple[FitState, Options]:
    """Fit log-odds to labels 0 and 1, or logarithms of means to counts, by `options.loss`.

    Also return the options with the chosen values. `begun` keeps a search on these rows for the
    next fit.
    """
    surveyed = rows.reduce(survey) if surveyed is None else surveyed
    units = plan.make_units(surveyed.features, surveyed.target)
    options, automatic = plan.options, plan.automatic
    if LOSSES[options.loss].dispersed and units.target.power:
        units = replace(units, target=with_deviance(rows, units, options, plan.seed))
    fit = LogisticFit(rows, units, plan.make_units, surveyed, plan.seed, options.loss)
    if not units.target.power:  # one label only
        options = replace(options, rank=0) if automatic.rank else options
        return fit.constant(options, Status.converged), options
    try:
        if automatic != FIXED:
            options, start = chosen(fit, options, automatic, [] if begun is None else begun)
        else:
            start = warm_start(warm, units, options) or fit.start(options)
    except InterruptedSearch as ended:
        return ended.best(fit, options)
    except KeyboardInterrupt:
        return fit.constant(options, Status.interrupted), options
    solution, white = fit.polished(options, start, on_step)
    white = sharpened(white) if isinstance(white, Full) else white
    return fit.state(solution, options, white), options


def with_deviance(rows: Rows, units: Units, options: Options, seed: int) -> Target:
    """Return the target with the deviance of the best constant as its power: one pass."""
    problem = Problem(rows, units, options, np.random.default_rng(seed))
    sums = problem.sums(constant_model(units, 1, units.target.centre), squares=False)
    return units.target._replace(power=sums.loss / sums.weight)


def chosen(
    fit: LogisticFit, options: Options, automatic: Automatic, begun: list[LogisticSearch]
) -> tuple[Options, Model]:
    """Choose rank and penalties; also return a start."""
    given = None if automatic.rank else options.rank
    units, d = fit.units, int(fit.units.scale.shape[0])
    if automatic.alpha and fits(units, options, given):
        if not begun:
            n_rows = fit.surveyed.tally.counting
            kind = CountSearch if LOSSES[fit.loss].dispersed else LabelSearch
            begun.append(kind.of(fit, options, n_rows))
        search = begun[0]
        best, spread = by_evidence(search, given)
        limited = (
            given is None
            and best is not None
            and at_limit(best.rank, units, options, search.n_rows)
        )
        if best is not None and best.model is not None and not limited:
            first, second = best.alpha
            options = replace(options, rank=best.rank, alpha=(spread * first, spread * second))
            table = search.table_for(best.rank)
            if table is None:
                return options, best.model
            return options, table.fitted(best.model, options.alpha).model
    state, choice = fit.least_squares(options, automatic)
    start = fit.as_log_odds(state)
    if automatic.alpha:
        choice = replace(choice, alpha=floored(choice.alpha, d, choice.rank))
        choice = resized(fit, choice, start, automatic.rank)
    return choice, with_rank(start, min(choice.rank, start.s.shape[0]))


class InterruptedSearch(KeyboardInterrupt):
    """Ctrl-C during a search that has candidates."""

    def __init__(self, search: LogisticSearch, spread: float) -> None:
        super().__init__(Status.interrupted.value)
        self.search, self.spread = search, spread

    def best(self, fit: LogisticFit, options: Options) -> tuple[FitState, Options]:
        """Return the best candidate so far and its options, or the constant, without a pass."""
        losses = self.search.losses
        tried = [c for c in self.search.candidates() if c.model is not None and c.rank in losses]
        if not tried:
            return fit.constant(options, Status.interrupted), options
        best = max(tried, key=lambda c: c.merit)
        assert best.model is not None
        first, second = best.alpha
        alpha = (self.spread * first, self.spread * second)
        options = replace(options, rank=best.rank, alpha=alpha)
        return fit.interrupted(best.model, losses[best.rank], options), options


def by_evidence(search: LogisticSearch, given: int | None) -> tuple[Candidate | None, float]:
    """Return the best candidate for rows that are weighted by 1/φ, and φ, which is 1 for labels.

    For counts, φ is estimated during the search, first by ridge regression.
    """
    spread, kept = 1.0, (search, 1.0)
    try:
        if not isinstance(search, CountSearch):
            return search.chosen(given), spread
        undispersed = search
        for turn in range(SPREADS):
            best = search.ridge() if turn < RIDGE_SPREADS else search.chosen(given)
            if best is None or best.model is None:
                break
            before, spread = spread, spread * search.dispersion(best)
            if turn >= RIDGE_SPREADS and max(spread / before, before / spread) <= SAME_SPREAD:
                return best, before
            kept = (search, before)
            search = undispersed.spread_by(spread)
        return search.chosen(given), spread
    except KeyboardInterrupt as error:
        raise InterruptedSearch(*((search, spread) if search.losses else kept)) from error
