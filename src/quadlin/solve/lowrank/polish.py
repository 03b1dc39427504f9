"""The fit: a start, Gauss–Newton steps to the optimum, and an escape if they get stuck.

The start is of annealed rank; with few rows, one by reweighted least squares (`reweighted`)
competes with it. With few features, the sums of all products (`product_gram`) take the place of the
rows, so that passes cost nothing, and every component is replaced as long as that helps.

A fit of many rows starts with a few. The cost of a step is proportional to its rows, and conjugate
gradients on n rows contract by about √(dof/n) per product with them, so about three rows per
parameter are the cheapest way to the neighbourhood of the optimum. A few dozen passes over such a
sample reach its statistical error, σ²·dof/n. Then the sample grows, up to all rows, which need only
one or two steps. If components do not stand out from the noise of a sample, it is useless, and a
larger one starts from scratch.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, log10, sqrt
from operator import attrgetter

import numpy as np

from quadlin.core.arrays import Array, lead, namespace, qr, to_numpy
from quadlin.core.model import Model, constant_model, in_units
from quadlin.core.moments import Tally, survey
from quadlin.core.rows import Rows
from quadlin.core.units import Units, UnitsMaker
from quadlin.solve.lowrank import moment_sequence as mes
from quadlin.solve.lowrank.design import EXACT_ENTRIES
from quadlin.solve.lowrank.driver import Iterate, Method, ended, follow
from quadlin.solve.lowrank.gauss_newton import (
    LOOSE_TOL,
    GaussNewton,
    Point,
    final_error,
    least_gain,
    precise,
    precision,
    smallest_loss,
)
from quadlin.solve.lowrank.observations import sample_of
from quadlin.solve.lowrank.product_gram import FEW, ProductGram, product_gram
from quadlin.solve.lowrank.reweighted import reweighted_start
from quadlin.solve.lowrank.tangent import Coordinates
from quadlin.solve.lowrank.types import Options, Problem, Solution, Status, finished
from quadlin.solve.lowrank.whitening import (
    Covariance,
    Full,
    Identity,
    Whitener,
    covariance,
    full_whitener,
    sharpened,
    whitener,
)

OnStep = Callable[[Solution], bool] | None

EXTRA_RANK = 8  # of the start, above k: lowering it by steps avoids components of the wrong sign
LOOSE_STEPS, LOOSE_CAP = 2, 5
PER_DIGIT = 5  # conjugate-gradient iterations per digit of precision of a step
GAP = 0.5  # of the smallest component to keep: all smaller ones are removed at once
PASSES_PER_STEP = 12  # the budget of passes, for each of `max_iter` steps
FIRST_CAP, LAST_CAP, CAP_GROWTH = 3, 60, 1.5  # conjugate-gradient iterations in a step
NEAR_TOL, NEAR_CAP = 0.05, 12  # for the first step near the optimum, often the last
WINDOW, SLOW = 8, 0.3  # a gradient that falls by less over this many steps is stuck
ESCAPES = 2
SHRINKAGE = 0.02  # of the weight: ridge of the M of full rank whose eigenvectors are starts
BETTER = 1e-4  # of the objective: the gain for which components are replaced once more
ROWS_PER_PARAMETER = 3  # of the first sample
GROWTH = 8  # from one sample to the next, and at least from the last one, a copy, to all rows
LEAST_FREEDOM = 0.05  # of the rows: the fewest degrees of freedom of the noise
EDGE = 2.0  # times σ√(d/n), the largest eigenvalue of noise: more than that stands out
SAMPLE_ERROR = 0.1  # of the statistical error of a sample: more precise fits are useless


def spectral_start(task: GaussNewton, rank: int) -> Point:
    """Take the leading directions of the target's moments; the first step gives their sizes."""
    units = task.units
    centre = constant_model(units, 1, units.target.centre)
    if not task.problem.centred:  # otherwise the mean would be mistaken for directions
        sums = task.problem.sums(centre, squares=False)
        centre = replace(centre, c=centre.c - float(sums.p0[0]) / sums.weight)
    U, s, _ = leading_directions(task, centre, rank)
    return task.point(0.0, 0 * units.scale, U, 0 * s)


