"""The Triton kernels say what numpy says: in Triton's interpreter where there is no GPU."""

import os

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
pytest.importorskip("triton", reason="Triton is not installed")

from problems import squares_matmul, squares_rmatmul
from quadlin.core import library
from quadlin.core.block import Block
from quadlin.core.chunks import MemorySource
from quadlin.core.model import Model, Steps
from quadlin.core.moments import Moments, survey
from quadlin.core.response import Assembly, Response
from quadlin.core.rows import Rows
from quadlin.core.sums import change_sums, residual_sums
from quadlin.core.units import Target, Units
from quadlin.data.gpu import triton_moments
from quadlin.data.gpu.device import OnDevice
from quadlin.data.gpu.triton_fit import planned
from quadlin.data.gpu.triton_kernel import TritonKernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _offered(monkeypatch):
    monkeypatch.setitem(library._makers, "products", [TritonKernel.of])


def case(n, d, k, mean, form, seed=0):
    """Return rows, units and, for an oracle in float64, the standardised rows."""
    rng = np.random.default_rng(seed)
    X = (rng.standard_normal((n, d)) + mean).astype(np.float32)
    about = [np.full(d, mean, np.float32), np.linspace(0.5, 2, d).astype(np.float32)]
    about[1][:1] = 0 if d > 2 else about[1][:1]  # a constant feature
    rest = np.full(d, 0.01, np.float32)
    Z = (X.astype(np.float64) - about[0]) * about[1] - rest
    X = torch.asarray(X, device=DEVICE)
    if form == "F":
        X = X.T.contiguous().T
    if form == "every other":
        X = torch.repeat_interleave(torch.repeat_interleave(X, 2, 0), 2, 1)[::2, ::2]
    mean, scale, rest = (torch.asarray(v, device=DEVICE) for v in (*about, rest))
    one = torch.ones_like(mean)
    units = Units(mean, scale, one, one, one, Target(0.0, 1.0, 0.0, 1.0), one, rest)
    return X, units, Z, rng


def agree(actual, expected):
    # float32 products of up to 130 terms of size 1: 1e-5 of the largest.
    size = np.max(np.abs(expected), initial=1.0)
    np.testing.assert_allclose(actual.cpu().numpy(), expected, rtol=0, atol=2e-5 * size)


@pytest.mark.parametrize("form", ["C", "F", "every other"])
@pytest.mark.parametrize("mean", [0.0, 1e4])
@pytest.mark.parametrize(("n", "d", "k"), [(1, 1, 1), (65, 130, 3), (130, 7, 17), (0, 5, 2)])
def test_products_and_sums_are_those_of_standardised_rows(n, d, k, mean, form):
    X, units, Z, rng = case(n, d, k, mean, form)
    block = Block(X, units)
    assert isinstance(block.kernel, TritonKernel)
    Q, R = (rng.standard_normal(shape).astype(np.float32) for shape in ((d, k), (n, k)))
    there_q, there_r = (torch.asarray(a, device=DEVICE) for a in (Q, R))
    agree(block.matmul(there_q), Z @ Q)
    agree(squares_matmul(block, there_q), (Z * Z) @ Q)
    agree(block.rmatmul(there_r), Z.T @ R)
    agree(squares_rmatmul(block, there_r), (Z * Z).T @ R)


def test_columns_that_no_program_takes_at_once_come_in_slabs():
    X, units, Z, rng = case(70, 20, 100, 0.0, "C")
    Q = rng.standard_normal((20, 100)).astype(np.float32)
    agree(Block(X, units).matmul(torch.asarray(Q, device=DEVICE)), Z @ Q)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_pass_adds_up_what_its_residuals_say(weighted):
    n, d, k = 100, 33, 3
    X, units, Z, rng = case(n, d, k, 2.0, "C")
    U, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((d, k), (d, 1)))
    y, left_out = (rng.standard_normal(shape).astype(np.float32) for shape in (n, (d, 1)))
    omega = rng.integers(0, 3, n).astype(np.float32) if weighted else np.ones(n, np.float32)
    s = np.array([1.0, -1.0, 2.0], np.float32)
    to = {name: torch.asarray(a, device=DEVICE) for name, a in
          {"U": U, "w": w, "y": y, "S": left_out, "o": omega, "s": s}.items()}  # fmt: skip
    constant = torch.ones(1, device=DEVICE)
    assembly = Assembly(constant, to["S"])
    weight = to["o"] if weighted else None
    response = Response(assembly, to["s"], 0, slice(0, k), to["y"], weight)
    passed = Block(X, units).passed(torch.cat([to["U"], to["w"]], 1), response, to["S"], True)
    f = 1 + Z @ w[:, 0] + (Z @ U) ** 2 @ s - (Z * Z) @ left_out[:, 0]
    r = f - y
    agree(passed.p1[:, 0], Z.T @ (omega * r))
    agree(passed.p2[:, 0], (Z * Z).T @ (omega * r))
    agree(passed.action, Z.T @ ((omega * r)[:, None] * (Z @ U)))
    agree(passed.p0, [np.sum(omega * r)])
    assert passed.loss == pytest.approx(np.sum(omega * r**2), rel=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("n", "d", "k"), [(1, 1, 1), (90, 36, 3), (70, 21, 20)])
