"""Who carries out the sums changes nothing but rounding: threads, a cluster, a worker that dies."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from threadpoolctl import threadpool_info, threadpool_limits

from quadlin import SecondOrderRegressor, find_pairs, open_source
from quadlin.core.chunks import MemorySource
from quadlin.core.engine import Serial, Threads, height, one_blas_thread
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.data.opening.engines import ChunkError, engine_for
from quadlin.datasets import make_second_order
from quadlin.solve.fits.uncertainty import uncertainty_of
from quadlin.solve.lowrank.sample import sample_of
from quadlin.solve.lowrank.types import Options

DATA = make_second_order(3000, 12, rank=2, noise=0.5, random_state=0)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Cut the few rows of these tests into parts."""
    monkeypatch.setattr("quadlin.core.engine.PART_ENTRIES", 5000)


def fitted(X=DATA.X, y=DATA.y, engine=None, **options):
    return SecondOrderRegressor(2, random_state=0, **{"alpha": 0.0, **options}).fit(
        X, y, engine=engine
    )


def same(a, b, atol=1e-9):
    np.testing.assert_allclose(a.predict(DATA.X), b.predict(DATA.X), atol=atol)


@given(st.integers(1, 40), st.integers(1, 9), st.booleans())
@settings(deadline=None, max_examples=30)
def test_parts_in_order_are_the_whole(n, count, as_sparse):
    X = np.arange(2.0 * n).reshape(n, 2)
    source = MemorySource(sparse.csr_array(X) if as_sparse else X, np.arange(n), np.ones(n), 3)
    parts = source.parts(count)
    assert 1 <= len(parts) <= count
    y = np.concatenate([chunk.y for part in parts for chunk in part])
    np.testing.assert_array_equal(y, np.arange(n))
    whole = [c.X.toarray() if as_sparse else c.X for part in parts for c in part]
    np.testing.assert_array_equal(np.concatenate(whole), X)


@pytest.mark.parametrize("engine", ["serial", "threads", 1, 3])
@pytest.mark.parametrize("polish", [True, False])
def test_threads_fit_the_same_model(engine, polish):
    same(fitted(engine=engine, polish=polish), fitted(polish=polish))


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_any_number_of_threads_gives_the_same_bits(form):
    one, *others = (fitted(form(DATA.X), engine=engine).fitted_.state for engine in (1, 2, 3, None))
    for other in others:
        np.testing.assert_array_equal(one.model.U, other.model.U)
        np.testing.assert_array_equal(one.model.w, other.model.w)


def test_threads_are_started_for_parts_and_for_nothing_else(monkeypatch):
    def thread(chunk):
        return {threading.current_thread().name}

    source = MemorySource(DATA.X, DATA.y)
    names = Rows(Threads(source, 2)).collect(thread)
    assert threading.main_thread().name not in set.union(*names)
    monkeypatch.setattr("quadlin.core.engine.PART_ENTRIES", source.entries)
    names = Rows(Threads(source, 2)).collect(thread)
    assert names == [{threading.main_thread().name}]


@pytest.mark.parametrize(("engine", "threads"), [(2, 1), ("serial", 2)])
def test_the_linear_algebra_library_has_one_thread_between_the_sums_of_threads(engine, threads):
    seen = set()

    class Watched(SecondOrderRegressor):
        def _fitted_rows(self, *args):
            pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
            seen.update(pool["num_threads"] for pool in pools)
            return super()._fitted_rows(*args)

    with threadpool_limits(2):
        Watched(1, random_state=0, alpha=0.0).fit(DATA.X, DATA.y, engine=engine)
    assert max(seen) == threads  # a library that the environment holds to one thread stays there