def leading_directions(task: GaussNewton, model: Model, rank: int) -> tuple[Array, Array, Array]:
    """Return (U, s, v): the spectral estimate of minus the model's error, whitened.

    Whitened features are treated as Gaussian (κ = 0, φ = 3), for which the diagonal of the moment
    matrix needs no correction: with few rows, exact moments add more variance than they remove
    bias.
    """
    units, white = task.units, task.white
    d = units.scale.shape[0]

    def estimate(Q: Array) -> mes.Estimate:
        E = white.apply(Q)
        sums = task.problem.sums(model, E, squares=task.squares)
        left_out = (1 - units.free) * sums.p2[:, 0] + units.free * float(sums.p0[0])
        ME = (sums.action[:, 0, :] - left_out[:, None] * E) / sums.weight
        return white.transpose(ME) / 2, white.transpose(sums.p1[:, 0] / sums.weight)

    columns = min(d, rank + mes.OVERSAMPLING)
    random = units.array(task.problem.rng.standard_normal((d, columns)))
    return mes.spectral(estimate, random, rank, task.options.psd)


def annealed(task: GaussNewton, p: Point, rank: int) -> Point:
    """Take loose steps at a higher rank, then lower it by one per step; the loss may rise."""
    p = loosely(task, p, LOOSE_STEPS)
    while p.s.shape[0] > rank:
        size = namespace(p.s).abs(p.s)
        stands_out = rank and float(size[rank]) < GAP * float(size[rank - 1])
        t, _ = task.direction(p, task.gradient(p), LOOSE_TOL, LOOSE_CAP)
        p = task.moved(p, t, 1.0, rank if stands_out else p.s.shape[0] - 1)
    return p


def iterate(p: Point) -> Iterate:
    """Return a point as an iterate of the driver."""
    return Iterate(p.model, p.objective, orthonormal=False)


def refined(
    task: GaussNewton, p: Point, budget: float, near: bool = False
) -> Generator[Iterate, None, tuple[Point, Status, bool]]:
    """Descend to the nearby optimum; also return whether it looks like the wrong one.

    The descent stops after `budget` passes over the rows. If the optimum is `near`, even the first
    step solves its equations precisely.
    """
    rows = task.problem.rows
    rounding, gain = smallest_loss(task.units), least_gain(task)
    if not isfinite(p.objective):  # no step returns from there
        return p, Status.diverged, False
    worth_a_search = final_error(task.options, task.problem.error)
    damping, (tol, cap) = 0.0, (NEAR_TOL, NEAR_CAP) if near else (LOOSE_TOL, FIRST_CAP)
    seen: list[float] = []
    while rows.counter.count < budget:
        if task.separates(p):
            return p, Status.separated, False
        if p.objective <= rounding:
            return p, Status.converged, False
        g = task.gradient(p)
        towards = task.coordinates.preconditioned(p.U, g, p.sums.weight)
        promised = g.dot(towards) / task.unit
        if promised <= gain * p.objective:
            return p, Status.converged, False
        seen.append(promised)
        if len(seen) > WINDOW and promised > SLOW * seen[-1 - WINDOW]:
            return p, Status.converged, promised > worth_a_search * p.objective
        if len(seen) > 1:
            tol = 0.9 * promised / seen[-2]
        tol, goal = precision(task, p.objective, promised, tol, gain)
        cap = max(cap, min(LAST_CAP, int(PER_DIGIT * log10(1 / tol))))
        reached, met = task.descended(p, g, tol, cap, damping, goal)
        cap = min(LAST_CAP, cap + 1 if met else int(CAP_GROWTH * cap) + 1)
        if not met:  # the preconditioner is weak here, but the optimum may be right
            seen.clear()
        if reached is None:
            if damping >= 1.0:
                return p, Status.converged, False  # as far as rounding allows
            damping = max(10 * damping, 1e-2)
            continue
        p, damping = reached, damping / 10 if damping > 1e-4 else 0.0
        yield iterate(p)
    return p, Status.out_of_passes, False


