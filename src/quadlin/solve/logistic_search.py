"""Ranks of log-odds and of counts, each with its penalties, and what rows left out say of them."""

from dataclasses import dataclass, field, replace
from math import exp, inf, log

import numpy as np

from quadlin.core.arrays import namespace
from quadlin.core.model import Model, with_rank
from quadlin.solve.automatic import RankSearch
from quadlin.solve.candidates import BEGIN, FIRST, KERNEL_ROWS, LOOSE_STEPS, LOOSE_TOL, SECOND
from quadlin.solve.dispersion import dispersion
from quadlin.solve.evidence import ColumnGram, Evidence, RowKernel
from quadlin.solve.exact import EXACT_COLUMNS, EXACT_ENTRIES, Alpha
from quadlin.solve.label_table import LabelTable
from quadlin.solve.leave_one_out import CLEARLY, LIKELY, surely_less
from quadlin.solve.left_out_deviance import Repeated, linear_model
from quadlin.solve.linear_choice import WORTH
from quadlin.solve.logistic import LogisticFit, Working
from quadlin.solve.penalty_search import maximised
from quadlin.solve.rank_climb import CLEAR
from quadlin.solve.tangent_gram import Candidate, TangentGram
from quadlin.solve.types import Options, finished

TURNS, SETTLED = 6, 0.3  # of fit and penalties, and the change of log α that ends them
WIDEST = 10.0  # standard deviation of log-odds that a prior may have
RESIZE = exp(2.0)  # of penalties, from one size that is tried to the next
LEAST, MOST = 1e-7, 1e4  # α/Σωh between which sizes are tried
CERTAIN_ROWS = 0.5  # deviance of all rows together, below which they cannot tell fits apart
TABLE_TOL = 1e-7  # the relative fall of the objective that ends a fit whose evidence is compared


def floored(alpha: Alpha, d: int, k: int) -> Alpha:
    """Return penalties of which none is below the least that may be chosen."""
    first, second = (p / WIDEST**2 for p in (d, d * k - k * (k - 1) / 2))
    return max(alpha[0], first), max(alpha[1], second)


