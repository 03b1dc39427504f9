"""Classifiers: labels in, log-odds learned for each class against the rest, probabilities out."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted

from quadlin.core.arrays import Array, moved, namespace, to_numpy, unflagged
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.messages import each_warning_once
from quadlin.core.rows import Rows
from quadlin.data import Source, is_dask
from quadlin.data.dask_rows import lazily
from quadlin.data.names import Categories, Name
from quadlin.estimators.base import SecondOrderModel
from quadlin.estimators.classes import (
    LabelledRows,
    check_whole,
    class_names,
    class_totals,
    class_weights,
    codes_of,
    fitted_classes,
    sorted_classes,
)
from quadlin.estimators.columns import (
    NO_WEIGHT,
    Columns,
    RowsLike,
    Vector,
    source_to_score,
)
from quadlin.estimators.fitted import (
    Fitted,
    FittedClasses,
    Job,
    in_model_dtype,
    require_law,
)
from quadlin.estimators.learning import Learning
from quadlin.solve.composite.label_pairs import ClassRows, fit_jointly
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.labels.likelihood import log_probabilities, probabilities
from quadlin.solve.lowrank.types import FIXED, Status
from quadlin.stream.stream import Stream


class Classifying(ClassifierMixin, Learning):
    """A mixin of estimators that learn and predict labels."""

    classes_: np.ndarray
    class_weight: Any
    loss = "logistic"  # no parameter

    @overload
    def decision_function(self, X: RowsLike, return_std: Literal[False] = False) -> np.ndarray: ...

    @overload
    def decision_function(
        self, X: RowsLike, return_std: Literal[True]
    ) -> tuple[np.ndarray, np.ndarray]: ...

    def decision_function(self, X: RowsLike, return_std: bool = False) -> Any:
        """Return the log-odds of `classes_[1]`, or of each class against all others.

        Parameters
        ----------
        X : array, sparse matrix, frame, Dask collection or Source (n_samples, n_features)
            Rows.
        return_std : bool, default=False
            Whether to also return the standard errors of the log-odds: ±1.96 standard errors,
            turned into probabilities, are a 95% interval. What missing values and levels that fit
            did not see could change is included. Needs ``uncertainty=True``. For more than two
            classes they are the errors of the one-vs-rest models.

        Returns
        -------
        array (n_samples,), or (n_samples, n_classes) for more than two classes; or a pair of them
        """
        fitted = self._classes_fitted()
        if not return_std:
            return self._of_log_odds(X, "decision_function", lambda f: f, len(fitted.parts))
        for part in fitted.parts:
            require_law(part, self)
        f, errors = [], []
        for chunk, inside in self._chunks(X, "decision_function"):
            f.append(fitted.log_odds(inside))
            errors.append(fitted.log_odds_error(inside, chunk.absent))
        xp = namespace(*f)
        return xp.concat(f), xp.concat(errors)

    @overload
    def predict_proba(self, X: RowsLike, return_std: Literal[False] = False) -> np.ndarray: ...

    @overload
    def predict_proba(
        self, X: RowsLike, return_std: Literal[True]
    ) -> tuple[np.ndarray, np.ndarray]: ...

    def predict_proba(self, X: RowsLike, return_std: bool = False) -> Any:
        """Return the probability of each class, in the order of `classes_`.

        For more than two classes they come from jointly fitted scores, if there is a penalty;
        otherwise the probabilities of each class against all others are divided by their sum.

        Parameters
        ----------
        X : array, sparse matrix, frame, Dask collection or Source (n_samples, n_features)
            Rows.
        return_std : bool, default=False
            Whether to also return the standard errors of the probabilities, p(1 − p) times the
            errors of the log-odds. An interval near 0 or 1 should rather come from
            `decision_function`.

        Returns
        -------
        array (n_samples, n_classes), or a pair of them
        """
        fitted = self._classes_fitted()
        if return_std:
            f, error = self.decision_function(X, return_std=True)
            p = probabilities(f)
            return p, p * (1 - p) * (error if error.ndim == 2 else error[:, None])
        return self._of_log_odds(X, "predict_proba", probabilities, len(fitted.classes))

    def predict_log_proba(self, X: RowsLike) -> np.ndarray:
        """Return the logarithms of `predict_proba`; for two classes they do not underflow.

        Parameters
        ----------
        X : array, sparse matrix, frame, Dask collection or Source (n_samples, n_features)
            Rows.

        Returns
        -------
        array (n_samples, n_classes)
        """
        fitted, method = self._classes_fitted(), "predict_log_proba"
        return self._of_log_odds(X, method, log_probabilities, len(fitted.classes))

    def predict(self, X: RowsLike) -> np.ndarray:
        """Return the most probable label of each row.

        Parameters
        ----------
        X : array, sparse matrix, frame, Dask collection or Source (n_samples, n_features)
            Rows.

        Returns
        -------
        array (n_samples,)
        """
        fitted = self._classes_fitted()
        return self._of_log_odds(X, "predict", fitted.labels, 1, fitted.classes.dtype)

    def predict_chunks(self, source: RowsLike) -> Iterator[tuple[Chunk, Array, Array]]:
        """Predict the rows of a source chunk by chunk: memory does not grow with their number.

        Parameters
        ----------
        source : Source
            Rows, opened with ``encoder=model.encoder_``.

        Yields
        ------
        chunk, probabilities, labels
            The rows as numbers, an array (n, n_classes) and an array (n,).
        """
        fitted = self._classes_fitted()
        for chunk, inside in self._chunks(source, "predict"):
            f = fitted.log_odds(inside)
            yield chunk, probabilities(f), fitted.labels(f)

    def score(self, X: RowsLike, y: Vector = None, sample_weight: Vector = None) -> float:
        """Return the accuracy, the share of labels that are predicted.

        Parameters
        ----------
        X : array, sparse matrix, frame or Source (n_samples, n_features)
            Rows. A Source that was opened with its target needs no y.
        y : array (n_samples,)
            Labels.
        sample_weight : array (n_samples,) or None
            Weights; a Source has its own.

        Returns
        -------
        float
        """
        source = source_to_score(self, X, y, sample_weight, "labels")
        label = getattr(self, "label_", None)  # of one against the rest
        if source is not None:
            return accuracy_of(self.predict_chunks(source), source.labels, label)
        if label is not None and np.asarray(y).dtype.kind in "OUT":
            y = np.asarray(y) == label
        return float(super().score(X, y, sample_weight))

    def diagnose(self, X: Any = None, y: Any = None) -> str:
        """Describe the fit, and suggest what to change.

        Parameters
        ----------
        X, y : rows and labels, or None
            Ignored: a regressor's diagnosis of rows is about squared errors.

        Returns
        -------
        str
            Lines on status, features, dependences, rows, and rank.
        """
        self._require_one_model()
        text: str = super().diagnose()
        return text

    def one_vs_rest(self, label: Any) -> Self:
        """Return the classifier of one class against all others, if there are more than two.

        Parameters
        ----------
        label : one of `classes_`

        Returns
        -------
        classifier
            Of the same type, for the classes False and True, with `coef_`, `interactions_`,
            `summary` and all other attributes of a classifier for two classes. `label_` is the
            class, and `score` takes False and True, or all classes as text.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from quadlin import SecondOrderClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = SecondOrderClassifier(0, alpha=1.0, pairs=None).fit(X, y)
        >>> model.one_vs_rest(2).coef_.shape
        (4,)
        """
        fitted = self._classes_fitted()
        labels = fitted.classes.tolist()
        if label not in labels:
            raise ValueError(f"{label!r} is not a class; there are {labels}.")
        if len(labels) == 2:
            raise ValueError(
                f"With two classes, the classifier itself has the log-odds of {labels[1]!r}."
            )
        one: Self = clone(self)
        part = fitted.parts[labels.index(label)]
        one.adopt(FittedClasses(np.asarray([False, True]), (part,), label=label))
        return one

    @property
    def status_(self) -> Status:
        """How the fit ended; of several fits, the first that did not converge."""
        return self._classes_fitted().status

    @property
    def n_passes_(self) -> int:
        """The number of passes of `fit` over the rows, for all classes together."""
        return self._classes_fitted().passes

    @unflagged
    def partial_fit(  # type: ignore[override]  # the third argument, as everywhere in scikit-learn
        self,
        X: RowsLike,
        y: Vector = None,
        classes: ArrayLike | None = None,
        sample_weight: Vector = None,
        *,
        checkpoint: Any = None,
    ) -> Self:
        """Learn from rows that are seen once: O(kd) memory per class, one step per batch.

        The first batch, of ten rows per parameter if memory allows, is fitted as by `fit`; each
        later batch is one step, and the model is the mean of where they lead. With
        ``max_memory="minimal"`` no row is kept, not even of a first batch.

        Parameters
        ----------
        X : array, sparse matrix, frame or Source (n_samples, n_features)
            Rows.
        y : array (n_samples,)
            Labels.
        classes : array (n_classes,)
            All labels that will come; needed in the first call only.
        sample_weight : array (n_samples,) or None
            A weight of 2 is the same as the row given twice. Divide relative weights by their mean,
            which only `fit` can do by itself.
        checkpoint : None
            Streams of labels have none: save the classifier instead.

        Returns
        -------
        self

        Examples
        --------
        >>> import numpy as np
        >>> from quadlin import SecondOrderClassifier
        >>> X = np.random.default_rng(0).standard_normal((1000, 2))
        >>> y = np.where(X[:, 0] * X[:, 1] > 0, "yes", "no")
        >>> model = SecondOrderClassifier(2, alpha=1.0, random_state=0)
        >>> for start in range(0, 1000, 250):
        ...     batch = slice(start, start + 250)
        ...     model = model.partial_fit(X[batch], y[batch], classes=["no", "yes"])
        >>> model.score(X, y) > 0.9
        True
        """
        fitted = self._classes_fitted() if self.__sklearn_is_fitted__() else None
        self._check_stream(None if fitted is None else fitted.parts[0])
        if checkpoint is not None:
            raise ValueError(
                "partial_fit of a classifier has no checkpoint: save the classifier from time to "
                "time, and continue from the saved one."
            )
        if isinstance(self.class_weight, str):
            raise ValueError(
                'class_weight="balanced" needs to see all rows first. Use `fit`, or give '
                "partial_fit a dict of weights."
            )
        classes = _all_classes(classes, None if fitted is None else fitted.classes)
        fitted, source, columns = self._opened_again(fitted, X, y, sample_weight, classes=classes)
        if isinstance(source, MemorySource) and not len(source.y):
            return self  # no row counts
        count = len(fitted_classes(len(classes)))
        streams, fields = self._streams(fitted, source, columns, count)
        streams = self._fed(streams, source, classes)
        if not streams[0].n_rows:
            raise ValueError("No row has a weight above 0, so there is nothing to learn from.")
        parts = tuple(Fitted(stream, columns, fields).ready() for stream in streams)
        self.adopt(FittedClasses(classes, parts))  # scores of a joint fit do not go on
        return self

    def _fed(
        self, streams: list[Stream], source: MemorySource | Source, classes: np.ndarray
    ) -> list[Stream]:
        """Return the streams after some rows: 1 for the class of a stream, 0 for all others."""
        factors = class_weights(self.class_weight, classes, np.ones(len(classes)))
        caller, names = f"{type(self).__name__}.partial_fit", class_names(source)
        for chunk in Rows.of(source).walk():
            codes = to_numpy(chunk.y)
            if isinstance(source, Source):
                labels = codes if names is None else names[codes.astype(np.int64)]
                codes = codes_of(labels, classes)[1]
            X = in_model_dtype(chunk.X, caller, *streams[0].example_and_dtype)
            weight = _weighted(chunk, codes, factors)
            targets = [
                moved((codes == label).astype(np.float64), chunk.y)
                for label in fitted_classes(len(classes))
            ]
            streams = [s.fed(Chunk(X, y, weight)) for s, y in zip(streams, targets, strict=True)]
        return streams

    def _opened(
        self,
        X: Any,
        y: Any,
        weight: Any,
        columns: Columns | None = None,
        least: int = 1,
        classes: np.ndarray | None = None,
    ) -> tuple[MemorySource | Source, Columns]:
        """Return rows that were checked, their labels as numbers where they are in memory."""
        if isinstance(X, Source) or is_dask(X) or y is None:
            return super()._opened(X, y, weight, columns, least)
        classes, codes = codes_of(y, classes)
        source, columns = super()._opened(X, codes, weight, columns, least)
        assert isinstance(source, MemorySource)
        return LabelledRows(source.X, source.y, source.weight, classes=classes), columns

    def _learn(self, *_: Any) -> Self:
        """Check that rows can be read twice: the first reading shows which classes there are."""
        raise ValueError(
            "These rows can be read only once, so the classes must be known beforehand: use "
            "partial_fit(rows, classes=[...])."
        )

    @property
    def fits_jointly(self) -> bool:
        """Tell whether several classes may be fitted together."""
        return True

    def _warm_state(self, columns: Columns) -> FitState | None:
        """Return the state to start from, where there are two classes."""
        several = self.__sklearn_is_fitted__() and len(self._classes_fitted().parts) > 1
        return None if several else super()._warm_state(columns)

    def _fitted_rows(self, job: Job) -> FittedClasses:
        """Fit the log-odds of two classes, or of each class against all others."""
        share = 1.0
        if job.task.automatic != FIXED:
            job, share = job.counting()
        with each_warning_once():
            fitted = self._fitted_classes(job)
        parts, joint = (
            tuple(part.unscaled(share) for part in each) for each in (fitted.parts, fitted.joint)
        )
        return replace(fitted, parts=parts, joint=joint)

    def _fitted_classes(self, job: Job) -> FittedClasses:
        rows, source = job.rows, job.source
        classes, values, totals = _classes_of(source, rows)
        job = replace(job, on_step=_watched(job.on_step, classes) if len(classes) == 2 else None)
        factors = class_weights(self.class_weight, classes, totals)
        if factors is None and np.array_equal(values, [0, 1]):
            return FittedClasses(classes, (self._fitted_labels(job),))
        codes = np.searchsorted(values, np.concatenate(rows.collect(_targets)))
        if factors is not None:
            job = job.reweighted(factors[codes])
        parts: list[Fitted] = []
        for label in fitted_classes(len(classes)):
            inside = (codes == label).astype(np.float64)
            binary = job.reweighted(np.ones(len(codes)), inside)
            parts.append(self._fitted_labels(binary))
            if len(classes) > 2 and parts[-1].status is Status.interrupted:
                raise KeyboardInterrupt  # there is no model of the other classes
        fitted = FittedClasses(classes, tuple(parts))
        if len(classes) > 2 and self.fits_jointly and all(all(p.options.alpha) for p in parts):
            fitted = _joined(fitted, job, codes)
        return fitted.with_passes(rows)

    def _fitted_labels(self, job: Job) -> Fitted:
        """Fit the log-odds of labels 0 and 1; subclasses override it for special rows."""
        return job.fitted()

    def _of_log_odds(
        self, X: Any, method: str, turned: Callable[[Array], Array], width: int, dtype: Any = None
    ) -> np.ndarray:
        """Return what a method makes of the log-odds of rows; of a Dask collection, lazily.

        `turned` computes it, in `width` columns of some dtype, by default the dtype of the model.
        """
        fitted = self._classes_fitted()
        if is_dask(X):
            fitted.columns.check_inputs(getattr(X, "columns", None), X.shape[1])
            kind = np.dtype(fitted.parts[0].state.units.scale.dtype if dtype is None else dtype)
            lazy: np.ndarray = lazily(getattr(self, method), X, kind, None if width == 1 else width)
            return lazy
        parts = [fitted.log_odds(inside) for _, inside in self._chunks(X, method)]
        values: np.ndarray = turned(namespace(*parts).concat(parts))
        return values

    def _classes_fitted(self) -> FittedClasses:
        check_is_fitted(self)
        fitted: Any = self.fitted_
        if isinstance(fitted, FittedClasses):
            return fitted
        return FittedClasses(self.classes_, (fitted,))

    def _fitted(self, attribute: str) -> Fitted:
        fitted: Any = self._classes_fitted() if hasattr(self, "fitted_") else None
        if fitted is None or len(fitted.parts) == 1:
            one: Fitted = super()._fitted(attribute)
            return one
        if attribute in ("n_samples_seen_", "encoder_", "fill_", "moments_", "n_iter_"):
            last: Fitted = fitted.last
            return last
        raise AttributeError(
            f"There are {len(fitted.classes)} classes, and each has its own {attribute}: see "
            f"one_vs_rest(label){f'.{attribute}' if attribute.isidentifier() else ''}."
        )


def accuracy_of(
    predicted: Iterable[tuple[Chunk, Array, Array]],
    texts: tuple[str, ...] | None,
    label: Any = None,
) -> float:
    """Return the share, by weight, of chunks' labels that are predicted.

    With `texts` the targets of the chunks are positions in them. With `label` the predictions tell
    whether a row belongs to that class.
    """
    right = total = 0.0
    for chunk, _, labels in predicted:
        y = to_numpy(chunk.y)
        y = y if texts is None else np.asarray(texts)[y.astype(np.int64)]
        y = y if label is None else y == label
        right += float(chunk.weights @ (to_numpy(labels) == y))
        total += float(chunk.weights.sum())
    if not total > 0:
        raise ValueError(NO_WEIGHT)
    return right / total


def _classes_of(
    source: MemorySource | Source, rows: Rows
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the classes, the targets that stand for them, and the weight of each."""
    names, (values, totals) = class_names(source), class_totals(rows)
    if names is None:
        check_whole(values)
        boolean = isinstance(source, Source) and source.boolean_target
        classes = values.astype(bool if boolean else np.int64)
    else:
        classes, count = names, len(names)
        values, totals = np.arange(count), np.bincount(values.astype(int), totals, count)
    if np.count_nonzero(totals) < 2:
        label = classes.tolist()[int(np.argmax(totals))]
        raise ValueError(
            f"All rows belong to one class, {label!r}, or the others have weight 0. A classifier "
            "needs rows of at least two classes. If only positive examples were recorded, such as "
            "clicks, sample negative ones at random."
        )
    return classes, values, totals


