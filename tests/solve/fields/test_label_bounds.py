"""What is expected of normal log-odds, against integrals and finite differences."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm

from quadlin.solve.fields.label_bounds import LabelTargets, by_expectation, by_tangents, calibration

M, V = (a.ravel() for a in np.meshgrid([-4.0, -1.0, 0.0, 0.5, 6.0], [1e-4, 0.3, 2.0, 9.0]))
POWERS = np.linspace(0.5, 2.0, len(M))
PULL = POWERS * np.resize([0.5, -0.5, 0.1], len(M))


def expected(function, m, v):
    return quad(lambda f: function(f) * norm.pdf(f, m, v**0.5), m - 9 * v**0.5, m + 9 * v**0.5)[0]


def test_expectations_are_integrals_and_tangents_lie_below():
    exact = [
        pull * m + power * (m / 2 - expected(lambda f: np.logaddexp(0, f), m, v))
        for power, pull, m, v in zip(POWERS, PULL, M, V, strict=True)
    ]
    one = [[np.array([a]) for a in row] for row in zip(POWERS, PULL, M, V, strict=True)]
    by_nodes = np.array([by_expectation(*row).bound for row in one])
    # Nine nodes: where the standard deviation is three, they are three apart.
    assert by_nodes == pytest.approx(np.array(exact), abs=0.02)
    assert by_nodes[V < 3] == pytest.approx(np.array(exact)[V < 3], abs=1e-3)
    assert all(by_tangents(*row).bound < e + 0.02 for row, e in zip(one, exact, strict=True))


@pytest.mark.parametrize("bound", [by_expectation, by_tangents])
def test_targets_have_the_slopes_of_the_bound(bound):
    """In m it is ω(z − m), in v it is −ω/2, so that updates of levels are steps up."""
    omega, pull, _ = bound(POWERS, PULL, M, V)
    for j in range(len(M)):
        at = np.eye(len(M))[j]
        for slope, step in ((pull - omega * M, (1e-5 * at, 0.0)), (-omega / 2, (0.0, 1e-6 * at))):
            up, down = (
                bound(POWERS, PULL, M + s * step[0], V + s * step[1]).bound for s in (1, -1)
            )
            difference = (up - down) / (2 * np.sum(step[0] + step[1]))
            assert difference == pytest.approx(slope[j], rel=0.06, abs=1e-4)


def test_damped_targets_lie_between():
    new, last = (
        LabelTargets(np.full(2, w), np.full(2, p), 0.0) for w, p in ((1.0, 2.0), (3.0, 8.0))
    )
    assert new.damped(last, 0.0) is new
    assert new.damped(last, 0.5).omega == pytest.approx([2.0, 2.0])
    assert new.damped(last, 0.5).pull == pytest.approx([5.0, 5.0])


@pytest.mark.parametrize("v", [0.0, 1.0, 6.0])
def test_calibrated_log_odds_have_mean_probabilities(v):
    m = np.random.default_rng(0).normal(-0.5, 1.5, 60)
    shift, slope = calibration(m, np.full(60, v))
    mean = [expit(f) if v == 0 else expected(expit, f, v) for f in m]
    assert expit(shift + slope * m) == pytest.approx(np.array(mean), abs=0.02)
    assert slope == pytest.approx((1 + np.pi * v / 8) ** -0.5, rel=0.05)


def test_log_odds_that_are_all_the_same_have_one_mean_probability():
    shift, slope = calibration(np.full(50, 2.0), np.full(50, 4.0))
    assert slope == 1
    assert expit(shift + 2) == pytest.approx(expected(expit, 2.0, 4.0), abs=0.01)
