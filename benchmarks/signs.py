"""How often small dense problems without squares are solved: by restarts, by changed signs, or not.

Features are 0/1 or Gaussian and none has a diagonal, so M is known up to its diagonal. Factors are
normal and the signs of the k components are drawn: eigenvalues are far from equal, unlike those of
the library's own generator.

Run: OMP_NUM_THREADS=1 python benchmarks/signs.py [--seeds 40]
"""

import argparse
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from quadlin import FactorizationMachineRegressor
from quadlin.metrics import nmse
from quadlin.solve.lowrank import polish

CASES = [  # features, rank, rows, kind
    (6, 2, 600, "0/1"),
    (8, 2, 1000, "0/1"),
    (8, 3, 1000, "0/1"),
    (10, 4, 2000, "0/1"),
    (12, 3, 2000, "0/1"),
    (16, 6, 3000, "0/1"),
    (20, 3, 2000, "0/1"),
    (30, 8, 6000, "0/1"),
    (8, 2, 1000, "Gaussian"),
    (12, 3, 2000, "Gaussian"),
    (16, 6, 3000, "Gaussian"),
]
EXACT = 1e-8


def drawn(d: int, k: int, n: int, kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = (rng.random((n, d)) < 0.4) * 1.0 if kind == "0/1" else rng.standard_normal((n, d))
    V, signs = rng.standard_normal((d, k)), rng.choice([-1.0, 1.0], k)
    squares = X**2 @ (V**2 @ signs)
    return X, 1 + X @ rng.standard_normal(d) + (X @ V) ** 2 @ signs - squares


def exact(case: tuple[int, int, int, str], seeds: int, few: int, flips: int) -> tuple[int, float]:
    """Return how many draws were solved, and the passes of a fit."""
    polish.FEW, polish.FLIPS, recovered, passes = few, flips, 0, 0
    for seed in range(seeds):
        X, y = drawn(*case, seed)
        model = FactorizationMachineRegressor(rank=case[1], random_state=0, alpha=0.0).fit(X, y)
        recovered += nmse(y, model.predict(X)) <= EXACT
        passes += model.history_[-1].passes
    return recovered, passes / seeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=40)
    seeds = parser.parse_args().seeds
    warnings.simplefilter("ignore", ConvergenceWarning)
    few, flips = polish.FEW, polish.FLIPS
    ways = [(few, flips), (0, flips), (0, 0)]
    print("features | d | k | rows | exact | passes | one start | passes | no flips | passes")
    for case in CASES:
        d, k, n, kind = case
        cells = [
            f"{recovered} of {seeds} | {passes:.0f}"
            for recovered, passes in (exact(case, seeds, *way) for way in ways)
        ]
        print(f"{kind} | {d} | {k} | {n} | {' | '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
