"""What it costs to see every row once: errors of `partial_fit` relative to the statistical error.

    python benchmarks/streams.py [--seeds 3] [--rows 10000 40000 160000]

Prints the excess risk in units of σ²·dof/N after N rows, with noise of half the standard
deviation of the signal, for a stream that keeps a first batch and for one that keeps no rows
(`max_memory="minimal"`); and the exponent of N in the error of the latter, −½ in the paper.
d = 20, k = 2, no penalty.
"""

import argparse
import warnings

import numpy as np

from quadlin import SecondOrderRegressor
from quadlin.datasets import make_second_order
from quadlin.metrics import degrees_of_freedom

D, K, CALL = 20, 2, 2500
KINDS = ("gaussian", "truncated", "bernoulli", "uniform", "mixed", "ar1:.3", "ar1:.5", "ar1:.9")


def target_excess(kind, rows, memory, seed):
    """Return the excess risk over σ²·dof/N after each number of rows."""
    name, _, parameter = kind.partition(":")
    options = {"distribution": name, "parameter": float(parameter) if parameter else None}
    data = make_second_order(rows[-1], D, rank=K, n_test=3000, random_state=seed, **options)
    sigma = 0.5 * np.std(data.y)
    y = data.y + sigma * np.random.default_rng(1000 + seed).standard_normal(len(data.y))
    model = SecondOrderRegressor(K, alpha=0.0, max_memory=memory, random_state=seed)
    ratios = []
    for start, stop in zip((0, *rows), rows, strict=False):
        for part in np.array_split(np.arange(start, stop), -(-(stop - start) // CALL)):
            model.partial_fit(data.X[part], y[part])
        error = np.mean((model.predict(data.X_test) - data.y_test) ** 2)
        ratios.append(error * stop / (sigma**2 * degrees_of_freedom(D, K)))
    return ratios


def targets(o):
    rows = sorted(o.rows)
    heads = " | ".join(f"N = {n:,}: first batch, no rows kept" for n in rows)
    print(f"| features | {heads} | exponent |\n" + "|---" * (len(rows) + 2) + "|", flush=True)
    for kind in o.kinds:
        both = [
            np.mean([target_excess(kind, rows, memory, s) for s in range(o.seeds)], axis=0)
            for memory in ("auto", "minimal")
        ]
        cells = " | ".join(f"{a:.2f}, {b:.2f}" for a, b in zip(*both, strict=True))
        slope = np.polyfit(np.log(rows), np.log(both[1] / rows) / 2, min(1, len(rows) - 1))[0]
        print(f"| {kind} | {cells} | {slope:+.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 40_000, 160_000])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    o = parser.parse_args()
    warnings.simplefilter("ignore")
    targets(o)


if __name__ == "__main__":
    main()
