"""Streams that keep no row, of features that are correlated."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from quadlin import SecondOrderRegressor, load, save
from quadlin.core.block import Block
from quadlin.core.model import predict
from quadlin.core.moments import Moments
from quadlin.datasets import make_second_order
from quadlin.metrics import degrees_of_freedom, nmse
from quadlin.solve.lowrank.types import Options, Status
from quadlin.solve.lowrank.whitening import Covariance, Identity, LowRank
from quadlin.stream.correlations import ROUNDS, correlation_step, first_probe
from quadlin.stream.power_iteration import Stage
from quadlin.stream.walk import averaged, mean_share

D, K = 10, 2
DOF = degrees_of_freedom(D, K)


def strict(**options):
    options = {"rank": K, "max_memory": "minimal", "random_state": 0, **options}
    return SecondOrderRegressor(**options)


def one_factor(n, noise, seed=0):
    """Rows whose features have a correlation of .7 with each other, and a signed M."""
    rng = np.random.default_rng(seed)
    X = np.sqrt(0.3) * rng.standard_normal((n, D)) + np.sqrt(0.7) * rng.standard_normal((n, 1))
    U, _ = np.linalg.qr(rng.standard_normal((D, K)))
    y = X[:, 0] + (X @ U) ** 2 @ [1.0, -1.0]
    return X, y, y + noise * np.std(y) * rng.standard_normal(n)


def autoregressive(n, noise, seed=0):
    data = make_second_order(
        n, D, rank=K, distribution="ar1", parameter=0.7, noise=0.0, random_state=seed
    )
    rng = np.random.default_rng(seed)
    return data.X, data.y, data.y + noise * np.std(data.y) * rng.standard_normal(n)


@pytest.mark.parametrize("draw", [one_factor, autoregressive])
def test_correlated_rows_end_near_the_statistical_error_in_one_pass(draw):
    X, truth, y = draw(30_000, noise=0.5)
    model, plain = (strict(whiten=w).partial_fit(X, y) for w in ("auto", "none"))
    level = np.mean((y - truth) ** 2) * DOF / 30_000
    # A sixth of the rows were spent on the start, what is left of it and the greater weight of
    # later models take half as much again, and χ² with 30 degrees of freedom over 30 has a standard
    # deviation of .26. A mean of steps of features as they are is at 400 and 2,000 times the level.
    assert np.mean((model.predict(X) - truth) ** 2) < 3 * level
    assert np.mean((plain.predict(X) - truth) ** 2) > 100 * level
    assert isinstance(model.fitted_.state.white, LowRank)
    assert model.status_ is Status.converged


def test_correlated_rows_without_noise_lead_to_the_truth():
    X, truth, _ = autoregressive(25_000, noise=0.0)
    assert nmse(truth, strict().partial_fit(X, truth).predict(X)) < 1e-4


def test_row_by_row_is_the_same_stream_and_so_are_sparse_rows():
    X, _, y = one_factor(6000, noise=0.1)
    whole, pieces, thin = strict().partial_fit(X, y), strict(), strict()
    for start in range(0, 6000, 70):
        pieces.partial_fit(X[start : start + 70], y[start : start + 70])
    thin.partial_fit(sparse.csr_array(X), y)
    assert whole.fitted_.stream.start is None  # it walks
    for other in (pieces, thin):
        np.testing.assert_allclose(other.predict(X), whole.predict(X), rtol=1e-6, atol=1e-6)


STAGES = {Stage.correlations: 400, Stage.power: 1500, Stage.annealing: 3000, None: 5500}


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: "walk" if stage is None else stage.name)
def test_a_saved_stream_goes_on_as_if_it_had_not_been_saved(stage, tmp_path):
    (X, _, y), first = one_factor(6000, noise=0.1), STAGES[stage]
    model = strict().partial_fit(X[:first], y[:first])
    start = model.fitted_.stream.start
    assert (None if start is None else start.stage) is stage
    save(model, tmp_path / "m")
    again = load(tmp_path / "m")
    for each in (model, again):
        each.partial_fit(X[first:], y[first:])
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_whitening_can_be_left_out_or_be_had_in_any_case():
    X, _, y = one_factor(3000, noise=0.1)
    plain = strict(whiten="none").partial_fit(X, y)
    assert isinstance(plain.fitted_.state.white, Identity)
    Z = np.random.default_rng(0).standard_normal((3000, D))
    for whiten, kind in (("auto", Identity), ("lowrank", LowRank)):
        model = strict(whiten=whiten).partial_fit(Z, y)
        assert isinstance(model.fitted_.state.white, kind)


def test_independent_features_are_not_taken_for_correlated_ones():
    rng = np.random.default_rng(0)
    state = strict().partial_fit(rng.standard_normal((900, D)), rng.standard_normal(900))
    units, taken = state.fitted_.state.units, 0
    for seed in range(200):
        X = rng.standard_normal((10 * DOF, D))
        Z, start = (X - units.mean) * units.scale, first_probe(units, K, seed)
        spread = Covariance(float(len(Z)), Z.T @ (Z @ start.Q))
        start = type(start)(start.stage, batches=ROUNDS, Q=start.Q, spread=spread)
        taken += correlation_step(start, units, Moments.of(X), False)[1] is None
    assert taken == 0


def test_the_mean_of_two_models_predicts_the_mean_where_its_rank_allows_it():
    X, _, y = one_factor(2000, noise=0.1)
    state = SecondOrderRegressor(1, alpha=0.0, pairs=None).fit(X, y).fitted_.state
    model, units = state.model, state.units
    other = replace(model, s=-2 * model.s, w=model.w + 0.1, c=0.3)  # of the same component
    mean = averaged(model, other, 0.25, units, Options(rank=1))
    block = Block(X, units)
    expected = 0.75 * predict(model, block) + 0.25 * predict(other, block)
    np.testing.assert_allclose(predict(mean, block), expected, atol=1e-10)


def test_shares_of_the_mean_weigh_models_by_a_power_of_their_number():
    weights = np.ones(1)
    for number in range(2, 2001):
        share = mean_share(60.0, 60.0 * number)
        weights = np.append((1 - share) * weights, share)
    assert weights.sum() == pytest.approx(1.0)
    # The weights grow as the square root: 2000 models are worth 2000·8/9.
    assert 1 / np.sum(weights**2) == pytest.approx(2000 * 8 / 9, rel=0.01)
