"""The penalties of largest evidence, with as few evaluations as possible: each takes O(p³)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, log

import numpy as np

from quadlin.core.engine import one_blas_thread
from quadlin.solve.lowrank.evidence import NOTHING, Evidence, Linear, Value

HIGHEST = 12.0  # log(α/N) above which nothing but the penalty is left
FLAT = 0.1  # the search ends if the slope of the log evidence, in log α, is smaller,
LITTLE = 0.05  # and if a step promises a smaller rise: a long step on a gentle slope may lead far
STEEP = 3.0  # largest log(α/N) with a noticeable slope
STEP, LONGEST, SMALLEST_STEP = 3.0, 12.0, 1e-3  # in log α: the first, the longest, the shortest
CUT = 1e-6  # of the longest step: steps that differ by less are equal
SAME = 0.1  # in log α: starts that are closer count as one
TIE = 0.01  # of log evidence: starts that differ by less are equally good
DETERMINED, HARDLY = 0.9, 0.5  # γ/p of groups that the rows determine, or hardly determine
LEAST_CURVATURE = 0.1  # of that of a peak
EVALUATIONS = 60
FAR = 100.0  # of log evidence: better penalties never made up for more
RISE = 4.0  # times the rise that a step of MacKay promises: no peak is higher


class Remembered:
    """A model that remembers its evidence, which is needed at the same penalties several times."""

    def __init__(self, model: Linear) -> None:
        self.model, self.weight, self.sizes = model, model.weight, model.sizes
        self.lowest = model.lowest
        self.values: dict[bytes, Value] = {}

    def at(self, log_alpha: np.ndarray, gradient: bool = True, least: float = -inf) -> Value:
        """Return the evidence at some penalties, without its gradient if it is below `least`."""
        key = log_alpha.tobytes()
        value = self.values.get(key) or self.model.at(log_alpha, gradient, least)
        if value.gradient.size:
            self.values[key] = value
        return value


@dataclass(frozen=True)
class Penalties:
    """Some penalties and the evidence there."""

    point: np.ndarray  # (g,), log α
    value: Value


def maximised(model: Linear, starts: Sequence[Sequence[float]]) -> Evidence:
    """Return the penalties of largest evidence, starting from the best of some log(α/N)."""
    shift = log(max(model.weight, 1.0))
    points: list[np.ndarray] = []
    for start in starts:
        point = np.clip(np.asarray(start, dtype=float), model.lowest, STEEP) + shift
        if not any(np.max(np.abs(point - other), initial=0.0) < SAME for other in points):
            points.append(point)
    with one_blas_thread():  # for such small matrices, synchronising threads costs more
        # From the largest penalties to the smallest; a smaller one must be better by more than a
        # tie. With few rows the evidence of a model of the noise and of one without it may be
        # equal, and rounding must not decide between them.
        points.sort(key=lambda point: -float(point.sum()))
        best = Penalties(points[0], model.at(points[0]))
        for point in points[1:]:  # the slope, half of the work, is computed only for a better point
            value = model.at(point, least=best.value.log_evidence + TIE)
            if value.log_evidence > best.value.log_evidence + TIE:
                best = Penalties(point, value)
        return _climbed(model, best, shift)


def maximised_from_few(
    model: Linear, few: Linear, starts: Sequence[Sequence[float]], ridge: float, least: float
) -> Evidence:
    """Return the same, starting from the best penalties of a few rows, which are about as good.

    `ridge` is log α₁ without products. If the evidence at the start is far below `least`, it is
    returned without a search.
    """
    begin, shift, all_rows = maximised(few, starts).log_alpha, log(model.weight), Remembered(model)
    if begin[1] >= STEEP + shift:  # no products remain: this is ridge regression
        begin = np.array([ridge, HIGHEST + shift])
    behind = far_behind(all_rows, begin, least)
    return maximised(all_rows, [(begin - shift).tolist()]) if behind is None else behind


def far_behind(model: Linear, log_alpha: np.ndarray, least: float) -> Evidence | None:
    """Return the evidence at some penalties if no nearby peak can reach `least`, otherwise None.

    MacKay's step to log(γ/pull) promises a rise equal to its product with the slope. In experiments
    the true rise was up to three times as large if it was small, and never more than that of a
    whole `STEP`. If the evidence is behind by `FAR`, the slope, two thirds of the work, is not
    computed.
    """
    with one_blas_thread():
        value = model.at(log_alpha, least=least - FAR)
    if value.log_evidence < least - FAR:
        return replace(value, determined=np.zeros_like(log_alpha)).there(log_alpha)
    slope, pull = value.gradient, value.determined - 2 * value.gradient
    step = np.log(np.maximum(value.determined, 1e-9) / np.maximum(pull, 1e-9))
    rise = np.minimum(RISE * np.abs(step), STEP) @ np.abs(slope) + 1
    return None if value.log_evidence + float(rise) >= least else value.there(log_alpha)


def _climbed(model: Linear, here: Penalties, shift: float) -> Evidence:
    """Return the peak near some penalties, by quasi-Newton steps of limited length."""
    low, high = model.lowest + shift, HIGHEST + shift
    longest, tried_end = STEP, False
    past: list[tuple[np.ndarray, np.ndarray]] = []  # steps, and how the slopes changed along them
    if here.value is NOTHING:
        return replace(NOTHING, determined=np.zeros_like(here.point)).there(here.point)
    for _ in range(EVALUATIONS):
        slope = here.value.gradient
        outward = ((here.point <= low) & (slope < 0)) | ((here.point >= high) & (slope > 0))
        slope = np.where(outward, 0.0, slope)
        step, little = _step(model, here.value, slope, past, longest)
        if np.max(np.abs(slope), initial=0.0) <= FLAT and float(slope @ step) <= LITTLE:
            break
        little &= here.point >= shift + STEEP
        if little.any() and not tried_end:
            tried_end, end = True, np.where(little, high, here.point)
            there = Penalties(end, model.at(end))
            if there.value.log_evidence > here.value.log_evidence:
                here, past = there, []  # the curvature is different so far away
                continue
        goal = np.clip(here.point + step, low, high)
        there, step = Penalties(goal, model.at(goal)), goal - here.point
        size = float(np.max(np.abs(step)))
        if there.value is not NOTHING:
            past = [*past[-2:], (step, here.value.gradient - there.value.gradient)]
        if there.value.log_evidence > here.value.log_evidence:
            # A step that was cut has the largest length up to rounding, which must not matter.
            full = size >= (1 - CUT) * longest
            here, longest = there, min(LONGEST, 2 * longest) if full else longest
        elif size <= SMALLEST_STEP:
            break
        else:
            longest = size / 3
    return here.value.there(here.point)


def _step(
    model: Linear,
    value: Value,
    slope: np.ndarray,
    past: Sequence[tuple[np.ndarray, np.ndarray]],
    longest: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return a step, and the groups that the rows determine so little that it may go to the end.

    The evidence may then rise slowly to that of a model without the group; one evaluation at the
    end shows whether it does.
    """
    share, curvature = _shape(model, value)
    step = np.linalg.solve(_with_secants(np.diag(curvature), past), slope)
    step = np.where(slope == 0, 0.0, step)
    # If the rows determine a group, its pull grows as α does: this is MacKay's step.
    step = np.where((step > 0) & (share > DETERMINED), np.log1p(np.maximum(step, 0.0)), step)
    little = (slope > curvature) & (share < HARDLY) & (step > 0)
    up = min(longest, STEP)  # peaks are narrower at large penalties
    return np.clip(np.where(little, up, step), -longest, up), little


def _shape(model: Linear, value: Value) -> tuple[np.ndarray, np.ndarray]:
    """Return γ/p, and an estimate of −∂²/∂(log α)² of the log evidence, of each group.

    It assumes that the rows determine all parameters of a group equally well; the estimate is then
    γ²(1/p − 1/N)/2 at a peak.
    """
    gamma = value.determined
    pull = gamma - 2 * value.gradient
    share = gamma / np.minimum(np.maximum(model.sizes, 1), model.weight)
    curvature = (gamma * (1 - share) + pull * (2 * share - 1) - pull**2 / model.weight) / 2
    return share, np.maximum(curvature, LEAST_CURVATURE * gamma * share + 1e-6)


def _with_secants(B: np.ndarray, past: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the curvature, updated to match the slopes along past steps (BFGS)."""
    for step, change in past:
        along = B @ step
        measured, predicted = float(step @ change), float(step @ along)
        if measured > 1e-3 * predicted > 0:
            B = B - np.outer(along, along) / predicted + np.outer(change, change) / measured
    return B
