"""Scores of several classes on one matrix: multinomial regression, and its evidence."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from quadlin.core.chunks import MemorySource
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.labels.class_table import ClassTable
from quadlin.solve.labels.label_table import LabelTable
from quadlin.solve.lowrank.types import Options

RNG = np.random.default_rng(0)
X = StandardScaler().fit_transform(RNG.standard_normal((150, 3)))
SCORES = np.column_stack([X[:, 0], X[:, 1] - X[:, 2], X[:, 0] * X[:, 1]])
CODES = np.argmax(SCORES + RNG.gumbel(size=SCORES.shape), axis=1)
WEIGHT = RNG.integers(1, 3, 150).astype(float)


def table_of():
    rows = Rows.of(MemorySource(X, CODES.astype(float), WEIGHT))
    surveyed = rows.reduce(survey)
    make = UnitsMaker("auto", True, X.dtype, "abc", (), True, labels=True)
    first = Rows.of(MemorySource(X, (CODES == 0).astype(float), WEIGHT)).reduce(survey)
    units = make(surveyed.features, first.target)
    table = LabelTable.of(rows, units, Options(rank=0, loss="logistic"), "logistic")
    return ClassTable(table, CODES, 3, WEIGHT)


def standardised():
    mean = np.average(X, axis=0, weights=WEIGHT)
    return (X - mean) / np.sqrt(np.average((X - mean) ** 2, axis=0, weights=WEIGHT))


def test_linear_scores_are_multinomial_logistic_regression():
    dense = table_of()
    at = dense.fitted(0, (2.0, 2.0))
    oracle = LogisticRegression(C=0.5, tol=1e-10, max_iter=1000)
    oracle.fit(standardised(), CODES, sample_weight=WEIGHT)
    F = oracle.decision_function(standardised())
    np.testing.assert_allclose(at.F - at.F.mean(axis=1, keepdims=True), F, atol=1e-5)


def test_all_products_reach_the_optimum_whatever_the_start():
    dense = table_of()
    far = dense.fitted(3, (1e-3, 1e-3))
    one, two = dense.fitted(3, (1.0, 2.0)), dense.fitted(3, (1.0, 2.0), far)
    assert two.objective == pytest.approx(one.objective, rel=1e-8)
    for shift in np.random.default_rng(1).normal(size=(5, *one.theta.shape)):
        A, R = dense.table.all_products, dense.table.ridge(dense.basis(3), (1.0, 2.0))
        assert dense._at(one.theta + 1e-3 * shift, A, R).objective > one.objective


def test_the_evidence_is_that_of_a_gaussian_about_the_optimum():
    # By finite differences of the objective, of a model with so few parameters that they are exact.
    dense, alpha = table_of(), (3.0, 3.0)
    at = dense.fitted(0, alpha)
    A, R = dense.table.columns(dense.basis(0)), dense.table.ridge(dense.basis(0), alpha)
    p, step = at.theta.size, 1e-3

    def half(theta):
        return dense._at(theta.reshape(at.theta.shape), A, R).objective / 2

    H, flat, eye = np.zeros((p, p)), at.theta.ravel(), np.eye(p)
    for i in range(p):
        for j in range(p):
            signs = [(a, b) for a in (1, -1) for b in (1, -1)]
            terms = [a * b * half(flat + step * (a * eye[i] + b * eye[j])) for a, b in signs]
            H[i, j] = sum(terms) / (4 * step**2)
    intercepts = np.arange(p) % A.shape[1] == 0
    H[intercepts, intercepts] += 1e-6 * WEIGHT.sum()
    expected = 3 * np.log(R[1:]).sum() / 2 - np.linalg.slogdet(H)[1] / 2 - at.objective / 2
    assert dense.evidence(0, at, alpha) == pytest.approx(expected, abs=0.02)


def test_rows_left_out_have_the_log_loss_of_fits_without_them():
    dense, Z = table_of(), standardised()
    loss = dense.left_out(0, dense.fitted(0, (2.0, 2.0)), (2.0, 2.0))
    refitted = 0.0
    for i in range(0, 150, 5):
        once = WEIGHT - (np.arange(150) == i)  # of a row of weight 2 one is left
        model = LogisticRegression(C=0.5, tol=1e-8).fit(Z, CODES, sample_weight=once)
        refitted -= WEIGHT[i] * model.predict_log_proba(Z[[i]])[0, CODES[i]]
    some = np.arange(0, 150, 5)
    full = dense.fitted(0, (2.0, 2.0))
    # The sum over every fifth row, by the same formula on a table whose other weights count zero.
    log_p = -refitted / WEIGHT[some].sum()
    assert loss / WEIGHT.sum() == pytest.approx(-log_p, rel=0.15)
    assert loss > full.objective / 2 - np.sum(2.0 * full.theta[:, 1:] ** 2) / 2
