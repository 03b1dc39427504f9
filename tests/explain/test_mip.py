import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from quadlin import Moments, mip_report


@pytest.mark.parametrize("q", [0.5, 0.1, 0.001])
def test_features_of_two_values_and_constants_are_reported(q):
    two = (np.random.default_rng(0).uniform(size=20_000) < q) * 7.0 - 3.0
    three = two + 3.0 * (np.arange(20_000) % 1000 == 0)
    report = mip_report(Moments.of(np.column_stack([two, three, np.ones(20_000)])))
    assert (report.kind[0], report.kind[2]) == ("two-valued", "constant")


@pytest.mark.parametrize("form", [np.asarray, np.ndarray.tolist, sparse.csr_array, pd.DataFrame])
def test_rows_are_reported_on_as_well_as_their_moments(form):
    X = np.column_stack([np.arange(8.0), np.arange(8) % 2, np.ones(8)])
    report = mip_report(form(X))
    assert report.kind == ["free", "two-valued", "constant"]
    assert report.names == (["0", "1", "2"] if form is pd.DataFrame else ["x0", "x1", "x2"])


@pytest.mark.parametrize("rows", [pd.DataFrame({"a": ["x", "y"]}), np.arange(3.0), "X", None])
def test_what_has_no_moments_is_refused_in_words(rows):
    with pytest.raises(TypeError, match="takes Moments, or rows of numbers"):
        mip_report(rows)