def _joined(fitted: FittedClasses, job: Job, codes: np.ndarray) -> FittedClasses:
    """Return classes with scores that were fitted together."""
    parts = [(part.state, part.options) for part in fitted.parts]
    try:
        states = fit_jointly(ClassRows(job.task, job.rows, codes), parts)
    except KeyboardInterrupt:  # the fits of each class are there
        return fitted.interrupted()
    joint = []
    for part, state in zip(fitted.parts, states, strict=True):
        chosen = replace(part.options, rank=int(state.model.s.shape[0]))
        joint.append(Fitted.of(job.task, state, chosen, part.learned.tally))
    return replace(fitted, joint=tuple(joint))


def _watched(on_step: Any, classes: np.ndarray) -> Any:
    """Return a hook that adds the classes to the attributes."""
    if on_step is None:
        return None

    def hook(attributes: Any) -> bool:
        return bool(on_step(lambda: {**attributes(), "classes_": classes}))

    return hook


def _targets(chunk: Chunk) -> np.ndarray:
    return to_numpy(chunk.y)


def _weighted(chunk: Chunk, codes: np.ndarray, factors: np.ndarray | None) -> Array | None:
    if factors is None:
        return chunk.weight
    weight = moved(factors[codes.astype(np.int64)], chunk.y)
    return weight if chunk.weight is None else weight * chunk.weight


