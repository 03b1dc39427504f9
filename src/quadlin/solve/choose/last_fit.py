"""The last fit: the best candidate of a search, fitted until it converges or Ctrl-C stops it."""

from dataclasses import dataclass, replace

import numpy as np

from quadlin.core.arrays import moved, namespace, solved
from quadlin.core.model import Model, constant_model
from quadlin.solve.choose.candidates import Candidates
from quadlin.solve.lowrank.driver import follow
from quadlin.solve.lowrank.exact import Exact
from quadlin.solve.lowrank.few_rows import sharp_whitener
from quadlin.solve.lowrank.gauss_newton import final_error
from quadlin.solve.lowrank.newton import CentredTable, Newton, factors
from quadlin.solve.lowrank.penalised import by_matrices
from quadlin.solve.lowrank.polish import OnStep, polish
from quadlin.solve.lowrank.restarts import best_start
from quadlin.solve.lowrank.tangent_gram import Candidate, TangentGram
from quadlin.solve.lowrank.types import Options, Record, Solution, Status
from quadlin.solve.lowrank.whitening import Identity, Whitener

NEWTON_ROWS = 2  # per parameter, up to which a low rank is fitted by Newton's method


@dataclass(frozen=True)
class Choice:
    """The fit of largest evidence."""

    options: Options  # with the rank and the penalties chosen
    solution: Solution
    white: Whitener


class LastFit(Candidates):
    """Candidates, the best of which is fitted until it converges."""

    def fitted(self, best: Candidate, search: Candidates, on_step: OnStep = None) -> Choice:
        """Fit the best candidate of a search until it converges; without noise, with no penalty."""
        alpha, warm = best.alpha, best.model
        if search.is_exact(best):
            alpha = (0.0, 0.0)
        elif best.rank in (0, self.d) and self.plain:
            gram = best.gram if search is self else None  # otherwise it is that of a sample
            gram = self.features if gram is None and best.rank == 0 else gram
            sums = gram.of_products(self.units) if isinstance(gram, TangentGram) else None
            exact = Exact(self.rows, self.units, self.n_rows, best.rank == 0, sums)
            warm = exact.model(alpha, best.rank)
        options = replace(self.options, rank=best.rank, alpha=alpha)
        if 0 < best.rank < self.d:
            best_start = self.best_of_many(options) or search.followed(options)
            warm = best_start or self.by_newton(options, warm) or warm
        elif best.rank and warm is None:  # parts are tied: steps may get stuck
            warm = search.followed(options)
        if search is self or warm is None or search.white is None or not 0 < best.rank < self.d:
            solution, white = self.fit(options, warm, on_step)
        else:
            dof = self.options.dof(self.d, best.rank)
            problem = self.problem(options, final_error(options, dof / self.observations))
            ridge = alpha[0] / self.weight
            white = sharp_whitener(search.white, problem, ridge, self.covariance)
            solution = follow(problem, polish(problem, white, warm, near=True), on_step)
        return Choice(options, solution, white)

    def best_so_far(self) -> Choice | None:
        """Return the best candidate of an interrupted search, without a pass; None if none has one.

        The model of a low rank is the one at which its evidence was computed, and that of ridge
        regression comes from its sums; all products would take another pass.
        """
        tried = [*self.candidates(), *([self.latest] if self.latest is not None else [])]
        models = [(c, self._model_so_far(c)) for c in tried]
        fitted = [(c, model) for c, model in models if model is not None]
        if not fitted:
            return None
        best, model = max(fitted, key=lambda pair: pair[0].merit)
        unit, walks = self.units.target.scale**2, self.rows.walks
        start = Record(0, walks, self.units.target.power * unit)
        history = (start, Record(1, walks, best.noise * unit))
        solution = Solution(model, self.units, Status.interrupted, history)
        chosen = replace(self.options, rank=best.rank, alpha=best.alpha)
        return Choice(chosen, solution, self.white or Identity())

    def _model_so_far(self, candidate: Candidate) -> Model | None:
        gram, units = candidate.gram, self.units
        if candidate.model is not None or candidate.rank or not self.plain:
            return candidate.model
        if not isinstance(gram, TangentGram):
            return None
        G = np.asarray(gram.products, dtype=np.float64)
        beta = solved(G[:-1, :-1] + np.diag(gram.penalty(candidate.alpha)), G[:-1, -1:])[:, 0]
        w = moved(beta[1:], units.scale) / units.penalty_scale
        w = namespace(w).astype(w, units.scale.dtype)
        return replace(constant_model(units, 0, float(beta[0])), w=w)

    def best_of_many(self, options: Options) -> Model | None:
        """Return the best of many optima as a start of the last fit; None if one is enough."""
        if not self.thorough or self.products is None:
            return None
        return best_start(self.problem(options), self.products.gram)

    def by_newton(self, options: Options, near: Model | None) -> Model | None:
        """Return the optimum near a model by Newton's method; None if other steps are as fast.

        With few rows per parameter, conjugate gradients are slow along flat directions.
        """
        dof = self.options.dof(self.d, options.rank)
        if near is None or min(options.alpha) <= 0 or self.observations > NEWTON_ROWS * dof:
            return None
        if not by_matrices(self.rows, self.units, options, self.n_rows):
            return None
        newton = Newton(CentredTable.of(self.rows, self.units), options.rank, options.alpha)
        return newton.model(newton.optimum(*factors(near, self.units, options.rank)), self.units)
