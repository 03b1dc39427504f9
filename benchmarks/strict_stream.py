"""The cost of keeping no rows: the excess risk of streams with and without a first batch.

Each line is a kind of features, independent or autoregressive (ar1:ρ): the excess risk in units of
σ²·dof/N after N rows, with noise of half the standard deviation of the signal, for
max_memory="auto" and "minimal"; the exponent of N in the root mean squared error of the strict
stream, which is −½ in the paper; the rows per parameter before its steps are averaged; and, without
noise, the factor of its root mean squared error per batch.
Run: python benchmarks/strict_stream.py [--seeds 3] [--d 20 --k 2] [--rows 10000 40000 160000]
"""

import argparse

import numpy as np

from quadlin import SecondOrderRegressor
from quadlin.datasets import make_second_order
from quadlin.metrics import degrees_of_freedom

KINDS = ("gaussian", "truncated", "bernoulli", "uniform", "mixed", "ar1:.3", "ar1:.5", "ar1:.9")
NOISE = 0.5  # of the standard deviation of the signal
CALL = 5000  # rows


def drawn(kind, args, seed):
    """Return rows, targets without noise, rows and targets to test with."""
    distribution, _, parameter = kind.partition(":")
    data = make_second_order(
        max(args.rows),
        args.d,
        rank=args.k,
        distribution=distribution,
        parameter=float(parameter) if parameter else None,
        n_test=3000,
        random_state=seed,
    )
    return data.X, data.y, data.X_test, data.y_test


def excesses(kind, args, memory, seed):
    """Return the excess risk over σ²·dof/N after each number of rows, and the model."""
    X, y, X_test, y_test = drawn(kind, args, seed)
    sigma = NOISE * np.std(y)
    y = y + sigma * np.random.default_rng(1000 + seed).standard_normal(len(y))
    model = SecondOrderRegressor(args.k, alpha=0.0, max_memory=memory, random_state=seed)
    ratios, done = [], 0
    for rows in sorted(args.rows):
        for start in range(done, rows, CALL):
            stop = min(rows, start + CALL)
            model.partial_fit(X[start:stop], y[start:stop])
        done = rows
        error = np.mean((model.predict(X_test) - y_test) ** 2)
        ratios.append(error * rows / (sigma**2 * degrees_of_freedom(args.d, args.k)))
    return ratios, model


def contraction(kind, args, seed):
    """Return the median factor of the root mean squared error per batch, without noise."""
    X, y, _, _ = drawn(kind, args, seed)
    n = min(len(y), 400 * degrees_of_freedom(args.d, args.k))
    model = SecondOrderRegressor(args.k, max_memory="minimal", random_state=seed)
    losses = np.array([record.loss for record in model.partial_fit(X[:n], y[:n]).history_])
    losses = losses[(losses < 0.1 * losses[0]) & (losses > 1e-18 * losses[0])]
    return float(np.median(np.sqrt(losses[1:] / losses[:-1]))) if len(losses) > 2 else np.nan


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--d", type=int, default=20)
    parser.add_argument("--k", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 40_000, 160_000])
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    args = parser.parse_args()
    dof = degrees_of_freedom(args.d, args.k)
    sizes = sorted(args.rows)
    print("kind | " + " | ".join(f"N = {n:,}: auto, minimal" for n in sizes), end="")
    print(" | exponent | rows per parameter before the mean | contraction per batch")
    for kind in args.kinds:
        auto, strict = (
            [excesses(kind, args, memory, seed) for seed in range(args.seeds)]
            for memory in ("auto", "minimal")
        )
        means = [np.mean([ratios for ratios, _ in runs], axis=0) for runs in (auto, strict)]
        cells = [f"{a:.2f}, {b:.2f}" for a, b in zip(*means, strict=True)]
        error = np.sqrt(means[1] / np.array(sizes))
        slope = np.polyfit(np.log(sizes), np.log(error), 1)[0] if len(sizes) > 1 else np.nan
        before = np.mean([model.fitted_.stream.since for _, model in strict]) / dof
        factor = np.mean([contraction(kind, args, seed) for seed in range(args.seeds)])
        print(
            kind, *cells, f"{slope:+.2f}", f"{before:.0f}", f"{factor:.2f}", sep=" | ", flush=True
        )


if __name__ == "__main__":
    main()
