"""The same rows give the same model and the same predictions, whatever holds them."""

import functools
import gzip

import dask
import dask.array as da
import dask.dataframe as dd
import h5py
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import sklearn
import zarr
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import dump_svmlight_file
from sklearn.preprocessing import OneHotEncoder

from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    open_source,
)

N, D = 120, 4


@functools.cache
def numbers():
    """Return rows of quarters, two fifths of them zero, which every format holds exactly."""
    rng = np.random.default_rng(0)
    X = np.round(4 * rng.standard_normal((N, D))) / 4 * (rng.uniform(size=(N, D)) < 0.6)
    X[0] = 1.0  # every column occurs in sparse files
    X.flags.writeable = False
    y = X[:, 0] * X[:, 1] + X @ [1.0, -1.0, 0.5, 0.0] + 0.1 * rng.standard_normal(N)
    return X, np.round(y, 3)


@functools.cache
def columns():
    """Return a table with text, booleans and whole numbers, a target and weights."""
    rng = np.random.default_rng(1)
    city = rng.choice(["Oslo", "Rome", "Bonn", "Ålesund"], N)
    area, member = rng.integers(-8, 9, N) / 4, rng.uniform(size=N) < 0.5
    rooms = rng.integers(0, 9, N).astype(np.int16)
    y = area * (1 + (city == "Rome")) + 0.2 * rooms + member + 0.1 * rng.standard_normal(N)
    return {
        "area": area,
        "rooms": rooms,
        "member": member,
        "city": city.tolist(),
        "y": np.round(y, 3),
        "w": rng.integers(1, 5, N) / 2,
    }


FEATURES = ["area", "rooms", "member", "city"]

ESTIMATORS = {
    "regressor": SecondOrderRegressor(2, alpha=0.1, random_state=0),
    "classifier": SecondOrderClassifier(1, alpha=1.0, random_state=0),
    "machine": FactorizationMachineRegressor(2, alpha=0.1, random_state=0),
}


def target_for(kind, y):
    return (y > np.median(y)).astype(int) if kind == "classifier" else y


def outcome(model, X):
    """Return numbers in which two models would differ: predictions, or probabilities."""
    return model.predict_proba(X) if hasattr(model, "predict_proba") else model.predict(X)


@functools.cache
def expected(kind):
    X, y = numbers()
    return outcome(clone(ESTIMATORS[kind]).fit(X, target_for(kind, y)), X)


@functools.cache
def expected_of_table(weighted=True):
    frame = pd.DataFrame(columns())
    weight = frame["w"] if weighted else None
    model = clone(ESTIMATORS["regressor"]).fit(frame[FEATURES], frame["y"], weight)
    return model.predict(frame[FEATURES])


def same(actual, wanted):
    """Assert equality up to rounding; fits stop within 1e-6 of the optimum by default."""
    np.testing.assert_allclose(np.asarray(actual, float), wanted, rtol=0, atol=2e-5)


def framed(library):
    return lambda X: library({f"c{j}": X[:, j] for j in range(X.shape[1])})


IN_MEMORY = {
    "Fortran order": np.asfortranarray,
    "strided": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
    "big-endian": lambda X: X.astype(">f8"),
    "objects": lambda X: X.astype(object),
    "lists": lambda X: X.tolist(),
    "CSR array": sparse.csr_array,
    "CSR matrix": sparse.csr_matrix,
    "CSC": sparse.csc_array,
    "COO": sparse.coo_array,
    "DOK": sparse.dok_matrix,
    "pandas": framed(pd.DataFrame),
    "polars": framed(pl.DataFrame),
    "pyarrow": framed(pa.table),
    "torch": lambda X: pytest.importorskip("torch").asarray(X.copy()),
}


@pytest.mark.parametrize("container", IN_MEMORY)
def test_containers_in_memory_are_the_same_rows(container):
    X, y = numbers()
    rows = IN_MEMORY[container](X)
    for kind in ESTIMATORS:
        model = clone(ESTIMATORS[kind]).fit(rows, target_for(kind, y))
        same(outcome(model, rows), expected(kind))


@pytest.mark.smoke
def test_a_model_of_dense_rows_predicts_sparse_rows_and_the_other_way_round():
    X, y = numbers()
    dense = clone(ESTIMATORS["regressor"]).fit(X, y)
    thin = clone(ESTIMATORS["regressor"]).fit(sparse.csr_array(X), y)
    same(dense.predict(sparse.csr_array(X)), expected("regressor"))
    same(thin.predict(X), expected("regressor"))


