"""How many rank-one measurements MatrixSensing needs, as a map over rank and n/unknowns.

No noise; M of both signs, 30 × 30, or 30 × 20 for pairs. Recovered means a relative error of at
most 1e-6. Run: python benchmarks/sensing.py [--trials 5] [--picture docs/sensing.png]
"""

import argparse
import time
import warnings

import numpy as np

from quadlin import MatrixSensing
from quadlin.metrics import degrees_of_freedom

D, E = 30, 20
RANKS = (1, 2, 3, 4, 5)
RATIOS = (1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
VECTORS = {
    "Gaussian": lambda rng, n, d: rng.standard_normal((n, d)),
    "±1": lambda rng, n, d: rng.choice([-1.0, 1.0], size=(n, d)),
    "0/1, 30% ones": lambda rng, n, d: np.where(rng.uniform(size=(n, d)) < 0.3, 1.0, 0.0),
}


def orthonormal(rng, d, k):
    return np.linalg.qr(rng.standard_normal((d, k)))[0]


def symmetric(vectors, k, ratio, seed):
    rng = np.random.default_rng(seed)
    U = orthonormal(rng, D, k)
    M = U * np.where(np.arange(k) % 2, -1.0, 1.0) @ U.T
    n = int(np.ceil(ratio * degrees_of_freedom(D, k, linear=False, intercept=False)))
    A = VECTORS[vectors](rng, n, D)
    return A, np.sum((A @ M) * A, axis=1), M


def pairs(vectors, k, ratio, seed):
    rng = np.random.default_rng(seed)
    M = orthonormal(rng, D, k) @ orthonormal(rng, E, k).T
    n = int(np.ceil(ratio * k * (D + E - k)))
    A, B = VECTORS[vectors](rng, n, D), VECTORS[vectors](rng, n, E)
    return (A, B), np.sum((A @ M) * B, axis=1), M


PANELS = [
    *((f"aᵀMa, {name}", symmetric, name) for name in VECTORS),
    ("aᵀMb, Gaussian", pairs, "Gaussian"),
    ("aᵀMb, 0/1, 30% ones", pairs, "0/1, 30% ones"),
]


def success(draw, vectors, k, ratio, trials):
    count = 0
    for seed in range(trials):
        rows, y, M = draw(vectors, k, ratio, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = MatrixSensing(rank=k, random_state=seed).fit(rows, y)
        count += np.linalg.norm(model.matrix_ - M) <= 1e-6 * np.linalg.norm(M)
    return count / trials


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--picture", default="", help="also draw this PNG")
    options = parser.parse_args()
    maps = {}
    for title, draw, vectors in PANELS:
        start = time.perf_counter()
        print(f"\n{title}\n\n| rank | " + " | ".join(f"{r:g}" for r in RATIOS) + " |")
        print("|---" * (len(RATIOS) + 1) + "|")
        for k in RANKS:
            shares = [success(draw, vectors, k, ratio, options.trials) for ratio in RATIOS]
            maps.setdefault(title, []).append(shares)
            print(f"| {k} | " + " | ".join(f"{s:.0%}" for s in shares) + " |", flush=True)
        print(f"\n{time.perf_counter() - start:.0f} s")
    if options.picture:
        draw_maps(maps, options.picture)


def draw_maps(maps, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 2.6), layout="constrained")
    panels = figure.subplots(1, len(maps), sharey=True)
    for axes, (title, shares) in zip(panels, maps.items(), strict=True):
        image = axes.imshow(shares, vmin=0, vmax=1, cmap="gray", origin="lower", aspect="auto")
        axes.set_title(title, fontsize=9)
        axes.set_xticks(range(len(RATIOS)), [f"{r:g}" for r in RATIOS], fontsize=7)
        axes.set_yticks(range(len(RANKS)), RANKS)
        axes.set_xlabel("n / unknowns", fontsize=9)
    panels[0].set_ylabel("rank")
    figure.colorbar(image, ax=panels, label="recovered", ticks=[0, 0.5, 1])
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
