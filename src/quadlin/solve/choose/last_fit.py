"""The last fit: the best candidate of a search, fitted until it converges or Ctrl-C stops it."""

from dataclasses import dataclass, replace

from quadlin.core.model import Model
from quadlin.solve.choose.candidates import Candidates
from quadlin.solve.lowrank.driver import follow
from quadlin.solve.lowrank.evidence import RowKernel
from quadlin.solve.lowrank.few_rows import sharp_whitener
from quadlin.solve.lowrank.gauss_newton import final_error, precise
from quadlin.solve.lowrank.polish import OnStep, polish
from quadlin.solve.lowrank.tangent_gram import (
    Candidate,
    TangentGram,
    kernel_model,
    linear_solver,
)
from quadlin.solve.lowrank.types import Options, Record, Solution, Status
from quadlin.solve.lowrank.whitening import Identity, Whitener


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
        elif best.rank in (0, self.d) and not self.options.psd:
            warm = self.linear_optimum(best, search)
        options = replace(self.options, rank=best.rank, alpha=alpha)
        if 0 < best.rank < self.d:
            warm = self.best_start(options, best.gram, self.best_of_many(options) or warm)
        if search is self or warm is None or search.white is None or not 0 < best.rank < self.d:
            solution, white = self.fit(options, warm, on_step)
        else:
            dof = self.options.dof(self.d, best.rank)
            problem = self.problem(options, final_error(options, dof / self.observations))
            ridge = alpha[0] / self.weight
            white = sharp_whitener(search.white, problem, ridge, self.covariance)
            solution = follow(problem, polish(problem, white, warm, near=True), on_step)
        return Choice(options, solution, white)

    def best_start(
        self, options: Options, gram: TangentGram | RowKernel, model: Model | None
    ) -> Model | None:
        """Return the model, or the optimum of the tangent space there if its objective is lower.

        Where columns nearly determine one another, steps that only multiply by the rows fall far
        behind the matrix of the tangent space, from which the evidence was computed.
        """
        if not isinstance(gram, TangentGram) or gram.basis.rank != options.rank:
            return model
        task = precise(self.problem(options), Identity())
        models = [m for m in (model, gram.model(self.units, options.alpha)) if m is not None]
        return min(models, key=lambda m: task.point_of(m).objective, default=None)

    def linear_optimum(self, best: Candidate, search: Candidates) -> Model | None:
        """Return the optimum of rank 0 or d, from the sums of its evidence if they are of all rows.

        None if the matrix is too large.
        """
        gram = best.gram
        if isinstance(gram, RowKernel):
            if search is self and (best.rank == 0) == (len(gram.kernels) == 1):
                return kernel_model(gram, self.units, best.alpha)
        elif gram.basis.rank == best.rank and (search is self or best.rank == 0):
            gram = gram if search is self else self.features
            return gram.model(self.units, best.alpha)
        args = (self.rows, self.units, self.options, self.n_rows, self.weight)
        solver = linear_solver(*args, linear=best.rank == 0)
        return None if solver is None else solver(best.alpha)

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
        return gram.model(units, candidate.alpha)

    def best_of_many(self, options: Options) -> Model | None:
        """Return the best of many optima as a start of the last fit; None if one is enough."""
        if not self.thorough or self.products is None:
            return None
        gram, alpha = self.products, options.alpha
        return gram.model(gram.best(options.rank, alpha), alpha)