@pytest.mark.parametrize(
    "estimator",
    [
        SecondOrderRegressor(random_state=0),
        SecondOrderRegressorCV(ranks=[0, 2], alphas=[0.1, 1.0], cv=3, random_state=0),
        SecondOrderClassifier(random_state=0),
        FactorizationMachineRegressor(random_state=0),
        FactorizationMachineClassifier(random_state=0),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_choices_by_default_do_not_depend_on_the_storage(estimator):
    X, y = numbers()
    y = y > np.median(y) if hasattr(estimator, "predict_proba") else y
    dense = clone(estimator).fit(X, y)
    thin = clone(estimator).fit(sparse.csr_array(X), y)
    scale = np.std(outcome(dense, X))
    assert np.max(np.abs(outcome(thin, X) - outcome(dense, X))) < 0.01 * scale


def npy(X, y, where):
    np.save(where / "X.npy", X)
    np.save(where / "y.npy", y)
    return where / "X.npy", where / "y.npy"


def mapped(X, y, where):
    raw = np.memmap(where / "raw", X.dtype, "w+", shape=X.shape)
    raw[:] = X
    return raw, y


def zarred(X, y, where):
    store = zarr.open(str(where / "z"), mode="w")
    rows = store.create_array("X", shape=X.shape, dtype=X.dtype, chunks=(50, 3))
    rows[:] = X
    return rows, y


def svmlight(X, y, where):
    dump_svmlight_file(X, y, str(where / "t.svm"), zero_based=False)
    return where / "t.svm", None


def packed_svmlight(X, y, where):
    svmlight(X, y, where)
    (where / "t.svm.gz").write_bytes(gzip.compress((where / "t.svm").read_bytes()))
    return where / "t.svm.gz", None


def libffm(X, y, where):
    lines = [
        " ".join([repr(float(t)), *(f"{j}:{j}:{float(row[j])!r}" for j in np.flatnonzero(row))])
        for row, t in zip(X, y, strict=True)
    ]
    (where / "t.ffm").write_text("\n".join(lines) + "\n")
    return where / "t.ffm", None


def pieces(X, y, where):
    return lambda: iter([(X[:50], y[:50]), (X[50:51], y[50:51]), (X[51:], y[51:])]), None


ARRAYS = {
    "array": lambda X, y, where: (X, y),
    "CSR": lambda X, y, where: (sparse.csr_array(X), y),
    "CSC": lambda X, y, where: (sparse.csc_array(X), y),
    "npy": npy,
    "memmap": mapped,
    "zarr": zarred,
    "svmlight": svmlight,
    "svmlight, packed": packed_svmlight,
    "libffm": libffm,
    "function of iterators": pieces,
    "list of pairs": lambda X, y, where: ([(X[:50], y[:50]), (X[50:], y[50:])], None),
    "Dask array": lambda X, y, where: (
        da.from_array(X.copy(), chunks=(50, 3)),
        da.from_array(y, chunks=70),
    ),
}


def gathered(source):
    """Return all rows and targets of a source, once the sizes of its chunks are checked."""
    chunks = list(source)
    sizes = [chunk.X.shape[0] for chunk in chunks]
    assert sizes[:-1] == sizes[:1] * (len(sizes) - 1)
    X = [chunk.X.toarray() if sparse.issparse(chunk.X) else chunk.X for chunk in chunks]
    return np.vstack(X), np.concatenate([chunk.y for chunk in chunks])


@pytest.fixture(autouse=True)
def _dask_without_threads():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.mark.parametrize("form", ARRAYS)
def test_sources_of_numbers_are_the_rows_of_the_array(form, tmp_path):
    X, y = numbers()
    rows, target = ARRAYS[form](X, y, tmp_path)
    for size in (1, 7, 1000):
        source = open_source(rows, target=target, chunk_rows=size)
        got = gathered(source)
        np.testing.assert_array_equal(got[0], X)
        np.testing.assert_array_equal(got[1], y)
        assert list(source.names) == ["x0", "x1", "x2", "x3"]
    source = open_source(rows, target=target, chunk_rows=50)
    for kind in ("regressor", "machine"):
        model = clone(ESTIMATORS[kind]).fit(source)
        same(model.predict(source), expected(kind))
        same(model.predict(X), expected(kind))


def test_hdf5_is_read_where_it_lies(tmp_path):
    X, y = numbers()
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["X"], file["y"] = X, y
        source = open_source(file["X"], target=file["y"], chunk_rows=50)
        model = clone(ESTIMATORS["regressor"]).fit(source)
        same(model.predict(source), expected("regressor"))


def test_a_classifier_reads_labels_from_a_source(tmp_path):
    X, y = numbers()
    labels = target_for("classifier", y)
    for rows, target in (svmlight(X, labels, tmp_path), (X, labels)):
        source = open_source(rows, target=target, chunk_rows=50)
        model = clone(ESTIMATORS["classifier"]).fit(source)
        same(model.predict_proba(source), expected("classifier"))


def test_rows_that_come_once_are_learned_in_one_pass():
    X, y = numbers()
    source = open_source(iter([(X[:50], y[:50]), (X[50:], y[50:])]))
    stream = clone(ESTIMATORS["regressor"]).fit(source)
    by_part = clone(ESTIMATORS["regressor"]).partial_fit(X[:50], y[:50]).partial_fit(X[50:], y[50:])
    same(stream.predict(X), by_part.predict(X))
    assert stream.n_samples_seen_ == N
    with pytest.raises(ValueError, match="iterator"):
        list(source)


def parquet(table, where):
    folder, whole = where / "folder", pa.table(table)
    folder.mkdir()
    for i, rows in enumerate(np.array_split(np.arange(N), 3)):
        part = whole.slice(rows[0], len(rows))
        pq.write_table(part, folder / f"{i}.parquet", row_group_size=13)
    return folder


def csv(table, where, name="t.csv", delimiter=","):
    options = pyarrow.csv.WriteOptions(delimiter=delimiter)
    pyarrow.csv.write_csv(pa.table(table), where / name, options)
    return where / name


def packed_csv(table, where):
    text = csv(table, where).read_bytes()
    (where / "packed.csv.gz").write_bytes(gzip.compress(text))
    return where / "packed.csv.gz"


def arrow(table, where):
    whole = pa.table(table)
    with pa.OSFile(str(where / "t.arrow"), "wb") as out, pa.ipc.new_file(out, whole.schema) as file:
        file.write_table(whole, max_chunksize=11)
    return where / "t.arrow"


def feather(table, where):
    pyarrow.feather.write_feather(pa.table(table), where / "t.feather", chunksize=13)
    return where / "t.feather"


def frame_pieces(table, where):
    frame = pl.DataFrame(table)
    return lambda: iter([frame[:50], frame[50:51], frame[51:]])


TABLES = {
    "pandas": lambda table, where: pd.DataFrame(table),
    "pandas categories": lambda t, where: pd.DataFrame(t).astype({"city": "category"}),
    "pandas with an index": lambda t, where: pd.DataFrame(t, index=np.arange(N) / 2),
    "polars": lambda table, where: pl.DataFrame(table),
    "lazy polars": lambda table, where: pl.LazyFrame(table),
    "Arrow table": lambda table, where: pa.table(table),
    "Arrow batch": lambda table, where: pa.RecordBatch.from_pydict(table),
    "Arrow dictionary": lambda table, where: pa.table(
        {**table, "city": pa.array(table["city"]).dictionary_encode()}
    ),
    "Parquet folder": parquet,
    "Parquet pattern": lambda table, where: str(parquet(table, where)) + "/*.parquet",
    "dataset": lambda table, where: pyarrow.dataset.dataset(
        [str(path) for path in sorted(parquet(table, where).glob("*.parquet"))]
    ),
    "CSV": csv,
    "CSV, packed": packed_csv,
    "TSV": lambda table, where: csv(table, where, "t.tsv", "\t"),
    "Arrow file": arrow,
    "Feather": feather,
    "function of frames": frame_pieces,
    "Dask frame": lambda table, where: dd.from_pandas(pd.DataFrame(table), npartitions=3),
}


@pytest.mark.parametrize("form", TABLES)
def test_sources_of_tables_are_the_rows_of_the_frame(form, tmp_path):
    table = TABLES[form](columns(), tmp_path)
    source = open_source(table, target="y", weight="w", chunk_rows=50)
    levels = [f"city={city}" for city in ("Bonn", "Oslo", "Rome", "Ålesund")]
    assert list(source.names) == ["area", "rooms", "member", *levels]
    small = gathered(open_source(table, target="y", weight="w", chunk_rows=7))
    for mine, theirs in zip(small, gathered(source), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(small[0][:, 0], columns()["area"])
    model = clone(ESTIMATORS["regressor"]).fit(source)
    same(model.predict(source), expected_of_table())
    same(model.predict(pd.DataFrame(columns())[FEATURES]), expected_of_table())


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame, pa.table])
def test_a_model_of_one_library_predicts_the_frames_of_another(library):
    frame = pd.DataFrame(columns())
    model = clone(ESTIMATORS["regressor"]).fit(frame[FEATURES], frame["y"], frame["w"])
    same(model.predict(library({name: columns()[name] for name in FEATURES})), expected_of_table())


@settings(max_examples=15)
@given(size=st.integers(1, 130), cut=st.integers(1, 60))
def test_chunks_of_any_size_give_the_same_model(size, cut):
    X, y = numbers()
    for rows in (X, sparse.csr_array(X)):
        source = open_source(rows, target=y, chunk_rows=size)
        same(clone(ESTIMATORS["regressor"]).fit(source).predict(X), expected("regressor"))

    def parts():
        return ((X[i : i + cut], y[i : i + cut]) for i in range(0, N, cut))

    got, targets = gathered(open_source(parts, chunk_rows=size))
    np.testing.assert_array_equal(got, X)
    np.testing.assert_array_equal(targets, y)


@pytest.mark.parametrize("engine", [None, "serial", "threads", 2])
def test_engines_give_the_same_model(engine):
    X, y = numbers()
    model = clone(ESTIMATORS["regressor"]).fit(X, y, engine=engine)
    same(model.predict(X), expected("regressor"))


@pytest.mark.parametrize("container", ["dense", "CSR array", "pandas", "polars"])
def test_rows_targets_and_weights_are_left_as_they_are(container):
    X, given_y = numbers()
    rows = np.array(X) if container == "dense" else IN_MEMORY[container](X)
    for kind in ESTIMATORS:
        y, weight = target_for(kind, given_y).copy(), np.linspace(1.0, 2.0, N)
        model = clone(ESTIMATORS[kind]).fit(rows, y, weight)
        model.predict(rows)
        np.testing.assert_array_equal(y, target_for(kind, given_y))
        np.testing.assert_array_equal(weight, np.linspace(1.0, 2.0, N))
    after = rows.toarray() if sparse.issparse(rows) else np.asarray(rows)
    np.testing.assert_array_equal(after, X)


@pytest.mark.parametrize("kind", ["regressor", "machine"])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array, framed(pd.DataFrame)])
def test_single_precision_stays_so_and_is_near_double_precision(form, kind):
    X, y = numbers()
    rows = form(X.astype(np.float32))
    model = clone(ESTIMATORS[kind]).fit(rows, y.astype(np.float32))
    predicted = model.predict(rows)
    assert predicted.dtype == np.float32
    assert np.asarray(model.coef_).dtype == np.float32
    # Products of float32 are rounded to 6e-8; sums of 120 rows and the steps amplify it.
    np.testing.assert_allclose(predicted, expected(kind), atol=1e-3)


