"""Ranks of log-odds and of counts, each with its penalties, and their errors on left-out rows."""

from dataclasses import dataclass, field, replace
from math import exp, inf, log

import numpy as np

from quadlin.core.model import Model, constant_model, with_rank
from quadlin.solve.choose.candidates import (
    BEGIN,
    CLEAR,
    CLEARLY,
    FIRST,
    LIKELY,
    LOOSE_STEPS,
    LOOSE_TOL,
    SECOND,
    Candidate,
    surely_less,
)
from quadlin.solve.choose.penalties import maximised
from quadlin.solve.choose.penalty_posterior import MOST, Lattice, posterior_of
from quadlin.solve.choose.rank_search import CONSTANT, RankSearch
from quadlin.solve.labels.label_table import LabelTable, TableFit
from quadlin.solve.labels.left_out_deviance import Repeated, linear_model_of
from quadlin.solve.labels.logistic import LogisticFit
from quadlin.solve.lowrank.design import EXACT_COLUMNS, Alpha
from quadlin.solve.lowrank.linear_model import Evidence, LinearModel
from quadlin.solve.lowrank.types import Options, finished

TURNS, SETTLED = 6, 0.3  # of fit and penalties, and the change of log α that ends them
WIDEST = 10.0  # largest standard deviation of log-odds under a prior
RESIZE = exp(2.0)  # ratio of one size of penalties that is tried to the next
CERTAIN_ROWS = 0.5  # deviance of all rows together; with less, they cannot distinguish fits
LABEL_KERNEL_FEATURES = 120  # most features then: passes cost O(nd²), minutes with 700 features
LABEL_KERNEL_ROWS = 600  # most rows for which all products are tried if they outnumber the rows
BEHIND = 2.0  # of log evidence at the peak: other penalties cannot make up for more
LATTICE, COARSE_LATTICE = (2.0, 25), (2.0, 12)  # of log α: the step, and the number of points
LOW = -7.0  # log α₂/N at which a second search for the evidence starts
FINE = 150  # most parameters for which the lattice is fine
TABLE_TOL = 1e-7  # the relative decrease that ends a fit whose evidence is compared
LATTICE_TOL = 1e-4  # the same for one of many fits whose evidence is summed


def floored(alpha: Alpha, d: int, k: int) -> Alpha:
    """Return the penalties, raised to the smallest that may be chosen."""
    first, second = (p / WIDEST**2 for p in (d, d * k - k * (k - 1) / 2))
    return max(alpha[0], first), max(alpha[1], second)


