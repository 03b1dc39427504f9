"""The mean of penalties over a hill of evidence, against integrals that are known."""

import numpy as np
import pytest

from quadlin.solve.choose.penalty_posterior import LEAST, MOST, posterior_of


def test_a_gaussian_hill_has_its_mean_and_its_integral():
    peak, width = np.array([-3.0, -1.0]), np.array([1.5, 1.2])

    def hill(log_alpha, point, source):
        return -float(np.sum(((log_alpha - peak) / width) ** 2)) / 2

    posterior = posterior_of(hill, [np.array([-4.0, 0.0])], 1.0, (-50.0, -50.0), 1.0, 200)
    # What is left beyond a depth of 6 is a share of e⁻⁶.
    assert posterior.log_alpha == pytest.approx(peak, abs=0.05)
    volume = 2 * np.pi * np.prod(width) / np.prod([MOST - low for low in LEAST])
    assert posterior.log_evidence == pytest.approx(np.log(volume), abs=0.05)


def test_a_plain_without_end_is_left_where_priors_become_too_wide():
    def plain(log_alpha, point, source):
        return -5.0 * max(float(log_alpha[0]) + 2, 0.0)  # flat below −2, as of separable rows

    wide = posterior_of(plain, [np.array([-3.0])], 1.0, (-50.0,), 1.0, 50).log_alpha[0]
    held = posterior_of(plain, [np.array([-3.0])], 1.0, (-2.0,), 1.0, 50).log_alpha[0]
    assert wide == pytest.approx((LEAST[0] - 2) / 2, abs=0.6)  # the middle of the plain
    # Half a unit of log evidence is lost per unit of log α: an exponential law of mean 2 below −2.
    assert held == pytest.approx(-4.0, abs=0.6)


def test_a_walk_that_stays_far_behind_ends_early():
    asked = []

    def low(log_alpha, point, source):
        asked.append(point)
        return -1000.0

    posterior_of(low, [np.array([-3.0, -2.0])], 1.0, (-50.0, -50.0), 1.0, 200, least=0.0)
    assert len(asked) == 5


def test_each_point_is_reached_from_a_neighbour_that_was_seen():
    seen = set()

    def hill(log_alpha, point, source):
        if source is not None:
            assert source in seen
            assert sum(abs(a - b) for a, b in zip(point, source, strict=True)) == 1
        assert point not in seen
        seen.add(point)
        return -float(np.sum(log_alpha**2))

    posterior_of(hill, [np.array([2.0, 2.0])], 1.0, (-50.0, -50.0), 1.0, 40)
    assert len(seen) > 5


def test_the_best_of_several_starts_is_taken():
    def hills(log_alpha, point, source):
        near, far = (abs(float(log_alpha[0]) - at) for at in (0.0, -9.0))
        return max(-(near**2), 5 - far**2)

    starts = [np.array([0.0]), np.array([-8.0])]
    assert posterior_of(hills, starts, 1.0, (-50.0,), 1.0, 8).log_alpha[0] < -8
    assert posterior_of(hills, starts[:1], 1.0, (-50.0,), 1.0, 5).log_alpha[0] > -1
