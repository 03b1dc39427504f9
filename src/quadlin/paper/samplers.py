"""The tables of the paper's Section 5, features as sampled, drawn by blocks.

The blocks are fixed, so the rows are the same for any number of cores.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from quadlin.core.arrays import Array
from quadlin.paper.laws import Law
from quadlin.paper.problems import Truth, random_truth

BLOCKS = 64


@dataclass(frozen=True)
class Table:
    """Some rows, their noiseless targets, and one standard normal number of noise per row."""

    X: np.ndarray  # (n, d), float32
    f: np.ndarray  # (n,), float64
    noise: np.ndarray  # (n,), float64


def tables(law: Law, sizes: tuple[int, ...], d: int, k: int, seed: int) -> list[Table]:
    """Draw a model, and one table for each number of rows.

    M = QQᵀ with Q orthonormal and w ~ N(0, I/d), as in the paper. Where the law is not moment
    invertible, the diagonal is left out of M.
    """
    truth_seed, *seeds = np.random.SeedSequence(seed).spawn(1 + len(sizes))
    truth = random_truth(np.random.default_rng(truth_seed), d, k, has_diagonal=law.is_invertible)
    return [_table(law, truth, n, d, s) for n, s in zip(sizes, seeds, strict=True)]


def _table(law: Law, truth: Truth, n: int, d: int, seed: np.random.SeedSequence) -> Table:
    X, f, noise = np.empty((n, d), np.float32), np.empty(n), np.empty(n)
    edges = np.linspace(0, n, BLOCKS + 1).astype(int)

    def fill(number: int, block_seed: np.random.SeedSequence) -> None:
        part = slice(edges[number], edges[number + 1])
        rng = np.random.default_rng(block_seed)
        X[part] = law.sample(rng, edges[number + 1] - edges[number], d)
        f[part] = truth(X[part])
        rng.standard_normal(out=noise[part])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, range(BLOCKS), seed.spawn(BLOCKS)))
    return Table(X, f, noise)


def on_device(a: np.ndarray, device: str) -> Array:
    """Return the array as it is for "cpu", or as a torch tensor on another device."""
    if device == "cpu":
        return a
    import torch

    return torch.asarray(a, device=device)
