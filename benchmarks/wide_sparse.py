"""A million one-hot columns: time per pass and peak memory of a fit of rank 8, for two sizes.

    python benchmarks/wide_sparse.py [--rows 1000000] [--columns 1000000] [--alpha 300] [--peer]
                                     [--default] [--parts] [--no-fields]

Every row has a one in each of `per-row` fields, whose levels follow Zipf's law; the target is that
of a factorization machine of rank 2 with noise. Prints one line per size: the given one, and half
of its rows with half of its columns. `--peer` adds, for the given size: the CPU time of a fit as a
user calls it, the distance of its objective from that of a fit of four times `reference` sweeps
(400), how well both predict new rows, the same of the shortest fits that end within 1% of the
second (by `tol`, for five seeds), and the time of ten epochs of xLearn on the same rows.
`--default` adds the CPU time of a fit that chooses its rank and penalties, and the best of some
ridge regressions. `--parts` prints the CPU time of a fit, and what standard errors add to it; and
for as many rows of a fortieth of the columns, which are fitted by passes over all rows, the time of
whitening and of annealing. With `--no-fields`, entries of a row may be in any column.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings

import numpy as np
from scipy.sparse import csr_array

from quadlin import FactorizationMachineRegressor

TOLERANCES = 0.006 * 1.25 ** np.arange(9, -1, -1)  # fractions of the objective that may be left
SEEDS = 5  # the start is that of a random sample, and decides how many steps follow


def table(n, d, per_row, seed=0, fields=True):
    """One-hot rows: `per_row` fields of d/per_row levels each, or entries in any of d columns."""
    rng = np.random.default_rng(seed)
    levels = d // per_row if fields else d
    share = 1 / np.arange(1, levels + 1)
    edges = np.cumsum(share / share.sum())
    codes = np.searchsorted(edges, rng.random((n, per_row), dtype=np.float32)).clip(0, levels - 1)
    indices = (codes + fields * levels * np.arange(per_row)).astype(np.int32)
    v = rng.standard_normal((d, 2)).astype(np.float32) / per_row**0.5
    w = rng.standard_normal(d).astype(np.float32)
    y = np.empty(n)
    for start in range(0, n, 1 << 16):
        part = indices[start : start + (1 << 16)]
        sums = v[part].sum(axis=1)
        y[start : start + len(part)] = w[part].sum(axis=1) + sums[:, 0] ** 2 - sums[:, 1] ** 2
    y += rng.standard_normal(n)
    indptr = np.arange(0, n * per_row + 1, per_row, dtype=np.int32)
    data = np.ones(n * per_row, dtype=np.float32)
    X = csr_array((data, indices.reshape(-1), indptr), shape=(n, d - d % per_row if fields else d))
    X.sum_duplicates()
    return X, y


def default(n, d, per_row, fields):
    from sklearn.linear_model import Ridge

    X, y = table(2 * n, d, per_row, fields=fields)
    X, y, X_test, y_test = X[:n], y[:n], X[n:], y[n:]
    warnings.simplefilter("ignore")
    start = time.process_time()
    model = FactorizationMachineRegressor(random_state=0).fit(X, y)
    seconds = time.process_time() - start
    ridge = [Ridge(a, solver="sparse_cg").fit(X, y).score(X_test, y_test) for a in (1, 3, 10)]
    print(
        f"{n:,} × {d:,}, everything chosen: {seconds:.1f} CPU s, {model.history_[-1].passes} "
        f"passes, {model.status_.name}, rank {model.rank_}, R² of new rows "
        f"{model.score(X_test, y_test):.4f}, of ridge regression {max(ridge):.4f}"
    )


def one(n, d, per_row, rank, steps, alpha):
    X, y = table(n, d, per_row)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    model = FactorizationMachineRegressor(rank, alpha=alpha, max_iter=steps, random_state=0)
    start = time.perf_counter()
    model.fit(X, y)
    seconds = time.perf_counter() - start
    passes = model.history_[-1].passes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    r2 = 1 - model.history_[-1].loss / model.history_[0].loss
    print(
        f"{n:,} rows × {X.shape[1]:,} columns, {X.nnz:,} entries: {seconds:.0f} s, "
        f"{passes} passes, {1e9 * seconds / passes / X.nnz:.0f} ns an entry and pass, "
        f"peak {peak:.0f} MB "
        f"({before:.0f} MB with the table alone), R² on its rows {r2:.3f}, {model.status_.name}",
        flush=True,
    )


def ten_epochs_of_xlearn(X, y, rank):
    """Return the CPU seconds of ten epochs: those of eleven less those of one."""
    import xlearn
    from sklearn.datasets import dump_svmlight_file

    os.environ.setdefault("USER", "peer")  # it names a file after it
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows")
        dump_svmlight_file(X, y, path)
        seconds = []
        for epochs in (1, 1, 11):  # the first one also keeps a binary copy
            model = xlearn.create_fm()
            model.setQuiet()
            model.disableNorm()
            model.disableEarlyStop()
            model.setTrain(path)
            options = {"task": "reg", "k": rank, "lambda": 1e-5, "nthread": 1}
            start = time.process_time()
            model.fit({**options, "opt": "sgd", "lr": 0.01, "epoch": epochs}, path + ".model")
            seconds.append(time.process_time() - start)
    return seconds[2] - seconds[1]


def one_fit(X, y, rank, alpha, tol, steps, seed=0, **options):
    """Return a fit and its CPU seconds."""
    model = FactorizationMachineRegressor(
        rank, alpha=alpha, pairs=None, tol=tol, max_iter=steps, random_state=seed, **options
    )
    start = time.process_time()
    return model.fit(X, y), time.process_time() - start


def shortest(X, y, rank, alpha, most, seed):
    """Return the first fit whose objective is at most `most`, its CPU seconds and its `tol`."""
    for tol in TOLERANCES:
        model, seconds = one_fit(X, y, rank, alpha, tol, 50, seed)
        if model.history_[-1].loss <= most:
            break
    return model, seconds, tol


def beside_peer(n, d, per_row, rank, alpha, reference):
    X, y = table(2 * n, d, per_row)
    X, y, X_test, y_test = X[:n], y[:n], X[n:], y[n:]
    warnings.simplefilter("ignore")

    def show(title, model, seconds):
        print(
            f"{n:,} × {X.shape[1]:,}, alpha {alpha:g}, {title}: {seconds:.1f} CPU s, "
            f"{model.history_[-1].passes} passes, {model.status_.name}, objective "
            f"{model.history_[-1].loss / np.var(y):.5f} of the variance, R² of new rows "
            f"{model.score(X_test, y_test):.4f}",
            flush=True,
        )

    default, seconds = one_fit(X, y, rank, alpha, 1e-6, 50)
    show("tol 1e-06", default, seconds)
    best, seconds = one_fit(X, y, rank, alpha, 1e-9, reference)
    show("tol 1e-09", best, seconds)
    optimum = best.history_[-1].loss
    print(f"the first objective is {default.history_[-1].loss / optimum - 1:.2%} above the second")
    times = []
    for seed in range(SEEDS):
        near, seconds, tol = shortest(X, y, rank, alpha, 1.01 * optimum, seed)
        times.append(seconds)
        above = near.history_[-1].loss / optimum - 1
        show(f"seed {seed}, tol {tol:.3g}, to within {above:.2%}", near, seconds)
    print(f"median of {SEEDS} seeds: {np.median(times):.1f} CPU s")
    print(f"xLearn: {ten_epochs_of_xlearn(X, y, rank):.1f} CPU s for ten epochs")


def parts(n, d, per_row, rank, alpha):
    from quadlin.solve.lowrank import polish

    warnings.simplefilter("ignore")
    X, y = table(n, d, per_row)
    _, seconds = one_fit(X, y, rank, alpha, 1e-6, 50)
    model, with_errors = one_fit(X, y, rank, alpha, 1e-6, 50, uncertainty=True)
    print(
        f"{n:,} × {X.shape[1]:,}, alpha {alpha:g}: {seconds:.2f} CPU s, with standard errors "
        f"{with_errors:.2f}; {model.fitted_.law.passes} of {model.history_[-1].passes} passes are "
        "for them",
        flush=True,
    )
    spent = {}

    def timed(name):
        run = getattr(polish, name)

        def inner(*args, **kwargs):
            start = time.process_time()
            try:
                return run(*args, **kwargs)
            finally:
                spent[name] = spent.get(name, 0) + time.process_time() - start

        setattr(polish, name, inner)

    for name in ("annealed", "whitener"):
        timed(name)
    X, y = table(n, d // 40, per_row)
    for whiten in ("auto", "lowrank"):
        spent.clear()
        model, seconds = one_fit(X, y, rank, alpha, 1e-6, 50, whiten=whiten)
        print(
            f"{n:,} × {X.shape[1]:,}, whiten {whiten!r}: {seconds:.2f} CPU s, of which whitening "
            f"{spent.get('whitener', 0):.2f} and annealing {spent.get('annealed', 0):.2f}; "
            f"{model.history_[-1].passes} passes, {model.status_.name}",
            flush=True,
        )


def sizes_of(options):
    return options.rows, options.columns, options.per_row, options.rank


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=1_000_000)
    parser.add_argument("--per-row", type=int, default=20)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--alpha", type=float, default=300.0)
    parser.add_argument("--peer", action="store_true", help="beside an epoch of xLearn")
    parser.add_argument("--reference", type=int, default=100, help="steps of four sweeps")
    parser.add_argument("--default", action="store_true", help="rank and penalties are chosen")
    parser.add_argument("--parts", action="store_true", help="standard errors and annealing")
    parser.add_argument("--no-fields", action="store_true", help="entries in any column")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        one(*sizes_of(options), options.steps, options.alpha)
        return
    if options.default:
        default(options.rows, options.columns, options.per_row, not options.no_fields)
        return
    if options.parts:
        parts(*sizes_of(options), options.alpha)
        return
    if options.peer:
        beside_peer(*sizes_of(options), options.alpha, options.reference)
        return
    for part in (2, 1):  # each in a process of its own, for its own peak
        sizes = ["--rows", options.rows // part, "--columns", options.columns // part]
        same = ["--per-row", options.per_row, "--rank", options.rank, "--steps", options.steps]
        same += ["--alpha", options.alpha]
        command = [sys.executable, "-W", "ignore", __file__, "--child", *map(str, sizes + same)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
