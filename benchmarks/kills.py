"""Kill a fit with a checkpoint repeatedly at random moments; it must end at the same model.

    python benchmarks/kills.py [--kills 20]

For a fit and for a stream, prints how often it was killed, how far it was each time, whether the
model is that of an undisturbed fit (to the last bit), and which files are left.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import quadlin
from quadlin.datasets import make_second_order

SCRIPT = """
import sys, numpy as np, quadlin
from quadlin.storage import journal
from quadlin.storage import stream_checkpoint
folder, how = sys.argv[1:]
journal.SYNC_SECONDS = stream_checkpoint.WRITE_SECONDS = 0.1
X, y = np.load(folder + "/X.npy", mmap_mode="r"), np.load(folder + "/y.npy")
if how == "stream":
    model = quadlin.SecondOrderRegressor(4, batch_size=4000, random_state=0)
    model.partial_fit(quadlin.open_source(X, target=y), checkpoint=folder + "/checkpoint")
else:
    model = quadlin.SecondOrderRegressor(4, tol=1e-12, random_state=0)
    model.fit(X, y, checkpoint=folder + "/checkpoint")
quadlin.save(model, folder + "/model")
"""


def run(folder, how):
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder), how])


def same(a, b):
    names = ("coef_", "components_", "eigenvalues_", "intercept_")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


def one(how, kills):
    rng = np.random.default_rng(0)
    data = make_second_order(200_000, 60, rank=4, noise=1.0, random_state=0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "X.npy", data.X)
        np.save(folder / "y.npy", data.y)
        start = time.perf_counter()
        assert run(folder, how).wait() == 0
        whole = time.perf_counter() - start
        expected = quadlin.load(folder / "model")
        done = rounds = 0
        ends = []
        while done < kills:
            for file in ("model", "checkpoint"):
                (folder / file).unlink(missing_ok=True)
            rounds += 1
            while True:
                process = run(folder, how)
                try:
                    code = process.wait(timeout=float(rng.uniform(0.3, 0.9) * whole))
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    done += 1
                    continue
                assert code == 0
                ends.append(same(quadlin.load(folder / "model"), expected))
                break
        left = sorted(set(os.listdir(folder)) - {"X.npy", "y.npy"})
    print(
        f"{how}: {done} kills in {rounds} fits of {whole:.1f} s; the same model to the last bit in "
        f"{sum(ends)} of {len(ends)}; files left: {', '.join(left)}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    kills = parser.parse_args().kills
    for how in ("fit", "stream"):
        one(how, kills)


if __name__ == "__main__":
    main()
