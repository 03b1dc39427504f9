"""Models of many ranks and penalties on the same rows, each the same whatever else was asked for.

A model of rank 0 or d is solved outright where a matrix of its parameters fits, and any other by
matrices where these fit (`penalised`). Else it starts at the reference model of its rank, a fit
from scratch with a moderate penalty, and goes from there to the same tolerance: so what is found
depends on the rows, the rank and the penalties alone.
"""

from dataclasses import replace

import numpy as np

from quadlin.core.model import Model, constant_model
from quadlin.core.moments import Survey
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.driver import follow
from quadlin.solve.lowrank.exact import Alpha, Exact, exact_solver
from quadlin.solve.lowrank.penalised import REFERENCE, Penalised, by_matrices
from quadlin.solve.lowrank.polish import descended, polish
from quadlin.solve.lowrank.restarts import FEW
from quadlin.solve.lowrank.tangent import Coordinates
from quadlin.solve.lowrank.types import Options, Problem, Record, Solution, Status, finished
from quadlin.solve.lowrank.whitening import Identity, Whitener, whitener

REFERENCE_TOL, CELL_TOL = 1e-3, 1e-4
KEPT_ENTRIES = 1 << 23  # of the matrices of a fold that stay in memory between batches of cells

Point = tuple[int, Alpha]  # rank and penalties


class Cells:
    """The models of one fold, or of all rows."""

    def __init__(
        self, rows: Rows, units: Units, options: Options, surveyed: Survey, seed: int
    ) -> None:
        self.rows, self.units, self.options, self.surveyed = rows, units, options, surveyed
        self.n_rows, self.weight, self.seed = surveyed.tally.counting, surveyed.tally.weight, seed
        self.solutions: dict[Point, Solution] = {}
        self._references: dict[int, Model] = {}
        self._exact: dict[bool, Exact | None] = {}
        tally = surveyed.tally
        self._penalised = Penalised(rows, units, options, tally.counting, tally.weight, seed)
        self._white: Whitener | None = None

    @property
    def d(self) -> int:
        """Return the number of features."""
        return int(self.units.scale.shape[0])

    def outright(self, rank: int, alpha: Alpha) -> bool:
        """Tell whether a model needs no pass, except for the one for a matrix."""
        if rank in (0, self.d):
            return min(alpha) > 0 and self.exact(rank == 0) is not None
        fits = by_matrices(self.rows, self.units, self.options, self.n_rows)
        return fits and (self.d <= FEW or min(alpha) > 0)

    def solution(self, rank: int, alpha: Alpha) -> Solution:
        """Return the model of a rank and penalties."""
        point = (rank, alpha)
        if point not in self.solutions:
            if not self.outright(rank, alpha):
                solution = self._iterated(rank, alpha)
            elif rank in (0, self.d):
                exact = self.exact(rank == 0)
                assert exact is not None
                solution = self._noted(exact.model(alpha, rank))
            else:
                products = None if self.d <= FEW else self.exact(False)
                solution = self._noted(self._penalised.model(rank, alpha, products))
            self.solutions[point] = solution
        return self.solutions[point]

    def exact(self, linear: bool) -> Exact | None:
        """Return the solver for rank 0 or d, where there is one."""
        if linear not in self._exact:
            parts = (self.rows, self.units, self.options, self.n_rows)
            self._exact[linear] = exact_solver(*parts, linear)
        return self._exact[linear]

    def forget(self) -> None:
        """Drop matrices that are large, which can be had again for a pass, and exact solutions."""
        size = {k: 0 if exact is None else exact.entries for k, exact in self._exact.items()}
        self._exact = {k: e for k, e in self._exact.items() if size[k] <= KEPT_ENTRIES}
        self.solutions = {p: s for p, s in self.solutions.items() if 0 < p[0] < self.d}

    def recorded(self, rank: int, alpha: Alpha) -> Solution:
        """Return the solution with its objective noted: a pass where it has none yet."""
        solution = self.solution(rank, alpha)
        if solution.history:
            return solution
        problem = self._problem(rank, alpha, self.options.tol)
        coordinates = Coordinates(self.units, problem.options, Identity())
        loss = problem.sums(solution.model, squares=False).loss + coordinates.ridge(solution.model)
        unit = self.units.target.scale**2 / self.weight
        return self._noted(solution.model, float(loss) * unit)

    def _noted(self, model: Model, *losses: float) -> Solution:
        history = tuple(Record(0, self.rows.walks, loss) for loss in losses)
        return Solution(model, self.units, Status.converged, history)

    def _problem(self, rank: int, alpha: Alpha, tol: float) -> Problem:
        options = replace(self.options, rank=rank, alpha=alpha, tol=tol)
        return Problem(self.rows, self.units, options, np.random.default_rng(self.seed))

    def _iterated(self, rank: int, alpha: Alpha) -> Solution:
        """Go to the optimum from the reference model of the rank."""
        problem = self._problem(rank, alpha, max(CELL_TOL, self.options.tol))
        start = (
            constant_model(self.units, 0, self.units.target.centre)
            if rank == 0
            else self._reference(rank)
        )
        return finished(follow(problem, descended(problem, self._whitener(), start)))

    def _reference(self, rank: int) -> Model:
        if rank not in self._references:
            tol = max(REFERENCE_TOL, self.options.tol)
            problem = self._problem(rank, self._moderate, tol)
            solution = finished(follow(problem, polish(problem, self._whitener())))
            self._references[rank] = solution.model
        return self._references[rank]

    @property
    def _moderate(self) -> Alpha:
        return REFERENCE[0] * self.weight, REFERENCE[1] * self.weight

    def _whitener(self) -> Whitener:
        if self._white is None:
            rng = np.random.default_rng(self.seed)
            mode = self.options.whiten
            self._white = whitener(self.rows, self.units, mode, REFERENCE[0], rng)
        return self._white