def extended(task: GaussNewton, p: Point, extra: int) -> Point:
    """Add the leading directions of the residual's moment matrix."""
    U, s, _ = leading_directions(task, p.model, extra)
    V, R = qr(namespace(p.U).concat([p.U, U], axis=1))
    values, vectors = lead(
        (R * namespace(s).concat([p.s, s])) @ R.T, p.s.shape[0] + extra, task.options.psd
    )
    return task.point(p.c, p.v, V @ vectors, values)


def escaped(task: GaussNewton, p: Point, rank: int) -> Point:
    """Add directions of the residual and anneal once more."""
    extra = min(EXTRA_RANK + mes.OVERSAMPLING, p.U.shape[0] - rank)
    return annealed(task, extended(task, p, extra), rank)


def best_optimum(task: GaussNewton, products: ProductGram, rank: int, budget: float) -> Point:
    """Return the best optimum of starts with every number of negative signs.

    They are the leading directions of each sign of the best M of any rank. In a precise fit, a
    component is then replaced by the leading direction of what the others leave, while that helps.
    """
    linear = products.tangent(task.units.array(np.eye(len(products.rho))))
    first, second = (max(a, SHRINKAGE * linear.weight) for a in task.options.alpha)
    model = linear.model((first, second))
    assert model is not None  # since there is a penalty
    full = task.coordinates.of(model)
    order, lowest = np.argsort(to_numpy(full[3])), 0 if task.options.psd else rank
    last = len(order) - rank
    ends = [np.concatenate([order[:m], order[last + m :]]) for m in range(lowest + 1)]
    p = best_of(task, [with_components(task, full, at) for at in ends], budget)
    while task.options.tol < BETTER:
        kept = [np.delete(np.arange(rank), a) for a in range(rank)]
        parts = (with_components(task, (p.c, p.v, p.U, p.s), at) for at in kept)
        others = (loosely(task, part, 1) for part in parts)
        q = best_of(task, [extended(task, other, 1) for other in others], budget)
        if p.objective - q.objective <= BETTER * p.objective:
            return p if p.objective <= q.objective else q
        p = q
    return p


def with_components(
    task: GaussNewton, coordinates: tuple[float, Array, Array, Array], at: np.ndarray
) -> Point:
    """Return a model with some of its components."""
    c, v, U, s = coordinates
    xp = namespace(U)
    places = xp.asarray(at, device=U.device)
    return task.point(c, v, xp.take(U, places, axis=1), xp.take(s, places))


def best_of(task: GaussNewton, starts: Sequence[Point], budget: float) -> Point:
    """Return the optimum near the start that a few loose steps improve most."""
    trials = [loosely(task, p, 2 * LOOSE_STEPS) for p in starts]
    return ended(refined(task, min(trials, key=attrgetter("objective")), budget))[0]


def loosely(task: GaussNewton, p: Point, steps: int) -> Point:
    """Take loose steps that lower the objective."""
    for _ in range(steps):
        p = task.descended(p, task.gradient(p), LOOSE_TOL, LOOSE_CAP)[0] or p
    return p


def left_wrong_optimum(
    task: GaussNewton, p: Point, status: Status, stuck: bool, budget: float
) -> Generator[Iterate, None, tuple[Point, Status]]:
    """Leave an optimum that looks like the wrong one."""
    rank, d = p.s.shape[0], p.U.shape[0]
    for _ in range(ESCAPES):
        if not stuck or rank >= d:
            break
        other, status, stuck = yield from refined(task, escaped(task, p, rank), budget)
        p = other if other.objective < p.objective else p
    return p, status


