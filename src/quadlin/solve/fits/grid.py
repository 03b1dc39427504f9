"""Models of many ranks and penalties on the same rows.

A model of rank 0 or d is solved exactly if a matrix of its parameters fits in memory. In a `Path`
any other model starts from its neighbours, and is only as exact as a comparison needs. In `Cells`
a model does not depend on others: it is fitted with matrices if these fit (`penalised`), otherwise
from the reference model of its rank (a fit from scratch with a moderate penalty), to the same
tolerance. The result depends only on the rows, the rank and the penalties.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, cached_property, partial

import numpy as np

from quadlin.core.arrays import Array, namespace
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.model import Model, constant_model, predict, with_rank
from quadlin.core.moments import Survey
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.driver import follow
from quadlin.solve.lowrank.exact import Alpha, Exact, exact_solver, products_of
from quadlin.solve.lowrank.penalised import REFERENCE, Penalised, by_matrices
from quadlin.solve.lowrank.polish import descended, polish
from quadlin.solve.lowrank.restarts import FEW, best_start, quick_start
from quadlin.solve.lowrank.tangent import Coordinates
from quadlin.solve.lowrank.types import Options, Problem, Record, Solution, Status, finished
from quadlin.solve.lowrank.whitening import Identity, Whitener, whitener

PATH_TOL, PATH_STEPS = 1e-4, 8  # a point of the path need not be more exact
REFERENCE_TOL, CELL_TOL = 1e-3, 1e-4
KEPT_ENTRIES = 1 << 23  # of the matrices of a fold that stay in memory between batches of cells

Point = tuple[int, Alpha]  # rank and penalties


class Path:
    """Models of many ranks and penalties on the same rows; each starts from its neighbours."""

    def __init__(
        self,
        rows: Rows,
        units: Units,
        options: Options,
        n_rows: int,
        weight: float,
        seed: int,
        similar: "Path | None" = None,
    ) -> None:
        self.rows, self.units, self.options = rows, units, options
        self.weight, self.seed = weight, seed
        self.similar = similar  # the path of nearly the same rows, whose optima are close
        self.roughly = 0  # the rank that is fitted from only a few starts, to save time
        self.d, self.models = int(units.scale.shape[0]), dict[Point, Model]()
        self._white: dict[float, Whitener] = {}
        self.exact = cache(partial(exact_solver, rows, units, options, n_rows))  # of rank 0 or d

    def model(self, rank: int, alpha: Alpha) -> Model:
        """Return the model at a point of the path, from that of a neighbour if there is one."""
        point = (rank, alpha)
        if point not in self.models:
            exact = self.exact(rank == 0) if rank in (0, self.d) and min(alpha) > 0 else None
            self.models[point] = (
                self._fitted(rank, alpha) if exact is None else exact.model(alpha, rank)
            )
        return self.models[point]

    def _fitted(self, rank: int, alpha: Alpha) -> Model:
        """Fit a point by Gauss–Newton from the best of its neighbours, or from scratch.

        If squares are left out, the size of an eigenvalue says less about the worth of its
        component: a truncated neighbour of higher rank may lead to a worse optimum, from which all
        later fits of the rank would start. So the first fit of a rank also starts from scratch.
        """
        white, rng = self.whitener(alpha), np.random.default_rng(self.seed)
        tol, steps = max(PATH_TOL, self.options.tol), min(PATH_STEPS, self.options.max_iter)
        options = replace(self.options, rank=rank, alpha=alpha, tol=tol, max_iter=steps)
        problem = Problem(self.rows, self.units, options, rng)
        near = list(self._neighbours(rank, alpha))
        if len(near) > 1:
            near = [min(near, key=lambda model: _objective(problem, model))]
        first = rank > 0 and not any(other == rank for other, _ in self.models)
        unseen = bool(namespace(self.units.free).any(self.units.free == 0))
        doubtful = unseen or self.d <= FEW  # with few features, other starts cost little
        doubtful &= self.similar is None
        starts: list[Model | None] = [*near, None] if not near or (first and doubtful) else [*near]
        solutions = []
        for start in starts:
            if start is None and 0 < rank < self.d <= FEW:
                begin = quick_start if rank == self.roughly else best_start
                method = descended(problem, white, begin(problem, self.products))
            else:
                method = polish(problem, white, start)
            solutions.append(finished(follow(problem, method)))
        return min(solutions, key=lambda solution: solution.history[-1].loss).model

    @cached_property
    def products(self) -> np.ndarray:
        """Return the products of all products of few features, for the starts of all ranks."""
        return products_of(self.rows, self.units)

    def whitener(self, alpha: Alpha) -> Whitener:
        """Return the whitener for a penalty on w."""
        if alpha[0] not in self._white:
            ridge = alpha[0] / self.weight
            rng = np.random.default_rng(self.seed)
            white = whitener(self.rows, self.units, self.options.whiten, ridge, rng)
            self._white[alpha[0]] = white
        return self._white[alpha[0]]

    def _neighbours(self, rank: int, alpha: Alpha) -> Iterator[Model]:
        """Yield the last model of the same rank, and higher ranks truncated."""
        if rank == 0:
            yield constant_model(self.units, 0, self.units.target.centre)
            return
        of_rank = [model for (other, _), model in self.models.items() if other == rank]
        yield from of_rank[-1:]
        if self.similar is not None:
            yield self.similar.model(rank, alpha)
        if min(alpha) > 0 and self.exact(False) is not None:
            yield with_rank(self.model(self.d, alpha), rank)
        higher = [point for point in self.models if point[0] > rank and point[1] == alpha]
        if higher:
            yield with_rank(self.model(*min(higher)), rank)


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
        """Return whether a model needs no pass, except one to compute a matrix."""
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
        """Return the solver for rank 0 or d, if there is one."""
        if linear not in self._exact:
            parts = (self.rows, self.units, self.options, self.n_rows)
            self._exact[linear] = exact_solver(*parts, linear)
        return self._exact[linear]

    def forget(self) -> None:
        """Drop large matrices, which can be computed again in one pass, and exact solutions."""
        size = {k: 0 if exact is None else exact.entries for k, exact in self._exact.items()}
        self._exact = {k: e for k, e in self._exact.items() if size[k] <= KEPT_ENTRIES}
        self.solutions = {p: s for p, s in self.solutions.items() if 0 < p[0] < self.d}

    def recorded(self, rank: int, alpha: Alpha) -> Solution:
        """Return the solution with its objective in the history: one pass if it is not there."""
        solution = self.solution(rank, alpha)
        if solution.history:
            return solution
        problem = self._problem(rank, alpha, self.options.tol)
        unit = self.units.target.scale**2 / self.weight
        return self._noted(solution.model, _objective(problem, solution.model) * unit)

    def _noted(self, model: Model, *losses: float) -> Solution:
        history = tuple(Record(0, self.rows.walks, loss) for loss in losses)
        return Solution(model, self.units, Status.converged, history)

    def _problem(self, rank: int, alpha: Alpha, tol: float) -> Problem:
        options = replace(self.options, rank=rank, alpha=alpha, tol=tol)
        return Problem(self.rows, self.units, options, np.random.default_rng(self.seed))

    def _iterated(self, rank: int, alpha: Alpha) -> Solution:
        """Iterate to the optimum from the reference model of the rank."""
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


def _objective(problem: Problem, model: Model) -> float:
    """Return the loss and the penalties of a model: one pass."""
    ridge = Coordinates(problem.units, problem.options, Identity()).ridge(model)
    return float(problem.sums(model, squares=False).loss + ridge)


def squared_errors(model: Model, units: Units, rows: Rows) -> tuple[Array, Array]:
    """Return (r², ω) for the rows, in standardised units: one pass."""
    xp = namespace(model.w)
    errors, weights = zip(*rows.collect(_squared_errors, model, units), strict=True)
    return xp.concat(list(errors)), xp.concat(list(weights))


def _squared_errors(chunk: Chunk, model: Model, units: Units) -> tuple[Array, Array]:
    xp = namespace(model.w)
    r = predict(model, Block(chunk.X, units)) - units.standardised_target(chunk.y)
    squares = xp.astype(r, xp.float64) ** 2
    return squares, xp.ones_like(squares) if chunk.weight is None else chunk.weight
