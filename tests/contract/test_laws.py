"""What must not matter does not: units, order, copies of rows and columns, forms of weights."""

import warnings
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from contract.tables import low_rank
from quadlin import FactorizationMachineRegressor, SecondOrderRegressor, SecondOrderRegressorCV

TABLE = low_rank(200, 4, 2, sigma=0.4, seed=2)
COUNTS = np.random.default_rng(0).poisson(np.exp(np.clip(TABLE.truth, -3, 3) / 2)).astype(float)
# Steps go on to the optimum, so that two ways to it end at the same numbers.
CLOSE = {"tol": 1e-13, "max_iter": 200, "random_state": 0}


class Case(NamedTuple):
    """An estimator with parameters that decide everything, or with chosen ones."""

    kind: type
    options: dict[str, Any]
    atol: float = 1e-6  # of predictions, whose spread is about 2

    def fit(self, X, weight=None, y=None):
        target = self.target if y is None else y
        return self.kind(**{**CLOSE, **self.options}).fit(X, target, sample_weight=weight)

    @property
    def target(self):
        return COUNTS if self.options.get("loss") == "poisson" else TABLE.y


PENALISED = {"rank": 2, "alpha": 1.0}
GIVEN = {
    "linear": Case(SecondOrderRegressor, {"rank": 0, "alpha": 1.0}),
    "low rank": Case(SecondOrderRegressor, PENALISED),
    "full rank": Case(SecondOrderRegressor, {"rank": 4, "alpha": 1.0}),
    "pairs": Case(SecondOrderRegressor, {"rank": 0, "alpha": 1.0, "pairs": [(0, 1), (2, 2)]}),
    "huber": Case(SecondOrderRegressor, {**PENALISED, "loss": "huber"}, 1e-4),
    "poisson": Case(SecondOrderRegressor, {**PENALISED, "loss": "poisson"}, 1e-4),
    "machine": Case(FactorizationMachineRegressor, PENALISED),
}
CHOSEN = {
    "chosen": Case(SecondOrderRegressor, {}, 1e-3),
    "chosen penalty": Case(SecondOrderRegressor, {"rank": 2}, 1e-3),
    "chosen machine": Case(FactorizationMachineRegressor, {}, 1e-3),
    "chosen huber": Case(SecondOrderRegressor, {"loss": "huber"}, 1e-2),
    "chosen poisson": Case(SecondOrderRegressor, {"loss": "poisson"}, 1e-2),
}
EVERY = {**GIVEN, **CHOSEN}


def cases(names):
    return pytest.mark.parametrize("case", [EVERY[name] for name in names], ids=list(names))


@cases(EVERY)
def test_shift_and_scale_of_features_change_no_prediction(case):
    scale, shift = np.array([1e-6, 0.3, 7.0, 1e5]), np.array([0.0, -2.0, 30.0, 1e4])
    X = TABLE.X * scale + shift
    expected = case.fit(TABLE.X).predict(TABLE.X)
    np.testing.assert_allclose(case.fit(X).predict(X), expected, atol=case.atol)


@settings(max_examples=8, deadline=None)
@given(powers=st.lists(st.integers(-8, 8), min_size=4, max_size=4), shift=st.integers(-3, 3))
def test_any_units_give_the_same_predictions(powers, shift):
    case = EVERY["low rank"]
    X = TABLE.X * 10.0 ** np.array(powers) + shift * 10.0 ** np.array(powers)
    np.testing.assert_allclose(
        case.fit(X).predict(X), case.fit(TABLE.X).predict(TABLE.X), atol=1e-5
    )


@cases(["linear", "low rank", "full rank", "pairs", "huber", "machine", *list(CHOSEN)[:4]])
def test_shift_and_scale_of_the_target_shift_and_scale_predictions(case):
    expected = 1e3 * case.fit(TABLE.X).predict(TABLE.X) - 7e4
    predicted = case.fit(TABLE.X, y=1e3 * TABLE.y - 7e4).predict(TABLE.X)
    np.testing.assert_allclose(predicted, expected, atol=1e3 * case.atol)


def test_the_sign_of_the_target_turns_the_model():
    case = EVERY["low rank"]
    one, other = case.fit(TABLE.X), case.fit(TABLE.X, y=-TABLE.y)
    np.testing.assert_allclose(other.interactions_.matrix(), -one.interactions_.matrix(), atol=1e-6)


@cases([name for name in EVERY if name != "pairs"])
def test_the_order_of_the_columns_does_not_matter(case):
    order = np.array([2, 0, 3, 1])
    one, other = case.fit(TABLE.X), case.fit(TABLE.X[:, order])
    np.testing.assert_allclose(
        other.predict(TABLE.X[:, order]), one.predict(TABLE.X), atol=case.atol
    )
    np.testing.assert_allclose(other.coef_, one.coef_[order], atol=10 * case.atol)


@cases(EVERY)
def test_the_order_of_the_rows_does_not_matter(case):
    order = np.argsort(TABLE.y)
    one = case.fit(TABLE.X)
    other = case.fit(TABLE.X[order], y=case.target[order])
    np.testing.assert_allclose(other.predict(TABLE.X), one.predict(TABLE.X), atol=case.atol)
    assert other.rank_ == one.rank_