def test_whole_numbers_and_booleans_are_numbers():
    rng = np.random.default_rng(0)
    X = rng.integers(-3, 4, (N, 3))
    y = X[:, 0] * X[:, 1] + X[:, 2] + 0.1 * rng.standard_normal(N)
    wanted = clone(ESTIMATORS["regressor"]).fit(X.astype(float), y).predict(X.astype(float))
    for kind in (np.int8, np.int64, np.uint8):
        rows = X.astype(kind) if kind is not np.uint8 else (X + 3).astype(kind)
        same(clone(ESTIMATORS["regressor"]).fit(rows, y).predict(rows), wanted)
    flags = X > 0
    model = clone(ESTIMATORS["regressor"])
    same(model.fit(flags, y).predict(flags), model.fit(flags * 1.0, y).predict(flags * 1.0))


@pytest.mark.smoke
@pytest.mark.parametrize("library", ["torch", "array_api_strict"])
@pytest.mark.parametrize("kind", ["regressor", "machine"])
def test_arrays_of_other_libraries_stay_what_they_are(kind, library):
    X, y = numbers()
    make = pytest.importorskip(library).asarray
    rows, targets = make(X.copy()), make(y.copy())
    with sklearn.config_context(array_api_dispatch=True):
        model = clone(ESTIMATORS[kind]).fit(rows, targets)
        predicted = model.predict(rows)
        assert type(predicted) is type(rows)
        assert type(model.coef_) is type(rows)
        assert float(model.score(rows, targets)) == pytest.approx(
            clone(ESTIMATORS[kind]).fit(X, y).score(X, y), abs=1e-5
        )
    same([float(value) for value in predicted], expected(kind))


