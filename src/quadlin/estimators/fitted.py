"""What an estimator is asked to learn and what it has learned, as objects that never change."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import inf
from numbers import Integral
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse
from sklearn.utils import check_random_state

from quadlin.core.arrays import Array, is_numpy, moved, namespace, to_numpy, unflagged
from quadlin.core.block import Block, with_data
from quadlin.core.chunks import MemorySource
from quadlin.core.losses import LOSSES, Loss
from quadlin.core.model import predict
from quadlin.core.moments import Moments, Survey, Tally, survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.data import Source
from quadlin.data.columns import text_columns
from quadlin.data.fields import field_numbers, fields_of
from quadlin.data.names import positions_of
from quadlin.estimators.checks import alphas, check_survey, is_auto, warn_of_extremes
from quadlin.estimators.columns import Columns
from quadlin.explain.effects import MOST_COLUMNS
from quadlin.explain.interactions import (
    Interactions,
    PairReport,
    report_of_fit,
    report_of_products,
    stream_report,
)
from quadlin.solve.composite.composer import PairRequest
from quadlin.solve.composite.fitting import TablePlan, fit, interrupted, with_passes
from quadlin.solve.fields.draws import Draws
from quadlin.solve.fields.machine import Posterior
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.fits.uncertainty import NORMAL, Uncertainty, missing_variance, standard_errors_of
from quadlin.solve.labels.likelihood import log_odds_of
from quadlin.solve.lowrank.design import EXACT_COLUMNS
from quadlin.solve.lowrank.levels import whole
from quadlin.solve.lowrank.types import FIXED, Automatic, Options, Status
from quadlin.solve.pairs.products import MOST_FEATURES
from quadlin.solve.pairs.search import MOST_PAIRS
from quadlin.stream.field_stream import FieldStream
from quadlin.stream.stream import (
    LEAST_ROWS,
    Stream,
    pair_numbers,
    refuse_pairs_with_strict,
    refuse_with_strict,
    rows_within,
)

BATCH_PER_PARAMETER = 10  # rows of a batch for each of the (k+1)·d parameters
BATCH_ELEMENTS = 1 << 25  # and at most this many entries
PROVISIONAL_RANK = 5  # of the batches of a stream whose rank is yet to be chosen
COUNTS_BEYOND = 2.0  # times the largest training count: the largest mean that is predicted

Attributes = Callable[[], dict[str, Any]]  # what makes a copy of the estimator ready to predict
OnStep = Callable[[Attributes], bool]  # called after each step; stops the fit by returning True


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
            least = LEAST_ROWS * max(1, options.dof(d, options.rank))
            room = self._room(pairs)
            if pairs is not None and room < least:
                refuse_pairs_with_strict(pairs)
                room, pairs = self._room(None), None
            strict = room < least
            if strict:
                refuse_with_strict(options)
                automatic = FIXED  # the rank is a provisional one, and there is no penalty
                size = max(2, BATCH_PER_PARAMETER * (options.rank + 1) * d)
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
    posterior: Posterior | None = None  # of the levels of fields; later rows begin with it

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


@dataclass(frozen=True)
class Reach:
    """The bounds of each feature: one training range beyond its training range.

    A column of zeros, such as a word that only new texts have, has no effect, and so no bounds.
    """

    low: Array  # (d,)
    high: Array

    @classmethod
    def of(cls, features: Moments) -> "Reach":
        """Return the bounds of rows with these moments."""
        xp, low, high = namespace(features.low), features.low, features.high
        empty = (low == 0) & (high == 0)
        return cls(xp.where(empty, -inf, 2 * low - high), xp.where(empty, inf, 2 * high - low))

    @unflagged
    def outside(self, X: Array) -> Array:
        """Tell which rows have a feature beyond its bounds."""
        low, high = self._in_dtype_of(X)
        if not issparse(X):
            return namespace(X).any((low > X) | (high < X), axis=1)
        beyond = np.flatnonzero((X.data < low[X.indices]) | (X.data > high[X.indices]))
        return np.isin(np.arange(X.shape[0]), np.searchsorted(X.indptr, beyond, "right") - 1)

    @unflagged
    def clipped(self, X: Array) -> tuple[Array, int]:
        """Return rows with each feature within its bounds, and how many rows lie outside."""
        xp, (low, high) = namespace(X), self._in_dtype_of(X)
        count = int(xp.count_nonzero(self.outside(X)))
        if not count:
            return X, 0
        if issparse(X):
            return with_data(X, np.clip(X.data, low[X.indices], high[X.indices])), count
        return xp.minimum(xp.maximum(X, low), high), count

    def _in_dtype_of(self, X: Array) -> list[Array]:
        """Return the bounds in the dtype of rows."""
        xp = namespace(X)
        return [xp.astype(bound, X.dtype, copy=False) for bound in (self.low, self.high)]


@dataclass(frozen=True)
class Fitted:
    """The model with its units, columns and uncertainty; learning more makes a new one."""

    learned: FitResult | Stream  # the model itself, from a table or from a stream
    columns: Columns
    fields: tuple[np.ndarray, ...] = ()  # the positions of the features of each field
    law: Uncertainty | None = None
    draws: Draws | None = None  # from the posterior, whose means are then the predictions
    pairs: PairReport | None = None  # what a search for pairs found, where there was one
    noise: float | None = None  # in the user's units, of a posterior that has no law of its own
    train_score: float | None = None  # of the fitted rows, where it was measured

    @classmethod
    def of(cls, task: Task, state: FitState, options: Options, tally: Tally) -> "Fitted":
        """Return the fit of a table."""
        learned = FitResult(state, options, tally, task)
        return cls(learned, task.columns, tuple(task.make_units.fields))

    @property
    def state(self) -> FitState:
        """Return the model and its units, an incomplete batch included."""
        return self.learned.current

    @property
    def parts(self) -> tuple["Fitted", ...]:
        """Return the models that this consists of, as of several classes: itself."""
        return (self,)

    @property
    def stream(self) -> Stream:
        """Return what `partial_fit` continues from."""
        return self.learned if isinstance(self.learned, Stream) else self.learned.stream

    def ready(self) -> "Fitted":
        """Return the same after it has learned all its rows, so that predictions need no fit."""
        if isinstance(self.learned, Stream):
            self.learned.catch_up()
        return self

    @property
    def status(self) -> Status:
        """Return how the fit ended."""
        return self.state.status

    @property
    def is_begun(self) -> bool:
        """Tell whether there is a model, and not only the constant with which every fit begins."""
        return self.status is not Status.interrupted or self.state.has_steps

    def interrupted(self) -> "Fitted":
        """Return the same with the status of a fit that was interrupted."""
        return self.with_state(interrupted(self.state))

    @property
    def has_spread(self) -> bool:
        """Tell whether the spread of predictions is known."""
        has_noise = self.law is not None and bool(np.isfinite(self.law.noise))
        return self.draws is not None or has_noise

    @property
    def options(self) -> Options:
        """Return the options that the model was fitted with, rank and penalties as chosen."""
        return self.learned.chosen

    @property
    def n_rows(self) -> int:
        """Return the number of rows that were learned from."""
        return self.learned.tally.counting

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the features, text columns by their levels."""
        return self.columns.names

    @cached_property
    def pair_report(self) -> PairReport | None:
        """Return the report of a search for pairs; None if there was none or its pairs are gone."""
        report = self.pairs
        if report is None:
            report = stream_report(self.names, self.state, self.n_rows)
        if report is None:
            return None
        left = max(1.0, self.n_rows if self.law is None else float(self.law.left))
        return report_of_products(
            report, self._products(), left, int(self.state.low_rank.s.shape[0])
        )

    @cached_property
    def interactions(self) -> Interactions:
        """Return a view of M in the user's units, with the standard errors of `pair_report`."""
        view, report = self._products(), self.pair_report
        if self.law is not None or report is None:
            return view
        errors = {frozenset(view.positions(*pair[:2])): pair.std_error for pair in report.pairs}
        return replace(view, errors=errors)

    @property
    def fill(self) -> dict[str, float]:
        """Return what replaces missing numbers, by column: as in the fit, or the means."""
        if self.columns.fill is not None:
            return self.columns.fill
        means = to_numpy(self.state.features.mean).tolist()
        by_name = dict(zip(self.names, means, strict=True))
        return {name: by_name[name] for name in self.columns.number_names}

    def with_passes(self, rows: Rows) -> "Fitted":
        """Return the same with all passes over the rows counted in the last line of the history."""
        return self.with_state(with_passes(self.state, rows))

    def with_state(self, state: FitState) -> "Fitted":
        """Return the same with another state; a stream keeps its own."""
        if isinstance(self.learned, Stream):
            return self
        return replace(self, learned=replace(self.learned, current=state), train_score=None)

    def attributes(self) -> dict[str, Any]:
        """Return the attributes that make an estimator a fitted one."""
        columns = self.columns
        named = {} if columns.names_in is None else {"feature_names_in_": columns.names_in}
        return {"fitted_": self, "n_features_in_": columns.n_features_in, **named}

    @cached_property
    def reach(self) -> Reach:
        """Return how far beyond the training rows features are followed."""
        return Reach.of(self.state.features)

    @unflagged
    def predict(self, X: Array) -> Array:
        """Return the predictions of rows as `in_model_dtype` returns them."""
        state, xp = self.state, namespace(X)
        if self.draws is not None:
            return np.asarray(self.draws.predict(X), dtype=state.units.scale.dtype)
        target = state.units.target
        f = xp.astype(predict(state.model, Block(X, state.units)), xp.float64)
        y = xp.astype(target.mean + target.scale * f, state.units.scale.dtype)
        _refuse_too_large("predictions", ~xp.isfinite(y), y.dtype)
        return y

    @property
    def loss(self) -> Loss:
        """Return the loss that was minimised."""
        return LOSSES[self.options.loss]

    @property
    def largest_mean(self) -> float:
        """Return the largest mean of counts: the exponential is followed no further."""
        high = float(self.state.target.high[0])
        return COUNTS_BEYOND * high if self.loss.nonnegative and high > 0 else inf

    @unflagged
    def predict_mean(self, X: Array, free: bool = False) -> Array:
        """Return the means of targets at rows: of counts, the exponential of `predict`."""
        f = self.predict(X)
        mean = self.loss.predicted(f, inf if free else self.largest_mean)
        _refuse_too_large("predicted means", ~namespace(mean).isfinite(mean), f.dtype)
        return mean

    @unflagged
    def predict_std(self, X: Array, absent: csr_array | None = None, free: bool = False) -> Array:
        """Return the standard deviations of new observations at rows; `absent`: missing values."""
        if self.loss.linked and self.draws is None:
            error = self.predict_error(X, absent)
            return self.loss.observed_std(self.predict_mean(X, free), error)
        if self.draws is not None:
            std = np.asarray(self.draws.predict(X, return_std=True)[1])
            return self._with_gaps(std, X, absent)
        assert self.law is not None
        units = self.state.units
        std = units.target.scale * self.law.predict_std(Block(X, units), predictive=True)
        return self._with_gaps(std, X, absent)

    @unflagged
    def predict_error(self, X: Array, absent: csr_array | None = None) -> Array:
        """Return the standard errors of `predict`, without any noise of observations."""
        assert self.law is not None
        units = self.state.units
        std = units.target.scale * self.law.predict_std(Block(X, units))
        return self._with_gaps(std, X, absent)

    def _with_gaps(self, std: Array, X: Array, absent: csr_array | None) -> Array:
        """Return standard deviations that include the errors by missing values and new levels.

        Draws have levels of their own for these.
        """
        state, encoded = self.state, self.columns.encoder is not None
        fields = self.fields if encoded else tuple(whole(state.units, self.fields))
        fields = () if self.draws is not None else fields
        variance = missing_variance(state.model, state.units, X, absent, fields)
        if variance is None:
            return std
        xp, device = namespace(X), None if issparse(X) else X.device
        variance = state.units.target.scale**2 * variance
        gap = xp.asarray(variance, dtype=state.units.mean.dtype, device=device)
        return xp.astype(xp.sqrt(std**2 + gap), std.dtype)

    def interval(self, mean: Array, std: Array, level: float) -> tuple[Array, Array]:
        """Return the ends of intervals that contain new observations with probability `level`.

        Targets are within as many standard deviations as Student's distribution says.
        """
        left = NORMAL if self.law is None else self.law.left  # draws include what is not certain
        return self.loss.interval(mean, std, level, standard_errors_of(level, left))

    def _products(self) -> Interactions:
        """Return a view of M in the user's units."""
        state = self.state
        model, scale = state.model, to_numpy(state.units.scale).astype(np.float64)
        return Interactions(
            to_numpy(model.U) * scale[:, None],
            to_numpy(model.s) * state.units.target.scale,
            to_numpy(state.units.free) > 0,
            field_numbers(self.fields, len(scale)),
            np.sqrt(to_numpy(state.features.var)),
            self.names,
            None if self.law is None else self.law.interaction_std,
        )

    def unscaled(self, share: float) -> "Fitted":
        """Return a fit of rows whose weights were multiplied by `share` as one of theirs."""
        if share == 1 or isinstance(self.learned, Stream):
            return self
        state, tally, options = self.state, self.learned.tally, self.options
        features, target = (
            replace(moments, weight=moments.weight / share)
            for moments in (state.features, state.target)
        )
        weights = (tally.weight / share, tally.squared_weight / share**2)
        learned = replace(
            self.learned,
            current=replace(state, features=features, target=target),
            chosen=replace(options, alpha=(options.alpha[0] / share, options.alpha[1] / share)),
            tally=replace(tally, weight=weights[0], squared_weight=weights[1]),
        )
        return replace(self, learned=learned)

    def in_model_dtype(self, X: Array, caller: str) -> Array:
        """Return rows in the dtype of the model, after a check of their namespace and device."""
        units = self.state.units
        return in_model_dtype(X, caller, units.scale, units.scale.dtype)


