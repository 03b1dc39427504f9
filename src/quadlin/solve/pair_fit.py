"""What a search for pairs returns."""

from dataclasses import dataclass

import numpy as np

from quadlin.solve.pair_choice import Choice
from quadlin.solve.pair_errors import RobustErrors
from quadlin.solve.pair_sums import Columns

Pair = tuple[int, int]


@dataclass(frozen=True)
class PairFit:
    """The pairs taken, by order of entry, and the regression they are taken into."""

    i: np.ndarray  # (m,), i ≤ j
    j: np.ndarray  # (m,)
    coef: np.ndarray  # (m,), of z_i·z_j
    entry: np.ndarray  # (m,), in which step each entered, from 1
    errors: RobustErrors  # as if the pairs had been given
    columns: Columns
    beta: np.ndarray  # of all columns: 1, features, tangent, products
    taken: int  # pairs and blocks
    dof: int  # their parameters
    loss: float  # Σω r², with the penalty
    criterion: float
    at_limit: bool  # whether no more could be taken
    path: tuple[Choice, ...]  # with the first 0, 1, … of what was taken
    exchangeable: tuple[tuple[Pair, Pair, float], ...]  # a pair, one as good, what that costs
