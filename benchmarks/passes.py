"""What a pass costs, in reads of X: one read is one `X @ v` on the same rows in the same run.

    python benchmarks/passes.py [--entries 86400000] [--repeat 5] [--cases f32-C csr ...]

Prints a line per layout of X, size and engine, with three passes on each: the sums of a residual
(`residual_sums`), the change along a step (`dual_sums`) and the search along a family of models
(`step_length.gram`). Dense rows count in reads with every core (and, in brackets, with one); CSR
rows, 20 entries each, in products with k dense columns, which use one core. Times are minima over
repetitions. `busy` is the same beside a process that keeps one core at work, in the units of the
quiet run.
"""

import argparse
import multiprocessing
import os
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array
from threadpoolctl import threadpool_limits

from quadlin.core.chunks import MemorySource
from quadlin.core.engine import Threads, reduce
from quadlin.core.model import constant_model
from quadlin.core.sums import Step, dual_sums, residual_sums
from quadlin.core.survey import moments_of
from quadlin.core.units import target_of, units_of
from quadlin.solve.step_length import family, gram

SIZES = ((600, 8), (1000, 10))
PER_ROW = 20  # entries of a sparse row
SPARSE_COLUMNS = 20_000
LAYOUTS = ("f32-C", "f64-C", "f32-F", "f64-F", "csr")


def rows(layout, entries, d, rng):
    """Draw rows with means of some standard deviations."""
    if layout == "csr":
        n, d = entries // PER_ROW // 8, SPARSE_COLUMNS
        codes = rng.integers(0, d // PER_ROW, (n, PER_ROW)) + d // PER_ROW * np.arange(PER_ROW)
        data = rng.uniform(0.5, 1.5, n * PER_ROW).astype(np.float32)
        return csr_array((data, codes.ravel().astype(np.int32), PER_ROW * np.arange(n + 1)), (n, d))
    dtype = np.float32 if layout.startswith("f32") else np.float64
    X = rng.standard_normal((entries // d, d), dtype=dtype)
    X += rng.uniform(-3, 3, d).astype(dtype)
    return np.asfortranarray(X) if layout.endswith("F") else X


def passes(X, k, free, rng):
    """Return the rows and, by name, each pass as a function of an engine's rows."""
    y = rng.standard_normal(X.shape[0])
    source = MemorySource(X, y)
    features, target = moments_of(MemorySource(X[:20_000], y[:20_000]))
    flags = np.full(X.shape[1], free)
    units = units_of(features, flags, target_of(target, True), X.dtype)
    d = X.shape[1]

    def draw(*shape):
        return rng.standard_normal(shape).astype(X.dtype) / X.dtype.type(d**0.5)

    model = replace(constant_model(units, k), U=np.linalg.qr(draw(d, k))[0], s=draw(k), w=draw(d))
    other = replace(model, U=np.linalg.qr(draw(d, k))[0])
    step = Step(model.U, draw(d, k), draw(d), 0.0)
    models = family(model, (draw(d, k), draw(d)), other, units, True, True)
    return source, {
        "residual_sums": lambda rows: reduce(residual_sums, rows, model, units, None, free),
        "dual_sums": lambda rows: reduce(dual_sums, rows, step, units, not free),
        "gram": lambda rows: reduce(gram, rows, models, units),
    }


def seconds(fn, repeat, *args):
    """Return the least wall-clock time of some calls."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        fn(*args)
        times.append(time.perf_counter() - start)
    return min(times)


def _spin():
    while True:
        pass


@contextmanager
def company(busy):
    """Keep one core at work meanwhile."""
    process = multiprocessing.get_context("fork").Process(target=_spin, daemon=True)
    if busy:
        process.start()
    try:
        yield
    finally:
        if busy:
            process.terminate()
            process.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=86_400_000, help="of a dense table")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--cases", nargs="+", choices=LAYOUTS, default=LAYOUTS)
    parser.add_argument("--quiet-only", action="store_true")
    o = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores; reads of X per pass (in brackets: reads with one core)")
    print(f"{'rows':<8}{'d':>6}{'k':>4} {'diagonal':<9}{'engine':<9}{'residual_sums':>17}", end="")
    print(f"{'dual_sums':>17}{'gram':>17}", flush=True)
    for layout in o.cases:
        for d, k in SIZES[:1] if layout == "csr" else SIZES:
            rng = np.random.default_rng(0)
            X = rows(layout, o.entries, d, rng)
            v = rng.standard_normal((X.shape[1], k) if layout == "csr" else d).astype(X.dtype)
            with threadpool_limits(1):
                one = seconds(X.__matmul__, o.repeat, v)
            with threadpool_limits(cores):
                read = seconds(X.__matmul__, o.repeat, v)
            for free in (True, False):
                source, works = passes(X, k, free, rng)
                for engine in ("serial", "threads"):
                    for busy in (False,) if o.quiet_only or not free else (False, True):
                        carried = source if engine == "serial" else Threads(source, cores)
                        with company(busy), threadpool_limits(cores):
                            times = [seconds(w, o.repeat, carried) for w in works.values()]
                        name = ("free" if free else "zero") + (" busy" if busy else "")
                        cells = "".join(f"{t / read:>9.1f} ({t / one:>5.1f})" for t in times)
                        print(
                            f"{layout:<8}{X.shape[1]:>6}{k:>4} {name:<9} {engine:<8}{cells}",
                            flush=True,
                        )
            print(f"  one read {1e3 * read:.1f} ms, with one core {1e3 * one:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
