"""Several classes at once: scores whose softmax is the probability, beside independent oracles."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, log_softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from quadlin import FactorizationMachineClassifier, SecondOrderClassifier, load, save, to_onnx
from quadlin.estimators.labels import logistic_model
from quadlin.estimators.labels.fitted_classes import log_odds_of, probabilities
from quadlin.estimators.labels.joint_classes import JointFit
from quadlin.solve.lowrank.types import Status


def made(n=600, d=4, K=3, quadratic=1.0, seed=0):
    """Return rows of a softmax truth, labels and the true probabilities."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    F = X @ rng.standard_normal((d, K))
    for k in range(K):
        u = rng.standard_normal(d)
        F[:, k] += quadratic * (-1) ** k * ((X @ u) ** 2 / (u @ u) - 1)
    P = np.exp(log_softmax(F, axis=1))
    return X, (P.cumsum(axis=1) < rng.uniform(size=(n, 1))).sum(axis=1), P


X, Y, P = made()


@pytest.mark.parametrize("alpha", [0.5, 20.0])
@pytest.mark.parametrize("weights", [None, "balanced"])
def test_rank_zero_with_a_penalty_is_multinomial_logistic_regression(alpha, weights):
    model = SecondOrderClassifier(0, alpha=alpha, class_weight=weights).fit(X, Y)
    factors = np.ones(3) if weights is None else 1 / np.bincount(Y)
    Z = StandardScaler().fit(X, sample_weight=factors[Y]).transform(X)
    peer = LogisticRegression(C=1 / alpha, tol=1e-10, max_iter=10_000, class_weight=weights)
    # Turns end where a cycle gains 1e-5 of the objective, which is quadratic in what is left.
    np.testing.assert_allclose(model.predict_proba(X), peer.fit(Z, Y).predict_proba(Z), atol=3e-4)


def test_weights_are_repetitions_of_rows():
    weight = np.random.default_rng(1).integers(0, 3, len(X))
    many = SecondOrderClassifier(1, alpha=2.0, random_state=0)
    many.fit(np.repeat(X, weight, axis=0), np.repeat(Y, weight))
    once = SecondOrderClassifier(1, alpha=2.0, random_state=0).fit(X, Y, sample_weight=weight)
    np.testing.assert_allclose(once.predict_proba(X), many.predict_proba(X), atol=1e-4)


def objective(theta, Z, Y, K, k, alpha):
    """Return 2 Σ log-loss + α Σ|w|² + 2α Σ‖M‖² of scores c + zᵀw + Σ s(zᵀu)², and its gradient."""
    n, d = Z.shape
    c, w, V = np.split(theta, [K, K + K * d])
    w, V = w.reshape(K, d), V.reshape(K, k, d)
    sign = SIGNS[:, :, None]
    ZV = np.einsum("nd,ckd->cnk", Z, V)
    F = c + Z @ w.T + np.einsum("cnk,ck->nc", ZV**2, SIGNS)
    log_p = log_softmax(F, axis=1)
    r = np.exp(log_p) - (Y[:, None] == np.arange(K))
    M = np.einsum("ckd,ck,cke->cde", V, SIGNS, V)
    value = -2 * log_p[np.arange(n), Y].sum() + alpha * (w**2).sum() + 2 * alpha * (M**2).sum()
    slope = 4 * sign * np.einsum("nc,cnk,nd->ckd", r, ZV, Z)
    slope += 8 * alpha * sign * np.einsum("cde,cke->ckd", M, V)
    parts = (2 * r.sum(axis=0), 2 * r.T @ Z + 2 * alpha * w, slope)
    return value, np.concatenate([part.ravel() for part in parts])


SIGNS = np.array([[1.0], [-1.0], [1.0]])


def test_no_scores_of_rank_one_near_by_have_a_smaller_objective():
    """L-BFGS on the factors goes on from the fit, and from nine other places: it gains nothing."""
    K, k, alpha, d = 3, 1, 2.0, X.shape[1]
    model = SecondOrderClassifier(k, alpha=alpha, random_state=0).fit(X, Y)
    Z = StandardScaler().fit_transform(X)
    states = [part.state.model for part in model.fitted_.joint]
    assert [float(np.sign(m.s[0])) for m in states] == SIGNS[:, 0].tolist()
    c = [m.c - float(m.s.sum()) for m in states]  # of f centred to the user's formula
    V = [m.U[:, 0] * np.sqrt(abs(m.s[0])) for m in states]
    reached = np.concatenate([c, *(m.w for m in states), *V])
    args = (Z, Y, K, k, alpha)
    value = objective(reached, *args)[0]
    rng = np.random.default_rng(0)
    starts = [reached, *rng.standard_normal((9, len(reached)))]
    best = min(minimize(objective, s, args, "L-BFGS-B", jac=True).fun for s in starts)
    assert len(reached) == K * (1 + 2 * d)
    # What all scores have in common is hardly determined, and turns are slow along it.
    assert best <= value <= best * (1 + 2e-3)


