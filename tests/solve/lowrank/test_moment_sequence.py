"""Exact recovery, the guard's promise, and how a fit ends."""

import warnings
from contextlib import nullcontext

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from problems import AfterSteps
from quadlin import FactorizationMachineRegressor, SecondOrderRegressor, Status
from quadlin.datasets import make_second_order
from quadlin.metrics import nmse

KINDS = ["gaussian", "truncated", "bernoulli", "mixed"]


def dense(model):
    return model.interactions_.matrix()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_exact_recovery_in_raw_units_with_nothing_tuned(kind, dtype):
    d, k = 200, 5
    data = make_second_order(30 * k * d, d, rank=k, distribution=kind, n_test=2000, random_state=1)
    shift = np.where(np.arange(d) % 3 == 0, 2.0, 0.0)  # unstandardised on top
    scale = np.where(np.arange(d) % 5 == 0, 10.0, 1.0)
    binary = ~data.has_diagonal
    shift[binary], scale[binary] = 0.0, 1.0
    X, X_test = ((A * scale + shift).astype(dtype) for A in (data.X, data.X_test))
    model = SecondOrderRegressor(rank=k, polish=False, max_iter=25, random_state=0, alpha=0.0)
    with warnings.catch_warnings():  # whether 25 steps end at rounding or just above is no matter
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, data.y)
    assert nmse(data.y_test, model.predict(X_test)) <= (1e-10 if dtype == np.float64 else 1e-8)
    loss = np.array([record.loss for record in model.history_]) / np.var(data.y)
    floor = 1e-20 if dtype == np.float64 else 1e-11
    falling = loss[3:][loss[3:] > floor]
    assert np.all(falling[:-1] / falling[1:] >= 4)
    if dtype == np.float64:
        M = (data.components.T * data.eigenvalues) @ data.components
        M -= np.diag(np.where(data.has_diagonal, 0, np.diag(M)))
        M = M / np.outer(scale, scale)
        w = data.coef / scale - 2 * M @ shift
        b = data.intercept - data.coef / scale @ shift + shift @ M @ shift
        np.testing.assert_allclose(dense(model), M, atol=1e-6)
        np.testing.assert_allclose(model.coef_, w, atol=1e-6)
        assert model.intercept_ == pytest.approx(b, abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "per_parameter"), [("ar1", 20), ("gaussian", 4), ("bernoulli", 4), ("gaussian", 1)]
)
def test_the_guarded_loss_never_rises(kind, per_parameter):
    d, k = 60, 3
    data = make_second_order(per_parameter * k * d, d, rank=k, distribution=kind, random_state=0)
    with pytest.warns(ConvergenceWarning) if per_parameter == 1 else nullcontext():
        model = SecondOrderRegressor(
            rank=k, polish=False, max_iter=200, random_state=0, alpha=0.0
        ).fit(data.X, data.y)
    loss = np.array([record.loss for record in model.history_])
    assert np.all(np.isfinite(loss))
    assert np.all(np.diff(loss) < 0)
    assert np.mean((model.predict(data.X) - data.y) ** 2) == pytest.approx(loss[-1], abs=1e-12)


def test_the_plain_step_converges_where_the_paper_says_and_is_slower():
    data = make_second_order(9000, 50, rank=3, distribution="truncated", random_state=0)
    plain, guarded = (
        SecondOrderRegressor(
            rank=3, polish=False, step=step, max_iter=12, random_state=0, tol=0.0, alpha=0.0
        )
        for step in ("plain", "guarded")
    )
    with pytest.warns(ConvergenceWarning):
        plain.fit(data.X, data.y)
    with pytest.warns(ConvergenceWarning):
        guarded.fit(data.X, data.y)
    first = plain.history_[0].loss
    assert guarded.history_[-1].loss < plain.history_[-1].loss < 1e-6 * first


def test_the_plain_step_that_diverges_says_so_and_keeps_the_best():
    data = make_second_order(3000, 60, rank=3, distribution="ar1", parameter=0.8, random_state=0)
    with pytest.warns(ConvergenceWarning, match="diverged"):
        model = SecondOrderRegressor(
            rank=3, polish=False, step="plain", random_state=0, alpha=0.0
        ).fit(data.X, data.y)
    assert model.status_ is Status.diverged
    assert model.score(data.X, data.y) >= -1e-9


def test_rank_one_phase_retrieval():
    rng = np.random.default_rng(0)
    u = rng.standard_normal(40)
    X = rng.standard_normal((800, 40))
    model = SecondOrderRegressor(
        rank=1, fit_linear=False, fit_intercept=False, psd=True, random_state=0, alpha=0.0
    ).fit(X, (X @ u) ** 2)
    np.testing.assert_allclose(model.coef_, 0, atol=1e-8)
    assert model.intercept_ == pytest.approx(0, abs=1e-8)
    direction = np.sqrt(model.eigenvalues_[0]) * model.components_[0]
    assert min(np.abs(direction - u).max(), np.abs(direction + u).max()) < 1e-8


