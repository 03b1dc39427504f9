"""The best of many optima of a problem with few features, from one pass over its rows.

Levenberg–Marquardt on M = L diag(±1) Lᵀ can start many times in a `Landscape`, with every number of
negative signs, without reading the rows again.
"""

from collections.abc import Sequence

import numpy as np

from quadlin.core.model import Model
from quadlin.solve.lowrank.exact import products_of
from quadlin.solve.lowrank.landscape import Landscape
from quadlin.solve.lowrank.many_descents import GAIN, SignedFactors, descended
from quadlin.solve.lowrank.types import Problem

FEW = 25  # most features for which the Gram matrix of products costs less than the passes it saves
GRAM_WORK = 2e9  # most multiplications for that matrix, if a sample would do as well
RANDOM_STARTS = 8  # for a number of negative signs, in addition to the one by eigenvectors
SIGNS = 5  # numbers of negative signs with random starts: the best by eigenvectors
UNKNOWNS = 80  # of a start: with more, each step takes longer, and random starts are fewer
TRIAL_STEPS, STEPS = 12, 100  # of Levenberg–Marquardt: for a few starts, and for the best ones
# Races: (steps of all starts, one in how many continues). Most bad starts are recognised early.
FIRST_STEPS = 2  # of a start, before any is left out
START_HEATS, SWAP_HEATS = ((2, 2), (8, 3)), ((2, 4), (5, 4))
FINALISTS, FINAL_SWAPS = 4, 2
SWAPS = 8


def leading_starts(landscape: Landscape, rank: int, psd: bool) -> list[SignedFactors]:
    """Return a start for every number of negative signs: the leading eigenvectors of each sign."""
    d, factors = landscape.d, []
    values, vectors = np.linalg.eigh(landscape.optimum())
    for negative in range(1 if psd else rank + 1):
        signs = np.where(np.arange(rank) < negative, -1.0, 1.0)
        chosen = np.concatenate([np.arange(negative), np.arange(d - rank + negative, d)])
        size = np.sqrt(np.maximum(signs * values[chosen], 0.01 * np.abs(values).max()))
        factors.append(landscape.factors(vectors[:, chosen] * size, signs))
    return factors


def random_starts(
    landscape: Landscape, signs: Sequence[np.ndarray], rng: np.random.Generator
) -> list[SignedFactors]:
    """Return some random starts for each of some signs."""
    shape = landscape.d, len(signs[0])
    size = np.abs(np.linalg.eigvalsh(landscape.optimum())).max()
    typical = np.sqrt(size / landscape.d)
    each = max(1, round(RANDOM_STARTS * min(1.0, UNKNOWNS / (shape[0] * shape[1]))))
    repeated = [s for s in signs for _ in range(each)]
    return [landscape.factors(typical * rng.standard_normal(shape), s) for s in repeated]


def with_better_components(landscape: Landscape, f: SignedFactors, psd: bool) -> SignedFactors:
    """Replace one component by the leading direction of the residual, as long as that helps."""
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
    """Return the optima of the finalists of all tries, the best first."""
    for steps, share in heats:
        kept = max(finalists, -(-len(tries) // share))
        tries = descended(landscape, tries, steps)[:kept]
    return descended(landscape, tries[:finalists], STEPS)


def products_pay(n_rows: float, d: int) -> bool:
    """Return whether summing the products of all rows pays for a fit of one rank and penalty.

    It takes n p² operations, p = (d + 1)(d + 2)/2; the fit by samples takes only 20 n d k. For
    100,000 rows with 20 features this is 0.7 s of CPU time, compared with 0.07 s.
    """
    p = (d + 1) * (d + 2) / 2
    return d <= FEW and n_rows * p**2 <= GRAM_WORK


def _leading(landscape: Landscape, rank: int, psd: bool, gain: float = GAIN) -> list[SignedFactors]:
    """Return the better half of the starts by eigenvectors after the first steps, best first."""
    starts = leading_starts(landscape, rank, psd)
    kept = max(SIGNS, -(-len(starts) // 2))
    return descended(landscape, starts, FIRST_STEPS, gain)[:kept]


def optima(
    landscape: Landscape, rank: int, psd: bool, rng: np.random.Generator
) -> list[SignedFactors]:
    """Return the best optima of many starts, the best first."""
    few = _leading(landscape, rank, psd)
    signs = sorted((f.signs for f in few[:SIGNS]), key=np.sum, reverse=True)
    random = random_starts(landscape, signs, rng)
    many = [*few, *descended(landscape, random, FIRST_STEPS)]
    best, *others = _raced(landscape, many, START_HEATS, FINALISTS)
    return [with_better_components(landscape, best, psd), *others]


def best_start(problem: Problem, gram: np.ndarray | None = None) -> Model:
    """Return the best optimum of many starts: one pass, unless the products are given."""
    units, options = problem.units, problem.options
    gram = products_of(problem.rows, units) if gram is None else gram
    landscape = Landscape(gram, units, options)
    best = optima(landscape, options.rank, options.psd, problem.rng)[0]
    return landscape.model(best, units)


def quick_start(problem: Problem, gram: np.ndarray) -> Model:
    """Return a model near the best optimum that starts from leading eigenvectors reach.

    Only a few starts are tried, and the tolerance is that of the options: the model is compared,
    not kept.
    """
    units, options = problem.units, problem.options
    landscape = Landscape(gram, units, options)
    few = _leading(landscape, options.rank, options.psd, options.tol)
    best = descended(landscape, few, TRIAL_STEPS - FIRST_STEPS, options.tol)[0]
    return landscape.model(descended(landscape, [best], STEPS, options.tol)[0], units)
