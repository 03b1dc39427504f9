"""The estimator that the options of `quadlin fit` describe, also with `--fm`."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter

from quadlin.cli.options import (
    MODEL,
    WHOLE,
    Flag,
    ModelOptions,
    UsageError,
    hierarchy_of,
    split_names,
)
from quadlin.cli.printing import Option, flag
from quadlin.data import Source
from quadlin.data.columns.encoder import text_columns
from quadlin.data.columns.names import shortened
from quadlin.estimators.cv.cross_validation import SecondOrderRegressorCV
from quadlin.estimators.labels.classifier import SecondOrderClassifier
from quadlin.estimators.machines.factorization import FactorizationMachineRegressor
from quadlin.estimators.machines.factorization_classifier import FactorizationMachineClassifier
from quadlin.estimators.regression.regressor import SecondOrderRegressor
from quadlin.estimators.rows.parameters import check_options
from quadlin.explain.tables import product_name

BETWEEN = ":"  # the two features of a pair
NOT_OF_CLASSES = ("loss", "polish")  # what only a regression has
NOT_OF_LABELS = (*NOT_OF_CLASSES, "uncertainty", "robust_errors", "pairs", "hierarchy")  # with --fm
# What the folds choose, or what cross-validation does not have.
NOT_WITH_CV = ("rank", "alpha", "polish", "batch_size", "max_memory", "pairs", "hierarchy")
DEFAULTS = ModelOptions()


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True)
class MachineOptions:
    """The options of factorization machines."""

    fm: Flag = False
    """Fit a factorization machine: no squares, and Bayesian estimates for text levels."""
    draws: Annotated[int | None, WHOLE] = None
    """With --fm: average over this many posterior draws, for accuracy and for predict --std."""


def check_combination(
    one_pass: bool, cv: bool, engine: str, checkpoint: Path | None, machine: MachineOptions
) -> None:
    """Refuse options that exclude each other."""
    if machine.fm and cv:
        raise UsageError("--fm learns its penalties from their posterior: leave --cv out.")
    if machine.draws is not None and not machine.fm:
        raise UsageError("--draws is an option of factorization machines: add --fm.")
    if cv and (one_pass or checkpoint is not None or engine != "serial"):
        raise UsageError("--cv cannot be combined with --one-pass, --checkpoint or --engine.")
    if one_pass and engine != "serial":
        raise UsageError("--one-pass reads the rows in order, so it cannot use another --engine.")


def make_estimator(
    model: ModelOptions,
    machine: MachineOptions,
    source: Source,
    cv: bool,
    streamed: bool,
    classify: bool,
) -> Any:
    """Return the estimator that the options describe, with parameters that make sense."""
    params = {
        **asdict(model),
        "alpha": _alpha(model.alpha),
        "rarity": _rarity(model.rarity),
        "pairs": _pairs_in(model.pairs, [*source.names, *text_columns(source.encoder)]),
        "hierarchy": hierarchy_of(model.hierarchy),
        "uncertainty": "robust" if model.robust_errors else model.uncertainty,
    }
    del params["robust_errors"]
    kind: Any = SecondOrderRegressor
    without: tuple[str, ...] = ()  # options that it does not have
    if machine.fm:
        _check_machine(model, machine, source, streamed)
        params["draws"] = machine.draws
        kind = FactorizationMachineClassifier if classify else FactorizationMachineRegressor
        without = ("diagonal", *NOT_OF_LABELS) if classify else ("diagonal",)
    elif classify:
        if cv:
            raise UsageError("Classes cannot be combined with --cv. Leave it out.")
        kind, without = SecondOrderClassifier, NOT_OF_CLASSES
    elif cv:
        if not source.again:
            raise UsageError("--cv reads the rows several times: save them to a file first.")
        kind, without = SecondOrderRegressorCV, NOT_WITH_CV
    elif streamed:
        for option in _given(model, ("loss", "uncertainty", "robust_errors")):
            several = "needs several passes over the rows, but there is only one."
            raise UsageError(f"{flag(option)} {several}")
    for option in _given(model, without):
        both = f"{'Classes' if classify else '--cv'} cannot be combined with"
        raise UsageError(f"{both} {flag(Option(option.name))}. Leave it out.")
    estimator = kind(**{k: v for k, v in params.items() if k not in without})
    try:
        if not cv:
            check_options(estimator)
    except ValueError as error:
        raise UsageError(error.args[0]) from None
    return estimator


def _given(model: ModelOptions, names: Iterable[str]) -> list[Option]:
    """Return those options that differ from their defaults."""
    options = [Option(name, getattr(model, name)) for name in names]
    return [option for option in options if option.value != getattr(DEFAULTS, option.name)]


def _check_machine(
    model: ModelOptions, machine: MachineOptions, source: Source, streamed: bool
) -> None:
    """Refuse options and rows that do not suit a factorization machine."""
    if streamed and machine.draws is not None:
        raise UsageError("--draws needs several passes over the rows, but there is only one.")
    if model.diagonal != "auto":
        raise UsageError("--fm has no squares: leave --diagonal out.")
    if source.encoder is None or len(source.fields) < 2:
        raise UsageError(
            "--fm needs at least two columns of categories, such as users and items. Name those "
            "that are numbers with --categorical user,item."
        )


def _alpha(text: str) -> float | str | tuple[float, float]:
    if text == "auto":
        return text
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) not in (1, 2) or not all(0 <= value < np.inf for value in values):
        raise UsageError(f"--alpha {text} must be auto, a number ≥ 0, or two separated by a comma.")
    return values[0] if len(values) == 1 else (values[0], values[1])


def _rarity(text: str) -> float | str | None:
    """Return what `--rarity` asks for; text that is no number is refused with the other options."""
    try:
        return None if text == "none" else float(text)
    except ValueError:
        return text


def _pairs_in(text: str, names: Sequence[str]) -> Any:
    """Return what `--pairs` asks for: "auto", None, a number, or pairs of features.

    Examples
    --------
    >>> _pairs_in("auto", []), _pairs_in("none", []), _pairs_in("3", [])
    ('auto', None, 3)
    >>> _pairs_in("age:income, at 9:30:age", ["age", "income", "at 9:30"])
    [('age', 'income'), ('at 9:30', 'age')]
    """
    if text in ("auto", "none"):
        return None if text == "none" else text
    if text.isdecimal():
        return int(text)
    return [_pair(item, names) for item in split_names(text)]


def _pair(text: str, names: Sequence[str]) -> tuple[str, str]:
    """Return the two features of a pair; a name may contain a colon, too."""
    parts = text.split(BETWEEN)
    splits = [
        (BETWEEN.join(parts[:at]).strip(), BETWEEN.join(parts[at:]).strip())
        for at in range(1, len(parts))
    ]
    right = [pair for pair in splits if set(names).issuperset(pair)]
    if len(right) == 1:
        return right[0]
    problem = f"could be {' or '.join(product_name(*pair) for pair in right)}"
    if not splits:
        problem = "is not a pair"
    elif not right:
        wrong = next((name for name in splits[0] if name not in names), splits[0][0])
        problem = f"names {wrong!r}, but the features are {shortened(names)}"
    raise UsageError(
        f'--pairs: "{text}" {problem}. Give auto, none, a number, or pairs of features with a '
        'colon between them, such as "age:income,age:age".'
    )
