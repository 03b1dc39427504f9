"""`quadlin evaluate`: how well a model predicts rows whose target is known."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from quadlin.cli.messages import columns, emit, number
from quadlin.cli.options import LABELLED, SAY, Labelled, Say, loaded, opened_for
from quadlin.cli.progress import watched
from quadlin.core.moments import Moments

NORMAL_95 = 1.959963984540054  # standard deviations of a 95% interval


def evaluate(model: Path, data: str, *, read: Labelled = LABELLED, say: Say = SAY) -> None:
    """Say how well a model predicts rows whose target is known.

    Memory does not grow with the number of rows. NMSE is the mean squared error
    over the variance of y: 0 is perfect, 1 as good as the mean of these rows.

      quadlin evaluate model.safetensors test.csv --target price
      quadlin evaluate model.safetensors test.parquet --target price --json

    Parameters
    ----------
    model
        A file that quadlin fit wrote.
    data
        Rows: a file, a folder, a quoted pattern, or - for the standard input (with --format).
    """
    fitted = loaded(model)
    source = opened_for(fitted, data, read, say, need_target=True)
    known = fitted.fitted_.law is not None and fitted.fitted_.law.noise >= 0
    with watched(source, "evaluating", say.still) as rows:
        content = _scores(fitted, rows, known)
    content |= {"dropped": source.dropped, "unseen_levels": dict(source.unseen)}
    said = [
        ["rows", f"{content['rows']:,}", ""],
        ["R²", *_ratio(content["r2"], "")],
        ["NMSE", *_ratio(content["nmse"], "1 is the mean of these rows")],
        ["RMSE", number(content["rmse"]), ""],
        ["MAE", number(content["mae"]), ""],
        ["RMSE, constant", number(content["rmse_constant"]), "of the mean of the rows fitted"],
    ]
    if known:
        said.append(["coverage", f"{100 * content['coverage_95']:.1f}%", "of the 95% intervals"])
    emit(content, columns(said, ""), say.json)


def _ratio(value: float | None, meaning: str) -> tuple[str, str]:
    """Return what is measured by the variance of y, or say that there is none."""
    if value is None:
        return "none", "not defined: the target is the same in all these rows"
    return number(value), meaning


def _scores(model: Any, source: Any, known: bool) -> dict[str, Any]:
    total = squares = absolute = constant = inside = 0.0
    rows, mean, target = 0, float(model.fitted_.state.units.target.mean), None
    for chunk, f, std in model.predict_chunks(source, return_std=known):
        y = np.asarray(chunk.y, dtype=np.float64)
        weight = np.ones(len(y)) if chunk.weight is None else chunk.weight
        error = np.abs(np.asarray(f, dtype=np.float64) - y)
        rows, total = rows + len(y), total + float(weight.sum())
        squares += float(weight @ error**2)
        absolute += float(weight @ error)
        constant += float(weight @ (y - mean) ** 2)
        if std is not None:
            inside += float(weight @ (error <= NORMAL_95 * std))
        own = Moments.of(y[:, None], weight)
        target = own if target is None else target + own
    variance = 0.0 if target is None else float(target.var[0])
    if not total > 0:
        raise ValueError("All weights are zero: there is nothing to judge by.")
    varies = target is not None and bool(target.varies(np.float64)[0])
    nmse = squares / total / variance if varies else None
    return {
        "rows": rows,
        "r2": None if nmse is None else 1 - nmse,
        "nmse": nmse,
        "rmse": math.sqrt(squares / total),
        "mae": absolute / total,
        "rmse_constant": math.sqrt(constant / total),
        "coverage_95": inside / total if known else None,
    }
