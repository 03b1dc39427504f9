"""What fits cost in reads of X: one read is the CPU time of one `X @ v` in the same run.

    OMP_NUM_THREADS=1 python benchmarks/passes.py [--d 200] [--k 8] [--repeat 3] [--only float32]
    OMP_NUM_THREADS=1 python benchmarks/passes.py --kernels [--entries 24000000] [--d 600]

Prints a line per case: the passes of a fit of given rank (passes over samples count by their
share), its reads, reads per pass, and the error on new rows relative to that of the optimum of all
rows (`tol=1e-10`) less 1. Then a default fit
relative to one with its rank, penalties and pairs given, and to ridge regression on all products.
CPU times are the least of `--repeat`.
`--kernels` prints single passes: the sums of a residual, the change along a step and the search
along a family of models; for CSR rows a read is a product with k dense columns.
``QUADLIN_KERNEL=numpy`` measures the kernel that needs no compiler.
"""

import argparse
import os
import time
import warnings
from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array, issparse
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from threadpoolctl import threadpool_limits

from quadlin import SecondOrderRegressor
from quadlin.datasets import make_second_order
from quadlin.metrics import nmse

PER_ROW, SPARSE_COLUMNS = 20, 20_000  # entries of a sparse row; columns
CASES = {  # rows in units of kd, noise, dtype, order
    "30kd, float32": (30, 0.0, np.float32, "C"),
    "30kd, float32, noise 1": (30, 1.0, np.float32, "C"),
    "30kd, float64": (30, 0.0, np.float64, "C"),
    "30kd, float32, Fortran order": (30, 0.0, np.float32, "F"),
    "100kd, float32": (100, 0.0, np.float32, "C"),
    "100kd, float32, noise 1": (100, 1.0, np.float32, "C"),
    "100kd, float64": (100, 0.0, np.float64, "C"),
}
PASSES = ("residual", "change", "search")


def least(calls, repeat):
    """Return the least CPU times, of all threads, of calls that take turns."""
    times = np.full(len(calls), np.inf)
    for _ in range(repeat):
        for i, call in enumerate(calls):
            start = time.process_time()
            call()
            times[i] = min(times[i], time.process_time() - start)
    return times


def one_hot_rows(n, rng):
    levels = SPARSE_COLUMNS // PER_ROW
    codes = rng.integers(0, levels, (n, PER_ROW)) + levels * np.arange(PER_ROW)
    ones = np.ones(n * PER_ROW, np.float32)
    ends = PER_ROW * np.arange(n + 1)
    return csr_array((ones, codes.ravel().astype(np.int32), ends), (n, SPARSE_COLUMNS))


def read_of(X, k):
    v = np.ones((X.shape[1], k) if issparse(X) else X.shape[1], X.dtype)
    with threadpool_limits(1):
        return least([lambda: X @ v], 7)[0]


def cost(name, o):
    """Return passes, reads and the excess error of a fit."""
    multiple, noise, dtype, order = CASES[name]
    options = {"noise": noise, "n_test": 4000, "random_state": 0}
    data = make_second_order(multiple * o.k * o.d, o.d, rank=o.k, **options)
    X = np.asarray(data.X, dtype, order=order)

    def fit(tol=1e-6):
        return SecondOrderRegressor(o.k, alpha=0.0, tol=tol, random_state=0).fit(X, data.y)

    def error(model):
        return nmse(data.y_test, model.predict(data.X_test.astype(dtype)))

    model = fit()
    seconds = least([fit], o.repeat)[0]
    excess = error(model) / error(fit(1e-10)) - 1 if noise else np.nan
    return model.history_[-1].passes, seconds / read_of(X, o.k), excess


def fits(o):
    print("| fit of given rank | passes | reads | reads per pass | excess error |")
    print("|---|---|---|---|---|", flush=True)
    for name in (name for name in CASES if o.only in name):
        passes, reads, excess = cost(name, o)
        text = "" if np.isnan(excess) else f"{excess:+.1%}"
        print(f"| {name} | {passes:g} | {reads:.0f} | {reads / passes:.1f} | {text} |", flush=True)