@dataclass
class LogisticSearch(RankSearch):
    """The search for the rank of largest evidence, by fits of labels or counts."""

    fit_of: LogisticFit = field(kw_only=True)
    repeated: Repeated = field(kw_only=True)  # repetitions of the rows, for leaving them out
    table: LabelTable | None = field(kw_only=True)  # a copy of the rows, if they are few
    losses: dict[int, float] = field(default_factory=dict)  # per weight, of ranks that were tried
    last_loss: float = inf  # of the last fit

    @classmethod
    def of(cls, fit: LogisticFit, options: Options, n_rows: int) -> "LogisticSearch":
        """Return the search on the rows of a fit: one or two passes."""
        args = (fit.rows, fit.units, options, n_rows, fit.weight, fit.seed)
        search = cls(*args, fit_of=fit, repeated=Repeated.of(fit.rows), table=None)
        n, few = fit.surveyed.tally.counting, LabelTable.holds
        if search.plain and few(n, search.d):
            search.table = LabelTable.of(fit.rows, fit.units, options, fit.loss)
        return search

    def chosen(self, given: int | None) -> Candidate | None:
        """Return the best candidate, or that of a given rank."""
        return self.best() if given is None else self.given(min(given, self.d))

    def best(self) -> Candidate:
        """Return the best candidate; all products come first if they are cheap."""
        if self.table_for(self.d) is not None:
            self.candidate(self.d)  # the start of other ranks
        return super().best()

    def ridge(self) -> Candidate:
        """Return logistic regression."""
        if 0 not in self.tried:
            first = exp(FIRST[2]) * self.weight
            self.tried[0] = self.alternated(0, None, (first, first))
        ridge = self.tried[0]
        assert ridge is not None
        return ridge

    def all_products(self) -> Candidate | None:
        """Return logistic regression on all products, if a matrix of them fits in memory."""
        d, most = self.d, min(self.n_rows, EXACT_COLUMNS)
        n = self.fit_of.surveyed.tally.counting  # rows of a kernel, including repeated ones
        small = n <= LABEL_KERNEL_ROWS and d <= LABEL_KERNEL_FEATURES
        if d * (d + 3) // 2 > most and not small:
            return None
        low = [c for c in self.candidates() if c.rank > 0]
        best = max(low, key=lambda c: c.evidence, default=None)
        if best is None or best.model is None:
            ridge = self.ridge()
            model = None if ridge.model is None else with_rank(ridge.model, d)
            return self.alternated(d, model, (ridge.alpha[0], BEGIN * self.weight))
        first, second = best.alpha
        return self.alternated(d, with_rank(best.model, d), (first, second * d / best.rank))

    def only_one_rank(self, k: int) -> bool:
        """Return False: the noise edge that shows a single rank does not hold for labels."""
        return False

    def low_rank(self, k: int) -> Candidate:
        """Fit a low rank and find its penalties, alternately."""
        model, alpha = self.start(k)
        products = self.tried.get(self.d)
        if model is None and products is not None and products.model is not None:
            model = with_rank(products.model, k)
        return self.alternated(k, model, alpha)

    def alternated(self, k: int, model: Model | None, alpha: Alpha) -> Candidate:
        """Fit a rank and find its penalties, alternately."""
        loose = replace(self.options, tol=max(LOOSE_TOL, self.options.tol), max_iter=LOOSE_STEPS)
        for turn in range(TURNS):
            model = self.fitted_model(replace(loose, rank=k, alpha=alpha), model)
            linear, excess = self.linear(k, model)
            before = np.log(linear.of_groups(alpha))
            starts = [before - log(max(linear.weight, 1.0))]
            if turn == 0 and k > 0:
                # For products of columns that are nearly equal, one peak is far below the others.
                lowest = log(floored((0.0, 0.0), self.d, k)[1] / max(linear.weight, 1.0))
                seconds = SECOND if k == self.d else (log(BEGIN), log(BEGIN / 50))
                starts += [np.append(starts[0][:-1], second) for second in (*seconds, lowest)]
            peak = maximised(linear, [start.tolist() for start in starts]).log_alpha
            alpha = floored((exp(peak[0]), exp(peak[-1])), self.d, k)
            log_alpha = np.log(linear.of_groups(alpha))
            value = linear.at(log_alpha)
            evidence = value.log_evidence + excess
            behind = max((c.evidence for c in self.candidates()), default=-inf) - CLEAR
            hopeless = k == self.d and evidence < behind  # its rounds take long
            if hopeless or np.max(np.abs(log_alpha - before)) <= SETTLED:
                break
        self.losses[k] = self.last_loss
        return self.noted(k, Evidence(evidence, log_alpha, 1.0, value.determined), model, linear)

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

    def squares_by_factors(self, candidate: Candidate, factors: list[float]) -> np.ndarray:
        """Return the deviance of each left-out row, for multiples of the penalties: a fit each."""
        first, second = candidate.alpha
        return np.column_stack(
            [self.deviance(candidate, (first * factor, second * factor)) for factor in factors]
        )

    def deviance(self, candidate: Candidate, alpha: Alpha) -> np.ndarray:
        """Return the deviance of each left-out row, with given penalties."""
        model, table = self.refitted(candidate, alpha), self.table_for(candidate.rank)
        if table is not None:
            f = table.left_out(table.at(model), alpha, self.repeated.times)
            return self.repeated.deviances(table.y, table.omega, f, table.loss)
        working = self.fit_of.working(model, self.options)
        gram = linear_model_of(working, model.U, self.options, self.n_rows)
        f = self.repeated.predictions(working, gram, alpha)
        return self.repeated.deviance(self.rows, f, self.fit_of.loss)

    def refitted(self, candidate: Candidate, alpha: Alpha) -> Model:
        """Return the model of a candidate, refitted if it is linear in its parameters."""
        k, model = candidate.rank, candidate.model
        assert model is not None
        if k in (0, self.d) and self.plain:
            return self.fitted_model(replace(self.options, rank=k, alpha=alpha), model)
        return model

    def fitted_model(self, options: Options, model: Model | None) -> Model:
        """Fit a rank with given penalties, exactly if that is cheap."""
        table = self.table_for(options.rank)
        if table is not None and (model is not None or options.rank in (0, self.d)):
            if model is None:
                model = constant_model(self.units, options.rank, self.units.target.centre)
            return table.fitted(model, options.alpha, TABLE_TOL).model
        model = self.fit_of.start(options) if model is None else model
        return finished(self.fit_of.polished(options, model)[0]).model

    def table_for(self, k: int) -> LabelTable | None:
        """Return the copy of the rows, if steps of a rank on it are cheap."""
        return self.table if self.table is not None and self.table.takes(k) else None

    def linear(self, k: int, model: Model) -> tuple[LinearModel, float]:
        """Return the linear model around a fit, and what to add to its evidence."""
        table = self.table_for(k)
        if table is not None:
            at = table.at(model)
            self.last_loss = at.objective / table.weight
            linear, weight, excess = table.linear(at)
            return linear, excess - log(weight) / 2
        working = self.fit_of.working(model, self.options)
        self.last_loss = working.loss / self.fit_of.surveyed.tally.weight
        about = linear_model_of(working, model.U, self.options, self.n_rows)
        return about, working.excess - log(working.weight) / 2


