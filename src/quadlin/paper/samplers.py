"""The rows of the paper's Section 5, drawn by blocks: the same for any number of cores."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from quadlin.core.arrays import Array

BLOCKS = 64  # fixed, so that what is drawn does not depend on who draws it


@dataclass(frozen=True)
class Truth:
    r""":math:`y = x^\top w + x^\top Q Q^\top x`, less the diagonal where there is none."""

    Q: np.ndarray  # (d, k), orthonormal columns
    w: np.ndarray  # (d,)
    has_diagonal: bool

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Return the noiseless targets of some rows in float64."""
        products = (X @ np.column_stack([self.Q, self.w]).astype(X.dtype)).astype(np.float64)
        f = products[:, -1] + np.sum(products[:, :-1] ** 2, axis=1)
        if not self.has_diagonal:
            m = np.sum(self.Q**2, axis=1).astype(X.dtype)
            f -= (X * X) @ m
        return np.asarray(f)


@dataclass(frozen=True)
class Rows:
    """Some rows, what the truth says of them, and a unit of noise for each."""

    X: np.ndarray  # (n, d), float32
    f: np.ndarray  # (n,), float64
    noise: np.ndarray  # (n,), float64


def truncated(level: float) -> Callable[[np.random.Generator, np.ndarray], None]:
    """Return what fills an array with min(x, level), x standard normal."""

    def fill(rng: np.random.Generator, out: np.ndarray) -> None:
        rng.standard_normal(dtype=np.float32, out=out)
        np.minimum(out, np.float32(level), out=out)

    return fill


def bernoulli(q: float) -> Callable[[np.random.Generator, np.ndarray], None]:
    """Return what fills an array with ones of probability q, else zeros."""

    def fill(rng: np.random.Generator, out: np.ndarray) -> None:
        rng.random(dtype=np.float32, out=out)
        np.less(out, np.float32(q), out=out, casting="unsafe")

    return fill


FEATURES = {"truncated": truncated, "bernoulli": bernoulli}


def draw(
    features: str, parameter: float, sizes: tuple[int, ...], d: int, k: int, seed: int
) -> list[Rows]:
    """Draw a truth, and tables of so many rows each.

    Q is orthonormal and w ~ N(0, I/d). For Bernoulli features the diagonal is left out of M.
    """
    source = np.random.SeedSequence(seed)
    own, *seeds = source.spawn(1 + len(sizes))
    rng = np.random.default_rng(own)
    Q = np.linalg.qr(rng.standard_normal((d, k)))[0]
    truth = Truth(Q, rng.standard_normal(d) / np.sqrt(d), features != "bernoulli")
    fill = FEATURES[features](parameter)
    return [_table(fill, truth, n, d, s) for n, s in zip(sizes, seeds, strict=True)]


def _table(fill: Callable[..., None], truth: Truth, n: int, d: int, seed: Any) -> Rows:
    X, f, noise = np.empty((n, d), np.float32), np.empty(n), np.empty(n)
    edges = np.linspace(0, n, BLOCKS + 1).astype(int)

    def block(number: int, own: Any) -> None:
        part = slice(edges[number], edges[number + 1])
        rng = np.random.default_rng(own)
        fill(rng, X[part])
        f[part] = truth(X[part])
        rng.standard_normal(out=noise[part])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(block, range(BLOCKS), seed.spawn(BLOCKS)))
    return Rows(X, f, noise)


def on_device(a: np.ndarray, device: str) -> Array:
    """Return the array as it is for "cpu", or as a torch tensor on another device."""
    if device == "cpu":
        return a
    import torch

    return torch.asarray(a, device=device)