def polish(
    problem: Problem,
    white: Whitener,
    warm: Model | None = None,
    near: bool = False,
    products: ProductGram | None = None,
) -> Method:
    """Fit from scratch, or from the model `warm`: start, anneal, refine, and escape if stuck.

    If `warm` has a lower rank, its residual gives the other directions; if it is `near` the
    optimum, the whitener should already be sharp. `products` save a pass.

    Passes: about 30 with 30kd rows, 70 with 4kd, 170 with 1.6 times as many rows as parameters.
    With at most 25 features about 4, one of which is expensive: it sums products of all products.
    Memory: O((k + 8)d), a block, and what the whitener holds; with few features O(d⁴) ≤ 2 MB.
    """
    units, options = problem.units, problem.options
    task = precise(problem, white)
    rank, d = options.rank, units.scale.shape[0]
    rows = problem.rows
    budget = rows.counter.count + PASSES_PER_STEP * options.max_iter * rows.share
    if units.target.power == 0:
        return Status.converged
    p = None if warm is None else task.point_of(warm)
    if p is not None and p.s.shape[0] < rank:
        p = extended(task, p, rank - p.s.shape[0])
    if near and p is not None and not p.objective < units.target.power:
        p, near = None, False  # the sample was misleading
    from_scratch = p is None
    if p is None and problem.products is None and has_few_features(options, d):
        products = product_gram(rows, units, options) if products is None else products
        of_sums = replace(problem, products=products)
        p = task.point_of(finished(follow(of_sums, polish(of_sums, white))).model)
        from_scratch = False
    elif p is None and problem.products is not None:
        p = best_optimum(task, problem.products, rank, budget)
    elif p is None:
        p = annealed(task, spectral_start(task, min(d, rank + EXTRA_RANK)), rank)
    yield iterate(p)
    p, status, stuck = yield from refined(task, p, budget, near)
    other = None
    if from_scratch and p.objective > smallest_loss(units):
        other = reweighted_start(problem)
    if other is not None:
        q, its_status, its_stuck = yield from refined(task, task.point_of(other), budget)
        if q.objective < p.objective:
            p, status, stuck = q, its_status, its_stuck
    if not from_scratch or problem.products is None:
        p, status = yield from left_wrong_optimum(task, p, status, stuck, budget)
    if isinstance(white, Full) and status is Status.converged and not near:
        sharp = precise(problem, sharpened(white))
        _, status, _ = yield from refined(sharp, sharp.point_of(p.model), budget)
    return status


def has_few_features(options: Options, d: int) -> bool:
    """Return whether sums of all products take the place of the rows."""
    return options.loss == "squared" and 0 < options.rank < d <= FEW


def fit_rows(
    rows: Rows,
    units: Units,
    options: Options,
    weight: float,
    rng: np.random.Generator,
    warm: Model | None = None,
    on_step: OnStep = None,
    effective: float = inf,
) -> tuple[Solution, Whitener]:
    """Fit rows that can be read many times; also return the whitener for later steps.

    With their `effective` number, the fit ends if it is slow and near its statistical error.
    """
    error = options.dof(units.scale.shape[0], options.rank) / effective
    problem = Problem(rows, units, options, rng, error=error)
    if options.solver != "auto":
        method = mes.moment_sequence(problem, warm)
        return follow(problem, method, on_step, options.solver == "paper"), Identity()
    products = sigma = None
    few_features = has_few_features(options, units.scale.shape[0])
    if warm is None and few_features and units.target.power > 0:
        products = product_gram(rows, units, options)
        sigma = products.covariance()
    white = whitener(rows, units, options.alpha[0] / weight, rng, sigma)
    solution = follow(problem, polish(problem, white, warm, products=products), on_step)
    return solution, sharpened(white) if isinstance(white, Full) else white


@dataclass(frozen=True)
class SampleFit:
    """Where the fit of a sample ended, in its own units."""

    solution: Solution
    white: Whitener
    clear: bool

    def model(self, units: Units) -> Model:
        """Return the model in the units of other rows."""
        return in_other_units(self.solution, units).model


def in_other_units(solution: Solution, units: Units) -> Solution:
    """Return a solution in the units of other rows, with the same history."""
    return replace(solution, model=in_units(solution.model, solution.units, units), units=units)


