"""What pairs are asked for, what is fitted beside them, and both together."""

from dataclasses import dataclass
from functools import cached_property
from math import log

import numpy as np

from quadlin.core.model import Model
from quadlin.solve.lowrank.exact import Alpha
from quadlin.solve.pairs.pair_joint import Joint
from quadlin.solve.pairs.pair_terms import PairTerms

SETTLED = 0.2  # the relative difference of penalties that are about the same


@dataclass(frozen=True)
class PairRequest:
    """Which pairs are wanted."""

    most: int | None = None  # at most; None is the search's own limit
    given: tuple[tuple[int, int], ...] | None = None  # exactly these
    hierarchy: str | None = None
    asked: bool = True  # by the user; else the rows are looked at first, and only a little
    entry: tuple[int, ...] | None = None  # of those given: which enter together; None is one by one

    @classmethod
    def of(cls, terms: PairTerms, entry: np.ndarray) -> "PairRequest":
        """Return a request for products that were taken, by the steps in which they entered."""
        given = tuple(zip(terms.i.tolist(), terms.j.tolist(), strict=True))
        return cls(given=given, entry=tuple(entry.tolist()))

    @property
    def products(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the products that are given, and the step in which each enters, from 1."""
        i, j = np.array(self.given or (), dtype=np.int64).reshape(-1, 2).T
        entry = range(1, len(i) + 1) if self.entry is None else self.entry
        return i, j, np.array(entry, dtype=np.int64)


@dataclass(frozen=True)
class Beside:
    """What is fitted beside pairs: w and L, with their penalties."""

    model: Model
    alpha: Alpha

    @property
    def rank(self) -> int:
        """Return the rank of L."""
        return int(self.model.s.shape[0])

    def is_like(self, other: "Beside") -> bool:
        """Tell whether two fits have the same rank and about the same penalties."""
        return self.rank == other.rank and bool(np.allclose(self.alpha, other.alpha, rtol=SETTLED))


@dataclass(frozen=True)
class Composite:
    """Pairs and what is beside them."""

    joint: Joint
    alpha: Alpha  # of w and of L
    value: float  # log evidence

    @property
    def rank(self) -> int:
        """Return the rank of L."""
        return int(self.joint.search.columns.model.U.shape[1])

    @property
    def looked(self) -> float:
        """Return the log of the number of products that were looked at."""
        return log(max(1, self.joint.search.criterion.candidates))

    @cached_property
    def left_out_squares(self) -> np.ndarray:
        """Return ωe² of each row when it is left out, of the standardised target: a pass."""
        return self.joint.search.left_out_squares()
