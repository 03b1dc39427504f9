"""The laws of passes on a GPU: products, sums and moments compared with numpy; then times.

Run: SCIPY_ARRAY_API=1 python benchmarks/gpu_laws.py [--device cuda] [--rows 300000]
[--features 1000] [--rank 10] [--only laws|times]

Each line is a case and an implementation ("torch": plain operations; "triton": the kernels), with
the largest error of any sum, divided by the sum of the sizes of its terms: near 1e-7 in float32 and
1e-16 in float64. The command ends with an error if one exceeds `BOUND`.
Without a GPU, `TRITON_INTERPRET=1 python benchmarks/gpu_laws.py --device cpu` checks the same laws,
and says nothing about time.
"""

import argparse
import os
import time
from dataclasses import fields, replace

import numpy as np
import sklearn
import torch

from quadlin import SecondOrderRegressor
from quadlin.core.block import Block
from quadlin.core.chunks import MemorySource
from quadlin.core.model import Model, Steps
from quadlin.core.moments import Moments
from quadlin.core.rows import Rows
from quadlin.core.sums import change_sums, residual_sums
from quadlin.core.units import Target, Units
from quadlin.data.gpu import device as device_module
from quadlin.data.gpu.device import OnDevice
from quadlin.data.gpu.device_kernels import offer_kernels

BOUND = {"float32": 3e-6, "float64": 1e-13}
MOMENT_BOUND = 1e-10  # which are summed in float64 whatever the rows are
CASES = [  # rows, features, columns, mean, strides, dtype
    (1, 1, 1, 0.0, "C", "float32"),
    (0, 5, 2, 0.0, "C", "float32"),
    (65, 130, 3, 0.0, "C", "float32"),
    (65, 130, 3, 0.0, "F", "float32"),
    (130, 7, 17, 0.3, "every other", "float32"),
    (130, 70, 40, 0.0, "C", "float32"),
    (5000, 33, 11, 1e4, "C", "float32"),
    (5000, 132, 10, 0.3, "C", "float32"),
    (65, 130, 3, 0.3, "C", "float64"),
    (5000, 33, 11, 1e4, "C", "float64"),
]
STRIDES = {
    "C": lambda X: X,
    "F": lambda X: X.T.contiguous().T,
    "every other": lambda X: X.repeat_interleave(2, 0).repeat_interleave(2, 1)[::2, ::2],
}


def units_of(mean, scale, rest, free=None):
    one = np.ones_like(mean)
    free = one if free is None else free
    return Units(mean, scale, one, 3 * one, free, Target(0.0, 1.0, 0.0, 1.0), one, rest)


def on(device, value):
    """Return units with their arrays on a device."""
    parts = {f.name: getattr(value, f.name) for f in fields(value)}
    arrays = {k: torch.asarray(v, device=device) for k, v in parts.items() if k != "target"}
    return replace(value, **arrays)


class Case:
    """Rows, units and a model, and the same in float64."""

    def __init__(self, n, d, k, mean, strides, dtype, weighted=False):
        rng = np.random.default_rng(0)
        self.X = torch.asarray(rng.standard_normal((n, d)) + mean, dtype=getattr(torch, dtype))
        self.strides = strides
        about = [np.full(d, mean), np.linspace(0.5, 2, d), np.full(d, 0.01)]
        m, s, r = (v.astype(dtype) for v in about)
        free = (np.arange(d) % 3 > 0).astype(dtype)  # every third square is left out
        self.units = units_of(m, s, r, free)
        self.Z = (self.X.numpy().astype(np.float64) - m) * s.astype(np.float64) - r
        k = min(k, d)
        self.U = np.linalg.qr(rng.standard_normal((d, k)))[0].astype(dtype)
        self.H, self.Q = (rng.standard_normal((d, k)).astype(dtype) for _ in range(2))
        self.w, self.s = (rng.standard_normal(size).astype(dtype) for size in (d, k))
        self.y = rng.standard_normal(n).astype(dtype)
        self.R = rng.standard_normal((n, k)).astype(dtype)
        self.weight = rng.integers(0, 3, n).astype(dtype) if weighted else None

    def there(self, device):
        """Return the rows on a device, with the strides of the case."""
        return STRIDES[self.strides](self.X.to(device))


def error_of(got, exact, size):
    """Return the largest error, beside the sums of the sizes of terms."""
    if not np.size(exact):
        return 0.0
    error = np.max(np.abs(np.asarray(got, dtype=np.float64) - exact) / np.where(size > 0, size, 1))
    return float(error) if np.isfinite(error) else np.inf


def back_squares(block, R):
    """Return (Z∘Z)ᵀ R."""
    nothing = R.new_zeros((block.X.shape[1], 0))
    return block.through(nothing, lambda _, __, part: (R[part, :0], R[part]), None, True)[2]


