"""Estimators for scikit-learn: thin around the solver."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from typing import Any, Self

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils import check_random_state, check_X_y
from sklearn.utils.validation import check_is_fitted, validate_data

from quadlin.arrays import Array, is_numpy, moved, namespace, to_numpy, unflagged
from quadlin.callbacks import CallbackSupportMixin, step_hook, with_callbacks
from quadlin.checkpoint import checkpointed, keeping
from quadlin.checks import alphas, check_one_pass, check_options, checked_weight, float_types
from quadlin.chunks import Chunk, MemorySource
from quadlin.cluster import carried
from quadlin.design import Rows
from quadlin.diagnose import diagnosis, listed, residual_edge
from quadlin.encode import TableEncoder
from quadlin.explain import Interactions, Name, check_one_hot, given_fields, numbered, positions
from quadlin.fields import fields_among
from quadlin.metrics import degrees_of_freedom
from quadlin.model import predict
from quadlin.moments import Moments
from quadlin.rank import choose_rank
from quadlin.robust import learn_robustly, robust_law
from quadlin.solve import Options, Record, Status
from quadlin.sources import Source, is_dask, open_source
from quadlin.standardise import UnitsMaker
from quadlin.stream import Learned, Stream, Survey, Tally, learn_table, survey
from quadlin.uncertainty import Uncertainty, uncertainty_of

BATCH_PER_PARAMETER = 10  # rows of a batch for each of the (k+1)·d parameters
BATCH_ELEMENTS = 1 << 25  # and at most this many entries


class SecondOrderRegressor(CallbackSupportMixin, RegressorMixin, BaseEstimator):
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
        confirmed on rows held out, at the cost of two or three fits.
    diagonal : {"auto", "free", "zero"} or array of bool, default="auto"
        Whether the squares :math:`x_j^2` are modelled: "auto" wherever they can be told from
        :math:`x_j`, which they cannot for a feature with two values; "free" everywhere; "zero"
        nowhere (factorization machine); or one boolean a feature.
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
        rows). Text and categorical
        columns of a frame become such groups by themselves.
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
        w.
    intercept_ : float
        b.
    components_ : array (rank, n_features)
        Orthonormal rows.
    eigenvalues_ : array (rank,)
        Signed, by falling size. The low-rank part of M is
        ``components_.T @ diag(eigenvalues_) @ components_``.
    rank_ : int
        The rank fitted, at most the number of features.
    has_diagonal_ : array of bool (n_features,)
        Where M has a diagonal: elsewhere the diagonal of the low-rank part is left out of M.
    interactions_ : Interactions
        A view of M: ``interactions_["a", "b"]``, ``interactions_.top(10)``.
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
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Notes
    -----
    Time: O(nnz(X)·k) a pass; some 50 passes with 30 rows a parameter, 80 with four, 150 with two.
    Memory beside X: O((k + 8)d), a block of rows, and d×d with full whitening; X is never copied
    (CSC becomes CSR once). float32 stays float32.

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

    _fitted: Stream
    _fields: tuple[np.ndarray, ...]  # the positions of the features of each field
    _encoder: TableEncoder | None
    _law: Uncertainty | None
    _fill: dict[str, float] | None = None

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
        if self.rank == "auto":
            units, weight = maker(known.features, known.target), known.features.weight
            rng = np.random.default_rng(seed)
            options = replace(options, rank=choose_rank(rows, units, options, weight, rng))

        def fitted(learned: Learned) -> dict[str, Any]:
            stream = self._stream(options, maker, seed, learned)
            stream.count(known.tally)
            return {"_fitted": stream, "_fields": fields, "_encoder": self._encoder, "_law": None}

        hook, end = step_hook(self, *given, fitted)

        def learn(
            rows: Iterable[Chunk], warm: Learned | None, known: Survey | None = None
        ) -> Learned:
            return learn_table(rows, options, maker, seed, warm, hook, known)

        robust = self.loss == "huber"
        if robust:
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
            message = f"{self.status_.name}: {self.status_.value}"
            warnings.warn(message, ConvergenceWarning, stacklevel=4)
        return self

    @unflagged
    def partial_fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, checkpoint: Any = None
    ) -> Self:
        """Learn from rows that are seen once: O(kd) memory, one step a batch.

        Rows are gathered until `batch_size` of them are there, so it does not matter how the
        stream is cut. An incomplete batch counts in what the model predicts meanwhile. After
        `fit` the stream goes on from the fitted model.

        Parameters
        ----------
        X, y, sample_weight
            As for `fit`.
        checkpoint : path or None
            For a Source: a file to which the state is written every few seconds. Started again
            with the same rows and options after a kill, the stream goes on where it was.

        Returns
        -------
        self
        """
        if self.rank == "auto":
            raise ValueError('rank="auto" needs rows to come back to: use `fit`, or give a rank.')
        check_options(self)
        reset = not self.__sklearn_is_fitted__()
        with self._kept_on_failure():
            return self._feed(self._opened(X, y, sample_weight, reset), checkpoint)

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
                with keeper.feeding():
                    X = self._at_home(chunk.X, "partial_fit", keeper.stream)
                    keeper.stream.feed(replace(chunk, X=X))
                self.__dict__.update(known, _fitted=keeper.stream)
            self.__dict__.update(known, _fitted=keeper.stream)  # all rows may have been seen before
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
            _warn_unseen(source.unseen)

    @unflagged
    def _predicted(self, X: Array, law: Uncertainty | None) -> tuple[Array, Array | None]:
        """Return predictions of a block of rows, and their standard deviations."""
        learned, xp = self._fitted.current, namespace(X)
        units, rows = learned.units, Rows(X, learned.units)
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
        penalised = any(self._fitted.options.alpha)
        rows, effective = self._fitted.rows, self._fitted.effective_rows
        return diagnosis(learned, rows, effective, self._names(), self._fields, penalised, edge)

    def interaction(self, first: Name, second: Name) -> float:
        """Return M_ij for two features, by position or name; x_i·x_j has coefficient 2 M_ij."""
        return self.interactions_[first, second]

    def interaction_std(self, first: Name, second: Name) -> float:
        """Return the standard error of M_ij. Needs ``uncertainty=True``."""
        law, names = self._known_law(), self._names()
        i, j = positions(names, first), positions(names, second)
        return 0.0 if self.interactions_.vanishes(i, j) else law.interaction_std(i, j)

    @property
    def noise_(self) -> float:
        """Return the standard deviation of the noise. Needs ``uncertainty=True``."""
        return self._known_law().noise * self._fitted.current.units.target.scale

    @property
    def coef_std_(self) -> Array:
        """Return the standard errors of `coef_`. Needs ``uncertainty=True``."""
        return self._known_law().coef_std()[0]

    @property
    def intercept_std_(self) -> float:
        """Return the standard error of `intercept_`. Needs ``uncertainty=True``."""
        return self._known_law().coef_std()[1]

    @property
    def coef_(self) -> Array:
        """Return w in the user's units."""
        return self._learned("coef_").raw.coef

    @property
    def intercept_(self) -> float:
        """Return b in the user's units."""
        return self._learned("intercept_").raw.intercept

    @property
    def components_(self) -> Array:
        """Return the orthonormal rows of the low-rank part."""
        return self._learned("components_").raw.components

    @property
    def eigenvalues_(self) -> Array:
        """Return the signed eigenvalues of the low-rank part, by falling size."""
        return self._learned("eigenvalues_").raw.eigenvalues

    @property
    def has_diagonal_(self) -> Array:
        """Return where M has a diagonal."""
        return self._learned("has_diagonal_").units.free > 0

    @property
    def moments_(self) -> Moments:
        """Return the moments of the features."""
        return self._learned("moments_").features

    @property
    def rank_(self) -> int:
        """Return the rank that was fitted."""
        return int(self._learned("rank_").model.s.shape[0])

    @property
    def history_(self) -> tuple[Record, ...]:
        """Return the loss after each step."""
        return self._learned("history_").history

    @property
    def status_(self) -> Status:
        """Return how the fit ended."""
        return self._learned("status_").status

    @property
    def n_iter_(self) -> int:
        """Return the number of steps."""
        return max(1, self._learned("n_iter_").history[-1].step)

    @property
    def n_samples_seen_(self) -> int:
        """Return the number of rows learned from."""
        self._learned("n_samples_seen_")
        return int(self._fitted.rows)

    @property
    def interactions_(self) -> Interactions:
        """Return a view of M in the user's units."""
        learned = self._learned("interactions_")
        model, scale = learned.model, to_numpy(learned.units.scale).astype(np.float64)
        return Interactions(
            to_numpy(model.U) * scale[:, None],
            to_numpy(model.s) * learned.units.target.scale,
            to_numpy(learned.units.free) > 0,
            numbered(self._fields, len(scale)),
            np.sqrt(to_numpy(learned.features.var)),
            self._names(),
        )

    @property
    def encoder_(self) -> TableEncoder | None:
        """Return the encoder of the text columns, None where there are none."""
        self._learned("encoder_")
        return self._encoder

    @property
    def fill_(self) -> dict[str, float] | None:
        """Return what stood for missing numbers, by column; None where nothing was filled."""
        self._learned("fill_")
        return self._fill

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.array_api_support = True
        return tags

    def _learned(self, attribute: str) -> Learned:
        if not self.__sklearn_is_fitted__():
            # An AttributeError too, so that hasattr() tells the truth.
            raise NotFittedError(
                f"This {type(self).__name__} has no {attribute} before `fit` or `partial_fit`."
            )
        return self._fitted.current

    def _known_law(self) -> Uncertainty:
        self._learned("standard error")
        if self._law is None:
            raise AttributeError(
                "Standard errors are known after `fit` with uncertainty=True, and not after "
                "`partial_fit`. Set uncertainty=True and fit."
            )
        return self._law

    def _law_of(
        self, learned: Learned, source: Iterable[Chunk], options: Options, seed: int
    ) -> Uncertainty:
        rng = np.random.default_rng(seed)
        law = uncertainty_of(source, learned.model, learned.units, options, learned.white, rng)
        if not law.noise >= 0:
            warnings.warn(
                "Standard errors are not known (nan): there are no more rows than parameters. "
                "Weights count as repetitions; scale them to a mean of 1.",
                UserWarning,
                stacklevel=5,
            )
        return law

    def _names(self) -> list[str]:
        if self._encoder is not None:
            return list(self._encoder.names)
        names = getattr(self, "feature_names_in_", None)
        return [f"x{j}" for j in range(self.n_features_in_)] if names is None else list(names)

    def _opened(
        self, X: Any, y: Any, weight: Any, reset: bool, least: int = 1
    ) -> MemorySource | Source:
        """Return rows that were checked, in memory or wherever they are."""
        if isinstance(X, str | PathLike):
            raise TypeError(
                f"fit takes rows, not the name of a file: use quadlin.open_source({str(X)!r}, "
                "target=...)."
            )
        if not (isinstance(X, Source) or is_dask(X)):
            chunk = self._checked(X, y, weight, reset, least)
            return MemorySource(chunk.X, chunk.y, chunk.weight)
        return self._met(self._source(X, y, weight, reset), reset)

    def _source(self, X: Any, y: Any, weight: Any, reset: bool) -> Source:
        if isinstance(X, Source):
            if y is not None or weight is not None:
                raise ValueError("A Source brings its own targets: open_source(..., target=...).")
            return X
        known = None if reset else self._encoder
        return open_source(X, target=y, weight=weight, encoder=known)

    def _met(self, source: Source, reset: bool, target: bool = True) -> Source:
        """Learn the names of a source's features, or compare them with those known."""
        if target and not source.has_target:
            raise ValueError("The source has no target. Open it with target=.")
        encoder, names = source.encoder, source.names
        columns = names if encoder is None else encoder.input_names
        unnamed = all(name == f"x{j}" for j, name in enumerate(columns))
        if reset:
            self._encoder, self.n_features_in_, self._fill = encoder, len(columns), source.fill
            self.__dict__.pop("feature_names_in_", None)
            if not unnamed:
                self.feature_names_in_ = np.asarray(columns, dtype=object)
        elif self._fill is not None and source.fill not in (None, self._fill):
            raise ValueError(
                "Missing values of the source are filled otherwise than those of the fit. Open it "
                "with fill=model.fill_."
            )
        elif encoder != self._encoder:
            raise ValueError(
                "The text columns of the source are encoded otherwise than those of the fit. Open "
                "it with encoder=model.encoder_."
            )
        elif len(names) != len(self._names()):
            raise ValueError(
                f"The source has {len(names)} features, but the model was fitted to "
                f"{len(self._names())}."
            )
        elif not unnamed and list(names) != self._names():
            gone = [name for name in self._names() if name not in names]
            raise ValueError(
                "The features of the source are not those of the fit, or in another order"
                + (f": {listed(gone)} is missing." if gone else ".")
            )
        return source

    def _blocks(self, X: Any) -> Iterator[Array]:
        """Yield rows to predict, a block at a time."""
        if isinstance(X, Source) or is_dask(X):
            source = self._met(self._source(X, None, None, reset=False), reset=False, target=False)
            for chunk in source:
                yield self._at_home(chunk.X, "predict")
            if source.unseen:
                _warn_unseen(source.unseen)
            return
        if self._encoder is not None:
            X = self._encoded(X, reset=False)
        else:
            X = validate_data(self, X, accept_sparse="csr", dtype=float_types(X), reset=False)
        for chunk in MemorySource(self._at_home(X, "predict")):
            yield chunk.X

    def _checked(self, X: Any, y: Any, weight: Any, reset: bool, least: int = 1) -> Chunk:
        if reset:
            self._encoder, self._fill = TableEncoder.learn(X), None
        checks = {
            "accept_sparse": "csr",
            "dtype": float_types(X),
            "y_numeric": True,
            "ensure_min_samples": least,
        }
        if self._encoder is not None:
            X, y = check_X_y(self._encoded(X, reset), y, **checks)
        else:
            X, y = validate_data(self, X, y, reset=reset, **checks)
        if not reset:
            X = self._at_home(X, "partial_fit")
        y = moved(y, X)
        return Chunk(X, y, checked_weight(weight, y))

    def _encoded(self, frame: Any, reset: bool) -> Array:
        """Turn the text columns of a frame into one-hot fields."""
        assert self._encoder is not None
        if not hasattr(frame, "columns"):
            raise ValueError(
                "The model was fitted to a frame with text columns; give it a frame with the "
                f"columns {listed(self._encoder.input_names)}."
            )
        validate_data(self, frame, skip_check_array=True, reset=reset)
        X, unseen = self._encoder.encode(frame)
        if unseen:
            _warn_unseen(unseen)
        return X

    def _known_fields(
        self, source: MemorySource | Source, streamed: bool = False
    ) -> tuple[np.ndarray, ...]:
        """Return the positions of the features of each field."""
        if self._encoder is not None:
            if self.fields not in ("auto", None):
                raise ValueError("Text columns make fields of their own: leave fields as it is.")
            return self._encoder.fields
        if isinstance(self.fields, str):
            if isinstance(source, Source) and len(source.fields):
                return source.fields
            # The first rows of a stream prove nothing.
            found = not streamed and (isinstance(source, Source) or is_numpy(source.X))
            return fields_among(source, source.width) if found else ()
        names = self._names()
        given = given_fields(self.fields, names)
        for chunk in source if source.again else ():
            check_one_hot(given, names, chunk.X)
        return given

    @unflagged
    def _at_home(self, X: Array, method: str, stream: Stream | None = None) -> Array:
        """Bring rows to the dtype of the model, and refuse those that live elsewhere."""
        stream = self._fitted if stream is None else stream
        own, dtype = stream.example, stream.make_units.dtype
        xp, here = namespace(X), "cpu" if issparse(X) else X.device
        if own is not None and (xp, here) != (namespace(own), own.device):
            raise ValueError(
                f"Inputs passed to {type(self).__name__}.{method}() must use the same namespace "
                f"and the same device as those passed to fit(): {namespace(own).__name__} on "
                f"{own.device}, but they are {xp.__name__} on {here}."
            )
        return X.astype(dtype, copy=False) if issparse(X) else xp.astype(X, dtype, copy=False)

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
        return UnitsMaker(diagonal, bool(self.fit_intercept), dtype, self._names(), fields)

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


