"""The laws of the passes on a GPU: every product and sum beside numpy in float64, then the time.

Run: python benchmarks/gpu_laws.py [--device cuda] [--rows 300000] [--features 1000] [--rank 10]

Each line is a case and a kernel ("torch": plain operations; "triton": QUADLIN_KERNEL=triton), with
the largest error of any product, divided by the product of the sizes of what is multiplied: near
1e-7 in float32 and 1e-16 in float64. The command ends with an error where one is above `BOUND`.
Without a GPU, `TRITON_INTERPRET=1 python benchmarks/gpu_laws.py --device cpu` checks the same laws,
and says nothing about time.
"""

import argparse
import os
import time

import numpy as np
import torch

from quadlin import SecondOrderRegressor
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.model import Model
from quadlin.core.other_kernels import offer, withdraw
from quadlin.core.sums import residual_sums
from quadlin.core.units import Target, Units

BOUND = {torch.float32: 3e-6, torch.float64: 1e-13}
CASES = [  # rows, features, columns, mean, strides, dtype
    (1, 1, 1, 0.0, "C", torch.float32),
    (0, 5, 2, 0.0, "C", torch.float32),
    (65, 130, 3, 0.0, "C", torch.float32),
    (65, 130, 3, 0.0, "F", torch.float32),
    (130, 7, 17, 0.3, "every other", torch.float32),
    (130, 70, 100, 0.0, "C", torch.float32),
    (5000, 33, 11, 1e4, "C", torch.float32),
    (65, 130, 3, 0.3, "C", torch.float64),
    (5000, 33, 11, 1e4, "C", torch.float64),
]
STRIDES = {
    "C": lambda X: X,
    "F": lambda X: X.T.contiguous().T,
    "every other": lambda X: X.repeat_interleave(2, 0).repeat_interleave(2, 1)[::2, ::2],
}


def kernels():
    """Yield the kernels that are there: a name, and what offers it to blocks."""
    yield "torch", None
    try:
        from quadlin.data.triton_kernel import TritonKernel
    except ImportError as error:
        print(f"triton is skipped: {error}")
    else:
        yield "triton", TritonKernel.of


def units_of(mean, scale, rest):
    one = torch.ones_like(mean)
    return Units(mean, scale, one, one, one, Target(0.0, 1.0, 0.0, 1.0), one, rest)


def worst(case, device, seed):
    """Return the largest error of the four products of a case."""
    n, d, q, mean, strides, dtype = case
    rng = np.random.default_rng(seed)
    X = torch.asarray(rng.standard_normal((n, d)) + mean, dtype=dtype)
    about = [np.full(d, mean), np.linspace(0.5, 2, d), np.full(d, 0.01)]
    about = [torch.asarray(v, dtype=dtype) for v in about]
    m, s, r = (v.double().numpy() for v in about)
    Z = (X.double().numpy() - m) * s - r
    Q, R = (torch.asarray(rng.standard_normal(shape), dtype=dtype) for shape in ((d, q), (n, q)))
    block = Block(STRIDES[strides](X.to(device)), units_of(*(v.to(device) for v in about)))
    errors = [0.0]
    for A, B, product in (
        (Z, Q, block.matmul),
        (Z * Z, Q, block.squares_matmul),
        (Z.T, R, block.rmatmul),
        ((Z * Z).T, R, block.squares_rmatvec),
    ):
        exact, size = A @ B.double().numpy(), np.abs(A) @ np.abs(B.double().numpy())
        error = np.abs(product(B.to(device)).double().cpu().numpy() - exact)
        errors.append(float(np.max(error / np.where(size > 0, size, 1), initial=0.0)))
    return max(errors) if np.all(np.isfinite(errors)) else np.inf


def laws(device):
    """Print a line per case and kernel; tell how many break a bound."""
    broken = 0
    print("kernel | rows | features | columns | mean | strides | dtype | largest error")
    for name, maker in kernels():
        for case in CASES:
            if name == "triton" and case[-1] is not torch.float32:
                continue
            if maker is not None:
                offer(maker)
            error = worst(case, device, 0)
            if maker is not None:
                withdraw(maker)
            broken += error > BOUND[case[-1]]
            n, d, q, mean, strides, dtype = case
            mark = "" if error <= BOUND[dtype] else "  BROKEN"
            kind = str(dtype).removeprefix("torch.")
            print(f"{name} | {n} | {d} | {q} | {mean:g} | {strides} | {kind} | {error:.0e}{mark}")
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
    """Print the time of a read, of a pass and of a fit."""
    torch.manual_seed(0)
    X = torch.randn(n, d, device=device)
    U = torch.linalg.qr(torch.randn(d, k, device=device))[0]
    w = torch.randn(d, device=device) / d**0.5
    signs = torch.where(torch.arange(k, device=device) % 2 == 1, -1.0, 1.0)
    y = 1 + X @ w + (X @ U) ** 2 @ signs
    nothing = torch.zeros(d, device=device)
    units = units_of(nothing, torch.ones_like(nothing), nothing)
    model = Model(U, signs, w, 0.0, torch.ones_like(nothing))
    print(f"{torch.cuda.get_device_name()}, {n:,} × {d:,} float32, k = {k}")
    print(f"one read, X @ v: {median_ms(lambda: X @ w):.2f} ms")
    for name, maker in kernels():
        if maker is not None:
            offer(maker)
        chunk = Chunk(X, y, None)
        ms = median_ms(lambda chunk=chunk: residual_sums(chunk, model, units, None, False))
        print(f"{name}: a pass {ms:.2f} ms")
        if maker is not None:
            withdraw(maker)
        os.environ["QUADLIN_KERNEL"] = name if name == "triton" else ""
        rows, target = X.cpu().numpy(), y.cpu().numpy()
        estimator = SecondOrderRegressor(k, alpha=0.0, pairs=None, random_state=0)
        for title, repeat in (("first", 1), ("again", 3)):
            start = time.perf_counter()
            for _ in range(repeat):
                estimator.fit(rows, target, engine="cuda")
            seconds = (time.perf_counter() - start) / repeat
            print(f'{name}: a fit of numpy rows, engine="cuda", {title}: {1000 * seconds:.0f} ms')


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--features", type=int, default=1000)
    parser.add_argument("--rank", type=int, default=10)
    o = parser.parse_args()
    broken = laws(o.device)
    if o.device.startswith("cuda"):
        speed(o.device, o.rows, o.features, o.rank)
    if broken:
        raise SystemExit(f"{broken} laws are broken.")
    print("All laws hold.")


if __name__ == "__main__":
    main()
