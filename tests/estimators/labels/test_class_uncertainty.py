"""How sure classifiers are: standard errors of log-odds against Fisher's information."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from quadlin import FactorizationMachineClassifier, SecondOrderClassifier, load, save

RNG = np.random.default_rng(0)
X = RNG.standard_normal((800, 3))
F = X[:, 0] * X[:, 1] + X[:, 2]
Y = (RNG.uniform(size=800) < 1 / (1 + np.exp(-F))).astype(int)
EXACT = {"alpha": 0.0, "tol": 1e-14, "random_state": 0}


def design(X):
    i, j = np.triu_indices(3)
    return np.hstack([np.ones((len(X), 1)), X, X[:, i] * X[:, j]])


def covariance(A, p, robust=False):
    inverse = np.linalg.inv(A.T @ (A * (p * (1 - p))[:, None]))
    if not robust:
        return inverse
    h = p * (1 - p) * np.sum(A @ inverse * A, axis=1)
    e = (Y - p) / (1 - h)
    return inverse @ (A.T @ (A * (e**2)[:, None])) @ inverse


@pytest.mark.parametrize("uncertainty", [True, "robust"])
@pytest.mark.parametrize("rank", [0, 3])
def test_standard_errors_are_those_of_fishers_information(uncertainty, rank):
    model = SecondOrderClassifier(rank, uncertainty=uncertainty, **EXACT).fit(X, Y)
    A = design(X)[:, : 4 if rank == 0 else None]
    C = covariance(A, model.predict_proba(X)[:, 1], uncertainty == "robust")
    errors = np.sqrt(np.diag(C))
    np.testing.assert_allclose([model.intercept_std_, *model.coef_std_], errors[:4], rtol=1e-5)
    if rank:
        assert model.interaction_std(0, 1) == pytest.approx(errors[5], rel=1e-5)
        assert model.interactions_.top(1)[0].std_error == pytest.approx(errors[5], rel=1e-5)
    f, std = model.decision_function(X, return_std=True)
    np.testing.assert_array_equal(f, model.decision_function(X))
    np.testing.assert_allclose(std, np.sqrt(np.sum(A @ C * A, axis=1)), rtol=1e-5)


def test_a_low_rank_is_surer_than_all_products():
    low, full = (
        SecondOrderClassifier(rank, uncertainty=True, **EXACT).fit(X, Y) for rank in (2, 3)
    )
    assert low.interaction_std(0, 1) < 1.02 * full.interaction_std(0, 1)
    low, full = (model.decision_function(X, return_std=True)[1].mean() for model in (low, full))
    assert low < full


def test_the_summary_has_z_p_and_intervals_of_the_normal_distribution():
    model = SecondOrderClassifier(2, alpha=0.0, uncertainty=True, random_state=0).fit(X, Y)
    summary = model.summary(top=1)
    frame = summary.to_frame()
    assert "z" in frame
    assert "t" not in frame
    row = frame[frame.term == "x0 × x1"].iloc[0]
    reach = 1.959964 * row.std_error
    assert row.high - row.estimate == pytest.approx(reach, rel=1e-6)
    assert row.z == pytest.approx(row.estimate / row.std_error)
    assert " z " in str(summary)


def test_each_of_several_classes_has_its_own_standard_errors(tmp_path):
    labels = np.digitize(F, [-1, 1])
    model = SecondOrderClassifier(1, alpha=1.0, uncertainty=True, random_state=0).fit(X, labels)
    f, std = model.decision_function(X, return_std=True)
    assert f.shape == std.shape == (800, 3)
    one = model.one_vs_rest(1)
    np.testing.assert_array_equal(std[:, 1], one.decision_function(X, return_std=True)[1])
    save(model, tmp_path / "model.quadlin")
    again = load(tmp_path / "model.quadlin").decision_function(X, return_std=True)[1]
    np.testing.assert_array_equal(again, std)


@pytest.mark.parametrize("labels", [Y, Y + (X[:, 0] > 1)])
def test_standard_errors_of_probabilities_are_those_of_the_log_odds(labels):
    model = SecondOrderClassifier(1, alpha=1.0, uncertainty=True, random_state=0).fit(X, labels)
    p, std = model.predict_proba(X, return_std=True)
    np.testing.assert_array_equal(p, model.predict_proba(X))
    f, error = model.decision_function(X, return_std=True)
    f, error = (a.reshape(len(X), -1)[:, -1] for a in (f, error))
    step = 1e-5
    slope = (expit(f + step) - expit(f - step)) / (2 * step)  # of the last class
    np.testing.assert_allclose(std[:, -1], slope * error, rtol=1e-6, atol=1e-9)


def test_several_classes_warn_once():
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"u": rng.choice(list("abcd"), 200), "i": rng.choice(list("kl"), 200)})
    machine = FactorizationMachineClassifier(uncertainty=True, random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # narwhals 2.0 renames series as pandas 3 would rather not have it.
        warnings.filterwarnings("ignore", "The inplace keyword", DeprecationWarning)
        machine.fit(rows, rng.integers(0, 3, 200))
    assert [str(w.message)[:37] for w in caught] == ["uncertainty=True asks for another mod"]
    assert caught[0].filename == __file__


def test_what_is_not_known_is_refused():
    model = SecondOrderClassifier(1, alpha=1.0, random_state=0).fit(X, Y)
    with pytest.raises(AttributeError, match=r"need a fit with uncertainty=True\. Set it and call"):
        model.decision_function(X, return_std=True)
    streamed = SecondOrderClassifier(1, alpha=1.0, uncertainty=True, random_state=0)
    streamed.partial_fit(X, Y, classes=[0, 1])
    with pytest.raises(AttributeError, match="learned by `partial_fit`"):
        streamed.decision_function(X, return_std=True)
    sure = FactorizationMachineClassifier(1, alpha=1.0, uncertainty=True, random_state=0)
    with pytest.raises(AttributeError, match="noise_ is not defined for labels"):
        _ = sure.fit(X, Y).noise_
