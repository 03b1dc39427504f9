"""The cost of a pass in reads of X: one read is one `X @ v` on the same rows in the same run.

    python benchmarks/passes.py [--entries 24000000] [--d 600] [--k 8] [--repeat 5] [--cases f32-C]

Prints one line per layout of X, diagonal and engine, with three passes each: the sums of a residual
(`residual_sums`), the change along a step (`change_sums`) and the search along a family of models
(`step_length.gram`). The unit of dense rows is a read by one core; that of CSR rows, with 20
entries each, is a product with k dense columns. Times are CPU times of all threads, so that other
work on the machine hardly matters, and minima over repetitions. ``QUADLIN_KERNEL=numpy`` measures
the kernel that needs no compiler. With `--beside PATH`, the `src` folder of another version, every
repetition also runs there, alternating with this one, and each cell is "there → here".
"""

import argparse
import importlib
import operator
import os
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from scipy.sparse import csr_array, issparse
from threadpoolctl import threadpool_limits

PER_ROW = 20  # entries of a sparse row
SPARSE_COLUMNS = 20_000
LAYOUTS = ("f32-C", "f64-C", "f32-F", "f64-F", "csr", "one-hot", "torch")


def rows(layout, entries, d, rng):
    """Draw rows with means of some standard deviations."""
    if layout in ("csr", "one-hot"):
        n, d = entries // PER_ROW // 8, SPARSE_COLUMNS
        codes = rng.integers(0, d // PER_ROW, (n, PER_ROW)) + d // PER_ROW * np.arange(PER_ROW)
        data = rng.uniform(0.5, 1.5, n * PER_ROW).astype(np.float32)
        if layout == "one-hot":
            data[:] = 1
        return csr_array((data, codes.ravel().astype(np.int32), PER_ROW * np.arange(n + 1)), (n, d))
    dtype = np.float64 if layout.startswith("f64") else np.float32
    X = rng.standard_normal((entries // d, d), dtype=dtype)
    X += rng.uniform(-3, 3, d).astype(dtype)
    X = np.asfortranarray(X) if layout.endswith("F") else X
    return torch.from_numpy(X) if layout == "torch" else X


class Version:
    """The modules of one version of the package, imported from its `src` folder."""

    def __init__(self, source):
        for name in [name for name in sys.modules if name.split(".")[0] == "quadlin"]:
            del sys.modules[name]
        sys.path.insert(0, source)
        for name in ["chunks", "engine", "rows", "model", "moments", "sums", "units"]:
            setattr(self, name, importlib.import_module(f"quadlin.core.{name}"))
        if not hasattr(self.moments, "moments_of"):  # an earlier version
            self.moments = importlib.import_module("quadlin.core.survey")
        self.step_length = importlib.import_module("quadlin.solve.lowrank.step_length")
        sys.path.remove(source)

    def passes(self, X, free, k, seed):
        """Return the source of the rows and, by name, each pass as a function of an engine."""
        rng = np.random.default_rng(seed)
        like = (lambda a: a) if not isinstance(X, torch.Tensor) else torch.from_numpy
        n, d = X.shape
        y = like(rng.standard_normal(n))
        source = self.chunks.MemorySource(X, y)
        first = self.chunks.MemorySource(X[:20_000], y[:20_000])
        features, target = self.moments.moments_of(self.rows.Rows.of(first))
        dtype = np.dtype(str(X.dtype).removeprefix("torch."))
        target = self.units.target_of(target, True)
        units = self.units.units_of(features, like(np.full(d, free)), target, X.dtype)

        def draw(*shape):
            return rng.standard_normal(shape).astype(dtype) / dtype.type(d**0.5)

        def factor():
            return like(np.linalg.qr(draw(d, k))[0])

        model = self.model.constant_model(units, k)
        model = replace(model, U=factor(), s=like(draw(k)), w=like(draw(d)))
        other = replace(model, U=factor())
        steps = self.model.Steps(
            model.U, like(draw(d, 1, k)), like(draw(d, 1)), like(np.zeros(1, dtype))
        )
        step = (like(draw(d, k)), like(draw(d)))
        models = self.step_length.family(model, step, other, units, True, True)
        residual_sums, change_sums = self.sums.residual_sums, self.sums.change_sums
        gram = self.step_length.gram
        return source, {
            "residual_sums": lambda rows: rows.reduce(residual_sums, model, units, None, not free),
            "change_sums": lambda rows: rows.reduce(change_sums, steps, units, not free),
            "gram": lambda rows: rows.reduce(gram, models, units),
        }

    def carried(self, source, workers):
        """Return the rows of a source, summed in this thread or in several."""
        engines = self.engine
        engine = engines.Serial(source) if workers is None else engines.Threads(source, workers)
        return self.rows.Rows(engine)


def least(functions, repeat):
    """Return the least CPU times, of all threads, of functions that are called in turns."""
    times = [[] for _ in functions]
    for _ in range(repeat):
        for fn, taken in zip(functions, times, strict=True):
            start = time.process_time()
            fn()
            taken.append(time.process_time() - start)
    return [min(taken) for taken in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=24_000_000, help="of a dense table")
    parser.add_argument("--d", type=int, default=600, help="columns of a dense table")
    parser.add_argument("--k", type=int, default=8, help="the rank of the models")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--cases", nargs="+", choices=LAYOUTS, default=LAYOUTS)
    parser.add_argument("--engines", nargs="+", default=["serial", "threads"])
    parser.add_argument("--beside", help="the `src` folder of another version")
    o = parser.parse_args()
    here = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src")
    versions = [Version(s) for s in ([o.beside] if o.beside else []) + [here]]
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    print(f"{cores} cores, k = {o.k}, load {load:.1f}")
    names = ("residual_sums", "change_sums", "gram")
    print(f"{'rows':<9}{'d':>6} {'diagonal':<9}{'engine':<9}", *(f"{n:>17}" for n in names))
    for layout in o.cases:
        X = rows(layout, o.entries, o.d, np.random.default_rng(0))
        v = np.ones((X.shape[1], o.k) if issparse(X) else X.shape[1], np.float32)
        v = torch.from_numpy(v) if layout == "torch" else v.astype(X.dtype)
        for free in (True, False):
            works = [version.passes(X, free, o.k, 0) for version in versions]
            for engine in o.engines:
                workers = None if engine == "serial" else cores
                cells = []
                for name in names:
                    calls = [partial(operator.matmul, X, v)]
                    for version, (source, by_name) in zip(versions, works, strict=True):
                        calls.append(partial(by_name[name], version.carried(source, workers)))
                    with threadpool_limits(1):
                        read, *taken = least(calls, o.repeat)
                    cells.append(" → ".join(f"{t / read:.1f}" for t in taken))
                line = f"{layout:<9}{X.shape[1]:>6} {'free' if free else 'zero':<9}{engine:<9}"
                print(line, *(f"{cell:>17}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
