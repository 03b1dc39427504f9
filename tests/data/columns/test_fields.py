import datetime
import pickle
import tracemalloc
import warnings

import array_api_strict
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.preprocessing import OneHotEncoder

from quadlin import SecondOrderRegressor
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.engine import Threads
from quadlin.core.rows import Rows
from quadlin.data.columns.encoder import TableEncoder
from quadlin.data.columns.fields import (
    check_one_hot,
    field_counts,
    fields_among,
    given_fields,
    groups_not_one_hot,
)

MAKERS = {
    "pandas": pd.DataFrame,
    "pandas objects": lambda columns: pd.DataFrame(columns).astype({"city": object}),
    "pandas categories": lambda columns: pd.DataFrame(columns).astype({"city": "category"}),
    "polars": pl.DataFrame,
    "polars categories": lambda columns: pl.DataFrame(columns).cast({"city": pl.Categorical}),
    "pyarrow": pa.table,
}
ROWS = 60  # 0/1 columns drawn at random make a group by chance with probability < 2⁻⁶⁰ each
words = st.lists(st.text(st.characters(codec="utf-8"), max_size=4), min_size=1, unique=True)


def find_fields(X, weight=None):
    source = MemorySource(X.tocsr() if sparse.issparse(X) else X, weight=weight)
    return fields_among(Rows.of(source).reduce, source.width)


def columns(seed, levels=("Oslo", "Rome", "Bonn"), n=ROWS):
    rng = np.random.default_rng(seed)
    return {
        "city": [levels[i] for i in rng.integers(len(levels), size=n)],
        "age": rng.integers(-2, 3, size=n) / 2,  # zeros among them
        "member": rng.uniform(size=n) < 0.5,
        "plan": [("low", "mid", "top")[i] for i in rng.integers(3, size=n)],
    }


def learned(frame):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*identifier")
        return TableEncoder.learn(frame)


def one_hot(values):
    return OneHotEncoder(sparse_output=False).fit_transform(np.array(values, object)[:, None])


def sets(fields):
    return {frozenset(field.tolist()) for field in fields}


@given(seed=st.integers(0, 1000), levels=words, kind=st.sampled_from(sorted(MAKERS)))
def test_text_columns_are_encoded_as_scikit_learn_does(seed, levels, kind):
    data = columns(seed, levels)
    frame = MAKERS[kind](data)
    encoder = learned(frame)
    X, unseen = encoder.encode(frame)
    city, plan = one_hot(data["city"]), one_hot(data["plan"])
    expected = np.column_stack([city, data["age"], data["member"], plan])
    np.testing.assert_array_equal(X.toarray(), expected)
    assert X.nnz == np.count_nonzero(expected)
    assert X.has_canonical_format
    assert unseen == {}
    assert encoder.input_names == tuple(data)
    assert encoder.names == (
        *(f"city={level}" for level in sorted(set(data["city"]))),
        *("age", "member", "plan=low", "plan=mid", "plan=top"),
    )
    first, second = encoder.fields
    np.testing.assert_array_equal(first, np.arange(city.shape[1]))
    np.testing.assert_array_equal(second, city.shape[1] + 2 + np.arange(3))


@given(seed=st.integers(0, 1000), kind=st.sampled_from(sorted(MAKERS)))
def test_permuted_rows_are_encoded_into_permuted_rows(seed, kind):
    data = columns(seed)
    order = np.random.default_rng(seed).permutation(ROWS)
    permuted = {name: [values[i] for i in order] for name, values in data.items()}
    one, other = (MAKERS[kind](rows) for rows in (data, permuted))
    assert learned(one) == learned(other)
    X, Y = learned(one).encode(one)[0], learned(one).encode(other)[0]
    np.testing.assert_array_equal(Y.toarray(), X.toarray()[order])


