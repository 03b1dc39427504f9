"""Pairs beside log-odds: found, fitted to the deviance, reported and kept."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression

from quadlin import FactorizationMachineClassifier, SecondOrderClassifier, load, save


def labelled(n=1000, d=6, seed=0, strength=1.5, pairs=((1, 2), (3, 4))):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    f = X[:, 0] + strength * sum(X[:, i] * X[:, j] for i, j in pairs)
    return X, np.where(rng.random(n) < 1 / (1 + np.exp(-f)), "yes", "no")


def names_of(report):
    return {(p.first, p.second) for p in report.pairs}


def test_pairs_of_log_odds_are_found_and_predict_better_than_rank_four():
    X, y = labelled()
    model = SecondOrderClassifier(random_state=0).fit(X, y)
    assert names_of(model.pairs_) == {("x1", "x2"), ("x3", "x4")}
    assert model.rank_ == 0
    assert model.status_.name == "converged"
    new = labelled(4000, seed=9)
    plain = SecondOrderClassifier(pairs=None, random_state=0).fit(X, y)
    assert model.score(*new) > plain.score(*new)
    # The truth is 1.5; four standard errors would be missed once in ten thousand draws.
    for pair in model.pairs_.pairs:
        assert abs(pair.coefficient - 1.5) < 4 * pair.std_error
        assert 0.05 < pair.std_error < 0.2
    path = model.pairs_.path
    assert model.pairs_.measure == "D²"
    assert 0 < path[0].r2 < path[1].r2 < path[2].r2 < 1
    assert "D²" in str(model.pairs_)


def test_given_pairs_are_those_of_logistic_regression_on_products():
    X, y = labelled(400)
    model = SecondOrderClassifier(rank=0, alpha=0, pairs=[(1, 2), (0, 0)]).fit(X, y)
    A = np.column_stack([X, X[:, 1] * X[:, 2], X[:, 0] ** 2])
    oracle = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(A, y)
    # The prior of a product, a standard deviation of ten, moves it by about 1e-4.
    np.testing.assert_allclose(model.coef_, oracle.coef_[0, :6], atol=1e-3)
    told = [p.coefficient for p in model.pairs_.pairs]
    np.testing.assert_allclose(told, oracle.coef_[0, 6:], atol=1e-3)
    np.testing.assert_allclose(model.decision_function(X), oracle.decision_function(A), atol=5e-3)
    # Standard errors are those of the information matrix.
    p = oracle.predict_proba(A)[:, 1]
    B = np.column_stack([np.ones(400), A])
    errors = np.sqrt(np.diag(np.linalg.inv(B.T @ ((p * (1 - p))[:, None] * B))))
    np.testing.assert_allclose([p.std_error for p in model.pairs_.pairs], errors[7:], rtol=0.02)


def test_pairs_beside_a_low_rank_part_are_at_the_optimum_of_the_deviance():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((500, 4))
    f = X[:, 0] + 0.4 * X.sum(axis=1) ** 2 - 1.5 + 1.2 * X[:, 1] * X[:, 2]
    y = (rng.random(500) < 1 / (1 + np.exp(-f))).astype(int)
    options = {"rank": 1, "alpha": (2.0, 2.0), "pairs": [(1, 2)], "random_state": 0}
    model = SecondOrderClassifier(**options).fit(X, y)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)

    def objective(v):
        w, u, c, a = v[:4], v[4:8], v[8], v[9]
        g = c + Z @ w + (Z @ u) ** 2 + a * Z[:, 1] * Z[:, 2]
        loss = 2 * np.sum(np.logaddexp(0, g) - y * g)
        return loss + 2 * w @ w + 4 * (u @ u) ** 2 + 2 * a**2

    starts = (np.concatenate([np.zeros(4), s * np.ones(4) / 2, np.zeros(2)]) for s in (1, 0.3))
    best = min(minimize(objective, start, tol=1e-12).fun for start in starts)
    assert model.history_[-1].loss * 2 * 500 == pytest.approx(best, rel=1e-6)


def test_labels_without_interactions_have_no_pairs():
    taken = 0
    for seed in range(5):
        X, y = labelled(400, d=12, seed=seed, pairs=())
        report = SecondOrderClassifier(rank=0, pairs=5, random_state=0).fit(X, y).pairs_
        assert report.n_candidates == 78
        taken += len(report.pairs)
    assert taken <= 1  # in 40 such draws there was one pair; |t| > 3.8 once among 78 products


def test_weights_count_as_repetitions_and_sparse_rows_as_dense_ones():
    X, y = labelled(300)
    weight = np.random.default_rng(0).integers(1, 4, 300)
    options = {"rank": 0, "alpha": 1.0, "pairs": [(1, 2)]}
    weighted = SecondOrderClassifier(**options).fit(X, y, weight)
    repeated = SecondOrderClassifier(**options).fit(
        csr_array(np.repeat(X, weight, axis=0)), np.repeat(y, weight)
    )
    np.testing.assert_allclose(
        weighted.decision_function(X), repeated.decision_function(X), rtol=1e-4, atol=1e-4
    )
    a, b = weighted.pairs_.pairs[0], repeated.pairs_.pairs[0]
    assert (a.std_error, a.share) == pytest.approx((b.std_error, b.share), rel=1e-3)


def test_each_class_has_pairs_of_its_own_and_files_keep_them(tmp_path):
    X, y = labelled()
    y = np.where(X[:, 5] > 1.2, "other", y)
    model = SecondOrderClassifier(rank=0, pairs=2, random_state=0).fit(X, y)
    yes = model.one_vs_rest("yes").pairs_
    assert names_of(yes) == {("x1", "x2"), ("x3", "x4")}
    save(model, tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.one_vs_rest("yes").pairs_ == yes


def test_rows_that_pairs_separate_have_finite_log_odds():
    X = np.random.default_rng(0).standard_normal((400, 4))
    model = SecondOrderClassifier(rank=0, pairs=1, random_state=0).fit(X, X[:, 1] * X[:, 2] > 0)
    assert names_of(model.pairs_) == {("x1", "x2")}
    assert np.isfinite(model.decision_function(X)).all()
    assert model.score(X, X[:, 1] * X[:, 2] > 0) > 0.9


def test_a_machine_for_labels_takes_pairs_without_squares():
    X, y = labelled(400, pairs=((1, 2), (3, 3)))
    machine = FactorizationMachineClassifier(rank=0, pairs=1, random_state=0).fit(X, y)
    assert names_of(machine.pairs_) == {("x1", "x2")}
    with pytest.raises(ValueError, match="square of 'x3' is not modelled"):
        FactorizationMachineClassifier(rank=0, pairs=[(3, 3)]).fit(X, y)
