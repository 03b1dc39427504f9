"""Everything that an estimator has learned, as one object that never changes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, log
from typing import Any

import numpy as np
from scipy.sparse import issparse

from quadlin.core.arrays import Array, namespace, to_numpy, unflagged
from quadlin.core.block import Block
from quadlin.core.model import predict
from quadlin.core.moments import Tally
from quadlin.core.rows import Rows
from quadlin.data.columns.columns import fill_for
from quadlin.data.columns.fields import field_numbers
from quadlin.data.columns.levels import MISSING_MARK
from quadlin.estimators.regression.tasks import FitResult, Task
from quadlin.estimators.regression.trust import Trust, in_model_dtype, trust_of
from quadlin.estimators.rows.columns import Columns
from quadlin.explain.interactions import Interactions
from quadlin.explain.pair_report import PairReport, stream_report
from quadlin.solve.fields.gibbs import Draws
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.fits.missing_values import LevelSpread, filled_columns, missing_variance
from quadlin.solve.fits.uncertainty import Uncertainty
from quadlin.solve.lowrank.levels import whole
from quadlin.solve.lowrank.types import Options, Status
from quadlin.stream.stream import Stream

COUNTS_BEYOND = 2.0  # times the largest count of the training rows: means that are trusted


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
    def rarity(self) -> float | None:
        """Return how much more rare columns were shrunk than common ones."""
        learned = self.learned
        if isinstance(learned, Stream):
            _ = learned.current  # rows of a first batch choose when they are first fitted
            return learned.make_units.rarity
        return learned.task.make_units.rarity

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
        features, dtype = self.state.features, to_numpy(self.state.units.scale).dtype
        means = zip(to_numpy(features.mean).tolist(), to_numpy(features.differs), strict=True)
        fills = [fill_for(mean, bool(differs), dtype) for mean, differs in means]
        by_name = dict(zip(self.names, fills, strict=True))
        return {name: by_name[name] for name in self.columns.number_names}

    @cached_property
    def fill_values(self) -> np.ndarray:
        """Return what replaces missing values by feature (d,), NaN where none are replaced."""
        fill = self.fill
        values = np.array([fill.get(name, np.nan) for name in self.names])
        return filled_columns(self.state.units, values)

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
    def trust(self) -> Trust:
        """Return how far rows and their predictions are trusted."""
        return trust_of(self.state, self.options, self.n_rows, may_be_exact=self.draws is None)

    def outside(self, X: Array) -> Array:
        """Tell which rows, or their predictions, lie beyond what is trusted."""
        outside = self.trust.outside(X)
        if self.trust.predictions is None:
            return outside
        f = self.predict(X)
        return outside | (f != self.trust.limited(f))

    @unflagged
    def predict(self, X: Array, clip: bool = True) -> Array:
        """Return the predictions of rows as `in_model_dtype` returns them, by default clipped."""
        state, xp = self.state, namespace(X)
        X = self.trust.clipped(X)[0] if clip else X
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
        """Return the log of the largest mean of counts that is trusted; inf where none is known."""
        high = self.state.target.high
        return log(COUNTS_BEYOND * float(high[0])) if high is not None and high[0] > 0 else inf

    @unflagged
    def predict_mean(self, X: Array, bounded: bool = True) -> Array:
        """Return the means of targets at rows that were clipped: of counts, the exponential.

        `bounded` limits them to where they are trusted.
        """
        f = self.predict(X, clip=False)
        if self.options.loss != "poisson":
            return self.trust.limited(f) if bounded else f
        xp = namespace(f)
        f = xp.clip(f, min=self.smallest_log_mean)
        if bounded:
            f = xp.clip(f, max=self.largest_log_mean)
        _refuse_too_large("predicted means", f > log(float(xp.finfo(f.dtype).max)), f.dtype)
        return xp.exp(f)

    @unflagged
    def predict_std(self, X: Array, filled: bool = False, bounded: bool = True) -> Array:
        """Return the standard deviations of new observations at these rows.

        `filled`: missing values were replaced by `fill`; `bounded` is that of `predict_mean`.
        """
        xp, gap = namespace(X), self.missing_variance(X, filled)
        if self.draws is not None:
            std = np.asarray(self.draws.predict(X, return_std=True)[1])
            return std if gap is None else np.sqrt(std**2 + gap).astype(std.dtype)
        assert self.law is not None
        units = self.state.units
        if self.options.loss == "poisson":  # a count varies by √mean about its mean
            mean, error = self.predict_mean(X, bounded), self.predict_error(X)
            squares = error**2 if gap is None else error**2 + gap
            return xp.sqrt(mean + mean**2 * squares)
        std = units.target.scale * self.law.predict_std(Block(X, units), predictive=True)
        return std if gap is None else xp.sqrt(std**2 + gap)

    def missing_variance(self, X: Array, filled: bool) -> Array | None:
        """Return the mean square error that missing values and new levels cause; None for none.

        Draws have levels of their own for these.
        """
        filled = filled or self.columns.fill is not None
        levels = None if self.draws is not None else self._level_spread
        if not filled and levels is None:
            return None
        state, gaps = self.state, None if self.law is None else self.law.gaps
        fill = self.fill_values if filled else np.full(len(self.names), np.nan)
        variance = missing_variance(state.model, state.units, X, fill, gaps, levels)
        if not variance.any():
            return None
        device, scale = None if issparse(X) else X.device, state.units.target.scale
        return namespace(X).asarray(
            scale**2 * variance, dtype=state.units.mean.dtype, device=device
        )

    @cached_property
    def _level_spread(self) -> LevelSpread | None:
        state, encoded = self.state, self.columns.encoder is not None
        fields = list(self.fields) if encoded else whole(state.units, self.fields)
        if not fields:
            return None
        return LevelSpread.of(state.model, state.units, fields, MISSING_MARK, self._level_errors())

    def _level_errors(self) -> np.ndarray | None:
        """Return the variances of what features add beside means (d,); None without a penalty."""
        if self.law is None or not any(self.options.alpha):
            return None
        mean = to_numpy(self.state.units.mean).astype(np.float64)
        std = self.law.slope_std(mean, self.fields) / self.state.units.target.scale
        return np.where(np.isfinite(std), std, 0.0) ** 2

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
