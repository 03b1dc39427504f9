"""The cost of a fit in ratios, each with its target value: a few minutes.

    OMP_NUM_THREADS=1 python benchmarks/bench.py [--entries 12000000] [--cluster]

Times are CPU times in reads of X, one `X @ v` on the same rows in the same run, or for CSR rows in
products with 8 dense columns. "busy" is the same while another process, pinned to one of the cores,
multiplies matrices. `--cluster` adds passes on one and on two Dask workers of one thread each: in
wall time, which is meaningless while others use the cores, and in CPU time, where a pass takes that
of its busiest worker and of the scheduler, as if nothing had to wait. `passes.py`, `fit_cost.py`,
`cluster.py` and `wide_sparse.py` have larger sizes and more cases.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import numpy as np
from fit_cost import reads
from passes import Version, least, rows
from threadpoolctl import threadpool_limits

from quadlin import SecondOrderRegressor
from quadlin.datasets import make_second_order

HERE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src")
PASSES = ("residual_sums", "change_sums", "gram")


def show(figure, value, bar):
    print(f"{figure:<58}{value:>18}   {bar}", flush=True)


def pass_costs(layout, entries, repeat=5):
    """Return the cost of the three passes and of the moments, in reads or in products."""
    version = Version(HERE)
    X = rows(layout, entries, 600, np.random.default_rng(0))
    v = np.ones((X.shape[1], 8) if layout == "csr" else X.shape[1], X.dtype)
    source, by_name = version.passes(X, True, 8, 0)
    carried = version.carried(source, None)
    calls = [lambda: X @ v, *((lambda name=name: by_name[name](carried)) for name in PASSES)]
    with threadpool_limits(1):
        read, *taken = least([*calls, lambda: version.moments.moments_of(carried)], repeat)
    return [t / read for t in taken]


def compete(core):
    """Multiply matrices on one core forever."""
    with suppress(AttributeError, OSError):
        os.sched_setaffinity(0, {core})
    A = np.random.default_rng(0).standard_normal((500, 500))
    while True:
        A = A @ A
        A /= np.abs(A).max()


@contextmanager
def busy():
    """Keep one of the cores of this process busy."""
    other = multiprocessing.get_context("spawn").Process(
        target=compete, args=(min(os.sched_getaffinity(0)),), daemon=True
    )
    other.start()
    time.sleep(2)
    try:
        yield
    finally:
        other.kill()
        other.join()


def fit_costs(multiple, noise, dtype, d=200, k=8):
    """Return the reads and the passes of a fit with given rank and penalty."""
    data = make_second_order(multiple * k * d, d, rank=k, noise=noise, random_state=0)
    X = data.X.astype(dtype)
    model, cost = reads(
        X, lambda: SecondOrderRegressor(k, alpha=0.0, random_state=0).fit(X, data.y)
    )
    return cost, model.history_[-1].passes


def small_fit():
    """Return the CPU time of a fit of 500 rows with 10 features, in milliseconds."""
    X = np.random.default_rng(0).standard_normal((500, 10))
    y = X[:, 0] * X[:, 1] + X[:, 2]
    return 1e3 * least([lambda: SecondOrderRegressor(2, alpha=1.0, random_state=0).fit(X, y)], 5)[0]


def import_time(code):
    """Return the CPU time of a statement in a new interpreter, without that of its start."""
    taken = []
    for statement in ("pass", code):
        script = f"import time; {statement}; print(time.process_time())"
        done = [subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)]
        done.append(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True))
        taken.append(min(float(run.stdout.split()[-1]) for run in done))
    return taken[1] - taken[0]


def spread(client, X, parts=4):
    """Return rows as a Dask array whose blocks the workers hold in turn."""
    import dask.array as da
    from dask import delayed

    workers, blocks = list(client.scheduler_info()["workers"]), np.array_split(X, parts)
    kept = [
        client.scatter(block, workers=[workers[i % len(workers)]], hash=False)
        for i, block in enumerate(blocks)
    ]
    return da.concatenate(
        [
            da.from_delayed(delayed(future), block.shape, block.dtype)
            for future, block in zip(kept, blocks, strict=True)
        ]
    ).persist()


def cluster_gain(n=1_600_000, d=200, walks=10):
    """Return how much faster two workers read their rows than one does: wall and CPU time."""
    from distributed import Client, LocalCluster

    from quadlin import open_source  # again: `Version` has imported the package anew
    from quadlin.core.moments import survey
    from quadlin.core.rows import Rows
    from quadlin.data.opening.engines import engine_for

    X = np.random.default_rng(0).standard_normal((n, d), dtype=np.float32)
    wall, cpu = [], []
    for workers in (1, 2):
        local = LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=None, silence_logs=50
        )
        with local as cluster, Client(cluster) as client:
            source = open_source(spread(client, X), target=spread(client, X[:, 0]))
            held = Rows(engine_for(source, client))
            held.reduce(survey)
            taken, used = [], []
            for _ in range(walks):
                before = client.run(time.process_time)
                start, here = time.perf_counter(), time.process_time()
                held.reduce(survey)
                taken.append(time.perf_counter() - start)
                here = time.process_time() - here
                after = client.run(time.process_time)
                used.append(here + max(after[worker] - before[worker] for worker in after))
            wall.append(min(taken))
            cpu.append(min(used))
    return wall[0] / wall[1], cpu[0] / cpu[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=12_000_000, help="of a dense table")
    parser.add_argument("--cluster", action="store_true", help="start Dask workers as well")
    o = parser.parse_args()
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    print(f"{cores} cores, load {load:.1f}\n{'figure':<58}{'measured':>18}   bar")
    quiet = {layout: pass_costs(layout, o.entries) for layout in ("f32-C", "f64-C", "csr")}
    for layout, (*passes, moments) in quiet.items():
        unit = "products" if layout == "csr" else "reads"
        text = " / ".join(f"{t:.1f}" for t in passes)
        show(f"{layout}: residual / change / search, {unit} a pass", text, "≤ 3")
        show(f"{layout}: moments of all features, {unit}", f"{moments:.1f}", "≤ 6")
    with busy():
        loaded = pass_costs("f32-C", o.entries)
    ratios = " / ".join(f"{b / q:.2f}" for b, q in zip(loaded, quiet["f32-C"], strict=True))
    show("f32-C, busy: times the quiet figure, and the moments", ratios, "≤ 2")
    for multiple, noise, dtype, bar in (
        (30, 0.0, np.float32, "≤ 10 passes, ≤ 40 reads"),
        (30, 1.0, np.float32, "≤ 12 passes"),
        (30, 0.0, np.float64, "≤ 10 passes"),
        (100, 0.0, np.float32, "≤ 5 passes"),
        (100, 0.0, np.float64, "≤ 5 passes"),
    ):
        cost, passes = fit_costs(multiple, noise, dtype)
        name = f"fit of given rank, {multiple}kd rows, noise {noise:g}, {np.dtype(dtype).name}"
        show(name, f"{passes} passes, {cost:.0f} reads", bar)
    show("fit of given rank of 500 × 10 numbers", f"{small_fit():.0f} ms", "")
    show("import quadlin", f"{import_time('import quadlin'):.2f} s", "")
    help_page = "import quadlin.cli.app"
    show("import of the command line", f"{import_time(help_page):.2f} s", "")
    if o.cluster:
        gains = " / ".join(f"{gain:.2f}" for gain in cluster_gain())
        show("Dask: two workers beside one, wall / CPU", gains, "≥ 1.7")


if __name__ == "__main__":
    main()