def test_the_default_engine_leaves_the_cores_to_those_who_work_beside_it(monkeypatch):
    monkeypatch.setattr("quadlin.data.opening.engines.cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    source = MemorySource(DATA.X, DATA.y)
    assert engine_for(source, None).workers == 8
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(engine_for, source, None).result().workers == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert engine_for(source, None).workers == 3
    assert isinstance(engine_for(open_source(DATA.X, target=DATA.y), None), Serial)


def test_a_source_fits_the_same_model_as_its_rows():
    source = open_source(DATA.X, target=DATA.y)
    same(fitted(source, None), fitted())
    same(fitted(source, None, engine=2), fitted())
    np.testing.assert_array_equal(fitted().predict(source), fitted().predict(DATA.X))


REWEIGHTED = [{"rank": "auto"}, {"rank": 2, "loss": "huber"}]  # sums over rows with other weights


@pytest.mark.parametrize("options", REWEIGHTED, ids=["auto", "huber"])
def test_threads_sum_reweighted_rows(options, monkeypatch):
    weight = np.random.default_rng(0).integers(0, 3, 3000).astype(float)
    serial = SecondOrderRegressor(**{"rank": 5, "alpha": 0.0, **options}, random_state=0).fit(
        DATA.X, DATA.y, weight
    )
    monkeypatch.setattr(Serial, "carry", None)  # nobody walks all rows
    threads = SecondOrderRegressor(**{"rank": 5, "alpha": 0.0, **options}, random_state=0)
    threads.fit(DATA.X, DATA.y, weight, engine=3)
    assert threads.rank_ == serial.rank_ == 2
    same(threads, serial, atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_drawn_noise_belongs_to_rows_however_they_are_cut(weighted):
    model = fitted().fitted_.state
    source = MemorySource(DATA.X, DATA.y)
    weight = np.random.default_rng(0).uniform(size=3000)

    def law(engine):
        rows = Rows(engine).reweighted(weight) if weighted else Rows(engine)
        options, rng = Options(rank=2), np.random.default_rng(0)
        args = model.model, model.units, options, model.white, rng
        return uncertainty_of(rows, *args, dense_limit=0, draws=8)

    one, other = law(Serial(source)), law(Threads(source, 3))
    assert not one.exact
    np.testing.assert_allclose(one.spread.w, other.spread.w, atol=1e-6)
    np.testing.assert_allclose(one.coef_std()[0], other.coef_std()[0], rtol=1e-3)


@pytest.mark.parametrize("engine", ["gpu", 0, -1, True, 1.5, object()])
def test_an_engine_that_is_none_is_named(engine):
    with pytest.raises(ValueError, match="engine="):
        fitted(engine=engine)


def test_an_error_in_a_thread_reaches_the_caller():
    def raises(chunk):
        raise ZeroDivisionError("by zero")

    with pytest.raises(ZeroDivisionError, match="by zero"):
        Rows(Threads(MemorySource(DATA.X, DATA.y), 2)).reduce(raises)


def test_every_sum_is_journaled_and_every_walk_counted():
    asked = []

    def journal(question, carry):
        asked.append(question[0])
        return carry()

    def total(chunk):
        return float(chunk.y.sum())

    rows = Rows(Serial(MemorySource(DATA.X, DATA.y)), journal)
    view = rows.reweighted(np.full(3000, 2.0))
    assert rows.reduce(total) == view.reduce(total) == pytest.approx(DATA.y.sum())
    assert sum(rows.collect(height)) == sum(height(chunk) for chunk in view.walk()) == 3000
    assert asked == ["total", "total"]  # what grows with the rows is not kept
    assert rows.walks == view.walks == 4


def test_parts_without_rows_and_what_parts_leave_out_are_counted(tmp_path):
    table = pa.table({"a": [1.0, None, 3.0, 4.0, 5.0, 6.0], "y": [1.0, 2.0, 3.0, 5.0, 4.0, 6.0]})
    for number, rows in enumerate([table.slice(0, 1), table.slice(1, 1), table.slice(2)]):
        pyarrow.parquet.write_table(rows, tmp_path / f"{number}.parquet")
    source = open_source(tmp_path, target="y", missing="drop")
    serial, threaded = (
        rows.reduce(survey) for rows in (Rows.of(source), Rows(engine_for(source, 3)))
    )
    assert threaded.tally == serial.tally
    assert source.dropped == 1
    np.testing.assert_allclose(threaded.features.var, serial.features.var)


def test_rows_left_out_of_a_file_that_is_not_cut_are_counted_by_threads_too(tmp_path):
    table = pa.table({"a": [1.0, None, 3.0], "y": [1.0, 2.0, 3.0]})
    pyarrow.parquet.write_table(table, tmp_path / "table.parquet")
    source = open_source(tmp_path / "table.parquet", target="y", missing="drop")
    assert len(source.parts(16)) == 1
    assert Rows(engine_for(source, 3)).reduce(survey).tally.rows == 2
    assert source.dropped == 1


def test_a_slice_of_a_memory_map_is_cut_as_it_is(tmp_path):
    np.save(tmp_path / "X.npy", np.vstack([3 * DATA.X + 1, DATA.X]))
    X = np.load(tmp_path / "X.npy", mmap_mode="r")[3000:]
    same(fitted(open_source(X, target=DATA.y), None, engine=2), fitted())


@pytest.fixture(scope="module")
def client():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


QUICK = {"polish": False, "max_iter": 3, "tol": 1e-3}  # a pass costs some 10 ms on a cluster


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_cluster_fits_the_same_model(client):
    same(fitted(engine=client, **QUICK), fitted(**QUICK))
    dask_array = pytest.importorskip("dask.array")
    X, y = (dask_array.from_array(a, chunks=700) for a in (DATA.X, DATA.y))
    X = X.rechunk((700, 5))
    model = fitted(X, y, **QUICK)  # the default client carries Dask's own arrays
    same(model, fitted(**QUICK))
    np.testing.assert_array_equal(model.predict(X), model.predict(DATA.X))
    weight = np.random.default_rng(0).integers(0, 3, 3000).astype(float)
    a = SecondOrderRegressor(2, random_state=0, **{"alpha": 0.0, **QUICK}).fit(X, y, weight)
    b = SecondOrderRegressor(2, random_state=0, **{"alpha": 0.0, **QUICK}).fit(
        DATA.X, DATA.y, weight
    )
    same(a, b)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_frames_of_a_cluster_fit_the_same_model(client):
    frames = pytest.importorskip("dask.dataframe")
    import pandas as pd

    rng = np.random.default_rng(0)
    frame = pd.DataFrame(DATA.X[:, :4], columns=list("abcd"))
    frame["city"] = rng.choice(["Oslo", "Rome", "Bonn"], 3000)
    y = DATA.y + 2.0 * (frame["city"] == "Rome") * DATA.X[:, 0]
    on_cluster = frames.from_pandas(frame.assign(y=y), npartitions=4)
    source = open_source(on_cluster, target="y")
    a = SecondOrderRegressor(2, random_state=0, **{"alpha": 0.0, **QUICK}).fit(
        source, engine=client
    )
    b = SecondOrderRegressor(2, random_state=0, **{"alpha": 0.0, **QUICK}).fit(frame, y)
    np.testing.assert_allclose(a.predict(frame), b.predict(frame), atol=1e-8)
    assert list(a.feature_names_in_) == ["a", "b", "c", "d", "city"]


def test_a_cluster_finds_the_same_pairs(client):
    X = DATA.X[:400, :5]
    y = X[:, 0] + X[:, 1] * X[:, 2] + 0.3 * np.random.default_rng(0).standard_normal(400)
    on_cluster, here = find_pairs(X, y, engine=client), find_pairs(X, y)
    assert [p[:2] for p in on_cluster.pairs] == [("x1", "x2")]
    for a, b in zip(on_cluster.pairs, here.pairs, strict=True):
        np.testing.assert_allclose(a[2:], b[2:], rtol=1e-8)


@pytest.mark.parametrize("options", REWEIGHTED, ids=["auto", "huber"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_cluster_sums_reweighted_rows_where_they_lie(client, options, monkeypatch):
    X, y = DATA.X[:600, :5], DATA.y[:600]
    serial = SecondOrderRegressor(
        **{"rank": 5, "alpha": 0.0, **options}, tol=1e-4, random_state=0
    ).fit(X, y)
    monkeypatch.setattr(Serial, "carry", None)
    there = SecondOrderRegressor(
        **{"rank": 5, "alpha": 0.0, **options}, tol=1e-4, random_state=0
    ).fit(X, y, engine=client)
    np.testing.assert_allclose(there.predict(X), serial.predict(X), atol=1e-6)


def test_a_chunk_that_raises_is_named(client):
    rows = Rows(engine_for(MemorySource(DATA.X, DATA.y), client))

    def raises(chunk):
        raise ZeroDivisionError("by zero")

    with pytest.raises(ChunkError, match=r"Part \d of the rows \(\d+ rows\).*by zero"):
        rows.reduce(raises)
    assert rows.reduce(survey).tally.rows == 3000  # and the cluster goes on


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_worker_that_dies_changes_nothing(client, tmp_path):
    np.save(tmp_path / "X.npy", DATA.X)
    source = open_source(tmp_path / "X.npy", target=DATA.y)
    rows = Rows(engine_for(source, client))
    expected = Rows.of(MemorySource(DATA.X, DATA.y)).reduce(survey)
    assert rows.reduce(survey).tally == expected.tally
    victim = next(iter(client.run(os.getpid).values()))
    killer = threading.Timer(0.05, os.kill, (victim, signal.SIGKILL))
    killer.start()
    for _ in range(20):  # some before, some during, some after
        got = rows.reduce(survey)
        np.testing.assert_allclose(got.features.var, expected.features.var, rtol=1e-12)
    killer.join()
    assert victim not in client.run(os.getpid).values()
    same(fitted(source, None, engine=client, **QUICK), fitted(**QUICK))


def test_the_linear_algebra_library_gets_its_threads_back_when_the_last_is_done():
    """Whichever leaves first: the limit is one for the process."""

    def threads():
        pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
        return {pool["filepath"]: pool["num_threads"] for pool in pools}

    with threadpool_limits(2, "blas"), ExitStack() as first, ExitStack() as second:
        before = threads()
        assert max(before.values()) == 2  # one that the environment holds to one thread stays there
        first.enter_context(one_blas_thread())
        second.enter_context(one_blas_thread())
        first.close()
        assert set(threads().values()) == {1}
        second.close()
        assert threads() == before


def test_walks_over_a_sample_take_blocks_as_large_as_walks_over_a_table(monkeypatch):
    """16 parts, as of rows whose number nobody knows, cost more than their sums."""
    monkeypatch.setattr("quadlin.core.engine.PART_ENTRIES", 1 << 22)
    X = np.random.default_rng(0).standard_normal((4000, 30))
    rows = Rows(Threads(MemorySource(X, X[:, 0]), 2))
    few = sample_of(rows, 0.5, 4000)
    assert len(few.collect(lambda chunk: 1)) == 1
    assert few.engine.source.entries == few.reduce(lambda chunk: chunk.X.size)
