"""Rows of several classes: their codes and weights, and what models say of all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from quadlin.core.arrays import Array, moved, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.model import Model, predict
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.estimators.regression.tasks import Task


@dataclass(frozen=True)
class ClassRows:
    """Rows with the weights of their classes, and the number of the class of each row."""

    task: Task
    rows: Rows
    codes: np.ndarray  # (n,)
    like: Array  # an array of the namespace and on the device of the targets

    @cached_property
    def omega(self) -> np.ndarray:
        """Return the weights of the rows: one pass."""
        return np.concatenate(self.rows.collect(_weights))

    def scores(self, models: Sequence[Model], units: Sequence[Units]) -> np.ndarray:
        """Return the predictions of models, (n, number of models): one pass."""
        return np.concatenate(self.rows.collect(_scores, tuple(models), tuple(units)))

    def losses(self, log_p: np.ndarray) -> np.ndarray:
        """Return the log-loss of each row with these logarithms of probabilities (n, K)."""
        return -np.asarray(log_p[np.arange(len(log_p)), self.codes])

    def total(self, log_p: np.ndarray) -> float:
        """Return the sum of `losses` by weight."""
        return float(self.omega @ self.losses(log_p))

    def in_order(self, order: Sequence[int]) -> "ClassRows":
        """Return the same with the classes numbered in another order."""
        return replace(self, codes=np.argsort(order)[self.codes])

    def against_rest(self, label: int) -> Rows:
        """Return the rows with the target 1 for a class, and 0 for all others."""
        target = moved((self.codes == label).astype(np.float64), self.like)
        ones = moved(np.ones(len(self.codes)), self.like)
        return self.rows.reweighted(ones, target)


def _weights(chunk: Chunk) -> np.ndarray:
    return chunk.weights


def _scores(chunk: Chunk, models: tuple[Model, ...], units: tuple[Units, ...]) -> np.ndarray:
    columns = [predict(m, Block(chunk.X, u)) for m, u in zip(models, units, strict=True)]
    return np.stack([to_numpy(f).astype(np.float64) for f in columns], axis=1)
