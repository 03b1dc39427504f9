import numpy as np
import pytest

from quadlin.datasets import DISTRIBUTIONS, make_second_order
from quadlin.metrics import nmse


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_the_target_is_what_the_parameters_say(kind):
    data = make_second_order(50, 6, rank=2, distribution=kind, n_test=20, random_state=0)
    M = (data.components.T * data.eigenvalues) @ data.components
    M -= np.diag(np.where(data.has_diagonal, 0, np.diag(M)))
    for X, y in ((data.X, data.y), (data.X_test, data.y_test)):
        expected = data.intercept + X @ data.coef + np.einsum("ni,ij,nj->n", X, M, X)
        np.testing.assert_allclose(y, expected)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="distribution='poisson'"):
        make_second_order(distribution="poisson")
    with pytest.raises(ValueError, match="rank=9"):
        make_second_order(n_features=5, rank=9)


def test_nmse_of_the_mean_is_one():
    y = np.array([1.0, 2.0, 4.0])
    assert nmse(y, np.full(3, y.mean())) == pytest.approx(1)
    with pytest.raises(ValueError, match="shape"):
        nmse(y, y[:2])
