"""Integers that float64 cannot tell apart are named, as features and as targets, from anywhere."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quadlin import SecondOrderRegressor, open_source

N = 40
SMALL = np.arange(N) ** 2 % 7.0
FROM_2_TO_53 = [2**53 + i for i in range(N)]
FROM_2_TO_63 = [2**63 + i for i in range(N)]
APART = [2**53 + 10**6 * i for i in range(N)]  # multiples of 2 are near enough


def arrays(numbers, folder):
    return np.array([numbers, SMALL], dtype=object).T, numbers


def lists(numbers, folder):
    return [list(row) for row in zip(numbers, SMALL, strict=True)], numbers


def frames(numbers, folder):
    frame = pd.DataFrame({"id": np.array(numbers, dtype=object), "x": SMALL})
    return frame, frame["id"]


def text_files(numbers, folder):
    pd.DataFrame({"id": numbers, "x": SMALL, "y": SMALL}).to_csv(folder / "rows.csv", index=False)
    return folder / "rows.csv", None


def parquet_files(numbers, folder):
    table = pa.table({"id": pa.array(numbers, pa.uint64()), "x": SMALL, "y": SMALL})
    pq.write_table(table, folder / "rows.parquet")
    return folder / "rows.parquet", None


def fit(form, numbers, as_target, folder):
    X, y = form(numbers, folder)
    model = SecondOrderRegressor(rank=0, alpha=1.0)
    if y is None:
        return model.fit(open_source(X, target="id" if as_target else "y"))
    return model.fit(SMALL[:, None], y) if as_target else model.fit(X, SMALL)


FORMS = [arrays, lists, frames, text_files, parquet_files]


@pytest.mark.parametrize("as_target", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_integers_that_float64_merges_are_refused_or_named(tmp_path, form, as_target):
    with pytest.raises(ValueError, match="which float64 rounds to multiples of 2"):
        fit(form, FROM_2_TO_53, as_target, tmp_path)
    with pytest.warns(UserWarning, match="of this size to multiples of 2048"):
        fit(form, FROM_2_TO_63, as_target, tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_large_integers_that_are_far_apart_are_fitted(tmp_path, form):
    model = fit(form, APART, False, tmp_path)
    assert np.isfinite(model.coef_).all()
