"""How estimators learn: `fit` from rows that can be read again, `partial_fit` from a stream."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self, TypeVar

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if

from quadlin.core.arrays import unflagged
from quadlin.core.chunks import MemorySource
from quadlin.core.engine import blas_between_sums
from quadlin.core.losses import LOSSES, loss_named
from quadlin.core.messages import warn
from quadlin.core.moments import Tally
from quadlin.core.rows import Rows
from quadlin.data import Source
from quadlin.data.engines import engine_for
from quadlin.data.fields import given_fields
from quadlin.estimators.checks import (
    check_one_pass,
    check_options,
    check_weights,
    is_asked_for,
    is_auto,
)
from quadlin.estimators.columns import Columns, RowsLike, Vector, opened, warn_unseen
from quadlin.estimators.fitted import (
    Attributes,
    Fitted,
    Job,
    OnStep,
    Task,
    in_model_dtype,
    options_of,
    request_of,
    seed_of,
    task_of,
)
from quadlin.exceptions import OptionWarning
from quadlin.files.checkpoints import checkpoint_of, checkpointed_stream
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank.types import FIXED, Status
from quadlin.stream.stream import Stream

# The callbacks of scikit-learn 1.9 and later, behind the one hook of the solver. Nothing else knows
# what scikit-learn calls them: a version without these names calls no callback.
try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:
    CallbackSupportMixin = object

    def with_callbacks(fit: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method as it is."""
        return fit


OWN, BEGIN = "_skl_callbacks", "_init_callback_context"  # an attribute and a method of the mixin
Method = TypeVar("Method", bound=Callable[..., Any])


def watched(fit: Method) -> Method:
    """Let a method tell callbacks of its steps; its type stays the same."""
    watched: Method = with_callbacks(fit)
    return watched


class FitCallbacks:
    """The callbacks of one fit; without any, nothing is set up and `on_step` is None."""

    def __init__(self, estimator: Any, X: Any, y: Any) -> None:
        self.estimator, self.rows = estimator, {"X": X, "y": y}
        self.root: Any = None
        self.on_step: OnStep | None = None  # what to call after each step; it tells whether to stop
        begin = getattr(estimator, BEGIN, None)
        if begin and getattr(estimator, OWN, None):
            # How many samples and rounds of reweighting there will be is not known in advance.
            self.root = begin(max_subtasks=None)
            self.root.call_on_fit_task_begin(estimator=estimator, **self.rows)
            self.on_step = self._step

    def _step(self, attributes: Attributes) -> bool:
        context = self.root.subcontext(task_name="step")
        context.call_on_fit_task_begin(estimator=self.estimator, **self.rows)
        return self._end(context, attributes)

    def end(self, attributes: Attributes) -> None:
        """Tell the callbacks that the fit is over."""
        if self.root is not None:
            self._end(self.root, attributes)

    def _end(self, context: Any, attributes: Attributes) -> bool:
        return bool(
            context.call_on_fit_task_end(
                estimator=self.estimator, **self.rows, reconstruction_attributes=attributes
            )
        )


