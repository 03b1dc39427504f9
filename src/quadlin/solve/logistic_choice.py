r"""Rank and penalties of a logistic fit, by Laplace's approximation to the evidence.

About the log-odds of a fit the loss is least squares to second order, in which the noise is known
to be 1. So the evidence of its penalties is that of a linear model, and the evidence of a rank,

.. math:: \log p(y \mid k) \approx \log p(y \mid \hat f) - \tfrac12 \hat\theta^\top R\hat\theta
          + \tfrac12 \log |R| - \tfrac12 \log |A| - \tfrac12 \log \Sigma\omega h

less the cost of the volume as for least squares (`evidence`). Fit and penalties take turns. The
approximation knows no bound where rows can be separated: so no penalty is chosen below the one
that gives log-odds drawn from the prior a standard deviation of `WIDEST`. Where the parameters of
a rank do not fit into a matrix, the least-squares fit of the labels chooses.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import exp, inf, log

import numpy as np

from quadlin.core.arrays import namespace
from quadlin.core.model import Model, constant_model, in_units, positive, with_rank
from quadlin.core.rows import Rows
from quadlin.core.survey import Survey, survey
from quadlin.core.units import Target, Units, UnitsMaker
from quadlin.solve.automatic import RankSearch
from quadlin.solve.candidates import BEGIN, FIRST, KERNEL_ROWS, LOOSE_STEPS, LOOSE_TOL
from quadlin.solve.choice import Automatic, at_limit, fits
from quadlin.solve.evidence import ColumnGram, Evidence, RowKernel
from quadlin.solve.exact import EXACT_COLUMNS, EXACT_ENTRIES, Alpha
from quadlin.solve.fit_state import FitState
from quadlin.solve.logistic import LogisticFit
from quadlin.solve.penalty_search import maximised
from quadlin.solve.rank_climb import CLEAR
from quadlin.solve.row_hash import distinct_rows
from quadlin.solve.tangent_gram import Candidate, TangentGram, product_kernel, tangent_gram
from quadlin.solve.types import Options, Problem, Status
from quadlin.solve.whitening import Full, sharpened

TURNS, SETTLED = 6, 0.3  # of fit and penalties, and the change of log α that ends them
WIDEST = 10.0  # standard deviation of log-odds that a prior may have
SMALL = 1e8  # multiplications of a Newton step that is solved outright


def fit_logistic(
    rows: Rows,
    options: Options,
    make_units: UnitsMaker,
    seed: int,
    automatic: Automatic,
    warm: FitState | None = None,
    on_step: Callable[[FitState], bool] | None = None,
    surveyed: Survey | None = None,
) -> tuple[FitState, Options]:
    """Fit log-odds to labels 0 and 1, or logarithms of means to counts, by `options.loss`.

    Also return the options with what was chosen.
    """
    surveyed = survey(rows) if surveyed is None else surveyed
    units = make_units(surveyed.features, surveyed.target)
    if options.loss == "poisson" and units.target.power:
        units = replace(units, target=with_deviance(rows, units, options, seed))
    fit = LogisticFit(rows, units, make_units, surveyed, seed, options.loss)
    if not units.target.power:  # one label only
        options = replace(options, rank=0) if automatic.rank else options
        return fit.constant(options, Status.converged), options
    try:
        if automatic:
            options, start = chosen(fit, options, automatic)
        else:
            start = _warm_model(warm, units, options) or fit.start(options)
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


def _warm_model(warm: FitState | None, units: Units, options: Options) -> Model | None:
    """Return the model to go on from, in the units and of the rank asked for."""
    if warm is None or warm.model.w.shape != units.scale.shape:
        return None
    start = in_units(warm.model, warm.units, units)
    return with_rank(positive(start) if options.psd else start, options.rank)


def chosen(fit: LogisticFit, options: Options, automatic: Automatic) -> tuple[Options, Model]:
    """Choose rank and penalties; also return a model to start from."""
    given = None if automatic.rank else options.rank
    units, d = fit.units, int(fit.units.scale.shape[0])
    if automatic.alpha and fits(units, options, given):
        n_rows = distinct_rows(fit.rows, units, fit.surveyed.tally.counting)
        search = LogisticSearch(fit.rows, units, options, n_rows, fit.weight, fit.seed, fit_of=fit)
        best = search.best() if given is None else search.candidate(min(given, d))
        limited = given is None and best is not None and at_limit(best.rank, units, options, n_rows)
        if best is not None and best.model is not None and not limited:
            options = replace(options, rank=best.rank, alpha=best.alpha)
            small = search.is_small(best.rank)
            return options, fit.newton(options, best.model, n_rows) if small else best.model
    state, choice = fit.least_squares(options, automatic)
    if automatic.alpha:
        choice = replace(choice, alpha=floored(choice.alpha, d, choice.rank))
    return choice, fit.as_log_odds(state)


def floored(alpha: Alpha, d: int, k: int) -> Alpha:
    """Return penalties of which none is below the least that may be chosen."""
    first, second = (p / WIDEST**2 for p in (d, d * k - k * (k - 1) / 2))
    return max(alpha[0], first), max(alpha[1], second)


@dataclass
class LogisticSearch(RankSearch):
    """The search for the rank of largest evidence, by logistic fits."""

    fit_of: LogisticFit = field(kw_only=True)

    def ridge(self) -> Candidate:
        """Return logistic regression."""
        if 0 not in self.tried:
            first = exp(FIRST[2]) * self.weight
            self.tried[0] = self.by_turns(0, None, (first, first))
        ridge = self.tried[0]
        assert ridge is not None
        return ridge

    def all_products(self) -> Candidate | None:
        """Return logistic regression on all products, where a matrix of them fits."""
        d, most = self.d, min(self.n_rows, EXACT_COLUMNS)
        n = self.fit_of.surveyed.tally.counting  # rows of a kernel, repeated ones too
        small = n <= KERNEL_ROWS and n * d <= EXACT_ENTRIES
        if d * (d + 3) // 2 > most and not small:
            return None
        low = [c for c in self.candidates() if c.rank > 0]
        best = max(low, key=lambda c: c.evidence, default=None)
        if best is None or best.model is None:
            return self.by_turns(d, None, (self.ridge().alpha[0], BEGIN * self.weight))
        first, second = best.alpha
        return self.by_turns(d, with_rank(best.model, d), (first, second * d / best.rank))

    def only_one_rank(self, k: int) -> bool:
        """Return that there may be others: the noise of labels is not that of numbers."""
        return False

    def low_rank(self, k: int) -> Candidate:
        """Fit a low rank and find its penalties, by turns."""
        return self.by_turns(k, *self.start(k))

    def by_turns(self, k: int, model: Model | None, alpha: Alpha) -> Candidate:
        """Fit a rank and find its penalties, by turns."""
        loose = replace(self.options, tol=max(LOOSE_TOL, self.options.tol), max_iter=LOOSE_STEPS)
        for turn in range(TURNS):
            model = self.fitted_model(replace(loose, rank=k, alpha=alpha), model)
            gram, linear, excess = self.linear(k, model)
            before = np.log(alpha[: len(linear.sizes)] if self.options.fit_linear else alpha[1:])
            starts = [before - log(max(linear.weight, 1.0))]
            if turn == 0 and 0 < k < self.d:
                starts += [np.append(starts[0][:-1], log(b)) for b in (BEGIN, BEGIN / 50)]
            peak = maximised(linear, [start.tolist() for start in starts]).log_alpha
            alpha = floored((exp(peak[0]), exp(peak[-1])), self.d, k)
            log_alpha = np.log(alpha[: len(peak)] if self.options.fit_linear else alpha[1:])
            value = linear.at(log_alpha)
            evidence = value.log_evidence + excess
            behind = max((c.evidence for c in self.candidates()), default=-inf) - CLEAR
            hopeless = k == self.d and evidence < behind  # its turns take long
            if hopeless or np.max(np.abs(log_alpha - before)) <= SETTLED:
                break
        return self.noted(k, Evidence(evidence, log_alpha, 1.0, value.determined), model, gram)

    def decided(self) -> Candidate:
        """Return the candidate of largest evidence, which knows no extreme targets."""
        return self.by_merit()[0]

    def fitted_model(self, options: Options, model: Model | None) -> Model:
        """Fit a rank with given penalties, outright where that is cheap."""
        if self.is_small(options.rank):
            return self.fit_of.newton(options, model, self.n_rows)
        model = self.fit_of.start(options) if model is None else model
        solution = self.fit_of.polished(options, model)[0]
        if solution.status is Status.interrupted:
            raise KeyboardInterrupt
        return solution.model

    def is_small(self, k: int) -> bool:
        """Tell whether a rank is linear in its parameters, and has few of them."""
        p, n = self.d if k == 0 else self.d * (self.d + 3) // 2, self.fit_of.surveyed.tally.counting
        return self.plain and k in (0, self.d) and n * min(p, n) ** 2 <= SMALL

    def linear(
        self, k: int, model: Model
    ) -> tuple[TangentGram | RowKernel, ColumnGram | RowKernel, float]:
        """Return the linear model about a fit, for its evidence too, and what to add to that."""
        working = self.fit_of.working(model, self.options)
        if k == self.d and self.d * (self.d + 3) // 2 > min(self.n_rows, EXACT_COLUMNS):
            args = (working.rows, working.units, self.n_rows, working.weight)
            kernel = replace(product_kernel(*args)[0], noise=1.0)
            gram: TangentGram | RowKernel = kernel
            linear: ColumnGram | RowKernel = kernel
        else:
            U, xp = model.U, namespace(model.U)
            U = U if 0 < k < self.d else xp.eye(self.d, k, dtype=U.dtype, device=U.device)
            gram = tangent_gram(working.rows, working.units, self.options, U)
            linear = replace(gram.centred(working.weight), noise=1.0)
        return gram, linear, working.excess - log(working.weight) / 2
