"""What the classifiers share: labels in, log-odds learned, probabilities out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted

from quadlin.core.arrays import Array, is_numpy, moved, namespace, to_numpy, unflagged
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.losses import probability, softplus
from quadlin.core.rows import Rows, Walks
from quadlin.core.standardise import UnitsMaker
from quadlin.data import Source, is_dask
from quadlin.estimators.base import SecondOrderModel, all_zero
from quadlin.estimators.columns import (
    NO_TARGET,
    Columns,
    as_source,
    blocks_to_predict,
    warn_outside,
    warn_unseen,
)
from quadlin.estimators.fitted import Fitted, at_home
from quadlin.estimators.fitting import Task, fit
from quadlin.estimators.labels import (
    LabelledRows,
    class_totals,
    class_weights,
    codes_of,
    labels_in,
    sorted_classes,
)
from quadlin.estimators.parameters import check_options
from quadlin.estimators.scores import accuracy_of
from quadlin.solve.fit_state import FitState
from quadlin.solve.types import Options, Status

UNDERFLOW = -30.0  # of log-odds: below, a probability is the exponential


@dataclass(frozen=True)
class FittedClasses:
    """One fit for two classes, else one for each class against all others."""

    classes: np.ndarray
    parts: tuple[Fitted, ...]

    @property
    def columns(self) -> Columns:
        """Return the columns, which all parts share."""
        return self.parts[0].columns

    @property
    def status(self) -> Status:
        """Return how the fit ended: of several, the first that did not converge."""
        states = [part.state.status for part in self.parts]
        return next((s for s in states if s is not Status.converged), Status.converged)

    @property
    def state(self) -> FitState:
        """Return the state of the part that took the most steps."""
        return max((part.state for part in self.parts), key=lambda state: state.history[-1].step)

    def at_home(self, X: Array, caller: str) -> Array:
        """Return rows in the dtype of the model; refuse those of another namespace or device."""
        return self.parts[0].at_home(X, caller)

    def outside(self, X: Array) -> Array:
        """Tell which rows lie far outside the training rows."""
        return self.parts[0].outside(X)

    def clipped(self, X: Array) -> tuple[Array, int]:
        """Return rows with each feature within its bounds, and how many rows had to be changed."""
        return self.parts[0].clipped(X)

    def log_odds(self, X: Array) -> Array:
        """Return the log-odds of rows as `at_home` returns them, (n, 1) or (n, K)."""
        return namespace(X).stack([part.predict(X, clip=False) for part in self.parts], axis=1)

    def attributes(self) -> dict[str, Any]:
        """Return the attributes that make a classifier a fitted one."""
        named = self.parts[0].attributes()
        if len(self.parts) > 1:
            named["fitted_"] = self
        return {**named, "classes_": self.classes}


class LogisticModel(ClassifierMixin, SecondOrderModel):
    """What the classifiers share; subclasses name their parameters."""

    loss, polish, step, uncertainty = "logistic", True, "guarded", False  # not parameters

    classes_: np.ndarray

    @unflagged
    def partial_fit(  # type: ignore[override]
        self,
        X: Any,
        y: Any = None,
        classes: Any = None,
        sample_weight: Any = None,
    ) -> Self:
        """Learn from rows that are seen once: O(kd) memory per class, one step per batch.

        The first batch, of at least two rows per parameter, is fitted as by `fit`; each later
        batch is one step.

        Parameters
        ----------
        X : array, sparse matrix, frame or Source (n_samples, n_features)
            Rows.
        y : array (n_samples,)
            Labels.
        classes : array (n_classes,)
            All labels that will come; needed in the first call only.
        sample_weight : array (n_samples,) or None
            As for `fit`.

        Returns
        -------
        self
        """
        check_options(self)
        if isinstance(self.class_weight, str):
            raise ValueError(
                'class_weight="balanced" needs to see all rows first. Use `fit`, or give '
                "partial_fit a dict of weights."
            )
        fitted = self._classes_fitted() if self.__sklearn_is_fitted__() else None
        if fitted is not None:
            self._refuse_changes(fitted.parts[0])
        classes = _all_classes(classes, None if fitted is None else fitted.classes)
        columns = None if fitted is None else fitted.columns
        weightless = sample_weight is not None and all_zero(sample_weight)
        source, columns = self._opened(
            X, y, None if weightless else sample_weight, columns, classes=classes
        )
        if weightless:
            return self
        if fitted is None:
            fields = self._known_fields(None, source, columns)
            task = self._task(source, columns, fields, self._seed())
            streams = [task.stream(task.options) for _ in fitted_classes(len(classes))]
        else:
            fields = fitted.parts[0].fields
            streams = [part.stream for part in fitted.parts]
        factors = class_weights(self.class_weight, classes, np.ones(len(classes)))
        caller = f"{type(self).__name__}.partial_fit"
        names = class_names(source)
        for chunk in [source.all] if isinstance(source, LabelledRows) else source:
            codes = to_numpy(chunk.y)
            if isinstance(source, Source):
                labels = codes if names is None else names[codes.astype(np.int64)]
                codes = codes_of(labels, classes)[1]
            X = at_home(chunk.X, caller, streams[0])
            weight = _weighted(chunk, codes, factors)
            for i, label in enumerate(fitted_classes(len(classes))):
                target = moved((codes == label).astype(np.float64), chunk.y)
                streams[i] = streams[i].fed(Chunk(X, target, weight))
        parts = tuple(Fitted(stream, columns, fields) for stream in streams)
        if not parts[0].stream.n_rows:
            raise ValueError("No row has a weight above 0, so there is nothing to learn from.")
        self.adopt(FittedClasses(classes, parts))
        return self

    def decision_function(self, X: Any) -> Array:
        """Return the log-odds of `classes_[1]`, or of each class against all others.

        Parameters
        ----------
        X : array, sparse matrix, frame, Dask collection or Source (n_samples, n_features)
            Rows.

        Returns
        -------
        array (n_samples,), or (n_samples, n_classes) for more than two classes
        """
        return self._log_odds(X, "decision_function")

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, in the order of `classes_`.

        For more than two classes those of each against all others, divided by their sum.

        Parameters
        ----------
        X : array, sparse matrix, frame, Dask collection or Source (n_samples, n_features)
            Rows.

        Returns
        -------
        array (n_samples, n_classes)
        """
        return probabilities(self._log_odds(X, "predict_proba"))

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithms of `predict_proba`, which do not underflow for two classes.

        Parameters
        ----------
        X : array, sparse matrix, frame, Dask collection or Source (n_samples, n_features)
            Rows.

        Returns
        -------
        array (n_samples, n_classes)
        """
        f = self._log_odds(X, "predict_log_proba")
        xp = namespace(f)
        if f.ndim == 1:
            return xp.stack([-softplus(f), -softplus(-f)], axis=1)
        log_p = -softplus(-f)
        top = xp.max(log_p, axis=1, keepdims=True)
        return log_p - top - xp.log(xp.sum(xp.exp(log_p - top), axis=1, keepdims=True))

    def predict(self, X: Any) -> Array:  # type: ignore[override]
        """Return the most probable label of each row.

        Parameters
        ----------
        X : array, sparse matrix, frame, Dask collection or Source (n_samples, n_features)
            Rows.

        Returns
        -------
        array (n_samples,)
        """
        return self._labels(self._log_odds(X, "predict"))

    def predict_chunks(  # type: ignore[override]
        self, source: Source
    ) -> Iterator[tuple[Chunk, Array, Array]]:
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
        check_is_fitted(self)
        fitted = self._classes_fitted()
        fitted.columns.check_source(source)
        outside = 0
        for chunk in Rows.of(source).walk():
            X, changed = self._trusted(fitted.at_home(chunk.X, f"{type(self).__name__}.predict"))
            outside += changed
            f = fitted.log_odds(X)
            f = f[:, 0] if len(fitted.parts) == 1 else f
            yield chunk, probabilities(f), self._labels(f)
        warn_outside(outside)
        if source.unseen:
            warn_unseen(source.unseen)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
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
        if isinstance(X, Source):
            check_is_fitted(self)
            source = as_source(X, y, sample_weight, None)
            if not source.has_target:
                raise ValueError(NO_TARGET)
            return accuracy_of(self.predict_chunks(source), source.labels)
        if y is None:
            raise ValueError("score needs labels: give y, or a Source opened with target=.")
        return float(super().score(X, y, sample_weight))

    def diagnose(self, X: Any = None, y: Any = None) -> str:
        """Say in words what there is to know about the fit, and what to change.

        Parameters
        ----------
        X, y : rows and labels, or None
            They are not looked at: what a regressor says of rows is about squared errors.

        Returns
        -------
        str
            Lines on status, features, correlation, rows, and rank.
        """
        self._require_one_model()
        return super().diagnose()

    def one_vs_rest(self, label: Any) -> Self:
        """Return the classifier of one class against all others, of more than two.

        Parameters
        ----------
        label : one of `classes_`

        Returns
        -------
        classifier
            Of the same type, for the classes False and True: with `coef_`, `interactions_`,
            `summary` and all else that a classifier of two classes has.
        """
        fitted = self._classes_fitted()
        labels = fitted.classes.tolist()
        if label not in labels:
            raise ValueError(f"{label!r} is not a class; there are {labels}.")
        if len(labels) == 2:
            raise ValueError(
                f"There are two classes, and the log-odds are those of {labels[1]!r}: read them "
                "from the classifier itself."
            )
        one: Self = clone(self)
        part = fitted.parts[labels.index(label)]
        one.adopt(FittedClasses(np.asarray([False, True]), (part,)))
        return one

    @property
    def status_(self) -> Status:
        """Return how the fit ended; of several, the first that did not converge."""
        check_is_fitted(self)
        return self._classes_fitted().status

    def _log_odds(self, X: Any, method: str) -> Array:
        """Return the log-odds of rows, (n,) or (n, K); `method` is named in errors."""
        check_is_fitted(self)
        fitted = self._classes_fitted()
        parts, outside = [], 0
        for block in blocks_to_predict(self, X, fitted.columns):
            rows, changed = self._trusted(fitted.at_home(block, f"{type(self).__name__}.{method}"))
            outside += changed
            parts.append(fitted.log_odds(rows))
        warn_outside(outside)
        f = namespace(*parts).concat(parts)
        return f[:, 0] if len(fitted.parts) == 1 else f

    def _classes_fitted(self) -> FittedClasses:
        fitted: Any = self.fitted_
        if isinstance(fitted, FittedClasses):
            return fitted
        return FittedClasses(self.classes_, (fitted,))

    def _fitted(self, attribute: str) -> Fitted:
        fitted: Any = super()._fitted(attribute)
        if not isinstance(fitted, FittedClasses):
            return super()._fitted(attribute)
        if attribute in ("n_samples_seen_", "encoder_", "fill_", "moments_", "n_iter_"):
            return max(fitted.parts, key=lambda part: part.state.history[-1].step)
        raise AttributeError(
            f"There are {len(fitted.classes)} classes, and each has its own {attribute}: see "
            f"one_vs_rest(label).{attribute}."
        )

    def _labels(self, f: Array) -> Array:
        """Return the most probable label for log-odds."""
        xp = namespace(f)
        codes = xp.astype(f > 0, xp.int64) if f.ndim == 1 else xp.argmax(f, axis=1)
        if is_numpy(f) or self.classes_.dtype.kind not in "iufb":
            return self.classes_[to_numpy(codes)]
        return xp.take(xp.asarray(self.classes_, device=f.device), codes)

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
        """Refuse to fit rows that can be read only once: which classes there are is not known."""
        raise ValueError(
            "These rows can be read only once, so the classes must be known before: use "
            "partial_fit(rows, classes=[...])."
        )

    def _warm_state(self, columns: Columns) -> FitState | None:
        """Return the state to start from, where there are two classes."""
        several = self.__sklearn_is_fitted__() and len(self._classes_fitted().parts) > 1
        return None if several else super()._warm_state(columns)

    def _fitted_rows(  # type: ignore[override]
        self,
        task: Task,
        rows: Rows,
        source: MemorySource | Source,
        warm: FitState | None,
        on_step: Any,
    ) -> FittedClasses:
        """Fit the log-odds of two classes, or of each class against all others."""
        classes = class_names(source)
        values = labels_in(rows) if classes is None else np.arange(len(classes))
        classes = values.astype(np.int64) if classes is None else classes
        totals = class_totals(rows, values)
        if np.count_nonzero(totals) < 2:
            label = classes.tolist()[int(np.argmax(totals))]
            raise ValueError(
                f"All rows have one class, {label!r}, or the others have weight 0. A classifier "
                "needs rows of at least two classes."
            )
        factors = class_weights(self.class_weight, classes, totals)
        if factors is None and np.array_equal(values, [0, 1]):
            part = self._fitted_labels(task, rows, source, warm, _watched(on_step, classes))
            return FittedClasses(classes, (part,))
        codes = np.searchsorted(values, np.concatenate(rows.collect(_targets)))
        like = source.y if isinstance(source, MemorySource) else np.empty(0)
        weight = None if factors is None else moved(factors[codes], like)
        parts = []
        for label in fitted_classes(len(classes)):
            target = moved((codes == label).astype(np.float64), like)
            hook = _watched(on_step, classes) if len(classes) == 2 else None
            against_rest = replace(rows.reweighted(weight, target), counter=Walks())
            binary = source
            if isinstance(source, MemorySource):
                given = source.weight
                both = weight if given is None or weight is None else weight * given
                binary = MemorySource(source.X, target, given if weight is None else both)
            part = self._fitted_labels(task, against_rest, binary, warm, hook)
            if len(classes) > 2 and part.state.status is Status.interrupted:
                raise KeyboardInterrupt(part.state.status.value)
            parts.append(part)
        return FittedClasses(classes, tuple(parts))

    def _fitted_labels(
        self,
        task: Task,
        rows: Rows,
        source: MemorySource | Source,
        warm: FitState | None,
        on_step: Any,
    ) -> Fitted:
        """Fit the log-odds of labels 0 and 1; subclasses may know better ways."""
        return fit(task, rows, warm, on_step)

    def _options(self, d: int) -> Options:
        return replace(super()._options(d), loss="logistic")

    def _units_maker(
        self, names: Sequence[str], dtype: Any, fields: Sequence[np.ndarray]
    ) -> UnitsMaker:
        return replace(super()._units_maker(names, dtype, fields), labels=True)


def class_names(source: MemorySource | Source) -> np.ndarray | None:
    """Return the labels that the targets of rows are positions of; None where they are numbers."""
    if isinstance(source, LabelledRows):
        return np.asarray(source.classes)
    labels = source.labels if isinstance(source, Source) else None
    return None if labels is None else np.asarray(labels)


def fitted_classes(count: int) -> Sequence[int]:
    """Return the numbers of the classes that have log-odds of their own."""
    return [1] if count == 2 else range(count)


def probabilities(f: Array) -> Array:
    """Return the probabilities of log-odds (n,), or of several classes (n, K) against the rest."""
    xp = namespace(f)
    if f.ndim == 1:
        return xp.stack([probability(-f), probability(f)], axis=1)
    # Shares of log-odds far below zero, which all underflow, are those of their exponentials.
    low = xp.max(f, axis=1, keepdims=True) < UNDERFLOW
    p = probability(xp.where(low, f - xp.max(f, axis=1, keepdims=True), f))
    return p / xp.sum(p, axis=1, keepdims=True)


def _watched(on_step: Any, classes: np.ndarray) -> Any:
    """Return a hook whose attributes are those of a classifier."""
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
    """Return the classes of a stream, which the first call has to name."""
    if classes is None:
        if before is None:
            raise ValueError(
                "The first call of partial_fit needs all labels that will come: "
                "partial_fit(X, y, classes=[...])."
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
