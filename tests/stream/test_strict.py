"""Streams that keep no row, not even those of a first batch."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse

import quadlin.storage.stream_checkpoint as checkpoints
from quadlin import FactorizationMachineRegressor, SecondOrderRegressor, load, save
from quadlin.core.chunks import Chunk
from quadlin.data import open_source
from quadlin.datasets import make_second_order
from quadlin.metrics import degrees_of_freedom, nmse
from quadlin.solve.lowrank.types import Status
from quadlin.solve.lowrank.whitening import Covariance
from quadlin.stream.memory import rows_within, strict_bytes
from quadlin.stream.power_iteration import Stage, rounds
from quadlin.stream.restore import state_of, stream_of
from quadlin.stream.state import InvalidContentError

D, K = 12, 2
DOF = degrees_of_freedom(D, K)
KINDS = ["gaussian", "truncated", "bernoulli"]


def strict(**options):
    options = {"rank": K, "max_memory": "minimal", "random_state": 0, **options}
    return SecondOrderRegressor(**options)


def drawn(n, kind="gaussian", noise=0.0, seed=0, d=D):
    return make_second_order(
        n, d, rank=K, distribution=kind, noise=noise, n_test=2000, random_state=seed
    )


def excess(model, data):
    return float(np.mean((model.predict(data.X_test) - data.y_test) ** 2))


@pytest.mark.parametrize("kind", KINDS)
def test_the_truth_is_found_in_one_pass_without_keeping_a_row(kind):
    data = drawn(12_000, kind)
    model = strict().partial_fit(data.X, data.y)
    # Some 30 batches, of which all but ten contract the error; squared by three at least.
    assert nmse(data.y_test, model.predict(data.X_test)) < 1e-8
    assert model.status_ is Status.converged


@pytest.mark.parametrize(("kind", "noise"), [*zip(KINDS, [0.5, 0.5, 0.05], strict=True)])
def test_noise_is_averaged_as_by_a_stream_that_keeps_its_first_batch(kind, noise):
    data = drawn(20_000, kind, noise)
    level = noise**2 * DOF / 20_000
    kept = strict(max_memory="auto", alpha=0.0).partial_fit(data.X, data.y)
    model = strict().partial_fit(data.X, data.y)
    # χ² with 36 degrees of freedom over 36 has a standard deviation of .24, so the first is 1 ± .5;
    # the other loses the rows before the mean, up to a third of them: 1.5 times that.
    assert excess(kept, data) < 1.6 * level
    assert excess(model, data) < 1.5 * 1.6 * level
    assert model.fitted_.stream.since < 20_000 / 3


def test_the_error_of_rows_without_noise_falls_with_every_batch():
    data = drawn(9000)
    losses = [record.loss for record in strict().partial_fit(data.X, data.y).history_]
    falling = losses[rounds(D) + 1 :]
    assert len(falling) > 8
    assert all(later < 0.8 * earlier for earlier, later in pairwise(falling))


def test_row_by_row_is_the_same_stream():
    data = drawn(600, noise=0.5, d=4)
    whole, single = (strict(rank=1, batch_size=20) for _ in "ab")
    whole.partial_fit(data.X, data.y)
    for i in range(len(data.y)):
        single.partial_fit(data.X[i : i + 1], data.y[i : i + 1])
    assert single.fitted_.stream.start is None  # it has come to the mean
    np.testing.assert_allclose(
        single.predict(data.X_test), whole.predict(data.X_test), rtol=1e-6, atol=1e-6
    )


def test_sparse_rows_make_the_same_stream():
    data = drawn(5000, "bernoulli", 0.05)
    dense = strict().partial_fit(data.X, data.y)
    thin = strict().partial_fit(sparse.csr_array(data.X), data.y)
    np.testing.assert_allclose(
        thin.predict(data.X_test), dense.predict(data.X_test), rtol=1e-6, atol=1e-6
    )


STAGES = {
    Stage.moments: 40,
    Stage.correlations: 300,
    Stage.power: 900,
    Stage.contraction: 1900,
    None: 4000,
}


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: "mean" if stage is None else stage.name)
def test_a_saved_stream_goes_on_as_if_it_had_not_been_saved(stage, tmp_path):
    data, first = drawn(5000, noise=0.3), STAGES[stage]
    model = strict().partial_fit(data.X[:first], data.y[:first])
    start = model.fitted_.stream.start
    assert (None if start is None else start.stage) is stage
    save(model, tmp_path / "m")
    again = load(tmp_path / "m")
    for each in (model, again):
        each.partial_fit(data.X[first:], data.y[first:])
    np.testing.assert_array_equal(again.predict(data.X_test), model.predict(data.X_test))
    assert again.history_ == model.history_
    assert again.fitted_.stream.since == model.fitted_.stream.since


def test_a_checkpoint_holds_the_stream_from_the_first_rows_on(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "WRITE_SECONDS", 0.0)
    data, path = drawn(3000, noise=0.3), tmp_path / "state"
    whole = strict().partial_fit(open_source(data.X, target=data.y, chunk_rows=200))

    class PowerError(Exception):
        pass

    def rows(stop):
        for start in range(0, 3000, 200):
            if start >= stop:
                raise PowerError
            yield data.X[start : start + 200], data.y[start : start + 200]

    for stop in (400, 1400, 9000):
        model = strict()
        try:
            model.partial_fit(open_source(rows(stop), chunk_rows=200), checkpoint=path)
        except PowerError:
            assert path.exists()
    np.testing.assert_array_equal(model.predict(data.X_test), whole.predict(data.X_test))


def test_a_stream_that_was_fed_is_another_one():
    data = drawn(6000, noise=0.3)
    stream = strict().partial_fit(data.X[:500], data.y[:500]).fitted_.stream
    before = state_of(stream)
    stream.fed(Chunk(data.X[500:], data.y[500:], None))
    after = state_of(stream)
    assert before.start == after.start or before.start.batches == after.start.batches
    np.testing.assert_array_equal(before.state.model.U, after.state.model.U)
    np.testing.assert_array_equal(before.pending.sums.action, after.pending.sums.action)


@pytest.mark.parametrize("correlated", [False, True])
def test_a_strict_stream_is_not_worse_than_the_constant(correlated):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((12_000, D))
    if correlated:  # AR(1) with ρ = .95, which moment estimates without whitening get wrong
        for j in range(1, D):
            X[:, j] = 0.95 * X[:, j - 1] + (1 - 0.95**2) ** 0.5 * X[:, j]
    y = rng.standard_normal(12_000) + (X[:, 0] * X[:, 1] if correlated else 0)
    model = strict(rank=5).partial_fit(X[:10_000], y[:10_000])
    # Nothing to learn but the mean in the first case: 69 parameters of 10,000 rows cost under 3%.
    error = np.mean((model.predict(X[10_000:]) - y[10_000:]) ** 2)
    assert error < 1.03 * np.var(y[10_000:])


def test_a_constant_target_and_few_rows_are_no_obstacle():
    data = drawn(2000)
    model = strict(diagonal="free", extrapolation="free").partial_fit(data.X[:1], data.y[:1])
    assert model.predict(data.X_test)[0] == pytest.approx(data.y[0])
    assert model.status_ is Status.searching
    model = strict().partial_fit(data.X, np.full(2000, 3.0))
    np.testing.assert_allclose(model.predict(data.X_test), 3.0)


def test_a_feature_that_varies_late_is_learned():
    X = drawn(20_000).X.copy()
    X[:500, 3] = 0.0  # constant until the power iteration is under way
    y = X[:, 0] * X[:, 1] + X[:, 2] * X[:, 3] + X[:, 3]
    model = strict(rank=4).partial_fit(X, y)
    # What was learned in the units of the first rows is forgotten as 1/N at the latest.
    assert nmse(y, model.predict(X)) < 0.01


def test_other_parts_of_the_model_are_kept_to():
    data = drawn(6000)
    y = (data.X[:, 0] + data.X[:, 1]) ** 2
    model = strict(rank=1, psd=True, fit_linear=False, fit_intercept=False).partial_fit(data.X, y)
    assert model.intercept_ == 0
    assert not model.coef_.any()
    assert nmse(y, model.predict(data.X)) < 1e-6
    linear = strict(rank=0).partial_fit(data.X, data.X[:, 0] - 3 * data.X[:, 1])
    np.testing.assert_allclose(linear.coef_[:3], [1, -3, 0], atol=1e-6)


def test_a_rank_that_is_too_high_does_not_keep_the_search_going():
    data = drawn(30_000, noise=0.3)
    model = strict(rank=5).partial_fit(data.X, data.y)
    assert model.fitted_.stream.start is None
    # The mean is of half of the rows at least, of 63 parameters: at most 2 ± .4 times their level.
    assert model.fitted_.stream.since < 15_000
    assert excess(model, data) < 3 * 0.3**2 * degrees_of_freedom(D, 5) / 30_000


def test_a_weak_component_is_found_in_longer_batches():
    X = drawn(24_000).X
    truth = X[:, 0] ** 2 - X[:, 1] ** 2 + 0.1 * X[:, 2] ** 2
    y = truth + 0.5 * np.random.default_rng(0).standard_normal(24_000)
    model = strict(rank=3).partial_fit(X, y)
    # The noise of an eigenvalue is .5·√(12/24,000) = .011.
    assert sorted(model.eigenvalues_)[1] == pytest.approx(0.1, abs=0.04)
    assert model.status_ is Status.converged


def test_a_model_that_still_moves_by_long_steps_is_not_called_converged():
    rng = np.random.default_rng(0)
    U = np.linalg.qr(rng.standard_normal((20, 2)))[0]
    M = U * [1.0, -1.0] @ U.T
    model = strict(rank=2, fit_linear=False, alpha=0.0)
    for _ in range(30):
        X = rng.standard_normal((200, 20))
        y = np.sum((X @ M) * X, axis=1) + 0.5 * rng.standard_normal(200)
        model.partial_fit(X, y)
        error = np.linalg.norm(model.interactions_.matrix() - M) / np.sqrt(2)
        # It was called converged with 0.3 and 0.6; σ·√(39/n)/2 at 4,000 rows is 0.025.
        assert model.status_ is Status.searching or error < 0.1
    assert model.status_ is Status.converged


def test_without_a_quadratic_part_the_linear_one_is_averaged():
    X = drawn(14_000).X
    y = X[:, 0] + np.random.default_rng(0).standard_normal(14_000)
    model = strict().partial_fit(X, y)
    assert model.status_ is Status.searching
    # Thirteen parameters, of all rows but those of the moments and of the last incomplete batch.
    assert np.mean((model.predict(X) - X[:, 0]) ** 2) < 4 * 13 / 14_000


def test_a_machine_streams_without_keeping_rows():
    data = drawn(9000, "bernoulli")
    machine = FactorizationMachineRegressor(K, max_memory="minimal", random_state=0)
    machine.partial_fit(data.X, data.y)
    assert nmse(data.y_test, machine.predict(data.X_test)) < 1e-6


def test_a_rank_to_choose_is_the_provisional_one_and_there_is_no_penalty():
    data = drawn(3000)
    model = strict(rank="auto").partial_fit(data.X, data.y)
    assert (model.rank_, model.alpha_) == (5, (0.0, 0.0))


@pytest.mark.parametrize("option", [{"alpha": 1.0}, {"whiten": "full"}])
def test_options_that_need_a_first_batch_are_refused(option):
    data = drawn(50)
    with pytest.raises(ValueError, match=rf"{next(iter(option))}.*Raise `max_memory`"):
        strict(**option).partial_fit(data.X, data.y)


def test_bytes_decide_how_many_rows_are_kept():
    data = drawn(3000)

    def stream(max_memory):
        model = strict(max_memory=max_memory, alpha=0.0).partial_fit(data.X[:9], data.y[:9])
        return model.fitted_.stream

    options = stream("auto").options
    assert stream(strict_bytes(D, K)).strict
    limit = 12_620_000  # 12.6 MB for a block of rows and its products, the rest for rows
    room = rows_within(limit, options, D, False)
    assert 2 * DOF <= room < 10 * DOF  # enough for a first batch, but not for one of full length
    short = stream(limit)
    assert not short.strict
    assert short.goal == short.first_limit == room
    assert stream(10**12).goal == stream("auto").goal == 10 * (K + 1) * D
    assert stream(10**12).first_limit == stream("auto").first_limit


def test_states_that_no_strict_stream_can_have_are_refused():
    data = drawn(700)
    names = [str(j) for j in range(D)]
    state = state_of(strict().partial_fit(data.X, data.y).fitted_.stream)
    wrong = [
        replace(state, strict=False),
        replace(state, start=replace(state.start, Q=None)),
        replace(state, start=replace(state.start, rows=3)),
        replace(state, start=replace(state.start, batches=-1)),
        replace(state, start=replace(state.start, s=np.ones(3))),
        replace(state, start=replace(state.start, spread=Covariance(1.0, state.start.Q))),
        replace(state, since=1e6),
    ]
    assert stream_of(state, names).start is state.start
    for each in wrong:
        with pytest.raises(InvalidContentError):
            stream_of(each, names)


@pytest.mark.parametrize("ones", [1.0, -2.0])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_column_of_ones_is_an_intercept_without_keeping_a_row(rank, ones):
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((6000, 4))
    X = np.column_stack([np.full(6000, ones), Z])
    y = 3 + 2 * Z[:, 0] + (Z[:, 0] * Z[:, 1] if rank else 0)
    model = strict(rank=rank, fit_intercept=False).partial_fit(X, y)
    assert model.intercept_ == 0
    assert nmse(y, model.predict(X)) < 1e-3
    again = strict(rank=rank, fit_intercept=False)
    for start in range(0, 6000, 500):
        again.partial_fit(X[start : start + 500], y[start : start + 500])
    np.testing.assert_allclose(again.predict(X), model.predict(X), atol=0.2)
    X[:500, 0] += rng.standard_normal(500)  # it begins to vary
    y[:500] += X[:500, 0] - ones
    model.partial_fit(X[:500], y[:500])
    assert nmse(y, model.predict(X)) < 0.5


def test_a_model_without_parameters_is_zero():
    X = np.random.default_rng(0).standard_normal((50, 3))
    model = strict(rank=0, fit_linear=False, fit_intercept=False).partial_fit(X, X[:, 0] + 1)
    assert not model.predict(X).any()


@pytest.mark.parametrize("n", [30, 60, 100, 170])
def test_the_constant_before_there_is_a_model_is_that_of_all_rows(n):
    X = np.random.default_rng(0).standard_normal((n, 4))
    y = np.arange(n, dtype=float)  # whose first rows have another mean
    model = strict().partial_fit(X[: n // 2], y[: n // 2]).partial_fit(X[n // 2 :], y[n // 2 :])
    assert model.fitted_.stream.start.stage in (Stage.moments, Stage.correlations, Stage.power)
    np.testing.assert_allclose(model.predict(X), y.mean(), rtol=1e-9)
