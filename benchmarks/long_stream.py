"""A stream of very many calls: CPU time per call, bytes of its file and memory, part by part.

Each call of `partial_fit` has a few rows of three features; nothing may grow with their number.
Run: python benchmarks/long_stream.py [--calls 1000000] [--parts 10] [--rows 4] [--seconds 1e9]
"""

import argparse
import resource
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

from quadlin import SecondOrderRegressor, save


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--parts", type=int, default=10)
    parser.add_argument("--rows", type=int, default=4, help="of a call")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after that long")
    a = parser.parse_args()
    warnings.simplefilter("ignore")
    rng, end = np.random.default_rng(0), time.perf_counter() + a.seconds
    model = SecondOrderRegressor(rank=2, alpha=0.0, batch_size=20, random_state=0)
    X_new = rng.standard_normal((1000, 3))
    truth = X_new[:, 0] * X_new[:, 1] + X_new[:, 2]
    print("calls | CPU ms per call | bytes of the file | peak memory, MB | history | error")
    done, part = 0, max(1, a.calls // a.parts)
    with tempfile.TemporaryDirectory() as folder:
        while done < a.calls and time.perf_counter() < end:
            start, first = time.process_time(), done
            while done < min(first + part, a.calls) and time.perf_counter() < end:
                X = rng.standard_normal((a.rows, 3))
                y = X[:, 0] * X[:, 1] + X[:, 2] + 0.1 * rng.standard_normal(a.rows)
                model.partial_fit(X, y)
                done += 1
            spent = (time.process_time() - start) / (done - first)
            save(model, Path(folder) / "model")
            size = (Path(folder) / "model").stat().st_size
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            error = np.sqrt(np.mean((model.predict(X_new) - truth) ** 2))
            cells = f"{done:,}", f"{1e3 * spent:.2f}", f"{size:,}", f"{peak:.0f}"
            print(*cells, len(model.history_), f"{error:.2g}", sep=" | ", flush=True)


if __name__ == "__main__":
    main()
