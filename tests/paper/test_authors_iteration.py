"""The paper's iterations beside forty lines of dense numpy, and what their differences do."""

from itertools import islice, pairwise, repeat

import numpy as np
import pytest

from quadlin.paper.iterations import ITERATIONS, plain

D, K = 40, 3
LAWS = {
    "gaussian": lambda rng, n: rng.standard_normal((n, D)),
    "truncated": lambda rng, n: np.minimum(rng.standard_normal((n, D)), 0.0),
    "bernoulli": lambda rng, n: (rng.random((n, D)) < 0.1).astype(float),
    "exponential": lambda rng, n: rng.exponential(size=(n, D)),
}


def problem(name, rows=30, k=K, coherent=False):
    """Standardised rows of Section 5, a target of mean zero, and whether M has a diagonal."""
    rng = np.random.default_rng(3)
    Q, w = np.linalg.qr(rng.standard_normal((D, k)))[0], rng.standard_normal(D) / D**0.5
    Q = np.eye(D)[:, :k] if coherent else Q
    has_diagonal = name != "bernoulli"
    M = Q @ Q.T - (0 if has_diagonal else np.diag(np.sum(Q * Q, axis=1)))
    X = LAWS[name](rng, rows * k * D)
    y = X @ w + np.sum((X @ M) * X, axis=1)
    return (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std(), has_diagonal


def losses(method, name, steps=30, **options):
    Z, t, has_diagonal = problem(name, **options)
    k = options.get("k", K)
    with np.errstate(all="ignore"):
        models = ITERATIONS[method](repeat((Z, t)), k, has_diagonal, 0)
        return np.array([float(model.loss) for model in islice(models, steps)])


def contraction(method, name):
    errors = losses(method, name)
    errors = errors[1:][(errors[1:] < 1e-3) & (errors[1:] > 1e-22)]
    return np.exp(np.diff(np.log(errors)).mean())


@pytest.mark.parametrize("name", ["gaussian", "truncated", "bernoulli"])
def test_the_plain_step_is_the_rank_k_part_of_the_unbiased_one(name):
    Z, t, has_diagonal = problem(name)
    n, kappa, phi = len(t), (Z**3).mean(0), (Z**4).mean(0)
    tau = phi - 1 - kappa**2
    models = list(islice(plain(repeat((Z, t)), K, has_diagonal, 0), 1, 8))
    M, w, c = models[0].times(np.eye(D)), models[0].w, models[0].c
    U = models[0].U
    for model in models[1:]:
        squares = np.trace(M) if has_diagonal else (Z * Z) @ np.diag(M)
        r = c + Z @ w + np.sum((Z @ M) * Z, axis=1) - squares - t
        P0, P1 = r.mean(), Z.T @ r / n
        P2 = (Z * Z).T @ r / n - P0
        E = Z.T @ (r[:, None] * Z) / (2 * n) - P0 / 2 * np.eye(D) - np.diag(P2 / 2)
        if has_diagonal:
            E = E + np.diag((P2 - kappa * P1) / tau)
            w = w - ((phi - 1) * P1 - kappa * P2) / tau
        else:
            w = w - P1
        c = c - P0
        U = np.linalg.qr((M - E) @ U)[0]
        M = U @ (U.T @ (M - E) @ U) @ U.T
        assert np.allclose(model.times(np.eye(D)), M, atol=1e-12)
        assert np.allclose(model.w, w, atol=1e-12)


@pytest.mark.parametrize("name", ["gaussian", "bernoulli"])
def test_the_published_code_contracts_a_little_faster_than_the_plain_step(name):
    """w and b follow U and V, with a residual of their own."""
    assert 0.5 < contraction("published", name) / contraction("plain", name) < 0.95


@pytest.mark.parametrize(
    "options", [{"name": "exponential"}, {"name": "truncated", "coherent": True}]
)
def test_without_skewness_and_kurtosis_the_same_iteration_diverges(options):
    """The method of 2016, κ = 0 and φ = 3, on standardised features."""
    assert not losses("gaussian", rows=200, steps=60, **options)[-1] < 1e3
    assert losses("plain", rows=200, steps=60, **options)[-1] < 1e-10


def test_the_method_of_2016_is_the_plain_step_on_gaussian_features():
    assert losses("gaussian", "gaussian", rows=100)[-1] < 1e-12


@pytest.mark.parametrize("k", [2, 3])
def test_without_the_mean_of_the_residual_the_trace_diverges(k):
    """𝓜 as printed lacks ½P0·I: a step multiplies the error of the trace by −k/2, from k = 2 on."""
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((100 * k * D, D))
    Q = np.linalg.qr(rng.standard_normal((D, k)))[0]
    y, M, U = np.sum((Z @ Q) ** 2, axis=1), np.zeros((D, D)), Q
    for _ in range(30):
        r = np.sum((Z @ M) * Z, axis=1) - y
        M = M - Z.T @ (r[:, None] * Z) / (2 * len(y))
        U = np.linalg.qr(M @ U)[0]
        M = U @ (U.T @ M @ U) @ U.T
    assert np.linalg.norm(M - Q @ Q.T) > 0.5


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("method", ["gd_printed", "gd_standardised"])
def test_a_step_of_gradient_descent_follows_the_gradient_to_the_least_loss(name, method):
    Z, t, has_diagonal = problem(name)
    models = list(islice(ITERATIONS[method](repeat((Z, t)), K, has_diagonal, 0), 1, 5))
    assert (np.diff([float(model.loss) for model in models]) < 0).all()
    for model, after in pairwise(models):
        r = model.values(Z) - t
        E = Z.T @ (r[:, None] * Z) / len(t)
        E = E if has_diagonal else E - np.diag(np.diag(E))
        step = after.V - model.V
        gradient = E @ model.U
        cosine = np.sum(step * gradient) / np.linalg.norm(step) / np.linalg.norm(gradient)
        assert abs(cosine) > 1 - 1e-9
        w_step = after.w - model.w
        assert np.allclose(w_step, (w_step @ (Z.T @ r)) / np.sum((Z.T @ r) ** 2) * (Z.T @ r))
    assert (models[-1].c == 0) == (method == "gd_printed")
