"""What `quadlin` names: its public names, problems with a known answer, and measures of error."""

import inspect
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quadlin
from quadlin.datasets import DISTRIBUTIONS, make_second_order
from quadlin.metrics import align_phase, degrees_of_freedom, nmse, signal_error


@pytest.mark.smoke
@pytest.mark.parametrize("name", quadlin.__all__)
def test_every_public_name_is_there_listed_and_documented(name):
    value = getattr(quadlin, name)
    assert name in dir(quadlin)
    assert len(inspect.getdoc(value)) > 20


@pytest.mark.smoke
def test_other_names_are_no_attributes():
    with pytest.raises(AttributeError, match="zebra"):
        _ = quadlin.zebra
    assert quadlin.__version__[0].isdigit()


def test_importing_quadlin_is_light():
    code = "import sys, quadlin; print({'numpy', 'scipy', 'sklearn', 'torch'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    assert done.stdout.decode().strip() == "set()"


def test_fitting_imports_no_optional_library():
    code = """
import sys, numpy as np
class Missing:
    names = {"dask", "pandas", "polars", "pyarrow", "matplotlib", "onnx", "rich", "torch"}
    def find_spec(self, name, path=None, target=None):
        if name in self.names:
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Missing())
from quadlin import SecondOrderRegressor
X = np.random.default_rng(0).standard_normal((80, 3))
assert SecondOrderRegressor(random_state=0).fit(X, X[:, 0] * X[:, 1]).predict(X).shape == (80,)
"""
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


@pytest.mark.smoke
@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_targets_are_those_of_the_parameters(kind):
    data = make_second_order(50, 6, rank=2, distribution=kind, n_test=20, random_state=0)
    M = (data.components.T * data.eigenvalues) @ data.components
    M -= np.diag(np.where(data.has_diagonal, 0, np.diag(M)))
    for X, y in ((data.X, data.y), (data.X_test, data.y_test)):
        expected = data.intercept + X @ data.coef + np.einsum("ni,ij,nj->n", X, M, X)
        np.testing.assert_allclose(y, expected)


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_the_same_seed_draws_the_same_rows_and_noise_is_added_to_training_rows_only(kind):
    first, again, noisy = (
        make_second_order(2000, 4, distribution=kind, noise=s, n_test=9, random_state=3)
        for s in (0.0, 0.0, 0.5)
    )
    np.testing.assert_array_equal(first.X, again.X)
    np.testing.assert_array_equal(first.y, again.y)
    np.testing.assert_array_equal(first.y_test, noisy.y_test)
    # The standard deviation of 2,000 draws is known to 0.5/√4000 = 0.008.
    assert np.std(noisy.y - first.y) == pytest.approx(0.5, abs=0.04)


def test_laws_of_features_are_those_of_their_names():
    def draw(kind, **options):
        return make_second_order(20_000, 3, distribution=kind, random_state=0, **options).X

    assert set(np.unique(draw("bernoulli", parameter=0.3))) == {0.0, 1.0}
    assert draw("bernoulli", parameter=0.3).mean() == pytest.approx(0.3, abs=0.01)
    assert draw("truncated", parameter=0.5).max() == 0.5
    assert 0 <= draw("uniform").min() < draw("uniform").max() <= 1
    assert np.corrcoef(draw("ar1", parameter=0.8).T)[0, 1] == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize(
    ("options", "mentioned"),
    [({"distribution": "poisson"}, "poisson"), ({"n_features": 5, "rank": 9}, "rank=9")],
)
def test_wrong_arguments_are_named(options, mentioned):
    with pytest.raises(ValueError, match=mentioned):
        make_second_order(**options)


def test_nmse_is_one_for_the_mean_and_zero_for_the_truth():
    y = np.array([1.0, 2.0, 4.0])
    assert nmse(y, y) == 0
    assert nmse(y, np.full(3, y.mean())) == pytest.approx(1)
    with pytest.raises(ValueError, match=r"3.*2"):
        nmse(y, y[:2])


@given(d=st.integers(1, 40), k=st.integers(0, 40))
def test_parameters_are_those_of_a_symmetric_matrix_of_that_rank(d, k):
    k = min(k, d)
    # An intercept, d slopes, and k·d − k(k−1)/2 for a symmetric d×d matrix of rank k.
    assert degrees_of_freedom(d, k) == 1 + d + k * d - k * (k - 1) // 2


@given(phase=st.floats(0, 6.28), seed=st.integers(0, 99))
def test_signals_are_compared_up_to_their_phase(phase, seed):
    rng = np.random.default_rng(seed)
    z = rng.standard_normal(8) + 1j * rng.standard_normal(8)
    turned = np.exp(1j * phase) * z
    assert signal_error(z, turned) == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(align_phase(turned, z), z, atol=1e-12)
    assert signal_error(z.real, -z.real) == pytest.approx(0, abs=1e-12)
    assert signal_error(z, 0 * z) == pytest.approx(1)


PARAMETERS = [
    "rank",
    "alpha",
    "pairs",
    "squares",
    "loss",
    "categorical_features",
    "missing",
    "extrapolation",
    "uncertainty",
    "fit_intercept",
    "solver",
    "max_iter",
    "tol",
    "max_memory",
    "warm_start",
    "random_state",
]


@pytest.mark.parametrize(
    ("name", "most"), [("SecondOrderRegressor", 4), ("SecondOrderClassifier", 5)]
)
def test_an_estimator_is_few_classes_with_the_parameters_that_its_text_explains(name, most):
    kind = getattr(quadlin, name)
    assert sum(each.__module__.startswith("quadlin") for each in kind.__mro__) <= most
    own = list(inspect.signature(kind).parameters)
    assert [each for each in own if each != "class_weight"] == [p for p in PARAMETERS if p in own]
    for each in own:
        assert f"{each} : " in kind.__doc__, each


def test_the_main_estimator_has_all_parameters_and_a_text_of_a_page():
    assert list(inspect.signature(quadlin.SecondOrderRegressor).parameters) == PARAMETERS
    assert len(quadlin.SecondOrderRegressor.__doc__.split()) <= 900
