"""Newton's method for any objective: steps that are shortened until they lower it."""

from collections.abc import Callable
from typing import Protocol, TypeVar

STEPS = 50
SIZES = tuple(0.25**i for i in range(7))  # of a step; the first that lowers the objective is taken


class HasObjective(Protocol):
    """What moves."""

    @property
    def objective(self) -> float:
        """Return what is minimised."""


P = TypeVar("P", bound=HasObjective)
Line = Callable[[float], P]  # from the size of a step to where it ends


def descended(at: P, line: Callable[[P], Line[P]], tol: float) -> P:
    """Return where Newton steps from a point end: where the objective falls by less than `tol`.

    `line` returns the step that is to be taken from a point, and `tol` is relative.
    """
    for _ in range(STEPS):
        ends = map(line(at), SIZES)
        new = next((end for end in ends if end.objective < at.objective), None)
        if new is None:
            break
        before, at = at, new
        if before.objective - at.objective <= tol * at.objective:
            break
    return at
