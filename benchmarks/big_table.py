"""The time and memory to fit a Parquet folder that is too large for memory.

Draws rows of a second order model in float32, writes them as Parquet (5,000,000 × 200 are 4 GB),
and measures the time and peak memory, in separate processes, of: a scan of the same columns by
pyarrow, a pass of `open_source`, one pass of `partial_fit` over the same rows in memory, and `fit
--one-pass` and `predict` of the command line. Prints the time of the fit divided by that of the
scan plus the pass in memory, and the distance of the two models.
Run: python benchmarks/big_table.py FOLDER [--rows N] [--features D]
"""

import argparse
import itertools
import multiprocessing
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet

from quadlin import SecondOrderRegressor, load, open_source, save

BLOCK = 50_000  # rows drawn at once
RANK = 5


def peak_bytes():
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def write(folder, rows, features, files, group, seed=0):
    """Draw y = x'w + x'Mx + noise by blocks; no more than a row group is in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((features, RANK)))[0].astype(np.float32)
    signs = np.where(np.arange(RANK) % 2, -1, 1).astype(np.float32)
    w = (rng.standard_normal(features) / np.sqrt(features)).astype(np.float32)
    names = [*(f"f{j}" for j in range(features)), "y"]
    schema = pa.schema([(name, pa.float32()) for name in names])
    cuts = np.linspace(0, rows, files + 1).astype(int)
    for i, (first, last) in enumerate(itertools.pairwise(cuts)):
        path = folder / f"part-{i:04d}.parquet"
        with pyarrow.parquet.ParquetWriter(path, schema, use_dictionary=False) as writer:
            held = []
            for start in range(first, last, BLOCK):
                n = min(BLOCK, last - start)
                X = rng.standard_normal((n, features), dtype=np.float32)
                y = X @ w + (X @ Q) ** 2 @ signs + rng.standard_normal(n, dtype=np.float32)
                columns = [*np.ascontiguousarray(X.T), y]
                held.append(
                    pa.RecordBatch.from_arrays([pa.array(c) for c in columns], schema=schema)
                )
                if sum(map(len, held)) >= group or start + n == last:
                    writer.write_table(pa.Table.from_batches(held), row_group_size=group)
                    held = []


def scan(folder):
    """Let pyarrow decode all columns, as it does by default."""
    dataset = pyarrow.dataset.dataset(folder, format="parquet")
    return sum(len(batch) for batch in dataset.to_batches())


def walk(folder):
    return sum(len(chunk.y) for chunk in open_source(folder, target="y"))


def in_memory(folder):
    """One pass over rows that are in memory already; only `partial_fit` is timed."""
    source = open_source(folder, target="y")
    X, y = np.empty((source.rows, source.width), np.float32), np.empty(source.rows)
    start = 0
    for chunk in source:
        stop = start + len(chunk.y)
        X[start:stop], y[start:stop], start = chunk.X, chunk.y, stop
    before = time.perf_counter()
    model = SecondOrderRegressor(RANK, random_state=0, alpha=0.0).partial_fit(X, y)
    seconds = time.perf_counter() - before
    save(model, folder.parent / "in_memory.safetensors")
    return seconds


def measured(task, folder, queue):
    start = time.perf_counter()
    rows = task(folder)
    queue.put((time.perf_counter() - start, time.process_time(), rows, peak_bytes()))


def in_process(task, folder):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=measured, args=(task, folder, queue))
    process.start()
    result = queue.get()
    process.join()
    return result


def command(*words):
    """Run the command line; return its time, and print it with the peak memory."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "quadlin", *map(str, words), "--quiet"])
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    assert status == 0, status
    print(f"quadlin {words[0]}: {seconds:.1f} s, peak memory {usage.ru_maxrss / 1e3:.0f} MB")
    return seconds


def fits(folder, scan_seconds):
    """Compare the command line's pass with one in memory."""
    beside = folder.parent
    pass_seconds = in_process(in_memory, folder)[2]
    print(f"partial_fit in memory: {pass_seconds:.1f} s")
    model = beside / "one_pass.safetensors"
    seconds = command(
        *("fit", folder, "--target", "y", "--rank", RANK, "--one-pass"),
        *("--random-state", 0, "-o", model),
    )
    print(f"fit / (scan + pass in memory) = {seconds / (scan_seconds + pass_seconds):.2f}")
    command("predict", model, folder, "-o", beside / "predictions.parquet")
    chunk = next(iter(open_source(folder, target="y")))
    X = pa.table(list(chunk.X.T), names=[f"f{j}" for j in range(chunk.X.shape[1])])
    one, other = (load(beside / f"{name}.safetensors") for name in ("one_pass", "in_memory"))
    gap = np.abs(one.predict(X) - other.predict(X)).max() / np.std(other.predict(X))
    print(f"the models' predictions differ by at most {gap:.0e} standard deviations")
    table = pyarrow.parquet.ParquetFile(beside / "predictions.parquet")
    first = next(table.iter_batches(len(X))).column(0).to_numpy()[: len(X)]
    print(f"predictions written: {table.metadata.num_rows:,}, as in memory:", end=" ")
    print(bool(np.allclose(first, one.predict(X)[: len(first)])))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--features", type=int, default=200)
    parser.add_argument("--files", type=int, default=12)
    parser.add_argument("--group", type=int, default=200_000, help="rows per row group")
    parser.add_argument("--repeat", type=int, default=2)
    options = parser.parse_args()
    if not any(options.folder.glob("*.parquet")):
        write(options.folder, options.rows, options.features, options.files, options.group)
    size = sum(path.stat().st_size for path in options.folder.glob("*.parquet"))
    print(f"{size / 1e9:.2f} GB of Parquet")
    best = {}
    for _ in range(options.repeat):
        for task in (scan, walk):
            seconds, cpu, rows, peak = in_process(task, options.folder)
            best[task] = min(best.get(task, np.inf), seconds)
            speed = size / seconds / 1e6
            print(
                f"{task.__name__}: {rows:,} rows in {seconds:.2f} s ({speed:.0f} MB/s), "
                f"{cpu:.1f} s of CPU, "
                f"peak memory {peak / 1e6:.0f} MB",
                flush=True,
            )
    print(f"walk / scan = {best[walk] / best[scan]:.2f}", flush=True)
    fits(options.folder, best[scan])


if __name__ == "__main__":
    main()
