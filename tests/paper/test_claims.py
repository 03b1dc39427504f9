"""The claims of the paper as measurements, each at its smallest."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from quadlin.paper.laws import law
from quadlin.paper.problems import sample
from quadlin.paper.studies import (
    CLAIMS,
    identifiability,
    masks,
    rate,
    rip,
    samples,
    skewness,
    studies,
    tau,
)
from quadlin.paper.study import verdict_of
from quadlin.paper.trend import power, powers
from quadlin.stream import row_sample

MEASURED = ("seconds", "bytes")  # columns that a second run need not repeat


def study(name):
    return studies()[name]


def last(rows, *keys):
    return rows.sort_values("t").groupby(list(keys)).last()


@pytest.mark.parametrize("name", CLAIMS)
def test_every_task_yields_finite_rows(name, frame):
    rows = frame(name)
    assert len(rows) >= len(study(name).tasks("tiny"))
    numbers = rows.select_dtypes("number")
    assert np.isfinite(numbers.to_numpy()).all()


@pytest.mark.parametrize("name", CLAIMS)
def test_tasks_are_plain_and_different(name):
    for size in ("tiny", "quick", "full"):
        tasks = [tuple(sorted(task.items())) for task in study(name).tasks(size)]
        assert len(set(tasks)) == len(tasks)
        assert all("seed" in dict(task) for task in tasks)
        assert all(isinstance(v, (int, float, str)) for task in tasks for _, v in task)


@pytest.mark.parametrize("name", CLAIMS)
def test_the_same_task_gives_the_same_rows(name, frame):
    claim = study(name)
    task = claim.tasks("tiny")[-1]
    rows = frame(name)
    for key, value in task.items():
        rows = rows[rows[key] == value]
    again = pd.DataFrame([dict(task) | row for row in claim.run(task, "cpu")])
    kept = [column for column in again if not column.startswith(MEASURED)]
    pd.testing.assert_frame_equal(rows[kept].reset_index(drop=True), again[kept])


@pytest.mark.parametrize("name", CLAIMS)
def test_the_verdict_and_the_pictures_come_from_the_rows(name, frame):
    claim, rows = study(name), frame(name)
    verdict = claim.verdict(rows)
    assert verdict.holds in ("yes", "no", "in part")
    assert any(character.isdigit() for character in verdict.measured)
    assert verdict.measured.endswith(".")  # a sentence, not a list of numbers
    assert len(verdict.words) > 50
    pictures = claim.figures(rows)
    assert pictures
    for picture in pictures.values():
        picture.plot()
        assert picture.figure_ is not None
        plt.close(picture.figure_)


def test_fresh_rows_contract_as_one_over_the_root_of_n(frame):
    contractions = rate.contractions(frame("rate"))

    def exponent(name, step):
        chosen = [
            e for e in contractions if (e["law"], e["step"], e["rows"]) == (name, step, "fresh")
        ]
        return power([e["n"] for e in chosen], [e["delta"] for e in chosen]).exponent

    for name in ("gaussian", "truncated"):
        assert -0.7 < exponent(name, "plain") < -0.3
    # Where the diagonal is imputed more rows do not help the plain step; ours does not impute.
    assert exponent("bernoulli", "plain") > -0.3
    assert -0.7 < exponent("bernoulli", "guarded") < -0.3


def test_the_polished_fit_needs_the_fewest_rows(frame):
    rows = frame("samples")
    n = rows[rows["law"] == "gaussian"].groupby("method")["n50"].median()
    assert n["polished"] <= n["guarded"] < n["plain"]
    for (name, _, _), fit in samples.exponents(rows).items():
        if name == "gaussian":
            assert fit["k"].exponent < 2


def test_centring_takes_a_power_of_k_from_the_deviation(frame):
    exponents = rip.exponents(frame("rip"))
    for name in rip.LAWS:
        printed, centred = (exponents[part, name, "positive"] for part in ("operator", "centred"))
        assert -0.75 < printed["n"].exponent < -0.25
        assert centred["k"].exponent < printed["k"].exponent


def test_the_statistics_concentrate(frame):
    verdict = study("concentration").verdict(frame("concentration"))
    assert verdict.holds == "yes"


def test_a_small_tau_hurts_the_plain_step_alone(frame):
    rows = frame("tau")
    rows = rows[rows["tau"] == rows["tau"].min()].set_index("part")["value"]
    assert rows["plain risk"] > 10
    assert rows["guarded risk"] < 3
    assert rows["guarded nmse"] < tau.EXACT
    assert rows["polished nmse"] < tau.EXACT


def test_two_valued_features_hide_the_diagonal_and_nothing_else(frame):
    rows = frame("identifiability")
    two_valued = rows[rows["case"] != "Gaussian"].groupby("quantity")["value"]
    for quantity in ("prediction", "off_diagonal", "folded", "twin_prediction"):
        assert two_valued.max()[quantity] < identifiability.EXACT
    assert two_valued.min()["diagonal"] > 0.9
    assert two_valued.min()["hidden"] == two_valued.min()["refused"] == 1
    control = rows[rows["case"] == "Gaussian"].groupby("quantity")["value"].max()
    assert control["diagonal"] < identifiability.EXACT
    assert control["hidden"] == control["refused"] == 0


def test_the_printed_gradient_descent_is_the_worst_at_level_0(frame):
    ends = skewness.ends(frame("skewness"))
    zero = ends[ends["a"] == 0].set_index("method")["last"]
    assert zero["gd_printed"] > 10 * zero.drop("gd_printed").max()
    mild = ends[ends["a"] == 1].set_index("method")["last"]
    assert mild["gd_printed"] < 0.1 * zero["gd_printed"]


def test_an_uneven_matrix_and_heavy_tails_do_not_stop_the_authors_iteration(frame):
    rows = frame("constants")
    assert (rows[rows["step"] == "plain"]["delta"] < 1).all()


def test_the_tail_of_a_nearly_low_rank_matrix_costs_what_it_must(frame):
    rows = frame("nearly_low_rank")
    # The risk is a mean over 2000 rows of a variable with heavy tails: a tenth either way.
    assert (rows["risk"] / rows["level"]).between(0.8, 1.3).all()


def test_masks_of_two_values_are_enough_to_sense_a_matrix(frame):
    rows = frame("masks")
    assert rows[rows["mask"] != "0/1, rare"]["nmse"].max() < masks.EXACT


def test_an_asymmetric_matrix_is_sensed_by_its_two_sides_together(frame):
    rows = frame("asymmetric").set_index("method")["error"]
    assert rows["polished"] < 1e-8
    assert rows["guarded"] < 1e-8
    assert rows["stream"] < 1e-6


def test_positivity_is_redundant(frame):
    rows = frame("self_interactions").groupby(["method", "k"])["n50"].median()
    for k in (1, 3):
        assert rows["polished", k] <= 1.5 * rows["psd", k]  # each is known to a factor of 1.4


def test_the_operator_deviates_by_a_constant_where_the_theorem_applies(frame):
    rows = frame("dimension")
    assert rows[rows["d"] >= rows["needed"]]["constant"].max() < 10


def test_a_stream_holds_less_than_a_table_and_no_more_for_more_rows(frame):
    rows = frame("memory")
    longer = rows[rows["batches"] == rows["batches"].max()].iloc[0]
    same = rows[(rows["d"] == longer["d"]) & (rows["k"] == longer["k"])].iloc[0]
    assert longer["bytes_stream"] < 1.3 * same["bytes_stream"]
    assert (rows["bytes_strict"] < rows["bytes_first"]).all()
    # A stream with a first batch also keeps a sample of all rows, which is large beside tiny ones.
    assert (rows["bytes_stream"] < rows["bytes_first"] + 8 * row_sample.NUMBERS).all()


def test_noise_sets_the_floor(frame):
    ends = last(frame("noise"), "method", "noise", "law", "n").reset_index()
    clean = ends[(ends["noise"] == 0) & (ends["method"] != "plain")]
    assert (clean["nmse"] < 1e-12).all()
    noisy = ends[(ends["noise"] == 1) & (ends["method"] == "polished")]
    assert ((noisy["risk"] / noisy["level"]).between(0.2, 3)).all()


def test_signs_are_recovered_and_a_positive_model_fails(frame):
    ends = last(frame("signed"), "method", "sign", "law").reset_index()
    signed = ends[ends["sign"] == "signed"].set_index("method")
    assert (signed.loc[["guarded", "polished"], "nmse"] < 1e-10).all()
    assert (signed.loc[["polished"], "negative"] == 1).all()
    assert (signed.loc[["psd"], "nmse"] > 0.05).all()


def test_three_rows_a_parameter_recover(frame):
    rows = frame("transition")
    many = rows[rows["ratio"] == rows["ratio"].max()].groupby("method")["recovered"].mean()
    assert many["polished"] == many["guarded"] == 1


def test_the_risk_is_near_the_level(frame):
    assert frame("risk")["ratio"].between(0.2, 4).all()


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        ("gaussian", None),
        ("truncated", 0.0),
        ("truncated", -1.0),
        ("bernoulli", 0.1),
        ("near", 0.1),
        ("sparse", 0.3),
        ("uniform", None),
        ("signs", None),
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
    assert verdict_of({"a": True, "b": False}) == "in part"


def test_a_sample_knows_its_truth():
    data = sample("bernoulli", 100, 8, 2, 0, noise=1.0)
    assert np.allclose(np.diag(data.truth.M), 0)
    assert abs(np.std(data.y - data.truth(data.X)) - 1) < 0.3
