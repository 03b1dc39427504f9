"""Estimators for scikit-learn: thin around the solver."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import numpy as np
from array_api_compat import is_array_api_obj
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from quadlin.core.arrays import Array, namespace, to_numpy, unflagged
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.messages import Message, warn
from quadlin.core.model import predict
from quadlin.core.moments import Moments
from quadlin.core.standardise import UnitsMaker
from quadlin.core.survey import Survey, Tally, survey
from quadlin.data import Source, is_dask
from quadlin.data.cluster import carried
from quadlin.data.fields import given_fields
from quadlin.data.names import Name
from quadlin.estimators.callbacks import CallbackSupportMixin, step_hook, with_callbacks
from quadlin.estimators.input import Incoming, check_weights, warn_unseen
from quadlin.estimators.parameters import alphas, check_one_pass, check_options
from quadlin.explain.diagnosis import diagnosis, residual_edge
from quadlin.metrics import degrees_of_freedom
from quadlin.solve.fit_state import Learned, learn_table
from quadlin.solve.rank import choose_rank
from quadlin.solve.robust import closer, learn_robustly, robust_law
from quadlin.solve.types import Options, Status
from quadlin.solve.uncertainty import Uncertainty, uncertainty_of
from quadlin.storage import checkpointed, keeping
from quadlin.stream.stream import Stream

BATCH_PER_PARAMETER = 10  # rows of a batch for each of the (k+1)·d parameters
BATCH_ELEMENTS = 1 << 25  # and at most this many entries


class SecondOrderRegressor(CallbackSupportMixin, RegressorMixin, Incoming, BaseEstimator):
    r"""Second order linear model with a low-rank, signed quadratic part.

    .. math:: y = b + x^\top w + x^\top M x + \text{noise},
              \qquad M = M^\top,\ \mathrm{rank}\,M \le k

    fitted by least squares, optionally penalised,

    .. math:: \min\; \sum_i \omega_i (f(x_i) - y_i)^2 + \alpha_1 |w|^2 + 2 \alpha_2 \|M\|_F^2

    from a start by moment estimates: no learning rate, and the objective never rises. Features are
    standardised internally, and the penalty is on standardised ones; whatever is fitted is
    reported in the user's units.

    Parameters
    ----------
    rank : int or "auto", default=5
        Rank k of the quadratic part. A rank above the number of features means no restriction, 0
        a linear model. "auto" chooses it in `fit`: by the eigenvalues that stand out of the noise,
        confirmed on rows held out, at the cost of two or three fits; advised, like
        :class:`SecondOrderRegressorCV`, where the rank is not known.
    diagonal : {"auto", "free", "zero"} or array of bool, default="auto"
        Whether the squares :math:`x_j^2` are modelled: "auto" wherever they can be told from
        :math:`x_j`, which they cannot for a feature with two values (unless ``fit_linear=False``);
        "free" everywhere; "zero" nowhere (factorization machine); or one boolean a feature.
    alpha : float or (float, float), default=0.0
        Ridge penalty, for w and M together or one each. It weighs the coefficients of
        standardised features, and of their products, against a sum over rows, as in `Ridge`;
        those of a one-hot column by 1/√(standard deviation) more, so that rare levels shrink more.
        A stream is penalised in its first batch, which in the end comes to the same.
    loss : {"squared", "huber"}, default="squared"
        "huber" is for gross errors in y: residuals beyond 1.345 standard deviations count
        linearly, not quadratically. It takes a few fits. Streams are fitted by squares.
    fields : "auto", None or list of lists of features, default="auto"
        Groups of 0/1 columns of which exactly one is 1 in each row (one-hot). Products within a
        group are always zero, so M has no entries there. "auto" finds them (in numpy and sparse
        rows). Text and categorical columns of a frame become such groups by themselves. Without a
        penalty, coefficients of the levels and of their products are told from their mean over
        the rows, which a level that was never seen counts as.
    fit_linear : bool, default=True
        Whether w is fitted, else it is zero.
    fit_intercept : bool, default=True
        Whether b is fitted, else it is zero.
    psd : bool, default=False
        Whether the low-rank part is held positive semi-definite.
    whiten : {"auto", "full", "lowrank", "none"}, default="auto"
        Whether correlated features are decorrelated inside `fit`: "full" by a d×d matrix,
        "lowrank" by O(50 d) numbers, "auto" if one pass of random probes finds any correlation
        ("full" up to 2,000 features). It changes the path, not the optimum.
    polish : bool, default=True
        Whether `fit` goes on to the least-squares optimum by Gauss–Newton. False is the moment
        estimation sequence alone, for many rows of independent features.
    step : {"guarded", "plain"}, default="guarded"
        The step with ``polish=False``: "guarded" goes to the least-squares best along each step
        and never raises the training loss; "plain" is the paper's step of full length, which
        needs many rows and independent features and diverges otherwise.
    max_iter : int, default=50
        Most steps of `fit`; a Gauss–Newton step may take some twelve passes over the rows, one of
        the moment estimation sequence takes two.
    tol : float, default=1e-6
        `fit` stops when a step promises to lower the objective by less than this share of it.
    batch_size : int or "auto", default="auto"
        Rows that `partial_fit` gathers for a step. "auto" takes ten a parameter, at most 2²⁵
        entries of X, and doubles the first batch while noise hides the quadratic part in it.
    uncertainty : bool, default=False
        Whether `fit` also finds how sure it is: `noise_`, `coef_std_`, `intercept_std_`,
        `interaction_std` and `predict(X, return_std=True)`. It takes three passes and a matrix of
        the size of the parameters up to 1,500 of them, some 30 passes and 400·k·d numbers beyond.
    warm_start : bool, default=False
        Whether `fit` starts from the model of the last fit.
    random_state : int, RandomState or None, default=None
        Seed of the random matrix that the first estimate starts from.

    Attributes
    ----------
    coef_ : array (n_features,)
        w. Text columns count by their levels: ``interactions_.names`` names the entries.
    intercept_ : float
        b.
    components_ : array (rank, n_features)
        Orthonormal rows.
    eigenvalues_ : array (rank,)
        Signed, by falling size. The low-rank part of M is
        ``components_.T @ diag(eigenvalues_) @ components_``; its eigenvalues are those of M where
        every feature has a diagonal.
    rank_ : int
        The rank fitted, at most the number of features.
    has_diagonal_ : array of bool (n_features,)
        Where M has a diagonal: elsewhere the diagonal of the low-rank part is left out of M.
    interactions_ : Interactions
        A view of M: ``interactions_["a", "b"]`` and ``interactions_.row("a")`` are entries M_ij,
        as are `interaction` and `interaction_std`; ``interactions_.top(10)`` lists the strongest
        by the coefficient that x_i·x_j has in y, which is 2 M_ij.
    moments_ : Moments
        Mean, variance, skewness and kurtosis of the features.
    history_ : tuple of Record
        The objective after each step (mean squared error plus penalty; in a stream the error on
        each new batch) and the passes taken so far.
    status_ : Status
        How the fit ended; its value is advice.
    n_iter_ : int
        Steps taken.
    n_samples_seen_ : int
        Rows learned from.
    noise_, intercept_std_ : float
        With ``uncertainty=True``: the standard deviation of the noise, the standard error of b.
    coef_std_ : array (n_features,)
        With ``uncertainty=True``: the standard errors of w.
    encoder_ : TableEncoder or None
        Of the text columns: ``open_source(..., encoder=model.encoder_)`` reads others like them.
    fill_ : dict or None
        What stood for missing numbers, by column, where the rows came from
        ``open_source(..., missing="mean")``. `predict` fills nothing by itself:
        ``predict(open_source(rows, encoder=model.encoder_, fill=model.fill_))`` does.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Notes
    -----
    Time: O(nnz(X)·k) a pass; some 50 passes with 30 rows a parameter, 80 with four, 150 with two.
    Memory beside X: O((k + 8)d), a block of rows, and d×d with full whitening; X is never copied
    (but once where it is CSC, or CSR that is not sorted or has several entries in one place).
    float32 stays float32.

    Examples
    --------
    >>> from quadlin import SecondOrderRegressor
    >>> from quadlin.datasets import make_second_order
    >>> data = make_second_order(3000, 10, rank=2, n_test=100, random_state=0)
    >>> model = SecondOrderRegressor(rank=2, random_state=0).fit(data.X, data.y)
    >>> round(model.score(data.X_test, data.y_test), 6)
    1.0
    >>> sorted(model.eigenvalues_.round(6).tolist())
    [-1.0, 1.0]
    """

    def __init__(
        self,
        rank: int | str = 5,
        *,
        diagonal: str | Sequence[bool] = "auto",
        alpha: float | tuple[float, float] = 0.0,
        loss: str = "squared",
        fields: str | Sequence[Sequence[Name]] | None = "auto",
        fit_linear: bool = True,
        fit_intercept: bool = True,
        psd: bool = False,
        whiten: str = "auto",
        polish: bool = True,
        step: str = "guarded",
        max_iter: int = 50,
        tol: float = 1e-6,
        batch_size: int | str = "auto",
        uncertainty: bool = False,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        self.rank = rank
        self.diagonal = diagonal
        self.alpha = alpha
        self.loss = loss
        self.fields = fields
        self.fit_linear = fit_linear
        self.fit_intercept = fit_intercept
        self.psd = psd
        self.whiten = whiten
        self.polish = polish
        self.step = step
        self.max_iter = max_iter
        self.tol = tol
        self.batch_size = batch_size
        self.uncertainty = uncertainty
        self.warm_start = warm_start
        self.random_state = random_state

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
            library's own threads; "threads" or their number, a thread for each part of the rows;
            a `distributed.Client` its cluster, where the rows then stay. None is the client that
            Dask's rows belong to, else "serial".
        checkpoint : path or None
            A file in which every pass is noted, so that a fit that was killed, started again with
            the same rows and options, goes on where it was and ends at the same model. It takes
            O(kd) bytes a pass and stays there when the fit is done.

        Returns
        -------
        self
        """
        check_options(self)
        with self._kept_on_failure():
            warm, encoder = None, getattr(self, "_encoder", None)
            if self.warm_start and self.__sklearn_is_fitted__():
                warm = self._fitted.current
            source = self._opened(X, y, sample_weight, reset=True, least=2)
            if not source.again:
                check_one_pass(self)
                self.__dict__.pop("_fitted", None)
                return self._feed(source, checkpoint)
            if self._encoder != encoder:  # other levels are other features
                warm = None
            with checkpointed(checkpoint, source, self, self._seed(), warm) as seed:
                fields = self._known_fields(source)
                return self._fit_rows(carried(source, engine), source, fields, seed, warm, (X, y))

    @contextmanager
    def _kept_on_failure(self) -> Iterator[None]:
        """Put everything back as it was if a fit fails before there is a new model."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            if self.__dict__.get("_fitted") is before.get("_fitted") or "_fitted" not in vars(self):
                own = set(self.get_params(deep=False))
                for name in [n for n in vars(self) if n not in before and n not in own]:
                    del self.__dict__[name]
                self.__dict__.update({n: v for n, v in before.items() if n not in own})
            raise

    def _fit_rows(
        self,
        rows: Iterable[Chunk],  # as the engine carries them
        source: MemorySource | Source,
        fields: tuple[np.ndarray, ...],
        seed: int,
        warm: Learned | None,
        given: tuple[Any, Any],  # for callbacks
    ) -> Self:
        options = self._options(source.width)
        maker = self._units_maker(source.width, source.dtype, fields)
        known = survey(rows)
        check_weights(known.tally, source.dtype)
        if self.rank == "auto":
            units, weight = maker(known.features, known.target), known.features.weight
            rng = np.random.default_rng(seed)
            options = replace(options, rank=choose_rank(rows, units, options, weight, rng))

        def fitted(learned: Learned) -> dict[str, Any]:
            stream = self._stream(options, maker, seed, learned)
            stream.count(known.tally)
            return {"_fitted": stream, "_fields": fields, "_encoder": self._encoder, "_law": None}

        hook, end = step_hook(self, *given, fitted)

        robust, steps = self.loss == "huber", options

        def learn(
            rows: Iterable[Chunk], warm: Learned | None, known: Survey | None = None
        ) -> Learned:
            return learn_table(rows, steps, maker, seed, warm, hook, known)

        if robust:
            maker.refuse_overflow(known.features, known.target)
            eps = float(namespace(known.features.mean).finfo(maker.dtype).eps)
            steps = replace(options, tol=closer(options.tol, eps))
            learned, weighted = learn_robustly(rows, learn, warm)
            # What rows are worth is what was given, to a stream that goes on from here too.
            learned = replace(learned, features=known.features, target=known.target)
        else:
            learned, weighted = learn(rows, warm, known), rows
        self.__dict__.update(fitted(_with_row_count(learned, known.tally, options)))
        interrupted = self.status_ is Status.interrupted  # a checkpoint must see no more sums
        if self.uncertainty and not interrupted:
            law = self._law_of(learned, weighted, options, seed)
            self._law = robust_law(law, rows, weighted, learned) if robust else law
        end()
        if interrupted:
            raise KeyboardInterrupt(self.status_.value)
        if self.status_ not in (Status.converged, Status.stopped):
            status, advice = self.status_.name, self.status_.value
            warn(Message("{status}: {advice}", status=status, advice=advice), ConvergenceWarning)
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
        reset = not self.__sklearn_is_fitted__()
        if self.rank == "auto" and reset:
            raise ValueError('rank="auto" needs rows to come back to: use `fit`, or give a rank.')
        check_options(self)
        if self.loss == "huber":
            warn(
                'partial_fit learns by squares: loss="huber" needs rows to come back to, so gross '
                "errors in y count in full. Use `fit`, or take them out beforehand."
            )
        if not reset:
            self._refuse_changes()
        idle = sample_weight is not None and _all_zero(sample_weight)
        if idle:  # rows that are looked at all the same
            sample_weight = _as_array(sample_weight) + 1.0
        with self._kept_on_failure():
            source = self._opened(X, y, sample_weight, reset)
            return self if idle else self._feed(source, checkpoint)

    def _refuse_changes(self) -> None:
        """Refuse options that define the model and are not those it began with."""
        began, names = self._fitted, self._names()
        options, maker = self._options(len(names)), self._units_maker(len(names), None, ())
        changed = {
            name: getattr(options, name) != getattr(began.options, name)
            for name in ("rank", "alpha", "fit_linear", "fit_intercept", "psd")
        }
        changed["rank"] = changed["rank"] and self.rank != "auto"
        changed["diagonal"] = list(maker.diagonal) != list(began.make_units.diagonal)
        if not isinstance(self.fields, str) and self._encoder is None:
            given = given_fields(self.fields, names)
            changed["fields"] = [[*f] for f in given] != [[*f] for f in self._fields]
        if any(changed.values()):
            raise ValueError(
                f"{', '.join(name for name in changed if changed[name])} changed since the model "
                "began to learn, which `partial_fit` cannot follow. Set it back, or begin anew "
                "with `fit` or a clone."
            )

    def _feed(self, source: MemorySource | Source, checkpoint: Any = None) -> Self:
        """Learn from rows as they come."""
        if self.__sklearn_is_fitted__():
            stream, fields = self._fitted, self._fields
        else:
            fields = self._known_fields(source, streamed=True)
            maker = self._units_maker(source.width, source.dtype, fields)
            stream = self._stream(self._options(source.width), maker, self._seed())
        # There is a model, or a part of one, once rows have been taken in; the law of the last one
        # is of a model that is about to move.
        known = {"_fields": fields, "_law": None}
        if isinstance(source, MemorySource):
            stream.feed(Chunk(source.X, source.y, source.weight))
            self.__dict__.update(known, _fitted=stream)
            return self
        with keeping(checkpoint, source, self, stream) as keeper:
            for chunk in keeper.rest(source):
                check_weights(Tally.of(chunk), source.dtype)
                with keeper.feeding():
                    X = self._at_home(chunk.X, "partial_fit", keeper.stream)
                    keeper.stream.feed(replace(chunk, X=X))
                if keeper.stream.rows:
                    self.__dict__.update(known, _fitted=keeper.stream)
            if not keeper.stream.rows:
                raise ValueError("No row has a weight above 0, so there is nothing to learn from.")
            self.__dict__.update(known, _fitted=keeper.stream)  # all rows may have been seen before
        if source.unseen:
            warn_unseen(source.unseen, learns=True)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Predict the targets of some rows.

        Parameters
        ----------
        X : array, sparse matrix, frame, Dask collection or Source (n_samples, n_features)
            Rows. Those of a Source are never in memory together.
        return_std : bool, default=False
            Whether to return the standard deviation of a new observation as well, noise
            included: ±1.96 of them are a 95% interval. Needs ``uncertainty=True``.

        Returns
        -------
        array (n_samples,), or a pair of them
        """
        check_is_fitted(self)
        law = self._known_law() if return_std else None
        xp = namespace(self._fitted.current.model.U)
        y, std = zip(*(self._predicted(block, law) for block in self._blocks(X)), strict=True)
        return xp.concat(list(y)) if law is None else (xp.concat(list(y)), xp.concat(list(std)))

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
        law = self._known_law() if return_std else None
        for chunk in self._met(source, reset=False, target=False):
            yield chunk, *self._predicted(self._at_home(chunk.X, "predict"), law)
        if source.unseen:
            warn_unseen(source.unseen)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return R², the share of the variance of the targets that is predicted.

        Parameters
        ----------
        X : array, sparse matrix, frame or Source (n_samples, n_features)
            Rows. A Source that was opened with its target needs no y: it is walked once, chunk by
            chunk.
        y : array (n_samples,)
            Targets.
        sample_weight : array (n_samples,) or None
            Weights; a Source has its own.

        Returns
        -------
        float
        """
        if isinstance(X, Source):
            self._met(self._source(X, y, sample_weight, reset=False), reset=False)
            return _r2(self.predict_chunks(X))
        if y is None:
            raise ValueError("score needs targets: give y, or a Source opened with target=.")
        return float(super().score(X, y, sample_weight))

    @unflagged
    def _predicted(self, X: Array, law: Uncertainty | None) -> tuple[Array, Array | None]:
        """Return predictions of a block of rows, and their standard deviations."""
        learned, xp = self._fitted.current, namespace(X)
        units, rows = learned.units, Block(X, learned.units)
        f = xp.astype(predict(learned.model, rows), xp.float64)
        y = xp.astype(units.target.mean + units.target.scale * f, units.scale.dtype)
        lost = int(xp.count_nonzero(~xp.isfinite(y)))
        if lost:
            raise ValueError(
                f"The predictions of {lost} rows are too large for {y.dtype}. "
                "Look for wrong units or typing errors in X."
            )
        if law is None:
            return y, None
        return y, units.target.scale * law.predict_std(rows, predictive=True)

    @unflagged
    def diagnose(self, X: Any = None, y: Any = None) -> str:
        """Say in words what there is to know about the fit, and what to change.

        Parameters
        ----------
        X, y : rows and targets, or None
            With rows it is also tested whether the residual holds more components, i.e. whether
            the rank is too low: four passes.

        Returns
        -------
        str
            Lines on status, features, correlation, rows, and rank.
        """
        check_is_fitted(self)
        learned, edge = self._fitted.current, None
        if X is not None:
            source = self._opened(X, y, None, reset=False)
            edge = residual_edge(source, learned, self._fitted.options, self._seed())
        rows, effective = self._fitted.rows, self._fitted.effective_rows
        options = self._fitted.options
        return diagnosis(learned, rows, effective, self._names(), self._fields, options, edge)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.array_api_support = True
        return tags

    def _law_of(
        self, learned: Learned, source: Iterable[Chunk], options: Options, seed: int
    ) -> Uncertainty:
        rng = np.random.default_rng(seed)
        args = learned.model, learned.units, options, learned.white, rng
        law = uncertainty_of(source, *args, fields=self._fields)
        if not law.noise >= 0:
            warn(
                "Standard errors are not known (nan): there are no more rows than parameters. "
                "Weights count as repetitions; scale them to a mean of 1."
            )
        return law

    def _options(self, d: int) -> Options:
        return Options(
            rank=d if self.rank == "auto" else min(int(self.rank), d),
            step=self.step,
            fit_linear=bool(self.fit_linear),
            fit_intercept=bool(self.fit_intercept),
            psd=bool(self.psd),
            max_iter=int(self.max_iter),
            tol=float(self.tol),
            polish=bool(self.polish),
            whiten=self.whiten,
            alpha=alphas(self.alpha),
        )

    def _units_maker(self, d: int, dtype: Any, fields: Sequence[np.ndarray]) -> UnitsMaker:
        diagonal = self.diagonal
        if not isinstance(diagonal, str):
            diagonal = [bool(free) for free in diagonal]
            if len(diagonal) != d:
                raise ValueError(
                    f"diagonal has {len(diagonal)} entries but X has {d} features. "
                    "Give one boolean a feature."
                )
        intercept, linear = bool(self.fit_intercept), bool(self.fit_linear)
        return UnitsMaker(diagonal, intercept, dtype, self._names(), fields, linear)

    def _stream(
        self, options: Options, maker: UnitsMaker, seed: int, learned: Learned | None = None
    ) -> Stream:
        d = len(maker.names)
        most = max(2, BATCH_ELEMENTS // d)
        if self.batch_size == "auto":
            size = max(2, min(BATCH_PER_PARAMETER * (options.rank + 1) * d, most))
        else:
            size = most = int(self.batch_size)
        return Stream(options, size, most, maker, seed, learned)

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))


def _r2(predicted: Iterable[tuple[Chunk, Array, Any]]) -> float:
    """Return R² of chunks and their predictions; of a constant target 1 if exact, else 0."""
    squares, target = 0.0, None
    for chunk, f, _ in predicted:
        y = to_numpy(chunk.y).astype(np.float64)
        weight = np.ones(len(y)) if chunk.weight is None else to_numpy(chunk.weight)
        squares += float(weight @ (to_numpy(f) - y) ** 2)
        own = Moments.of(y[:, None], weight)
        target = own if target is None else target + own
    assert target is not None  # a Source without rows is refused
    if not target.weight > 0:
        raise ValueError("All weights are zero: there is nothing to score by.")
    if not bool(target.varies(np.float64)[0]):
        return 0.0 if squares > 0 else 1.0
    return 1 - squares / target.weight / float(target.var[0])


def _all_zero(weight: Any) -> bool:
    """Tell whether all weights are zero, if they are in memory."""
    if is_dask(weight):
        return False
    weight = _as_array(weight)
    return not bool(namespace(weight).any(weight != 0))


def _as_array(weight: Any) -> Array:
    return weight if is_array_api_obj(weight) else np.asarray(weight)


def _with_row_count(learned: Learned, tally: Tally, options: Options) -> Learned:
    """Say so when there are fewer rows than parameters."""
    dof = degrees_of_freedom(*learned.model.U.shape, **options.parts)
    few = tally.counting < dof and not any(options.alpha)
    if few and learned.status in (Status.converged, Status.out_of_steps):
        return replace(learned, status=Status.too_few_rows)
    return learned
