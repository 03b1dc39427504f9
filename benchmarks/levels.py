"""How the penalty scale of one-hot columns matters: Zipf's law, few rows, noise.

Two categorical columns of 60 levels, the k-th seen in proportion to 1/k, and four numbers; M of
rank 2 over all of them. The error on new rows without noise, at the best of a grid of penalties,
with ρ² = σ^(−2p): p = 0 is the ridge on standardised columns, p = 1 the one on raw 0/1 columns.

    python benchmarks/levels.py

prints one line per table: rows, seed, and for each p the error (share of the variance) and penalty.
"""

import argparse
from dataclasses import replace

import numpy as np

from quadlin import SecondOrderRegressor
from quadlin.core import units as standardisation
from quadlin.core.units import units_of

LEVELS, NUMBERS, RANK, NOISE = 60, 4, 2, 2.0
ROWS, NEW_ROWS, SEEDS = (600, 2000), 4000, 3
POWERS = (0.0, 0.5, 1.0)
PENALTIES = 10.0 ** np.arange(-4, 2.6, 0.5)


def table(n, seed):
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, LEVELS + 1)
    a, b = rng.choice(LEVELS, (2, n), p=share / share.sum())
    numbers = rng.standard_normal((n, NUMBERS))
    w = rng.standard_normal((2, LEVELS))
    va, vb = rng.standard_normal((2, LEVELS, RANK))
    signs = np.array([1.0, -1.0])
    F = va[a] + vb[b] + numbers @ rng.standard_normal((NUMBERS, RANK))
    f = w[0, a] + w[1, b] + (F**2 - va[a] ** 2 - vb[b] ** 2) @ signs
    X = np.column_stack([np.eye(LEVELS)[a], np.eye(LEVELS)[b], numbers])
    return X, f, f + NOISE * rng.standard_normal(n)


def with_power(power):
    """Let the penalty_scale of one-hot columns be ρ² = σ^(−2·power) while units are made."""

    def units(*args):
        made = units_of(*args)
        return replace(made, penalty_scale=made.penalty_scale ** (2 * power))

    standardisation.units_of = units


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    seeds = parser.parse_args().seeds
    for n in ROWS:
        for seed in range(seeds):
            X, f, y = table(n + NEW_ROWS, seed)
            columns = []
            for power in POWERS:
                with_power(power)
                errors = []
                for alpha in PENALTIES:
                    model = SecondOrderRegressor(RANK, alpha=alpha, random_state=0)
                    new = model.fit(X[:n], y[:n]).predict(X[n:]) - f[n:]
                    errors.append((float(np.mean(new**2) / np.var(f[n:])), alpha))
                error, alpha = min(errors)
                columns.append(f"p = {power}: {error:.4f} (alpha {alpha:.2g})")
            print(f"{n} rows, seed {seed}:  " + "   ".join(columns), flush=True)


if __name__ == "__main__":
    main()