@contextmanager
def no_model_yet() -> Iterator[None]:
    """Say that the estimator is unchanged if Ctrl-C ends a fit before there is a model."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(
            "The fit was interrupted before there was a model, so the estimator is unchanged."
        ) from error


def raise_or_warn(status: Status, *expected: Status) -> None:
    """Pass Ctrl-C on; warn of a fit that neither converged nor ended in an expected way."""
    if status is Status.interrupted:
        raise KeyboardInterrupt(status.value)
    if status is not Status.converged and status not in expected:
        warn(f"{status.name}: {status.value}", ConvergenceWarning)


def _can_stream(estimator: Any) -> bool:
    """Raise an error for losses that need several passes, in the way that scikit-learn expects."""
    if not loss_named(estimator.loss).has_moments:
        raise AttributeError(
            f"There is no partial_fit with loss={estimator.loss!r}, because it needs several "
            "passes over the rows. Use `fit` on rows in memory or in a file."
        )
    return True


def where_streams(method: Method) -> Method:
    """Offer a method where rows may be seen once; its type stays the same."""
    offered: Method = available_if(_can_stream)(method)
    return offered


class Learning(CallbackSupportMixin):
    """A mixin of estimators that learn from rows: all at once, or from a stream."""

    fitted_: Any
    rank: Any  # parameters that subclasses name
    alpha: Any
    pairs: Any
    loss: str
    categorical_features: Any
    warm_start: bool
    adopt: Callable[[Any], None]
    # Of estimators that have no such parameter.
    max_memory: int | str = "auto"
    solver: str = "auto"

    @watched
    @unflagged
    def fit(
        self,
        X: RowsLike,
        y: Vector = None,
        sample_weight: Vector = None,
        *,
        engine: Any = None,
        checkpoint: Any = None,
    ) -> Self:
        """Fit the model, in as many passes over the rows as needed.

        Ctrl-C keeps the model of the last completed step, if there is one, with the `status_`
        `interrupted`, and raises KeyboardInterrupt. With more than two classes there is one as soon
        as each class has been fitted.

        Parameters
        ----------
        X : array, sparse matrix, frame, Dask collection or Source (n_samples, n_features)
            Rows. A Source opened by :func:`~quadlin.open_source` has its own targets and weights;
            rows that can be read only once are learned as by `partial_fit`.
        y : array (n_samples,)
            Targets.
        sample_weight : array (n_samples,) or None
            A weight of 2 has the same effect as giving the row twice, 0 as leaving it out. Where
            penalties are chosen, a common factor of all weights does not matter: whole numbers
            count rows after division by their greatest common divisor, and all other weights are
            relative.
        engine : None, "serial", "threads", "cuda", int or Dask client
            Where the sums over rows are computed: "serial" in this thread, with the threads of the
            linear algebra library; "threads", or a number of them, in several threads, with the
            same result for any number; "cuda" on a GPU, by torch and, if installed, Triton, to
            which dense rows in memory are copied; a `distributed.Client` on its cluster, where the
            rows stay. None uses the cluster that holds Dask's rows, or the GPU that holds tensors;
            for arrays, sparse matrices and frames as many threads as this process has free cores
            (at most OMP_NUM_THREADS, and one inside a thread or process that joblib or Dask
            started); and "serial" for everything else.
        checkpoint : path or None
            A file that holds the model after the last completed step, O(kd) numbers, written every
            few seconds. A fit that is killed and started again with the same rows and options
            begins at that model; choices of rank and penalties, and fits of several classes or of a
            posterior, start again. The file is kept after the fit.

        Returns
        -------
        self
        """
        check_options(self)
        source, columns = self._opened(X, y, sample_weight, least=2)
        if not source.again:
            check_one_pass(self)
            return self._learn(source, columns, None, checkpoint, ends=True)
        warm = self._warm_state(columns)
        with no_model_yet():
            kept = checkpoint_of(checkpoint, source, self, seed_of(self), warm, columns.names_in)
            callbacks = FitCallbacks(self, X, y)
            rows = Rows(engine_for(source, engine))
            task = task_of(self, rows, source, columns, kept.seed)
            with blas_between_sums(rows.engine):
                start, on_step = kept.start or warm, kept.watched(callbacks.on_step)
                fitted = self._fitted_rows(Job(task, rows, source, start, on_step))
            if not fitted.is_begun:
                raise KeyboardInterrupt
            kept.note(fitted)
        self.adopt(fitted)
        callbacks.end(fitted.attributes)
        raise_or_warn(fitted.status, Status.stopped)
        return self

    @where_streams
    @unflagged
    def partial_fit(
        self, X: RowsLike, y: Vector = None, sample_weight: Vector = None, *, checkpoint: Any = None
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
        fitted = getattr(self, "fitted_", None)
        begins = fitted is None or not isinstance(fitted.learned, Stream)
        if begins and loss_named(self.loss).robust:
            warn(
                f"partial_fit minimises squared errors: loss={self.loss!r} needs several passes "
                "over the rows, so gross errors in y count in full. Use `fit`, or remove them "
                "first.",
                OptionWarning,
            )
        fitted, source, columns = self._opened_again(fitted, X, y, sample_weight)
        if isinstance(source, MemorySource) and not len(source.y):
            return self  # no row counts
        return self._learn(source, columns, fitted, checkpoint)

    def _learn(
        self,
        source: MemorySource | Source,
        columns: Columns,
        fitted: Fitted | None,
        checkpoint: Any,
        ends: bool = False,
    ) -> Self:
        """Learn from rows as they come; `ends` if no more will come."""
        self._check_stream(fitted)
        (stream,), fields = self._streams(fitted, source, columns)
        caller = f"{type(self).__name__}.partial_fit"
        path = checkpoint if isinstance(source, Source) else None
        with checkpointed_stream(path, source, self, stream, columns.names_in) as keeper:
            for chunk in keeper.rest(Rows.of(source)):
                check_weights(Tally.of(chunk), source.dtype)
                with keeper.feeding():
                    X = in_model_dtype(chunk.X, caller, *keeper.stream.example_and_dtype)
                    keeper.stream = keeper.stream.fed(replace(chunk, X=X))
                if keeper.stream.n_rows:
                    self.adopt(Fitted(keeper.stream, columns, fields))
            if not keeper.stream.n_rows:
                raise ValueError("No row has a weight above 0, so there is nothing to learn from.")
            stream = keeper.stream.whole() if ends else keeper.stream
            self.adopt(Fitted(stream, columns, fields).ready())  # all rows may be old ones
        if isinstance(source, Source) and source.unseen:
            warn_unseen(source.unseen, learns=True)
        return self

    def _opened_again(
        self, fitted: Any, X: Any, y: Any, weight: Any, **labels: Any
    ) -> tuple[Any, MemorySource | Source, Columns]:
        """Return what a stream goes on with, and rows that were checked, with their columns."""
        check_options(self)
        if fitted is None:
            return None, *self._opened(X, y, weight, **labels)
        self._refuse_changes(fitted.parts[0])
        fitted, X = self._with_levels(fitted, X)
        return fitted, *self._opened(X, y, weight, fitted.columns, **labels)

    def _streams(
        self, fitted: Any, source: MemorySource | Source, columns: Columns, count: int = 1
    ) -> tuple[list[Stream], tuple[np.ndarray, ...]]:
        """Return the streams that go on, or begin with these rows, and their fields."""
        if fitted is not None:
            return [part.stream for part in fitted.parts], fitted.parts[0].fields
        task = task_of(self, None, source, columns, seed_of(self))
        return [self._begun(task, source) for _ in range(count)], tuple(task.make_units.fields)

    def _check_stream(self, fitted: Fitted | None) -> None:
        """Raise an error for streams that cannot begin, or go on; subclasses override it."""

    def _with_levels(self, fitted: Any, X: Any) -> tuple[Any, Any]:
        """Return what goes on, and its rows, where these may have new levels."""
        return fitted, X

    def _begun(self, task: Task, source: MemorySource | Source) -> Stream:
        """Return the stream that learns rows of this kind."""
        return task.new_stream()

    def _refuse_changes(self, fitted: Fitted) -> None:
        """Raise an error for options that define the model and are not those it began with."""
        stream, options = fitted.stream, options_of(self, len(fitted.names))
        begun, state = stream.options, stream.state
        # Pairs that `fit` has found became part of M; the stream goes on with its rank.
        with_pairs = state is not None and state.parts is not None
        fields = given_fields(self.categorical_features, fitted.names)
        changed = {
            "rank": not (is_auto(self.rank) or with_pairs) and options.rank != begun.rank,
            "alpha": not is_auto(self.alpha) and options.alpha != begun.alpha,
            "fit_intercept": options.fit_intercept != begun.fit_intercept,
            "pairs": is_asked_for(self.pairs)
            and stream.pairs not in (None, request_of(self, fitted.columns, True)),
            "squares": self.squares != stream.make_units.squares,
            "categorical_features": fields
            and [[*f] for f in fields] != [[*f] for f in fitted.fields],
        }
        if any(changed.values()):
            raise ValueError(
                f"{', '.join(name for name in changed if changed[name])} changed since the model "
                "started to learn, and `partial_fit` cannot continue with other values. Restore "
                "the earlier ones, or start again with `fit` or a clone."
            )

    def _opened(
        self, X: Any, y: Any, weight: Any, columns: Columns | None = None, least: int = 1
    ) -> tuple[MemorySource | Source, Columns]:
        """Return rows that were checked, and their columns."""
        return opened(self, X, y, weight, columns, least)

    def _fitted_rows(self, job: Job) -> Any:
        """Fit rows that can be read many times; subclasses override it for special rows."""
        if not LOSSES[job.task.options.loss].linked or job.task.automatic == FIXED:
            return job.fitted()
        job, share = job.counting()
        return job.fitted().unscaled(share)

    def _warm_state(self, columns: Columns) -> FitState | None:
        """Return the state to start from; other levels are other features."""
        if not (self.warm_start and hasattr(self, "fitted_")):
            return None
        same = self.fitted_.columns.encoder == columns.encoder
        return self.fitted_.state if same else None
