"""Learning from rows that are seen once."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import numpy as np
from array_api_compat import is_array_api_obj
from sklearn.utils.metaestimators import available_if

from quadlin.core.arrays import Array, namespace, unflagged
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.messages import warn
from quadlin.core.moments import Tally
from quadlin.core.rows import Rows
from quadlin.data import Source, is_dask
from quadlin.data.fields import given_fields
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.regression.fitted_model import FittedModel
from quadlin.estimators.regression.tasks import (
    Task,
    options_of,
    request_of,
    seed_of,
    task_of,
    units_maker_of,
)
from quadlin.estimators.regression.trust import in_model_dtype
from quadlin.estimators.rows.columns import Columns, warn_unseen
from quadlin.estimators.rows.input_errors import check_weights
from quadlin.estimators.rows.parameters import check_options, is_asked_for, is_auto
from quadlin.files.checkpoints import checkpointed_stream
from quadlin.stream.stream import Stream


def _can_stream(estimator: Any) -> bool:
    """Refuse losses that need several passes, in the way that scikit-learn expects."""
    if estimator.loss == "poisson":
        raise AttributeError(
            'There is no partial_fit with loss="poisson", which needs several passes over the '
            "rows. Use `fit` on rows in memory or in a file."
        )
    return True


class Streaming(FittedModel):
    """An estimator that can learn from a stream."""

    rank: Any  # parameters, which subclasses name
    alpha: Any
    categorical_features: Any
    loss: Any
    pairs: Any
    _opened: Callable[..., tuple[MemorySource | Source, Columns]]  # checked rows, their columns
    adopt: Callable[[Fitted], None]

    @available_if(_can_stream)  # type: ignore[untyped-decorator]
    @unflagged
    def partial_fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, checkpoint: Any = None
    ) -> Self:
        """Learn from rows that are seen once: O(kd) memory, one step per batch.

        Rows are collected until there are ten for each parameter, so it does not matter how the
        stream is divided into calls. Predictions include the rows of an incomplete batch. After
        `fit` the stream continues from the fitted model with the same options; to change `rank` or
        `alpha`, for example, fit again.

        Parameters
        ----------
        X, y, sample_weight
            As for `fit`. Rows that all have weight 0 change nothing.
        checkpoint : path or None
            For a Source: a file to which the state is written every few seconds. If the process is
            killed and started again with the same rows and options, the stream continues where it
            stopped.

        Returns
        -------
        self

        Examples
        --------
        >>> from quadlin import SecondOrderRegressor
        >>> from quadlin.datasets import make_second_order
        >>> data = make_second_order(2000, 5, rank=1, noise=0.1, n_test=100, random_state=0)
        >>> model = SecondOrderRegressor(1, random_state=0)
        >>> for start in range(0, 2000, 500):
        ...     batch = slice(start, start + 500)
        ...     model = model.partial_fit(data.X[batch], data.y[batch])
        >>> model.n_samples_seen_, model.score(data.X_test, data.y_test) > 0.95
        (2000, True)
        """
        fitted = self.fitted_ if self.__sklearn_is_fitted__() else None
        check_options(self)
        if self.loss == "huber" and (fitted is None or not isinstance(fitted.learned, Stream)):
            warn(
                'partial_fit minimises squared errors: loss="huber" needs several passes over '
                "the rows, so gross errors in y count in full. Use `fit`, or remove them first."
            )
        if fitted is not None:
            self._refuse_changes(fitted)
        weightless = sample_weight is not None and all_zero(sample_weight)
        if weightless:  # the rows are checked all the same
            sample_weight = as_array(sample_weight) + 1.0
        if fitted is not None:
            fitted, X = self._with_levels(fitted, X)
        previous = None if fitted is None else fitted.columns
        source, columns = self._opened(X, y, sample_weight, previous)
        return self if weightless else self._learn(source, columns, fitted, checkpoint)

    def _learn(
        self,
        source: MemorySource | Source,
        columns: Columns,
        fitted: Fitted | None,
        checkpoint: Any,
    ) -> Self:
        """Learn from rows as they come."""
        self._check_stream(fitted)
        if fitted is None:
            task = task_of(self, None, source, columns, seed_of(self))
            stream, fields = self._begun(task, source), tuple(task.make_units.fields)
        else:
            stream, fields = fitted.stream, fitted.fields
        caller = f"{type(self).__name__}.partial_fit"
        if isinstance(source, MemorySource):
            X = in_model_dtype(source.X, caller, *stream.example_and_dtype)
            chunk = Chunk(X, source.y, source.weight)
            self.adopt(Fitted(stream.fed(chunk), columns, fields).ready())
            return self
        with checkpointed_stream(checkpoint, source, self, stream, columns.names_in) as keeper:
            for chunk in keeper.rest(Rows.of(source)):
                check_weights(Tally.of(chunk), source.dtype)
                with keeper.feeding():
                    X = in_model_dtype(chunk.X, caller, *keeper.stream.example_and_dtype)
                    keeper.stream = keeper.stream.fed(replace(chunk, X=X))
                if keeper.stream.n_rows:
                    self.adopt(Fitted(keeper.stream, columns, fields))
            if not keeper.stream.n_rows:
                raise ValueError("No row has a weight above 0, so there is nothing to learn from.")
            self.adopt(Fitted(keeper.stream, columns, fields).ready())  # all rows may be old ones
        if source.unseen:
            warn_unseen(source.unseen, learns=True)
        return self

    def _check_stream(self, fitted: Fitted | None) -> None:
        """Refuse streams that cannot begin, or go on; subclasses override it."""

    def _with_levels(self, fitted: Any, X: Any) -> tuple[Any, Any]:
        """Return what goes on, and its rows, where these may have new levels."""
        return fitted, X

    def _begun(self, task: Task, source: MemorySource | Source) -> Stream:
        """Return the stream that learns rows such as those of a source."""
        return task.new_stream()

    def _refuse_changes(self, fitted: Fitted) -> None:
        """Refuse options that define the model and are not those it began with."""
        stream, d = fitted.stream, len(fitted.names)
        options, maker = options_of(self, d), units_maker_of(self, fitted.names, None, ())
        changed = {
            name: getattr(options, name) != getattr(stream.options, name)
            for name in ("rank", "alpha", "fit_intercept")
        }
        # Pairs that `fit` has found became part of M, whose rank the stream goes on with.
        state = stream.state  # that of an incomplete batch would cost a step, or a fit
        with_pairs = state is not None and state.parts is not None
        changed["rank"] = changed["rank"] and not (is_auto(self.rank) or with_pairs)
        changed["alpha"] = changed["alpha"] and not is_auto(self.alpha)
        if is_asked_for(self.pairs) and stream.pairs is not None:
            changed["pairs"] = request_of(self, fitted.columns, True) != stream.pairs
        changed["squares"] = maker.squares != stream.make_units.squares
        given = given_fields(self.categorical_features, fitted.names)
        if given:
            different = [[*f] for f in given] != [[*f] for f in fitted.fields]
            changed["categorical_features"] = different
        if any(changed.values()):
            raise ValueError(
                f"{', '.join(name for name in changed if changed[name])} changed since the model "
                "started to learn, and `partial_fit` cannot continue with other values. Restore "
                "the earlier ones, or start again with `fit` or a clone."
            )


def all_zero(weight: Any) -> bool:
    """Tell whether all weights are zero, if they are in memory."""
    if is_dask(weight):
        return False
    weight = as_array(weight)
    return not bool(namespace(weight).any(weight != 0))


def as_array(values: Any) -> Array:
    """Return an array as it is, and a list or a series as an array of numpy."""
    return values if is_array_api_obj(values) else np.asarray(values)
