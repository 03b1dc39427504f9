"""What a fit is given and what it returns: options, rows and units, history, status."""

from dataclasses import dataclass
from enum import Enum

import numpy as np

from quadlin.core.arrays import Array
from quadlin.core.messages import Message, Option, Phrase
from quadlin.core.model import Model
from quadlin.core.rows import Rows
from quadlin.core.sums import Sums, residual_sums
from quadlin.core.units import Units
from quadlin.solve import step_length


class Status(Enum):
    """How a fit ended; the value is advice."""

    converged = Message(
        "A step no longer lowers the objective by more than the fraction {tol}.", tol=Option("tol")
    )
    out_of_steps = Message(
        "All {max_iter} steps were used while the objective was still falling. Raise {max_iter}.",
        max_iter=Option("max_iter"),
    )
    out_of_passes = Message(
        "The budget of 12 passes over the rows per step was used up while the objective was still "
        "falling. Raise {max_iter}, or use a larger {alpha}.",
        max_iter=Option("max_iter"),
        alpha=Option("alpha"),
    )
    diverged = Message(
        "The steps diverged, and the best model on the way was kept. "
        "Use {more}, and look for wrong units in X and y.",
        more=Phrase('step="guarded" or more rows', "more rows"),
    )
    too_few_rows = Message(
        "There are fewer rows than the model has parameters, so it may fit noise. "
        "Lower {rank} or add rows.",
        rank=Option("rank"),
    )
    ambiguous = Message(
        "No two starts of the search led to the same signal, and the best of them was kept. "
        "Add measurements, or raise {n_starts}.",
        n_starts=Option("n_starts"),
    )
    searching = Message(
        "The rows so far do not show all components of the quadratic part. "
        "Learn from more rows, or lower {rank}.",
        rank=Option("rank"),
    )
    stopped = "A callback asked to stop; the model is the one of the last step."
    interrupted = "The fit was interrupted; the model is the one of the last finished step."


@dataclass(frozen=True)
class Record:
    """One line of the history: the loss on the training rows after a step."""

    step: int
    passes: int  # over the rows, so far, whatever they were for
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
    def levels_are_ambiguous(self) -> bool:
        """Tell whether a constant can move between one-hot levels, b and w without any effect.

        A penalty decides where it goes, but not by anything that the rows say; so coefficients of
        levels are always reported as differences from their mean.
        """
        return self.fit_linear and self.fit_intercept


@dataclass(frozen=True)
class Solution:
    """The model that a fit ended with, and how it got there."""

    model: Model
    units: Units
    status: Status
    history: tuple[Record, ...]


@dataclass(frozen=True)
class Problem:
    """Rows, their units and the options of a fit."""

    rows: Rows
    units: Units
    options: Options
    rng: np.random.Generator

    def sums(self, model: Model, Q: Array | None = None, squares: bool = True) -> Sums:
        """Take one walk for the sums of the residual."""
        return self.rows.reduce(residual_sums, model, self.units, Q, squares)

    def gram(self, family: step_length.Family) -> step_length.Gram:
        """Take one walk for the products of the family's predictions."""
        return self.rows.reduce(step_length.gram, family, self.units)
