"""The penalties of largest evidence, with as few evaluations as possible: each takes O(p³)."""

from collections.abc import Sequence
from math import inf, log

import numpy as np
from scipy.optimize import minimize

from quadlin.core.engine import one_blas_thread
from quadlin.solve.lowrank.linear_model import Evidence, LinearModel, lowest_penalty

HIGHEST = 12.0  # log(α/N) above which nothing but the penalty is left
STEEP = 3.0  # largest log(α/N) with a noticeable slope
FLAT = 0.1  # the search ends if the slope of the log evidence, in log α, is smaller
FAR = 1e10  # below any log evidence
TIE = 0.01  # of log evidence: starts that differ by less are equally good
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
    """Return the peak near some penalties."""
    best = here

    def falls(log_alpha: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best
        value = here if np.array_equal(log_alpha, here.log_alpha) else model.at(log_alpha)
        if not value.gradient.size:  # rounding is larger than the penalties
            return FAR, np.zeros_like(log_alpha)
        best = value if value.log_evidence > best.log_evidence else best
        return here.log_evidence - value.log_evidence, -value.gradient

    if here.gradient.size:
        bounds = [(low, high)] * len(here.log_alpha)
        settings = {"jac": True, "method": "L-BFGS-B", "bounds": bounds, "options": {"gtol": FLAT}}
        minimize(falls, here.log_alpha, **settings)
    return best