@given(
    seed=st.integers(0, 1000),
    fitted=st.sampled_from(sorted(MAKERS)),
    asked=st.sampled_from(sorted(MAKERS)),
)
def test_unseen_levels_are_zero_and_counted_from_any_library(seed, fitted, asked):
    encoder = learned(MAKERS[fitted](columns(seed)))
    data = columns(seed + 1, ("Rome", "Kyiv", "Lima"))
    X, unseen = pickle.loads(pickle.dumps(encoder)).encode(MAKERS[asked](data))
    new = np.array([city != "Rome" for city in data["city"]])
    assert unseen == {"city": new.sum()}
    field = X.toarray()[:, encoder.fields[0]]
    np.testing.assert_array_equal(field.sum(axis=1), ~new)
    np.testing.assert_array_equal(field[:, encoder.names.index("city=Rome")], ~new)


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"a": [1, 2], "b": [True, False]}),
        pd.DataFrame({"a": pd.Series([1, 2.5], dtype=object)}),
        pl.DataFrame({"a": [1.0, 2.0]}),
        pa.table({"a": [1, 2]}),
        np.ones((2, 2)),
        sparse.eye_array(2),
        [[1.0], [2.0]],
    ],
)
def test_numbers_need_no_encoder(frame):
    assert TableEncoder.learn(frame) is None


def test_levels_have_the_order_of_their_categories():
    values = ["mid", "low", "top", "low"] * 2
    ordered = pd.Categorical(values, categories=["low", "mid", "top", "never"], ordered=True)
    for frame in (
        pd.DataFrame({"plan": ordered}),
        pl.DataFrame({"plan": pl.Series(values, dtype=pl.Enum(["low", "mid", "top", "never"]))}),
    ):
        assert TableEncoder.learn(frame).names == ("plan=low", "plan=mid", "plan=top")
    numbers = pd.DataFrame({"size": pd.Categorical([10, 9, 10, 9])})
    assert TableEncoder.learn(numbers).names == ("size=9", "size=10")
    cut = pd.DataFrame({"age": pd.cut([1.0, 2.0, 3.0, 4.0], 2)})
    assert TableEncoder.learn(cut).names == ("age=(0.997, 2.5]", "age=(2.5, 4.0]")


def test_a_single_level_is_a_constant_column():
    frame = pl.DataFrame({"city": ["Rome"] * 3})
    encoder = TableEncoder.learn(frame)
    assert encoder.names == ("city=Rome",)
    np.testing.assert_array_equal(encoder.encode(frame)[0].toarray(), np.ones((3, 1)))


@pytest.mark.parametrize("missing", ["error", "mean"])
def test_a_text_that_differs_in_every_row_is_refused(missing):
    rows = [f"ORD-{7 * i}" for i in range(60)]
    table = pd.DataFrame({"order": rows, "a": np.arange(60.0)})
    if missing == "mean":
        table.loc[:9, "order"] = None
    words = "'order' has .* levels in 60 rows and looks like an identifier"
    with pytest.raises(ValueError, match=words):
        TableEncoder.learn(table, missing=missing)
    TableEncoder.learn(table, declared=["order"], missing=missing)
    lists = [f"{a}|{b}" for a in "abcdefgh" for b in "stuvwxyz"]  # of labels that come again
    with pytest.warns(UserWarning, match="holds lists"):
        TableEncoder.learn(pd.DataFrame({"tags": lists}))
    with pytest.raises(
        ValueError, match=r"'order' has 60 .* To use the other columns, drop the column\."
    ):
        SecondOrderRegressor().fit(table.assign(order=rows), table.a)


def test_an_identifier_is_warned_about_by_name():
    with pytest.warns(UserWarning, match="'id' has 4 levels in 6 rows"):
        TableEncoder.learn(pl.DataFrame({"id": ["a", "b", "c", "d", "a", "b"]}))


@pytest.mark.parametrize(
    ("kinds", "dtype"),
    [
        ([], np.float64),
        ([np.float32], np.float32),
        ([np.float32, np.int16, np.bool_], np.float32),
        ([np.float32, np.int32], np.float64),
        ([np.int8], np.float64),
        ([np.float32, np.float64], np.float64),
    ],
)
@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_float32_stays_where_it_holds_every_number(kind, kinds, dtype):
    numbers = {f"x{j}": np.ones(4, dtype=t) for j, t in enumerate(kinds)}
    frame = MAKERS[kind]({"city": ["a", "b"] * 2, **numbers})
    X, _ = TableEncoder.learn(frame).encode(frame)
    assert X.dtype == dtype


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"city": ["a", "a", None, "b"], "age": 1.0}),
        pd.DataFrame({"city": pd.Categorical(["a", "a", None, "b"]), "age": 1.0}),
        pl.DataFrame({"city": ["a", "a", None, None], "age": 1.0}),
        pa.table({"city": ["a", "a", None, "b"], "age": [1.0] * 4}),
    ],
)
def test_missing_text_is_refused_by_column_and_row(frame):
    with pytest.raises(ValueError, match=r"'city' contains NaN .* row 2 .*'missing'"):
        TableEncoder.learn(frame)
    encoder = learned(pl.DataFrame({"city": ["a"], "age": [1.0]}))
    with pytest.raises(ValueError, match=r"'city' contains NaN .* row 2 "):
        encoder.encode(frame)


