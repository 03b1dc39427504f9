"""The arguments and results of a fit: options, rows and units, history, status."""

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import numpy as np

from quadlin.core.arrays import Array
from quadlin.core.model import Model, Steps, degrees_of_freedom
from quadlin.core.rows import Rows
from quadlin.core.sums import Sums, change_sums, residual_sums
from quadlin.core.units import Units, UnitsMaker

if TYPE_CHECKING:
    from quadlin.solve.lowrank.product_gram import ProductGram

NO_NOISE = 1e-10  # of the variance of the target: a smaller loss is rounding


class Status(Enum):
    """How a fit ended; the value is advice.

    Examples
    --------
    >>> print(Status.stopped.value)
    A callback stopped the fit; the model is the one of the last step.
    """

    converged = "A step no longer lowers the objective by more than the fraction `tol`."
    out_of_steps = (
        "All `max_iter` steps were used while the objective was still falling. Raise `max_iter`."
    )
    out_of_passes = (
        "The budget of passes over the rows was used up while the objective was "
        "still falling slowly, as it does if the rows hardly determine some "
        'parameters. Use alpha="auto" or a larger penalty, or lower `rank`.'
    )
    diverged = (
        "The steps diverged, and the best model so far was kept. Use "
        'solver="auto" or more rows, and look for wrong units in X and y.'
    )
    too_few_rows = (
        "There are fewer rows than the model has parameters, so it may fit "
        "noise. Raise `alpha`, lower `rank`, leave out features, or add rows."
    )
    separated = (
        "The labels of the rows can be predicted almost without error, so the "
        "log-odds grow without bound; the fit was stopped early. Use "
        'alpha="auto", or `alpha` above 0.'
    )
    ambiguous = (
        "No two starts of the search led to the same result, and the best of "
        "them was kept. Add measurements by other, varied vectors, or raise "
        "`n_starts`."
    )
    undetermined = (
        "The measurements determine some unknowns badly or not at all: other values fit as well. "
        "Add measurements."
    )
    searching = (
        "Not all components of the quadratic part stand out in the rows so far, "
        "or steps still change them considerably. Learn from more rows, or lower "
        "`rank`."
    )
    stopped = "A callback stopped the fit; the model is the one of the last step."
    interrupted = "The fit was interrupted; the model is the one of the last finished step."


class Ended(Protocol):
    """The result of a fit, with the status in which it ended."""

    @property
    def status(self) -> Status:
        """Return how the fit ended."""


E = TypeVar("E", bound=Ended)


def finished(fit: E) -> E:
    """Return a fit from which another one continues; raise if Ctrl-C interrupted it."""
    if fit.status is Status.interrupted:
        raise KeyboardInterrupt(fit.status.value)
    return fit


@dataclass(frozen=True)
class Record:
    """One line of the history: the loss on the training rows after a step."""

    step: int
    passes: int  # over the rows so far, or sweeps over kept rows; samples count by their share
    loss: float  # mean squared error (user's units) or half the deviance, plus the penalty


@dataclass(frozen=True)
class Options:
    """What the user chose."""

    rank: int
    fit_linear: bool = True
    fit_intercept: bool = True
    psd: bool = False
    max_iter: int = 50
    tol: float = 1e-6
    solver: str = "auto"  # or "moments", or "paper", whose steps have their full length
    alpha: tuple[float, float] = (0.0, 0.0)  # ridge on w and on M
    loss: str = "squared"  # a name in `LOSSES`

    def dof(self, d: int, rank: int) -> int:
        """Return the number of parameters of a model of some rank of d features."""
        return degrees_of_freedom(d, rank, linear=self.fit_linear, intercept=self.fit_intercept)

    @property
    def plain(self) -> bool:
        """Return whether all parts are fitted, and M may have either sign."""
        return self.fit_linear and self.fit_intercept and not self.psd

    @property
    def levels_are_ambiguous(self) -> bool:
        """Return whether a constant can move between one-hot levels, b and w without any effect.

        A penalty decides where it goes, but the rows do not; so coefficients of levels are always
        reported as differences from their mean.
        """
        return self.fit_linear and self.fit_intercept


@dataclass(frozen=True)
class Automatic:
    """What is chosen from the rows: the rank and the penalties."""

    rank: bool = False
    alpha: bool = False


FIXED = Automatic()  # nothing is left to choose


@dataclass(frozen=True)
class Plan:
    """How rows are fitted, with or without pairs."""

    options: Options
    make_units: UnitsMaker
    seed: int
    automatic: Automatic = FIXED

    def having(self, **options: Any) -> Self:
        """Return the plan with other options."""
        return replace(self, options=replace(self.options, **options))

    def of_rank(self, rank: int) -> Self:
        """Return the plan with a given rank."""
        return replace(self.having(rank=rank), automatic=Automatic(False, self.automatic.alpha))


@dataclass(frozen=True)
class Solution:
    """The final model of a fit, and its history."""

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
    worthless: float = 0.0  # a gain that is a smaller fraction of the objective is not worth a step
    error: float = 0.0  # dof/n, the statistical error of the optimum as a fraction of the objective
    centred: bool = True  # whether the units are those of these rows, so the target has mean zero
    products: "ProductGram | None" = None  # from which the sums are computed, without passes

    def sums(self, model: Model, Q: Array | None = None, squares: bool = True) -> Sums:
        """Return the sums of the residual: one pass."""
        if self.products is not None:
            return self.products.sums(model, Q)
        params = (model, self.units, Q, squares)
        if self.options.loss == "squared":
            return self.rows.reduce(residual_sums, *params)
        return self.rows.reduce(residual_sums, *params, self.options.loss)

    def changes(self, steps: Steps, model: Model, squares: bool = True) -> Sums:
        """Return the sums of the changes along steps from a model: one pass."""
        if self.products is not None:
            return self.products.changes(steps)
        params = (steps, self.units, squares)
        if self.options.loss == "squared":
            return self.rows.reduce(change_sums, *params)
        return self.rows.reduce(change_sums, *params, model, self.options.loss)