def product_error(case, device):
    """Return the largest error of the four products."""
    block, Z = Block(case.there(device), on(device, case.units)), case.Z
    errors = []
    for A, B, product in (
        (Z, case.Q, block.matmul),
        (Z * Z, case.Q, lambda Q: block.products(Q[:, :0], Q)[1]),
        (Z.T, case.R, block.rmatmul),
        ((Z * Z).T, case.R, lambda R: back_squares(block, R)),
    ):
        got = product(torch.asarray(B, device=device)).cpu().numpy()
        errors.append(error_of(got, A @ B.astype(np.float64), np.abs(A) @ np.abs(B)))
    return max(errors)


def pass_error(case, device):
    """Return the largest error of the sums of a residual, of one with other columns, of a step."""
    omega = np.ones(len(case.Z)) if case.weight is None else case.weight.astype(np.float64)
    there = torch.asarray(case.y, device=device)
    weight = None if case.weight is None else torch.asarray(case.weight, device=device)
    rows = Rows(OnDevice(MemorySource(case.there(device), there, weight), device, 1))
    U, H, w, s, Z, free = case.U, case.H, case.w, case.s, case.Z, case.units.free
    E, wide = U.astype(np.float64), [a.astype(np.float64) for a in (H, w, s)]
    m, left = (E * E) @ wide[2], 1 - free
    errors = []
    terms = [wide[1], (Z @ E) ** 2 @ wide[2], (Z * Z) @ (left * m)]
    f = 0.5 + Z @ wide[1] + terms[1] - terms[2] - free @ m
    size = 0.5 + np.abs(Z) @ np.abs(wide[1]) + (np.abs(Z) @ np.abs(E)) ** 2 @ np.abs(wide[2])
    size += (Z * Z) @ (left * np.abs(m)) + np.abs(case.y)
    model = Model(U, s, w, 0.5, free)
    for Q in (None, case.Q):
        sums = rows.reduce(residual_sums, model, case.units, Q, True)
        errors.append(sums_error(sums, Z, omega, f - case.y, size, U if Q is None else Q))
    steps = Steps(U, H[:, None, :], w[:, None], np.full(1, 0.5, case.units.scale.dtype))
    change = 0.5 + Z @ wide[1] + 2 * np.sum((Z @ E) * (Z @ wide[0]), axis=1)
    diagonal = 2 * np.sum(E * wide[0], axis=1)
    change -= (Z * Z) @ (left * diagonal) + free @ diagonal
    size = 0.5 + np.abs(Z) @ np.abs(wide[1])
    size += 2 * np.sum((np.abs(Z) @ np.abs(E)) * (np.abs(Z) @ np.abs(wide[0])), axis=1)
    size += (Z * Z) @ (left * np.abs(diagonal)) + free @ np.abs(diagonal)
    sums = rows.reduce(change_sums, steps, case.units, True)
    errors.append(sums_error(sums, Z, omega, change, size, U))
    return max(errors)


def sums_error(sums, Z, omega, r, size, Q):
    """Return the largest error of sums over rows of a residual r whose terms have some size."""
    ZQ, sizes = Z @ Q.astype(np.float64), np.abs(Z) @ np.abs(Q).astype(np.float64)
    weighted, large = omega * r, omega * size
    return max(
        error_of(sums.loss, np.sum(weighted * r), np.sum(large * size)),
        error_of(sums.p0[0], np.sum(weighted), np.sum(large)),
        error_of(sums.p1[:, 0], Z.T @ weighted, np.abs(Z).T @ large),
        error_of(sums.p2[:, 0], (Z * Z).T @ weighted, (Z * Z).T @ large),
        error_of(
            sums.action[:, 0],
            Z.T @ (weighted[:, None] * ZQ),
            np.abs(Z).T @ (large[:, None] * sizes),
        ),
    )


def moment_error(case, device):
    """Return the largest error of the moments, in units of standard deviations."""
    if len(case.Z) < 2:
        return 0.0
    X = case.X.numpy().astype(np.float64)
    omega = None if case.weight is None else case.weight.astype(np.float64)
    weight = None if omega is None else torch.asarray(omega, device=device)
    got = Moments.of(case.there(device), weight)
    share = (np.ones(len(X)) if omega is None else omega) / (
        len(X) if omega is None else omega.sum()
    )
    mean = share @ X
    mean += share @ (X - mean)
    var = share @ (X - mean) ** 2
    z = (X - mean) / np.sqrt(var)
    counts = slice(None) if omega is None else omega > 0
    exact = (mean, var, share @ z**3, share @ z**4, X[counts].min(0), X[counts].max(0))
    sizes = (
        np.abs(mean) + np.sqrt(var),
        var,
        1.0,
        share @ z**4,
        1 + np.abs(mean),
        1 + np.abs(mean),
    )
    values = (got.mean, got.var, got.kappa, got.phi, got.low, got.high)
    return max(
        error_of(v.double().cpu().numpy(), e, np.asarray(s))
        for v, e, s in zip(values, exact, sizes, strict=True)
    )


LAWS = {"products": product_error, "passes": pass_error, "moments": moment_error}


