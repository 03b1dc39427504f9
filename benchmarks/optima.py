"""How often a fit ends above the best optimum that another optimiser finds from random starts.

Small noisy problems: 3 to 20 features (26 to 40 with `--wide`), fitted ranks 1 to 4 (the true rank
is drawn as well, so it is often another), half with squares (Gaussian features) and half without
(0/1 features, or Gaussian ones with `diagonal="zero"`). The other optimiser is scipy's L-BFGS-B on
the factors, M = L diag(±1) Lᵀ with w and c beside it, from 20 random starts with random signs.

Run: OMP_NUM_THREADS=1 python benchmarks/optima.py [--problems 204] [--wide] [--jobs 16]
"""

import argparse
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning

from quadlin import SecondOrderRegressor

STARTS = 20
LEVELS = (0.001, 0.1)  # what counts as worse, as a share of the best objective


@dataclass(frozen=True)
class Drawn:
    X: np.ndarray
    y: np.ndarray
    rank: int
    true_rank: int
    squares: bool  # whether the diagonal of M is modelled


@dataclass(frozen=True)
class Outcome:
    problem: Drawn
    excess: float  # the objective over the best one of the other optimiser, less 1
    passes: int


def drawn(seed: int, wide: bool = False) -> Drawn:
    rng = np.random.default_rng(seed)
    d = int(rng.integers(26, 41) if wide else rng.integers(3, 21))
    true_rank, squares = int(rng.integers(1, 5)), seed % 2 == 0
    rank = int(rng.integers(1, min(4, d - 1) + 1))
    n = int(rng.uniform(2, 12) * (1 + d + d * rank))
    X = rng.standard_normal((n, d))
    if not squares and rng.random() < 0.5:
        X = (rng.random((n, d)) < rng.uniform(0.2, 0.5)).astype(float)
    V, signs = rng.standard_normal((d, true_rank)), rng.choice([-1.0, 1.0], true_rank)
    signal = X @ rng.standard_normal(d) + (X @ V) ** 2 @ signs
    noise = rng.choice([0.1, 0.5, 1.0]) * np.std(signal)
    return Drawn(X, signal + noise * rng.standard_normal(n), rank, true_rank, squares)


def best_of_starts(problem: Drawn, seed: int) -> float:
    """Return the smallest mean squared error that L-BFGS-B reaches."""
    rng, k = np.random.default_rng(seed), problem.rank
    Z = (problem.X - problem.X.mean(0)) / np.where(
        np.ptp(problem.X, axis=0) > 0, problem.X.std(0), 1
    )
    y = (problem.y - problem.y.mean()) / problem.y.std()
    (n, d), squares, counted = Z.shape, Z * Z, float(not problem.squares)

    def loss(parameters: np.ndarray, signs: np.ndarray) -> tuple[float, np.ndarray]:
        c, w, L = parameters[0], parameters[1 : d + 1], parameters[d + 1 :].reshape(d, k)
        ZL = Z @ L
        r = c + Z @ w + ZL**2 @ signs - counted * (squares @ (L**2 @ signs)) - y
        by_L = 2 * (Z.T @ (r[:, None] * ZL) - counted * (squares.T @ r)[:, None] * L) * signs
        gradient = np.concatenate([[r.sum()], Z.T @ r, by_L.ravel()])
        return float(r @ r) / n, 2 * gradient / n

    best = np.inf
    for _ in range(STARTS):
        signs = rng.choice([-1.0, 1.0], k)
        start = np.concatenate([np.zeros(1 + d), rng.standard_normal(d * k) / np.sqrt(d)])
        reached = minimize(loss, start, (signs,), "L-BFGS-B", jac=True, options={"maxiter": 2000})
        best = min(best, reached.fun)
    return best * float(problem.y.var())


def outcome(seed: int, wide: bool) -> Outcome:
    warnings.simplefilter("ignore", ConvergenceWarning)
    problem = drawn(seed, wide)
    diagonal = "auto" if problem.squares else "zero"
    model = SecondOrderRegressor(problem.rank, alpha=0, diagonal=diagonal, random_state=0)
    model.fit(problem.X, problem.y)
    loss = float(np.mean((model.predict(problem.X) - problem.y) ** 2))
    excess = loss / best_of_starts(problem, seed) - 1
    return Outcome(problem, excess, model.history_[-1].passes)


def outcomes(problems: int, first: int, wide: bool = False, jobs: int = 1) -> Iterator[Outcome]:
    seeds = range(first, first + problems)
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield from pool.map(partial(outcome, wide=wide), seeds)


def line(name: str, runs: list[Outcome]) -> str:
    excess = np.array([outcome.excess for outcome in runs])
    worse = " | ".join(str(int((excess > level).sum())) for level in LEVELS)
    passes = [outcome.passes for outcome in runs]
    return (
        f"| {name} | {len(runs)} | {worse} | {excess.max():.1%} | {int((excess < -1e-3).sum())} "
        f"| {np.mean(passes):.0f} / {max(passes)} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=204)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--wide", action="store_true", help="26 to 40 features")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--verbose", action="store_true", help="name the seeds that end worse")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by each process when it starts
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    runs = []
    reached = outcomes(options.problems, options.first, options.wide, options.jobs)
    for seed, one in enumerate(reached, options.first):
        runs.append(one)
        if options.verbose and one.excess > LEVELS[0]:
            shape, rank = one.problem.X.shape, one.problem.rank
            print(f"seed {seed}: {shape}, rank {rank}: {one.excess:+.2%}", flush=True)
    print(
        "| problems | number | worse by > .1% | > 10% | worst | better by > .1% "
        "| passes, mean / most |"
    )
    print("|---|---|---|---|---|---|---|")
    print(line("with squares", [o for o in runs if o.problem.squares]))
    print(line("without squares", [o for o in runs if not o.problem.squares]))
    print(line("all", runs))
    true = [o for o in runs if o.problem.rank == o.problem.true_rank]
    print(line("of which the rank is the true one", true))


if __name__ == "__main__":
    main()