@dataclass(frozen=True)
class FittedClasses:
    """One fit for two classes, else one for each class against all others.

    If the scores of all classes were fitted together as well, the probabilities are theirs.
    """

    classes: np.ndarray
    parts: tuple[Fitted, ...]
    joint: tuple[Fitted, ...] = ()  # scores of all classes, where they were fitted together
    label: Any = None  # the class whose log-odds these are, where others are the rest

    @property
    def columns(self) -> Columns:
        """Return the columns. All parts share them."""
        return self.parts[0].columns

    @property
    def status(self) -> Status:
        """Return how the fit ended: interrupted, or of several the first that did not converge."""
        states = [part.state.status for part in self.parts]
        if Status.interrupted in states:
            return Status.interrupted
        return next((s for s in states if s is not Status.converged), Status.converged)

    @property
    def is_begun(self) -> bool:
        """Tell whether there is a model, and not only the constant with which every fit begins."""
        return self.parts[0].is_begun

    def interrupted(self) -> "FittedClasses":
        """Return the same with the status of a fit that was interrupted."""
        return replace(self, parts=(self.parts[0].interrupted(), *self.parts[1:]))

    @property
    def passes(self) -> int:
        """Return the number of passes: the last fit also counts the passes before it."""
        return self.parts[-1].state.history[-1].passes

    def with_passes(self, rows: Rows) -> "FittedClasses":
        """Return the same with all passes over the rows counted, also the passes of a joint fit."""
        return replace(self, parts=(*self.parts[:-1], self.parts[-1].with_passes(rows)))

    @property
    def last(self) -> Fitted:
        """Return the part that took the most steps."""
        return max(self.parts, key=lambda part: part.state.history[-1].step)

    def log_odds(self, X: Array) -> Array:
        """Return the log-odds of rows as `in_model_dtype` returns them, (n,) or (n, K)."""
        f = [part.predict(X) for part in self.joint or self.parts]
        if len(f) == 1:
            return f[0]
        F = namespace(X).stack(f, axis=1)
        return log_odds_of(F) if self.joint else F

    def log_odds_error(self, X: Array, absent: csr_array | None = None) -> Array:
        """Return the standard errors of `log_odds`; `absent` are the values that were missing."""
        errors = [part.predict_error(X, absent) for part in self.parts]
        return errors[0] if len(errors) == 1 else namespace(X).stack(errors, axis=1)

    def labels(self, f: Array) -> Array:
        """Return the most probable label for log-odds."""
        xp = namespace(f)
        codes = xp.astype(f > 0, xp.int64) if f.ndim == 1 else xp.argmax(f, axis=1)
        if is_numpy(f) or self.classes.dtype.kind not in "iufb":
            return self.classes[to_numpy(codes)]
        return xp.take(xp.asarray(self.classes, device=f.device), codes)

    def attributes(self) -> dict[str, Any]:
        """Return the attributes that make a classifier a fitted one."""
        named = self.parts[0].attributes()
        if len(self.parts) > 1:
            named["fitted_"] = self
        if self.label is not None:
            named["label_"] = self.label
        return {**named, "classes_": self.classes}


