"""A service's questions: threads, processes, memory, numbers of threads, a full disk, a cluster.

    OMP_NUM_THREADS=1 python benchmarks/operations.py [threads processes memory cores disk workers]

"threads" predicts from 16 threads at once, and compares answers and rows per second with one.
"processes" fits in forked and in spawned processes, after a fit in this one, and with joblib.
"memory" prints the resident memory along 2,000 fits, of which every tenth is saved and loaded.
"cores" fits with 1, 2 and 4 threads, and prints how far the predictions differ.
"disk" saves a model where the file may not grow, over an older file.
"workers" fits on two workers of Dask, one of which has too little memory for its rows.
"""

import argparse
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from sklearn.model_selection import cross_val_score

import quadlin
from quadlin import SecondOrderRegressor
from quadlin.datasets import make_second_order

CORES = """
import numpy as np
from quadlin import SecondOrderRegressor
from quadlin.datasets import make_second_order
data = make_second_order(40_000, 60, rank=3, noise=1.0, random_state=0)
np.save({path!r}, SecondOrderRegressor(rank=3, pairs=None).fit(data.X, data.y).predict(data.X))
"""


def fit(seed):
    data = make_second_order(2000, 20, rank=2, noise=0.5, random_state=seed)
    return data, SecondOrderRegressor(rank=2, alpha=1.0, pairs=None).fit(data.X, data.y)


def predict(seed):
    data, model = fit(seed)
    return model.predict(data.X)


def threads():
    data, model = fit(0)
    X = np.tile(data.X, (20, 1))
    alone = model.predict(X)
    for workers in (1, 16):
        start = time.perf_counter()
        with ThreadPoolExecutor(workers) as pool:
            answers = list(pool.map(model.predict, [X] * 64))
        rate = 64 * len(X) / (time.perf_counter() - start)
        same = all(np.array_equal(answer, alone) for answer in answers)
        print(f"{workers:2d} threads: {rate:.2e} rows/s, equal answers: {same}")


def processes():
    alone = [predict(seed) for seed in range(4)]
    for method in ("fork", "spawn"):
        start = time.perf_counter()
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
            answers = list(pool.map(predict, range(4)))
        far = max(np.abs(a - b).max() for a, b in zip(answers, alone, strict=True))
        print(f"{method}: {time.perf_counter() - start:.1f} s, largest difference {far:.1e}")
    data, model = fit(0)
    one, two = (cross_val_score(model, data.X, data.y, n_jobs=jobs) for jobs in (1, 2))
    print(f"joblib: largest difference of scores {np.abs(one - two).max():.1e}")


def memory():
    page = os.sysconf("SC_PAGE_SIZE") / 1e6
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        for count in range(2001):
            data, model = fit(count % 7)
            if count % 10 == 0:
                quadlin.save(model, path)
                quadlin.load(path).predict(data.X)
            if count % 400 == 0:
                resident = int(Path("/proc/self/statm").read_text().split()[1]) * page
                print(f"after {count:4d} fits: {resident:.1f} MB", flush=True)


def cores():
    with tempfile.TemporaryDirectory() as folder:
        answers = []
        for count in (1, 2, 4):
            path = str(Path(folder, f"{count}.npy"))
            env = os.environ | {"OMP_NUM_THREADS": str(count), "OPENBLAS_NUM_THREADS": str(count)}
            subprocess.run([sys.executable, "-c", CORES.format(path=path)], env=env, check=True)
            answers.append(np.load(path))
    scale = np.std(answers[0])
    for count, answer in zip((2, 4), answers[1:], strict=True):
        far = np.abs(answer - answers[0]).max() / scale
        print(f"{count} threads: largest difference {far:.1e} of the standard deviation")


def disk():
    _, model = fit(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        quadlin.save(model, path)
        before = path.read_bytes()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that writing raises an error instead
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        outcome = "saved, although the disk is full"
        try:
            quadlin.save(model, path)
        except OSError as error:
            outcome = f"{type(error).__name__}: {error}"
        resource.setrlimit(
            resource.RLIMIT_FSIZE, limits
        )  # the limit holds for prints to a file, too
        print(outcome)
        left = [p.name for p in Path(folder).iterdir() if p != path]
        print(f"the older file is whole: {path.read_bytes() == before}, other files left: {left}")


def workers():
    import dask.array as da
    from distributed import Client, LocalCluster, Nanny

    data = make_second_order(100_000, 60, rank=3, noise=1.0, random_state=0)
    alone = SecondOrderRegressor(rank=3, alpha=1.0, pairs=None).fit(data.X, data.y)
    chunks = (5_000, 60)
    with (
        LocalCluster(1, threads_per_worker=1, memory_limit="2GiB") as cluster,
        Client(cluster) as client,
    ):
        small = client.sync(_start_nanny, Nanny, cluster.scheduler_address)
        X, y = da.from_array(data.X, chunks), da.from_array(data.y, chunks[0])
        start = time.perf_counter()
        try:
            model = SecondOrderRegressor(rank=3, alpha=1.0, pairs=None).fit(X, y)
            far = np.abs(model.predict(data.X) - alone.predict(data.X)).max()
            print(f"a worker of 64 MiB and one of 2 GiB: {time.perf_counter() - start:.1f} s, "
                  f"largest difference {far:.1e}")  # fmt: skip
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
        client.sync(small.close)


async def _start_nanny(nanny, address):
    return await nanny(address, nthreads=1, memory_limit="64MiB", death_timeout=60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = {f.__name__: f for f in (threads, processes, memory, cores, disk, workers)}
    parser.add_argument("parts", nargs="*", default=list(parts))
    for name in parser.parse_args().parts:
        print(f"== {name}")
        parts[name]()