def test_matrix_sensing_without_a_linear_part_on_shifted_features():
    data = make_second_order(4000, 30, rank=2, random_state=0)
    X = data.X + 0.7
    y = ((X @ data.components.T) ** 2) @ data.eigenvalues + 3.0
    model = SecondOrderRegressor(rank=2, fit_linear=False, random_state=0, alpha=0.0).fit(X, y)
    assert model.score(X, y) > 1 - 1e-12
    np.testing.assert_allclose(model.coef_, 0, atol=1e-8)
    assert model.intercept_ == pytest.approx(3.0, abs=1e-6)


def test_a_model_without_intercept():
    data = make_second_order(4000, 20, rank=2, random_state=0)
    X = data.X + 0.5
    y = X @ data.coef + ((X @ data.components.T) ** 2) @ data.eigenvalues
    model = SecondOrderRegressor(rank=2, fit_intercept=False, random_state=0, alpha=0.0).fit(X, y)
    assert model.score(X, y) > 1 - 1e-12
    assert model.intercept_ == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize("polish", [True, False])
@pytest.mark.parametrize("max_iter", [1, 50])
def test_psd_holds_whatever_a_fit_starts_from(polish, max_iter):
    data = make_second_order(3000, 10, rank=2, random_state=0)
    model = SecondOrderRegressor(rank=2, polish=polish, warm_start=True, random_state=0, alpha=0.0)
    assert model.fit(data.X, data.y).eigenvalues_.min() < -0.5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.set_params(psd=True, max_iter=max_iter).fit(data.X, data.y)
    assert model.eigenvalues_.min() > -1e-12
    assert model.eigenvalues_.max() > 0.5


def test_psd_holds_the_eigenvalues_positive():
    data = make_second_order(2000, 15, rank=2, random_state=0)
    model = SecondOrderRegressor(rank=2, psd=True, random_state=0, alpha=0.0).fit(data.X, data.y)
    assert np.all(model.eigenvalues_ >= 0)
    assert 0.2 < model.score(data.X, data.y) < 0.9  # the truth is indefinite
    assert SecondOrderRegressor(rank=2, alpha=0.0).fit(data.X, data.y).score(data.X, data.y) > 0.999


PARTS = [(False, True), (True, False), (False, False)]