@cases(EVERY)
def test_weights_equal_repetition(case):
    weight = np.random.default_rng(1).integers(1, 4, 200)
    with warnings.catch_warnings():  # a choice by likelihood asks whether weights are counts
        warnings.filterwarnings("ignore", ".*200 rows count", UserWarning)
        weighted = case.fit(TABLE.X, weight.astype(float))
    repeated = case.fit(np.repeat(TABLE.X, weight, axis=0), y=np.repeat(case.target, weight))
    np.testing.assert_allclose(weighted.predict(TABLE.X), repeated.predict(TABLE.X), atol=case.atol)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000))
def test_any_whole_weights_equal_repetition(seed):
    weight = np.random.default_rng(seed).integers(0, 3, 200)
    case = EVERY["full rank"]
    weighted = case.fit(TABLE.X, weight.astype(float))
    repeated = case.fit(np.repeat(TABLE.X, weight, axis=0), y=np.repeat(TABLE.y, weight))
    np.testing.assert_allclose(weighted.predict(TABLE.X), repeated.predict(TABLE.X), atol=1e-6)


def beside_rows_without_weight(case, seed=0):
    """Return a model, and one of the same rows and others of weight 0."""
    rng = np.random.default_rng(seed)
    X = np.vstack([TABLE.X, 3 * rng.standard_normal((40, 4))])
    y = np.append(case.target, rng.integers(0, 9, 40))
    return case.fit(TABLE.X), case.fit(X, np.repeat([1.0, 0.0], [200, 40]), y)


@cases([*GIVEN, "chosen", "chosen penalty", "chosen machine", "chosen poisson"])
def test_rows_of_weight_zero_are_absent(case):
    without, beside = beside_rows_without_weight(case)
    np.testing.assert_allclose(beside.predict(TABLE.X), without.predict(TABLE.X), atol=case.atol)
    np.testing.assert_allclose(beside.alpha_, without.alpha_, rtol=1e-6)


def test_rows_of_weight_zero_do_not_move_penalties_that_hubers_loss_chooses():
    for seed in range(5):
        table = low_rank(200, 5, 2, sigma=1.0, seed=seed)
        rng = np.random.default_rng(seed)
        X = np.vstack([table.X, 3 * rng.standard_normal((40, 5))])
        y = np.append(table.y, 5 * rng.standard_normal(40))
        one, other = (SecondOrderRegressor(2, loss="huber") for _ in "ab")
        one.fit(table.X, table.y)
        other.fit(X, y, sample_weight=np.repeat([1.0, 0.0], [200, 40]))
        np.testing.assert_allclose(other.alpha_, one.alpha_, rtol=1e-4)


def levels(n=800, seed=0):
    rng = np.random.default_rng(seed)
    u, i = rng.integers(30, size=n), rng.integers(20, size=n)
    a, b = rng.standard_normal((30, 2)), rng.standard_normal((20, 2))
    frame = pd.DataFrame({"u": [f"u{v:02}" for v in u], "i": [f"i{v:02}" for v in i]})
    return frame, np.sum(a[u] * b[i], axis=1) + rng.standard_normal(n)


@pytest.mark.parametrize(
    "options",
    [
        {"rank": 0, "alpha": 1.0},
        {"rank": 1, "alpha": 1.0},
        {"rank": 3},
    ],
    ids=str,
)
def test_rows_of_weight_zero_are_absent_from_text_columns(options):
    X, y = levels()
    weight = np.ones(800)
    weight[np.random.default_rng(0).choice(800, 160, replace=False)] = 0.0
    kept = weight > 0
    one, other = SecondOrderRegressor(**options), SecondOrderRegressor(**options)
    one.fit(X[kept], y[kept])
    other.fit(X, np.where(kept, y, y + 5), sample_weight=weight)
    np.testing.assert_array_equal(other.predict(X[kept]), one.predict(X[kept]))


@cases([*CHOSEN])
@pytest.mark.parametrize("size", [0.2, 3.0])
def test_a_common_factor_of_all_weights_changes_no_choice(case, size):
    one, other = case.fit(TABLE.X), case.fit(TABLE.X, np.full(200, size))
    np.testing.assert_allclose(other.predict(TABLE.X), one.predict(TABLE.X), atol=case.atol)
    assert other.rank_ == one.rank_


@pytest.mark.parametrize("options", [{}, {"draws": 20}], ids=str)
def test_a_common_factor_of_weights_changes_no_machine_of_levels(options):
    X, y = levels(1500)
    decay = np.exp(-np.arange(1500) / 500)
    one, other = (
        FactorizationMachineRegressor(random_state=0, **options).fit(X, y, sample_weight=weight)
        for weight in (decay, 3 * decay)
    )
    np.testing.assert_allclose(other.predict(X), one.predict(X), atol=1e-6)


