"""The penalties of largest evidence, with as few evaluations as possible: each takes O(p³)."""

from collections.abc import Sequence
from math import inf, log

import numpy as np

from quadlin.core.engine import one_blas_thread
from quadlin.solve.lowrank.linear_model import Evidence, LinearModel, lowest_penalty

HIGHEST = 12.0  # log(α/N) above which nothing but the penalty is left
STEEP = 3.0  # largest log(α/N) with a noticeable slope
FLAT = 0.1  # the search ends if the slope of the log evidence, in log α, is smaller,
LITTLE = 0.05  # and if a step promises a smaller rise: a long step on a gentle slope may lead far
STEP, LONGEST, SHORTEST = 3.0, 12.0, 1e-3  # in log α: the first step, the longest, the shortest
TIE = 0.01  # of log evidence: starts that differ by less are equally good
LEAST_CURVATURE = 0.1  # of that of a peak
EVALUATIONS = 60
CERTAIN = 100.0  # log odds that leave no doubt: better penalties never made up for more


def maximised(
    model: LinearModel, starts: Sequence[Sequence[float]], rival: float = -inf
) -> Evidence:
    """Return the penalties of largest evidence, starting from the best of some log(α/N).

    If all starts are hopelessly behind the evidence of a rival, the best of them is returned.
    """
    shift = log(max(model.weight, 1.0))
    low, high = lowest_penalty(model) + shift, HIGHEST + shift
    points = [np.clip(np.asarray(start, float), low - shift, STEEP) + shift for start in starts]
    with one_blas_thread():  # for such small matrices, synchronising threads costs more
        # From the largest penalties to the smallest; a smaller one must be better by more than a
        # tie. With few rows the evidence of a model of the noise and of one without it may be
        # equal, and rounding must not decide between them.
        best = Evidence(-inf, points[0])
        for point in sorted(points, key=lambda point: -float(point.sum())):
            value = model.at(point, least=best.log_evidence + TIE)
            if value.log_evidence > best.log_evidence + TIE:
                best = value
        hopeless = best.log_evidence < rival - CERTAIN
        best = best if hopeless else climbed(model, best, low, high)
        # The evidence may rise slowly to that of a model without a group.
        vanishing = (best.log_alpha >= shift + STEEP) & (not hopeless)
        if np.any(vanishing & (best.log_alpha < high)) and best.log_evidence > -inf:
            end = model.at(np.where(vanishing, high, best.log_alpha))
            if end.log_evidence > best.log_evidence:
                best = climbed(model, end, low, high)
    if not best.determined.size:
        best = best._replace(determined=np.zeros_like(best.log_alpha))
    return best


def climbed(model: LinearModel, here: Evidence, low: float, high: float) -> Evidence:
    """Return the peak near some penalties, by quasi-Newton steps of limited length."""
    longest = STEP
    past: list[tuple[np.ndarray, np.ndarray]] = []  # steps, and how the slopes changed along them
    for _ in range(EVALUATIONS if here.gradient.size else 0):
        point, slope = here.log_alpha, here.gradient
        outward = ((point <= low) & (slope < 0)) | ((point >= high) & (slope > 0))
        slope = np.where(outward, 0.0, slope)
        step = np.linalg.solve(_with_secants(np.diag(curvature(model, here)), past), slope)
        step = np.where(outward, 0.0, np.clip(step, -longest, min(longest, STEP)))
        if np.max(np.abs(slope), initial=0.0) <= FLAT and float(slope @ step) <= LITTLE:
            break
        there = model.at(np.clip(point + step, low, high))
        step = there.log_alpha - point
        size = float(np.max(np.abs(step)))
        if there.gradient.size:
            past = [*past[-2:], (step, here.gradient - there.gradient)]
        if there.log_evidence > here.log_evidence:
            here, longest = there, min(LONGEST, 2 * longest)
        elif size <= SHORTEST:
            break
        else:
            longest = size / 3
    return here


def curvature(model: LinearModel, value: Evidence) -> np.ndarray:
    """Return an estimate of −∂²/∂(log α)² of the log evidence, of each group.

    It assumes that the rows determine all parameters of a group equally well; the estimate is then
    γ²(1/p − 1/N)/2 at a peak.
    """
    gamma = value.determined
    pull = gamma - 2 * value.gradient
    share = gamma / np.minimum(np.maximum(model.sizes, 1), model.weight)
    estimate = (gamma * (1 - share) + pull * (2 * share - 1) - pull**2 / model.weight) / 2
    return np.asarray(np.maximum(estimate, LEAST_CURVATURE * gamma * share + 1e-6))


def _with_secants(B: np.ndarray, past: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the curvature, updated to match the slopes along past steps (BFGS)."""
    for step, change in past:
        along = B @ step
        measured, predicted = float(step @ change), float(step @ along)
        if measured > 1e-3 * predicted > 0:
            B = B - np.outer(along, along) / predicted + np.outer(change, change) / measured
    return B