class FactorizationMachineRegressor(SecondOrderRegressor):
    r"""Factorization machine: a second order linear model without squares.

    .. math:: y = b + x^\top w + \sum_{i < j} 2 \langle v_i, v_j \rangle_s\, x_i x_j + \text{noise},
              \qquad \langle v_i, v_j \rangle_s = \sum_a s_a v_{ia} v_{ja}

    The same as :class:`SecondOrderRegressor` with ``diagonal="zero"``. The signs s are free, where
    a classical factorization machine has only positive ones (``psd=True``) and cannot express an
    interaction matrix with negative eigenvalues.

    Parameters
    ----------
    rank, alpha, loss, fields, fit_linear, fit_intercept, psd, whiten, polish, step, max_iter, \
    tol, batch_size, uncertainty, warm_start, random_state
        As for :class:`SecondOrderRegressor`.

    Notes
    -----
    Cost and memory as for :class:`SecondOrderRegressor`.

    Examples
    --------
    >>> from quadlin import FactorizationMachineRegressor
    >>> from quadlin.datasets import make_second_order
    >>> data = make_second_order(4000, 12, rank=2, distribution="bernoulli", parameter=0.3,
    ...                          n_test=100, random_state=0)
    >>> machine = FactorizationMachineRegressor(rank=2, random_state=0).fit(data.X, data.y)
    >>> round(machine.score(data.X_test, data.y_test), 6)
    1.0
    """

    diagonal = "zero"  # not a parameter

    def __init__(
        self,
        rank: int | str = 5,
        *,
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


def _with_row_count(learned: Learned, tally: Tally, options: Options) -> Learned:
    """Say so when there are fewer rows than parameters."""
    few = tally.counting < degrees_of_freedom(*learned.model.U.shape) and not any(options.alpha)
    if few and learned.status in (Status.converged, Status.out_of_steps):
        return replace(learned, status=Status.too_few_rows)
    return learned


def _warn_unseen(unseen: dict[str, int]) -> None:
    counts = ", ".join(f"{count} in {name!r}" for name, count in unseen.items())
    warnings.warn(
        f"Levels that fit did not see count as none of the known ones: {counts}.",
        UserWarning,
        stacklevel=4,
    )