def test_scores_fitted_together_predict_a_softmax_better_than_fits_against_the_rest():
    """Over 8 such tables the ratio of log-losses was .96 to .99."""
    ratios = []
    for seed in (1,):
        rows, y, p = made(4000, 4, 3, 0.7, seed)
        model = SecondOrderClassifier(pairs=None, random_state=0).fit(rows[:1000], y[:1000])
        assert model.fitted_.joint
        apart = np.stack([part.predict(rows[1000:]) for part in model.fitted_.parts], axis=1)
        new, loss = slice(1000, None), log_loss(y[1000:], model.predict_proba(rows[1000:]))
        assert loss > log_loss(y[new], p[new])
        ratios.append(loss / log_loss(y[1000:], probabilities(apart)))
    assert max(ratios) < 1


def test_log_odds_of_scores_are_those_of_their_softmax():
    F = 30 * np.random.default_rng(0).standard_normal((50, 4))
    log_p = log_softmax(F, axis=1)
    f = log_odds_of(F)
    np.testing.assert_allclose(probabilities(f), np.exp(log_p), atol=1e-12)
    np.testing.assert_allclose(expit(f).sum(axis=1), 1)


def test_scores_are_kept_in_files_and_graphs_and_each_class_stays_readable(tmp_path):
    model = SecondOrderClassifier(1, alpha=1.0, random_state=0).fit(X, Y)
    p = model.predict_proba(X)
    np.testing.assert_allclose(expit(model.decision_function(X)), p, atol=1e-9)
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(p), atol=1e-9)
    save(model, tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(again.predict_proba(X), p)
    alone = SecondOrderClassifier(1, alpha=1.0, random_state=0).fit(X, Y == 1)
    np.testing.assert_allclose(again.one_vs_rest(1).coef_, alone.coef_)
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(to_onnx(model).SerializeToString())
    label, q = session.run(["label", "probabilities"], {"X": X})
    np.testing.assert_allclose(q, p, atol=1e-12)
    np.testing.assert_array_equal(label, model.predict(X))


def test_a_stream_goes_on_from_the_fits_of_each_class():
    model = SecondOrderClassifier(1, alpha=1.0, random_state=0).fit(X[:300], Y[:300])
    parts = model.fitted_.parts
    model.partial_fit(X[300:], Y[300:])
    assert not model.fitted_.joint
    after = SecondOrderClassifier(1, alpha=1.0, random_state=0)
    after.adopt(type(model.fitted_)(np.arange(3), parts))
    after.partial_fit(X[300:], Y[300:])
    np.testing.assert_array_equal(after.predict_proba(X), model.predict_proba(X))


def test_pairs_of_a_class_are_part_of_its_score():
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((1500, 5))
    F = np.stack([2 * rows[:, 0] * rows[:, 1], rows[:, 2], 0 * rows[:, 0]], axis=1)
    y = np.argmax(F + rng.gumbel(size=F.shape), axis=1)
    model = SecondOrderClassifier(random_state=0).fit(rows[:1000], y[:1000])
    scores = model.fitted_.joint
    assert any(part.state.parts is not None for part in scores)
    for part in scores:  # L and the pairs are M
        state = part.state
        if state.parts is not None:
            terms = state.parts.terms
            M = (state.model.U * state.model.s) @ state.model.U.T
            L = (state.parts.U * state.parts.s) @ state.parts.U.T
            i, j = terms.i[0], terms.j[0]
            assert M[i, j] - L[i, j] == pytest.approx(terms.coef[0] / (1 + (i != j)))
    truth = log_loss(y[1000:], np.exp(log_softmax(F[1000:], axis=1)))
    # 30 parameters of 1,000 rows cost 30/2,000 beyond the truth; twice that, and chance, is room.
    assert log_loss(y[1000:], model.predict_proba(rows[1000:])) < truth + 0.04


def test_ctrl_c_while_classes_are_fitted_together_keeps_their_fits(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(logistic_model, "joint_or_apart", interrupted)
    model = SecondOrderClassifier(0, alpha=1.0)
    with pytest.raises(KeyboardInterrupt, match="the last finished step"):
        model.fit(X, Y)
    assert model.status_ is Status.interrupted
    assert not model.fitted_.joint
    assert model.score(X, Y) > 0.5


def test_the_turn_of_a_class_asks_for_no_penalties_of_the_others(monkeypatch):
    """Each turn of each class did: 200 classes took minutes."""
    asked = {"_turn": 0, "_penalty": 0}

    def counted(name, method):
        def call(self, *args):
            asked[name] += 1
            return method(self, *args)

        return call

    for name in asked:
        monkeypatch.setattr(JointFit, name, counted(name, getattr(JointFit, name)))
    K = 8
    features, labels, _ = made(K=K)
    SecondOrderClassifier(0, alpha=1.0).fit(features, labels)
    # Two for a turn, one more where its step is halved, and one per class at the end of a cycle.
    assert 0 < asked["_penalty"] <= 4 * asked["_turn"] < 2 * K * asked["_turn"]


def test_without_a_penalty_classes_are_fitted_apart():
    assert not SecondOrderClassifier(0, alpha=0.0).fit(X, Y).fitted_.joint


def test_a_machine_with_a_penalty_is_fitted_together_too():
    machine = FactorizationMachineClassifier(1, alpha=1.0, random_state=0).fit(X, Y)
    same = SecondOrderClassifier(1, alpha=1.0, diagonal="zero", random_state=0).fit(X, Y)
    assert machine.fitted_.joint
    np.testing.assert_allclose(machine.predict_proba(X), same.predict_proba(X))