def test_a_dask_array_is_fitted_and_predicted_without_being_gathered():
    X, y = numbers()
    rows, targets = da.from_array(X.copy(), chunks=(50, 2)), da.from_array(y, chunks=50)
    for kind in ("regressor", "machine"):
        model = clone(ESTIMATORS[kind]).fit(rows, targets)
        predicted = model.predict(rows)
        assert isinstance(predicted, da.Array)
        same(predicted.compute(), expected(kind))
    with pytest.raises(ValueError, match=r"1 feature.* 4"):
        model.predict(rows[:, :1])


def test_a_dask_frame_with_text_is_fitted_and_predicted():
    frame = pd.DataFrame(columns())
    rows = dd.from_pandas(frame, npartitions=3)
    model = clone(ESTIMATORS["regressor"]).fit(rows[FEATURES], rows["y"])
    same(model.predict(rows[FEATURES]).compute(), expected_of_table(weighted=False))
    same(model.predict(frame[FEATURES]), expected_of_table(weighted=False))
    with pytest.raises(ValueError, match="order"):
        model.predict(rows[FEATURES[::-1]])


@pytest.fixture(scope="module")
def client():
    with Client(
        processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None
    ) as client:
        yield client


def test_a_cluster_gives_the_same_model(client, tmp_path):
    X, y = numbers()
    model = clone(ESTIMATORS["regressor"])
    same(model.fit(X, y, engine=client).predict(X), expected("regressor"))
    rows, targets = da.from_array(X.copy(), chunks=(50, 4)), da.from_array(y, chunks=50)
    same(model.fit(rows, targets, engine=client).predict(X), expected("regressor"))
    source = open_source(parquet(columns(), tmp_path), target="y", weight="w")
    same(model.fit(source, engine=client).predict(source), expected_of_table())


