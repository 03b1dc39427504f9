"""Everything that an estimator has learned, as one object that never changes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, log
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import Array, namespace, to_numpy, unflagged
from quadlin.core.block import Block
from quadlin.core.model import predict
from quadlin.core.moments import Tally
from quadlin.core.rows import Rows
from quadlin.data.fields import field_numbers
from quadlin.estimators.regression.tasks import FitResult, Task
from quadlin.estimators.regression.trust import Reach, in_model_dtype
from quadlin.estimators.rows.columns import Columns
from quadlin.explain.interactions import Interactions
from quadlin.explain.pair_report import PairReport, stream_report
from quadlin.solve.fields.draws import Draws
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.fits.missing_values import missing_variance
from quadlin.solve.fits.uncertainty import Uncertainty
from quadlin.solve.lowrank.levels import whole
from quadlin.solve.lowrank.types import Options, Status
from quadlin.stream.stream import Stream

COUNTS_BEYOND = 2.0  # times the largest training count: the largest mean that is predicted


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
    def stream(self) -> Stream:
        """Return what `partial_fit` continues from."""
        return self.learned if isinstance(self.learned, Stream) else self.learned.stream

    def ready(self) -> "Fitted":
        """Return the same after it has learned all its rows, so that predictions need no fit."""
        _ = self.state
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
        return self.with_state(replace(self.state, status=Status.interrupted))

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

    @property
    def pair_report(self) -> PairReport | None:
        """Return what a search for pairs says; None if there was none, or its pairs are gone."""
        if self.pairs is not None:
            return self.pairs
        return stream_report(self.names, self.state, self.n_rows)

    @property
    def fill(self) -> dict[str, float]:
        """Return what replaces missing numbers, by column: that of the fit, or the means."""
        if self.columns.fill is not None:
            return self.columns.fill
        means = to_numpy(self.state.features.mean).tolist()
        by_name = dict(zip(self.names, means, strict=True))
        return {name: by_name[name] for name in self.columns.number_names}

    def with_passes(self, rows: Rows) -> "Fitted":
        """Return the same with all passes over the rows counted in the last line of the history."""
        history = self.state.history
        last = replace(history[-1], passes=rows.walks)
        return self.with_state(replace(self.state, history=(*history[:-1], last)))

    def with_state(self, state: FitState) -> "Fitted":
        """Return the same with another state."""
        assert isinstance(self.learned, FitResult)
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
    def smallest_log_mean(self) -> float:
        """Return the log of the smallest number: a mean of zero would rule every count out."""
        dtype = self.state.units.scale.dtype
        return log(float(namespace(self.state.units.scale).finfo(dtype).smallest_normal))

    @property
    def largest_log_mean(self) -> float:
        """Return the log of the largest mean of counts: the exponential is followed no further."""
        high = self.state.target.high
        return log(COUNTS_BEYOND * float(high[0])) if high is not None and high[0] > 0 else inf

    @unflagged
    def predict_mean(self, X: Array, free: bool = False) -> Array:
        """Return the means of targets at rows: of counts, the exponential of `predict`."""
        f = self.predict(X)
        if self.options.loss != "poisson":
            return f
        xp = namespace(f)
        f = xp.clip(f, min=self.smallest_log_mean, max=None if free else self.largest_log_mean)
        _refuse_too_large("predicted means", f > log(float(xp.finfo(f.dtype).max)), f.dtype)
        return xp.exp(f)

    @unflagged
    def predict_std(self, X: Array, absent: csr_array | None = None, free: bool = False) -> Array:
        """Return the standard deviations of new observations at rows; `absent`: missing values."""
        xp, gap = namespace(X), self.missing_variance(X, absent)
        if self.draws is not None:
            std = np.asarray(self.draws.predict(X, return_std=True)[1])
            return std if gap is None else np.sqrt(std**2 + gap).astype(std.dtype)
        assert self.law is not None
        units = self.state.units
        if self.options.loss == "poisson":  # a count varies by √mean about its mean
            mean, error = self.predict_mean(X, free), self.predict_error(X)
            squares = error**2 if gap is None else error**2 + gap
            return xp.sqrt(mean + mean**2 * squares)
        std = units.target.scale * self.law.predict_std(Block(X, units), predictive=True)
        return std if gap is None else xp.sqrt(std**2 + gap)

    def missing_variance(self, X: Array, absent: csr_array | None) -> Array | None:
        """Return the mean square error that missing values and new levels cause; None for none.

        Draws have levels of their own for these.
        """
        state, encoded = self.state, self.columns.encoder is not None
        fields = self.fields if encoded else tuple(whole(state.units, self.fields))
        fields = () if self.draws is not None else fields
        variance = missing_variance(state.model, state.units, X, absent, fields)
        if variance is None:
            return None
        device, scale = None if issparse(X) else X.device, state.units.target.scale
        return namespace(X).asarray(
            scale**2 * variance, dtype=state.units.mean.dtype, device=device
        )

    @unflagged
    def predict_error(self, X: Array) -> Array:
        """Return the standard errors of `predict`, without any noise of observations."""
        assert self.law is not None
        units = self.state.units
        return units.target.scale * self.law.predict_std(Block(X, units))

    def interactions(self) -> Interactions:
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

    def in_model_dtype(self, X: Array, caller: str) -> Array:
        """Return rows in the dtype of the model; refuse those of another namespace or device."""
        units = self.state.units
        return in_model_dtype(X, caller, units.scale, units.scale.dtype)


def _refuse_too_large(what: str, too_large: Array, dtype: Any) -> None:
    count = int(namespace(too_large).count_nonzero(too_large))
    if count:
        raise ValueError(
            f"The {what} of {count} rows are too large for {dtype}. Look for wrong units or typing "
            "errors in X."
        )
