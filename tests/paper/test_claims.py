"""The claims of the paper as measurements, each at its smallest."""

import warnings
from functools import cache

import numpy as np
import pandas as pd
import pytest

from quadlin.paper.laws import law
from quadlin.paper.problems import tables
from quadlin.paper.studies import rates, studies
from quadlin.paper.study import power, powers


@cache
def frame(name):
    """Return the rows of a study at its smallest size."""
    study = studies()[name]
    with warnings.catch_warnings():  # fits with too few rows extrapolate far
        warnings.simplefilter("ignore", UserWarning)
        tasks = study.tasks("tiny")
        return pd.DataFrame([dict(t) | row for t in tasks for row in study.run(t, "cpu")])


def test_fresh_rows_contract_as_one_over_the_root_of_n():
    contractions = rates.contractions(frame("rate"))

    def exponent(name, step):
        fresh = [e for e in contractions if e["rows"] == "fresh"]
        chosen = [e for e in fresh if (e["law"], e["step"]) == (name, step)]
        return power([e["n"] for e in chosen], [e["delta"] for e in chosen]).exponent

    for name in ("gaussian", "truncated"):
        assert -0.7 < exponent(name, "plain") < -0.3
    # Where the diagonal is imputed more rows do not help the plain step; ours does not impute.
    assert exponent("bernoulli", "plain") > -0.3
    assert -0.7 < exponent("bernoulli", "guarded") < -0.3


def test_centring_takes_a_power_of_k_from_the_deviation():
    exponents = rates.rip_exponents(frame("rip"))
    for name in rates.LAWS:
        printed, centred = (exponents[part, name, "positive"] for part in ("operator", "centred"))
        assert -0.75 < printed["n"].exponent < -0.25
        assert centred["k"].exponent < printed["k"].exponent


def test_a_small_tau_hurts_the_plain_step_alone():
    rows = frame("tau")
    rows = rows[rows["tau"] == rows["tau"].min()].set_index("part")["value"]
    assert rows["plain risk"] > 10
    assert rows["guarded risk"] < 3
    assert rows["guarded nmse"] < 1e-8


def test_signs_are_recovered_and_a_positive_model_fails():
    rows = frame("signed").query("sign == 'signed'").sort_values("t")
    signed = rows.groupby(["method", "law"]).last().reset_index("law")
    assert (signed.loc[["guarded", "polished"], "nmse"] < 1e-10).all()
    assert (signed.loc[["polished"], "negative"] == 1).all()
    assert (signed.loc[["psd"], "nmse"] > 0.05).all()


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        *(("gaussian", None), ("truncated", 0.0), ("truncated", -1.0), ("bernoulli", 0.1)),
        *(("near", 0.1), ("sparse", 0.3), ("uniform", None), ("signs", None)),
    ],
)
def test_the_moments_of_a_law_are_those_of_its_draws(name, parameter):
    features = law(name, parameter)
    z = features.draw(np.random.default_rng(0), 200_000, 2)
    for power_of_z, moment in ((1, 0.0), (2, 1.0), (3, features.kappa), (4, features.phi)):
        values = (z**power_of_z).ravel()
        assert abs(values.mean() - moment) < 5 * values.std() / len(values) ** 0.5 + 1e-9
    if name == "near":
        assert features.tau == pytest.approx(parameter)


def test_powers_are_found_with_their_uncertainty():
    rng = np.random.default_rng(0)
    x, y = rng.uniform(1, 10, 200), rng.uniform(1, 10, 200)
    values = 3 * x**-0.5 * y**2 * np.exp(0.1 * rng.standard_normal(200))
    exponents = powers({"x": x, "y": y}, values)
    assert exponents["x"].near(-0.5, 0.0)
    assert exponents["y"].near(2.0, 0.0)
    assert exponents["x"].error < 0.02
    assert not np.isfinite(power([1, 1], [2, 3]).exponent)


def test_rows_are_those_of_section_5():
    (rows,) = tables(law("truncated", 0.1), (20_000,), 5, 2, seed=0)
    assert rows.X.dtype == np.float32
    assert rows.X.max() == np.float32(0.1)
    assert abs(float(np.mean(rows.X > 0.0999)) - 0.460) < 0.01  # P(x > 0.1)
    (rows,) = tables(law("bernoulli", 0.1), (20_000,), 5, 2, seed=0)
    assert set(np.unique(rows.X)) == {0, 1}
    assert abs(rows.X.mean() - 0.1) < 0.01
    alone = rows.X.sum(axis=1) == 1  # a single one: no product, so y is that feature's w
    assert len(np.unique(rows.f[alone].round(5))) == 5
