"""`quadlin evaluate`: how well a model predicts rows with a target."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from quadlin.cli.classification import score_table, scores
from quadlin.cli.model_rows import load_model, open_rows_for, row_counts
from quadlin.cli.options import LabelledRowOptions, OutputOptions
from quadlin.cli.printing import aligned, number, print_answer
from quadlin.cli.progress import watched
from quadlin.cli.reading import stored_rows
from quadlin.core.moments import Moments
from quadlin.data import Source
from quadlin.estimators.labels.logistic_model import LogisticModel
from quadlin.estimators.regression.predicting import NO_WEIGHT, interval


def evaluate(
    model: Path,
    data: str,
    *,
    read: LabelledRowOptions = LabelledRowOptions(),
    answer: OutputOptions = OutputOptions(),
) -> None:
    """Measure how well a model predicts rows with a target.

    Memory does not grow with the number of rows. NMSE is the mean squared error
    divided by the variance of y: 0 is perfect, 1 is as good as the mean of these
    rows. The target and the weights are the columns that the model was fitted to,
    unless --target and --weight name others (--weight '' is none). For a
    classifier it prints AUC, log-loss and accuracy, and keeps a few numbers per
    row in memory.

      quadlin evaluate model.safetensors test.csv
      quadlin evaluate model.safetensors test.parquet --target price --json

    Parameters
    ----------
    model
        A model file written by quadlin fit.
    data
        Rows: a file, a folder, a quoted pattern, or - for the standard input (with --format).
    """
    fitted = load_model(model)
    if fitted.loss == "poisson":  # D² needs another pass
        data = stored_rows(data, read, answer)
    source = open_rows_for(fitted, data, read, answer, need_target=True)
    if isinstance(fitted, LogisticModel):
        with watched(source, "evaluating", answer.silent) as rows:
            content = scores(fitted, rows)
        content |= {"weight": source.weight, **row_counts(source)}
        print_answer(content, _lines(score_table(content), source), answer.json)
        return
    with_std = fitted.loss != "poisson" and fitted.fitted_.has_spread
    with watched(source, "evaluating", answer.silent) as rows:
        content = _scores(fitted, rows, with_std)
    content |= {"weight": source.weight, **row_counts(source)}
    table = [
        ["rows", f"{content['rows']:,}", ""],
        ["R²", *_ratio(content["r2"], "")],
        ["NMSE", *_ratio(content["nmse"], "1 for the mean of these rows")],
        ["RMSE", number(content["rmse"]), ""],
        ["MAE", number(content["mae"]), ""],
        ["RMSE, constant", number(content["rmse_constant"]), "for the mean of the fitted rows"],
    ]
    if fitted.loss == "poisson":
        content["d2"] = fitted.score(source)
        table.insert(1, ["D²", number(content["d2"]), "the share of Poisson deviance explained"])
    if with_std:
        table.append(["coverage", f"{100 * content['coverage_95']:.1f}%", "of the 95% intervals"])
    print_answer(content, _lines(table, source), answer.json)


def _lines(table: list[list[str]], source: Source) -> list[str]:
    if source.weight is not None:
        table[0][-1] = f"weighted by {source.weight}"  # the line of the number of rows
    return aligned(table, "")


def _ratio(value: float | None, meaning: str) -> tuple[str, str]:
    """Return a score that is relative to the variance of y, or say that it is not defined."""
    if value is None:
        return "none", "not defined: the target is the same in all these rows"
    return number(value), meaning


def _scores(model: Any, source: Any, with_std: bool) -> dict[str, Any]:
    total = squares = absolute = constant = inside = 0.0
    rows, mean, target = 0, float(model.target_moments_.mean[0]), None
    for chunk, f, std in model.predict_chunks(source, return_std=with_std):
        y = np.asarray(chunk.y, dtype=np.float64)
        weight = np.ones(len(y)) if chunk.weight is None else chunk.weight
        error = np.abs(np.asarray(f, dtype=np.float64) - y)
        rows, total = rows + len(y), total + float(weight.sum())
        squares += float(weight @ error**2)
        absolute += float(weight @ error)
        constant += float(weight @ (y - mean) ** 2)
        if std is not None:
            low, high = interval(model.fitted_, f, std, 0.95)
            inside += float(weight @ ((low <= y) & (y <= high)))
        moments = Moments.of(y[:, None], weight)
        target = moments if target is None else target + moments
    variance = 0.0 if target is None else float(target.var[0])
    if not total > 0:
        raise ValueError(NO_WEIGHT)
    varies = target is not None and bool(target.varies(np.float64)[0])
    nmse = squares / total / variance if varies else None
    return {
        "rows": rows,
        "r2": None if nmse is None else 1 - nmse,
        "nmse": nmse,
        "rmse": math.sqrt(squares / total),
        "mae": absolute / total,
        "rmse_constant": math.sqrt(constant / total),
        "coverage_95": inside / total if with_std else None,
    }
