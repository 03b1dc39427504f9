"""Peak memory, measured by memray: X is not copied, and a stream holds no more than a batch."""

import numpy as np
import pytest
from scipy import sparse

import quadlin.stream.anneal as annealing
import quadlin.stream.power_iteration as starts
import quadlin.stream.row_sample as row_sample
import quadlin.stream.stages as beginning
import quadlin.stream.stream as streams
from quadlin import SecondOrderClassifier, SecondOrderRegressor
from quadlin.stream.memory import NUMBERS

D, K, BATCH = 400, 4, 4000  # the first batch has two rows per parameter at least
STATE = 20 * K * D * 8  # bytes: twenty times the factor, in float64


def rows(n, seed, d=D):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, X[:, 0] * X[:, 1] + X[:, 2] + 0.1 * rng.standard_normal(n)


CHUNK = rows(500, 0)
CHUNK[0] @ (CHUNK[0].T @ CHUNK[0])  # the linear algebra library takes its own buffers once
# And modules are loaded on first use.
SecondOrderRegressor(1, alpha=0.0, random_state=0).partial_fit(CHUNK[0][:, :3], CHUNK[1])


def stream(chunks):
    # The same rows again and again: what is allocated is the model's alone.
    model = SecondOrderRegressor(rank=K, batch_size=BATCH, random_state=0, alpha=0.0)
    for _ in range(chunks):
        model.partial_fit(*CHUNK)
    return model


# One batch with its targets and weights, a block of standardised rows with its temporaries
# (3 × 4 MB), the state, and the sample of all rows with the one that replaces it.
LIMIT = BATCH * (D + 2) * 8 + 3 * (1 << 19) * 8 + STATE + 2 * row_sample.NUMBERS * 8


@pytest.mark.limit_memory(f"{LIMIT} B")
def test_a_stream_holds_one_batch():
    stream(8)


@pytest.mark.limit_memory(f"{LIMIT} B")
def test_a_longer_stream_holds_no_more():
    stream(60)


BIG = rows(40_000, 1)  # 128 MB


@pytest.mark.limit_memory("24 MB")
def test_fit_copies_no_more_than_a_block():
    SecondOrderRegressor(rank=K, max_iter=3, tol=0.5, random_state=0, alpha=0.0).fit(*BIG)


@pytest.mark.limit_memory("24 MB")
def test_fortran_order_is_not_copied_either():
    SecondOrderRegressor(rank=K, max_iter=2, tol=0.5, random_state=0, alpha=0.0).fit(
        FORTRAN, BIG[1]
    )


FORTRAN = np.asfortranarray(BIG[0])
_RNG = np.random.default_rng(0)
WIDE = sparse.coo_array(  # 10 columns a row
    (_RNG.uniform(size=200_000), (np.arange(200_000) // 10, _RNG.integers(50_000, size=200_000))),
    shape=(20_000, 50_000),
).tocsr()


@pytest.mark.limit_memory("300 MB")
def test_sparse_rows_are_never_dense():
    # Dense they would take 8 GB. The d×(k+4)·4 start takes 77 MB of this.
    y = np.asarray(WIDE.sum(axis=1)).ravel()
    SecondOrderRegressor(rank=2, max_iter=2, tol=0.5, random_state=0, alpha=0.0).fit(WIDE, y)


STRICT_D, STRICT_ROWS = 800, 250
STRICT = rows(STRICT_ROWS, 2, STRICT_D)


def keep_no_row(monkeypatch, calls, estimator=SecondOrderRegressor):
    """Stream the same rows again and again, through every stage, in batches of few rows."""
    # Batches are counted and not kept, so short ones take as much as long ones.
    monkeypatch.setattr(streams.Stream, "_dof", 20)
    monkeypatch.setattr(starts, "SIGNIFICANT", 0.0)  # the power iteration ends after one batch
    monkeypatch.setattr(beginning, "contracts", lambda *_: False)  # and so do steps of full length
    model = estimator(rank=K, max_memory="minimal", batch_size=200, random_state=0)
    named = {"classes": [0, 1]} if estimator is SecondOrderClassifier else {}
    for X, y in calls:
        model.partial_fit(X, y, **named)
    assert model.fitted_.stream.start is None  # the steps are a mean by now


NUMBERS_OF_A_STRICT_STREAM = NUMBERS * K * STRICT_D * 8


@pytest.mark.limit_memory(f"{NUMBERS_OF_A_STRICT_STREAM + STRICT[0].nbytes} B")
def test_a_strict_stream_holds_forty_numbers_per_entry_of_the_factor(monkeypatch):
    keep_no_row(monkeypatch, [STRICT] * 6)


CORRELATED = (STRICT[0] + STRICT[0][:, :1], STRICT[1])


@pytest.mark.limit_memory(f"{NUMBERS_OF_A_STRICT_STREAM + CORRELATED[0].nbytes} B")
def test_a_strict_stream_of_correlated_features_holds_no_more(monkeypatch):
    monkeypatch.setattr(annealing, "STEPS", 2)
    keep_no_row(monkeypatch, [CORRELATED] * 10)


@pytest.mark.limit_memory(f"{NUMBERS_OF_A_STRICT_STREAM + STRICT[0][:10].nbytes} B")
def test_a_strict_stream_holds_no_more_when_rows_come_in_tens(monkeypatch):
    cuts = [slice(start, start + 10) for start in range(0, STRICT_ROWS, 10)]
    keep_no_row(monkeypatch, [(STRICT[0][cut], STRICT[1][cut]) for cut in cuts * 5])


LABELLED = [(X, (y > 0).astype(np.int64)) for X, y in (STRICT, CORRELATED)]


@pytest.mark.limit_memory(f"{NUMBERS_OF_A_STRICT_STREAM + STRICT[0].nbytes} B")
def test_a_strict_stream_of_labels_holds_no_more(monkeypatch):
    monkeypatch.setattr(annealing, "STEPS", 2)
    keep_no_row(monkeypatch, [LABELLED[0]] * 10, SecondOrderClassifier)


@pytest.mark.limit_memory(f"{NUMBERS_OF_A_STRICT_STREAM + CORRELATED[0].nbytes} B")
def test_a_strict_stream_of_labels_of_correlated_features_holds_no_more(monkeypatch):
    monkeypatch.setattr(annealing, "STEPS", 2)
    keep_no_row(monkeypatch, [LABELLED[1]] * 10, SecondOrderClassifier)
