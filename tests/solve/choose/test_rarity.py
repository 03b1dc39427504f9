"""How much more rare columns shrink: by evidence, against a dense oracle and the truth."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.sparse import csr_array
from scipy.stats import multivariate_normal

from quadlin import (
    FactorizationMachineRegressor,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    load,
    save,
)
from quadlin.core.chunks import MemorySource
from quadlin.core.moments import Moments, survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.choose.rarity import PENALTIES, log_evidence

WORDS = 120


def texts(n, power, seed=0, width=WORDS, noise=1.0):
    """Counts of words by Zipf's law; coefficients are proportional to (standard deviation)^−power.

    With power 0 the coefficients of raw counts are alike, with 1 those of standardised columns.
    """
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, width + 1)
    X = rng.poisson(8 * share / share.sum(), (n, width)).astype(float)
    spread = X.std(axis=0)
    w = rng.standard_normal(width) * np.where(spread > 0, spread, 1) ** -power
    f = X @ w
    f = (f - f.mean()) / max(f.std(), 1e-12)
    return X, f, f + noise * rng.standard_normal(n)


def units_with(X, rarity):
    names = [f"x{j}" for j in range(X.shape[1])]
    make = UnitsMaker("auto", True, np.dtype(float), names, rarity=rarity)
    return make(Moments.of(X), Moments.of(np.arange(len(X), dtype=float)[:, None]))


@given(seed=st.integers(0, 50), wide=st.booleans(), rarity=st.sampled_from([None, 0.5, 1.0]))
def test_the_evidence_is_that_of_a_normal_law(seed, wide, rarity):
    rng = np.random.default_rng(seed)
    n, d = (12, 30) if wide else (25, 6)
    X = rng.poisson(0.6, (n, d)) + 0.1 * rng.standard_normal((n, d))
    y, units = rng.standard_normal(n), units_with(X, rarity)
    Z = units.standardised(X) / units.penalty_scale
    # Contrasts that are orthogonal to the constant, so that it needs no prior.
    contrasts = np.linalg.svd(np.ones((1, n)))[2][1:]
    values = []
    for alpha in PENALTIES * n:
        C = np.eye(n - 1) + contrasts @ Z @ Z.T @ contrasts.T / alpha
        e = contrasts @ y
        noise = e @ np.linalg.solve(C, e) / (n - 1)  # of largest likelihood
        values.append(multivariate_normal.logpdf(e, np.zeros(n - 1), noise * C))
    constant = (n - 1) / 2 * (np.log(2 * np.pi / (n - 1)) + 1)
    for rows in (X, csr_array(X)):
        assert_allclose(
            log_evidence(rows, y[:, None], np.ones(n), units), max(values) + constant, rtol=1e-8
        )


def test_weights_are_repetitions():
    X, _, y = texts(40, 0.5)
    weight = np.array([1.0, 3.0] * 20)
    often = np.repeat(np.arange(40), weight.astype(int))
    units = units_with(X, 0.5)
    once = log_evidence(X, y[:, None], weight, units)
    again = log_evidence(X[often], y[often, None], np.ones(len(often)), units)
    assert_allclose(once, again, rtol=1e-9)


# With 700 rows and this noise the evidence of the true power is 10 or more ahead, e^10 to 1.
@pytest.mark.parametrize(("power", "rarity"), [(0, 1.0), (1, None)])
def test_the_rows_tell_how_much_more_rare_columns_shrink(power, rarity):
    X, _, y = texts(700, power)
    assert SecondOrderRegressor(rank=0, pairs=None).fit(X, y).rarity_ == rarity
    assert SecondOrderRegressor(rank=0, pairs=None).fit(csr_array(X), y).rarity_ == rarity


def test_words_whose_counts_matter_alike_are_predicted_better():
    X, f, y = texts(2500, 0, width=400)
    train, test = slice(0, 500), slice(500, None)
    errors = [
        np.mean((m.fit(csr_array(X[train]), y[train]).predict(X[test]) - f[test]) ** 2)
        for m in (SecondOrderRegressor(), SecondOrderRegressor(rarity=None))
    ]
    # 0.34 and 0.51 of the variance; the means of 2,000 test rows are known to some 4%.
    assert errors[0] < 0.85 * errors[1]


def test_the_units_of_columns_do_not_matter():
    X, _, y = texts(300, 0)
    scale = 2.0 ** np.random.default_rng(1).integers(-8, 9, X.shape[1])
    first = SecondOrderRegressor(rank=0, pairs=None).fit(X, y)
    other = SecondOrderRegressor(rank=0, pairs=None).fit(X * scale, y)
    assert first.rarity_ == other.rarity_ == 1.0
    assert_allclose(other.predict(X * scale), first.predict(X), rtol=1e-6, atol=1e-8)


def test_rows_without_rare_columns_cost_nothing():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4))
    y = X[:, 0] + rng.standard_normal(300)
    chosen, plain = (SecondOrderRegressor(rarity=p).fit(X, y) for p in ("auto", None))
    assert chosen.rarity_ is None
    assert chosen.history_[-1].passes == plain.history_[-1].passes
    assert_allclose(chosen.coef_, plain.coef_, rtol=0)


def test_a_given_penalty_is_left_alone_and_the_chosen_ones_can_be_given():
    X, _, y = texts(400, 0)
    assert SecondOrderRegressor(rank=0, alpha=1.0).fit(X, y).rarity_ is None
    assert SecondOrderRegressor(loss="huber", rank=0).fit(X, y).rarity_ is None
    chosen = SecondOrderRegressor(rank=0, pairs=None).fit(X, y)
    again = SecondOrderRegressor(rank=0, alpha=chosen.alpha_, rarity=chosen.rarity_).fit(X, y)
    assert chosen.rarity_ == again.rarity_ == 1.0
    assert_allclose(again.predict(X), chosen.predict(X), rtol=1e-6, atol=1e-8)


def test_a_given_power_is_the_penalty_of_each_column():
    X, _, y = texts(400, 0)
    units = units_with(X, 0.7)
    model = SecondOrderRegressor(rank=0, alpha=30.0, rarity=0.7).fit(X, y)
    # Ridge regression on z/ρ, in closed form.
    Z = (X - X.mean(axis=0)) * units.scale
    ridge = np.linalg.solve(Z.T @ Z + 30 * np.diag(units.penalty_scale**2), Z.T @ (y - y.mean()))
    assert_allclose(model.coef_, ridge * units.scale, rtol=1e-6, atol=1e-9)
    phi = ((X - X.mean(axis=0)) ** 4).mean(axis=0) / X.var(axis=0) ** 2
    spread = 1 / np.sqrt(phi + 3)
    assert_allclose(units.penalty_scale / units.penalty_scale[0], (spread / spread[0]) ** -0.7)
    assert_allclose(np.mean(units.penalty_scale**-2.0), 1)


@pytest.mark.parametrize("rarity", [-0.1, 1.5, "much", True, np.nan])
def test_what_is_no_power_is_refused(rarity):
    with pytest.raises(ValueError, match="rarity"):
        SecondOrderRegressor(rarity=rarity).fit(np.eye(5), np.arange(5.0))


def test_labels_and_counts_choose_as_well():
    X, f, _ = texts(700, 0)
    rng = np.random.default_rng(3)
    labels = rng.uniform(size=700) < 1 / (1 + np.exp(-3 * f))
    assert SecondOrderClassifier(rank=0, pairs=None).fit(X, labels).rarity_ == 1.0
    counts = rng.poisson(np.exp(1 + 0.7 * f))
    assert SecondOrderRegressor(rank=0, loss="poisson").fit(X, counts).rarity_ == 1.0


def test_several_classes_share_the_choice():
    X, f, _ = texts(600, 0)
    g = texts(600, 0, seed=5)[1]
    labels = np.argmax(np.stack([2 * f, 2 * g, np.zeros(600)]), axis=0)
    model = SecondOrderClassifier(rank=0, pairs=None).fit(X, labels)
    assert {model.one_vs_rest(label).rarity_ for label in range(3)} == {1.0}


def test_a_stream_chooses_in_its_first_batch_and_keeps_it(tmp_path):
    X, _, y = texts(900, 0)
    stream = SecondOrderRegressor(rank=0, pairs=None, batch_size=600)
    stream.partial_fit(X[:600], y[:600])
    table = SecondOrderRegressor(rank=0, pairs=None).fit(X[:600], y[:600])
    assert stream.rarity_ == table.rarity_ == 1.0
    assert_allclose(stream.predict(X), table.predict(X), rtol=1e-6, atol=1e-8)
    save(stream, tmp_path / "m.safetensors")
    loaded = load(tmp_path / "m.safetensors")
    assert loaded.rarity_ == 1.0
    stream.partial_fit(X[600:], y[600:])
    loaded.partial_fit(X[600:], y[600:])
    assert stream.rarity_ == 1.0
    assert_allclose(loaded.predict(X), stream.predict(X), rtol=1e-9)
    with pytest.raises(ValueError, match="rarity changed"):
        stream.set_params(rarity=0.5).partial_fit(X, y)


def test_cross_validation_chooses_before_it_divides_the_rows():
    X, _, y = texts(400, 0)
    model = SecondOrderRegressorCV(ranks=[0]).fit(X, y)
    assert model.rarity_ == 1.0
    again = SecondOrderRegressor(rank=0, alpha=model.alpha_, rarity=1.0).fit(X, y)
    assert_allclose(model.predict(X), again.predict(X), rtol=1e-5, atol=1e-6)
    assert SecondOrderRegressorCV(ranks=[0], rarity=None).fit(X, y).rarity_ is None


def test_fields_keep_their_own_penalties():
    rng = np.random.default_rng(0)
    level = rng.integers(0, 40, 500)
    words = texts(500, 0)[0]
    X = np.hstack([np.eye(40)[level], words])
    names = [f"x{j}" for j in range(X.shape[1])]
    made = UnitsMaker("auto", True, np.dtype(float), names, (np.arange(40),), rarity=1.0)
    surveyed = Rows.of(MemorySource(X, rng.standard_normal(500))).reduce(survey)
    units, plain = (
        make(surveyed.features, surveyed.target) for make in (made, replace(made, rarity=None))
    )
    assert_allclose(units.penalty_scale[:40], plain.penalty_scale[:40], rtol=0)
    assert_allclose(np.mean(units.penalty_scale[40:] ** -2.0), 1)
    assert units.penalty_scale[40] < 0.5 < 1 < units.penalty_scale[-1]


def test_a_factorization_machine_of_words_chooses_as_well():
    X, _, y = texts(600, 0)
    assert FactorizationMachineRegressor(rank=1).fit(csr_array(X), y).rarity_ == 1.0


@pytest.mark.parametrize("few", [2, 10])
def test_a_few_rows_decide_nothing(few):
    X, _, y = texts(few, 0)
    assert SecondOrderRegressor().fit(X, y).rarity_ is None


def test_the_names_of_classes_do_not_matter():
    for seed in range(4):
        X, f, _ = texts(200, 0.5, seed)
        g, rng = texts(200, 0.5, seed + 100)[1], np.random.default_rng(seed)
        scores = np.stack([1.5 * f, 1.5 * g, 0 * f]) + rng.gumbel(size=(3, 200))
        labels = np.argmax(scores, axis=0)
        chosen = [
            SecondOrderClassifier(rank=0, pairs=None).fit(X, np.array(names)[labels])
            for names in ([0, 1, 2], [2, 0, 1], [1, 2, 0])
        ]
        assert len({model.one_vs_rest(0).rarity_ for model in chosen}) == 1


def test_rows_without_weight_decide_nothing():
    X, _, y = texts(5000, 0)
    weight = np.zeros(5000)
    weight[:500] = 1
    some = SecondOrderRegressor(rank=0, pairs=None).fit(X, y, sample_weight=weight)
    assert some.rarity_ == 1.0
    assert some.rarity_ == SecondOrderRegressor(rank=0, pairs=None).fit(X[:500], y[:500]).rarity_


@pytest.mark.parametrize("seed", range(3))
def test_weights_are_repetitions_also_with_many_empty_rows(seed):
    rng = np.random.default_rng(seed)
    X = (rng.uniform(size=(300, 80)) < np.geomspace(0.06, 0.002, 80)).astype(float)
    y = np.round(X @ rng.standard_normal(80) + rng.standard_normal(300), 3)
    weighted = SecondOrderRegressor(rank=0, pairs=None).fit(X, y, sample_weight=np.full(300, 4.0))
    tiled = SecondOrderRegressor(rank=0, pairs=None).fit(np.tile(X, (4, 1)), np.tile(y, 4))
    assert weighted.rarity_ == tiled.rarity_
    assert_allclose(weighted.alpha_, tiled.alpha_, rtol=1e-4)


def test_the_choice_of_a_stream_is_known_before_anything_else_is_asked_for():
    X, _, y = texts(600, 0)
    model = SecondOrderRegressor(rank=0, pairs=None, batch_size=5000).partial_fit(X, y)
    assert model.rarity_ == 1.0


@pytest.mark.parametrize("given", [Fraction(1, 2), np.float32(0.5), 1])
def test_any_number_is_a_power(given):
    X, _, y = texts(100, 0)
    assert isinstance(SecondOrderRegressor(rank=0, rarity=given).fit(X, y).rarity_, float)


def test_dense_and_sparse_wide_rows_have_the_same_evidence():
    X, _, y = texts(60, 0.5, width=9000)
    X[:, 0] += 5  # the mean matters
    units = units_with(X, 0.5)
    evidence = [log_evidence(Z, y[:, None], np.ones(60), units) for Z in (X, csr_array(X))]
    assert_allclose(*evidence, rtol=1e-9)


def test_common_flags_are_compared_as_well():
    # All of them are 1 in 4% to 50% of the rows, as after a limit of document frequencies.
    rng = np.random.default_rng(0)
    X = (rng.uniform(size=(400, 300)) < np.geomspace(0.5, 0.03, 300)).astype(float)
    y = X @ rng.standard_normal(300)
    y += 0.7 * y.std() * rng.standard_normal(400)
    assert SecondOrderRegressor(rank=0, pairs=None).fit(X, y).rarity_ is not None


def test_the_summary_names_the_choice():
    X, _, y = texts(400, 0)
    model = SecondOrderRegressor(rank=0, pairs=None).fit(X, y)
    assert "larger for rare columns (rarity 1)" in str(model.summary())
