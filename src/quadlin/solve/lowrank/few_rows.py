r"""Fits of many rows that start with a few rows per parameter.

The cost of a step is proportional to its rows, and conjugate gradients on n rows contract by about
√(dof/n) per product with them, so about three rows per parameter are the cheapest way to the
neighbourhood of the optimum. A few dozen passes over such a sample reach its statistical error,
σ²·dof/n. Then the sample grows, up to all rows, which need only one or two steps. If components do
not stand out from the noise of a sample, it is useless, and a larger one starts from scratch.
"""

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.model import Model, in_units
from quadlin.core.moments import Tally, survey
from quadlin.core.rows import Rows
from quadlin.core.units import Units, UnitsMaker
from quadlin.solve.lowrank.driver import follow
from quadlin.solve.lowrank.gauss_newton import final_error
from quadlin.solve.lowrank.polish import OnStep, polish
from quadlin.solve.lowrank.sample import sample_of
from quadlin.solve.lowrank.tangent import Coordinates
from quadlin.solve.lowrank.types import Options, Problem, Solution, Status
from quadlin.solve.lowrank.whitening import (
    Covariance,
    Full,
    Whitener,
    covariance,
    full_whitener,
    sharpened,
    whitener,
)

ROWS_PER_PARAMETER = 3  # of the first sample
GROWTH = 8  # from one sample to the next
LEAST_RATIO = 8  # of all rows to those of a sample, which is a copy
ENTRIES = 1 << 25  # of a sample
LEAST_FREEDOM = 0.05  # of the rows: the fewest degrees of freedom of the noise
EDGE = 2.0  # times σ√(d/n), the largest eigenvalue of noise: more than that stands out
SAMPLE_ERROR = 0.1  # of the statistical error of a sample: more precise fits are useless


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


def sample_sizes(n: float, d: int, dof: int, least: int = 0, most: int = ENTRIES) -> list[int]:
    """Return the sizes of the samples to fit before all rows; none if there are few rows.

    A sample has between `least` and `most` entries.

    Examples
    --------
    >>> sample_sizes(10_000, 50, 300), sample_sizes(1_000_000, 50, 300), sample_sizes(2000, 50, 300)
    ([900], [900, 7200, 57600], [])
    """
    sizes, size = [], max(ROWS_PER_PARAMETER * dof, least // d)
    while size * LEAST_RATIO <= n and size * d <= most:
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
    """Return whether all components stand out from the noise of the sample, σ√(d/n)."""
    if solution.status is not Status.converged:
        return False
    return bool(component_sizes(solution, white, options, error).min() > EDGE)


def component_sizes(
    solution: Solution, white: Whitener, options: Options, error: float
) -> np.ndarray:
    """Return |s| in units of σ√(d/n), the largest eigenvalue of noise, in decreasing order.

    `error` is dof/n, and features are whitened.
    """
    model, units = solution.model, solution.units
    loss = solution.history[-1].loss / units.target.scale**2
    n = options.dof(*model.U.shape) / error
    edge = sqrt(loss / max(1 - error, LEAST_FREEDOM) * model.w.shape[0] / n)
    s = np.abs(to_numpy(Coordinates(units, options, white).of(model)[-1]))
    return np.sort(s)[::-1] / max(edge, 1e-300)
