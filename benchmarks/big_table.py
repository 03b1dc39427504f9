"""A Parquet folder larger than one likes to hold: how fast, and in how much memory, it is walked.

Draws rows of a second order model in float32, writes them as Parquet (5,000,000 × 200 are 4 GB),
and times pyarrow's own scan of the same columns beside a walk of `open_source`, each in a process
of its own, with its peak memory.
Run: python benchmarks/big_table.py FOLDER [--rows N] [--features D]
"""

import argparse
import itertools
import multiprocessing
import resource
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet

from quadlin.sources import open_source

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


def measured(task, folder, queue):
    start = time.perf_counter()
    rows = task(folder)
    queue.put((time.perf_counter() - start, time.process_time(), rows, peak_bytes()))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--features", type=int, default=200)
    parser.add_argument("--files", type=int, default=12)
    parser.add_argument("--group", type=int, default=200_000, help="rows a row group")
    parser.add_argument("--repeat", type=int, default=2)
    options = parser.parse_args()
    if not any(options.folder.glob("*.parquet")):
        write(options.folder, options.rows, options.features, options.files, options.group)
    size = sum(path.stat().st_size for path in options.folder.glob("*.parquet"))
    print(f"{size / 1e9:.2f} GB of Parquet")
    context, best = multiprocessing.get_context("spawn"), {}
    for _ in range(options.repeat):
        for task in (scan, walk):
            queue = context.Queue()
            process = context.Process(target=measured, args=(task, options.folder, queue))
            process.start()
            seconds, cpu, rows, peak = queue.get()
            process.join()
            best[task] = min(best.get(task, np.inf), seconds)
            speed = size / seconds / 1e6
            print(
                f"{task.__name__}: {rows:,} rows in {seconds:.2f} s ({speed:.0f} MB/s), "
                f"{cpu:.1f} s of CPU, "
                f"peak memory {peak / 1e6:.0f} MB",
                flush=True,
            )
    print(f"walk / scan = {best[walk] / best[scan]:.2f}")


if __name__ == "__main__":
    main()
