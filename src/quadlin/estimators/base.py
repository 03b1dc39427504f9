"""What the estimators share: they check rows, call the solver and keep what it learned."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from array_api_compat import is_array_api_obj
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from quadlin.core.arrays import Array, is_numpy, namespace, unflagged
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.engine import blas_between_sums
from quadlin.core.messages import Message, warn
from quadlin.core.rows import Rows
from quadlin.core.standardise import UnitsMaker
from quadlin.core.survey import Tally
from quadlin.data import Source, is_dask
from quadlin.data.cluster import engine_for
from quadlin.data.codes import code_advice, code_columns
from quadlin.data.dask_collections import lazily
from quadlin.data.fields import check_one_hot, fields_among, given_fields
from quadlin.estimators.callbacks import CallbackSupportMixin, FitCallbacks, with_callbacks
from quadlin.estimators.columns import (
    Columns,
    blocks_to_predict,
    check_weights,
    opened,
    warn_outside,
    warn_unseen,
)
from quadlin.estimators.explaining import Explaining
from quadlin.estimators.fitted import Fitted, Learned, at_home
from quadlin.estimators.fitting import Task, fit
from quadlin.estimators.pair_request import (
    check_pairs,
    is_sparse,
    refuse_in_stream,
    request_of,
)
from quadlin.estimators.parameters import alphas, check_one_pass, check_options, is_auto
from quadlin.explain.diagnosis import diagnosis
from quadlin.explain.row_findings import row_findings
from quadlin.solve.choice import Automatic
from quadlin.solve.fit_state import FitState
from quadlin.solve.types import Options, Status
from quadlin.storage import checkpointed, checkpointed_stream

PROVISIONAL_RANK = 5  # of the batches of a stream whose rank is yet to be chosen


class SecondOrderModel(CallbackSupportMixin, Explaining, BaseEstimator):
    """An estimator of the second order linear model, for subclasses that name its parameters."""

    categorical_features: Any = "from_dtype"  # of estimators without these parameters
    missing = "error"
    pairs: Any = None
    hierarchy: str | None = None
    max_memory: int | str = "auto"

    @with_callbacks  # type: ignore[untyped-decorator]
    @unflagged
    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        engine: Any = None,
        checkpoint: Any = None,
    ) -> Self:
        """Fit to the rows given, in as many passes as it takes.

        Ctrl-C leaves the model of the last finished step, once there is one: it can be used, its
        `status_` is `interrupted`, and KeyboardInterrupt goes on to the caller.

        Parameters
        ----------
        X : array, sparse matrix, frame, Dask collection or Source (n_samples, n_features)
            Rows. What :func:`~quadlin.open_source` opens brings its own targets and weights; rows
            that can be walked only once are learned from as by `partial_fit`.
        y : array (n_samples,)
            Targets.
        sample_weight : array (n_samples,) or None
            A weight of 2 is the same as the row given twice, 0 as the row left out.
        engine : None, "serial", "threads", int or Dask client
            What carries out the sums over rows: "serial" this thread, with the linear algebra
            library's own threads; "threads" or their number, several threads, which add the same
            numbers in the same order whatever their number is; a `distributed.Client` its cluster,
            where the rows then stay. None is the client that Dask's rows belong to; else, for
            arrays, sparse matrices and frames, as many threads as there are cores that this process
            may use and nobody else does (one in a thread or a process that joblib or Dask started,
            and at most OMP_NUM_THREADS); else "serial".
        checkpoint : path or None
            A file in which every pass is noted, so that a fit that was killed, started again with
            the same rows and options, goes on where it was and ends at the same model. It takes
            O(kd) bytes a pass and stays there when the fit is done.

        Returns
        -------
        self
        """
        check_options(self)
        check_pairs(self)
        source, columns = self._opened(X, y, sample_weight, least=2)
        if not source.again:
            check_one_pass(self)
            refuse_in_stream(self)
            return self._learn(source, columns, None, checkpoint)
        warm = self._warm_state(columns)
        names = columns.names_in
        with checkpointed(checkpoint, source, self, self._seed(), warm, names) as (seed, journal):
            rows = Rows(engine_for(source, engine), journal)
            callbacks = FitCallbacks(self, X, y)
            task = self._task(source, columns, self._known_fields(rows, source, columns), seed)
            with blas_between_sums(rows.engine):
                fitted = self._fitted_rows(task, rows, source, warm, callbacks.on_step)
        self.adopt(fitted)
        callbacks.end(fitted.attributes)
        if self.status_ is Status.interrupted:
            raise KeyboardInterrupt(self.status_.value)
        self._warn_of_status()
        return self

    @unflagged
    def partial_fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, checkpoint: Any = None
    ) -> Self:
        """Learn from rows that are seen once: O(kd) memory, one step a batch.

        Rows are gathered until `batch_size` of them are there, so it does not matter how the
        stream is cut. An incomplete batch counts in what the model predicts meanwhile. After
        `fit` the stream goes on from the fitted model, with the options that define it: to change
        `rank` or `alpha`, say, fit again.

        Parameters
        ----------
        X, y, sample_weight
            As for `fit`. Rows that all have weight 0 change nothing.
        checkpoint : path or None
            For a Source: a file to which the state is written every few seconds. Started again
            with the same rows and options after a kill, the stream goes on where it was.

        Returns
        -------
        self
        """
        fitted = self.fitted_ if self.__sklearn_is_fitted__() else None
        check_options(self)
        check_pairs(self)
        if fitted is None:
            refuse_in_stream(self)
        if self.loss == "huber":
            warn(
                'partial_fit minimises squared errors: loss="huber" needs rows that can be walked '
                "again, so gross errors in y count in full. Use `fit`, or remove them beforehand."
            )
        if fitted is not None:
            self._refuse_changes(fitted)
        weightless = sample_weight is not None and all_zero(sample_weight)
        if weightless:  # the rows are checked all the same
            sample_weight = _as_array(sample_weight) + 1.0
        known = None if fitted is None else fitted.columns
        source, columns = self._opened(X, y, sample_weight, known)
        return self if weightless else self._learn(source, columns, fitted, checkpoint)

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Predict the targets of some rows.

        Parameters
        ----------
        X : array, sparse matrix, frame, Dask collection or Source (n_samples, n_features)
            Rows. Those of a Source are never in memory together.
            The answer to a Dask collection is a Dask array, which is computed when it is needed.
        return_std : bool, default=False
            Whether to return the standard deviation of a new observation as well, noise
            included: ±1.96 of them are a 95% interval if the noise is equal in all rows and has
            no heavy tails (or with ``loss="huber"``). Needs ``uncertainty=True``, or draws.

        Returns
        -------
        array (n_samples,), or a pair of them
        """
        check_is_fitted(self)
        fitted = self.fitted_
        if return_std:
            self._require_spread()
        if is_dask(X):
            fitted.columns.check_names(X)
            return lazily(self.predict, X, np.dtype(fitted.state.units.scale.dtype), return_std)
        xp = namespace(fitted.state.model.U)
        y, std, outside = [], [], 0
        for X_block in blocks_to_predict(self, X, fitted.columns):
            block = fitted.at_home(X_block, f"{type(self).__name__}.predict")
            inside, changed = self._trusted(block)
            y.append(fitted.predict(inside, clip=False))
            outside += changed
            if return_std:
                std.append(fitted.predict_std(block))
        warn_outside(outside)
        return (xp.concat(y), xp.concat(std)) if return_std else xp.concat(y)

    def predict_chunks(
        self, source: Source, return_std: bool = False
    ) -> Iterator[tuple[Chunk, Array, Array | None]]:
        """Predict the rows of a source chunk by chunk: memory does not grow with their number.

        Parameters
        ----------
        source : Source
            Rows, opened with ``encoder=model.encoder_``.
        return_std : bool, default=False
            As for `predict`.

        Yields
        ------
        chunk, y, std
            The rows as numbers, their predictions, and standard deviations or None.
        """
        check_is_fitted(self)
        fitted = self.fitted_
        if return_std:
            self._require_spread()
        fitted.columns.check_source(source)
        outside = 0
        for chunk in Rows.of(source).walk():
            X = fitted.at_home(chunk.X, f"{type(self).__name__}.predict")
            inside, changed = self._trusted(X)
            outside += changed
            y = fitted.predict(inside, clip=False)
            yield chunk, y, fitted.predict_std(X) if return_std else None
        warn_outside(outside)
        if source.unseen:
            warn_unseen(source.unseen)

    def extrapolates(self, X: Any) -> Array:
        """Tell which rows lie far outside the training rows, where no model should be trusted.

        Parameters
        ----------
        X : array, sparse matrix or frame (n_samples, n_features)
            Rows.

        Returns
        -------
        array of bool (n_samples,)
            Whether some feature is further from its training range than that range is wide. Those
            are the rows that ``extrapolation="clip"`` changes before it predicts them.
        """
        check_is_fitted(self)
        fitted, marks = self.fitted_, []
        for X_block in blocks_to_predict(self, X, fitted.columns):
            block = fitted.at_home(X_block, f"{type(self).__name__}.extrapolates")
            marks.append(fitted.outside(block))
        return namespace(marks[0]).concat(marks)

    @unflagged
    def diagnose(self, X: Any = None, y: Any = None) -> str:
        """Say in words what there is to know about the fit, and what to change.

        Parameters
        ----------
        X, y : rows and targets, or None
            With rows it also tells the error on them beside that on rows left out one at a time
            (up to 1,500 parameters), which rows carry most of the error, which columns look like
            ids or codes, and whether the rank is too low: about ten passes.

        Returns
        -------
        str
            Lines on status, features, correlation, rows, outliers, errors, rank, and ids or codes.
        """
        check_is_fitted(self)
        fitted, findings, codes = self.fitted_, None, []
        state, options = fitted.state, fitted.options
        if X is not None:
            source, _ = opened(self, X, y, None, fitted.columns)
            rows = Rows.of(source)
            findings = row_findings(rows, state, options, self._seed())
            codes = code_columns(rows.walk(), fitted.columns.number_names, fitted.names)
        n_rows, effective = fitted.stream.n_rows, fitted.stream.effective_rows
        columns = (fitted.names, fitted.fields)
        how = (self.loss == "huber", is_auto(self.alpha) or hasattr(self, "cv_results_"))
        text = diagnosis(state, n_rows, effective, *columns, options, findings, *how)
        return Message.joined([text, *map(code_advice, codes)], "\n")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self.missing == "mean"
        tags.array_api_support = True
        return tags

    def adopt(self, fitted: Learned) -> None:
        """Become the estimator that has learned this: for `load` and cross-validation."""
        for name in ("fitted_", "n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
        for name, value in fitted.attributes().items():
            setattr(self, name, value)

    def _opened(
        self, X: Any, y: Any, weight: Any, columns: Columns | None = None, least: int = 1
    ) -> tuple[MemorySource | Source, Columns]:
        """Return rows that were checked, and their columns."""
        return opened(self, X, y, weight, columns, least)

    def _fitted_rows(
        self,
        task: Task,
        rows: Rows,
        source: MemorySource | Source,
        warm: FitState | None,
        on_step: Any,
    ) -> Fitted:
        """Fit rows that can be walked many times; subclasses may know better ways."""
        return fit(task, rows, warm, on_step)

    def _warn_of_status(self) -> None:
        if self.status_ not in (Status.converged, Status.stopped):
            status, advice = self.status_.name, self.status_.value
            warn(Message("{status}: {advice}", status=status, advice=advice), ConvergenceWarning)

    def _warm_state(self, columns: Columns) -> FitState | None:
        """Return the state to start from; other levels are other features."""
        if not (self.warm_start and self.__sklearn_is_fitted__()):
            return None
        same = self.fitted_.columns.encoder == columns.encoder
        return self.fitted_.state if same else None

    def _learn(
        self,
        source: MemorySource | Source,
        columns: Columns,
        fitted: Fitted | None,
        checkpoint: Any,
    ) -> Self:
        """Learn from rows as they come."""
        if fitted is None:
            fields = self._known_fields(None, source, columns)
            task = self._task(source, columns, fields, self._seed())
            stream = task.stream(task.options)
        else:
            stream, fields = fitted.stream, fitted.fields
        caller = f"{type(self).__name__}.partial_fit"
        if isinstance(source, MemorySource):
            chunk = Chunk(at_home(source.X, caller, stream), source.y, source.weight)
            self.adopt(Fitted(stream.fed(chunk), columns, fields))
            return self
        with checkpointed_stream(checkpoint, source, self, stream, columns.names_in) as keeper:
            for chunk in keeper.rest(source):
                check_weights(Tally.of(chunk), source.dtype)
                with keeper.feeding():
                    X = at_home(chunk.X, caller, keeper.stream)
                    keeper.stream = keeper.stream.fed(replace(chunk, X=X))
                if keeper.stream.n_rows:
                    self.adopt(Fitted(keeper.stream, columns, fields))
            if not keeper.stream.n_rows:
                raise ValueError("No row has a weight above 0, so there is nothing to learn from.")
            self.adopt(Fitted(keeper.stream, columns, fields))  # all rows may be old ones
        if source.unseen:
            warn_unseen(source.unseen, learns=True)
        return self

    def _refuse_changes(self, fitted: Fitted) -> None:
        """Refuse options that define the model and are not those it began with."""
        began, d = fitted.stream.options, len(fitted.names)
        options, maker = self._options(d), self._units_maker(fitted.names, None, ())
        changed = {
            name: getattr(options, name) != getattr(began, name)
            for name in ("rank", "alpha", "fit_linear", "fit_intercept", "psd")
        }
        # Pairs that `fit` has found became part of M, whose rank the stream goes on with.
        with_pairs = fitted.state.parts is not None
        changed["rank"] = changed["rank"] and not (is_auto(self.rank) or with_pairs)
        changed["alpha"] = changed["alpha"] and not is_auto(self.alpha)
        before = fitted.stream.make_units.diagonal
        changed["diagonal"] = list(maker.diagonal) != list(before)
        if not isinstance(self.fields, str) and fitted.columns.encoder is None:
            given = given_fields(self.fields, fitted.names)
            changed["fields"] = [[*f] for f in given] != [[*f] for f in fitted.fields]
        if any(changed.values()):
            raise ValueError(
                f"{', '.join(name for name in changed if changed[name])} changed since the model "
                "began to learn, which `partial_fit` cannot follow. Set it back, or begin again "
                "with `fit` or a clone."
            )

    def _known_fields(
        self, rows: Rows | None, source: MemorySource | Source, columns: Columns
    ) -> tuple[np.ndarray, ...]:
        """Return the positions of the features of each field; `rows` is None in a stream."""
        if columns.encoder is not None:
            if self.fields not in ("auto", None):
                raise ValueError("Text columns are fields of their own: leave `fields` as it is.")
            return columns.encoder.fields
        if isinstance(self.fields, str):
            if isinstance(source, Source) and len(source.fields):
                return source.fields
            # The first rows of a stream prove nothing.
            if rows is None or not (isinstance(source, Source) or is_numpy(source.X)):
                return ()
            return fields_among(rows.reduce, source.width)
        given = given_fields(self.fields, columns.names)
        if rows is not None and given:
            check_one_hot(rows.reduce, given, columns.names)
        return given

    def _task(
        self,
        source: MemorySource | Source,
        columns: Columns,
        fields: Sequence[np.ndarray],
        seed: int,
    ) -> Task:
        return Task(
            self._options(source.width),
            self._units_maker(columns.names, source.dtype, fields),
            columns,
            seed,
            self.batch_size,
            self.max_memory,
            automatic=Automatic(is_auto(self.rank), is_auto(self.alpha)),
            robust=self.loss == "huber",
            uncertainty=self.uncertainty,
            pairs=request_of(self, columns, is_sparse(source)),
        )

    def _options(self, d: int) -> Options:
        return Options(
            rank=min(PROVISIONAL_RANK if is_auto(self.rank) else int(self.rank), d),
            step=self.step,
            fit_linear=bool(self.fit_linear),
            fit_intercept=bool(self.fit_intercept),
            psd=bool(self.psd),
            max_iter=int(self.max_iter),
            tol=float(self.tol),
            polish=bool(self.polish),
            whiten=self.whiten,
            alpha=(0.0, 0.0) if is_auto(self.alpha) else alphas(self.alpha),
        )

    def _units_maker(
        self, names: Sequence[str], dtype: Any, fields: Sequence[np.ndarray]
    ) -> UnitsMaker:
        diagonal = self.diagonal
        if not isinstance(diagonal, str):
            diagonal = [bool(free) for free in diagonal]
            if len(diagonal) != len(names):
                raise ValueError(
                    f"diagonal has {len(diagonal)} entries but X has {len(names)} features. "
                    "Give one boolean per feature."
                )
        intercept, linear = bool(self.fit_intercept), bool(self.fit_linear)
        return UnitsMaker(diagonal, intercept, dtype, names, fields, linear)

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))


def all_zero(weight: Any) -> bool:
    """Tell whether all weights are zero, if they are in memory."""
    if is_dask(weight):
        return False
    weight = _as_array(weight)
    return not bool(namespace(weight).any(weight != 0))


def _as_array(weight: Any) -> Array:
    return weight if is_array_api_obj(weight) else np.asarray(weight)