@pytest.mark.parametrize("bad", [np.nan, None, np.inf])
@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_a_missing_or_infinite_number_is_refused_by_column_and_row(kind, bad):
    frame = MAKERS[kind]({"city": ["a", "b"] * 2, "age": [1.0, bad, 2.0, bad]})
    what, advice = ("infinity", "clip it") if bad == np.inf else ("NaN", 'missing="mean"')
    with pytest.raises(ValueError, match=rf"'age' contains {what}.* row 1 .*{advice}"):
        TableEncoder.learn(frame).encode(frame)


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_a_number_too_large_for_float32_is_refused(kind):
    city = ["a", "b"]
    encoder = learned(MAKERS[kind]({"city": city, "age": np.ones(2, dtype=np.float32)}))
    with pytest.raises(ValueError, match=r"'age' contains .*too large for float32, first in row 1"):
        encoder.encode(MAKERS[kind]({"city": city, "age": np.array([1, 1e300])}))


@pytest.mark.parametrize(
    ("column", "dtype"),
    [
        (pd.to_datetime(["2020-01-01"] * 2), "Datetime"),
        (pd.Series([[1], [2]]), "Object"),
        (pd.Series([1, "2"], dtype=object), "Object"),
        (np.array([1j, 2j]), "Unknown"),
        (pl.Series([datetime.date(2020, 1, 1)] * 2), "Date"),
        (pl.Series([[1], [2]]), "List"),
        (pl.Series([{"a": 1}] * 2), "Struct"),
        (pl.Series([b"a", b"b"]), "Binary"),
        (pl.Series([object(), object()], dtype=pl.Object), "Object"),
    ],
)
def test_a_column_of_another_kind_is_refused_by_name_and_dtype(column, dtype):
    frame = (pl if isinstance(column, pl.Series) else pd).DataFrame({"when": column})
    words = rf"'when' has dtype {dtype}.*[Dd]rop (it|the column), or turn it into"
    if dtype.startswith("Date"):
        words = rf"'when' holds dates or times \({dtype}\).*Turn them into numbers"
    with pytest.raises(ValueError, match=words):
        TableEncoder.learn(frame)


def test_object_and_sparse_columns_of_numbers_are_numbers():
    frame = pd.DataFrame(
        {
            "city": ["a", "b"] * 2,
            "x": pd.Series([1, 2.5, True, 0], dtype=object),
            "z": pd.arrays.SparseArray([0.0, 0.0, 3.0, 0.0]),
            "i": pd.array([1, 2, 3, 4], dtype="Int64"),
        }
    )
    X, _ = TableEncoder.learn(frame).encode(frame)
    np.testing.assert_array_equal(X.toarray()[:, 2:], frame.iloc[:, 1:].astype(float))


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (pl.DataFrame({"age": [1.0], "city": ["a"]}), "must be in the same order"),
        (pl.DataFrame({"city": ["a"]}), "now missing: 'age'"),
        (pl.DataFrame({"city": ["a"], "age": 1.0, "new": 2.0}), "unseen at fit time: 'new'"),
        (pl.DataFrame({"city": ["a"], "age": ["1"]}), "'age' has dtype String, .* held numbers"),
        (pl.DataFrame({"city": [1.0], "age": [1.0]}), "'city' has dtype Float64, .* held text"),
        (np.ones((1, 2)), "but a ndarray was given"),
    ],
)
def test_a_table_with_other_columns_is_refused(frame, words):
    encoder = learned(pl.DataFrame({"city": ["a", "b"], "age": [1.0, 2.0]}))
    with pytest.raises(ValueError, match=words):
        encoder.encode(frame)


def test_two_columns_of_the_same_name_are_refused():
    frame = pl.DataFrame({"a": ["b=c"] * 2, "a=b": ["c"] * 2})
    with pytest.raises(ValueError, match="would be named 'a=b=c'"):
        TableEncoder.learn(frame)


