"""Draws of log-odds from their posterior, against integrals and known tastes."""

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from scipy.sparse import csr_matrix
from scipy.special import expit
from sklearn.metrics import log_loss

from quadlin import FactorizationMachineClassifier, load, save
from quadlin.solve.fields.field_rows import field_rows
from quadlin.solve.fields.field_sums import statistics
from quadlin.solve.fields.gibbs import mean_log_odds
from quadlin.solve.fields.label_machine import LabelMachine
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


def test_sums_of_a_sweep_are_those_of_its_rows():
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 9, 80), rng.integers(9, 15, 80)
    X = np.zeros((80, 15))
    X[np.arange(80), user] = X[np.arange(80), item] = 1.0
    rows = field_rows(csr_matrix(X), rng.integers(0, 2, 80), [np.arange(9), np.arange(9, 15)])
    machine = LabelMachine(rows, np.ones(2), rng)
    from_rows = machine.rows.__class__(**{**vars(machine.rows), "pairs": None})
    for e in range(2):
        args = (e, machine.state, machine.signs, machine.b)
        for fast, slow in zip(
            statistics(machine.rows, *args), statistics(from_rows, *args), strict=True
        ):
            assert np.asarray(fast) == pytest.approx(np.asarray(slow), rel=1e-9, abs=1e-9)


def test_log_odds_of_a_mean_probability_do_not_overflow():
    f = np.array([[0.0, 0.0], [1.0, -2.0], [800.0, 900.0], [-800.0, -900.0]])
    p = expit(f[:2]).mean(axis=1)
    assert mean_log_odds(f)[:2] == pytest.approx(np.log(p / (1 - p)), abs=1e-12)
    assert mean_log_odds(f)[2:] == pytest.approx([800 + np.log(2), -800 - np.log(2)])


def tastes(seed, size=6.0, users=300, items=120, labels=6):
    rng = np.random.default_rng(seed)
    f = size * np.outer(rng.standard_normal(users), rng.standard_normal(items))
    seen = np.argsort(rng.random(f.shape), axis=1) < labels
    y = rng.random(f.shape) < expit(f)

    def rows(where):
        user, item = np.nonzero(where)
        return pd.DataFrame({"user": user, "item": item}).astype("category"), y[where]

    return rows(seen), rows(~seen)


def test_more_draws_of_strong_tastes_predict_better_than_the_default(tmp_path):
    """200 draws of least squares about the log-odds were worse by .02, and 1,000 by .03."""
    (X, y), (new, labels) = tastes(0)
    losses = []
    for draws in (None, 30, 150):
        model = FactorizationMachineClassifier(draws=draws, random_state=0).fit(X, y)
        losses.append(log_loss(labels, model.predict_proba(new)[:, 1]))
    assert losses[1] < losses[0] - 0.05
    assert losses[2] < losses[1] + 0.01
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert np.array_equal(again.predict_proba(new[:200]), model.predict_proba(new[:200]))
    users, films = new[["user"]][:3].drop_duplicates(), new[["item"]].drop_duplicates()[:20]
    for ranked in ({}, {"label": False}):
        best = model.recommend(users, films, n=5, **ranked)
        p = model.predict_proba(best[["user", "item"]])[:, 0 if ranked else 1]
        assert best.iloc[:, -1].to_numpy() == pytest.approx(p, abs=1e-6)
