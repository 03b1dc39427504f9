"""The same sums and the same fit on a GPU and on the CPU: errors, and the ratio of their times.

    SCIPY_ARRAY_API=1 python benchmarks/gpu.py laws
    SCIPY_ARRAY_API=1 python benchmarks/gpu.py times [--rows 300000] [--features 1000] [--rank 10]

"laws" compares the sums of passes with numpy in float64, by plain torch and by
Triton's kernels: the largest error of any sum, divided by the sum of the sizes of its terms, near
1e-7 in float32 and 1e-16 in float64. The exit code is 1 if one exceeds its bound. Without a GPU,
``TRITON_INTERPRET=1 … laws --device cpu`` checks the same.
"times" prints the time of one read of X on the GPU (`X @ v`) and, for tensors on the GPU and for
numpy rows with ``engine="cuda"``, the time of a first fit, the median of more, that median in
reads, and how many times as fast it is as numpy on this machine's CPU. Wall time: a GPU has no
other. With ``--device cpu`` it only shows that the script works.
"""

import argparse
import os
import time
import warnings

import numpy as np
import sklearn
import torch

from quadlin import SecondOrderRegressor
from quadlin.core.chunks import MemorySource
from quadlin.core.library import triton_kernels
from quadlin.core.model import Model, Steps
from quadlin.core.rows import Rows
from quadlin.core.sums import change_sums, residual_sums
from quadlin.core.units import Target, Units
from quadlin.data.engines import OnDevice

BOUNDS = {"float32": 3e-6, "float64": 1e-13}
CASES = [  # rows, features, columns, mean, strides, dtype
    (1, 1, 1, 0.0, "C", "float32"),
    (65, 130, 3, 0.0, "F", "float32"),
    (130, 7, 17, 0.3, "every other", "float32"),
    (130, 70, 40, 0.0, "C", "float32"),
    (5000, 33, 11, 1e4, "C", "float32"),
    (5000, 132, 10, 0.3, "C", "float32"),
    (5000, 33, 11, 1e4, "C", "float64"),
]
STRIDES = {
    "C": lambda X: X,
    "F": lambda X: X.T.contiguous().T,
    "every other": lambda X: X.repeat_interleave(2, 0).repeat_interleave(2, 1)[::2, ::2],
}


class Case:
    """Weighted rows on a device, their units and a model; and Z, the same rows in float64."""

    def __init__(self, device, n, d, k, mean, strides, dtype):
        def draw(*shape):
            return rng.standard_normal(shape).astype(dtype)

        rng, k, self.device = np.random.default_rng(0), min(k, d), device
        self.X, self.y, self.weight = draw(n, d) + mean, draw(n), rng.integers(0, 3, n)
        self.weight[0] = 1
        m, s, rest = np.full(d, mean), np.linspace(0.5, 2, d), np.full(d, 0.01)
        m, s, rest, one = (v.astype(dtype) for v in (m, s, rest, np.ones(d)))
        self.free = (np.arange(d) % 3 > 0).astype(dtype)  # every third square is left out
        target = Target(0.0, 1.0, 0.0, 1.0)
        self.units = Units(m, s, one, 3 * one, self.free, target, one, rest)
        self.Z = (self.X.astype(np.float64) - m) * s.astype(np.float64) - rest
        self.U, self.H = np.linalg.qr(draw(d, k))[0].astype(dtype), draw(d, k)
        self.w, self.s = draw(d), draw(k)
        self.X = STRIDES[strides](self.there(self.X))

    def there(self, array):
        return torch.asarray(array, device=self.device)


def error_of(got, exact, size):
    """Return the largest error, beside the sums of the sizes of terms."""
    error = np.max(np.abs(np.asarray(got, float) - exact) / np.where(size > 0, size, 1))
    return float(error) if np.isfinite(error) else np.inf


