"""A common factor of all weights says nothing: what is chosen from weighted rows is the same."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix

from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    SecondOrderClassifier,
    SecondOrderRegressor,
    open_source,
)

SCALES = (0.2, 0.5, 3.0)


def ratings(n=1500, seed=0):
    rng = np.random.default_rng(seed)
    u, i = rng.integers(60, size=n), rng.integers(40, size=n)
    taste, kind = rng.normal(size=(60, 2)), rng.normal(size=(40, 2))
    f = rng.normal(size=60)[u] + np.sum(taste[u] * kind[i], axis=1)
    rows = pd.DataFrame({"user": u.astype(str), "film": i.astype(str)})
    return rows, f + rng.normal(size=n)


@pytest.mark.parametrize("options", [{}, {"draws": 10}])
@pytest.mark.parametrize("kind", [FactorizationMachineRegressor, FactorizationMachineClassifier])
def test_a_machine_does_not_depend_on_the_scale_of_the_weights(kind, options):
    rows, y = ratings(4000)
    target = y if kind is FactorizationMachineRegressor else y > 0
    plain = kind(random_state=0, **options).fit(rows, target)
    decay = np.exp(-np.arange(len(y)) / 800)
    relative = kind(random_state=0, **options).fit(rows, target, sample_weight=decay)
    assert plain.rank_ > 0
    for scale in SCALES:
        even = np.full(len(y), scale)
        for weight, oracle in ((even, plain), (scale * decay, relative)):
            model = kind(random_state=0, **options).fit(rows, target, sample_weight=weight)
            assert model.rank_ == oracle.rank_
            expected = oracle.predict(rows)
            np.testing.assert_allclose(model.predict(rows), expected, rtol=1e-6, atol=1e-6)
            if oracle is plain:  # the objective is the same with penalties as many times larger
                np.testing.assert_allclose(model.alpha_, scale * np.array(plain.alpha_), rtol=1e-6)


def test_relative_weights_cost_a_machine_little():
    rows, y = ratings(3000)
    kept = np.arange(3000) < 2500
    errors = []
    for weight in (np.ones(2500), np.random.default_rng(1).integers(1, 4, 2500)):
        model = FactorizationMachineRegressor(random_state=0)
        model.fit(rows[kept], y[kept], sample_weight=weight)
        errors.append(np.sqrt(np.mean((model.predict(rows[~kept]) - y[~kept]) ** 2)))
    # Kish's effective number of rows is 6/7 of them; taken for counts, they cost 40%.
    assert errors[1] < 1.05 * errors[0]


@pytest.mark.parametrize("classes", [2, 3])
def test_a_classifier_does_not_depend_on_the_scale_of_the_weights(classes):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    y = (X[:, 0] * X[:, 1] + X[:, 2] + rng.normal(size=200) > 0).astype(int)
    y = y + (X[:, 3] > 0) * (classes == 3)
    oracle = SecondOrderClassifier(random_state=0).fit(X, y)
    for scale in SCALES:
        model = SecondOrderClassifier(random_state=0)
        model.fit(X, y, sample_weight=np.full(200, scale))
        np.testing.assert_allclose(model.predict_proba(X), oracle.predict_proba(X), atol=1e-5)


def test_counts_do_not_depend_on_the_scale_of_the_weights():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = rng.poisson(np.exp(0.5 * X[:, 0] * X[:, 1] + 0.3 * X[:, 2]))
    oracle = SecondOrderRegressor(loss="poisson", random_state=0).fit(X, y)
    for scale in SCALES:
        model = SecondOrderRegressor(loss="poisson", random_state=0)
        model.fit(X, y, sample_weight=np.full(300, scale))
        assert model.rank_ == oracle.rank_
        np.testing.assert_allclose(model.predict(X), oracle.predict(X), rtol=1e-5)


def test_whole_numbers_count_labels_and_say_so():
    rng = np.random.default_rng(0)
    city, kind = (np.array([0, 0, 1, 1] * 2), np.array([0, 1, 0, 1] * 2))
    table = pd.DataFrame({"city": city.astype(str), "kind": kind.astype(str)})
    likes = np.repeat([0, 1], 4)
    counts = np.where((city == kind) == (likes == 1), 90, 10)
    machine = FactorizationMachineClassifier(random_state=0)
    with pytest.warns(UserWarning, match="8 rows count as 40"):  # 9 and 1, four times each
        machine.fit(table, likes, sample_weight=counts)
    rows = table.loc[np.repeat(np.arange(8), counts // 10)]
    order = rng.permutation(len(rows))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # ours: old versions of narwhals have others
        repeated = FactorizationMachineClassifier(random_state=0)
        repeated.fit(rows.iloc[order], np.repeat(likes, counts // 10)[order])
    P = machine.predict_proba(table)
    np.testing.assert_allclose(P, repeated.predict_proba(table), atol=1e-6)


def test_a_file_with_weights_is_fitted_as_the_frame_is(tmp_path):
    rows, y = ratings(800)
    weight = np.exp(-np.arange(800) / 300)
    frame = rows.assign(y=(y > 0).astype(int), w=weight)
    frame.to_parquet(tmp_path / "likes.parquet")
    source = open_source(tmp_path / "likes.parquet", target="y", weight="w")
    of_file = FactorizationMachineClassifier(random_state=0).fit(source)
    of_frame = FactorizationMachineClassifier(random_state=0)
    of_frame.fit(rows, frame.y, sample_weight=weight)
    P = of_frame.predict_proba(rows)
    np.testing.assert_allclose(of_file.predict_proba(rows), P, atol=1e-6)


def test_class_weights_of_a_machine_count_once():
    rows, y = ratings()
    likes = (y > 1).astype(int)
    by_class = FactorizationMachineClassifier(class_weight={0: 0.5, 1: 1.5}, random_state=0)
    by_row = FactorizationMachineClassifier(alpha="auto", random_state=0)
    weight = np.where(likes == 1, 1.5, 0.5)
    weight = weight * (weight.sum() / (weight**2).sum())  # what relative weights are scaled to
    by_class.set_params(class_weight={0: weight[likes == 0][0], 1: weight[likes == 1][0]})
    P = by_class.fit(rows, likes).predict_proba(rows)
    expected = by_row.fit(rows, likes, sample_weight=weight).predict_proba(rows)
    np.testing.assert_allclose(P, expected, atol=1e-6)


def test_levels_may_occur_in_rows_of_weight_zero_alone():
    rng = np.random.default_rng(0)
    n, levels = 1500, 700
    c = np.stack([rng.integers(levels, size=n) + levels * i for i in range(3)], axis=1)
    X = csr_matrix((np.ones(3 * n), (np.repeat(np.arange(n), 3), c.ravel())), (n, 3 * levels))
    y = rng.normal(size=3 * levels)[c].sum(axis=1)
    weight = np.where(c[:, 0] == c[7, 0], 0.0, 1.0)  # all rows of one level
    kept = weight > 0
    model = FactorizationMachineRegressor(random_state=0).fit(X, y, sample_weight=weight)
    oracle = FactorizationMachineRegressor(random_state=0).fit(X[kept], y[kept])
    assert model.rank_ == oracle.rank_
