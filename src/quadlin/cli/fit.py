"""`quadlin fit`: from rows to a model in a file."""

import time
from ast import literal_eval
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Group, Parameter

from quadlin.cli.options import (
    MODEL_SUFFIX,
    OutputOptions,
    OutputPath,
    TableOptions,
    UsageError,
    as_flags,
    flag,
    number,
    print_answer,
    print_note,
    split_names,
)
from quadlin.cli.rows import check_output, classes_of, hold_rows, open_rows, watched
from quadlin.core.losses import LOSSES
from quadlin.data import Source
from quadlin.data.columns import text_columns
from quadlin.data.names import shortened
from quadlin.data.source import format_of
from quadlin.estimators.checks import check_options
from quadlin.estimators.classifier import SecondOrderClassifier
from quadlin.estimators.factorization_machines import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
)
from quadlin.estimators.regressor import SecondOrderRegressor
from quadlin.explain.diagnosis import listed
from quadlin.explain.tables import found_pairs, rank_of, text_table
from quadlin.files.model_file import PICKLE_SUFFIXES, save
from quadlin.solve.lowrank.types import Status


@Parameter(name="*", group=Group("Model", sort_key=5))
@dataclass(frozen=True)
class ModelOptions:
    """Parameters of the estimator, as text; None is the estimator's default."""

    rank: str | None = None
    """Rank of M, or auto (the default), which chooses the rank of largest evidence."""
    alpha: str | None = None
    """Ridge penalty, or two separated by a comma for w and for M; auto (the default) chooses."""
    pairs: str | None = None
    """Single pairs in the model: auto, none, a maximum, or "age:income,age:age"."""
    loss: str | None = None
    """squared (the default); huber limits the influence of outliers; poisson is for counts."""
    uncertainty: bool | None = None
    """Also compute standard errors, for predict --std."""


def fit(
    data: str,
    *,
    output: OutputPath = Path("model.safetensors"),
    read: TableOptions = TableOptions(),
    model: ModelOptions = ModelOptions(),
    fm: bool = False,
    classify: Annotated[bool | None, Parameter(negative="--no-classify")] = None,
    answer: OutputOptions = OutputOptions(),
) -> None:
    """Fit a model to a table and save it.

    Text columns become one-hot columns. If the target is text, or True and False,
    the model is a classifier and predicts probabilities. Tables of more than a
    gigabyte stay on disk and are read again in every pass. Ctrl-C saves the model
    of the last finished step, if there is one.

      quadlin fit houses.csv --target price
      quadlin fit "sales/*.parquet" --target amount --rank 3 -o sales.safetensors
      quadlin fit sales.csv --target amount --categorical-features store --exclude id
      quadlin fit ratings.csv --target rating --fm --categorical-features user,item
      quadlin fit houses.csv --target price --rank 0 --pairs "area:age,area:city"
      zcat log.csv.gz | quadlin fit - --format csv --target y --rank 4

    Parameters
    ----------
    data
        Rows: a file, a folder, a quoted pattern, or - for the standard input (with --format).
    output
        The model file. An existing one is replaced when the new one is complete.
    fm
        Fit a factorization machine: no squares, and Bayesian estimates for text levels.
    classify
        Predict probabilities of classes. Automatic for a target of text, or of True and False.
    """
    check_output(output, data)
    suffix = output.suffix.lower()
    if suffix in (*PICKLE_SUFFIXES, ".onnx") or format_of(output.name) is not None:
        raise UsageError(
            f"-o {output}: fit writes a safetensors file. Use -o "
            f"{output.with_suffix(MODEL_SUFFIX)}; quadlin export makes an ONNX graph of it."
        )
    labels = None if classify is False else "learn"
    source, unasked = open_rows(data, read, answer, labels=labels), classify is None
    if classify is None and (classes := classes_of(source)):
        print_note(f"The target {source.target!r} has {classes}: classifying.", answer.silent)
        classify = True
    estimator = make_estimator(model, source, fm, bool(classify))
    start, score, stopped = time.perf_counter(), None, False
    try:
        near = hold_rows(source, answer)
        with watched(near, "fitting", answer.silent, again=True) as rows:
            estimator.fit(rows)
            if estimator.status_ is Status.interrupted:
                raise KeyboardInterrupt
            if not classify and bool(estimator.target_moments_.varies(np.float64)[0]):
                score = estimator.score(rows)  # one more pass: the objective is not the error
                estimator.adopt(replace(estimator.fitted_, train_score=score))
    except KeyboardInterrupt:
        if not hasattr(estimator, "fitted_"):
            raise
        stopped = True
    if read.missing == "mean":  # so that the model treats rows of Python like those of its file
        estimator.missing = "mean"
    if read.categorical_features:
        estimator.categorical_features = read.categorical_features
    save(estimator, output)
    if stopped:
        raise KeyboardInterrupt(f"Stopped; the model of the last finished step is in {output}.")
    if source.dropped:
        gap = "a missing target" if read.missing == "mean" else "missing values"
        print_note(f"{source.dropped:,} rows with {gap} were left out.", answer.silent)
    content, table = _outcome(estimator, score)
    content = {
        "model": str(output),
        "rows": estimator.n_samples_seen_,
        "dropped": source.dropped,
        "status": estimator.status_.name,
        "advice": as_flags(estimator.status_.value),
        "steps": estimator.n_iter_,
        "seconds": round(time.perf_counter() - start, 3),
        **content,
    }
    took = f"{content['passes']:,} passes in {content['seconds']:.1f} s"
    table = [
        ["rows", f"{content['rows']:,}"],
        ["features", f"{content['features']:,}"],
        *table,
        ["status", f"{content['status']}, {took}"],
        ["model", content["model"]],
    ]
    print_answer(content, text_table(None, table), answer)
    if unasked and not classify and bool(estimator.target_moments_.has_two_values[0]):
        text = "The target takes two values. For probabilities of the two, use --classify."
        print_note(text, answer.silent)


