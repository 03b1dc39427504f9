"""The driver: follows the iterates of a method, keeps the best one and the history, and stops."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from quadlin.core.model import Model, constant_model, in_dtype, tied
from quadlin.core.units import Units
from quadlin.solve.lowrank.tangent import orthonormalised
from quadlin.solve.lowrank.types import Problem, Record, Solution, Status


@dataclass(frozen=True)
class Iterate:
    """A model, its objective in standardised units, and the status if it is the last one."""

    model: Model | Callable[[], Model]  # or a function that returns it
    objective: float
    done: Status | None = None
    orthonormal: bool = True  # whether U is orthonormal; otherwise it is made so on demand

    def finished(self) -> Model:
        """Return the model, with orthonormal U."""
        model = self.model() if callable(self.model) else self.model
        return model if self.orthonormal else orthonormalised(model)


def loss_unit(loss: str, units: Units) -> float:
    """Return the factor from a mean loss of standardised targets to that of the history.

    That is the mean squared error in the user's units, or half the deviance (for labels, log-loss).
    """
    return units.target.scale**2 if loss == "squared" else 0.5


Method = Generator[Iterate, None, Status]  # yields iterates and returns how it ended
T = TypeVar("T")


def ended(steps: Generator[Iterate, None, T]) -> T:
    """Return what a method returns at its end; its iterates are ignored."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def follow(
    problem: Problem,
    method: Method,
    on_step: Callable[[Solution], bool] | None = None,
    keep_worse: bool = False,
) -> Solution:
    """Follow a method to its end, `max_iter` steps, a stop by `on_step`, or Ctrl-C.

    The solution is the best iterate, starting with the constant model. The history has the iterates
    that improved on all before, or all iterates with `keep_worse`. After each of them, `on_step` is
    called with the solution so far, and stops the fit by returning True.
    """
    units, options, rows = problem.units, problem.options, problem.rows
    unit = loss_unit(options.loss, units)
    constant = constant_model(units, options.rank, units.target.centre)
    model = tied(constant, units, options.fit_linear, options.fit_intercept)
    best = Iterate(model, units.target.power)
    history = [Record(0, rows.walks, best.objective * unit)]

    def solution(status: Status) -> Solution:
        model = in_dtype(best.finished(), units.scale.dtype)
        return Solution(model, units, status, tuple(history))

    try:
        while True:
            try:
                iterate = next(method)
            except StopIteration as end:
                return solution(end.value)
            better = iterate.objective < best.objective
            if better:
                best = iterate
            if better or keep_worse:
                history.append(Record(len(history), rows.walks, iterate.objective * unit))
                if iterate.done is not None:
                    return solution(iterate.done)
                if on_step is not None and on_step(solution(Status.stopped)):
                    return solution(Status.stopped)
                if len(history) > options.max_iter:
                    return solution(Status.out_of_steps)
    except KeyboardInterrupt:
        return solution(Status.interrupted)
