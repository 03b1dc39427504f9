"""What a fit is told and what it answers: options, rows to sum over, history, status."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from quadlin.core.arrays import Array
from quadlin.core.chunks import Chunk
from quadlin.core.engine import reduce
from quadlin.core.messages import Message, Option, Phrase
from quadlin.core.model import Model
from quadlin.core.sums import Sums, residual_sums
from quadlin.core.units import Units
from quadlin.solve import step_length as guard


class Status(Enum):
    """How a fit ended; the value is advice."""

    converged = Message(
        "A step no longer lowers the loss by more than {tol} of it.", tol=Option("tol")
    )
    out_of_steps = Message(
        "{max_iter} steps were used up while still improving. Raise {max_iter}.",
        max_iter=Option("max_iter"),
    )
    diverged = Message(
        "The steps diverged and the best model on the way was kept. Use {more}, and look for wrong "
        "units in X and y.",
        more=Phrase('step="guarded" or more rows', "more rows"),
    )
    too_few_rows = Message(
        "There are fewer rows than the model has parameters, so it may fit noise. Lower {rank} or "
        "add rows.",
        rank=Option("rank"),
    )
    stopped = "A callback asked to stop; the model is the one of the last step."
    interrupted = "The fit was interrupted; the model is the one of the last finished step."


@dataclass(frozen=True)
class Record:
    """One line of the history: the loss on the training rows after a step."""

    step: int
    passes: int  # over the rows, so far
    loss: float  # mean squared error plus the penalty, in the user's units


@dataclass(frozen=True)
class Options:
    """What the user chose."""

    rank: int
    step: str = "guarded"  # or "plain", the paper's
    fit_linear: bool = True
    fit_intercept: bool = True
    psd: bool = False
    max_iter: int = 50
    tol: float = 1e-6
    polish: bool = True
    whiten: str = "auto"  # or "full", "lowrank", "none"
    alpha: tuple[float, float] = (0.0, 0.0)  # ridge on w and on M

    @property
    def parts(self) -> dict[str, bool]:
        """Return which parts beside M are fitted."""
        return {"linear": self.fit_linear, "intercept": self.fit_intercept}

    @property
    def loose(self) -> bool:
        """Tell whether nothing but convention says what belongs to a field and what to b and w."""
        return self.fit_linear and self.fit_intercept and not all(self.alpha)


@dataclass(frozen=True)
class Solution:
    """The model a fit found, and how it got there."""

    model: Model
    units: Units
    status: Status
    history: tuple[Record, ...]


@dataclass
class Problem:
    """Rows and options; counts the passes."""

    source: Iterable[Chunk]
    units: Units
    options: Options
    rng: np.random.Generator
    passes: int = field(default=0)

    def sums(self, model: Model, Q: Array | None = None, squares: bool = True) -> Sums:
        """Take one pass for the residual's sums."""
        self.passes += 1
        return reduce(residual_sums, self.source, model, self.units, Q, squares)

    def gram(self, family: guard.Family) -> guard.Gram:
        """Take one pass for the products of the family's predictions."""
        self.passes += 1
        return reduce(guard.gram, self.source, family, self.units)