def test_a_table_without_rows_is_encoded_into_no_rows():
    encoder = learned(pl.DataFrame({"city": ["a", "b"], "age": [1.0, 2.0]}))
    empty = pl.DataFrame(schema={"city": pl.String, "age": pl.Float64})
    assert encoder.encode(empty)[0].shape == (0, 3)
    assert TableEncoder.learn(empty).names == ("age",)


def test_memory_does_not_grow_with_the_number_of_levels():
    n = 20_000
    frame = pl.DataFrame({"id": [f"level {i % (n // 2)}" for i in range(n)], "x": np.ones(n)})
    encoder = TableEncoder.learn(frame)
    tracemalloc.start()
    X, _ = encoder.encode(frame)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert X.shape == (n, n // 2 + 1)
    # 40,000 entries at 12 bytes, their parts at 24, and the levels' names; dense rows take 1.6 GB.
    assert peak < 10e6


def assorted(seed, n=ROWS):
    """Return columns of which the groups are known, with numbers and 0/1 columns in between."""
    rng = np.random.default_rng(seed)
    blocks, groups, at = [], [], 0
    for kind in rng.choice(["field", "number", "binary"], size=rng.integers(1, 8)):
        if kind == "field":
            block = np.eye(rng.integers(2, 6))
            block = block[rng.permutation(np.resize(np.arange(len(block)), n))]
            groups.append(frozenset(range(at, at + block.shape[1])))
        elif kind == "number":
            block = rng.standard_normal((n, 1)).round(1)  # zeros and ones among them
        else:
            block = (rng.uniform(size=(n, rng.integers(1, 4))) < 0.3).astype(float)
        blocks.append(block)
        at += block.shape[1]
    return np.hstack(blocks), groups


FORMS = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "float32": np.float32,
    "csr": sparse.csr_array,
    "csc": sparse.csc_array,
    "torch": torch.asarray,
    "strict": array_api_strict.asarray,
}


@given(seed=st.integers(0, 1000), form=st.sampled_from(sorted(FORMS)))
def test_the_groups_are_found_and_no_others(seed, form):
    X, groups = assorted(seed)
    assert sets(find_fields(FORMS[form](X))) == set(groups)


@given(seed=st.integers(0, 1000), as_sparse=st.booleans())
def test_permuting_columns_permutes_the_groups(seed, as_sparse):
    X, groups = assorted(seed)
    order = np.random.default_rng(seed).permutation(X.shape[1])
    permuted = X[:, order]
    fields = find_fields(sparse.csr_array(permuted) if as_sparse else permuted)
    assert sets([order[field] for field in fields]) == set(groups)


@given(seed=st.integers(0, 1000), q=st.floats(0.05, 0.95), as_sparse=st.booleans())
def test_no_group_is_invented_among_random_columns(seed, q, as_sparse):
    X = (np.random.default_rng(seed).uniform(size=(300, 12)) < q).astype(float)
    assert find_fields(sparse.csr_array(X) if as_sparse else X) == ()


@given(seed=st.integers(0, 1000))
def test_the_fields_of_an_encoded_table_are_found(seed):
    frame = pl.DataFrame(columns(seed))
    encoder = learned(frame)
    assert sets(find_fields(encoder.encode(frame)[0])) == sets(encoder.fields)


@given(seed=st.integers(0, 1000), as_sparse=st.booleans())
def test_a_row_of_weight_zero_does_not_count(seed, as_sparse):
    X, groups = assorted(seed)
    weight = np.ones(len(X) + 1)
    weight[seed % len(X)] = 0
    X = np.insert(X, seed % len(X), 0.5, axis=0)
    X = sparse.csr_array(X) if as_sparse else X
    assert sets(find_fields(X, weight)) == set(groups)
    assert find_fields(X) == ()


@pytest.mark.parametrize("as_sparse", [False, True])
def test_groups_are_found_across_blocks_of_rows(monkeypatch, as_sparse):
    monkeypatch.setattr("quadlin.core.chunks.BLOCK_ELEMENTS", 50)
    for seed in range(20):
        X, groups = assorted(seed)
        assert sets(find_fields(sparse.csr_array(X) if as_sparse else X)) == set(groups)


