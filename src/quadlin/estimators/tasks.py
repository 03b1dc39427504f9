"""From an estimator's parameters, also those of pairs, to what the solver is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from numbers import Integral
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import check_random_state

from quadlin.core.chunks import MemorySource
from quadlin.core.losses import LOSSES
from quadlin.core.moments import Tally
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.data import Source
from quadlin.data.encoder import text_columns
from quadlin.data.fields import fields_of
from quadlin.data.names import positions_of
from quadlin.estimators.checks import alphas, is_auto
from quadlin.estimators.columns import Columns
from quadlin.explain.effects import MOST_COLUMNS
from quadlin.solve.composite.composer import PairRequest
from quadlin.solve.composite.fitting import TablePlan
from quadlin.solve.fields.machine import Posterior
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank.design import EXACT_COLUMNS
from quadlin.solve.lowrank.types import FIXED, Automatic, Options
from quadlin.solve.pairs.search import MOST_FEATURES, MOST_PAIRS
from quadlin.stream.field_stream import FieldStream
from quadlin.stream.memory import (
    pair_numbers,
    refuse_pairs_with_strict,
    refuse_with_strict,
    rows_within,
)
from quadlin.stream.stream import FIRST_ROWS, Stream

BATCH_PER_PARAMETER = 10  # rows of a batch for each of the (k+1)·d parameters
BATCH_ELEMENTS = 1 << 25  # and at most this many entries
PROVISIONAL_RANK = 5  # of the batches of a stream whose rank is yet to be chosen


@dataclass(frozen=True, kw_only=True)
class Task(TablePlan):
    """What an estimator wants to learn: the plan of a fit, and what solvers need not know."""

    columns: Columns
    max_memory: int | str = "auto"

    def new_stream(self) -> Stream:
        """Return a stream that has no rows yet."""
        options, automatic, pairs, strict = self.options, self.automatic, self.pairs, False
        size, most = self._batch_sizes(options.rank)
        if self.max_memory != "auto":
            d = len(self.make_units.names)
            least = FIRST_ROWS * max(1, options.dof(d, options.rank))
            room = self._room(pairs)
            if pairs is not None and room < least:
                refuse_pairs_with_strict(pairs)
                room, pairs = self._room(None), None
            strict = room < least
            if strict:
                refuse_with_strict(options)
                automatic = FIXED  # the rank is a provisional one, and there is no penalty
            else:
                size, most = min(size, room), min(most, room)
        choices = (automatic, strict, pairs)
        return Stream(options, size, most, self.make_units, self.seed, None, *choices)

    def stream_after(self, state: FitState, options: Options, tally: Tally) -> Stream:
        """Return a stream that continues from a fit to so many rows."""
        pairs = self.pairs if state.running is not None else None
        sizes, seed = self._batch_sizes(options.rank), self.seed
        return Stream(options, *sizes, self.make_units, seed, state, pairs=pairs, tally=tally)

    def _batch_sizes(self, rank: int) -> tuple[int, int]:
        """Return the number of rows of a batch, and the most that a first batch may have."""
        d = len(self.make_units.names)
        most = max(2, BATCH_ELEMENTS // d)
        return max(2, min(BATCH_PER_PARAMETER * (rank + 1) * d, most)), most

    def _room(self, pairs: PairRequest | None) -> int:
        """Return how many rows of a first batch `max_memory` has room for."""
        d, more = len(self.make_units.names), 0
        if pairs is not None:
            rank = min(self.options.rank, EXACT_COLUMNS // d)
            more = pair_numbers(d, rank, len(pairs.given or ()) or pairs.most or MOST_PAIRS)
        return rows_within(self.max_memory, self.options, d, self.automatic != FIXED, more)


@dataclass(frozen=True)
class FitResult:
    """A model that was fitted to a table, and the task that a stream can continue with."""

    current: FitState
    chosen: Options  # rank and penalties as given or chosen
    tally: Tally  # of the rows
    task: Task
    posterior: Posterior | None = None  # of the levels of fields, which later rows begin with

    @cached_property
    def stream(self) -> Stream:
        """Return a stream that continues from here."""
        stream = self.task.stream_after(self.current, self.chosen, self.tally)
        if self.posterior is None:
            return stream
        return FieldStream.of(
            replace(stream, automatic=self.task.automatic), posterior=self.posterior
        )


def is_sparse(source: MemorySource | Source) -> bool:
    """Tell whether rows are sparse."""
    return bool(source.sparse if isinstance(source, Source) else issparse(source.X))


def request_of(estimator: Any, columns: Columns, sparse: bool) -> PairRequest | None:
    """Return which pairs an estimator wants of these features; None if none.

    By default they are looked for where the rank is chosen as well, or is 0 and the penalties are
    chosen: another rank that is given is the rank of M, and rank 0 with a penalty is a ridge.
    """
    pairs = estimator.pairs
    if pairs is None:
        return None
    names = columns.names
    d = len(names)
    if is_auto(pairs):
        plain = estimator.fit_intercept and estimator.solver == "auto"
        plain = plain and LOSSES[estimator.loss].has_moments
        linear = estimator.rank == 0 and is_auto(estimator.alpha)
        looks = (is_auto(estimator.rank) or linear) and plain and 2 <= d <= MOST_COLUMNS
        return PairRequest(asked=False) if looks else None
    if isinstance(pairs, Integral):
        if d > MOST_FEATURES and not sparse:
            raise ValueError(
                f"There are {d:,} features. The search looks at all products of at most "
                f"{MOST_FEATURES:,} features, and in sparse rows at those that occur. Select "
                "features, give a sparse matrix, or list the pairs."
            )
        return PairRequest(int(pairs)) if pairs else None
    wholes = text_columns(columns.encoder)
    entry: dict[tuple[int, int], int] = {}  # the products of two text columns enter together
    for step, pair in enumerate(pairs, 1):
        first, second = (positions_of(names, wholes, feature).tolist() for feature in pair)
        for i, j in product(first, second):
            entry.setdefault((min(i, j), max(i, j)), step)
    return PairRequest(given=tuple(entry), entry=tuple(entry.values())) if entry else None


def task_of(
    estimator: Any,
    rows: Rows | None,
    source: MemorySource | Source,
    columns: Columns,
    seed: int,
) -> Task:
    """Return what an estimator wants to learn from rows; `rows` is None in a stream."""
    d, dtype, names = source.width, source.dtype, columns.names
    auto, robust = is_auto(estimator.rank), LOSSES[estimator.loss].robust
    reduce = None if rows is None else rows.reduce
    fields = fields_of(estimator.categorical_features, source, columns.encoder, names, reduce)
    return Task(
        options_of(estimator, d),
        units_maker_of(estimator, names, dtype, fields),
        seed,
        Automatic(auto, is_auto(estimator.alpha)),
        columns=columns,
        max_memory=estimator.max_memory,
        robust=robust,
        uncertainty=estimator.uncertainty,
        pairs=request_of(estimator, columns, is_sparse(source)),
    )


def options_of(estimator: Any, d: int) -> Options:
    """Return the options of a fit to d features; rank and penalties may be provisional."""
    rank, alpha = estimator.rank, estimator.alpha
    return Options(
        rank=min(PROVISIONAL_RANK if is_auto(rank) else int(rank), d),
        fit_intercept=bool(estimator.fit_intercept),
        max_iter=int(estimator.max_iter),
        tol=float(estimator.tol),
        solver=estimator.solver,
        alpha=(0.0, 0.0) if is_auto(alpha) else alphas(alpha),
        loss=LOSSES[estimator.loss].solved,
    )


def units_maker_of(
    estimator: Any, names: Sequence[str], dtype: Any, fields: Sequence[np.ndarray]
) -> UnitsMaker:
    """Return how features and targets are standardised."""
    intercept, loss = bool(estimator.fit_intercept), LOSSES[estimator.loss].solved
    return UnitsMaker(estimator.squares, intercept, dtype, names, fields, loss=loss)


def seed_of(estimator: Any) -> int:
    """Return the seed of everything random in a fit: without a random_state always the same."""
    if estimator.random_state is None:
        return 0
    return int(check_random_state(estimator.random_state).randint(2**31 - 1))
