"""Fits that begin on a few rows per parameter end where fits of all rows do, in fewer passes."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from quadlin import SecondOrderRegressor
from quadlin.core.chunks import MemorySource
from quadlin.core.engine import Threads
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.datasets import make_second_order
from quadlin.metrics import degrees_of_freedom, nmse
from quadlin.solve.lowrank import few_rows
from quadlin.solve.lowrank.exact import products_of
from quadlin.solve.lowrank.few_rows import fit_from_few, sample_sizes
from quadlin.solve.lowrank.polish import fit_rows
from quadlin.solve.lowrank.sample import sample_of
from quadlin.solve.lowrank.types import Options, Problem, Status

D, K = 40, 5
DOF = degrees_of_freedom(D, K)


class Counted:
    """Rows from a source that counts how often it is walked, and is no table in memory."""

    def __init__(self, X, y, weight=None, block_rows=700):
        self.table, self.walks = MemorySource(X, y, weight, block_rows), 0

    def __iter__(self):
        self.walks += 1
        return iter(self.table)


def total(rows):
    return float(rows.reduce(lambda chunk: float(chunk.y.sum())))


def drawn(rows):
    return np.concatenate(rows.collect(lambda chunk: chunk.y))


def test_walks_over_a_sample_count_as_its_share_and_gathering_it_as_one():
    source = Counted(np.ones((5000, 2)), np.arange(5000.0))
    rows = Rows.of(source)
    few = sample_of(rows, 0.1, 5000)
    assert rows.walks == 1
    assert source.walks == 0  # nothing was asked for yet
    for _ in range(5):
        total(few)
    assert source.walks == 1
    assert rows.counter.count == pytest.approx(1.5)
    assert rows.walks == few.walks == 2
    total(rows)
    assert (source.walks, rows.walks) == (2, 3)


def test_a_small_sample_is_summed_without_being_cut():
    rows = Rows(Threads(MemorySource(np.ones((5000, 2)), np.arange(5000.0)), 4))
    few = sample_of(rows, 0.5, 5000)
    assert few.reduce(lambda chunk: 1) == 1


def test_picking_rows_from_memory_counts_as_a_walk_over_the_sample():
    rows = Rows.of(MemorySource(np.ones((5000, 2)), np.arange(5000.0)))
    few = sample_of(rows, 0.1, 5000)
    total(sample_of(few, 0.5, None))
    assert rows.counter.count == pytest.approx(0.1 + 0.05 + 0.05)


@pytest.mark.parametrize("n_rows", [20_000, None])
def test_a_sample_of_a_sorted_table_has_its_mean(n_rows):
    y = np.arange(20_000.0)
    few = drawn(sample_of(Rows.of(MemorySource(y[:, None] % 7, y)), 0.1, n_rows))
    # 2,000 draws: 4 standard deviations of their number, and of their mean.
    assert abs(len(few) - 2000) < 4 * np.sqrt(0.1 * 0.9 * 20_000)
    assert abs(few.mean() / y.mean() - 1) < 4 * np.sqrt(1 / 3 / 2000)


@pytest.mark.parametrize("layout", [np.asarray, csr_array, np.asfortranarray])
def test_a_sample_by_content_is_the_same_in_any_order_and_any_chunks(layout):
    data = make_second_order(3000, 5, rank=1, random_state=0)
    order = np.argsort(data.y)
    one = sample_of(Rows.of(MemorySource(layout(data.X), data.y)), 0.2, None)
    other = sample_of(Rows.of(Counted(layout(data.X[order]), data.y[order])), 0.2, None)
    assert np.array_equal(np.sort(drawn(one)), drawn(other))


@pytest.mark.parametrize("source", [MemorySource, Counted])
def test_a_sample_keeps_weights_and_targets_and_leaves_out_rows_of_weight_zero(source):
    y, weight = np.arange(4000.0), np.arange(4000) % 3.0
    rows = Rows.of(source(np.ones((4000, 2)), y, weight)).reweighted(np.full(4000, 0.5), y + 0.25)
    few = sample_of(rows, 0.2, 4000)
    chosen, weights = drawn(few), np.concatenate(few.collect(lambda chunk: chunk.weight))
    assert np.array_equal(weights, 0.5 * ((chosen - 0.25) % 3))
    assert np.all(weights > 0)
    assert abs(len(chosen) - 0.2 * 4000 * 2 / 3) < 4 * np.sqrt(0.2 * 0.8 * 4000)


def test_samples_grow_to_an_eighth_of_the_rows():
    assert sample_sizes(24 * 300, 50, 300) == [900]
    assert sample_sizes(24 * 300 - 1, 50, 300) == []
    assert sample_sizes(1e6, 50, 300) == [900, 7200, 57_600]
    assert sample_sizes(1e9, 10_000, 50_000) == []  # no memory for that


def problem(noise, multiple, seed=0, weight=None):
    n = multiple * K * D
    data = make_second_order(n, D, rank=K, noise=noise, n_test=2000, random_state=seed)
    rows = Rows.of(MemorySource(data.X, data.y, weight))
    surveyed = rows.reduce(survey)
    maker = UnitsMaker("auto", True, data.X.dtype, [str(j) for j in range(D)])
    return data, rows, surveyed, maker, maker(surveyed.features, surveyed.target)


def from_few(rows, surveyed, maker, units, options):
    return fit_from_few(rows, units, options, maker, surveyed.tally, 0)


@pytest.mark.parametrize("alpha", [0.0, 20.0])
def test_the_optimum_is_that_of_all_rows_to_a_hundredth_of_its_error(alpha):
    options = Options(rank=K, alpha=(alpha, alpha))
    _, rows, surveyed, maker, units = problem(1.0, 30)
    solution, _ = from_few(rows, surveyed, maker, units, options)
    n = surveyed.features.weight
    best, _ = fit_rows(rows, units, options, n, np.random.default_rng(0))
    gap = solution.history[-1].loss / best.history[-1].loss - 1
    assert solution.status is Status.converged
    assert -1e-6 < gap < 0.01 * DOF / n


def test_a_smaller_tolerance_comes_nearer():
    _, rows, surveyed, maker, units = problem(1.0, 30)
    losses = [
        from_few(rows, surveyed, maker, units, Options(rank=K, tol=tol))[0].history[-1].loss
        for tol in (1e-6, 1e-10)
    ]
    best, _ = fit_rows(rows, units, Options(rank=K, tol=1e-12), 6000.0, np.random.default_rng(0))
    assert losses[1] == pytest.approx(best.history[-1].loss, rel=1e-6 * DOF / 6000 + 1e-10)
    assert losses[1] < losses[0]


# Without noise; with it, within one percent of the excess risk of the optimum. From scratch it
# takes 33, 22 and 28 with 40 features.
@pytest.mark.parametrize(
    ("noise", "multiple", "d", "k", "most"),
    [(0.0, 30, D, K, 11), (1.0, 30, D, K, 12), (0.0, 100, D, K, 5), (0.0, 30, 200, 8, 10)],
)
def test_many_rows_take_few_passes(noise, multiple, d, k, most):
    data = make_second_order(multiple * k * d, d, rank=k, noise=noise, n_test=2000, random_state=0)
    model = SecondOrderRegressor(rank=k, alpha=0.0, random_state=0).fit(data.X, data.y)
    assert model.history_[-1].passes <= most
    error = nmse(data.y_test, model.predict(data.X_test))
    if noise:
        tight = SecondOrderRegressor(rank=k, alpha=0.0, tol=1e-11, random_state=0)
        best = nmse(data.y_test, tight.fit(data.X, data.y).predict(data.X_test))
        assert error < 1.01 * best
    else:
        assert error < 1e-18


def test_components_that_do_not_stand_out_of_a_sample_are_left_to_all_rows():
    _, rows, surveyed, maker, units = problem(8.0, 30)
    assert from_few(rows, surveyed, maker, units, Options(rank=K)) is None


def test_weights_that_leave_few_rows_take_no_sample():
    weight = np.full(30 * K * D, 1e-6)
    weight[: 2 * DOF] = 1.0
    _, rows, surveyed, maker, units = problem(1.0, 30, weight=weight)
    before = rows.walks
    assert from_few(rows, surveyed, maker, units, Options(rank=K)) is None
    assert rows.walks == before


def test_threads_and_sources_end_at_the_same_model():
    data = make_second_order(30 * K * D, D, rank=K, noise=1.0, random_state=0)
    order = np.argsort(data.y)
    X, y = data.X[order], data.y[order]  # sorted: the first rows are like no others
    one = SecondOrderRegressor(rank=K, alpha=0.0, random_state=0).fit(X, y)
    two = SecondOrderRegressor(rank=K, alpha=0.0, random_state=0).fit(X, y, engine=2)
    f = one.predict(X[:100])
    assert two.predict(X[:100]) == pytest.approx(f, rel=1e-9, abs=1e-9)
    assert two.history_[-1].passes == one.history_[-1].passes


def test_a_checkpoint_holds_the_sums_over_samples(tmp_path):
    data = make_second_order(30 * K * D, D, rank=K, noise=1.0, random_state=0)

    def fit():
        model = SecondOrderRegressor(rank=K, alpha=0.0, random_state=0)
        return model.fit(data.X, data.y, checkpoint=tmp_path / "journal")

    first = fit()
    size = (tmp_path / "journal").stat().st_size
    again = fit()
    assert np.array_equal(first.components_, again.components_)
    assert [r.passes for r in first.history_] == [r.passes for r in again.history_]
    assert (tmp_path / "journal").stat().st_size == size  # every sum was there


def test_an_interrupt_in_a_sample_leaves_its_model(monkeypatch):
    _, rows, surveyed, maker, units = problem(1.0, 30)
    original, calls = few_rows.follow, []

    def interrupted(problem, method, on_step=None):
        def cut():
            for iterate in method:
                yield iterate
                calls.append(1)
                if len(calls) == 2:
                    raise KeyboardInterrupt

        return original(problem, cut(), on_step)

    monkeypatch.setattr(few_rows, "follow", interrupted)
    solution, _ = from_few(rows, surveyed, maker, units, Options(rank=K))
    assert solution.status is Status.interrupted
    assert solution.units is units
    assert solution.history[-1].loss < solution.history[0].loss


def test_a_callback_sees_the_steps_on_a_sample_and_can_stop_there():
    _, rows, surveyed, maker, units = problem(0.0, 60)
    everything, passes = fit_from_few(rows, units, Options(rank=K), maker, surveyed.tally, 0)[0], []
    losses = []

    def stop(solution):
        assert solution.units is units
        passes.append(solution.history[-1].passes)
        losses.append(Problem(rows, units, Options(rank=K), None).sums(solution.model).loss)
        return losses[-1] < 1e-6 * losses[0]  # of all rows, as the model is in their units

    rows = Rows.of(rows.engine.source)
    solution, _ = fit_from_few(rows, units, Options(rank=K), maker, surveyed.tally, 0, stop)
    assert solution.status is Status.stopped
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] / losses[0] < 1e-6
    # What looked at all rows was the test.
    assert passes[-1] - len(passes) < everything.history[-1].passes


def test_few_features_and_many_rows_begin_on_a_sample_as_well(monkeypatch):
    """Where the products of all rows cost more than passes: the optimum is the same."""
    data = make_second_order(20_000, 8, rank=2, noise=1.0, random_state=0)
    exact = SecondOrderRegressor(2, alpha=0.0, random_state=0).fit(data.X, data.y)
    walked = []
    monkeypatch.setattr("quadlin.solve.lowrank.restarts.GRAM_WORK", 1e6)
    monkeypatch.setattr(
        "quadlin.solve.lowrank.restarts.products_of",
        lambda rows, units: walked.append(rows.share) or products_of(rows, units),
    )
    model = SecondOrderRegressor(2, alpha=0.0, random_state=0).fit(data.X, data.y)
    assert walked
    assert max(walked) < 0.2  # products of samples alone
    # Within a hundredth of the statistical error, dof/n of the loss.
    error = degrees_of_freedom(8, 2) / 20_000
    assert model.history_[-1].loss <= exact.history_[-1].loss * (1 + 0.01 * error)
