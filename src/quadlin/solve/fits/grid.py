"""Models of many ranks and penalties on the same rows.

A model of rank 0 or d is solved exactly if a matrix of its parameters fits in memory. Any other
model starts from its neighbours, and is only as exact as a comparison needs.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

import numpy as np

from quadlin.core.arrays import Array, namespace
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.model import Model, constant_model, predict, with_rank
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.design import Alpha
from quadlin.solve.lowrank.driver import follow
from quadlin.solve.lowrank.linear_model import linear_model
from quadlin.solve.lowrank.polish import polish
from quadlin.solve.lowrank.tangent import Coordinates
from quadlin.solve.lowrank.types import Options, Problem, finished
from quadlin.solve.lowrank.whitening import Identity, Whitener, whitener

PATH_TOL, PATH_STEPS = 1e-4, 8  # a point of the path need not be more exact

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
        self.d, self.models = int(units.scale.shape[0]), dict[Point, Model]()
        self._white: dict[float, Whitener] = {}
        self.exact = cache(partial(linear_model, rows, units, options, n_rows))  # of rank 0 or d

    def model(self, rank: int, alpha: Alpha) -> Model:
        """Return the model at a point of the path, from that of a neighbour if there is one."""
        point = (rank, alpha)
        if point not in self.models:
            exact = self.exact(rank) if rank in (0, self.d) and min(alpha) > 0 else None
            model = None if exact is None else exact.model(alpha)
            self.models[point] = self._fitted(rank, alpha) if model is None else model
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
        doubtful = first and unseen and self.similar is None
        starts: list[Model | None] = [*near, None] if not near or doubtful else [*near]
        fits = (follow(problem, polish(problem, white, start)) for start in starts)
        solutions = [finished(solution) for solution in fits]
        return min(solutions, key=lambda solution: solution.history[-1].loss).model

    def whitener(self, alpha: Alpha) -> Whitener:
        """Return the whitener for a penalty on w."""
        if alpha[0] not in self._white:
            ridge = alpha[0] / self.weight
            rng = np.random.default_rng(self.seed)
            white = whitener(self.rows, self.units, ridge, rng)
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
        if min(alpha) > 0 and self.exact(self.d) is not None:
            yield with_rank(self.model(self.d, alpha), rank)
        higher = [point for point in self.models if point[0] > rank and point[1] == alpha]
        if higher:
            yield with_rank(self.model(*min(higher)), rank)


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
