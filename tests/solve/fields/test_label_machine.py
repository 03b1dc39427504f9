"""Log-odds by the posterior of labels, against integrals, Metropolis draws and known tastes."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.sparse import csr_matrix
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from field_problems import table
from quadlin import FactorizationMachineClassifier, load, save
from quadlin.solve.fields.field_rows import default_signs, field_rows
from quadlin.solve.fields.field_sums import joined, row_moments, statistics
from quadlin.solve.fields.gibbs import mean_log_odds
from quadlin.solve.fields.label_machine import LabelMachine
from quadlin.solve.fields.level_posterior import MEAN_WEIGHT, RATE, SHAPE
from quadlin.solve.fields.polya_gamma import moments, polya_gamma


@pytest.mark.parametrize("f", [0.0, 0.3, 1.5, -3.0, 9.0])
@pytest.mark.parametrize("weight", [1.0, 0.4, 3.0])
def test_polya_gamma_numbers_have_their_laplace_transform(f, weight):
    """E exp(−tω) = (cosh(f/2)/cosh √(f²/4 + t/2))ʷ."""
    n = 40_000
    omega = polya_gamma(np.full(n, f), np.full(n, weight), np.random.default_rng(0))
    for t in (0.5, 4.0):
        exact = (np.cosh(f / 2) / np.cosh(np.sqrt(f**2 / 4 + t / 2))) ** weight
        values = np.exp(-t * omega)
        # Four standard errors; a gamma distribution is not quite that of other weights than one.
        assert abs(values.mean() - exact) < 4 * values.std() / n**0.5 + 0.01 * (weight != 1)
    mean, variance = (weight * float(m[0]) for m in moments(np.array([abs(f)])))
    assert omega.mean() == pytest.approx(mean, abs=4 * np.sqrt(variance / n))


@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_a_log_odds_with_a_normal_prior_has_the_posterior_of_an_integral(weight):
    y, rng = np.array([1.0] * 8 + [0.0]), np.random.default_rng(1)

    def density(f, power=0):
        log_likelihood = weight * np.sum(-np.logaddexp(0, -f * (2 * y - 1)))
        return f**power * np.exp(log_likelihood - f**2 / 8)  # a prior of variance 4

    norm, first, second = (quad(density, -30, 30, args=(power,))[0] for power in range(3))
    f, draws = 0.0, []
    for _ in range(20_000):
        omega = polya_gamma(np.full(len(y), f), np.full(len(y), weight), rng)
        precision = omega.sum() + 1 / 4
        f = weight * np.sum(y - 0.5) / precision + rng.standard_normal() / precision**0.5
        draws.append(f)
    sd = np.sqrt(second / norm - (first / norm) ** 2)
    # Consecutive draws are correlated: some 3,000 of them are independent.
    assert np.mean(draws) == pytest.approx(first / norm, abs=4 * sd / 3000**0.5)
    assert np.std(draws) == pytest.approx(sd, rel=0.06)


def machine_of(kind, seed, rank, exact=False):
    """Return a machine of labels of about a third ones, some rows of which have the same x."""
    X, y, fields, weight = table(kind, seed)
    rows = field_rows(csr_matrix(X), y > 0.5, fields, weight)
    machine = LabelMachine(rows, default_signs(rows, rank), np.random.default_rng(seed))
    machine.exact = exact
    return machine, rows


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("kind", ["two", "side", "more"])
def test_merged_rows_have_the_sums_of_all_rows(kind, sampled):
    machine, rows = machine_of(kind, 0, 2, exact=True)
    if sampled:
        machine.start_sampling()
    for _ in range(3):
        machine.sweep()
    labels = machine.labels
    omega, z = machine.rows.weight, machine.rows.y
    assert len(omega) < len(rows.y)
    share = rows.weight / labels.powers[labels.of_row]
    y = rows.weight * (np.round(rows.shift + rows.scale * rows.y) - 0.5)
    assert np.bincount(labels.of_row, y) == pytest.approx(labels.pull)
    each = replace(rows, y=z[labels.of_row], weight=share * omega[labels.of_row], pairs=None)
    for e in range(len(rows.entities)):
        args = (e, machine.state, machine.signs, machine.b)
        merged, alone = statistics(machine.rows, *args), statistics(each, *args)
        for fast, slow in zip(merged, alone, strict=True):
            assert np.asarray(fast) == pytest.approx(np.asarray(slow), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("kind", ["two", "side", "near", "more"])
def test_moments_of_rows_are_those_of_draws_of_their_levels(kind):
    machine, _ = machine_of(kind, 0, 3)
    machine.sweep()
    rows, signs, rng, S = machine.rows, machine.signs, np.random.default_rng(1), 40_000
    mean, variance = row_moments(rows, machine.state, signs, 0.4)
    by_rows = row_moments(replace(rows, pairs=None), machine.state, signs, 0.4)
    np.testing.assert_allclose(by_rows, (mean, variance), rtol=1e-9, atol=1e-10)
    for row in range(0, len(mean), 20):
        theta = []
        for levels, entity in zip(machine.state, rows.entities, strict=True):
            one = levels.at(entity.of_row[row])
            theta.append(rng.multivariate_normal(one.mean, one.cov, S).T)
        total, cross = joined(theta, signs)
        f = 0.4 + total[0] + cross
        # Four standard errors of a mean and of the variance of nearly normal numbers.
        assert f.mean() == pytest.approx(mean[row], abs=4 * f.std() / S**0.5)
        assert f.var() == pytest.approx(variance[row], rel=0.06)


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from(["two", "side", "near", "more"]),
    seed=st.integers(0, 1000),
    rank=st.integers(0, 4),
    explored=st.integers(0, 12),
)
def test_the_bound_of_labels_never_falls(kind, seed, rank, explored):
    """From any start, also from draws far away, and where the higher bound takes over."""
    machine, _ = machine_of(kind, seed, rank)
    machine.start_sampling()
    for _ in range(explored):
        machine.hold_factors()
        machine.sweep()
    machine.stop_sampling()
    bounds = []
    for _ in range(30):
        machine.sweep()
        bounds.append(machine.bound())
    assert np.diff(bounds).min() > -1e-8 * machine.n
    assert machine.expects


def test_a_sweep_that_would_lower_the_bound_is_undone():
    machine, _ = machine_of("two", 0, 2)
    for _ in range(5):
        machine.sweep()
    before, means = machine.bound(), machine.means.copy()

    def spoil(working):
        machine.means[:], machine.b = 0.0, 50.0

    machine._sweep_given = spoil
    machine.sweep()
    assert machine.bound() == before
    assert np.array_equal(machine.means, means)


def test_biases_have_the_probabilities_of_metropolis_draws():
    """Eleven levels with a mean and a precision per field, without products."""
    rng, (U, V) = np.random.default_rng(3), (6, 5)
    user, item = rng.integers(0, U, 300), rng.integers(0, V, 300)
    f = np.array([3.0, -2, 0, 1, -3, 2])[user] + np.array([-1.0, 0, 1, 2, -2])[item]
    y = rng.random(300) < expit(f)
    X = csr_matrix(np.hstack([np.eye(U)[user], np.eye(V)[item]]))
    rows = field_rows(X, y, [np.arange(U), U + np.arange(V)])
    machine = LabelMachine(rows, np.ones(0), np.random.default_rng(0))
    for _ in range(200):
        machine.sweep()
    shift, slope = machine.calibration()
    w = [theta.mean[0] for theta in machine.state]
    p = expit(shift + slope * (machine.b + w[0][:, None] + w[1]))
    n, ones = np.zeros((U, V)), np.zeros((U, V))
    np.add.at(n, (user, item), 1)
    np.add.at(ones, (user, item), y)

    def log_odds(t):
        return t[:, 0, None, None] + t[:, 1 : U + 1, None] + t[:, None, U + 1 : U + V + 1]

    def log_density(t):  # (chains, b | levels | two means | two logarithms of precisions)
        f = log_odds(t)
        value = np.sum(ones * f - n * np.logaddexp(0, f), axis=(1, 2)) - 0.005 * t[:, 0] ** 2
        for levels, mu, log_tau in (
            (t[:, 1 : U + 1], t[:, -4], t[:, -2]),
            (t[:, U + 1 : U + V + 1], t[:, -3], t[:, -1]),
        ):
            square = ((levels - mu[:, None]) ** 2).sum(axis=1) + MEAN_WEIGHT * mu**2
            value += (levels.shape[1] + 1) / 2 * log_tau - np.exp(log_tau) * square / 2
            value += SHAPE * log_tau - RATE * np.exp(log_tau)
        return value

    chains = 0.1 * rng.standard_normal((300, U + V + 5))
    now, total, kept = log_density(chains), 0.0, 0
    for step in range(5000):
        moves = rng.random(chains.shape) < 0.25
        tried = chains + 0.5 * moves * rng.standard_normal(chains.shape)
        then = log_density(tried)
        accepted = np.log(rng.random(len(now))) < then - now
        chains[accepted], now[accepted] = tried[accepted], then[accepted]
        if step >= 1000 and step % 20 == 0:
            total, kept = total + expit(log_odds(chains)).mean(axis=0), kept + 1
    # Levels are independent in the variational posterior, and one line is for all pairs.
    assert p == pytest.approx(total / kept, abs=0.04)
    assert np.mean(np.abs(p - total / kept)) < 0.015


def test_log_odds_of_a_mean_probability_do_not_overflow():
    f = np.array([[0.0, 0.0], [1.0, -2.0], [800.0, 900.0], [-800.0, -900.0]])
    p = expit(f[:2]).mean(axis=1)
    assert mean_log_odds(f)[:2] == pytest.approx(np.log(p / (1 - p)), abs=1e-12)
    assert mean_log_odds(f)[2:] == pytest.approx([800 + np.log(2), -800 - np.log(2)])


def tastes(seed, size=6.0, users=300, items=120, labels=6, bias=0.0):
    rng = np.random.default_rng(seed)
    f = bias + size * np.outer(rng.standard_normal(users), rng.standard_normal(items))
    seen = np.argsort(rng.random(f.shape), axis=1) < labels
    y = rng.random(f.shape) < expit(f)

    def rows(where):
        user, item = np.nonzero(where)
        return pd.DataFrame({"user": user, "item": item}).astype("category"), y[where]

    return rows(seen), rows(~seen)


def test_strong_tastes_are_found_with_and_without_draws(tmp_path):
    """Least squares about a first estimate of the log-odds had a log-loss of .56."""
    (X, y), (new, labels) = tastes(0)
    losses = []
    for draws in (None, 30, 150):
        model = FactorizationMachineClassifier(draws=draws, random_state=0).fit(X, y)
        losses.append(log_loss(labels, model.predict_proba(new)[:, 1]))
    assert losses[0] < 0.43
    assert losses[0] < losses[2] + 0.01
    assert losses[2] < losses[1] + 0.01
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert np.array_equal(again.predict_proba(new[:200]), model.predict_proba(new[:200]))
    users, films = new[["user"]][:3].drop_duplicates(), new[["item"]].drop_duplicates()[:20]
    for ranked in ({}, {"label": False}):
        best = model.recommend(users, films, n=5, **ranked)
        p = model.predict_proba(best[["user", "item"]])[:, 0 if ranked else 1]
        assert best.iloc[:, -1].to_numpy() == pytest.approx(p, abs=1e-6)


@pytest.mark.parametrize(("size", "bias"), [(6.0, 0.0), (1.0, 0.0), (0.0, 0.0), (3.0, -4.0)])
def test_probabilities_of_new_pairs_are_calibrated(size, bias):
    """They are as often right as they say, and nearer to the truth than the share of ones."""
    (X, y), (new, labels) = tastes(1, size, labels=15, bias=bias)
    model = FactorizationMachineClassifier(random_state=0).fit(X, y)
    p = model.predict_proba(new)[:, 1]
    line = LogisticRegression(C=1e6).fit(model.decision_function(new)[:, None], labels)
    if size > 1:  # a slope of one needs log-odds that differ
        assert 0.85 < line.coef_[0, 0] < 1.2
    assert p.mean() == pytest.approx(labels.mean(), abs=0.02)
    share = np.full(len(p), y.mean())
    assert log_loss(labels, p) < log_loss(labels, share) + 0.005


def test_weights_are_repetitions_and_the_order_of_rows_does_not_matter():
    (X, y), (new, _) = tastes(2, users=60, items=30)
    rng = np.random.default_rng(0)
    weight, order = rng.integers(1, 4, len(y)), rng.permutation(len(y))
    rows = np.repeat(np.arange(len(y)), weight)
    given = [
        (X, y, weight),
        (X.iloc[rows], y[rows], None),
        (X.iloc[order], y[order], weight[order]),
    ]
    p = []
    for Xs, ys, w in given:
        model = FactorizationMachineClassifier(random_state=0)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The weights are whole numbers")
            p.append(model.fit(Xs, ys, sample_weight=w).predict_proba(new))
    np.testing.assert_allclose(p[1], p[0], atol=1e-6)
    np.testing.assert_allclose(p[2], p[0], atol=1e-6)


def test_separable_labels_have_finite_log_odds():
    (X, _), (new, _) = tastes(0, labels=20)
    of_user = X.user.cat.codes.to_numpy() % 2
    model = FactorizationMachineClassifier(random_state=0).fit(X, of_user)
    p = model.predict_proba(new)[:, 1]
    assert np.array_equal(p > 0.5, new.user.cat.codes % 2 == 1)
    assert p[p > 0.5].min() > 0.9
    assert p.max() < 0.9999


def test_batches_of_labels_are_learned_about_as_well_as_all_at_once(tmp_path):
    (X, y), (new, labels) = tastes(0, 4.0, users=200, items=60, labels=30)
    order = np.random.default_rng(0).permutation(len(y))
    stream = FactorizationMachineClassifier(2, batch_size=500, random_state=0)
    for start in range(0, len(y), 500):
        at = order[start : start + 500]
        stream.partial_fit(X.iloc[at], y[at], classes=[False, True])
    at_once = FactorizationMachineClassifier(2, random_state=0).fit(X, y)
    losses = [log_loss(labels, m.predict_proba(new)[:, 1]) for m in (at_once, stream)]
    assert losses[1] < losses[0] + 0.01
    save(stream, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert np.array_equal(again.predict_proba(new), stream.predict_proba(new))
    for model in (stream, again):
        model.partial_fit(X[:600], y[:600])
    assert np.array_equal(again.predict_proba(new), stream.predict_proba(new))


def test_a_first_batch_of_one_class_is_not_sure_for_ever():
    (X, y), (new, labels) = tastes(0, 4.0, users=200, items=60, labels=30)
    model = FactorizationMachineClassifier(2, batch_size=500, random_state=0)
    model.partial_fit(X[y][:600], y[y][:600], classes=[False, True])
    assert 0.99 < model.predict_proba(new)[:, 1].min() < 1 - 1e-6
    for start in range(0, len(y), 500):
        model.partial_fit(X[start : start + 500], y[start : start + 500])
    assert log_loss(labels, model.predict_proba(new)[:, 1]) < 0.55
