"""A fit ends at the optimum of its objective, as dense solvers find it."""

import numpy as np
import pytest
from scipy.optimize import least_squares, minimize

from quadlin import SecondOrderClassifier, SecondOrderRegressor


@pytest.mark.parametrize("alpha", [(0.0, 0.0), (20.0, 50.0)])
def test_given_pairs_and_a_rank_are_at_their_joint_optimum(alpha):
    rng, pairs = np.random.default_rng(2), [(1, 2), (3, 4)]
    X = rng.standard_normal((200, 5))
    y = X[:, 1] * X[:, 2] + 0.3 * X.sum(axis=1) ** 2 + rng.standard_normal(200)
    model = SecondOrderRegressor(rank=1, alpha=alpha, pairs=pairs, random_state=0).fit(X, y)
    Z, sd = (X - X.mean(axis=0)) / X.std(axis=0), y.std()

    def residual(p):
        b, w, a, u = p[0], p[1:6], p[6:8], p[8:]
        f = (
            b
            + Z @ w
            + (Z @ u) ** 2
            + sum(a[n] * Z[:, i] * Z[:, j] for n, (i, j) in enumerate(pairs))
        )
        sizes = np.sqrt(alpha[0]) * w, [np.sqrt(2 * alpha[1]) * (u @ u)], np.sqrt(alpha[1]) * a
        return np.concatenate([f - (y - y.mean()) / sd, *sizes])

    starts = [0.3 * rng.standard_normal(13) for _ in range(5)]
    best = min(
        (least_squares(residual, s, xtol=1e-14, ftol=1e-14) for s in starts), key=lambda r: r.cost
    )
    assert model.history_[-1].loss == pytest.approx(2 * best.cost / 200 * sd**2, rel=1e-7)
    u = best.x[8:]  # the coefficient of a product is that of the pair and of the low-rank part
    for pair, a, (i, j) in zip(model.pairs_, best.x[6:8], pairs, strict=True):
        standardised = pair.coefficient * X[:, i].std() * X[:, j].std() / sd
        assert standardised == pytest.approx(a + 2 * u[i] * u[j], abs=1e-4)


def test_pairs_beside_a_low_rank_part_are_at_the_optimum_of_the_deviance():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((500, 4))
    f = X[:, 0] + 0.4 * X.sum(axis=1) ** 2 - 1.5 + 1.2 * X[:, 1] * X[:, 2]
    y = (rng.random(500) < 1 / (1 + np.exp(-f))).astype(int)
    model = SecondOrderClassifier(1, alpha=2.0, pairs=[(1, 2)], random_state=0).fit(X, y)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)

    def objective(v):
        w, u, c, a = v[:4], v[4:8], v[8], v[9]
        g = c + Z @ w + (Z @ u) ** 2 + a * Z[:, 1] * Z[:, 2]
        loss = 2 * np.sum(np.logaddexp(0, g) - y * g)
        return loss + 2 * w @ w + 4 * (u @ u) ** 2 + 2 * a**2

    starts = (np.concatenate([np.zeros(4), s * np.ones(4) / 2, np.zeros(2)]) for s in (1, 0.3))
    best = min(minimize(objective, start, tol=1e-12).fun for start in starts)
    assert model.history_[-1].loss * 2 * 500 == pytest.approx(best, rel=1e-6)


def dense_huber(F, y):
    """Return the predictions of a Huber fit with columns F, iterated to its end."""
    f = np.full(len(y), np.median(y))
    for _ in range(500):
        sigma = 1.4826 * np.sort(np.abs(y - f))[(len(y) - 1) // 2]
        # What is far away counts linearly, however far: for the sake of rounding it comes nearer.
        near = f + np.clip(y - f, -50 * sigma, 50 * sigma)
        root = np.sqrt(np.minimum(1, 1.345 * sigma / np.abs(near - f)))
        f = F @ np.linalg.lstsq(F * root[:, None], root * near, rcond=None)[0]
    return f


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("size", "count"), [(0.0, 20), (1e2, 20), (1e12, 20), (1e20, 1)])
def test_gross_errors_of_any_size_leave_the_optimum_of_hubers_loss(size, count, dtype):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 4)).astype(dtype)
    i, j = np.triu_indices(4)
    F = np.column_stack([np.ones(400), X, X[:, i] * X[:, j]]).astype(float)
    y = F @ rng.standard_normal(F.shape[1]) + rng.standard_normal(400)  # noise of size 1
    y[:count] += size * rng.choice([-1, 1], count) * rng.uniform(0.5, 1.5, count)
    model = SecondOrderRegressor(4, loss="huber", random_state=0, alpha=0.0).fit(X, y)
    # Weights that change by 1e-4 count as settled; the noise is 1, standard errors are .05.
    assert np.max(np.abs(model.predict(X) - dense_huber(F, y))) < 2e-3


def test_near_twins_reach_the_dense_optimum():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 5))
    X[:, 1] = X[:, 0] + 1e-4 * rng.standard_normal(500)
    y = 1e4 * (X[:, 1] - X[:, 0]) + X[:, 2] * X[:, 3] + 0.1 * rng.standard_normal(500)
    Z = (X - X.mean(0)) / X.std(0)
    Z[:, 1] = (Z[:, 1] - Z[:, 0]) / np.std(Z[:, 1] - Z[:, 0])  # the same span, well conditioned
    i, j = np.triu_indices(5)
    F = np.column_stack([np.ones(500), Z, Z[:, i] * Z[:, j]])
    best = np.mean((F @ np.linalg.lstsq(F, y, rcond=None)[0] - y) ** 2)
    model = SecondOrderRegressor(5, alpha=0.0, tol=1e-10, max_iter=200, random_state=0).fit(X, y)
    assert model.history_[-1].loss == pytest.approx(best, rel=1e-4)