def test_a_pair_is_a_group_and_a_constant_is_not():
    x = np.array([1.0, 0.0, 0.0, 1.0])
    assert sets(find_fields(np.column_stack([x, 1 - x]))) == {frozenset([0, 1])}
    assert sets(find_fields(np.column_stack([x, np.ones(4), 1 - x]))) == {frozenset([0, 2])}
    assert find_fields(np.ones((4, 1))) == ()
    assert find_fields(np.column_stack([np.ones(4), np.zeros(4)])) == ()
    assert find_fields(np.column_stack([x, x])) == ()


def test_a_level_that_never_occurs_is_left_out_of_its_group():
    X = np.eye(4)[[0, 1, 3, 3, 0]]
    assert sets(find_fields(X)) == {frozenset([0, 1, 3])}


def test_unsorted_indices_are_read_in_order():
    #                      rows: 1 0 1 0, 1 0 0 1, 0 1 0 1
    X = sparse.csr_array((np.ones(6), [2, 0, 3, 0, 3, 1], [0, 2, 4, 6]), shape=(3, 4))
    assert sets(find_fields(X)) == {frozenset([0, 1]), frozenset([2, 3])}
    X = sparse.csr_array((np.ones(3), [2, 0, 1], [0, 3, 3, 3]), shape=(3, 3))
    assert find_fields(X) == ()


def test_an_entry_stored_twice_is_not_a_one():
    X = sparse.csr_array((np.ones(3), [0, 0, 1], [0, 2, 3, 3]), shape=(3, 2))
    assert find_fields(X) == ()  # three ones in three rows, but the third row has none


