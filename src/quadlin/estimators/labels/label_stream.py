"""Classifiers that learn from rows that are seen once: one stream for each log-odds."""

from typing import Any, Self

import numpy as np

from quadlin.core.arrays import Array, moved, to_numpy, unflagged
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.moments import Tally
from quadlin.core.rows import Rows
from quadlin.data import Source, is_dask
from quadlin.estimators.labels.fitted_classes import FittedClasses
from quadlin.estimators.labels.label_predictions import PredictingLabels
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.regression.streaming import all_zero
from quadlin.estimators.regression.tasks import seed_of, task_of
from quadlin.estimators.regression.trust import in_model_dtype
from quadlin.estimators.rows.columns import Columns
from quadlin.estimators.rows.input_errors import check_label_weights
from quadlin.estimators.rows.labels import (
    LabelledRows,
    class_names,
    class_weights,
    codes_of,
    fitted_classes,
    sorted_classes,
)
from quadlin.estimators.rows.parameters import check_options
from quadlin.stream.stream import Stream


class StreamingLabels(PredictingLabels):
    """A classifier that can learn from a stream."""

    @unflagged
    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        classes: Any = None,
        sample_weight: Any = None,
        *,
        checkpoint: Any = None,
    ) -> Self:
        """Learn from rows that are seen once: O(kd) memory per class, one step per batch.

        The first batch, of at least two rows per parameter, is fitted as by `fit`; each later
        batch is one step, and the model is the mean of where they lead. With
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
        check_options(self)
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
        if fitted is not None:
            self._refuse_changes(fitted.parts[0])
            fitted, X = self._with_levels(fitted, X)
        classes = _all_classes(classes, None if fitted is None else fitted.classes)
        columns = None if fitted is None else fitted.columns
        weightless = sample_weight is not None and all_zero(sample_weight)
        source, columns = self._opened(
            X, y, None if weightless else sample_weight, columns, classes=classes
        )
        if weightless:
            return self
        if fitted is None:
            task = task_of(self, None, source, columns, seed_of(self))
            fields = tuple(task.make_units.fields)
            streams = [self._begun(task, source) for _ in fitted_classes(len(classes))]
        else:
            fields = fitted.parts[0].fields
            streams = [part.stream for part in fitted.parts]
        streams = self._fed(streams, source, classes)
        if not streams[0].n_rows:
            raise ValueError("No row has a weight above 0, so there is nothing to learn from.")
        parts = tuple(Fitted(stream, columns, fields).ready() for stream in streams)
        coupling = 0.0 if fitted is None else fitted.coupling
        self.adopt(FittedClasses(classes, parts, coupling))  # scores of a joint fit do not go on
        return self

    def _fed(
        self, streams: list[Stream], source: MemorySource | Source, classes: np.ndarray
    ) -> list[Stream]:
        """Return the streams after some rows: 1 for the class of a stream, 0 for all others."""
        factors = class_weights(self.class_weight, classes, np.ones(len(classes)))
        caller, names = f"{type(self).__name__}.partial_fit", class_names(source)
        for chunk in [source.all] if isinstance(source, LabelledRows) else Rows.of(source).walk():
            codes = to_numpy(chunk.y)
            if isinstance(source, Source):
                labels = codes if names is None else names[codes.astype(np.int64)]
                codes = codes_of(labels, classes)[1]
            X = in_model_dtype(chunk.X, caller, *streams[0].example_and_dtype)
            weight = _weighted(chunk, codes, factors)
            tally = Tally.of(Chunk(X, chunk.y, weight))
            check_label_weights(tally, first=not streams[0].n_rows)
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
        """Refuse to fit rows that can be read only once: which classes there are is not known."""
        raise ValueError(
            "These rows can be read only once, so the classes must be known beforehand: use "
            "partial_fit(rows, classes=[...])."
        )


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
