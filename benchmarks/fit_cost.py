"""How many passes over the rows a fit takes; passes over samples count by their share.

One line per case: d features, true and fitted rank k, n = 30kd or 100kd rows of Gaussian features,
M of both signs, without noise and with noise of standard deviation 1. "passes" is
`history_[-1].passes`, rounded up, including one for moments; "from scratch" is the same without
samples. "excess" is the error on new rows, without their noise, relative to that of the optimum of
all rows (`tol=1e-10`), minus 1. "reads" is the CPU time of the fit divided by that of one `X @ v`.

Run: OMP_NUM_THREADS=1 python benchmarks/fit_cost.py [--d 200] [--k 8] [--seeds 2] [--float64]
"""

import argparse
import time

import numpy as np

from quadlin import SecondOrderRegressor
from quadlin.core.chunks import MemorySource
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.datasets import make_second_order
from quadlin.metrics import nmse
from quadlin.solve.lowrank.polish import fit_rows
from quadlin.solve.lowrank.types import Options


def from_scratch(X, y, k, seed):
    """Fit all rows without samples; return the passes."""
    source = Rows.of(MemorySource(X, y))
    surveyed = source.reduce(survey)
    names = [str(j) for j in range(X.shape[1])]
    units = UnitsMaker("auto", True, X.dtype, names)(surveyed.features, surveyed.target)
    rng = np.random.default_rng(seed)
    fit_rows(source, units, Options(rank=k), float(len(y)), rng)
    return source.walks


def reads(X, fit):
    """Return the result of a fit, and its CPU time in products with one vector."""
    v = np.ones(X.shape[1], X.dtype)
    one = min(timed(lambda: X @ v)[1] for _ in range(5))
    model, seconds = timed(fit)
    return model, seconds / one


def timed(fn):
    start = time.process_time()
    value = fn()
    return value, time.process_time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--d", type=int, default=200)
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--float64", action="store_true")
    o = parser.parse_args()
    print("| rows | noise | passes | from scratch | NMSE | excess | reads |")
    print("|---|---|---|---|---|---|---|")
    for multiple in (30, 100):
        for noise in (0.0, 1.0):
            lines = []
            for seed in range(o.seeds):
                n = multiple * o.k * o.d
                data = make_second_order(
                    n, o.d, rank=o.k, noise=noise, n_test=4000, random_state=seed
                )
                kind = np.float64 if o.float64 else np.float32
                X, X_test = data.X.astype(kind), data.X_test.astype(kind)

                def fit(tol=1e-6, X=X, y=data.y, seed=seed):
                    return SecondOrderRegressor(o.k, alpha=0.0, tol=tol, random_state=seed).fit(
                        X, y
                    )

                model, cost = reads(X, fit)
                error = nmse(data.y_test, model.predict(X_test))
                best = nmse(data.y_test, fit(1e-10).predict(X_test))
                excess = error / best - 1 if noise else np.nan
                passes = model.history_[-1].passes
                cold = from_scratch(X, data.y, o.k, seed)
                lines.append((passes, cold, error, excess, cost))
            a = np.array(lines)
            print(
                f"| {multiple}kd | {noise:g} | {a[:, 0].max():.0f} | {a[:, 1].max():.0f} | "
                f"{a[:, 2].max():.0e} | {a[:, 3].max():+.1%} | {np.median(a[:, 4]):.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