def fields(n, sizes):
    """Return a table of ids as text, and a target with products of the first two."""
    rng = np.random.default_rng(0)
    codes = [rng.integers(size, size=n) for size in sizes]
    y = sum(rng.normal(size=size)[code] for size, code in zip(sizes, codes, strict=True))
    first, second = (rng.normal(size=(size, 2)) for size in sizes[:2])
    y = y + np.sum(first[codes[0]] * second[codes[1]], axis=1) + 0.5 * rng.normal(size=n)
    return pd.DataFrame({f"f{j}": [f"l{c}" for c in code] for j, code in enumerate(codes)}), y


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("sizes", [(12, 10), (300, 250, 60)])
def test_a_factorization_machine_of_fields_does_not_depend_on_the_container(sizes, tmp_path):
    frame, y = fields(900, sizes)
    machine = FactorizationMachineRegressor(random_state=0)
    wanted = clone(machine).fit(frame, y).predict(frame)
    one_hot = OneHotEncoder().fit_transform(frame)
    frame.assign(y=y).to_parquet(tmp_path / "t.parquet", index=False)
    source = open_source(tmp_path / "t.parquet", target="y")
    for rows in (one_hot, one_hot.toarray()):
        np.testing.assert_allclose(clone(machine).fit(rows, y).predict(rows), wanted, atol=1e-6)
    np.testing.assert_allclose(clone(machine).fit(source).predict(source), wanted, atol=1e-6)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_stream_of_fields_that_is_short_is_the_machine_of_its_rows():
    frame, y = fields(600, (12, 10, 4))
    one_hot = OneHotEncoder().fit_transform(frame)
    machine = FactorizationMachineRegressor(random_state=0)
    wanted = clone(machine).fit(one_hot, y).predict(one_hot)
    # Groups of columns cannot be found in rows that are seen once.
    groups = [list(range(12)), list(range(12, 22)), list(range(22, 26))]
    machine.set_params(categorical_features=groups)
    source = open_source(iter([(one_hot[:300], y[:300]), (one_hot[300:], y[300:])]))
    np.testing.assert_allclose(machine.fit(source).predict(one_hot), wanted, atol=1e-6)