def make_estimator(model: ModelOptions, source: Source, fm: bool, classify: bool) -> Any:
    """Return the estimator that the options describe, with parameters that make sense."""
    if fm and (source.encoder is None or len(source.fields) < 2):
        raise UsageError(
            "--fm needs at least two columns of categories, such as users and items. Name those "
            "that are numbers with --categorical-features user,item."
        )
    kind: Any = SecondOrderClassifier if classify else SecondOrderRegressor
    if fm:
        kind = FactorizationMachineClassifier if classify else FactorizationMachineRegressor
    params = {name: value_of(text) for name, text in vars(model).items() if text is not None}
    if unknown := params.keys() - kind().get_params().keys():
        raise UsageError(f"A {kind.__name__} has no {flag(min(unknown))}. Leave it out.")
    if isinstance(pairs := params.get("pairs"), str) and pairs != "auto":
        names = [*source.names, *text_columns(source.encoder)]
        params["pairs"] = [_pair(item, names) for item in split_names(pairs)]
    try:
        estimator = kind(**params, random_state=0)
        check_options(estimator)
    except ValueError as error:
        raise UsageError(error.args[0]) from None
    return estimator


def value_of(text: Any) -> Any:
    """Return the value of a parameter that is written as an option.

    Examples
    --------
    >>> [value_of(text) for text in ("3", "0.5,2", "auto", "none", "age:income")]
    [3, (0.5, 2), 'auto', None, 'age:income']
    """
    try:
        return None if text == "none" else literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _pair(text: str, names: Sequence[str]) -> tuple[str, str]:
    """Return the two features of a pair; a name may contain a colon, too.

    Examples
    --------
    >>> _pair("at 9:30:age", ["age", "income", "at 9:30"])
    ('at 9:30', 'age')
    """
    parts = text.split(":")
    splits = [(":".join(parts[:at]), ":".join(parts[at:])) for at in range(1, len(parts))]
    right = [pair for pair in splits if set(names).issuperset(pair)]
    if len(right) == 1:
        return right[0]
    wrong = next((name for name in (splits or [(text, "")])[0] if name not in names), text)
    raise UsageError(
        f'--pairs: "{text}" is not one pair of the features {shortened(names)}: see {wrong!r}. '
        'Give auto, none, a number, or features with a colon between them, as "age:income,age:age".'
    )


def _outcome(model: Any, score: float | None) -> tuple[dict[str, Any], list[list[str]]]:
    """Return what a fit has come to, as data and as lines to print; a classifier has no `score`."""
    labels = getattr(model, "classes_", np.empty(0)).tolist()
    parts = [model.one_vs_rest(label) for label in labels] if len(labels) > 2 else [model]

    def of_parts(values: list[Any]) -> Any:
        return values[0] if len(parts) == 1 else values

    losses, name = [part.history_[-1].loss for part in parts], LOSSES[model.loss].score
    content = {
        "passes": model.n_passes_ if labels else model.history_[-1].passes,
        "features": len(parts[0].coef_),
        "rank": of_parts([part.rank_ for part in parts]),
        "alpha": of_parts([part.alpha_ for part in parts]),
        "pairs": [pair._asdict() for part in parts for pair in found_pairs(part)],
        "loss": of_parts(losses),
    }
    rank = rank_of(model) if len(parts) == 1 else listed([str(part.rank_) for part in parts])
    if labels:
        content["classes"] = labels
        table = [["classes", listed(list(map(str, labels)))], ["rank", rank]]
        return content, [*table, ["log-loss + penalty", listed(list(map(number, losses)))]]
    content |= {"eigenvalues": model.eigenvalues_, f"{name[0]}2_train".lower(): score}
    return content, [["rank", rank], [f"{name} (training)", number(score)]]
