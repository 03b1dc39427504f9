"""What the rows say about the levels of a field, against dense brute force."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from field_problems import USERS, table
from quadlin.solve.fields.field_machine import FieldMachine
from quadlin.solve.fields.field_rows import default_signs, field_rows
from quadlin.solve.fields.field_sums import squared_error, statistics
from quadlin.solve.fields.level_posterior import (
    MarginalEvidence,
    at_patterns,
    conditional,
    evidence,
)
from quadlin.solve.fields.level_systems import inverse_cholesky


def machine_of(kind, sampled=True, rank=3, sweeps=3):
    X, y, fields, weight = table(kind)
    rows = field_rows(csr_matrix(X), y, fields, weight)
    rng = np.random.default_rng(1)
    signs = np.array([1.0, -1.0, 1.0])[:rank]
    machine = FieldMachine(rows, signs, rng, sampled)
    for _ in range(sweeps):
        machine.sweep()
    return machine, X, y, fields, weight


def machine_function(X, table, rows, signs):
    """Return predictions short of b, with the products of columns of different entities."""
    entity = -1 - np.arange(X.shape[1])
    for i, part in enumerate(rows.parts):
        entity[part] = i
    M = (table[:, 1:] * signs) @ table[:, 1:].T * (entity[:, None] != entity)
    return X @ table[:, 0] + np.sum(X @ M * X, axis=1) / 2


@pytest.mark.parametrize(
    ("kind", "sizes"), [("two", [1, 1]), ("side", [5, 3]), ("more", [5, 3, 1])]
)
def test_columns_that_are_a_function_of_a_field_join_its_entity(kind, sizes):
    X, y, fields, _ = table(kind)
    rows = field_rows(X, y, fields)
    assert [len(entity.members) for entity in rows.entities] == sizes
    assert not rows.loose
    assert (rows.pairs is not None) == (kind != "more")
    assert all(entity.members[-1].level is None for entity in rows.entities)


def test_columns_that_nearly_follow_a_field_give_its_levels_several_patterns():
    X, y, fields, weight = table("near")
    rows = field_rows(X, y, fields, weight)
    assert [len(entity.members) for entity in rows.entities] == [5, 3]
    assert not rows.loose
    assert rows.pairs is not None
    kept = X[weight > 0]
    for entity, part in zip(rows.entities, rows.parts, strict=True):
        _, patterns = np.unique(kept[:, part], axis=0, return_inverse=True)
        assert entity.size == patterns.max() + 1 > len(entity.members[-1].columns) - 1
        for pattern in range(entity.size):  # the same partition of the rows
            assert len(np.unique(patterns.ravel()[entity.of_row == pattern])) == 1


def test_a_column_that_follows_one_field_exactly_is_not_given_to_another():
    rng = np.random.default_rng(0)
    user = np.arange(400) % 20
    item = (user + (rng.random(400) < 0.02)) % 19  # nearly a function of the user
    price = rng.standard_normal(19)[item]
    X = np.hstack([np.eye(20)[user], np.eye(19)[item], price[:, None]])
    parts = field_rows(X, rng.standard_normal(400), [np.arange(20), 20 + np.arange(19)]).parts
    assert [len(part) for part in parts] == [20, 20]


def test_columns_that_vary_freely_are_loose():
    X, y, fields, _ = table("loose")
    assert field_rows(X, y, fields).loose == tuple(range(X.shape[1] - 3, X.shape[1]))


@pytest.mark.parametrize("kind", ["two", "side", "near", "more"])
def test_the_posterior_of_a_level_is_a_ridge_regression_on_the_rows(kind):
    machine, X, y, fields, weight = machine_of(kind)
    rows, signs = machine.rows, machine.signs
    b, table = machine.table(fields)
    table = table[: X.shape[1]]
    f = b + machine_function(X, table, rows, signs)
    checked = 0
    for e, entity in enumerate(rows.entities):
        stats = statistics(rows, e, machine.state, signs, machine.b)
        error = weight @ (y - f) ** 2
        assert squared_error(stats, machine.state[e]) == pytest.approx(error)
        for member, levels in zip(entity.members, machine.levels[e], strict=True):
            rest = machine.state[e].mean[:, member.where] - at_patterns(member, levels).mean
            A, r = evidence(stats, rest, member)
            posterior = conditional(A, r, 2.0, np.full(4, 0.7), np.full(4, 0.1))
            for level, column in enumerate(member.columns):
                J = derivatives(X, table, rows, signs, column)
                start = f - J @ table[column]
                P = 2.0 * J.T @ (weight[:, None] * J) + 0.7 * np.eye(4)
                mean = np.linalg.solve(P, 2.0 * J.T @ (weight * (y - start)) + 0.07)
                np.testing.assert_allclose(posterior.mean[:, level], mean, atol=1e-9)
                np.testing.assert_allclose(posterior.cov[:, :, level], np.linalg.inv(P), atol=1e-9)
                checked += 1
    assert checked == X.shape[1]


def derivatives(X, table, rows, signs, column):
    """Return those of f by (w, v) of one column, exactly: f is affine in them."""
    zero = table.copy()
    zero[column] = 0
    steps = []
    for a in range(table.shape[1]):
        one = zero.copy()
        one[column, a] = 1
        steps.append(machine_function(X, one, rows, signs))
    return np.column_stack(steps) - machine_function(X, zero, rows, signs)[:, None]


@pytest.mark.parametrize("kind", ["side", "near"])
def test_other_members_are_drawn_with_the_levels_of_the_key_integrated_out(kind):
    machine, X, y, fields, weight = machine_of(kind)
    rows, signs = machine.rows, machine.signs
    b, table = machine.table(fields)
    table = table[: X.shape[1]]
    f = b + machine_function(X, table, rows, signs)
    precision, mean = np.array([0.5, 1.0, 2.0, 3.0]), np.array([0.3, -0.2, 0.1, 0.0])
    for e, entity in enumerate(rows.entities):
        stats = statistics(rows, e, machine.state, signs, machine.b)
        key = entity.members[-1]
        J = {c: derivatives(X, table, rows, signs, c) for c in rows.parts[e]}
        for member, levels in zip(entity.members[:-1], machine.levels[e], strict=False):
            others = machine.state[e].mean - at_patterns(key, machine.levels[e][-1]).mean
            others[:, member.where] -= at_patterns(member, levels).mean
            A, r = MarginalEvidence(stats, key, 2.0, precision, mean).of(member, others)
            posterior = conditional(A, r, 1.0, np.full(4, 0.7), np.zeros(4))
            # The same by one dense system in the levels of the member and of the key.
            columns = [*member.columns, *key.columns]
            D = np.concatenate([J[c] for c in columns], axis=1)
            start = f - D @ table[columns].ravel()
            L = len(member.columns)
            prior = np.concatenate([np.full(4 * L, 0.7), np.tile(precision, len(key.columns))])
            centre = np.concatenate([np.zeros(4 * L), np.tile(mean, len(key.columns))])
            P = 2.0 * D.T @ (weight[:, None] * D) + np.diag(prior)
            cov = np.linalg.inv(P)
            exact = cov @ (2.0 * D.T @ (weight * (y - start)) + prior * centre)
            for level in range(L):
                at = slice(4 * level, 4 * level + 4)
                np.testing.assert_allclose(posterior.mean[:, level], exact[at], atol=1e-8)
                np.testing.assert_allclose(posterior.cov[:, :, level], cov[at, at], atol=1e-8)


def test_draws_have_the_mean_and_covariance_of_the_conditional():
    rng = np.random.default_rng(0)
    B = rng.standard_normal((5, 3))
    A, r = np.repeat((B.T @ B)[:, :, None], 40_000, axis=2), np.ones((3, 40_000))
    levels = conditional(A, r, 1.5, np.array([1.0, 2.0, 3.0]), np.zeros(3))
    draws = levels.draw(rng)
    cov = np.linalg.inv(1.5 * B.T @ B + np.diag([1.0, 2.0, 3.0]))
    # Five standard errors of a mean and of a covariance.
    np.testing.assert_allclose(draws.mean(axis=1), cov @ np.full(3, 1.5), atol=5 * 0.005)
    np.testing.assert_allclose(np.cov(draws), cov, atol=5 * 0.007)


def test_the_mean_of_a_group_is_solved_for_with_its_levels():
    rng = np.random.default_rng(0)
    K, L = 3, 6
    B = rng.standard_normal((L, 4, K))
    A = np.einsum("lia,lib->abl", B, B)
    r, precision = rng.standard_normal((K, L)), np.array([0.5, 1.0, 2.0])
    levels = conditional(A, r, 1.5, precision)
    # The same by one dense system in (μ, φ₁, …, φ_L); the prior of μ counts as one level at zero.
    H, g = np.zeros((K * (L + 1), K * (L + 1))), np.zeros(K * (L + 1))
    H[:K, :K] = (L + 1) * np.diag(precision)
    for level in range(L):
        at = slice(K * (level + 1), K * (level + 2))
        H[at, at] = 1.5 * A[:, :, level] + np.diag(precision)
        H[at, :K] = H[:K, at] = -np.diag(precision)
        g[at] = 1.5 * r[:, level]
    solution = np.linalg.solve(H, g)
    np.testing.assert_allclose(levels.group_mean, solution[:K])
    np.testing.assert_allclose(levels.mean, solution[K:].reshape(L, K).T)


def test_the_inverse_cholesky_factor_is_that_of_each_matrix():
    rng = np.random.default_rng(0)
    B = rng.standard_normal((6, 8, 5))
    P = np.einsum("lia,lib->abl", B, B)
    factor = inverse_cholesky(P)
    for level in range(6):
        root = np.linalg.cholesky(P[:, :, level])
        np.testing.assert_allclose(factor[:, :, level], np.linalg.inv(root), atol=1e-10)


@pytest.mark.parametrize("kind", ["two", "side", "near", "more"])
def test_the_expected_error_is_that_of_draws_from_the_variational_posterior(kind):
    machine, X, y, _, weight = machine_of(kind, sampled=False)
    rng, draws, K = np.random.default_rng(2), 1000, 4
    phi = np.zeros((X.shape[1], draws, K))
    for entity, members in zip(machine.rows.entities, machine.levels, strict=True):
        for member, levels in zip(entity.members, members, strict=True):
            for level, column in enumerate(member.columns):
                root = np.linalg.cholesky(levels.cov[:, :, level])
                phi[column] = levels.mean[:, level] + rng.standard_normal((draws, K)) @ root.T
    tables = np.moveaxis(phi, 1, 0)
    f = [machine_function(X, table, machine.rows, machine.signs) for table in tables]
    errors = (y - machine.b - np.array(f)) ** 2 @ weight
    # Four standard errors of a mean.
    margin = 4 * np.std(errors) / np.sqrt(len(errors))
    assert machine.error == pytest.approx(np.mean(errors), abs=margin)


def test_a_field_that_is_not_one_hot_is_refused():
    X, y, fields, _ = table("two")
    with pytest.raises(ValueError, match="every row must have a 1 in exactly one of them"):
        field_rows(X, y, [np.arange(USERS + 1), fields[1]])


def test_signs_are_alike_only_where_they_do_not_matter():
    for kind, signs in (("side", [1, 1, 1]), ("more", [1, -1, 1])):
        X, y, fields, _ = table(kind)
        np.testing.assert_array_equal(default_signs(field_rows(X, y, fields), 3), signs)
