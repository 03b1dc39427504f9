"""What pairs are asked for, what is fitted beside them, and both together."""

from dataclasses import dataclass
from functools import cached_property
from math import log

import numpy as np

from quadlin.core.model import Model
from quadlin.solve.exact import Alpha
from quadlin.solve.pair_joint import Joint

SETTLED = 0.2  # the relative difference of penalties that are about the same


@dataclass(frozen=True)
class PairRequest:
    """Which pairs are wanted."""

    most: int | None = None  # at most; None is the search's own limit
    given: tuple[tuple[int, int], ...] | None = None  # exactly these
    hierarchy: str | None = None
    asked: bool = True  # by the user; else the rows are looked at first, and only a little


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
        """Return ωe² of each row when it is left out, of the standardised target: a walk."""
        return self.joint.search.left_out_squares()