def _refuse_too_large(what: str, too_large: Array, dtype: Any) -> None:
    count = int(namespace(too_large).count_nonzero(too_large))
    if count:
        raise ValueError(
            f"The {what} of {count} rows are too large for {dtype}. Look for wrong units or typing "
            "errors in X."
        )


@unflagged
def in_model_dtype(X: Array, caller: str, example: Array, dtype: Any) -> Array:
    """Return rows in a dtype; raise an error for another namespace or device than the example."""
    xp, device = namespace(X), "cpu" if issparse(X) else X.device
    if example is not None and (xp, device) != (namespace(example), example.device):
        raise ValueError(
            f"Inputs passed to {caller}() must use the same namespace and the same device as those "
            f"passed to fit(): {namespace(example).__name__} on {example.device}, but they are "
            f"{xp.__name__} on {device}."
        )
    return X.astype(dtype, copy=False) if issparse(X) else xp.astype(X, dtype, copy=False)


@dataclass(frozen=True)
class Job:
    """Rows that can be read many times, and what to learn from them."""

    task: Task
    rows: Rows
    source: MemorySource | Source  # of the rows
    warm: FitState | None  # to start from
    on_step: OnStep | None

    def fitted(self) -> Fitted:
        """Fit the rows."""
        task, rows, surveyed = self.task, self.rows, self.rows.reduce(survey)
        names = task.make_units.names
        check_survey(surveyed, task.make_units.dtype, names, task.options)
        counts = is_sparse(self.source) and task.columns.encoder is None  # most of them 0
        robust = task.robust or LOSSES[task.options.loss].linked
        warn_of_extremes(surveyed, () if counts else names, robust)
        hook = None if self.on_step is None else self._hook(self.on_step, surveyed)
        found, plan = fit(task, rows, surveyed, self.warm, hook)
        task = replace(task, make_units=plan.make_units, automatic=plan.automatic)
        result = Fitted.of(task, found.state, found.options, surveyed.tally)
        result = replace(result, pairs=report_of_fit(names, found), law=found.law)
        return result.with_passes(rows)  # also those of standard errors

    def _hook(self, on_step: OnStep, surveyed: Survey) -> Callable[[FitState], bool]:
        def hook(state: FitState) -> bool:
            options = replace(self.task.options, rank=int(state.model.s.shape[0]))
            fitted = Fitted.of(self.task, state, options, surveyed.tally)
            return on_step(fitted.attributes)

        return hook

    def reweighted(self, weight: np.ndarray, y: np.ndarray | None = None) -> "Job":
        """Return the job with its weights multiplied by an array, and perhaps other targets."""
        source = self.source
        like = source.y if isinstance(source, MemorySource) else np.empty(0)
        factors, targets = moved(weight, like), None if y is None else moved(y, like)
        rows = self.rows.reweighted(factors, targets)
        if isinstance(source, MemorySource):
            both = factors if source.weight is None else factors * source.weight
            source = replace(source, y=source.y if y is None else targets, weight=both)
        return replace(self, rows=rows, source=source)

    def counting(self) -> tuple["Job", float]:
        """Return the job with weights that count rows, and what they were multiplied by.

        Penalties of a likelihood are compared with it, and there each row counts.
        """
        if isinstance(self.source, MemorySource) and self.source.weight is None:
            return self, 1.0
        tally = self.rows.reduce(Tally.of)
        if not tally.weight > 0:
            return self, 1.0  # an error follows
        if tally.share == 1:
            return self, 1.0
        return self.reweighted(np.full(tally.rows, tally.share)), tally.share


def require_law(fitted: Fitted, estimator: Any, what: str = "Standard errors") -> Uncertainty:
    """Return the law of the error of a fit; raise where it is not known."""
    if fitted.law is not None:
        return fitted.law
    if fitted.state.status is Status.interrupted:
        text = "The fit was interrupted before its standard errors were computed. Fit again."
    else:
        text = f"{what} need `fit` with uncertainty=True; `partial_fit` computes none."
        if hasattr(estimator, "draws"):
            text += " For rows of one-hot fields, draws=200 gives intervals of predictions."
    raise AttributeError(text)