def pass_error(case):
    """Return the largest error of the sums of a residual, and of the change along a step."""
    weight = case.there(case.weight.astype(case.y.dtype))
    source = MemorySource(case.X, case.there(case.y), weight)
    rows = Rows(OnDevice(source, case.device, 1))
    Z, free, (U, H, w, s) = case.Z, case.free, (case.U, case.H, case.w, case.s)
    steps = Steps(U, H[:, None, :], w[:, None], np.full(1, 0.5, U.dtype))
    model = Model(U, s, w, 0.5, free)

    def function(Z, A, B, w):
        """Return b + Zw + ΣZA∘ZB without some squares, and the mean of the others."""
        m = np.sum(A * B, axis=1, dtype=float)
        left = (Z * Z) @ ((1 - free) * m)
        return 0.5 + Z @ w + np.sum((Z @ A) * (Z @ B), axis=1) - left, free @ m

    errors = []
    for sums, A, B, y in (
        (rows.reduce(residual_sums, model, case.units, None, True), U, U * s, case.y),
        (rows.reduce(change_sums, steps, case.units, True), U, 2 * H, 0 * case.y),
    ):
        A, B = A.astype(float), B.astype(float)
        f, trace = function(Z, A, B, w.astype(float))
        size, _ = function(np.abs(Z), np.abs(A), np.abs(B), np.abs(w))
        size = size + 2 * (Z * Z) @ np.abs(np.sum(A * B, axis=1)) + np.abs(y) + np.abs(trace)
        r, large = case.weight * (f - trace - y), case.weight * size
        errors += [
            error_of(sums.loss, np.sum(r * (f - trace - y)), np.sum(large * size)),
            error_of(sums.p0[0], np.sum(r), np.sum(large)),
            error_of(sums.p1[:, 0], Z.T @ r, np.abs(Z).T @ large),
            error_of(sums.p2[:, 0], (Z * Z).T @ r, (Z * Z).T @ large),
            error_of(sums.action[:, 0], Z.T @ (r[:, None] * (Z @ U)),
                     np.abs(Z).T @ (large[:, None] * (np.abs(Z) @ np.abs(U)))),
        ]  # fmt: skip
    return max(errors)


def laws(o):
    broken = 0
    print("kernel | rows | features | columns | mean | strides | dtype | largest error")
    for kernel in ("torch", "triton") if triton_kernels() else ("torch",):
        os.environ["QUADLIN_KERNEL"] = kernel
        for case in CASES:
            if kernel == "torch" or case[-1] == "float32":
                error = pass_error(Case(o.device, *case))
                good = error <= BOUNDS[case[-1]]
                broken += not good
                print(kernel, *case, f"{error:.0e}{'' if good else ' BROKEN'}", sep=" | ")
    print(f"{broken} laws are broken." if broken else "All laws hold.")
    raise SystemExit(bool(broken))


def timed(call, device):
    """Return the milliseconds of a call, with what it leaves running on the GPU."""
    wait = torch.cuda.synchronize if device != "cpu" else lambda: None
    wait()
    start = time.perf_counter()
    call()
    wait()
    return 1e3 * (time.perf_counter() - start)


def times(o):
    rng, d, k = np.random.default_rng(0), o.features, o.rank
    Q = np.linalg.qr(rng.standard_normal((d, k)))[0].astype(np.float32)
    w = (rng.standard_normal(d) / np.sqrt(d)).astype(np.float32)
    X = rng.standard_normal((o.rows, d), dtype=np.float32)
    y = 1 + X @ w + (X @ Q) ** 2 @ np.where(np.arange(k) % 2, -1, 1).astype(np.float32)
    there = torch.asarray(X, device=o.device), torch.asarray(y, device=o.device)
    v = torch.asarray(w, device=o.device)
    read = float(np.median([timed(lambda: there[0] @ v, o.device) for _ in range(20)]))
    print(f"{o.rows:,} × {d:,} float32, k = {k}; one read, X @ v: {read:.2f} ms", flush=True)

    def measure(title, rows, target, base=None, **options):
        """Print the times of fits, relative to a base; return their median."""
        model = SecondOrderRegressor(k, alpha=0.0, pairs=None, random_state=0)
        with sklearn.config_context(array_api_dispatch=not isinstance(rows, np.ndarray)):
            fits = range(6 if base else 1)
            taken = [timed(lambda: model.fit(rows, target, **options), o.device) for _ in fits]
        middle, last = float(np.median(taken[1:] or taken)), model.history_[-1]
        ratio = f", {base / middle:.1f} times as fast as numpy" if base else ""
        print(f"{title}: first {taken[0]:.0f} ms, then {middle:.0f} ms, {middle / read:.0f} reads, "
              f"{last.passes} passes, loss {last.loss:.0e}{ratio}", flush=True)  # fmt: skip
        return middle

    base = measure("numpy on the CPU", X, y)
    for kernel in ("torch", "triton") if triton_kernels() else ("torch",):
        os.environ["QUADLIN_KERNEL"] = kernel
        measure(f"{kernel}, tensors on {o.device}", *there, base)
        if o.device != "cpu":
            measure(f'{kernel}, numpy rows, engine="cuda"', X, y, base, engine="cuda")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["laws", "times"])
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--features", type=int, default=1000)
    parser.add_argument("--rank", type=int, default=10)
    parser.add_argument("--device", default="cuda")
    o = parser.parse_args()
    warnings.simplefilter("ignore")
    {"laws": laws, "times": times}[o.what](o)


if __name__ == "__main__":
    main()
