"""Excess risk with noise 1, relative to the Cramér–Rao bound σ²·dof/n: in batches and one pass.

The excess of a fit on its own rows should be 1; on new rows, any unbiased least squares has another
factor n/(n − dof − 1), because the rows themselves are random. Both are printed.
Run: python benchmarks/noise.py [--seeds 5] [--batch] [--stream]
"""

import argparse
import warnings

import numpy as np

from quadlin import SecondOrderRegressor
from quadlin.datasets import make_second_order
from quadlin.metrics import degrees_of_freedom

D, K, STREAM = 100, 3, 180_000


def batch(seeds):
    dof = degrees_of_freedom(D, K)
    print("| features | rows | on its own rows | on new rows | n/(n − dof − 1) |")
    print("|---|---|---|---|---|")
    for kind in ("gaussian", "truncated", "ar1"):
        for multiple in (4, 10, 30, 100):
            n = multiple * K * D
            seen, new = [], []
            for seed in range(seeds):
                data = make_second_order(
                    n, D, rank=K, distribution=kind, n_test=5000, random_state=seed
                )
                X, f = data.X, data.y
                y = f + np.random.default_rng(seed).standard_normal(n)
                model = SecondOrderRegressor(rank=K, random_state=0, alpha=0.0).fit(X, y)
                seen.append(np.mean((model.predict(X) - f) ** 2) * n / dof)
                new.append(np.mean((model.predict(data.X_test) - data.y_test) ** 2) * n / dof)
            print(
                f"| {kind} | {multiple}kd | {np.mean(seen):.2f} | {np.mean(new):.2f} | "
                f"{n / (n - dof - 1):.2f} |",
                flush=True,
            )


def too_high(seeds):
    rank = 3 * K
    dof, n = degrees_of_freedom(D, rank), 20 * K * D
    print(f"\n| rank {rank} for a true rank {K}, 20kd rows | on its own rows | on new rows |")
    print("|---|---|---|")
    for kind in ("gaussian", "truncated", "mixed"):
        seen, new = [], []
        for seed in range(seeds):
            data = make_second_order(
                n, D, rank=K, distribution=kind, n_test=5000, random_state=seed
            )
            y = data.y + np.random.default_rng(seed).standard_normal(n)
            model = SecondOrderRegressor(rank=rank, random_state=0, alpha=0.0).fit(data.X, y)
            seen.append(np.mean((model.predict(data.X) - data.y) ** 2) * n / dof)
            new.append(np.mean((model.predict(data.X_test) - data.y_test) ** 2) * n / dof)
        print(f"| {kind} | {np.mean(seen):.2f} | {np.mean(new):.2f} |", flush=True)


def stream(seeds):
    dof = degrees_of_freedom(D, K)
    print(f"\n| one pass of {STREAM:,} rows | whiten | excess / (σ²·dof/N), mean | most |")
    print("|---|---|---|---|")
    cases = [("gaussian", None, "auto"), ("bernoulli", None, "auto"), ("truncated", None, "auto")]
    cases += [("mixed", None, "auto"), ("ar1", 0.9, "full"), ("ar1", 0.9, "lowrank")]
    for kind, parameter, whiten in cases:
        ratios = []
        for seed in range(seeds):
            data = make_second_order(
                STREAM,
                D,
                rank=K,
                distribution=kind,
                parameter=parameter,
                noise=1.0,
                n_test=20_000,
                random_state=seed,
            )
            model = SecondOrderRegressor(rank=K, whiten=whiten, random_state=0, alpha=0.0)
            for part in np.array_split(np.arange(STREAM), 30):
                model.partial_fit(data.X[part], data.y[part])
            error = np.mean((model.predict(data.X_test) - data.y_test) ** 2)
            ratios.append(error * STREAM / dof)
        name = kind if parameter is None else f"{kind} {parameter}"
        print(f"| {name} | {whiten} | {np.mean(ratios):.2f} | {max(ratios):.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--batch", action="store_true", help="only the batch table")
    parser.add_argument("--stream", action="store_true", help="only the stream table")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.batch or not options.stream:
        batch(options.seeds)
        too_high(options.seeds)
    if options.stream or not options.batch:
        stream(options.seeds)


if __name__ == "__main__":
    main()