def test_a_stray_word_among_numbers_is_named():
    ages = [str(age) for age in range(60)] * 5
    for stray, words in (
        ("old", "'age' is treated as text.*'old' among its 61 values"),
        ("?", r"'age' has '\?', which usually stands for .*: all its other values are numbers"),
    ):
        ages[17] = stray
        with pytest.warns(UserWarning, match=words):
            TableEncoder.learn(pl.DataFrame({"age": ages}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TableEncoder.learn(pl.DataFrame({"zip": [f"{code:05d}" for code in range(60)] * 5}))


@given(seed=st.integers(0, 1000), cut=st.integers(0, 60), as_sparse=st.booleans())
def test_the_counts_of_two_chunks_add_to_those_of_both(seed, cut, as_sparse):
    X, _ = assorted(seed)
    form = sparse.csr_array if as_sparse else np.asarray
    cut = cut % len(X)
    parts = [field_counts(Chunk(form(part), None, None)) for part in (X[:cut], X[cut:])]
    whole, total = field_counts(Chunk(form(X), None, None)), parts[0] + parts[1]
    assert total.rows == whole.rows
    # More rows side by side rule more columns out. What is counted in others is never used.
    assert not np.any(whole.eligible & ~total.eligible)
    np.testing.assert_array_equal(total.ones[whole.eligible], whole.ones[whole.eligible])


def test_random_zeros_and_ones_are_ruled_out_by_a_few_rows_and_fields_among_them_are_not():
    rng = np.random.default_rng(0)
    noise = (rng.random((2000, 50)) < 0.1).astype(np.float32)
    field = np.eye(4, dtype=np.float32)[rng.integers(4, size=2000)]
    where = [3, 17, 30, 44]
    X = noise.copy()
    X[:, where] = field
    walks = []

    def fields_of(X):
        rows = Rows.of(MemorySource(X, block_rows=500))
        fields = fields_among(lambda fn, *params: rows.reduce(fn, *params), X.shape[1])
        walks.append(rows.walks)
        return fields

    assert fields_of(noise) == ()
    (columns,) = fields_of(X)
    np.testing.assert_array_equal(columns, where)
    # 50 columns of frequency 0.1 leave no pair apart in 500 rows: 0.99⁵⁰⁰ = 0.7%, and 3 partners do
    # not cover a row. So one walk tells that there is nothing; scattered columns need two.
    assert walks == [1, 2]
    assert not field_counts(Chunk(noise[:500], None, None)).eligible.any()


@pytest.mark.parametrize("workers", [1, 3])
def test_fields_are_found_by_sums_that_an_engine_carries_out(workers):
    for seed in range(10):
        X, groups = assorted(seed)
        rows = Rows(Threads(MemorySource(X, block_rows=7), workers))
        among = fields_among(rows.reduce, X.shape[1])
        assert sets(among) == set(groups)


def test_first_rows_that_rule_every_field_out_save_the_walk():
    for seed in range(10):
        X, groups = assorted(seed)
        rows = Rows.of(MemorySource(X))
        assert sets(fields_among(rows.reduce, X.shape[1], Chunk(X, None, None))) == set(groups)
    numbers = np.random.default_rng(0).standard_normal((200, 4))
    numbers[:, 0] = numbers[:, 0] > 0  # one column alone makes no field
    rows = Rows.of(MemorySource(numbers))
    assert fields_among(rows.reduce, 4, Chunk(numbers, None, None)) == ()
    assert rows.walks == 0
    # 300 columns of frequency 0.1: in 512 rows two are apart with probability .99⁵¹² = .6%, so each
    # has two partners or so, which cover a fifth of the rows. 256 rows do not rule them out.
    noise = (np.random.default_rng(0).random((3000, 300)) < 0.1).astype(np.float32)
    rows = Rows.of(MemorySource(noise))
    assert fields_among(rows.reduce, 300, Chunk(noise, None, None)) == ()
    assert rows.walks == 0
    # Rows of weight zero say nothing: the others are a field.
    pair = np.eye(2)[np.arange(200) % 2]
    pair[:64], weight = 0.5, np.repeat([0.0, 1.0], [64, 136])
    rows = Rows.of(MemorySource(pair, None, weight))
    assert len(fields_among(rows.reduce, 2, Chunk(pair, None, weight))) == 1


def test_given_fields_are_checked_by_one_sum_that_names_the_broken_one():
    X = np.eye(4)[[0, 1, 2, 3, 0, 1]]
    X[5, 3] = 1.0  # the last row has two ones in the second group
    names, walks = ["a", "b", "c", "d"], []

    def summed(fn, *params):
        walks.append(fn.__name__)
        return Rows.of(MemorySource(X, block_rows=2)).reduce(fn, *params)

    check_one_hot(summed, given_fields([["a", "b"]], names), names)
    with pytest.raises(ValueError, match="The field of b, d is not one-hot"):
        check_one_hot(summed, given_fields([["a", "c"], ["b", "d"]], names), names)
    assert len(walks) == 2


def test_given_fields_of_sparse_rows_are_checked_as_those_of_dense_rows_are():
    good = np.eye(4)[[0, 1, 2, 3, 0, 1]]
    twice, half, unknown = good.copy(), good.copy(), good.copy()
    twice[3, 0], half[2, 1], unknown[4, 3] = 1.0, 0.5, np.nan
    for X, broken in ((good, False), (twice, True), (half, True), (unknown, True)):
        for rows in (X, sparse.csr_array(X)):
            flags = groups_not_one_hot(Chunk(rows, None, None), [np.arange(4)])
            assert flags.seen.tolist() == [broken]
    weight = np.array([1.0, 1.0, 1.0, 0.0, 1.0, 1.0])  # the row with two ones does not count
    chunk = Chunk(sparse.csr_array(twice), None, weight)
    assert not groups_not_one_hot(chunk, [np.arange(4)]).seen.any()


def test_the_check_of_given_fields_takes_no_memory_for_the_zeros_of_sparse_rows():
    n, levels = 4000, 1000  # 32 MB with zeros, 48 kB without
    level = np.random.default_rng(0).integers(levels, size=n)
    X = sparse.csr_array((np.ones(n), level, np.arange(n + 1)), shape=(n, levels))
    tracemalloc.start()
    flags = groups_not_one_hot(Chunk(X, None, None), [np.arange(levels)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not flags.seen.any()
    assert peak < 1e6


def test_zeros_that_sparse_rows_store_and_the_order_of_entries_change_no_counts():
    data = [1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    rows = sparse.csr_array((data, [0, 3, 1, 2, 3, 4, 1], [0, 2, 2, 5, 7]), (4, 5))
    plain = sparse.csr_array(rows.toarray())
    counts, expected = (field_counts(Chunk(X, None, None)) for X in (rows, plain))
    assert counts.rows == expected.rows == 4
    for name in ("eligible", "ones", "after"):
        np.testing.assert_array_equal(getattr(counts, name), getattr(expected, name))
