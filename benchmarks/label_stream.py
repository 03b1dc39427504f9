"""The cost of seeing every row once: the log-loss of a stream of labels and that of a fit.

Each line is a kind of features and a size of the log-odds: the excess of the log-loss over that of
the truth, in units of dof/2N (1 for maximum likelihood), after N rows, for `fit` on all of them,
for `partial_fit` that keeps a first batch, and for one that keeps no rows. Given rank, no penalty.
Run: python benchmarks/label_stream.py [--seeds 2] [--rows 5000 20000 80000] [--kinds gaussian ...]
"""

import argparse

import numpy as np

from quadlin import SecondOrderClassifier
from quadlin.metrics import degrees_of_freedom

KINDS = ("gaussian", "bernoulli", "ar1:.5", "ar1:.9")
D, K, CALL, NEW_ROWS = 20, 2, 2500, 50_000
SIZES = (1.0, 2.0)


def drawn(kind, size, n, seed):
    """Return rows, log-odds and labels."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, D))
    name, _, rho = kind.partition(":")
    if name == "ar1":
        for j in range(1, D):
            X[:, j] = float(rho) * X[:, j - 1] + (1 - float(rho) ** 2) ** 0.5 * X[:, j]
    if name == "bernoulli":
        X = (X > 0.8).astype(float)
    Z = (X - X.mean(0)) / X.std(0)
    U = np.linalg.qr(rng.standard_normal((D, K)))[0]
    f = size * (Z @ rng.standard_normal(D) / D**0.5 + (Z @ U) ** 2 @ [1.0, -1.0])
    return X, f, (rng.uniform(size=n) < 1 / (1 + np.exp(-f))).astype(int)


def excess(model, X, f):
    g, p = model.decision_function(X), 1 / (1 + np.exp(-f))
    return np.mean(np.logaddexp(0, g) - p * g - np.logaddexp(0, f) + p * f)


def compared(kind, size, rows, seed):
    """Return the excess of the three after each number of rows, and where the mean began."""
    X, f, y = drawn(kind, size, max(rows) + NEW_ROWS, seed)
    new, dof, given = (
        slice(max(rows), None),
        degrees_of_freedom(D, K),
        {"alpha": 0.0, "pairs": None},
    )
    streams = [
        SecondOrderClassifier(K, **given, max_memory=memory, random_state=seed)
        for memory in ("auto", "minimal")
    ]
    done, table = 0, []
    for n in rows:
        for start in range(done, n, CALL):
            part = slice(start, min(n, start + CALL))
            for model in streams:
                model.partial_fit(X[part], y[part], classes=[0, 1])
        done = n
        fitted = SecondOrderClassifier(K, **given, random_state=seed).fit(X[:n], y[:n])
        table.append([excess(m, X[new], f[new]) * 2 * n / dof for m in (fitted, *streams)])
    return np.array(table), streams[1].fitted_.stream.since / dof


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=[5000, 20_000, 80_000])
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    args = parser.parse_args()
    rows = sorted(args.rows)
    print("| features | size | " + " | ".join(f"N = {n:,}" for n in rows) + " | before the mean |")
    print("|---|---|" + "---|" * (len(rows) + 1))
    for kind in args.kinds:
        for size in SIZES:
            runs = [compared(kind, size, rows, seed) for seed in range(args.seeds)]
            means = np.mean([table for table, _ in runs], axis=0)
            cells = [", ".join(f"{value:.2f}" for value in line) for line in means]
            before = np.mean([since for _, since in runs])
            print(f"| {kind} | {size:g} | {' | '.join(cells)} | {before:.0f} |", flush=True)


if __name__ == "__main__":
    main()
