"""How often rank="auto" finds the true rank, compared with other criteria.

Signed M of rank k = 1…8, w and b unknown, noise of a tenth of the signal's variance, n = 10kd rows.
"auto" is `HeldOut.rank`: the spectrum test followed by hold-out. The others share one series of
warm fits of decreasing rank, from a generous one: "edge" counts eigenvalues above twice the noise
edge in the fit of generous rank, "BIC" is with the exact dof, "hold-out" takes the smallest error
on rows held out and "1 SE" the smallest rank within one standard error of it.

Run: OMP_NUM_THREADS=1 python benchmarks/rank.py [--seeds 5] [--features 40] [--rows 10]
"""

import argparse
from collections import Counter
from math import sqrt

import numpy as np

from quadlin.core.chunks import MemorySource
from quadlin.core.moments import moments_of
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.datasets import make_second_order
from quadlin.metrics import degrees_of_freedom
from quadlin.solve.choose.rank import HeldOut, as_good
from quadlin.solve.fits.grid import Path, squared_errors
from quadlin.solve.lowrank.tangent import Coordinates
from quadlin.solve.lowrank.types import Options

PARAMETERS = {"gaussian": None, "bernoulli": 0.3, "mixed": None, "ar1": 0.7}
RANKS = range(1, 9)
ALPHA = (0.0, 0.0)


def problem(kind, n, d, k, seed):
    parameter = PARAMETERS[kind]
    data = make_second_order(
        n, d, rank=k, distribution=kind, parameter=parameter, random_state=seed
    )
    noise = sqrt(data.y.var() / 10) * np.random.default_rng([seed, 1]).standard_normal(n)
    source = Rows.of(MemorySource(data.X, data.y + noise))
    names = [f"x{j}" for j in range(d)]
    return source, UnitsMaker("auto", True, data.X.dtype, names)(*moments_of(source))


def walk(source, units, n, most):
    """Return the fits of rank `most` … 1, each from the one above."""
    path = Path(source, units, Options(rank=1, tol=1e-3), n, float(n), seed=0)
    return {k: path.model(k, ALPHA) for k in range(most, 0, -1)}, path.whitener(ALPHA)


def others(source, units, n, d, seed):
    most = min(d, 16, max(1, n // (3 * d)))
    fits, white = walk(source, units, n, most)
    losses = {k: squared_errors(model, units, source)[0].mean() for k, model in fits.items()}
    edge = sqrt(losses[most] * n / (n - degrees_of_freedom(d, most)) * d / n)
    yield (
        "edge",
        int(
            (
                np.abs(Coordinates(units, Options(rank=most), white).of(fits[most])[-1]) > 2 * edge
            ).sum()
        ),
    )
    bic = {k: n * np.log(v) + degrees_of_freedom(d, k) * np.log(n) for k, v in losses.items()}
    yield "BIC", min(bic, key=bic.get)
    mask = np.random.default_rng(seed).random(n) < 0.2
    fits, _ = walk(source.reweighted((~mask).astype(float)), units, int((~mask).sum()), most)
    test = source.reweighted(mask.astype(float))
    errors = {k: squared_errors(model, units, test)[0] for k, model in fits.items()}
    best = min(errors, key=lambda k: errors[k] @ mask)
    yield "hold-out", best
    yield "1 SE", min(k for k in errors if as_good(errors[k], errors[best], mask.astype(float)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--features", type=int, default=40)
    parser.add_argument("--rows", type=float, default=10, help="n/(kd)")
    parser.add_argument("--auto-only", action="store_true")
    args = parser.parse_args()
    d = args.features
    for kind in PARAMETERS:
        right, wrong = Counter(), Counter()
        for k in RANKS:
            for seed in range(args.seeds):
                n = int(args.rows * k * d)
                source, units = problem(kind, n, d, k, 100 * k + seed)
                rng = np.random.default_rng(seed)
                chosen = HeldOut(source, units, Options(rank=1), float(n), rng).rank(ALPHA)
                right["auto"] += chosen == k
                wrong[chosen - k] += chosen != k
                if not args.auto_only:
                    for name, chosen in others(source, units, n, d, seed):
                        right[name] += chosen == k
        total = len(RANKS) * args.seeds
        shares = "  ".join(f"{name} {count / total:4.0%}" for name, count in right.items())
        misses = {gap: count for gap, count in sorted(wrong.items()) if count}
        print(
            f"{kind:10s} d = {d:3d}  n = {args.rows:g}kd  {shares}  auto − k: {misses}", flush=True
        )


if __name__ == "__main__":
    main()
