"""The mean of penalties over a hill of evidence, against integrals that are known."""

import numpy as np
import pytest

from quadlin.solve.choose.penalty_posterior import LEAST, MOST, Lattice, posterior_of


def walked(hill, starts, step, most_points, least=-np.inf, widest=-50.0):
    """Return the posterior of a hill; fits of it are the places that were looked at."""

    def look(alpha, near):
        at = np.log(alpha)[: len(starts[0])]
        return at, hill(at, near)

    lattice = Lattice(1.0, (np.exp(widest), np.exp(widest)), step, most_points)
    return posterior_of(look, None, starts, lattice, least)


def test_a_gaussian_hill_has_its_mean_and_its_integral():
    peak, width = np.array([-3.0, -1.0]), np.array([1.5, 1.2])

    def hill(log_alpha, near):
        return -float(np.sum(((log_alpha - peak) / width) ** 2)) / 2

    posterior = walked(hill, [np.array([-4.0, 0.0])], 1.0, 200)
    # What is left beyond a depth of 6 is a share of e⁻⁶.
    assert posterior.log_alpha == pytest.approx(peak, abs=0.05)
    volume = 2 * np.pi * np.prod(width) / np.prod([MOST - low for low in LEAST])
    assert posterior.log_evidence == pytest.approx(np.log(volume), abs=0.05)


def test_a_plain_without_end_is_left_where_priors_become_too_wide():
    def plain(log_alpha, near):
        return -5.0 * max(float(log_alpha[0]) + 2, 0.0)  # flat below −2, as of separable rows

    wide = walked(plain, [np.array([-3.0])], 1.0, 50).log_alpha[0]
    held = walked(plain, [np.array([-3.0])], 1.0, 50, widest=-2.0).log_alpha[0]
    assert wide == pytest.approx((LEAST[0] - 2) / 2, abs=0.6)  # the middle of the plain
    # Half a unit of log evidence is lost per unit of log α: an exponential law of mean 2 below −2.
    assert held == pytest.approx(-4.0, abs=0.6)


def test_a_walk_that_stays_far_behind_ends_early():
    asked = []

    def low(log_alpha, near):
        asked.append(log_alpha)
        return -1000.0

    walked(low, [np.array([-3.0, -2.0])], 1.0, 200, least=0.0)
    assert len(asked) == 5


def test_each_point_is_reached_from_a_neighbour_that_was_seen():
    seen = []

    def hill(log_alpha, near):
        if near is not None:
            assert any(near is place for place in seen)
            assert np.sum(np.abs(log_alpha - near)) == pytest.approx(1)
        assert not any(np.allclose(log_alpha, place) for place in seen)
        seen.append(log_alpha)
        return -float(np.sum(log_alpha**2))

    walked(hill, [np.array([2.0, 2.0])], 1.0, 40)
    assert len(seen) > 5


def test_the_best_of_several_starts_is_taken():
    def hills(log_alpha, near):
        near, far = (abs(float(log_alpha[0]) - at) for at in (0.0, -9.0))
        return max(-(near**2), 5 - far**2)

    starts = [np.array([0.0]), np.array([-8.0])]
    assert walked(hills, starts, 1.0, 8).log_alpha[0] < -8
    assert walked(hills, starts[:1], 1.0, 5).log_alpha[0] > -1
