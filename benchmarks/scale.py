"""Many rows, many columns, several workers: time, memory and passes.

    OMP_NUM_THREADS=1 python benchmarks/scale.py csv [--folder F] [--rows 1000000]
    python benchmarks/scale.py parquet [--folder F] [--rows 5000000] [--columns 200]
    OMP_NUM_THREADS=1 python -W ignore benchmarks/scale.py cluster [--rows 200000] [--columns 200]
    OMP_NUM_THREADS=1 python benchmarks/scale.py sparse [--rows 1000000] [--columns 1000000]

"csv" writes a table of numbers, flags and text, and runs the commands of quadlin on it.
"parquet" writes float32 rows (5,000,000 × 200 are 4 GB), and compares a pass of `partial_fit` with
a scan by pyarrow, a walk of `open_source` and `partial_fit` on rows in memory.
"cluster" prints the time of a pass of a fit in one process, in threads, on one and two workers,
and how far predictions differ, also if a worker is killed during the fit.
"sparse" fits one-hot rows of 20 fields whose levels follow Zipf's law: rank 8, with standard
errors, to the end (100 steps), and with everything chosen, beside ridge regression.
"""

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet
from scipy.sparse import csr_array
from sklearn.linear_model import Ridge

from quadlin import FactorizationMachineRegressor, SecondOrderRegressor, open_source
from quadlin.datasets import make_second_order

RANK, BLOCK = 5, 20_000


def timed(title, *words):
    """Print seconds, CPU seconds and peak memory (at least that of this process) of a command."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, *map(str, words)])
    _, status, usage = os.wait4(process.pid, 0)
    cpu, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3
    print(f"{title}: {time.perf_counter() - start:.1f} s, {cpu:.1f} CPU s, peak memory "
          f"{peak:.0f} MB, exit code {os.waitstatus_to_exitcode(status)}", flush=True)  # fmt: skip


def command(*words):
    timed(f"quadlin {words[0]}", "-m", "quadlin", *words)


def customers(rng, n):
    """Return customers whose spending is a second order function of numbers, flags and text."""
    laws = {"age": rng.uniform(18, 90, n), "income": rng.lognormal(10, 0.5, n)}
    laws |= {"visits": rng.poisson(6, n), "rating": rng.uniform(1, 5, n)}
    laws |= {"tenure": rng.exponential(4, n), "distance": rng.gamma(2, 5, n)}
    numbers = {name: np.round(values.astype(float), 2) for name, values in laws.items()}
    flags = {name: (rng.random(n) < share).astype(int) for name, share in
             (("member", 0.4), ("mobile", 0.7))}  # fmt: skip
    codes = {"city": rng.integers(30, size=n), "plan": rng.integers(4, size=n)}
    codes["segment"] = rng.integers(8, size=n)
    visits, level = numbers["visits"], np.cos(np.arange(30))[codes["city"]]
    y = 20 + 0.5 * numbers["age"] + 3 * visits + 2 * visits * flags["member"] + 8 * level
    y += 0.4 * numbers["rating"] * visits + 10 * (codes["plan"] == 3) * numbers["tenure"]
    y += 4e-5 * numbers["income"] * level - 0.2 * numbers["distance"] * (1 - flags["mobile"])
    text = {name: np.char.mod(f"{name} %02d", values) for name, values in codes.items()}
    return pa.table(numbers | flags | text | {"spending": y + 10 * rng.standard_normal(n)})


def csv(o, folder):
    rows, rng = o.rows or 1_000_000, np.random.default_rng(0)
    train, test, model = folder / "train.csv", folder / "test.csv", folder / "model.safetensors"
    for path, n in ((train, rows), (test, max(1, rows // 10))):
        table = customers(rng, min(n, BLOCK))
        with pa.csv.CSVWriter(path, table.schema) as writer:
            for start in range(0, n, BLOCK):
                writer.write_table(customers(rng, min(BLOCK, n - start)))
        print(f"{path.name}: {n:,} rows, {path.stat().st_size / 1e6:.0f} MB", flush=True)
    command("check", train, "--target", "spending")
    command("fit", train, "--target", "spending", "-o", model)
    command("evaluate", model, test, "--target", "spending")
    command("predict", model, test, "-o", folder / "predictions.parquet")


def write_parquet(folder, rows, d):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((d, RANK)))[0].astype(np.float32)
    signs = np.where(np.arange(RANK) % 2, -1, 1).astype(np.float32)
    for i, start in enumerate(range(0, rows, BLOCK)):
        X = rng.standard_normal((min(BLOCK, rows - start), d), dtype=np.float32)
        y = X[:, 0] + (X @ Q) ** 2 @ signs + rng.standard_normal(len(X), dtype=np.float32)
        columns = {f"f{j}": column for j, column in enumerate(np.ascontiguousarray(X.T))}
        path = folder / f"part-{i:04d}.parquet"
        pa.parquet.write_table(pa.table(columns | {"y": y}), path, use_dictionary=False)


PARQUET = {  # programs that are given the folder
    "pyarrow scans": """
import sys, pyarrow.dataset
print(sum(len(batch) for batch in pyarrow.dataset.dataset(sys.argv[1]).to_batches()), "rows")
""",
    "open_source walks": """
import sys, quadlin
print(sum(len(chunk.y) for chunk in quadlin.open_source(sys.argv[1], target="y")), "rows")
""",
    "rows in memory": f"""
