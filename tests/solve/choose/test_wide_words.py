"""Wide sparse rows of counts: no squares by default, so that fits go by columns."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_array

from quadlin import (
    FactorizationMachineRegressor,
    SecondOrderClassifier,
    SecondOrderRegressor,
    load,
    save,
)

COLUMNS = 1600


@pytest.fixture(scope="module")
def words():
    rng = np.random.default_rng(0)
    share = 1 / np.arange(1, COLUMNS + 1)
    X = csr_array(rng.poisson(20 * share / share.sum(), (600, COLUMNS)).astype(float))
    f = X @ rng.standard_normal(COLUMNS)
    f = (f - f.mean()) / f.std()
    return X, f, f + 0.5 * rng.standard_normal(600)


def test_wide_sparse_rows_have_no_squares_unless_they_are_asked_for(words):
    X, _, y = words
    options = {"rank": 2, "alpha": 300.0, "random_state": 0}
    model = SecondOrderRegressor(**options).fit(X, y)
    machine = FactorizationMachineRegressor(**options).fit(X, y)
    assert not model.has_diagonal_.any()
    assert_allclose(model.predict(X), machine.predict(X), rtol=1e-12)
    common = np.arange(COLUMNS) < 20
    assert SecondOrderRegressor(diagonal=common, **options).fit(X, y).has_diagonal_[:20].all()


@pytest.mark.parametrize("rows", ["dense", "unpenalised", "narrow", "many"])
def test_other_rows_have_squares(words, rows):
    X, _, y = words
    options = {"rank": 1, "alpha": 300.0, "max_iter": 2}
    if rows == "dense":
        X = X.toarray()
    elif rows == "unpenalised":
        options["alpha"] = 0.0
    elif rows == "narrow":
        X = X[:, :1000]
    elif rows == "many":  # more rows than parameters
        times = np.tile(np.arange(600), 6)
        X, y = X[times], y[times]
    with pytest.warns() if rows == "unpenalised" else np.errstate():
        model = SecondOrderRegressor(**options).fit(X, y)
    assert model.has_diagonal_.any()


def test_labels_and_counts_go_by_columns_as_well(words):
    X, f, _ = words
    rng = np.random.default_rng(1)
    labels = rng.uniform(size=600) < 1 / (1 + np.exp(-3 * f))
    model = SecondOrderClassifier().fit(X, labels)
    assert not model.has_diagonal_.any()
    assert np.mean(model.predict(X) == labels) > 0.7
    counts = SecondOrderRegressor(loss="poisson").fit(X, rng.poisson(np.exp(f)))
    assert not counts.has_diagonal_.any()


def test_a_stream_goes_on_without_squares(words, tmp_path):
    X, _, y = words
    model = SecondOrderRegressor(rank=1, alpha=300.0).fit(X[:500], y[:500])
    save(model, tmp_path / "m.safetensors")
    loaded = load(tmp_path / "m.safetensors")
    for each in (model, loaded):
        each.partial_fit(X[500:], y[500:])
        assert not each.has_diagonal_.any()
        assert each.n_samples_seen_ == 600
    assert_allclose(loaded.predict(X), model.predict(X), rtol=1e-9)
