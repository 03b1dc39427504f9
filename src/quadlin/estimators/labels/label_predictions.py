"""Labels, probabilities and log-odds of a fitted classifier, and its classes one by one."""

from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted

from quadlin.core.arrays import Array, namespace
from quadlin.core.chunks import Chunk
from quadlin.data import Source, is_dask
from quadlin.data.dask_rows import lazily
from quadlin.estimators.labels.fitted_classes import FittedClasses
from quadlin.estimators.regression.base import SecondOrderModel
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.regression.fitted_model import require_law
from quadlin.estimators.regression.scores import accuracy_of, source_to_score
from quadlin.solve.lowrank.types import Status


class PredictingLabels(ClassifierMixin, SecondOrderModel):
    """The predictions of a fitted classifier."""

    classes_: np.ndarray

    def decision_function(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Return the log-odds of `classes_[1]`, or of each class against all others.

        Parameters
        ----------
        X : array, sparse matrix, frame, Dask collection or Source (n_samples, n_features)
            Rows.
        return_std : bool, default=False
            Whether to also return the standard errors of the log-odds: ±1.96 standard errors,
            turned into probabilities, are a 95% interval. What missing values and levels that fit
            did not see could change is included. Needs ``uncertainty=True``. For more than two
            classes they are those of the one-vs-rest models.

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
        for chunk, rows, inside in self._chunks(X, "decision_function"):
            f.append(fitted.log_odds(inside))
            errors.append(fitted.log_odds_error(rows, chunk.absent))
        xp = namespace(*f)
        return xp.concat(f), xp.concat(errors)

    def predict_proba(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Return the probability of each class, in the order of `classes_`.

        For more than two classes they come from jointly fitted scores, or from the log-odds of each
        class against all others, if these predict better.

        Parameters
        ----------
        X : array, sparse matrix, frame, Dask collection or Source (n_samples, n_features)
            Rows.
        return_std : bool, default=False
            Whether to also return the standard errors of the probabilities, p(1 − p) times those of
            the log-odds. An interval near 0 or 1 should rather come from `decision_function`.

        Returns
        -------
        array (n_samples, n_classes), or a pair of them
        """
        fitted = self._classes_fitted()
        if return_std:
            f, error = self.decision_function(X, return_std=True)
            p = fitted.probabilities(f)
            return p, p * (1 - p) * (error if error.ndim == 2 else error[:, None])
        return self._of_log_odds(X, "predict_proba", fitted.probabilities, len(fitted.classes))

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
        fitted, method = self._classes_fitted(), "predict_log_proba"
        return self._of_log_odds(X, method, fitted.log_probabilities, len(fitted.classes))

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
        fitted = self._classes_fitted()
        return self._of_log_odds(X, "predict", fitted.labels, 1, fitted.classes.dtype)

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
        fitted = self._classes_fitted()
        for chunk, _, inside in self._chunks(source, "predict"):
            f = fitted.log_odds(inside)
            yield chunk, fitted.probabilities(f), fitted.labels(f)

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
            Lines on status, features, correlation, rows, and rank.
        """
        self._require_one_model()
        return super().diagnose()

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
                f"With two classes, the classifier itself has the log-odds, those of {labels[1]!r}."
            )
        one: Self = clone(self)
        part = fitted.parts[labels.index(label)]
        one.adopt(FittedClasses(np.asarray([False, True]), (part,), label=label))
        return one

    @property
    def status_(self) -> Status:
        """Return how the fit ended; of several fits, that of the first that did not converge."""
        return self._classes_fitted().status

    @property
    def n_passes_(self) -> int:
        """Return the number of passes of `fit` over the rows, for all classes together."""
        return self._classes_fitted().passes

    def _of_log_odds(
        self, X: Any, method: str, turned: Callable[[Array], Array], width: int, dtype: Any = None
    ) -> Array:
        """Return what a method makes of the log-odds of rows; of a Dask collection, lazily.

        `turned` computes it, in `width` columns of some dtype, by default that of the model.
        """
        fitted = self._classes_fitted()
        if is_dask(X):
            fitted.columns.check_names(X)
            kind = np.dtype(fitted.parts[0].state.units.scale.dtype if dtype is None else dtype)
            return lazily(getattr(self, method), X, kind, None if width == 1 else width)
        parts = [fitted.log_odds(inside) for _, _, inside in self._chunks(X, method)]
        return turned(namespace(*parts).concat(parts))

    def _classes_fitted(self) -> FittedClasses:
        check_is_fitted(self)
        fitted: Any = self.fitted_
        if isinstance(fitted, FittedClasses):
            return fitted
        return FittedClasses(self.classes_, (fitted,))

    def _fitted(self, attribute: str) -> Fitted:
        fitted: Any = super()._fitted(attribute)
        if not isinstance(fitted, FittedClasses):
            return super()._fitted(attribute)
        if attribute in ("n_samples_seen_", "encoder_", "fill_", "moments_", "n_iter_"):
            return fitted.last
        raise AttributeError(
            f"There are {len(fitted.classes)} classes, and each has its own {attribute}: see "
            f"one_vs_rest(label){f'.{attribute}' if attribute.isidentifier() else ''}."
        )