def test_a_pass_of_a_fit_says_what_it_says_here(n, d, k, weighted):
    rng = np.random.default_rng(0)
    k = min(k, d)
    X = (rng.standard_normal((n, d)) + 2).astype(np.float32)
    free = (np.arange(d) % 3 > 0).astype(np.float32)
    one = np.ones(d, np.float32)
    target = Target(0.5, 2.0, 0.0, 1.0)
    units = Units(2 * one, one / 2, one, one, free, target, one, 0.01 * one)
    y = rng.standard_normal(n)
    weight = rng.integers(0, 3, n).astype(np.float64) if weighted else None
    U, H, Q = (rng.standard_normal((d, q)).astype(np.float32) / d for q in (k, k, k + 2))
    s, w = (rng.standard_normal(q).astype(np.float32) for q in (k, d))
    steps = Steps(U, H[:, None, :], w[:, None], one[:1])
    source = MemorySource(X, y, weight)
    here, there = Rows.of(source), Rows(OnDevice(source, DEVICE, 1, 1 << 30))
    model = Model(U, s, w, 0.5, free)
    for asked in (
        (residual_sums, model, units),
        (residual_sums, model, units, None, False),
        (residual_sums, model, units, Q),
        (change_sums, steps, units, True),
        (change_sums, steps, units, False),
    ):
        assert planned(asked[0], asked[1:]) is not None
        expected = here.reduce(*asked)
        for _ in range(6 if DEVICE == "cuda" else 1):  # the last ones are replayed
            actual = there.reduce(*asked)
            for name in vars(expected):
                a, b = (np.asarray(getattr(sums, name)) for sums in (actual, expected))
                assert a.shape == b.shape
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * max(1, np.abs(b).max()))


def test_passes_that_are_not_of_that_form_are_left_to_others():
    one = np.ones(3, np.float32)
    units = Units(one, one, one, one, one, Target(0.0, 1.0, 0.0, 1.0), one, one)
    model = Model(np.ones((3, 1), np.float32), one[:1], one, 0.0, one)
    wide = Model(np.ones((3, 64), np.float32), np.ones(64, np.float32), one, 0.0, one)
    assert planned(residual_sums, (model, units, None, True, "logistic")) is None
    assert planned(residual_sums, (wide, units)) is None
    assert planned(survey, ()) is None


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("form", ["C", "every other"])
@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_moments_are_those_of_float64(mean, form, weighted, monkeypatch):
    monkeypatch.setattr(triton_moments, "RUN", 128)  # several runs
    X, _, _, rng = case(300, 6, 1, mean, form)
    X[:, 0] = 0.3  # a constant
    X[:, 1] += torch.linspace(0, 50, 300, device=DEVICE)  # sorted
    weight = rng.integers(0, 3, 300) if weighted else None
    there = None if weight is None else torch.asarray(weight, device=DEVICE)
    actual = Moments(*triton_moments.column_moments(X, there))
    expected = Moments.of(X.cpu().double().numpy(), weight)
    assert actual.weight == expected.weight
    for name in ("mean", "var", "kappa", "phi", "low", "high"):
        a, b = getattr(actual, name).cpu().numpy(), getattr(expected, name)
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=name)
    assert float(actual.var[0]) == 0.0


def test_rows_of_float64_are_left_to_torch():
    X, units, _, _ = case(5, 3, 1, 0.0, "C")
    assert Block(X.double(), units).kernel is None
