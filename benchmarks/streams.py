"""What it costs to see every row once: errors of `partial_fit` relative to the statistical error.

    python benchmarks/streams.py [--seeds 3] [--rows 10000 40000 160000] [--d 20] [--k 2]

Prints the excess risk in units of σ²·dof/N after N rows, with noise of half the standard
deviation of the signal and without a penalty, for a stream that keeps a first batch and for one
that keeps no rows (`max_memory="minimal"`): the mean over the seeds, and after the most rows the
smallest and the largest; and the exponent of N in the error of the latter, −½ in the paper.
"""

import argparse
import warnings

import numpy as np

from quadlin import SecondOrderRegressor
from quadlin.datasets import make_second_order
from quadlin.metrics import degrees_of_freedom

CALL = 2500  # rows
KINDS = (
    "gaussian",
    "truncated",
    "bernoulli",
    "uniform",
    "mixed",
    "ar1:.3",
    "ar1:.5",
    "ar1:.7",
    "ar1:.9",
)


def target_excess(kind, rows, d, k, memory, seed):
    """Return the excess risk over σ²·dof/N after each number of rows."""
    name, _, parameter = kind.partition(":")
    options = {"distribution": name, "parameter": float(parameter) if parameter else None}
    data = make_second_order(rows[-1], d, rank=k, n_test=3000, random_state=seed, **options)
    sigma = 0.5 * np.std(data.y)
    y = data.y + sigma * np.random.default_rng(1000 + seed).standard_normal(len(data.y))
    model = SecondOrderRegressor(k, alpha=0.0, max_memory=memory, random_state=seed)
    ratios = []
    for start, stop in zip((0, *rows), rows, strict=False):
        for part in np.array_split(np.arange(start, stop), -(-(stop - start) // CALL)):
            model.partial_fit(data.X[part], y[part])
        error = np.mean((model.predict(data.X_test) - data.y_test) ** 2)
        ratios.append(error * stop / (sigma**2 * degrees_of_freedom(d, k)))
    return ratios


def targets(o):
    rows = sorted(o.rows)
    heads = " | ".join(f"N = {n:,}: first batch, no rows kept" for n in rows)
    columns = [heads, "first batch, from to", "no rows kept, from to", "exponent"]
    print(f"| features | {' | '.join(columns)} |\n" + "|---" * (len(rows) + 4) + "|", flush=True)
    for kind in o.kinds:
        every = [
            [target_excess(kind, rows, o.d, o.k, memory, seed) for seed in range(o.seeds)]
            for memory in ("auto", "minimal")
        ]
        both = np.mean(every, axis=1)
        cells = [f"{a:.2f}, {b:.2f}" for a, b in zip(*both, strict=True)]
        last = np.array(every)[:, :, -1]
        cells += [f"{ratios.min():.1f} to {ratios.max():.1f}" for ratios in last]
        slope = np.polyfit(np.log(rows), np.log(both[1] / rows) / 2, min(1, len(rows) - 1))[0]
        print(f"| {kind} | {' | '.join(cells)} | {slope:+.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 40_000, 160_000])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--d", type=int, default=20)
    parser.add_argument("--k", type=int, default=2)
    o = parser.parse_args()
    warnings.simplefilter("ignore")
    targets(o)


if __name__ == "__main__":
    main()