def test_a_common_factor_of_weights_without_penalty_changes_nothing():
    weight = np.random.default_rng(0).uniform(0.5, 2, 200)
    one, other = (
        SecondOrderRegressor(2, alpha=0.0, **CLOSE).fit(TABLE.X, TABLE.y, sample_weight=each)
        for each in (weight, 1e6 * weight)
    )
    np.testing.assert_allclose(other.predict(TABLE.X), one.predict(TABLE.X), atol=1e-6)


@cases([*EVERY])
def test_the_same_rows_give_the_same_model_without_a_seed(case):
    np.random.seed(0)  # noqa: NPY002  what a global seed would change
    one = case.kind(**case.options).fit(TABLE.X, case.target).predict(TABLE.X)
    np.random.seed(1)  # noqa: NPY002
    other = case.kind(**case.options).fit(TABLE.X, case.target).predict(TABLE.X)
    np.testing.assert_array_equal(one, other)


def test_no_seed_chooses_another_model():
    predictions = [
        SecondOrderRegressor(random_state=seed, tol=1e-12).fit(TABLE.X, TABLE.y).predict(TABLE.X)
        for seed in range(3)
    ]
    np.testing.assert_allclose(predictions[1:], [predictions[0]] * 2, atol=1e-4)


@cases([*EVERY])
@pytest.mark.smoke
def test_float32_in_float32_out_and_near_float64(case):
    X = TABLE.X.astype("f4")
    model = case.fit(X, y=case.target.astype("f4"))
    predicted = model.predict(X)
    assert predicted.dtype == np.float32
    assert model.coef_.dtype == np.float32
    expected = case.fit(TABLE.X).predict(TABLE.X)
    np.testing.assert_allclose(predicted, expected, atol=max(case.atol, 2e-3))


@pytest.mark.parametrize("form", [np.asarray, np.asfortranarray, csr_array, pd.DataFrame])
@cases(["low rank", "pairs", "huber", "poisson", "machine", "chosen"])
def test_rows_and_targets_are_not_modified(case, form):
    X, y, weight = form(TABLE.X.copy()), case.target.copy(), np.linspace(0, 1, 200)
    case.fit(X, weight, y).predict(X)
    now = X.toarray() if isinstance(X, csr_array) else np.asarray(X)
    np.testing.assert_array_equal(now, TABLE.X)
    np.testing.assert_array_equal(y, case.target)
    np.testing.assert_array_equal(weight, np.linspace(0, 1, 200))


@cases(
    ["linear", "low rank", "full rank", "huber", "poisson", "machine", "chosen", "chosen penalty"]
)
def test_constant_columns_change_nothing(case):
    X = np.column_stack([TABLE.X, np.full(200, 7.0), np.zeros(200)])
    one, other = case.fit(TABLE.X), case.fit(X)
    np.testing.assert_allclose(other.predict(X), one.predict(TABLE.X), atol=case.atol)
    np.testing.assert_allclose(other.coef_[4:], 0)


@pytest.mark.parametrize(
    "options", [{"rank": 0}, {"rank": 2}, {"rank": 4}, {"rank": 2, "loss": "huber"}], ids=str
)
def test_a_copy_of_a_column_changes_no_prediction_without_penalty(options):
    X = np.column_stack([TABLE.X, 3 * TABLE.X[:, 1] + 1])
    one, other = (
        SecondOrderRegressor(alpha=0.0, **CLOSE, **options).fit(rows, TABLE.y)
        for rows in (TABLE.X, X)
    )
    np.testing.assert_allclose(other.predict(X), one.predict(TABLE.X), atol=1e-4)


def test_columns_of_float32_far_from_zero_keep_their_differences():
    # Numbers about 1.6e7, where float32 has whole numbers only.
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((500, 3)) * [9.0, 2.0, 1.0] + [1.6e7, 1e7, 3.0]).astype("f4")
    exact = X.astype(float)
    Z = (exact - exact.mean(0)) / exact.std(0)
    y = Z[:, 0] * Z[:, 1] + Z[:, 0] + 0.1 * rng.standard_normal(500)
    one, other = (SecondOrderRegressor(2, alpha=0.0).fit(rows, y) for rows in (exact, X))
    np.testing.assert_allclose(other.predict(X), one.predict(exact), atol=5e-3)


@pytest.mark.parametrize("size", [1e-100, 1e-30, 1e30, 1e100])
def test_features_of_any_size_are_modelled(size):
    X = TABLE.X * size
    model = SecondOrderRegressor(2, alpha=0.0).fit(X, TABLE.truth)
    np.testing.assert_allclose(model.predict(X), TABLE.truth, atol=1e-6)


@pytest.mark.parametrize("parameters", [{"ranks": [0, 2], "alphas": [0.1, 10.0]}])
def test_cross_validation_is_deterministic_and_ignores_units(parameters):
    one, other, scaled = (
        SecondOrderRegressorCV(cv=3, **parameters).fit(X, TABLE.y)
        for X in (TABLE.X, TABLE.X, TABLE.X * [1e-5, 1.0, 9.0, 1e3])
    )
    np.testing.assert_array_equal(one.predict(TABLE.X), other.predict(TABLE.X))
    assert (one.rank_, one.alpha_) == (scaled.rank_, scaled.alpha_)
