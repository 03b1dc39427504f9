"""What the rows say about the levels of a field, against dense brute force."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from field_problems import USERS, table
from quadlin.solve.field_machine import FieldMachine, default_signs
from quadlin.solve.field_rows import field_rows
from quadlin.solve.field_sums import squared_error, statistics
from quadlin.solve.level_posterior import (
    at_patterns,
    conditional,
    evidence,
    inverse_cholesky,
    join,
    leave,
)


def machine_of(kind, sampled=True, rank=3, sweeps=3):
    X, y, fields, weight = table(kind)
    rows = field_rows(csr_matrix(X), y, fields, weight)
    rng = np.random.default_rng(1)
    signs = np.array([1.0, -1.0, 1.0])[:rank]
    machine = FieldMachine(rows, signs, rng, sampled)
    for _ in range(sweeps):
        machine.sweep()
    return machine, X, y, fields, weight


def machine_function(X, b, w, V, signs):
    products = X @ V
    return b + X @ w + (products**2 @ signs - X**2 @ (V**2 @ signs)) / 2


@pytest.mark.parametrize(
    ("kind", "sizes"), [("two", [1, 1]), ("side", [5, 3]), ("more", [5, 3, 1])]
)
def test_columns_that_are_a_function_of_a_field_join_its_entity(kind, sizes):
    X, y, fields, _ = table(kind)
    rows = field_rows(X, y, fields)
    assert [len(entity.members) for entity in rows.entities] == sizes
    assert not rows.loose
    assert (rows.pairs is not None) == (kind != "more")


def test_columns_that_vary_freely_are_loose():
    X, y, fields, _ = table("loose")
    assert field_rows(X, y, fields).loose == tuple(range(X.shape[1] - 3, X.shape[1]))


@pytest.mark.parametrize("kind", ["two", "side", "more", "loose"])
def test_the_posterior_of_a_level_is_a_ridge_regression_on_the_rows(kind):
    machine, X, y, fields, weight = machine_of(kind)
    rows, signs = machine.rows, machine.signs
    b, w, V = machine.table(fields)
    w, V = w[: X.shape[1]], V[: X.shape[1]]
    f = machine_function(X, b, w, V, signs)
    checked = 0
    for e, entity in enumerate(rows.entities):
        stats = statistics(rows, e, machine.state, signs, machine.b, machine.loose_part())
        error = weight @ (y - f) ** 2
        assert squared_error(stats, machine.state[e]) == pytest.approx(error)
        for member, levels in zip(entity.members, machine.levels[e], strict=True):
            part = at_patterns(member, levels)
            rest = leave(machine.state[e].at(member.where), part, signs)
            A, r = evidence(stats.at(member.where), rest, member, signs)
            posterior = conditional(A, r, 2.0, np.full(4, 0.7), np.full(4, 0.1))
            for level, column in enumerate(member.columns):
                # f is affine in (w, v) of one column: its derivatives, exactly.
                others = signs * (X @ V - X[:, [column]] * V[column])
                J = X[:, [column]] * np.column_stack([np.ones(len(X)), others])
                start = f - J @ np.concatenate([[w[column]], V[column]])
                P = 2.0 * J.T @ (weight[:, None] * J) + 0.7 * np.eye(4)
                mean = np.linalg.solve(P, 2.0 * J.T @ (weight * (y - start)) + 0.07)
                np.testing.assert_allclose(posterior.mean[:, level], mean, atol=1e-9)
                np.testing.assert_allclose(posterior.cov[:, :, level], np.linalg.inv(P), atol=1e-9)
                checked += 1
    assert checked == X.shape[1] - len(rows.loose)


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


@pytest.mark.parametrize("kind", ["side", "more"])
def test_what_is_joined_can_leave_again(kind):
    machine, *_ = machine_of(kind, sampled=False)
    theta = machine.state[0]
    member, levels = machine.rows.entities[0].members[1], machine.levels[0][1]
    part = at_patterns(member, levels)
    before = theta.at(member.where)
    after = join(leave(before, part, machine.signs), part, machine.signs)
    np.testing.assert_allclose(after.mean, before.mean, atol=1e-12)
    np.testing.assert_allclose(after.cov, before.cov, atol=1e-12)


@pytest.mark.parametrize("kind", ["two", "side", "more"])
def test_the_expected_error_is_that_of_draws_from_the_variational_posterior(kind):
    machine, X, y, _, weight = machine_of(kind, sampled=False)
    rng, draws, K = np.random.default_rng(2), 4000, 4
    phi = np.zeros((X.shape[1], draws, K))
    for entity, members in zip(machine.rows.entities, machine.levels, strict=True):
        for member, levels in zip(entity.members, members, strict=True):
            for level, column in enumerate(member.columns):
                root = np.linalg.cholesky(levels.cov[:, :, level])
                phi[column] = levels.mean[:, level] + rng.standard_normal((draws, K)) @ root.T
    f = [
        machine_function(X, machine.b, p[:, 0], p[:, 1:], machine.signs)
        for p in np.moveaxis(phi, 1, 0)
    ]
    errors = (y - np.array(f)) ** 2 @ weight
    # Four standard errors of a mean.
    margin = 4 * np.std(errors) / np.sqrt(len(errors))
    assert machine.error == pytest.approx(np.mean(errors), abs=margin)


def test_a_field_that_is_not_one_hot_is_refused():
    X, y, fields, _ = table("two")
    with pytest.raises(ValueError, match="every row must have a 1 in exactly one of them"):
        field_rows(X, y, [np.arange(USERS + 1), fields[1]])


def test_signs_are_alike_only_where_they_do_not_matter():
    for kind, signs in (("side", [1, 1, 1]), ("more", [1, -1, 1]), ("loose", [1, -1, 1])):
        X, y, fields, _ = table(kind)
        np.testing.assert_array_equal(default_signs(field_rows(X, y, fields), 3), signs)
