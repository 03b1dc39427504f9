"""The cost and gain of a cluster: a LocalCluster of Dask and one process, on the same rows.

    python benchmarks/cluster.py [--workers 2] [--rows 400000] [--features 200]

Prints the time per pass of this process, of threads and of the cluster, the overhead of a pass over
very few rows, the largest difference of the predictions, and that of a fit during which a worker is
killed.
"""

import argparse
import os
import signal
import threading
import time

import numpy as np

from quadlin import SecondOrderRegressor, open_source
from quadlin.core.chunks import MemorySource
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.data.opening.engines import engine_for
from quadlin.datasets import make_second_order


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--features", type=int, default=200)
    options = parser.parse_args()
    import dask.array as da
    from distributed import Client, LocalCluster

    data = make_second_order(options.rows, options.features, rank=5, noise=0.5, random_state=0)
    X, y, new = data.X.astype(np.float32), data.y, data.X[:1000].astype(np.float32)

    def fitted(rows, target=None, engine=None):
        model = SecondOrderRegressor(5, random_state=0, alpha=0.0)
        start = time.perf_counter()
        model.fit(rows, target, engine=engine)
        return model, (time.perf_counter() - start) / model.history_[-1].passes

    alone, seconds = fitted(X, y)
    print(f"one process: {1e3 * seconds:.0f} ms a pass")
    _, seconds = fitted(X, y, "threads")
    print(f"threads: {1e3 * seconds:.0f} ms a pass")
    local = LocalCluster(
        n_workers=options.workers, threads_per_worker=1, dashboard_address=None, silence_logs=50
    )
    with local as cluster, Client(cluster) as client:
        few = Rows(engine_for(MemorySource(X[:100], y[:100]), client))
        few.reduce(survey)
        start = time.perf_counter()
        for _ in range(20):
            few.reduce(survey)
        print(f"overhead of a pass: {1e3 * (time.perf_counter() - start) / 20:.0f} ms")
        blocks = {0: -(-options.rows // (4 * options.workers)), 1: -1}
        rows, target = da.from_array(X, chunks=(blocks[0], -1)), da.from_array(y, chunks=blocks[0])
        model, seconds = fitted(rows.persist(), target.persist())
        gap = np.abs(model.predict(new) - alone.predict(new)).max() / y.std()
        print(f"cluster: {1e3 * seconds:.0f} ms a pass; predictions differ by {gap:.0e} sd of y")
        victim = next(iter(client.run(os.getpid).values()))
        threading.Timer(2 * seconds, os.kill, (victim, signal.SIGKILL)).start()
        model, _ = fitted(open_source(rows, target=target))
        gap = np.abs(model.predict(new) - alone.predict(new)).max() / y.std()
        gone = victim not in client.run(os.getpid).values()
        print(f"with a worker killed ({gone}): predictions differ by {gap:.0e} sd of y")


if __name__ == "__main__":
    main()