@dataclass
class LogisticSearch(RankSearch):
    """The search for the rank of largest evidence, by logistic fits."""

    fit_of: LogisticFit = field(kw_only=True)
    repeated: Repeated = field(kw_only=True)  # the rows, for leaving them out
    table: LabelTable | None = field(kw_only=True)  # a copy of the rows, where they are few
    losses: dict[int, float] = field(default_factory=dict)  # per weight, of ranks that were tried
    last_loss: float = inf  # of the fit that was looked at last

    @classmethod
    def of(cls, fit: LogisticFit, options: Options, n_rows: int) -> "LogisticSearch":
        """Return the search on the rows of a fit: a walk or two."""
        args = (fit.rows, fit.units, options, n_rows, fit.weight, fit.seed)
        search = cls(*args, fit_of=fit, repeated=Repeated.of(fit.rows), table=None)
        n, few = fit.surveyed.tally.counting, LabelTable.holds
        if search.plain and few(n, search.d):
            search.table = LabelTable.of(fit.rows, fit.units, options, fit.loss)
        return search

    def spread_by(self, factor: float) -> "LogisticSearch":
        """Return the search on the same rows with weights divided by a factor: a walk."""
        fit = self.fit_of.spread_by(factor)
        args = (fit.rows, fit.units, self.options, self.n_rows, fit.weight, fit.seed)
        table = None if self.table is None else self.table.reweighted(1 / factor)
        return LogisticSearch(*args, fit_of=fit, repeated=self.repeated, table=table)

    def chosen(self, given: int | None) -> Candidate | None:
        """Return the best candidate, or one of a rank that is given."""
        return self.best() if given is None else self.given(min(given, self.d))

    def best(self) -> Candidate:
        """Return the best candidate; all products come first where they are cheap."""
        if self.table_for(self.d) is not None:
            self.candidate(self.d)  # ranks begin there
        return super().best()

    def dispersion(self, candidate: Candidate) -> float:
        """Return φ about the fit of a candidate."""
        model = self.refitted(candidate, candidate.alpha)
        _, linear, _ = self.linear(candidate.rank, model)
        alpha = candidate.alpha if self.options.fit_linear else candidate.alpha[1:]
        determined = linear.at(np.log(alpha[: len(linear.sizes)])).determined
        count = self.repeated.count
        return dispersion(self.rows, model, self.units, float(np.sum(determined)), count)

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
            ridge = self.ridge()
            model = None if ridge.model is None else with_rank(ridge.model, d)
            return self.by_turns(d, model, (ridge.alpha[0], BEGIN * self.weight))
        first, second = best.alpha
        return self.by_turns(d, with_rank(best.model, d), (first, second * d / best.rank))

    def only_one_rank(self, k: int) -> bool:
        """Return False: the noise edge that shows a single rank is not that of labels."""
        return False

    def low_rank(self, k: int) -> Candidate:
        """Fit a low rank and find its penalties, by turns."""
        model, alpha = self.start(k)
        products = self.tried.get(self.d)
        if model is None and products is not None and products.model is not None:
            model = with_rank(products.model, k)
        return self.by_turns(k, model, alpha)

    def by_turns(self, k: int, model: Model | None, alpha: Alpha) -> Candidate:
        """Fit a rank and find its penalties, by turns."""
        loose = replace(self.options, tol=max(LOOSE_TOL, self.options.tol), max_iter=LOOSE_STEPS)
        for turn in range(TURNS):
            model = self.fitted_model(replace(loose, rank=k, alpha=alpha), model)
            gram, linear, excess = self.linear(k, model)
            before = np.log(alpha[: len(linear.sizes)] if self.options.fit_linear else alpha[1:])
            starts = [before - log(max(linear.weight, 1.0))]
            if turn == 0 and k > 0:
                # The products of columns that nearly agree have a peak far below the others.
                lowest = log(floored((0.0, 0.0), self.d, k)[1] / max(linear.weight, 1.0))
                seconds = SECOND if k == self.d else (log(BEGIN), log(BEGIN / 50))
                starts += [np.append(starts[0][:-1], second) for second in (*seconds, lowest)]
            peak = maximised(linear, [start.tolist() for start in starts]).log_alpha
            alpha = floored((exp(peak[0]), exp(peak[-1])), self.d, k)
            log_alpha = np.log(alpha[: len(peak)] if self.options.fit_linear else alpha[1:])
            value = linear.at(log_alpha)
            evidence = value.log_evidence + excess
            behind = max((c.evidence for c in self.candidates()), default=-inf) - CLEAR
            hopeless = k == self.d and evidence < behind  # its turns take long
            if hopeless or np.max(np.abs(log_alpha - before)) <= SETTLED:
                break
        self.losses[k] = self.last_loss
        return self.noted(k, Evidence(evidence, log_alpha, 1.0, value.determined), model, gram)

    @property
    def products(self) -> None:
        """Return None: no single walk serves all fits, since each has weights of its own."""
        return None

    @property
    def spectrum(self) -> None:
        """Return that nothing is known of ranks in advance: the noise is not that of numbers."""
        return None

    @property
    def least(self) -> float:
        """Return the merit that a low rank must have: the noise is known, and with it the rest."""
        return max(c.merit for c in self.linear_candidates)

    def is_cheap(self, candidate: Candidate) -> bool:
        """Tell whether other penalties may be tried: each is a fit."""
        return self.table_for(candidate.rank) is not None and super().is_cheap(candidate)

    def squares_by_factors(self, candidate: Candidate, factors: list[float]) -> np.ndarray:
        """Return the deviance of each row left out, for multiples of the penalties: a fit each."""
        first, second = candidate.alpha
        return np.column_stack(
            [self.deviance(candidate, (first * factor, second * factor)) for factor in factors]
        )

    def sized(self, candidate: Candidate) -> Candidate:
        """Return the candidate with penalties of the size that rows left out ask for.

        Smaller and smaller ones, or larger ones, as long as they predict these rows better: rows
        that a line separates ask for penalties far below those that may be chosen without them. But
        n rows without an error say nothing about chances below 1/n, and products separate almost
        any few rows, which one Newton step without a row does not show.
        """
        if not self.is_cheap(candidate):
            return candidate
        best = candidate
        least = floored((0.0, 0.0), self.d, candidate.rank)
        separable = self.fit_of.loss == "logistic" and candidate.rank > 0
        lowest = max(least) if separable else LEAST * self.weight
        if 0 < max(least) < min(candidate.alpha):  # rows that few columns separate
            far = replace(candidate, alpha=(least[0], max(least)))
            best = far if self.is_better(far, candidate) else candidate
        moved = False
        for factor in (1 / RESIZE, RESIZE):
            while True:
                first, second = best.alpha
                other = replace(best, alpha=(first * factor, second * factor))
                if not lowest <= min(other.alpha) < MOST * self.weight:
                    break
                if self.left_out(best) * self.weight <= CERTAIN_ROWS:
                    break
                if not self.is_better(other, best):
                    break
                best, moved = other, True
            if moved:
                break
        return best

    def is_better(self, other: Candidate, best: Candidate) -> bool:
        """Tell whether rows left out ask for other penalties, and not a few of them alone."""
        if self.left_out(other) >= WORTH * self.left_out(best):
            return False
        return surely_less(self.left_out_squares(other), self.left_out_squares(best), LIKELY)

    def agree(self, candidate: Candidate, linear: Candidate) -> bool:
        """Tell whether rows left out are predicted well enough for a low rank.

        Of what they cannot tell apart, the evidence decides: it has preferred the low rank.
        """
        squares = self.left_out_squares(candidate)
        if surely_less(self.left_out_squares(linear), squares, LIKELY):
            return False
        ridge = linear if linear.rank == 0 else self.ridge()
        return surely_less(squares, self.left_out_squares(ridge), CLEARLY)

    def or_mean(self, ridge: Candidate) -> Candidate:
        """Return logistic regression, or a constant that rows left out and the evidence prefer.

        Where classes are rare, few rows say all that there is, and the evidence knows it.
        """
        constant = super().or_mean(ridge)
        if constant is ridge:
            return ridge
        assert ridge.model is not None
        _, linear, excess = self.linear(0, self.refitted(ridge, constant.alpha))
        log_alpha = np.log(constant.alpha[: len(linear.sizes)])
        least = linear.at(log_alpha, gradient=False).log_evidence + excess + CLEARLY
        return ridge if self.ridge().evidence > least else constant

    def deviance(self, candidate: Candidate, alpha: Alpha) -> np.ndarray:
        """Return the deviance of each row left out, with given penalties."""
        model, table = self.refitted(candidate, alpha), self.table_for(candidate.rank)
        if table is not None:
            f = table.left_out(table.at(model), alpha, self.repeated.times)
            return self.repeated.deviances(table.y, table.omega, f, table.loss)
        working = self.fit_of.working(model, self.options)
        gram = self.about(working, candidate.rank, model)
        f = self.repeated.predictions(working, gram, alpha)
        return self.repeated.deviance(self.rows, f, self.fit_of.loss)

    def refitted(self, candidate: Candidate, alpha: Alpha) -> Model:
        """Return a candidate with other penalties, where it is linear in its parameters."""
        k, model = candidate.rank, candidate.model
        assert model is not None
        if k in (0, self.d) and self.plain:
            return self.fitted_model(replace(self.options, rank=k, alpha=alpha), model)
        return model

    def fitted_model(self, options: Options, model: Model | None) -> Model:
        """Fit a rank with given penalties, outright where that is cheap."""
        table = self.table_for(options.rank)
        if table is not None and (model is not None or options.rank in (0, self.d)):
            model = table.start(options.rank) if model is None else model
            return table.fitted(model, options.alpha, TABLE_TOL).model
        model = self.fit_of.start(options) if model is None else model
        return finished(self.fit_of.polished(options, model)[0]).model

    def table_for(self, k: int) -> LabelTable | None:
        """Return the copy of the rows, where steps of a rank on it are cheap."""
        return self.table if self.table is not None and self.table.takes(k) else None

    def linear(
        self, k: int, model: Model
    ) -> tuple[TangentGram | RowKernel, ColumnGram | RowKernel, float]:
        """Return the linear model about a fit, for its evidence too, and what to add to that."""
        table = self.table_for(k)
        if table is not None:
            at = table.at(model)
            self.last_loss = at.objective / table.weight
            tangent, weight, excess = table.linear(at)
            return tangent, replace(tangent.centred(weight), noise=1.0), excess - log(weight) / 2
        working = self.fit_of.working(model, self.options)
        self.last_loss = working.loss / self.fit_of.surveyed.tally.weight
        gram = self.about(working, k, model)
        linear = gram if isinstance(gram, RowKernel) else gram.centred(working.weight)
        return gram, replace(linear, noise=1.0), working.excess - log(working.weight) / 2

    def about(self, working: Working, k: int, model: Model) -> TangentGram | RowKernel:
        """Return the linear model of a rank about a fit."""
        U, xp = model.U, namespace(model.U)
        U = U if 0 < k < self.d else xp.eye(self.d, k, dtype=U.dtype, device=U.device)
        return linear_model(working, U, self.options, self.n_rows)
