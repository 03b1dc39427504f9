"""Laws of the search for one-hot groups among columns."""

import array_api_strict
import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.engine import Threads
from quadlin.core.rows import Rows
from quadlin.data.columns import TableEncoder
from quadlin.data.fields import (
    field_counts,
    fields_among,
    groups_not_one_hot,
)

ROWS = 60  # 0/1 columns drawn at random make a group by chance with probability < 2⁻⁶⁰ each


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


def sets(fields):
    return {frozenset(field.tolist()) for field in fields}


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


@given(seed=st.integers(0, 1000), q=st.floats(0.05, 0.95), as_sparse=st.booleans())
def test_no_group_is_invented_among_random_columns(seed, q, as_sparse):
    X = (np.random.default_rng(seed).uniform(size=(300, 12)) < q).astype(float)
    assert find_fields(sparse.csr_array(X) if as_sparse else X) == ()


@given(seed=st.integers(0, 1000))
def test_the_fields_of_an_encoded_table_are_found(seed):
    frame = pl.DataFrame(columns(seed))
    encoder = TableEncoder.learn(frame)
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


def test_a_pair_is_a_group_and_a_constant_is_not():
    x = np.array([1.0, 0.0, 0.0, 1.0])
    assert sets(find_fields(np.column_stack([x, 1 - x]))) == {frozenset([0, 1])}
    assert find_fields(np.column_stack([x, np.ones(4), 1 - x])) == ()
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


@pytest.mark.parametrize("workers", [1, 3])
def test_fields_are_found_by_sums_that_an_engine_carries_out(workers):
    for seed in range(10):
        X, groups = assorted(seed)
        rows = Rows(Threads(MemorySource(X, block_rows=7), workers))
        among = fields_among(rows.reduce, X.shape[1])
        assert sets(among) == set(groups)


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


def test_zeros_that_sparse_rows_store_and_the_order_of_entries_change_no_counts():
    data = [1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    rows = sparse.csr_array((data, [0, 3, 1, 2, 3, 4, 1], [0, 2, 2, 5, 7]), (4, 5))
    plain = sparse.csr_array(rows.toarray())
    counts, expected = (field_counts(Chunk(X, None, None)) for X in (rows, plain))
    assert counts.rows == expected.rows == 4
    for name in ("eligible", "ones", "after"):
        np.testing.assert_array_equal(getattr(counts, name), getattr(expected, name))
