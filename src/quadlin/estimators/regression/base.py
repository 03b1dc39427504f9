"""What the estimators share: they check rows, call the solver and keep what it learned."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from quadlin.core.arrays import unflagged
from quadlin.core.engine import blas_between_sums
from quadlin.core.messages import warn
from quadlin.core.rows import Rows
from quadlin.data.columns import find_ids
from quadlin.data.engines import engine_for
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.regression.fitting import Attributes, Job, OnStep
from quadlin.estimators.regression.streaming import Streaming
from quadlin.estimators.regression.tasks import seed_of, task_of
from quadlin.estimators.regression.weight_scale import in_given_weights, with_counting_weights
from quadlin.estimators.rows.columns import Columns, opened
from quadlin.estimators.rows.parameters import check_one_pass, check_options, is_auto
from quadlin.explain.diagnosis import diagnosis, listed, row_findings
from quadlin.files.checkpoints import checkpoint_of
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.fits.status_advice import status_advice
from quadlin.solve.lowrank.types import FIXED, Status

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # before scikit-learn 1.9 there are no callbacks

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Nothing: no callbacks can be set."""

    def with_callbacks(fit: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method as it is."""
        return fit


NO_MODEL = "The fit was interrupted before there was a model, so the estimator is unchanged."


@contextmanager
def no_model_yet() -> Iterator[None]:
    """Say that the estimator is unchanged if Ctrl-C ends a fit before there is a model."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(NO_MODEL) from error


def raise_or_warn(estimator: Any, status: Status, *expected: Status) -> None:
    """Pass Ctrl-C on; warn of a fit that neither converged nor ended in an expected way."""
    if status is Status.interrupted:
        raise KeyboardInterrupt(status.value)
    if status is not Status.converged and status not in expected:
        advice = status_advice(status, estimator.get_params(deep=False))
        text = f"{status.name}: {advice}"
        warn(text, ConvergenceWarning)


class FitCallbacks:
    """The callbacks of one fit (scikit-learn 1.9 and later), behind the one hook of the solver.

    Without callbacks nothing is set up and `on_step` is None.
    """

    def __init__(self, estimator: Any, X: Any, y: Any) -> None:
        self.estimator, self.rows = estimator, {"X": X, "y": y}
        self.root: Any = None
        self.on_step: OnStep | None = None  # what to call after each step; it tells whether to stop
        if getattr(estimator, "_skl_callbacks", None) or hasattr(estimator, "_parent_callback_ctx"):
            # How many samples and rounds of reweighting there will be is not known in advance.
            self.root = estimator._init_callback_context(max_subtasks=None)
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


class SecondOrderModel(CallbackSupportMixin, Streaming, BaseEstimator):
    """An estimator of the second order linear model, for subclasses that name its parameters."""

    categorical_features: Any = "from_dtype"  # of estimators without these parameters
    missing = "error"
    fit_linear, psd = True, False  # options of measurements, not of tables
    pairs: Any = None
    max_memory: int | str = "auto"
    losses: tuple[str, ...] = ("squared", "huber")
    _opened = opened  # rows that were checked, and their columns

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
        """Fit the model, in as many passes over the rows as needed.

        Ctrl-C keeps the model of the last completed step, if there is one, with the `status_`
        `interrupted`, and raises KeyboardInterrupt.

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
            return self._learn(source, columns, None, checkpoint)
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
        raise_or_warn(self, fitted.status, Status.stopped)
        return self

    @unflagged
    def diagnose(self, X: Any = None, y: Any = None) -> str:
        """Describe the fit, and suggest what to change.

        Parameters
        ----------
        X, y : rows and targets, or None
            With rows the text also compares their error with the leave-one-out error (up to 1,500
            parameters), and tells which rows account for most of the error, which columns look like
            ids, and whether the rank is too low: about ten passes.

        Returns
        -------
        str
            Lines on status, features, correlation, rows, outliers, errors, rank, and ids.

        Examples
        --------
        >>> import numpy as np
        >>> from quadlin import SecondOrderRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.standard_normal((300, 3))
        >>> y = X[:, 0] * X[:, 1] + 0.1 * rng.standard_normal(300)
        >>> print(SecondOrderRegressor(2, alpha=0, random_state=0).fit(X, y).diagnose())
        status: converged. A step no longer lowers the objective by more than the fraction `tol`.
        features: all vary, and their squares differ from linear terms.
        correlation: none that matters, or not tested.
        rows: 300 for 9 parameters, 33.3 each.
        rank: all 2 components stand out from the noise.
        """
        check_is_fitted(self)
        fitted, findings, ids = self.fitted_, None, list[str]()
        state, options = fitted.state, fitted.options
        if X is not None:
            source, _ = opened(self, X, y, None, fitted.columns)
            rows = Rows.of(source)
            findings = row_findings(rows, state, options, seed_of(self))
            ids = find_ids(rows, fitted.columns.number_names, fitted.names)
        n_rows, effective = fitted.n_rows, fitted.learned.tally.effective
        columns = (fitted.names, fitted.fields)
        how = (self.loss, is_auto(self.alpha) or hasattr(self, "cv_results_"))
        ended = status_advice(state.status, self.get_params(deep=False))
        text = diagnosis(state, ended, n_rows, effective, *columns, options, findings, *how)
        if ids:
            text += (
                f"\ncolumns: {listed(ids)} hold whole numbers that look like ids. If their order "
                f"means nothing, give categorical_features={ids!r}, or drop them."
            )
        return text

    def adopt(self, fitted: Any) -> None:
        """Become the estimator that has learned this: for `load` and cross-validation."""
        attributes = fitted.attributes()  # first: Ctrl-C leaves the earlier model or this one
        for name, value in attributes.items():
            setattr(self, name, value)
        if "feature_names_in_" in vars(self) and "feature_names_in_" not in attributes:
            delattr(self, "feature_names_in_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.positive_only = self.loss == "poisson"
        tags.input_tags.allow_nan = self.missing == "mean"
        tags.array_api_support = True
        return tags

    def _fitted_rows(self, job: Job) -> Fitted:
        """Fit rows that can be read many times; subclasses override it for special rows."""
        if job.task.options.loss != "poisson" or job.task.automatic == FIXED:
            return job.fitted()
        job, share = with_counting_weights(job)
        return in_given_weights(job.fitted(), share)

    def _warm_state(self, columns: Columns) -> FitState | None:
        """Return the state to start from; other levels are other features."""
        if not (self.warm_start and self.__sklearn_is_fitted__()):
            return None
        same = self.fitted_.columns.encoder == columns.encoder
        return self.fitted_.state if same else None
