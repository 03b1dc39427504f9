"""The claims of the paper as measurements, each at its smallest."""

import warnings
from functools import cache

import numpy as np
import pandas as pd
import pytest

from quadlin.paper.iterations import solve_systems
from quadlin.paper.problems import law, sample
from quadlin.paper.studies import power, powers, rates, studies


@cache
def frame(name):
    """Return the rows of a study at its smallest size."""
    study = studies()[name]
    with warnings.catch_warnings():  # fits with too few rows extrapolate far
        warnings.simplefilter("ignore", UserWarning)
        tasks = study.tasks("tiny")
        return pd.DataFrame([dict(t) | row for t in tasks for row in study.run(t, "cpu")])


def test_fresh_rows_contract_as_one_over_the_root_of_n():
    rows = frame("rate")
    for name in ("gaussian", "truncated:0"):
        assert -0.7 < rates.rate_of(rows, name, "plain").exponent < -0.3
    # Where the diagonal is imputed more rows do not help the plain step.
    assert rates.rate_of(rows, "bernoulli:0.1", "plain").exponent > -0.3


def test_centring_takes_a_power_of_k_from_the_deviation():
    exponents = rates.operator_exponents(frame("operator"))
    for name in rates.INVERTIBLE:
        printed, centred = (exponents[part, name, "positive"] for part in ("printed", "centred"))
        assert -0.75 < printed["n"].exponent < -0.25
        assert centred["k"].exponent < printed["k"].exponent


def test_a_small_tau_hurts_the_plain_step_alone():
    rows = frame("tau")
    rows = rows[(rows["tau"] == rows["tau"].min()) & (rows["family"] == "near")]
    rows = rows.set_index("part")["value"]
    assert rows["plain risk"] > 10
    assert rows["guarded risk"] < 3


@pytest.mark.parametrize(
    "name",
    [
        *("gaussian", "truncated:0", "truncated:-1", "bernoulli:0.1", "near:0.1", "zeros:0.1"),
        *("sparse:0.3", "uniform", "signs", "exponential", "ar1:0.9"),
    ],
)
def test_the_moments_of_a_law_are_those_of_its_draws(name):
    features = law(name)
    z = features.draw(np.random.default_rng(0), 200_000, 2)
    for power_of_z, moment in ((1, 0.0), (2, 1.0), (3, features.kappa), (4, features.phi)):
        values = z[:, 1] ** power_of_z
        assert abs(values.mean() - moment) < 5 * values.std() / len(values) ** 0.5 + 1e-9
    if name.startswith(("near", "zeros")):
        assert features.tau == pytest.approx(0.1)


def test_one_over_tau_is_not_general():
    """With values ±1 and, rarely, 0 the error of G·√n grows faster than 1/τ (Lemma 7)."""
    errors, taus = [], (0.2, 0.1, 0.05)
    for tau in taus:
        z = law(f"zeros:{tau}").draw(np.random.default_rng(0), 20_000, 200)
        z = (z - z.mean(0)) / z.std(0)
        G = solve_systems((z**3).mean(0), (z**4).mean(0))[0]
        errors.append(np.abs(G[1] - (1 - 2 / tau)).max())
    assert power(taus, errors).exponent < -1.3


def test_powers_are_found_with_their_uncertainty():
    rng = np.random.default_rng(0)
    x, y = rng.uniform(1, 10, 200), rng.uniform(1, 10, 200)
    values = 3 * x**-0.5 * y**2 * np.exp(0.1 * rng.standard_normal(200))
    exponents = powers({"x": x, "y": y}, values)
    assert exponents["x"].near(-0.5)
    assert exponents["y"].near(2.0)
    assert exponents["x"].error < 0.02
    assert not np.isfinite(power([1, 1], [2, 3]).exponent)


def test_rows_are_those_of_section_5():
    common = {"n_test": 1, "standardised": False, "dtype": np.float32, "b": 0.0}
    rows = sample("truncated:0.1", 20_000, 5, 2, 0, **common)
    assert rows.X.dtype == np.float32
    assert rows.X.max() == np.float32(0.1)
    assert abs(float(np.mean(rows.X > 0.0999)) - 0.460) < 0.01  # P(x > 0.1)
    rows = sample("bernoulli:0.1", 20_000, 5, 2, 0, **common)
    assert set(np.unique(rows.X)) == {0, 1}
    assert abs(rows.X.mean() - 0.1) < 0.01
    alone = rows.X.sum(axis=1) == 1  # a single one: no product, so y is that feature's w
    assert len(np.unique(rows.y[alone].round(5))) == 5


def test_a_table_is_the_same_with_noise_and_without():
    clean, noisy = (sample("gaussian", 30_000, 3, 1, 0, noise=e) for e in (0.0, 1.0))
    assert np.array_equal(clean.X, noisy.X)
    assert abs(np.std(noisy.y - clean.y) - 1) < 0.02


def test_a_tail_has_its_norm_and_no_part_in_the_leading_directions():
    truth = sample("gaussian", 10, 8, 2, 0, tail=0.1).truth
    assert np.isclose(np.linalg.norm(truth.tail, 2), 0.1)
    assert np.allclose(truth.tail @ truth.Q, 0)
