"""Standard errors of wide sparse rows: the same functionals as for steps, and close to H⁻¹."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array, hstack

from quadlin import FactorizationMachineClassifier, FactorizationMachineRegressor
from quadlin.core import library
from quadlin.core.block import Block
from quadlin.core.chunks import MemorySource
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import Target, Units, UnitsMaker
from quadlin.export import load, save
from quadlin.solve.fits import curvature, uncertainty
from quadlin.solve.fits.column_covariances import ColumnCovariances, come_together
from quadlin.solve.fits.error_steps import ErrorSteps
from quadlin.solve.lowrank import column_descent
from quadlin.solve.lowrank.column_rows import ColumnFit
from quadlin.solve.lowrank.types import Options, Problem
from quadlin.storage.tensor_file import FileFormatError, read_tensors, write_tensors

pytestmark = pytest.mark.skipif(
    not library.takes(np.dtype(np.float64)), reason="there is no compiled kernel"
)


def rows_of(n, d, per_row, seed, fields=False, strength=1.0, noise=1.0):
    """Return rows with a few ones each, targets of a machine of rank 2, and these without noise."""
    rng = np.random.default_rng(seed)
    levels = d // per_row if fields else d
    chances = 1 / np.arange(1, levels + 1) ** 0.7
    codes = rng.choice(levels, (n, per_row), p=chances / chances.sum())
    columns = codes + (levels * np.arange(per_row) if fields else 0)
    X = csr_array(
        (np.ones(n * per_row), columns.ravel(), np.arange(0, n * per_row + 1, per_row)), (n, d)
    )
    X.sum_duplicates()
    X.data[:] = 1.0
    w, v = rng.standard_normal(d), strength * rng.standard_normal((d, 2)) / per_row**0.5
    p, squares = X @ v, X.multiply(X) @ v**2
    f = X @ w + (p**2 - squares) @ np.array([1.0, -1.0])
    return X, f + noise * rng.standard_normal(n), f


# ---- Functionals, against those of explicit steps


def example(k=3, d=14, seed=0):
    """Return covariances of columns, the same as steps, and units."""
    rng = np.random.default_rng(seed)
    roots = rng.standard_normal((d, k + 1, k + 1))
    i, j = np.tril_indices(k + 1)
    triangles = (roots @ roots.transpose(0, 2, 1))[:, i, j]
    E = rng.standard_normal((d, k))
    H, w = np.zeros((d, d, k + 1, k)), np.zeros((d, d, k + 1))
    for column in range(d):
        w[column, column], H[column, column] = roots[column, 0], roots[column, 1:].T
    m = d * (k + 1)
    steps = ErrorSteps(
        E,
        np.concatenate([H.reshape(d, m, k), np.zeros((d, 1, k))], axis=1),
        np.concatenate([w.reshape(d, m), np.zeros((d, 1))], axis=1),
        np.append(np.zeros(m), 0.6),
    )
    scale = rng.uniform(0.5, 2, d)
    scale[3] = 0.0
    units = Units(rng.standard_normal(d), scale, np.zeros(d), np.full(d, 3.0), np.zeros(d),
                  Target(0.0, 1.0, 0.0, 1.0), np.ones(d), np.zeros(d))  # fmt: skip
    covariances = ColumnCovariances(E, triangles, np.full(d, -1), 0.36)
    return covariances, steps, units, rng


@pytest.mark.parametrize("k", [0, 1, 3, 8])
def test_variances_are_those_of_steps_of_single_columns(k):
    covariances, steps, units, rng = example(k)
    X = np.where(rng.random((9, 14)) < 0.4, rng.standard_normal((9, 14)), 0.0)
    for rows in (csr_array(X), X):
        block = Block(rows, units)
        np.testing.assert_allclose(
            covariances.of_predictions(block, units), steps.of_predictions(block, units)
        )
    for ours, expected in zip(
        covariances.of_coefficients(units), steps.of_coefficients(units), strict=True
    ):
        np.testing.assert_allclose(ours, expected)
    fields = (np.array([0, 4, 5]), np.array([7, 8]))
    np.testing.assert_allclose(
        covariances.of_slopes(X[0], units, fields), steps.of_slopes(X[0], units, fields)
    )
    for pair in ((0, 1), (5, 2)):
        np.testing.assert_allclose(
            covariances.of_interaction(*pair, units), steps.of_interaction(*pair, units), atol=1e-12
        )


# ---- Against the inverse of the curvature


@pytest.fixture
def narrow(monkeypatch):
    """Take tables as wide that are small enough for the inverse of their curvature."""
    monkeypatch.setattr(column_descent, "NARROW", 100)
    monkeypatch.setattr(curvature, "FULL_LIMIT", 100)  # without C, as for wide tables
    monkeypatch.setitem(uncertainty.uncertainty_of.__kwdefaults__, "dense_limit", 5000)


def laws(X, y, alpha, monkeypatch, weight=None):
    def law():
        machine = FactorizationMachineRegressor(
            3, alpha=alpha, pairs=None, uncertainty=True, random_state=0
        )
        return machine.fit(X, y, sample_weight=weight).fitted_

    by_columns = law()
    monkeypatch.setattr(uncertainty, "goes_by_columns", lambda *_: False)
    return by_columns, law()


def middle(values):
    return np.quantile(values, [0.05, 0.5, 0.95])


@pytest.mark.parametrize("fields", [False, True])
@pytest.mark.parametrize("alpha", [3.0, 30.0])
def test_standard_errors_are_those_of_the_inverse_curvature(fields, alpha, narrow, monkeypatch):
    # Loops among the columns are neglected, which costs a few percent here; single columns vary by
    # some percent around that. The noise is compared through the degrees of freedom.
    X, y, *_ = rows_of(800, 400, 10, seed=1, fields=fields)
    one, other = laws(X, y, alpha, monkeypatch)
    assert (one.law.by_columns, other.law.by_columns, other.law.exact) == (True, False, True)
    assert np.isclose(one.law.dof, other.law.dof, rtol=0.03)
    one, other = (replace(fitted, law=replace(fitted.law, error=1.0)) for fitted in (one, other))
    seen = np.flatnonzero(X.sum(axis=0) > 0)
    (coef, b), (exact, exact_b) = one.law.coef_std(), other.law.coef_std()
    pairs = [(i, j) for i, j in zip(seen[:-30:7], seen[30::7], strict=False) if i // 40 != j // 40]
    new, *_ = rows_of(300, 400, 10, seed=2, fields=fields)
    x = np.asarray(X.mean(axis=0))
    ratios = {
        "coefficients": coef[seen] / exact[seen],
        "slopes": (one.law.slope_std(x, one.fields) / other.law.slope_std(x, one.fields))[seen],
        "pairs": [one.law.interaction_std(*p) / other.law.interaction_std(*p) for p in pairs],
        "predictions": one.law.predict_std(Block(new, one.state.units))
        / other.law.predict_std(Block(new, one.state.units)),
    }
    for name, ratio in ratios.items():
        low, median, high = middle(ratio)
        assert 0.9 < low <= high < 1.1, (name, low, high)
        assert 0.95 < median < 1.05, (name, median)
    assert 0.65 < b / exact_b < 1.4  # a row without entries is far from all others


def test_columns_of_large_means_have_the_errors_of_the_inverse(narrow, monkeypatch):
    X, y, *_ = rows_of(600, 200, 10, seed=3)
    dense = 10 + np.random.default_rng(0).standard_normal((600, 2))
    one, other = laws(csr_array(hstack([X, dense])), y, 30.0, monkeypatch)
    assert one.law.by_columns
    ours, exact = (replace(fitted.law, error=1.0) for fitted in (one, other))
    ratio = ours.coef_std()[0] / exact.coef_std()[0]
    assert 0.9 < ratio[-2:].min() < ratio[-2:].max() < 1.1
    assert 0.9 < ours.interaction_std(200, 201) / exact.interaction_std(200, 201) < 1.1
    assert 0.9 < ours.interaction_std(0, 201) / exact.interaction_std(0, 201) < 1.1


@pytest.mark.parametrize("copies", [2, 4])
def test_columns_that_come_together_are_left_to_draws(copies, narrow, monkeypatch):
    X, y, *_ = rows_of(600, 400 // copies, 10, seed=3)
    one, other = laws(csr_array(hstack([X] * copies)), y, 10.0, monkeypatch)
    assert not one.law.by_columns
    assert np.isclose(one.law.noise, other.law.noise, rtol=0.1)


def test_pairs_of_rows_show_which_columns_come_together():
    X, y, *_ = rows_of(1000, 600, 10, seed=3)
    for rows, expected in ((X, 0.0), (csr_array(hstack([X, X])), 1.0)):
        source = Rows.of(MemorySource(rows, y, None))
        surveyed = source.reduce(survey)
        names = [f"x{j}" for j in range(rows.shape[1])]
        units = UnitsMaker("zero", True, np.float64, names)(surveyed.features, surveyed.target)
        options = Options(rank=1, alpha=(1.0, 1.0))
        columns = ColumnFit.of(Problem(source, units, options, np.random.default_rng(0)))
        together = come_together(columns, np.random.default_rng(0))
        assert abs(together - expected) < 0.3


@pytest.mark.parametrize("size", [1e-30, 1e-19, 1e19, 1e30])
def test_units_that_float32_cannot_square_are_no_obstacle(size):
    X, y, *_ = rows_of(300, 600, 6, seed=7)
    machine = FactorizationMachineRegressor(1, alpha=30.0, pairs=None, random_state=0)
    expected = machine.fit(X.astype(np.float32), y).predict(X.astype(np.float32))
    scaled = (size * X).astype(np.float32)
    # Another method fits them, which ends elsewhere within its precision.
    assert np.corrcoef(machine.fit(scaled, y).predict(scaled), expected)[0, 1] > 0.99


def test_weights_are_repetitions_of_rows(narrow, monkeypatch):
    X, y, *_ = rows_of(400, 400, 10, seed=4)
    times = np.random.default_rng(0).integers(0, 3, 400)
    rows = np.repeat(np.arange(400), times)
    kwargs = {"alpha": 300.0, "pairs": None, "uncertainty": True, "random_state": 0, "tol": 1e-9}
    one = FactorizationMachineRegressor(3, **kwargs).fit(X, y, sample_weight=times.astype(float))
    other = FactorizationMachineRegressor(3, **kwargs).fit(X[rows], y[rows])
    assert all(machine.fitted_.law.by_columns for machine in (one, other))
    np.testing.assert_allclose(one.coef_std_, other.coef_std_, rtol=0.05)
    np.testing.assert_allclose(one.noise_, other.noise_, rtol=0.05)


# ---- As users see it


@pytest.fixture(scope="module")
def wide():
    X, y, _ = rows_of(12_000, 2400, 6, seed=5, strength=0.3)
    machine = FactorizationMachineRegressor(2, pairs=None, uncertainty=True, random_state=0)
    return machine.fit(X[:6000], y[:6000]), X[6000:], y[6000:]


def test_new_rows_are_where_their_intervals_say(wide):
    # Intervals include the bias of shrinkage, on average over coefficients. The share of 6,000 rows
    # that they cover is itself uncertain by .3%.
    machine, X, y = wide
    assert machine.fitted_.law.by_columns
    mean, spread = machine.predict(X, return_std=True)
    assert 0.93 < np.mean(np.abs(y - mean) < 1.96 * spread) < 0.975


def test_the_standard_errors_cost_less_than_the_fit(wide):
    machine, *_ = wide
    plain = FactorizationMachineRegressor(2, pairs=None, random_state=0)
    X, y, *_ = rows_of(12_000, 2400, 6, seed=5, strength=0.3)
    passes = plain.fit(X[:6000], y[:6000]).history_[-1].passes
    assert machine.history_[-1].passes == passes + machine.fitted_.law.passes
    assert machine.fitted_.law.passes <= min(12, passes)


def test_they_survive_a_file(wide, tmp_path):
    machine, X, *_ = wide
    save(machine, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.coef_std_, machine.coef_std_)
    np.testing.assert_array_equal(
        again.predict(X[:50], return_std=True)[1], machine.predict(X[:50], return_std=True)[1]
    )


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("group", lambda a: np.full_like(a, 2**40)),
        ("group", lambda a: np.full_like(a, -2)),
        ("group", lambda a: a.astype(float)),
        ("triangles", lambda a: -1 - np.abs(a)),
        ("triangles", lambda a: a[:, :-1].copy()),
        ("triangles", lambda a: np.full_like(a, 1e200)),
        ("E", lambda a: np.full_like(a, 1e60)),
    ],
)
def test_forged_covariances_are_refused(wide, tmp_path, part, change):
    path, name = tmp_path / "model.safetensors", f"uncertainty.spread.{part}"
    save(wide[0], path)
    arrays, header = read_tensors(path)
    write_tensors(path, {**arrays, name: change(arrays[name])}, header)
    with pytest.raises(FileFormatError):
        load(path)


def test_rows_without_entries_have_the_error_of_their_mean():
    y = np.random.default_rng(0).standard_normal(50)
    machine = FactorizationMachineRegressor(
        2, alpha=3.0, pairs=None, uncertainty=True, random_state=0
    )
    machine.fit(csr_array((50, 600)), y)
    assert machine.fitted_.law.by_columns
    assert not machine.coef_std_.any()
    _, spread = machine.predict(csr_array((2, 600)), return_std=True)
    np.testing.assert_allclose(spread, y.std(ddof=1) * np.sqrt(1 + 1 / 50))


def test_the_summary_says_what_they_are(wide):
    machine, *_ = wide
    assert "those of single columns" in str(machine.summary())


def test_a_classifier_has_them_too():
    X, _, f = rows_of(3000, 2400, 6, seed=6)
    machine = FactorizationMachineClassifier(
        2, alpha=30.0, pairs=None, uncertainty=True, random_state=0
    )
    machine.fit(X, f > np.median(f))
    assert machine.fitted_.law.by_columns
    assert np.isfinite(machine.coef_std_).all()
    assert machine.coef_std_.max() > 0
