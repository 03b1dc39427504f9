"""Peak memory, measured by memray: X is not copied, and a stream holds no more than a batch."""

import numpy as np
import pytest
from scipy import sparse

from quadlin import SecondOrderRegressor

D, K, BATCH = 400, 4, 4000  # the first batch has two rows per parameter at least
STATE = 20 * K * D * 8  # bytes: twenty times the factor, in float64


def rows(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, D))
    return X, X[:, 0] * X[:, 1] + X[:, 2] + 0.1 * rng.standard_normal(n)


CHUNK = rows(500, 0)
CHUNK[0] @ (CHUNK[0].T @ CHUNK[0])  # the linear algebra library takes its own buffers once


def stream(chunks):
    # The same rows again and again: what is allocated is the model's alone.
    model = SecondOrderRegressor(rank=K, batch_size=BATCH, random_state=0, alpha=0.0)
    for _ in range(chunks):
        model.partial_fit(*CHUNK)
    return model


# One batch with its targets and weights, a block of standardised rows with its temporaries
# (3 × 4 MB), and the state.
LIMIT = BATCH * (D + 2) * 8 + 3 * (1 << 19) * 8 + STATE


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
WIDE = sparse.random_array((20_000, 50_000), density=2e-4, format="csr", rng=0)


@pytest.mark.limit_memory("300 MB")
def test_sparse_rows_are_never_dense():
    # Dense they would take 8 GB. The d×(k+4)·4 start takes 77 MB of this.
    y = np.asarray(WIDE.sum(axis=1)).ravel()
    SecondOrderRegressor(rank=2, max_iter=2, tol=0.5, random_state=0, alpha=0.0).fit(WIDE, y)
