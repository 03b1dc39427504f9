"""From an estimator's parameters to what the solver is asked for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from quadlin.core.arrays import is_numpy
from quadlin.core.chunks import MemorySource
from quadlin.core.losses import LINKED
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.data import Source
from quadlin.data.fields import check_one_hot, fields_among, given_fields
from quadlin.estimators.columns import Columns
from quadlin.estimators.fitting import Task
from quadlin.estimators.pair_request import is_sparse, request_of
from quadlin.estimators.parameters import alphas, is_auto
from quadlin.solve.choice import Automatic
from quadlin.solve.types import Options

PROVISIONAL_RANK = 5  # of the batches of a stream whose rank is yet to be chosen


def task_of(
    estimator: Any,
    source: MemorySource | Source,
    columns: Columns,
    fields: Sequence[np.ndarray],
    seed: int,
) -> Task:
    """Return what an estimator wants to learn from rows."""
    return Task(
        options_of(estimator, source.width),
        units_maker_of(estimator, columns.names, source.dtype, fields),
        columns,
        seed,
        estimator.batch_size,
        estimator.max_memory,
        automatic=Automatic(is_auto(estimator.rank), is_auto(estimator.alpha)),
        robust=estimator.loss == "huber",
        uncertainty=estimator.uncertainty,
        pairs=request_of(estimator, columns, is_sparse(source)),
    )


def options_of(estimator: Any, d: int) -> Options:
    """Return the options of a fit to d features; rank and penalties may be provisional."""
    rank, alpha = estimator.rank, estimator.alpha
    return Options(
        rank=min(PROVISIONAL_RANK if is_auto(rank) else int(rank), d),
        step=estimator.step,
        fit_linear=bool(estimator.fit_linear),
        fit_intercept=bool(estimator.fit_intercept),
        psd=bool(estimator.psd),
        max_iter=int(estimator.max_iter),
        tol=float(estimator.tol),
        polish=bool(estimator.polish),
        whiten=estimator.whiten,
        alpha=(0.0, 0.0) if is_auto(alpha) else alphas(alpha),
        loss=estimator.loss if estimator.loss in LINKED else "squared",
    )


def units_maker_of(
    estimator: Any, names: Sequence[str], dtype: Any, fields: Sequence[np.ndarray]
) -> UnitsMaker:
    """Return how features and targets are standardised."""
    diagonal = estimator.diagonal
    if not isinstance(diagonal, str):
        diagonal = [bool(free) for free in diagonal]
        if len(diagonal) != len(names):
            raise ValueError(
                f"diagonal has {len(diagonal)} entries but X has {len(names)} features. "
                "Give one boolean per feature."
            )
    intercept, linear = bool(estimator.fit_intercept), bool(estimator.fit_linear)
    labels, counts = estimator.loss == "logistic", estimator.loss == "poisson"
    return UnitsMaker(diagonal, intercept, dtype, names, fields, linear, labels, counts)


def fields_of(
    estimator: Any, rows: Rows | None, source: MemorySource | Source, columns: Columns
) -> tuple[np.ndarray, ...]:
    """Return the positions of the features of each field; `rows` is None in a stream."""
    fields = estimator.fields
    if columns.encoder is not None:
        if fields not in ("auto", None):
            raise ValueError("Text columns are fields of their own: leave `fields` as it is.")
        return columns.encoder.fields
    if isinstance(fields, str):
        if isinstance(source, Source) and len(source.fields):
            return source.fields
        # The first rows of a stream prove nothing.
        if rows is None or not (isinstance(source, Source) or is_numpy(source.X)):
            return ()
        return fields_among(rows.reduce, source.width)
    given = given_fields(fields, columns.names)
    if rows is not None and given:
        check_one_hot(rows.reduce, given, columns.names)
    return given


def seed_of(estimator: Any) -> int:
    """Return the seed of everything random in a fit."""
    return int(check_random_state(estimator.random_state).randint(2**31 - 1))