def defaults(o):
    """Print the cost of choosing."""
    data = make_second_order(1000, 20, rank=2, noise=1.0, random_state=0)
    X, y = data.X, data.y
    default = SecondOrderRegressor(random_state=0).fit(X, y)
    found = [(pair.first, pair.second) for pair in default.pairs_.pairs] if default.pairs_ else None
    options = {"alpha": default.alpha_, "pairs": found, "random_state": 0}
    given = SecondOrderRegressor(default.rank_, **options)
    products = make_pipeline(StandardScaler(), PolynomialFeatures(2), RidgeCV(np.logspace(-2, 4)))
    times = least([lambda m=m: m.fit(X, y) for m in (default, given, products)], o.repeat)
    print(f"\n1,000 × 20, a default fit: {1e3 * times[0]:.0f} CPU ms, {times[0] / times[1]:.1f} "
          f"times the fit with everything given, {times[0] / times[2]:.2f} times RidgeCV on all "
          "products")  # fmt: skip


def kernel_costs(X, squares, k, repeat):
    """Return the reads of each pass; the only part of this script that needs internals."""
    from quadlin.core.chunks import MemorySource
    from quadlin.core.engine import Serial
    from quadlin.core.model import Steps, constant_model
    from quadlin.core.moments import moments_of
    from quadlin.core.rows import Rows
    from quadlin.core.sums import change_sums, residual_sums
    from quadlin.core.units import target_of, units_of
    from quadlin.solve.lowrank.moment_sequence import change_products

    (n, d), rng = X.shape, np.random.default_rng(0)
    y = rng.standard_normal(n)
    features, target = moments_of(Rows.of(MemorySource(X[:20_000], y[:20_000])))
    units = units_of(features, np.full(d, squares), target_of(target, True), X.dtype)

    def draw(*shape):
        return (rng.standard_normal(shape) / d**0.5).astype(X.dtype)

    U, other = (np.linalg.qr(draw(d, k))[0] for _ in range(2))
    model = replace(constant_model(units, k), U=U, s=draw(k), w=draw(d))
    steps = Steps(U, draw(d, 1, k), draw(d, 1), np.zeros(1, X.dtype))
    changes = [model, replace(model, U=other)]
    rows = Rows(Serial(MemorySource(X, y)))
    calls = [
        lambda: rows.reduce(residual_sums, model, units, None, not squares),
        lambda: rows.reduce(change_sums, steps, units, not squares),
        lambda: rows.reduce(change_products, changes, model, units),
    ]
    with threadpool_limits(1):
        return least(calls, repeat) / read_of(X, k)


def kernels(o):
    print(f"| rows | squares | {' | '.join(PASSES)} |\n|---|---|---|---|---|")
    for layout in ("float32 C", "float64 C", "float32 F", "float64 F", "float32 CSR"):
        rng, (dtype, order) = np.random.default_rng(0), layout.split()
        if order == "CSR":
            X = one_hot_rows(o.entries // PER_ROW // 8, rng)
        else:
            X = rng.standard_normal((o.entries // o.d, o.d), dtype=dtype) + np.ones(o.d, dtype)
            X = np.asarray(X, order=order)
        for squares in (True, False):
            reads = kernel_costs(X, squares, o.k, o.repeat)
            cells = " | ".join(f"{r:.1f}" for r in reads)
            shape = f"{X.shape[0]:,} × {X.shape[1]:,}"
            print(f"| {layout}, {shape} | {'yes' if squares else 'no'} | {cells} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--d", type=int, help="columns; default 200, of --kernels 600")
    parser.add_argument("--k", type=int, default=8, help="the rank of the models")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="", help="part of the name of a case")
    parser.add_argument("--kernels", action="store_true", help="single passes")
    parser.add_argument("--entries", type=int, default=24_000_000, help="of rows of --kernels")
    o = parser.parse_args()
    o.d = o.d or (600 if o.kernels else 200)
    warnings.simplefilter("ignore")
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}, k = {o.k}\n")
    if o.kernels:
        kernels(o)
    else:
        fits(o)
        defaults(o)


if __name__ == "__main__":
    main()
