"""Solvers of the panels, and how to write your own.

A solver is one function in one small file::

    NAME = "ridge on all products"      # optional: how the pictures call it


    def solve(X, y, setting, report):
        ...
        report(passes, predict)         # after each iteration

`X` (n, d) holds the features as sampled and `y` (n,) the targets: numpy arrays, or torch tensors
if the studies run on another device. `setting` describes the problem. `report` takes the number
of passes over the rows so far and a function that returns predictions for rows like X. It measures
the time, scores the predictions on test rows (which is not counted), and returns True when the
paper's rule ends the iteration; a solver may stop earlier.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from quadlin.core.arrays import Array
from quadlin.paper.laws import load

Predict = Callable[[Array], Array]  # rows as sampled (n, d) → (n,), or (n, g) for g variants


@dataclass(frozen=True)
class Setting:
    """The problem that a solver is given."""

    rank: int
    has_diagonal: bool  # whether the squares of the features are modelled: the paper's MIP form
    max_iter: int
    seed: int


class Report(Protocol):
    """Takes the result of an iteration, and tells whether to stop."""

    def __call__(self, passes: int, predict: Predict, loss: Any = None) -> bool:
        """Score the predictions; `loss` is the mean squared training error if it is known.

        A solver that runs g variants at once, such as g step sizes, reports (n, g) predictions and
        g losses; the variant whose training error ends lowest is the one that counts.
        """


Solver = Callable[[Array, Array, Setting, Report], None]


class SolverError(ValueError):
    """A user's solver failed; the message says where."""


@dataclass(frozen=True)
class SolverFile:
    """A user's solver: its file, its name in the pictures, and the function."""

    path: Path
    name: str
    solve: Solver

    @property
    def digest(self) -> str:
        """Return a short hash of the file, so that a changed solver is a new one."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:12]


def load_solver(path: str | Path) -> SolverFile:
    """Read a user's solver from its file."""
    path = Path(path)
    module = load(path, "solve")

    def solve(X: Array, y: Array, setting: Setting, report: Report) -> None:
        try:
            module.solve(X, y, setting, report)
        except Exception as error:
            line = error.__traceback__
            while line is not None and line.tb_next is not None:
                line = line.tb_next
            number = f", line {line.tb_lineno}" if line is not None else ""
            raise SolverError(
                f"The solver {str(path)!r} failed{number}: {type(error).__name__}: {error}"
            ) from error

    return SolverFile(path, str(getattr(module, "NAME", path.stem)), solve)
