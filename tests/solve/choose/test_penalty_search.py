"""The peak of the evidence beside that of a general optimiser, and how many looks it takes."""

from math import log

import numpy as np
import pytest
from scipy.optimize import minimize

from quadlin.solve.choose.penalty_search import FAR, Remembered, far_behind, maximised
from quadlin.solve.lowrank.evidence import ColumnGram, RowKernel

SIZES = (5, 30)


def columns_and_target(n, sizes=SIZES, signal=(1.0, 0.3), seed=0):
    """Return centred columns in two groups, and a target with so much of each and noise 1."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, sum(sizes)))
    theta = np.repeat(signal, sizes) * rng.standard_normal(sum(sizes))
    y = A @ theta + rng.standard_normal(n)
    return A - A.mean(axis=0), y - y.mean()


def gram_of(A, y, sizes=SIZES):
    return ColumnGram(A.T @ A, A.T @ y, float(y @ y), len(y) - 1.0, sizes, np.ones(A.shape[1]))


def kernel_of(A, y, sizes=SIZES):
    parts = A[:, : sizes[0]], A[:, sizes[0] :]
    shares = np.full(len(y), 1 / len(y))
    return RowKernel([P @ P.T for P in parts], y, shares, len(y) - 1.0, sizes)


class Counted:
    """A model that counts how often it was looked at."""

    def __init__(self, model):
        self.model, self.looks = model, 0
        self.weight, self.sizes = model.weight, model.sizes

    def at(self, log_alpha, gradient=True, least=-np.inf):
        self.looks += 1
        return self.model.at(log_alpha, gradient, least)


@pytest.mark.parametrize("form", [gram_of, kernel_of])
@pytest.mark.parametrize("start", [(-6.0, -6.0), (0.0, 2.0), (2.0, -4.0)])
def test_the_peak_is_that_of_a_general_optimiser(form, start):
    model = form(*columns_and_target(60))
    shift = log(model.weight)

    def lost(x):
        return -model.at(x + shift, gradient=False).log_evidence

    truth = minimize(lost, (-2.0, -1.0), method="Nelder-Mead", options={"xatol": 1e-6})
    counted = Counted(model)
    best = maximised(counted, [start])
    # A slope of 0.1 in log α, about a peak whose curvature is some γ²/2p, leaves a hundredth.
    assert best.log_evidence == pytest.approx(-truth.fun, abs=0.02)
    assert best.log_alpha - shift == pytest.approx(truth.x, abs=0.3)
    assert counted.looks <= 10


@pytest.mark.parametrize("start", [(0.0, -3.0), (2.0, 0.0), (1.5, 2.0)])
def test_a_gentle_slope_is_followed_where_it_leads_far(start):
    """Six rows for 15 parameters: slopes below .1, and a peak several units of log α away."""
    sizes = (5, 10)
    model = gram_of(*columns_and_target(6, sizes, (0.3, 0.3)), sizes)
    shift = log(model.weight)
    assert np.abs(model.at(np.asarray(start) + shift).gradient).max() < 0.1
    grid = [np.array([a, b]) + shift for a in range(-6, 6) for b in range(-6, 6)]
    top = max(model.at(point, gradient=False).log_evidence for point in grid)
    counted = Counted(model)
    # These starts are .25 to .57 below the top, and a step that promises less than .05 is not gone.
    assert maximised(counted, [start]).log_evidence > top - 0.1
    assert counted.looks <= 10


def test_of_penalties_that_tie_the_largest_is_taken():
    """Three rows of five features are fitted exactly: all small penalties have one evidence."""
    model = gram_of(*columns_and_target(3, (5,), (1.0,), seed=11), (5,))
    shift, starts = log(model.weight), [(a,) for a in (-25.0, -9.0, -5.0, 2.0)]
    values = [model.at(np.array(s) + shift, gradient=False).log_evidence for s in starts]
    assert np.ptp(values[:3]) < 0.01
    assert values[3] < values[2] - 0.01
    for order in (starts, starts[::-1]):
        assert maximised(model, order).log_alpha[0] >= shift - 5


@pytest.mark.parametrize("form", [gram_of, kernel_of])
def test_a_group_that_says_nothing_is_left_out_after_a_few_looks(form):
    """The evidence rises for ever, to that of the other group alone."""
    A, y = columns_and_target(400, signal=(1.0, 0.0))
    y = y - 0.8 * A[:, 5:] @ np.linalg.lstsq(A, y)[0][5:]  # less than noise would say
    counted = Counted(form(A, y))
    best = maximised(counted, [(-3.0, 0.0)])
    alone = maximised(gram_of(A[:, :5], y, (5,)), [(-3.0,)])
    assert best.log_alpha[1] > log(399) + 3
    assert best.log_evidence == pytest.approx(alone.log_evidence, abs=0.1)
    assert counted.looks <= 8


def test_without_noise_the_penalties_vanish_by_steps_that_grow():
    A, y = columns_and_target(80)
    theta = np.linalg.lstsq(A, y)[0]
    counted = Counted(gram_of(A, A @ theta))
    best = maximised(counted, [(-3.0, -3.0)])
    assert (best.log_alpha - log(79) < -15).all()
    assert counted.looks <= 15


def test_starts_that_are_the_same_are_looked_at_once():
    model = Counted(gram_of(*columns_and_target(60)))
    once = maximised(model, [(-2.0, -1.0)])
    looks, model.looks = model.looks, 0
    twice = maximised(model, [(-2.0, -1.0), (-2.0, -1.05)])
    assert (twice.log_evidence, model.looks) == (once.log_evidence, looks)


@pytest.mark.parametrize("form", [gram_of, kernel_of])
def test_penalties_far_behind_are_told_by_half_a_look(form):
    model = form(*columns_and_target(60))
    at = np.array([log(59.0), log(59.0)])
    value = model.at(at)
    assert far_behind(model, at, value.log_evidence) is None
    near = far_behind(model, at, value.log_evidence + FAR - 1)  # by its slope
    far = far_behind(model, at, value.log_evidence + FAR + 1)  # without it
    assert near.log_evidence == far.log_evidence == value.log_evidence
    assert near.determined.any()
    assert not far.determined.any()


def test_what_is_remembered_is_not_looked_at_again():
    counted = Counted(gram_of(*columns_and_target(60)))
    model, at = Remembered(counted), np.array([3.0, 2.0])
    first = model.at(at)
    assert model.at(at) is first
    assert counted.looks == 1