def sample_sizes(
    n: float, d: int, dof: int, least: int = 0, most: int = EXACT_ENTRIES
) -> list[int]:
    """Return the sizes of the samples to fit before all rows; none if there are few rows.

    A sample has between `least` and `most` entries.

    Examples
    --------
    >>> sample_sizes(10_000, 50, 300), sample_sizes(1_000_000, 50, 300), sample_sizes(2000, 50, 300)
    ([900], [900, 7200, 57600], [])
    """
    sizes, size = [], max(ROWS_PER_PARAMETER * dof, least // d)
    while size * GROWTH <= n and size * d <= most:
        sizes.append(size)
        size *= GROWTH
    return sizes


def fit_from_few(
    rows: Rows,
    units: Units,
    options: Options,
    make_units: UnitsMaker,
    tally: Tally,
    seed: int,
    on_step: OnStep = None,
) -> tuple[Solution, Whitener] | None:
    """Fit a rank 0 < k < d to samples of growing size, then to all rows; None if these are few.

    `on_step` also sees the steps on samples, with their losses on the sample.

    Passes: one, and 72 over three rows per parameter, without noise; 7 and 27 with noise.
    Memory: the largest sample, at most 2²⁵ numbers, before that of the fit.
    """
    d, n = int(units.scale.shape[0]), tally.effective
    dof = options.dof(d, options.rank)
    sizes = sample_sizes(n, d, dof, *rows.engine.sample_entries)
    if not sizes:
        return None
    largest = sample_of(rows, sizes[-1] / n, tally.rows)
    stage: SampleFit | None = None
    watch = None if on_step is None else lambda solution: on_step(in_other_units(solution, units))
    for size in sizes:
        sample = largest if size == sizes[-1] else sample_of(largest, size / sizes[-1], 0, 1)
        first, second = (a * size / n for a in options.alpha)
        scaled = replace(options, alpha=(first, second))
        stage = _fit_sample(sample, scaled, make_units, dof / size, seed, stage, watch)
        if stage.solution.status in (Status.interrupted, Status.stopped):
            return in_other_units(stage.solution, units), stage.white
    del largest, sample  # all rows need the memory
    if stage is None or not stage.clear:
        return None
    worthless = final_error(options, dof / n)
    problem = Problem(rows, units, options, np.random.default_rng(seed), worthless, dof / n)
    white = sharp_whitener(stage.white, problem, options.alpha[0] / tally.weight)
    return follow(problem, polish(problem, white, stage.model(units), near=True), on_step), white


def _fit_sample(
    few: Rows,
    options: Options,
    make_units: UnitsMaker,
    error: float,
    seed: int,
    before: SampleFit | None,
    on_step: OnStep = None,
) -> SampleFit:
    """Fit a sample to its statistical error, from the result of the last one if that was clear."""
    surveyed = few.reduce(survey)
    units = make_units(surveyed.features, surveyed.target)
    rng, ridge = np.random.default_rng(seed), options.alpha[0] / surveyed.features.weight
    problem = Problem(few, units, options, rng, SAMPLE_ERROR * error, error)
    if before is not None and before.clear:
        white = sharp_whitener(before.white, problem, ridge)
        method = polish(problem, white, before.model(units), near=True)
    else:
        white = whitener(few, units, ridge, rng)
        method = polish(problem, white)
    solution = follow(problem, method, on_step)
    return SampleFit(solution, white, _is_clear(solution, white, options, error))


def sharp_whitener(
    white: Whitener, problem: Problem, ridge: float, sigma: Covariance | None = None
) -> Whitener:
    """Return a whitener for more rows: that of a sample, unless it is a d×d matrix."""
    if isinstance(white, Full):
        if sigma is None:
            sigma = problem.rows.reduce(covariance, problem.units)
        return sharpened(full_whitener(problem.units, ridge, sigma))
    return white


def _is_clear(solution: Solution, white: Whitener, options: Options, error: float) -> bool:
    """Return whether all components stand out from the noise of the sample, σ√(d/n).

    `error` is dof/n, and features are whitened.
    """
    if solution.status is not Status.converged:
        return False
    model, units = solution.model, solution.units
    loss = solution.history[-1].loss / units.target.scale**2
    n = options.dof(*model.U.shape) / error
    edge = sqrt(loss / max(1 - error, LEAST_FREEDOM) * model.w.shape[0] / n)
    s = np.abs(to_numpy(Coordinates(units, options, white).of(model)[-1]))
    return bool(s.min() > EDGE * edge)