def laws(device):
    """Print a line per case and kernel; tell how many break a bound."""
    broken = 0
    names = ["torch", "triton"] if offer_kernels() else ["torch"]
    print("law | by | rows | features | columns | mean | strides | weights | dtype | largest error")
    for law, measure in LAWS.items():
        for name in names:
            os.environ["QUADLIN_KERNEL"] = name
            for case in CASES:
                n, d, k, mean, strides, dtype = case
                if (name == "triton" and dtype != "float32") or (law != "products" and not n):
                    continue
                for weighted in (False, True) if law != "products" and n > 100 else (False,):
                    error = measure(Case(*case, weighted), device)
                    bound = MOMENT_BOUND if law == "moments" else BOUND[dtype]
                    broken += not error <= bound
                    mark = "" if error <= bound else "  BROKEN"
                    line = (law, name, n, d, k, f"{mean:g}", strides, "yes" if weighted else "no")
                    print(*line, dtype, f"{error:.0e}{mark}", sep=" | ", flush=True)
    os.environ.pop("QUADLIN_KERNEL", None)
    return broken


def median_ms(call, repeat=20):
    """Return the median time of a call on the GPU, after a warm-up."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeat):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start))
    return float(np.median(times))


def speed(device, n, d, k):
    """Print the times of a read, of passes and of fits."""
    torch.manual_seed(0)
    X = torch.randn(n, d, device=device)
    U = torch.linalg.qr(torch.randn(d, k, device=device))[0]
    w = torch.randn(d, device=device) / d**0.5
    signs = torch.where(torch.arange(k, device=device) % 2 == 1, -1.0, 1.0)
    y = 1 + X @ w + (X @ U) ** 2 @ signs
    one = np.ones(d, np.float32)
    units = units_of(0 * one, one, 0 * one)
    here = [a.cpu().numpy() for a in (U, signs, w)]
    model = Model(*here, 0.0, one)
    steps = Steps(here[0], here[0][:, None, :], here[2][:, None], one[:1])
    print(f"{torch.cuda.get_device_name()}, {n:,} × {d:,} float32, k = {k}")
    print(f"one read, X @ v: {median_ms(lambda: X @ w):.2f} ms")
    rows_here, y_here = X.cpu().numpy(), y.cpu().numpy()
    for name in ["torch", "triton"] if offer_kernels() else ["torch"]:
        os.environ["QUADLIN_KERNEL"] = name
        engine = OnDevice(MemorySource(X, y), device, 1)
        rows = Rows(engine)
        few = Rows(engine.over(MemorySource(X[: n // 9], y[: n // 9])))
        for title, some in (("all rows", rows), ("a ninth of the rows", few)):
            ms = [
                median_ms(lambda s=some: s.reduce(residual_sums, model, units, None, False)),
                median_ms(lambda s=some: s.reduce(residual_sums, model, units, None, True)),
                median_ms(lambda s=some: s.reduce(change_sums, steps, units, False)),
            ]
            print(
                f"{name}: a pass over {title}, sums brought to the host: residuals {ms[0]:.2f} ms, "
                f"with squares {ms[1]:.2f} ms, along a step {ms[2]:.2f} ms"
            )
        print(f"{name}: moments of all rows {median_ms(lambda: Moments.of(X)):.2f} ms")
        fits(name, "tensors on the GPU", X, y)
        fits(name, 'numpy rows, engine="cuda"', rows_here, y_here, engine="cuda")
        share, device_module.SHARE = device_module.SHARE, 0.0
        fits(name, 'numpy rows, engine="cuda", streamed', rows_here, y_here, engine="cuda")
        device_module.SHARE = share
    os.environ.pop("QUADLIN_KERNEL", None)


def fits(name, title, X, y, repeat=5, **options):
    """Print the time of a first fit and the median of some more."""
    estimator = SecondOrderRegressor(10, alpha=0.0, pairs=None, random_state=0)
    times = []
    with sklearn.config_context(array_api_dispatch=not isinstance(X, np.ndarray)):
        for _ in range(1 + repeat):
            torch.cuda.synchronize()
            start = time.perf_counter()
            estimator.fit(X, y, **options)
            torch.cuda.synchronize()
            times.append(1000 * (time.perf_counter() - start))
    last = estimator.history_[-1]
    print(
        f"{name}: a fit, {title}: first {times[0]:.0f} ms, then {np.median(times[1:]):.0f} ms "
        f"({last.passes} passes, loss {last.loss:.0e}, {estimator.status_.name})",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--features", type=int, default=1000)
    parser.add_argument("--rank", type=int, default=10)
    parser.add_argument("--only", choices=["laws", "times"])
    o = parser.parse_args()
    broken = 0 if o.only == "times" else laws(o.device)
    if o.device.startswith("cuda") and o.only != "laws":
        speed(o.device, o.rows, o.features, o.rank)
    if broken:
        raise SystemExit(f"{broken} laws are broken.")
    print("All laws hold.")


if __name__ == "__main__":
    main()