@pytest.mark.parametrize(("linear", "intercept"), PARTS)
def test_moments_alone_end_at_an_optimum_of_the_loss_where_parts_are_tied(linear, intercept):
    """Moments of dependent features agree where the loss still falls if w or b moves with M."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 4, 400)
    X = np.column_stack([np.eye(4)[codes], rng.standard_normal((400, 2)) + 0.1 * codes[:, None]])
    y = (X @ rng.standard_normal(6)) ** 2 + 0.3 * rng.standard_normal(400)
    options = {"fit_linear": linear, "fit_intercept": intercept, "random_state": 0, "alpha": 0.0}
    options |= {"diagonal": "auto" if linear else "free", "tol": 1e-8, "max_iter": 200}
    optimum = SecondOrderRegressor(1, **options).fit(X, y).history_[-1].loss
    for rows in (X, X.astype(np.float32), csr_array(X)):
        model = SecondOrderRegressor(1, polish=False, **options).fit(rows, y)
        assert model.history_[-1].loss == pytest.approx(optimum, rel=1e-3)


def test_a_factorization_machine_has_no_squares():
    data = make_second_order(6000, 20, rank=2, diagonal=False, n_test=500, random_state=0)
    model = FactorizationMachineRegressor(rank=2, random_state=0, alpha=0.0).fit(data.X, data.y)
    assert nmse(data.y_test, model.predict(data.X_test)) < 1e-10
    assert model.interaction(3, 3) == 0
    assert not np.any(model.has_diagonal_)


def test_full_rank_is_the_dense_least_squares():
    # rank ≥ d is no restriction: the optimum is that of d² parameters by linear least squares.
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 5))
    y = np.sin(X[:, 0] * X[:, 1]) + X[:, 2] ** 3 + 0.3 * rng.standard_normal(400)
    i, j = np.triu_indices(5)
    F = np.column_stack([np.ones(400), X, X[:, i] * X[:, j]])
    best = np.mean((F @ np.linalg.lstsq(F, y, rcond=None)[0] - y) ** 2)
    model = SecondOrderRegressor(rank=9, max_iter=300, tol=1e-10, random_state=0, alpha=0.0).fit(
        X, y
    )
    assert model.history_[-1].loss == pytest.approx(best, rel=1e-6)
    assert model.components_.shape == (5, 5)


def test_the_fit_lands_on_a_stationary_point_of_the_loss():
    """Finite differences of the loss over the raw parameters vanish."""
    data = make_second_order(2000, 8, rank=2, noise=1.0, random_state=0)
    model = SecondOrderRegressor(rank=2, max_iter=300, tol=1e-13, random_state=0, alpha=0.0).fit(
        data.X, data.y
    )
    L = model.components_.T * np.sqrt(np.abs(model.eigenvalues_))
    signs = np.sign(model.eigenvalues_)

    def loss(theta):
        b, w, A = theta[0], theta[1:9], theta[9:].reshape(8, 2)
        return np.mean((b + data.X @ w + ((data.X @ A) ** 2) @ signs - data.y) ** 2)

    theta = np.concatenate([[model.intercept_], model.coef_, L.ravel()])
    step = 1e-5
    gradient = [
        (loss(theta + step * e) - loss(theta - step * e)) / (2 * step) for e in np.eye(len(theta))
    ]
    assert np.max(np.abs(gradient)) < 1e-4 * loss(theta)


@pytest.mark.parametrize(("polish", "steps"), [(True, 1), (False, 4)])
def test_an_interrupted_fit_leaves_the_last_model(polish, steps):
    def impatient(context):
        if context.task_id == steps - 1:
            raise KeyboardInterrupt

    data = make_second_order(3000, 30, rank=2, random_state=0)
    model = SecondOrderRegressor(rank=2, polish=polish, random_state=0, alpha=0.0)
    model.set_callbacks(AfterSteps(impatient))
    with pytest.raises(KeyboardInterrupt):
        model.fit(data.X, data.y)
    assert model.status_ is Status.interrupted
    assert model.n_iter_ == steps
    assert model.score(data.X, data.y) > 0.9


def test_the_same_seed_gives_the_same_model():
    data = make_second_order(500, 10, rank=2, noise=0.5, random_state=0)
    a, b = (
        SecondOrderRegressor(rank=2, random_state=3, alpha=0.0).fit(data.X, data.y)
        for _ in range(2)
    )
    assert np.array_equal(a.components_, b.components_)


def test_warm_start_goes_on_where_the_last_fit_ended():
    data = make_second_order(3000, 20, rank=2, noise=0.1, random_state=0)
    model = SecondOrderRegressor(rank=2, warm_start=True, random_state=0, alpha=0.0).fit(
        data.X, data.y
    )
    first = model.history_[-1].loss
    model.fit(data.X, data.y)
    assert model.n_iter_ <= 2
    assert model.history_[-1].loss <= first * (1 + 1e-9)
    wider = model.set_params(rank=4).fit(data.X * 2 + 1, data.y)
    assert wider.history_[-1].loss <= first * (1 + 1e-9)
    assert wider.components_.shape == (4, 20)


def test_two_valued_features_do_not_send_eigenvalues_to_infinity():
    # The product of two 0/1 columns is all there is to M, and least squares on it is the optimum.
    # Directions of M that only squares could tell are rounding, which must not be fitted.
    for seed in range(60):
        rng = np.random.default_rng(seed)
        X = (rng.uniform(size=(100, 2)) < 0.4).astype(float)
        y = X[:, 1] + rng.standard_normal(100)
        model = SecondOrderRegressor(rank=2, alpha=0, polish=False, random_state=seed).fit(X, y)
        F = np.column_stack([np.ones(100), X, X[:, 0] * X[:, 1]])
        least = np.mean((y - F @ np.linalg.lstsq(F, y)[0]) ** 2)
        assert np.abs(model.eigenvalues_).max() < 100  # y and X are of size 1
        # Not below the optimum, and not above it by more than some steps of tol = 1e-6.
        assert least * (1 - 1e-9) <= model.history_[-1].loss <= least * (1 + 1e-5)


def test_a_constant_beside_a_two_valued_column_is_no_direction():
    rng = np.random.default_rng(157)
    rng.integers(2, 5)
    X = np.column_stack([np.full(100, 3.0), rng.uniform(size=100) < 0.4]).astype(float)
    y = X[:, 1] + rng.standard_normal(100)
    model = SecondOrderRegressor(rank=2, alpha=0, polish=False, random_state=157).fit(X, y)
    assert np.abs(model.eigenvalues_).max() == 0


@pytest.mark.parametrize("polish", [True, False])
def test_the_history_does_not_rise_from_a_warm_model_of_another_target(polish):
    for seed in range(12):
        rng = np.random.default_rng(seed)
        n, d = int(rng.integers(20, 200)), int(rng.integers(2, 9))
        X = rng.standard_normal((n, d))
        X = X if seed % 3 else (X > 0.3).astype(float)
        y, other = X[:, 0] * rng.standard_normal(n), 10 * rng.standard_normal(n)
        model = SecondOrderRegressor(
            rank=min(d, 3), alpha=0, polish=polish, warm_start=True, random_state=0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(X, other).fit(X, y)
        losses = [record.loss for record in model.history_]
        assert np.all(np.diff(losses) < 0)
        assert np.mean((model.predict(X) - y) ** 2) <= np.var(y) * (1 + 1e-9)
        if not polish:  # nothing to start from, so the steps are those of a first fit
            assert losses == [record.loss for record in clone(model).fit(X, y).history_]
