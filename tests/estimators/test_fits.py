"""What a fit reports is what happened: standard errors and passes."""

import numpy as np
import pytest

from quadlin import (
    FactorizationMachineRegressor,
    SecondOrderClassifier,
    SecondOrderRegressor,
    open_source,
)


def test_robust_errors_of_hubers_loss_are_those_of_refits():
    # An error from 40 refits is uncertain by 1/√80 = 11%: three of them.
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 2))
    size, coefs, errors = 0.2 + X[:, 0] ** 2, [], {"robust": [], True: []}
    for number in range(40):
        y = X[:, 1] + size * rng.standard_normal(200)
        for kind in errors if number < 5 else [False]:
            model = SecondOrderRegressor(0, alpha=0.0, loss="huber", uncertainty=kind).fit(X, y)
            if kind:
                errors[kind].append(model.coef_std_[0])
        coefs.append(model.coef_[0])
    assert np.mean(errors["robust"]) == pytest.approx(np.std(coefs), rel=0.35)
    assert np.mean(errors[True]) < 0.65 * np.std(coefs)


class Table:
    """Rows that count how often they are read."""

    def __init__(self, X, y):
        self.X, self.y, self.read = X, y, 0
        self.source = open_source(self.rows)
        self.read = 0  # opening looks at them

    def rows(self):
        self.read += 1
        yield self.X, self.y


def drawn(classes=0):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4))
    y = X[:, 0] * X[:, 1] + X[:, 2] + 0.5 * rng.standard_normal(300)
    return X, np.digitize(
        y, np.quantile(y, np.arange(1, classes) / classes)
    ) * 1.0 if classes else y


FITS = [
    (SecondOrderRegressor(), 0),
    (SecondOrderRegressor(2, alpha=0.0), 0),
    (SecondOrderRegressor(loss="huber", uncertainty=True), 0),
    (SecondOrderRegressor(pairs=2, uncertainty="robust"), 0),
    (SecondOrderRegressor(2, solver="moments"), 0),
    (SecondOrderRegressor(loss="poisson"), 9),
    (FactorizationMachineRegressor(), 0),
    (SecondOrderClassifier(uncertainty=True), 2),
    (SecondOrderClassifier(1, alpha=1.0), 3),
]


@pytest.mark.parametrize(("model", "classes"), FITS, ids=str)
def test_the_passes_that_are_reported_are_the_times_that_rows_were_read(model, classes):
    table = Table(*drawn(classes))
    model.set_params(random_state=0).fit(table.source)
    passes = model.n_passes_ if hasattr(model, "classes_") else model.history_[-1].passes
    assert passes == table.read