import sys, time, numpy as np, quadlin
chunks = list(quadlin.open_source(sys.argv[1], target="y"))
X, y = (np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in "Xy")
start = time.perf_counter()
quadlin.SecondOrderRegressor({RANK}, random_state=0, alpha=0.0).partial_fit(X, y)
print(f"of which partial_fit takes {{time.perf_counter() - start:.1f}} s")
""",
}

ONE_PASS = f"""
import sys, quadlin
model = quadlin.SecondOrderRegressor({RANK}, random_state=0)
quadlin.save(model.partial_fit(quadlin.open_source(sys.argv[1], target="y")), sys.argv[2])
"""


def parquet(o, folder):
    rows, model = folder / "rows", folder / "model.safetensors"
    if not rows.exists():
        write_parquet(rows, o.rows or 5_000_000, o.columns or 200)
    size = sum(path.stat().st_size for path in rows.glob("*.parquet"))
    print(f"{size / 1e9:.2f} GB of Parquet", flush=True)
    for title, program in PARQUET.items():
        timed(title, "-c", program, rows)
    timed("one pass", "-c", ONE_PASS, rows, model)
    command("predict", model, rows, "-o", folder / "predictions.parquet", "--quiet")


def cluster(o, folder):
    import dask.array as da
    from distributed import Client, LocalCluster

    rows, columns = o.rows or 200_000, o.columns or 200
    data = make_second_order(rows, columns, rank=RANK, noise=0.5, random_state=0)
    X, y, new = data.X.astype(np.float32), data.y, data.X[:1000].astype(np.float32)

    def fit(X, y=None, engine=None):
        """Return the predictions of a fit and its seconds per pass."""
        model, start = SecondOrderRegressor(RANK, random_state=0, alpha=0.0), time.perf_counter()
        model.fit(X, y, engine=engine)
        return model.predict(new), (time.perf_counter() - start) / model.history_[-1].passes

    alone, serial = fit(X, y)
    print(f"one process: {1e3 * serial:.0f} ms a pass")
    print(f"threads: {1e3 * fit(X, y, 'threads')[1]:.0f} ms a pass", flush=True)
    block, first = -(-rows // 8), None
    for workers in (1, 2):
        options = {"dashboard_address": None, "silence_logs": 50, "threads_per_worker": 1}
        with LocalCluster(n_workers=workers, **options) as local, Client(local) as client:
            spread = da.from_array(X, chunks=(block, -1)), da.from_array(y, chunks=block)
            predicted, seconds = fit(*(part.persist() for part in spread))
            first, gap = first or seconds, np.abs(predicted - alone).max() / y.std()
            print(f"{workers} Dask workers: {1e3 * seconds:.0f} ms a pass, {first / seconds:.2f} "
                  f"times as fast as one; predictions differ by {gap:.0e} sd of y")  # fmt: skip
            if workers == 1:
                continue
            victim = next(iter(client.run(os.getpid).values()))
            threading.Timer(2 * seconds, os.kill, (victim, signal.SIGKILL)).start()
            predicted, _ = fit(open_source(spread[0], target=spread[1]))
            gap, gone = np.abs(predicted - alone).max() / y.std(), client.run(os.getpid).values()
            print(f"with a worker killed ({victim not in gone}): predictions differ by {gap:.0e}")


def one_hot_table(n, d, per_row=20):
    """Return one-hot rows of `per_row` fields and the target of a factorization machine."""
    rng, levels = np.random.default_rng(0), d // per_row
    edges = np.cumsum(1 / np.arange(1, levels + 1))
    places = rng.random((n, per_row), dtype=np.float32)
    codes = np.searchsorted(edges / edges[-1], places).clip(0, levels - 1)
    indices = (codes + levels * np.arange(per_row)).astype(np.int32)
    ends, ones = per_row * np.arange(n + 1), np.ones(n * per_row, dtype=np.float32)
    X = csr_array((ones, indices.ravel(), ends), shape=(n, levels * per_row))
    V = rng.standard_normal((X.shape[1], 2)).astype(np.float32) / per_row**0.5
    y = X @ rng.standard_normal(X.shape[1]) + (X @ V) ** 2 @ [1.0, -1.0]
    return X, y + rng.standard_normal(n)


def sparse(o, folder):
    n, d = o.rows or 1_000_000, o.columns or 1_000_000
    X, y = one_hot_table(2 * n, d)
    X, y, X_new, y_new = X[:n], y[:n], X[n:], y[n:]
    print(f"{n:,} rows × {X.shape[1]:,} columns, {X.nnz:,} entries", flush=True)

    def fit(title, *rank, **options):
        model = FactorizationMachineRegressor(*rank, pairs=None, random_state=0, **options)
        start = time.process_time()
        model.fit(X, y)
        seconds, last = time.process_time() - start, model.history_[-1]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(f"{title}: {seconds:.1f} CPU s, {last.passes} passes, loss {last.loss:.5g}, peak "
              f"{peak:.0f} MB, rank {model.rank_}, R² of new rows "
              f"{model.score(X_new, y_new):.3f}", flush=True)  # fmt: skip

    fit("rank 8", 8, alpha=300.0)
    fit("rank 8 with standard errors", 8, alpha=300.0, uncertainty=True)
    fit("rank 8, 100 steps", 8, alpha=300.0, tol=1e-9, max_iter=100)
    fit("everything chosen")
    ridge = max(Ridge(a, solver="sparse_cg").fit(X, y).score(X_new, y_new) for a in (1, 3, 10))
    print(f"R² of ridge regression, the best of three penalties: {ridge:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    tasks = {"csv": csv, "parquet": parquet, "cluster": cluster, "sparse": sparse}
    parser.add_argument("what", choices=tasks)
    parser.add_argument("--folder", type=Path, help="of the tables; a temporary one by default")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--columns", type=int)
    o = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as temporary:
        folder = o.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        tasks[o.what](o, folder)


if __name__ == "__main__":
    main()
