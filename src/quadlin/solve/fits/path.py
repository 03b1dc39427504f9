"""Models of many ranks and penalties on the same rows, each started from its neighbours."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, cached_property, partial

import numpy as np

from quadlin.core.arrays import Array, namespace
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.model import Model, constant_model, predict, with_rank
from quadlin.core.rows import Rows
from quadlin.core.sums import standardised_target
from quadlin.core.units import Units
from quadlin.solve.lowrank.driver import follow
from quadlin.solve.lowrank.exact import Alpha, exact_solver
from quadlin.solve.lowrank.polish import descended, polish
from quadlin.solve.lowrank.restarts import FEW, best_start, products_of, quick_start
from quadlin.solve.lowrank.tangent import Coordinates
from quadlin.solve.lowrank.types import Options, Problem, Solution, Status, finished
from quadlin.solve.lowrank.whitening import Identity, Whitener, whitener

PATH_TOL, PATH_STEPS = 1e-4, 8  # what a point of the path need not be more exact than

Point = tuple[int, Alpha]  # rank and penalties


class Path:
    """Models of many ranks and penalties on the same rows, each started from its neighbours."""

    def __init__(
        self,
        rows: Rows,
        units: Units,
        options: Options,
        n_rows: int,
        weight: float,
        seed: int,
        beside: "Path | None" = None,
    ) -> None:
        self.rows, self.units, self.options = rows, units, options
        self.weight, self.seed = weight, seed
        self.beside = beside  # the path of nearly the same rows, whose optima are near by
        self.roughly = 0  # the rank that is fitted from a few starts only, as others take long
        self.solutions: dict[Point, Solution] = {}
        self._white: dict[float, Whitener] = {}
        self.exact = cache(partial(exact_solver, rows, units, options, n_rows))  # of rank 0 or d

    def model(self, rank: int, alpha: Alpha) -> Model:
        """Return the model at a point of the path, from that of a neighbour if there is one."""
        return self.point(rank, alpha).model

    def point(self, rank: int, alpha: Alpha) -> Solution:
        """Return what was found at a point of the path; an exact solution has no history."""
        point = (rank, alpha)
        if point not in self.solutions:
            d = self.units.scale.shape[0]
            exact = self.exact(rank == 0) if rank in (0, d) and min(alpha) > 0 else None
            if exact is not None:
                model = exact.model(alpha, rank)
                self.solutions[point] = Solution(model, self.units, Status.converged, ())
            else:
                loose = replace(
                    self.options,
                    tol=max(PATH_TOL, self.options.tol),
                    max_iter=min(PATH_STEPS, self.options.max_iter),
                )
                self.solutions[point] = self.solution(loose, rank, alpha)[0]
        return self.solutions[point]

    def solution(self, options: Options, rank: int, alpha: Alpha) -> tuple[Solution, Whitener]:
        """Fit a point by Gauss–Newton from the best of its neighbours, else from scratch.

        Where squares are left out, the size of an eigenvalue says less about the worth of its
        component: a truncated neighbour of higher rank may lead to a worse optimum, from which all
        later fits of the rank would start. So the first fit of a rank starts from scratch as well.
        """
        white = self.whitener(alpha)
        rng = np.random.default_rng(self.seed)
        options = replace(options, rank=rank, alpha=alpha)
        problem = Problem(self.rows, self.units, options, rng)
        near = list(self._neighbours(rank, alpha))
        if len(near) > 1:
            near = [min(near, key=lambda model: self._objective(problem, model))]
        first = rank > 0 and not any(other == rank for other, _ in self.solutions)
        unseen = bool(namespace(self.units.free).any(self.units.free == 0))
        doubtful = unseen or self.units.free.shape[0] <= FEW  # or other optima cost little to see
        doubtful &= self.beside is None
        starts: list[Model | None] = [*near, None] if not near or (first and doubtful) else [*near]
        solutions = []
        for start in starts:
            if start is None and 0 < rank < self.units.free.shape[0] <= FEW:
                begin = quick_start if rank == self.roughly else best_start
                method = descended(problem, white, begin(problem, self.products))
            else:
                method = polish(problem, white, start)
            solutions.append(finished(follow(problem, method)))
        return min(solutions, key=lambda solution: solution.history[-1].loss), white

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
        """Yield the same point, or the same rank's last one and higher ranks truncated."""
        if (rank, alpha) in self.solutions:
            yield self.model(rank, alpha)
            return
        if rank == 0:
            yield constant_model(self.units, 0, self.units.target.centre)
            return
        same = [point for point in self.solutions if point[0] == rank]
        if same:
            yield self.model(*same[-1])
        if self.beside is not None:
            yield self.beside.model(rank, alpha)
        full = self.exact(False) if min(alpha) > 0 else None
        if full is not None:
            d = self.units.scale.shape[0]
            yield with_rank(self.model(d, alpha), rank)
        higher = [point for point in self.solutions if point[0] > rank and point[1] == alpha]
        if higher:
            yield with_rank(self.model(*min(higher)), rank)

    def _objective(self, problem: Problem, model: Model) -> float:
        loss = problem.sums(model, squares=False).loss
        coordinates = Coordinates(problem.units, problem.options, Identity())
        return float(loss + coordinates.ridge(model))


def squared_errors(model: Model, units: Units, rows: Rows) -> tuple[Array, Array]:
    """Return (r², ω) for the rows, in standardised units: one pass."""
    xp = namespace(model.w)
    errors, weights = zip(*rows.collect(_squared_errors, model, units), strict=True)
    return xp.concat(list(errors)), xp.concat(list(weights))


def _squared_errors(chunk: Chunk, model: Model, units: Units) -> tuple[Array, Array]:
    xp = namespace(model.w)
    r = predict(model, Block(chunk.X, units)) - standardised_target(chunk, units)
    squares = xp.astype(r, xp.float64) ** 2
    return squares, xp.ones_like(squares) if chunk.weight is None else chunk.weight
