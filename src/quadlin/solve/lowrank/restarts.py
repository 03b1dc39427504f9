"""The best of many optima of a problem with few features, from one walk over its rows.

Levenberg–Marquardt on M = L diag(±1) Lᵀ can start as often as it likes in a `Landscape`, with every
number of negative signs, without another look at the rows.
"""

from collections.abc import Sequence

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.model import Model
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.exact import EXACT_COLUMNS, Exact
from quadlin.solve.lowrank.landscape import Landscape
from quadlin.solve.lowrank.many_descents import SignedFactors, descended
from quadlin.solve.lowrank.types import Problem

FEW = 25  # features at most: the Gram matrix of their products costs less than the passes it saves
GRAM_WORK = 2e9  # multiplications for that matrix, at most, where a sample would lead there as well
RANDOM_STARTS = 8  # for every number of negative signs, beside the one by eigenvectors
TRIAL_STEPS, STEPS = 12, 100  # of Levenberg–Marquardt: for a few starts, and for the best ones
# Races: steps of all, and one in so many goes on. Most starts show early that they do not lead far.
START_HEATS, SWAP_HEATS = ((4, 2), (8, 3)), ((2, 4), (5, 4))
FINALISTS, FINAL_SWAPS = 4, 2
SWAPS = 8


def starts(
    landscape: Landscape, rank: int, psd: bool, rng: np.random.Generator, random: int
) -> list[SignedFactors]:
    """Return starts for every number of negative signs: leading eigenvectors, and random ones."""
    d, factors = landscape.d, []
    values, vectors = np.linalg.eigh(landscape.optimum())
    typical = np.sqrt(np.abs(values).max() / d)
    for negative in range(1 if psd else rank + 1):
        signs = np.where(np.arange(rank) < negative, -1.0, 1.0)
        chosen = np.concatenate([np.arange(negative), np.arange(d - rank + negative, d)])
        size = np.sqrt(np.maximum(signs * values[chosen], 0.01 * np.abs(values).max()))
        factors.append(landscape.factors(vectors[:, chosen] * size, signs))
        for _ in range(random):
            L = typical * rng.standard_normal((d, rank))
            factors.append(landscape.factors(L, signs))
    return factors


def swapped(landscape: Landscape, f: SignedFactors, psd: bool) -> SignedFactors:
    """Replace one component by the direction the residual asks for, while that helps."""
    k = len(f.signs)
    for _ in range(SWAPS):
        tried = []
        for a in range(k):
            rest = np.where(np.arange(k) == a, 0.0, f.L)
            _, vectors = np.linalg.eigh(-landscape.slope_of_loss(landscape.factors(rest, f.signs)))
            r = landscape.residual(rest, f.signs)
            for end in (-1,) if psd else (-1, 0):
                u, sign = vectors[:, end], 1.0 if end else -1.0
                along = landscape.R @ landscape.beta(sign * np.outer(u, u))
                size = max(-float(along @ r) / max(float(along @ along), 1e-300), 0.0)
                L, signs = rest.copy(), f.signs.copy()
                L[:, a], signs[a] = np.sqrt(size) * u, sign
                tried.append(landscape.factors(L, signs))
        best = _raced(landscape, tried, SWAP_HEATS, FINAL_SWAPS)[0]
        if not best.loss < f.loss - 1e-6 * (f.loss + landscape.unexplained):
            return f
        f = best
    return f


def _raced(
    landscape: Landscape,
    tries: list[SignedFactors],
    heats: Sequence[tuple[int, int]],
    finalists: int,
) -> list[SignedFactors]:
    """Return what the finalists of all tries lead to, the best first."""

    def onwards(tries: list[SignedFactors], steps: int) -> list[SignedFactors]:
        return sorted(descended(landscape, tries, steps), key=lambda f: f.loss)

    for steps, share in heats:
        tries = onwards(tries, steps)[: max(finalists, -(-len(tries) // share))]
    return onwards(tries[:finalists], STEPS)


def products_of(rows: Rows, units: Units) -> np.ndarray:
    """Return the Gram matrix of all products that a `Landscape` is made of: one walk."""
    return to_numpy(Exact(rows, units, EXACT_COLUMNS, linear=False).gram)


def products_pay(n_rows: float, d: int) -> bool:
    """Tell whether the products of all rows are worth their sum in a fit of one rank and penalty.

    They take n p², p = (d + 1)(d + 2)/2, and the fit by samples only 20 n d k: of 100,000 rows with
    20 features 0.7 s of CPU time, where the other takes 0.07 s.
    """
    p = (d + 1) * (d + 2) / 2
    return d <= FEW and n_rows * p**2 <= GRAM_WORK


def optima(
    landscape: Landscape, rank: int, psd: bool, rng: np.random.Generator
) -> list[SignedFactors]:
    """Return the best optima that many starts lead to, the very best first."""
    many = starts(landscape, rank, psd, rng, RANDOM_STARTS)
    best, *others = _raced(landscape, many, START_HEATS, FINALISTS)
    return [swapped(landscape, best, psd), *others]


def best_start(problem: Problem, gram: np.ndarray | None = None) -> Model:
    """Return the best optimum that any start leads to: one walk, unless its products are given."""
    units, options = problem.units, problem.options
    gram = products_of(problem.rows, units) if gram is None else gram
    landscape = Landscape(gram, units, options)
    best = optima(landscape, options.rank, options.psd, problem.rng)[0]
    return landscape.model(best, units)


def quick_start(problem: Problem, gram: np.ndarray) -> Model:
    """Return a model near the best optimum that leading eigenvectors lead to.

    By a tenth of all starts, and to the tolerance of the options: it is to be compared, not kept.
    """
    units, options = problem.units, problem.options
    landscape = Landscape(gram, units, options)
    few = starts(landscape, options.rank, options.psd, problem.rng, 0)
    tries = descended(landscape, few, TRIAL_STEPS, options.tol)
    best = min(tries, key=lambda f: f.loss)
    return landscape.model(descended(landscape, [best], STEPS, options.tol)[0], units)
