"""Factorization machines on the command line: which one `fit --fm` makes."""

from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from quadlin.cli.options import MODEL, WHOLE, Flag, ModelOptions, UsageError
from quadlin.data import Source
from quadlin.estimators.factorization import FactorizationMachineRegressor
from quadlin.estimators.factorization_classifier import FactorizationMachineClassifier

NOT_OF_LABELS = ("loss", "polish", "uncertainty", "pairs", "hierarchy")


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True)
class MachineOptions:
    """The options of factorization machines."""

    fm: Flag = False
    """Fit a factorization machine: no squares, and levels of text columns by their posterior."""
    draws: Annotated[int | None, WHOLE] = None
    """With --fm: average over so many draws from the posterior, for accuracy and predict --std."""


def make_machine(
    params: dict[str, Any],
    model: ModelOptions,
    machine: MachineOptions,
    classify: bool,
    source: Source,
) -> FactorizationMachineRegressor | FactorizationMachineClassifier:
    """Return the factorization machine that the options of the command ask for."""
    if model.diagonal != "auto":
        raise UsageError("--fm has no squares: leave --diagonal out.")
    if source.encoder is None or len(source.fields) < 2:
        raise UsageError(
            "--fm needs at least two columns of categories, such as users and items. Name those "
            "that are numbers with --categorical user,item."
        )
    params = {k: v for k, v in params.items() if k != "diagonal"} | {"draws": machine.draws}
    if not classify:
        return FactorizationMachineRegressor(**params)
    defaults = ModelOptions()
    given = [name for name in NOT_OF_LABELS if getattr(model, name) != getattr(defaults, name)]
    if given:
        raise UsageError(f"Classes cannot be combined with --{given[0].replace('_', '-')}.")
    return FactorizationMachineClassifier(
        **{k: v for k, v in params.items() if k not in NOT_OF_LABELS}
    )