def _all_classes(classes: Any, before: np.ndarray | None) -> np.ndarray:
    """Return the classes of a stream; the first call has to name them."""
    if classes is None:
        if before is None:
            raise ValueError(
                "The first call of partial_fit needs all labels that will occur: partial_fit(X, "
                "y, classes=[...])."
            )
        return before
    named = sorted_classes(classes)
    if len(named) < 2:
        raise ValueError(f"A classifier needs at least two classes; classes={named.tolist()}.")
    if before is not None and not np.array_equal(named, before):
        raise ValueError(
            f"classes={named.tolist()} is not the same as in the first call of partial_fit, "
            f"{before.tolist()}. Leave it out, or begin again with a clone."
        )
    return named


@dataclass(eq=False, repr=False)
class SecondOrderClassifier(Classifying, SecondOrderModel):
    r"""Classifier whose log-odds are a second order linear model, of low rank and a few pairs.

    .. math:: \log \frac{P(y = 1 \mid x)}{P(y = 0 \mid x)} = b + x^\top w + x^\top (L + S)\, x

    with a symmetric L of rank k and an S of few entries, fitted by penalised maximum likelihood,

    .. math:: \min\; 2 \sum_i \omega_i \log\left(1 + e^{\mp f(x_i)}\right)
              + \alpha_1 |w|^2 + 2 \alpha_2 \|L\|_F^2

    from a start by moment estimates, by Newton steps that never raise the objective. By default the
    rank, the penalties and the pairs are chosen. Features are standardised
    internally and the penalty applies to standardised features; all results are in the user's
    units.

    With more than two classes there is one such model per class against all others, with its own
    rank, penalties and pairs, and a joint fit of scores of all classes, whose softmax gives the
    probabilities. With ``alpha="auto"`` and few rows, all scores share one prior and are linear or
    have all products; otherwise they have the ranks, penalties and pairs of the one-vs-rest models.
    Without a penalty there is no joint fit.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Rank k of the quadratic part: 0 is logistic regression, and a rank above the number of
        features means no restriction. "auto" chooses the low rank of largest evidence (marginal
        likelihood, by Laplace's approximation) if leave-one-out predictions confirm it; otherwise a
        linear model or all products.
    alpha : "auto", float or (float, float), default="auto"
        Ridge penalty, one number for w and M or one for each: 1/C of scikit-learn's
        `LogisticRegression` on standardised features. "auto" uses the penalties of largest
        evidence. The prior makes log-odds with a standard deviation above 10 unlikely, so separable
        rows have finite log-odds. With ``alpha=0`` the steps stop on such rows when the log-loss is
        0.5% of a constant's, with status `separated` and a warning.
    pairs : "auto", int, list of pairs of features or None, default="auto"
        The entries of S: at most so many that a search finds, or exactly the pairs of a list. The
        coefficient of a standardised product has a prior of standard deviation 10 (or the penalty
        of L if `alpha` is given), so it is finite even if a product separates the rows.
    squares : {"auto", True, False}, default="auto"
        Whether M has a diagonal. "auto" models squares where they differ from linear terms.
    class_weight : dict, "balanced" or None, default=None
        Factors for the weights of the rows of each class; "balanced" gives all classes the same
        total weight. Probabilities then refer to the weighted rows.
    categorical_features : "from_dtype", None or list, default="from_dtype"
        Columns of levels: text and categorical ones of a frame, and those listed by name, position
        or booleans. A list in the list is a group of one-hot columns; None takes all columns as
        numbers.
    missing : {"error", "mean"}, default="error"
        Whether missing values raise an error or are replaced by the mean, or by the level
        "missing". Standard errors of log-odds include what they could change.
    extrapolation : {"clip", "free"}, default="clip"
        "clip" limits each feature in predictions to one training range beyond its training range,
        with a warning. "free" sets no limits.
    uncertainty : bool or "robust", default=False
        Whether `fit` also computes standard errors, for `summary` and
        ``decision_function(X, return_std=True)``. True uses the Fisher information, which is
        correct if the model is; "robust" gives sandwich standard errors.
    fit_intercept : bool, default=True
        Whether to fit b. Without it the log-odds at zero are zero, and no pairs are searched.
    max_iter : int, default=50
        Maximum number of steps of `fit`.
    tol : float, default=1e-6
        `fit` stops when a step would lower the objective by less than this fraction of it. With
        rank 0, or all products, a few more steps bring log-odds that close to the optimum, too.
    max_memory : {"auto", "minimal"} or int, default="auto"
        Bytes for the first batch of `partial_fit`, per model: there is one for two classes, and
        otherwise one per class. "auto" keeps ten rows per parameter; "minimal" keeps none, and has
        no penalty (:doc:`/guide/streams`).
    warm_start : bool, default=False
        Whether `fit` starts from the model of the last fit; only with two classes and given rank
        and alpha.
    random_state : int, RandomState or None, default=None
        Seed of the random matrix that the first estimate starts from. With None it is fixed, so the
        same rows give the same model.

    Attributes
    ----------
    classes_ : array (n_classes,)
        The labels, sorted.
    coef_, intercept_, components_, eigenvalues_, rank_, alpha_, has_diagonal_, \
    interactions_, moments_, target_moments_, history_, n_iter_, n_samples_seen_, encoder_, \
    fill_, fitted_
        As for :class:`SecondOrderRegressor`, on the scale of the log-odds of `classes_[1]`. With
        more than two classes each class has its own: ``one_vs_rest(label).coef_``. The loss in
        `history_` is the log-loss plus half the penalty per row.
    n_passes_ : int
        Number of passes of `fit` over the rows, for all classes together.
    pairs_ : PairReport or None
        The pairs in the model. Their standard errors come from the information matrix and are not
        robust; shares and the path refer to the deviance, D² = 1 − deviance/deviance of the
        constant.
    status_ : Status
        How the fit ended; its value is advice.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Notes
    -----
    Time: O(nnz(X)·k) per pass and 15 to 40 passes with given rank and penalties.
    Choosing them takes some hundred Newton steps of O(np²) on a dense copy of the rows (at most 32
    MB, p ≤ 700 parameters); otherwise a few fits to a loose tolerance, and O(p³) for each rank
    tried, p ≤ 1,500. With more than two classes this is done once per class, and once for the joint
    fit. `n_passes_` counts passes over X, not steps on the copy. Memory in addition to X:
    O((k + 8)d), a block of rows, two numbers per row (and one per class), the copy and p×p while
    rank and penalties are chosen, and d×d with full whitening.

    Examples
    --------
    >>> import numpy as np
    >>> from quadlin import SecondOrderClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((2000, 5))
    >>> log_odds = 2 * X[:, 0] * X[:, 1] + X[:, 2]
    >>> y = np.where(rng.uniform(size=2000) < 1 / (1 + np.exp(-log_odds)), "yes", "no")
    >>> model = SecondOrderClassifier(random_state=0).fit(X, y)
    >>> model.classes_.tolist(), model.rank_
    (['no', 'yes'], 0)
    >>> [(pair.first, pair.second) for pair in model.pairs_.pairs]
    [('x0', 'x1')]
    >>> model.interactions_.top(1)[0][:2]
    ('x0', 'x1')
    >>> model.predict_proba([[1.5, 1.5, 0, 0, 0], [1.5, -1.5, 0, 0, 0]]).round(1).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """

    rank: int | str = "auto"
    _: KW_ONLY
    alpha: float | tuple[float, float] | str = "auto"
    pairs: str | int | Sequence[tuple[Name, Name]] | None = "auto"
    squares: bool | str = "auto"
    class_weight: Mapping[Any, float] | str | None = None
    categorical_features: Categories = "from_dtype"
    missing: str = "error"
    extrapolation: str = "clip"
    uncertainty: bool | str = False
    fit_intercept: bool = True
    max_iter: int = 50
    tol: float = 1e-6
    max_memory: int | str = "auto"
    warm_start: bool = False
    random_state: Any = None