@dataclass
class LabelSearch(LogisticSearch):
    """The same for labels: their noise is known, so the evidence counts in every choice."""

    posteriors: dict[int, tuple[Candidate, float]] = field(default_factory=dict)  # by rank

    def sized(self, candidate: Candidate) -> Candidate:
        """Return the candidate with the posterior mean of its penalties."""
        return self.posterior(candidate)[0]

    def posterior(self, candidate: Candidate) -> tuple[Candidate, float]:
        """Return a candidate with the posterior mean of its penalties, and its log evidence.

        The evidence and the likelihood of left-out rows count half each. Only ranks 0 and d on a
        table are changed: each point of the lattice is a fit.
        """
        k, table = candidate.rank, self.table_for(candidate.rank)
        if table is None or k not in (0, self.d) or candidate.model is None:
            return candidate, candidate.evidence
        if k not in self.posteriors:

            def evaluate(alpha: Alpha, near: TableFit) -> tuple[TableFit, float]:
                fit = table.fitted(near, alpha, LATTICE_TOL)
                f = table.left_out(fit, alpha, self.repeated.times)
                left_out = self.repeated.deviances(table.y, table.omega, f, table.loss).sum() / 2
                return fit, (table.evidence(fit, alpha) - float(left_out)) / 2

            starts = [np.log(candidate.alpha if k else candidate.alpha[:1])]
            fine = candidate.parameters <= FINE
            if k and fine:  # an exact fit has another peak, far below
                starts.append(np.array([starts[0][0], LOW + log(self.weight)]))
            widest = floored((0.0, 0.0), self.d, k)
            lattice = Lattice(self.weight, widest, *(LATTICE if fine else COARSE_LATTICE))
            least = -inf if not k else self.posterior(self.ridge())[1]
            posterior = posterior_of(evaluate, table.at(candidate.model), starts, lattice, least)
            model = table.fitted(candidate.model, posterior.alpha, TABLE_TOL).model
            best = replace(candidate, alpha=posterior.alpha, model=model)
            self.posteriors[k] = best, posterior.log_evidence
        return self.posteriors[k]

    def better_linear(self, ridge: Candidate, products: Candidate | None = None) -> Candidate:
        """Return logistic regression or all products, whichever has the larger evidence.

        The evidence is that of all penalties together. If there are many products, they are tried
        only if they are not far behind at their best penalty, and if that does not remove them.
        """
        if self.table_for(0) is None:
            return super().better_linear(ridge, products)
        linear, least = self.posterior(ridge)
        if products is not None and self.may_win(products, ridge):
            quadratic, evidence = self.posterior(products)
            if evidence > least:
                return quadratic
        return self.or_mean(linear)

    def may_win(self, products: Candidate, ridge: Candidate) -> bool:
        """Return whether all penalties of products are worth a try, which takes many fits."""
        if products.parameters <= FINE:
            return True
        vanish = log(products.alpha[1] / self.weight) > MOST
        return not vanish and products.evidence > ridge.evidence - BEHIND

    def agree(self, candidate: Candidate, linear: Candidate) -> bool:
        """Return whether a low rank predicts left-out rows well enough.

        If they do not distinguish two models, the evidence decides, which prefers the low rank.
        """
        squares = self.left_out_squares(candidate)
        if surely_less(self.left_out_squares(linear), squares, LIKELY):
            return False
        ridge = linear if linear.rank == 0 else self.ridge()
        return surely_less(squares, self.left_out_squares(ridge), CLEARLY)

    def or_mean(self, ridge: Candidate) -> Candidate:
        """Return logistic regression, or a constant if it predicts left-out rows better."""
        constant = replace(ridge, alpha=(CONSTANT * self.weight, CONSTANT * self.weight))
        return ridge if self.left_out(ridge) <= self.left_out(constant) else constant
