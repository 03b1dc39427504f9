"""How often 95% intervals cover the truth: n = 10kd rows, noise 1.

Prints, for each distribution, the share of new targets within their prediction interval
f ± 1.96·√(σ² + s²), the share of noiseless means within their confidence interval f ± 1.96·s, the
estimated noise, and the root mean square error of f with its estimate from s; the mean over seeds
and the worst seed. Run: python benchmarks/intervals.py [--seeds 5] [--form draws]
"""

import argparse
import time

import numpy as np

from quadlin.core.block import Block
from quadlin.core.chunks import MemorySource
from quadlin.core.model import predict
from quadlin.core.moments import moments_of
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.datasets import make_second_order
from quadlin.solve.fits.uncertainty import DENSE_LIMIT, uncertainty_of
from quadlin.solve.lowrank.polish import fit_rows
from quadlin.solve.lowrank.types import Options

KINDS = ("gaussian", "bernoulli", "mixed", "ar1")
NEW_ROWS, QUANTILE = 5000, 1.96


def coverage(kind, d, k, ratio, seed, limit):
    n = ratio * k * d
    data = make_second_order(
        n, d, rank=k, distribution=kind, noise=1.0, n_test=NEW_ROWS, random_state=seed
    )
    source, options = Rows.of(MemorySource(data.X, data.y)), Options(rank=k)
    features, target = moments_of(source)
    units = UnitsMaker("auto", True, data.X.dtype, [f"x{j}" for j in range(d)])(features, target)
    rng = np.random.default_rng(seed)
    start = time.perf_counter()
    solution, white = fit_rows(source, units, options, features.weight, rng)
    fitted = time.perf_counter()
    law = uncertainty_of(source, solution.model, units, options, white, rng, dense_limit=limit)
    measured = time.perf_counter()
    rows, scale = Block(data.X_test, units), units.target.scale
    f = units.target.mean + scale * predict(solution.model, rows)
    s, sigma = scale * law.predict_std(rows), scale * law.noise
    y_new = data.y_test + rng.standard_normal(NEW_ROWS)
    error = f - data.y_test
    return (
        np.mean(np.abs(f - y_new) < QUANTILE * np.sqrt(sigma**2 + s**2)),
        np.mean(np.abs(error) < QUANTILE * s),
        sigma,
        np.sqrt(np.mean(error**2)),
        np.sqrt(np.mean(s**2)),
        law.passes,
        (measured - fitted) / (fitted - start),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--ratio", type=int, default=10, help="rows per kd")
    parser.add_argument("--form", choices=["exact", "draws"], default="exact")
    a = parser.parse_args()
    limit = DENSE_LIMIT if a.form == "exact" else 0
    print(f"d = {a.features}, k = {a.rank}, n = {a.ratio}kd, noise 1, {a.seeds} seeds, {a.form}")
    print("| features | y in its 95% | worst seed | f in its 95% | noise | error of f | promised "
          "| passes | time / fit |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|")
    for kind in KINDS:
        table = np.array(
            [coverage(kind, a.features, a.rank, a.ratio, s, limit) for s in range(a.seeds)]
        )
        y, f, sigma, error, promised, passes, share = table.mean(axis=0)
        worst = table[np.argmax(np.abs(table[:, 0] - 0.95)), 0]
        print(
            f"| {kind} | {y:.1%} | {worst:.1%} | {f:.1%} | {sigma:.3f} | {error:.3f} "
            f"| {promised:.3f} | {passes:.0f} | {share:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
